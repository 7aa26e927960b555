"""`OpenedRetriever`: opening and closing of a `Retriever`, for the retrievers of other frameworks."""

from __future__ import annotations

import weakref
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from latelier.retrieve import Retriever

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OpenedRetriever"]


class OpenedRetriever:
    """A part of classes that are constructed with a `Retriever`, as their argument and attribute ``retriever``."""

    if TYPE_CHECKING:  # an annotation of the class itself would be a field of pydantic's models
        retriever: Retriever

    # What `open` returned, and not a copy of it, closes the retriever. A model of pydantic accepts such an attribute if
    # its name begins with "_".
    _opened: weakref.ref[Self] | None = None

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        model: str | PathLike[str] | None = None,
        device: str | None = None,
        backend: Literal["auto", "onnx", "torch"] = "auto",
        **options: Any,
    ) -> Self:
        """Open a folder that a `Retriever` has filled, for reading; `close` or a ``with`` block closes it.

        Parameters
        ----------
        path, model, device, backend
            As for `Retriever.open`.
        **options
            The other arguments of this class.

        Returns
        -------
        LangChainRetriever or LlamaIndexRetriever
            Ready to search.

        Raises
        ------
        LatelierError
            As `Retriever.open` does.
        """
        opened = Retriever.open(path, model=model, device=device, backend=backend, read_only=True)
        try:
            retriever = cls(retriever=opened, **options)  # type: ignore[call-arg]
        except BaseException:
            opened.close()
            raise
        retriever._opened = weakref.ref(retriever)
        return retriever

    def close(self) -> None:
        """Close the index that `open` has opened; a retriever that was given stays open, as does that of a copy."""
        if self._opened is None:
            return
        opened = self._opened()
        if opened is None or opened is self:  # None: only copies are left
            self.retriever.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
