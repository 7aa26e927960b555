"""`tokenizer_lock`: a tokenizer is called by one thread at a time.

The maximum length and the padding of a call are a state of the tokenizers of Hugging Face. Without a lock, a thread
that encodes a query would truncate another thread's documents to the length of queries.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["tokenizer_lock"]

_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

if hasattr(os, "register_at_fork"):
    # The thread that held a lock does not exist in a forked process.
    os.register_at_fork(after_in_child=_locks.clear)


def tokenizer_lock(tokenizer: Any) -> AbstractContextManager[Any]:
    """Return the lock of a tokenizer, to be held during a call.

    Parameters
    ----------
    tokenizer
        A tokenizer of transformers; None for a model without one, which needs no lock.

    Returns
    -------
    context manager
        Entered by one thread at a time.

    Examples
    --------
    >>> from latelier.models import train_tokenizer
    >>> tokenizer = train_tokenizer(["low lower lowest"], 200)
    >>> with tokenizer_lock(tokenizer):
    ...     print(len(tokenizer("low", truncation=False)["input_ids"]))
    3
    """
    if tokenizer is None:
        return nullcontext()
    lock: AbstractContextManager[Any] = _locks.setdefault(tokenizer, RLock())
    return lock
