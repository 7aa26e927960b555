"""Progress bars that take no time and no lock unless they are shown."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["Silent", "progress_bar"]


class Silent:
    """A progress bar that is not shown."""

    def update(self, count: int = 1) -> None:
        """Do nothing."""


def progress_bar(*, shown: bool, **options: Any) -> AbstractContextManager[Any]:
    """Return a progress bar of tqdm, or one that does nothing.

    In a notebook with ipywidgets the bar is a widget; elsewhere it is text on standard error.

    Even with ``disable=True`` tqdm takes a lock that forked processes share. A process that is killed while it holds
    the lock, or forked while another thread holds it, would block the others forever.

    Parameters
    ----------
    shown
        Whether to show it.
    options
        Options of tqdm.

    Returns
    -------
    context manager
        Enters to an object with the method ``update``.

    Examples
    --------
    >>> with progress_bar(shown=False, total=2) as bar:
    ...     bar.update(2)
    ...     type(bar).__name__
    'Silent'
    """
    if not shown:
        return nullcontext(Silent())
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        # In a notebook without ipywidgets, tqdm warns when it is imported, and its bars are text.
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm

    return tqdm(**options)
