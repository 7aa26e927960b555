"""`NotCopied`: the base class of objects that hold connections and locks of their process."""

from __future__ import annotations

from typing import Any

__all__ = ["NotCopied"]


class NotCopied:
    """An object with documents that neither `copy` nor `pickle` can copy; the error says what to do.

    Examples
    --------
    >>> import copy
    >>> try:
    ...     copy.copy(NotCopied())
    ... except TypeError as error:
    ...     print(str(error).split(":")[0])
    NotCopied cannot be copied or pickled
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: open its folder again where it is needed, or copy its "
            "documents with indexes.copy_documents(index, other)."
        )
