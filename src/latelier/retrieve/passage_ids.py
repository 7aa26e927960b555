"""`PassageId`: how an index names the passages of documents.

The id of a passage is JSON: ``["a",3,1200,2015]`` is passage 3 of the document ``"a"``, its characters 1,200 to 2,015.
So ids keep their type (1 and "1" are two documents), any id is possible, offsets need no metadata key that could be a
user's, and the passages of a document are those whose ids begin with ``["a",``.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from latelier.indexes import Id
from latelier.utils.checks import is_count

__all__ = ["PassageId", "decode_passage_id", "encode_passage_id", "passage_prefix"]


class PassageId(NamedTuple):
    """A passage of a document.

    Attributes
    ----------
    document
        Id of the document.
    number
        Number of the passage in the document, from 0.
    start, end
        The passage is ``text[start:end]`` of the text that the user gave, in characters.
    """

    document: Id
    number: int
    start: int
    end: int


def encode_passage_id(passage: PassageId) -> str:
    """Return the id of a passage in the index.

    Examples
    --------
    >>> encode_passage_id(PassageId("a", 3, 1200, 2015))
    '["a",3,1200,2015]'
    """
    return json.dumps(passage, ensure_ascii=False, separators=(",", ":"))


def decode_passage_id(id: Id) -> PassageId | None:
    """Return the passage that an id names; None for an id of another form, which no retriever has written.

    Examples
    --------
    >>> decode_passage_id('[7,0,0,12]')
    PassageId(document=7, number=0, start=0, end=12)
    >>> decode_passage_id("a#1") is None
    True
    """
    if not (isinstance(id, str) and id.startswith("[")):
        return None
    try:
        value = json.loads(id)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(value, list) and len(value) == 4 and all(is_count(each, 0) for each in value[1:])):
        return None
    is_id = isinstance(value[0], (str, int)) and not isinstance(value[0], bool) and value[0] != ""
    passage = PassageId(*value)
    return passage if is_id and passage.start <= passage.end and encode_passage_id(passage) == id else None


def passage_prefix(document: Id) -> str:
    """Return what the ids of a document's passages begin with, and no other ids.

    Examples
    --------
    >>> passage_prefix("a"), passage_prefix(7)
    ('["a",', '[7,')
    """
    return json.dumps([document], ensure_ascii=False)[:-1] + ","
