"""Formats of a row of training data: `read_row` recognises them by the names of the fields."""

from __future__ import annotations

import ast
import difflib
import functools
import json
import math
import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import short

__all__ = ["Example", "read_row", "texts_by_id"]

_QUERY = ("query", "anchor", "question")
_POSITIVE = ("positive", "pos", "document", "answer")
_NEGATIVE = ("negative", "negatives", "neg")
_OPTIONAL = (*_NEGATIVE, "scores", "pos_scores", "neg_scores")
_NEAR = 0.8  # similarity in difflib: "negativ" is near "negative" (0.93), "sources" not near "scores" (0.77)
_FORMATS = (
    "{query, positive, negative, ...}, {query, pos, neg, ...}, {query, documents, scores}, {query, document_1, "
    "document_2, ..., scores} or {query_id, document_ids, scores}"
)
_LONGEST_NAME = 100  # a longer name is no misspelling, and difflib takes quadratic time
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
        If the row has none of the formats, some of its scores are missing, the name of a field is nearly that of a
        field that would be read, or there is no text for an id.

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
    positive: Any = next((row[name] for name in _POSITIVE if name in row), None)
    texts = _list(row["documents"], where, "documents") if "documents" in row else None
    if texts is None and positive is None:
        texts = _numbered_documents(row)
    if query is None or (positive is None and texts is None):
        raise InvalidArgumentError(
            f"{where} has the fields {', '.join(map(repr, row)) or 'none'}; expected {_FORMATS}."
        )
    _check_names(row, where)
    if texts is not None:
        return [Example(where, query, texts, _scores(row, "scores", texts, where) if "scores" in row else None)]
    positives = list(positive) if isinstance(positive, (list, tuple)) else [positive]
    negatives = _negatives(row)
    scores = _scores_of_parts(row, positives, negatives, where)
    if scores is not None:
        return [Example(where, query, [*positives, *negatives], scores)]
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
        If a row has no id or no text, or has the id of another row with another text.
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
        text = f"{row['title']} {text}".strip() if row.get("title") else text
        if id_ in texts and not _same_text(texts[id_], text):
            raise InvalidArgumentError(
                f"{where} has the id {short(id_)} with the text {short(text)}; a row before it has this id with the "
                f"text {short(texts[id_])}. Give each {kind} an id of its own."
            )
        texts[id_] = text
    return texts


def _same_text(text: Any, other: Any) -> bool:
    return isinstance(text, str) and isinstance(other, str) and text == other


def _check_names(row: Mapping[str, Any], where: str) -> None:
    """Check that no field would be ignored whose name is nearly that of negatives or scores."""
    for name in row:
        if isinstance(name, str) and row[name] is not None and (near := _near_name(name)) is not None:
            raise InvalidArgumentError(
                f"{where} has the field {short(name)}, which is no field of {_FORMATS}; did you mean {near!r}? Rename "
                "or remove it."
            )


@functools.lru_cache(maxsize=1024)
def _near_name(name: str) -> str | None:
    """Return the optional field that a name may stand for, such as ``negative`` for ``hard_negative``."""
    if name in _OPTIONAL or _is_negative(name) or len(name) > _LONGEST_NAME:
        return None
    plain = re.sub(r"[\W_]*\d*$", "", name.lower())
    near = difflib.get_close_matches(plain, _OPTIONAL, 1, _NEAR)
    last_word = re.split(r"[\W_]+", plain)[-1]
    near = near or difflib.get_close_matches(last_word, _NEGATIVE, 1, _NEAR)
    near = near or [whole for whole in ("negatives", "negative") if plain.startswith(whole)]
    return near[0] if near else None


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
        same = number if _as_text(number) == id_ else id_  # "007" is another id than 7
        found = next((texts[key] for key in (id_, _as_text(id_), same) if key in texts), None)
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
        value for name, value in row.items() if isinstance(name, str) and _is_negative(name) and value is not None
    ]
    return [text for value in values for text in (value if isinstance(value, (list, tuple)) else [value])]


def _is_negative(name: str) -> bool:
    return re.fullmatch(r"(neg|negatives?)_?\d{0,9}", name) is not None


def _numbered_documents(row: Mapping[str, Any]) -> list[Any] | None:
    """Return the texts of ``document_1``, ``document_2``, ..., in this order; None if there are no such fields."""
    matches = (re.fullmatch(r"document_(\d{1,9})", name) for name in row if isinstance(name, str))
    numbers = sorted((int(match[1]), match[0]) for match in matches if match is not None)
    return [row[name] for _, name in numbers] or None


def _scores_of_parts(
    row: Mapping[str, Any], positives: Sequence[str], negatives: Sequence[str], where: str
) -> list[float] | None:
    """Return the scores of the positives, then of the negatives: ``scores``, or ``pos_scores`` and ``neg_scores``."""
    given = [name for name in ("scores", "pos_scores", "neg_scores") if row.get(name) is not None]
    if not given:
        return None
    if given == ["scores"]:
        return _scores(row, "scores", [*positives, *negatives], where)
    if "scores" in given:
        raise InvalidArgumentError(
            f"{where} has the fields {', '.join(map(repr, given))}; give scores, or pos_scores and neg_scores."
        )
    if "pos_scores" not in given or ("neg_scores" not in given and negatives):
        missing = "neg_scores" if "pos_scores" in given else "pos_scores"
        raise InvalidArgumentError(
            f"{where} has {given[0]}, but no {missing}; give a score for each positive and each negative."
        )
    scores = _scores(row, "pos_scores", positives, where)
    return scores + _scores(row, "neg_scores", negatives, where) if "neg_scores" in given else scores


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
