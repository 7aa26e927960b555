"""`DocumentSettings`: how the documents of an index were prepared, stored among the index's settings.

All documents of an index are prepared in one way: their scores would not be comparable otherwise. So the passages and
the pooling of the first `Retriever.add` are stored, and later calls take them from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from latelier.errors import IndexFormatError, InvalidArgumentError
from latelier.indexes import Index
from latelier.retrieve.passages import Passages, as_passages
from latelier.utils.checks import check_count, describe

__all__ = ["DocumentSettings"]

# The key among the settings of the index.
_SETTING = "documents"


class DocumentSettings(NamedTuple):
    """How documents are prepared.

    Attributes
    ----------
    passages
        Into what passages they are cut; None: into none.
    pool_factor
        About how many token vectors are pooled into one; 1: none are pooled.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> DocumentSettings.stored_in(index)
    DocumentSettings(passages=None, pool_factor=1)
    """

    passages: Passages | None = None
    pool_factor: int = 1

    @classmethod
    def stored_in(cls, index: Index) -> DocumentSettings:
        """Return the settings of an index; whole documents without pooling, if it stores none.

        Raises
        ------
        IndexFormatError
            If they are malformed.
        """
        stored = index.settings.get(_SETTING)
        if stored is None:
            return cls()
        try:
            passages, factor = stored["passages"], check_count("pool_factor", stored["pool_factor"])
            if passages is not None:
                tokens, overlap = passages["max_tokens"], passages["overlap"]
                passages = Passages(check_count("max_tokens", tokens), check_count("overlap", overlap, 0))
        except (InvalidArgumentError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"the index describes its documents in a form that this library does not write: {describe(stored)}."
            ) from error
        return cls(passages, factor)

    @classmethod
    def chosen(
        cls, index: Index, passages: Any, pool_factor: int | None, max_length: Callable[[], int | None]
    ) -> DocumentSettings:
        """Return the settings of documents to add: those of the index, or for an empty index those that are given.

        Parameters
        ----------
        index
            The index.
        passages, pool_factor
            As the user gives them; None: as the index has them.
        max_length
            Returns the maximum number of tokens that the model reads of a document; called if there are passages.

        Raises
        ------
        InvalidArgumentError
            If they are invalid, or not those of the index.
        """
        given = None if passages is None else as_passages(passages)
        factor = check_count("pool_factor", pool_factor, optional=True)
        stored = cls.stored_in(index)
        if index.dim is None:
            wanted = stored.passages if passages is None else given
            return cls(wanted and wanted.resolved(max_length()), factor or stored.pool_factor)
        agrees = given == stored.passages or (given and stored.passages and given.agrees_with(stored.passages))
        if passages is not None and not agrees:
            raise InvalidArgumentError(
                f"received passages={passages!r}, but the index holds {stored.describe_passages()}; leave passages "
                "out, or make a new index."
            )
        if factor not in (None, stored.pool_factor):
            raise InvalidArgumentError(
                f"received pool_factor={factor}, but the documents of the index have {stored.pool_factor}; leave it "
                "out, or make a new index."
            )
        if stored.passages is not None:
            stored.passages.resolved(max_length())
        return stored

    def store_in(self, index: Index) -> None:
        """Store the settings in an index, unless it has them already or they are those of whole documents."""
        if self == DocumentSettings.stored_in(index):
            return
        passages = self.passages and {"max_tokens": self.passages.max_tokens, "overlap": self.passages.overlap}
        index.settings[_SETTING] = {"passages": passages, "pool_factor": self.pool_factor}

    def describe_passages(self) -> str:
        """Return what an index holds, for messages."""
        if self.passages is None:
            return "whole documents"
        return f"passages of {self.passages.max_tokens} tokens that overlap by {self.passages.overlap}"
