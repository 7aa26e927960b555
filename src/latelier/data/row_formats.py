"""Formats of a row of training data: `read_row` recognises them by the names of the fields."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import short

__all__ = ["Example", "read_row", "texts_by_id"]

_QUERY = ("query", "anchor", "question")
_POSITIVE = ("positive", "pos", "document", "answer")
_FORMATS = (
    "{query, positive, negative, ...}, {query, pos, neg, ...}, {query, documents, scores} or "
    "{query_id, document_ids, scores}"
)
_LARGEST = sys.float_info.max  # larger integers have no float


class Example(NamedTuple):
    """One row: its name in messages, its query, its documents, and a teacher's scores of them or None."""

    where: str
    query: str
    documents: list[str]
    scores: list[float] | None


def read_row(
    row: Any, where: str, queries: Mapping[Any, str] | None = None, documents: Mapping[Any, str] | None = None
) -> list[Example]:
    """Read a row in any of the formats.

    Parameters
    ----------
    row
        The row.
    where
        Its name in error messages, such as a file and a line.
    queries, documents
        Id to text, for rows that hold ids.

    Returns
    -------
    list of Example
        One example for each positive; with scores, one example with all documents.

    Raises
    ------
    InvalidArgumentError
        If the row has none of the formats, or there is no text for an id.

    Examples
    --------
    >>> row = {"anchor": "rust?", "positive": "Iron oxide.", "negative": "A novel."}
    >>> read_row(row, "row 0")[0].documents
    ['Iron oxide.', 'A novel.']
    """
    if not isinstance(row, Mapping):
        raise InvalidArgumentError(f"{where} is {short(row)}; expected an object, such as {_FORMATS}.")
    if "document_ids" in row:
        return [_of_ids(row, where, queries, documents)]
    query = next((row[name] for name in _QUERY if name in row), None)
    positive = next((row[name] for name in _POSITIVE if name in row), None)
    if query is not None and "documents" in row:
        texts = _list(row["documents"], where, "documents")
        return [Example(where, query, texts, _scores(row, "scores", texts, where) if "scores" in row else None)]
    if query is None or positive is None:
        raise InvalidArgumentError(
            f"{where} has the fields {', '.join(map(repr, row)) or 'none'}; expected {_FORMATS}."
        )
    positives = positive if isinstance(positive, (list, tuple)) else [positive]
    negatives = _negatives(row)
    if row.get("pos_scores") is not None:
        texts = [*positives, *negatives]
        scores = [*_scores(row, "pos_scores", positives, where), *_scores(row, "neg_scores", negatives, where)]
        return [Example(where, query, texts, scores)]
    if not positives:
        raise InvalidArgumentError(f"{where} has no positive; give each query at least one.")
    return [Example(where, query, [one, *negatives], None) for one in positives]


def texts_by_id(rows: Iterable[tuple[str, Any]], kind: str) -> dict[Any, str]:
    """Return id to text.

    Parameters
    ----------
    rows
        Pairs of a row's name in messages and the row: a dict, or an ``(id, text)`` item of a dict.
    kind
        ``"query"`` or ``"document"``: the prefix of the field with the id, and another name of the field ``text``.

    Returns
    -------
    dict
        Id to text; a title is put before the text.

    Raises
    ------
    InvalidArgumentError
        If a row has no id or no text.
    """
    texts: dict[Any, str] = {}
    for where, row in rows:
        if isinstance(row, tuple) and len(row) == 2:
            row = {"id": row[0], "text": row[1]}
        if not isinstance(row, Mapping):
            raise InvalidArgumentError(f"{where} is {short(row)}; expected {kind}_id and text.")
        id_ = next((row[name] for name in (f"{kind}_id", "_id", "id") if name in row), None)
        text = next((row[name] for name in ("text", kind) if name in row), None)
        if id_ is None or text is None:
            raise InvalidArgumentError(
                f"{where} has the fields {', '.join(map(str, row))}; expected {kind}_id and text."
            )
        if not isinstance(id_, Hashable) or isinstance(id_, tuple):
            raise InvalidArgumentError(f"{where} has the id {short(id_)}; expected a str or an int.")
        texts[id_] = f"{row['title']} {text}".strip() if row.get("title") else text
    return texts


def _of_ids(
    row: Mapping[str, Any], where: str, queries: Mapping[Any, str] | None, documents: Mapping[Any, str] | None
) -> Example:
    if queries is None or documents is None:
        raise InvalidArgumentError(f"{where} holds ids; pass queries=... and documents=... with their texts.")
    ids = _list(row["document_ids"], where, "document_ids")
    texts = [_text(documents, id_, where, "document") for id_ in ids]
    query = _text(queries, row.get("query_id"), where, "query")
    return Example(where, query, texts, _scores(row, "scores", texts, where))


def _text(texts: Mapping[Any, str], id_: Any, where: str, kind: str) -> str:
    """Find a text by id, also if one side has it as a string and the other as an integer."""
    if isinstance(id_, Hashable) and not isinstance(id_, tuple):
        number = int(id_) if isinstance(id_, str) and id_.isdecimal() and len(id_) < 20 else id_
        found = next((texts[key] for key in (id_, _as_text(id_), number) if key in texts), None)
        if found is not None:
            return found
    raise InvalidArgumentError(f"{where}: there is no text for the {kind} {short(id_)}.")


def _as_text(id_: Any) -> str:
    try:
        return str(id_)
    except ValueError:  # an integer of thousands of digits
        return ""


def _negatives(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of ``negative``, ``negative_1``, ..., or of lists of them, in the order of the fields."""
    values = [
        value
        for name, value in row.items()
        if isinstance(name, str)
        and (name.startswith("negative") or name.removeprefix("neg").strip("_").isdecimal() or name == "neg")
        and not name.endswith("scores")
        and value is not None
    ]
    return [text for value in values for text in (value if isinstance(value, (list, tuple)) else [value])]


def _list(value: Any, where: str, name: str) -> list[Any]:
    """Return a list that is given as such, as JSON or as a Python literal."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # MemoryError: nested too deeply
                raise InvalidArgumentError(f"{where}: {name} is {short(value)}; expected a list.") from error
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidArgumentError(f"{where}: {name} is {short(value)}; expected a list.")
    return list(value)


def _scores(row: Mapping[str, Any], name: str, documents: Sequence[str], where: str) -> list[float]:
    values = _list(row.get(name), where, name)
    if len(values) != len(documents):
        raise InvalidArgumentError(
            f"{where} has {len(values)} {name} for {len(documents)} documents; give one for each."
        )
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) < math.inf or abs(value) > _LARGEST:
            raise InvalidArgumentError(f"{where}: {name} holds {short(value)}; expected numbers.")
    return [float(value) for value in values]
