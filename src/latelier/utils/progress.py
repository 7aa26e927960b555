"""Progress bars that cost nothing, and lock nothing, where none is shown."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tqdm import tqdm

__all__ = ["Silent", "progress_bar"]


class Silent:
    """A bar that is not shown."""

    def update(self, count: int = 1) -> None:
        """Count nothing."""


def progress_bar(*, shown: bool, **options: Any) -> AbstractContextManager[Any]:
    """Return a bar of tqdm, or one that does nothing.

    Even with ``disable=True`` tqdm takes a lock that forked processes share: one that was killed while it held the
    lock, or forked while another thread did, would leave the others waiting for ever.

    Parameters
    ----------
    shown
        Whether to show it.
    options
        Those of tqdm.

    Examples
    --------
    >>> with progress_bar(shown=False, total=2) as bar:
    ...     bar.update(2)
    ...     type(bar).__name__
    'Silent'
    """
    return tqdm(**options) if shown else nullcontext(Silent())
