"""The whole contract of an index: what it is given, what it answers, and how it fails.

Whatever holds token vectors and finds the documents with the highest MaxSim is an `Index`. Those that keep their
documents in this library's own storage derive from `latelier.indexes.stored.StoredIndex`, which implements all of it
but three hooks; an adapter to another engine derives from `Index` itself. `tests/indexes` runs one suite over all.

Ids are the user's, never shift and keep their type: 1 and "1" are two documents. A writing call is one transaction:
other threads and processes see all of it or nothing, and an error leaves the index as it was.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.results import CheckReport, Hit, Id, VerifyReport

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Index", "Parameters", "PathLike"]

Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
PathLike: TypeAlias = "str | os.PathLike[str]"


class Index(ABC):
    """Documents as token vectors, found by late interaction.

    Parameters
    ----------
    path
        Folder of the index; ``None`` keeps it in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.add(["a", "b"], [np.eye(2), np.ones((1, 2))], metadata=[{"year": 2019}, {"year": 2024}])
    >>> index.search(np.array([[1.0, 0.0], [1.0, 1.0]]), k=1)
    [[Hit(id='b', score=3.0)]]
    >>> index.search(np.array([[1.0, 0.0]]), filter="year < ?", parameters=(2020,))
    [[Hit(id='a', score=1.0)]]
    """

    path: Path | None

    @abstractmethod
    def add(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """Add documents, all or none.

        Parameters
        ----------
        ids
            One id per document, ``str`` (not empty) or ``int`` (64 bits); or one id for one document.
        embeddings
            One ``(tokens, dim)`` matrix per document: `TokenEmbeddings`, a list of numpy or torch matrices of any
            floating dtype, or any iterable of matrices or of `TokenEmbeddings`. Iterables are read as they come, in
            step with the others, in bounded memory. One matrix goes with one id, alone or in a list.
        texts, metadata
            One per document: a text or ``None``; a dict of JSON values or ``None``. Both come back from `get`; the
            keys of the metadata are the columns of filters.
        show_progress
            Count documents on stderr.

        Raises
        ------
        DuplicateIdError
            If an id is given twice or is in the index already.
        EmbeddingsError
            If a document has no token, NaN or infinity, or another dim than the rest.
        InvalidArgumentError
            If the arguments differ in length, or an id, a text or metadata cannot be stored.
        """

    @abstractmethod
    def update(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """Replace whole documents, or insert those that are new; all or none.

        Text and metadata that are not given again are gone, and the document counts as the last one inserted.

        Parameters
        ----------
        ids, embeddings, texts, metadata, show_progress
            As for `add`.

        Raises
        ------
        DuplicateIdError
            If an id is given twice in this call.
        """

    @abstractmethod
    def remove(self, ids: Id | Iterable[Id]) -> None:
        """Remove documents, all or none.

        Parameters
        ----------
        ids
            One id or several; naming one twice removes it once.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """

    @abstractmethod
    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: str | Sequence[str] | None = None,
        parameters: Parameters = (),
        filter_timeout: float | None = 10.0,
    ) -> list[list[Hit]]:
        """Return the `k` best documents of each query.

        Parameters
        ----------
        queries
            `TokenEmbeddings`, a list of ``(tokens, dim)`` matrices, or one matrix for one query.
        k
            At most this many hits per query; fewer where fewer documents are left.
        filter
            An SQL expression that documents must meet: ``"year >= 2020 AND lang = ?"``. Its columns are ``id``,
            ``text`` and the metadata's keys; see `latelier.indexes.catalog.filters`. Or a list of
            expressions that must all hold, each of which is read by itself: ``["tenant = ?", theirs]`` finds no other
            tenant's documents, whatever a stranger has written.
        parameters
            The values of the filter's ``?``, in order, or a dict for ``:name``.
        filter_timeout
            Seconds that the filter may take; ``None`` for no limit.

        Returns
        -------
        list of list of Hit
            One list per query, best first; equal scores in the order of insertion.

        Raises
        ------
        EmbeddingsError
            If a query has no token, NaN or infinity, or another dim than the index.
        InvalidArgumentError
            If `k` is not a positive integer, or the filter is refused or cannot be evaluated.
        FilterTimeoutError
            If the filter takes too long.
        """

    @abstractmethod
    def get(self, ids: Id | Iterable[Id]) -> Any:
        """Return text and metadata: a `Record` for one id, a list of them in the order asked for several.

        Parameters
        ----------
        ids
            One id or several.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """

    @abstractmethod
    def get_embeddings(self, ids: Id | Iterable[Id]) -> TokenEmbeddings:
        """Return the stored vectors of documents, in the order asked for.

        Parameters
        ----------
        ids
            One id or several.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """

    @abstractmethod
    def ids(self) -> list[Id]:
        """Return all ids in the order of insertion."""

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """Numbers per token, ``None`` while the index is empty."""

    @property
    @abstractmethod
    def settings(self) -> MutableMapping[str, Any]:
        """JSON values that users and tools keep with the index, each assignment a commit of its own."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all that this thread reads within a ``with`` block be of one commit, whatever others write meanwhile.

        Nothing can be written within the block, which ends in the thread that began it. Of an index in memory, other
        threads wait. An adapter to an engine that cannot promise it does nothing here.

        Examples
        --------
        >>> import numpy as np
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> index.add("a", np.eye(2), texts="first")
        >>> with index.snapshot():
        ...     [[hit]] = index.search(np.eye(2), k=1)
        ...     index.get(hit.id).text
        'first'
        """
        return nullcontext()

    @abstractmethod
    def compact(self, *, show_progress: bool = False) -> None:
        """Merge what many writes have scattered, and give back the space of removed documents.

        Searches go on meanwhile, in this process and in others. What is damaged stays as it is and is named by an
        `IndexDamageWarning`. An index that an older version has made gets the newest format.

        Parameters
        ----------
        show_progress
            Count documents on stderr.
        """

    @abstractmethod
    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """Measure recall@k of `search` against exact scores, with the index's own documents as queries.

        Parameters
        ----------
        k
            How many hits to compare.
        queries
            How many documents, spread evenly over the index, to use as queries; each one reads the whole index.

        Returns
        -------
        CheckReport
            Prints as one readable line.
        """

    @abstractmethod
    def verify(self) -> VerifyReport:
        """Read every stored byte and compare it with its checksum.

        Returns
        -------
        VerifyReport
            The damaged files and the ids of their documents; prints as a readable text.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back files and memory; closing twice does nothing, any other use afterwards is an error."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __contains__(self, id: object) -> bool: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
