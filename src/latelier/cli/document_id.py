"""The id of a document, as it is typed on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latelier.indexes import Id, Index

__all__ = ["document_id"]


def document_id(index: Index, text: str) -> Id:
    """Return the id that a text spells: an integer if the index has it, else the text.

    Parameters
    ----------
    index
        The index with the document, or with its passages.
    text
        The text.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.add([7, "8"], [np.eye(2), np.eye(2)])
    >>> document_id(index, "7"), document_id(index, "8"), document_id(index, "9")
    (7, '8', '9')
    """
    from latelier.retrieve.stored_documents import StoredDocuments
    from latelier.utils.files import number_or_text

    number = number_or_text(text)
    return number if isinstance(number, int) and number in StoredDocuments(index) else text
