"""Row formats."""

from __future__ import annotations

import ast
import difflib
import functools
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from latelier.arrays import is_array
from latelier.errors import InvalidArgumentError
from latelier.utils.checks import short

_QUERY = ("query", "anchor", "question")
_POSITIVE = ("positive", "pos", "document", "answer")
_NEGATIVE = ("negative", "negatives", "neg")
_SCORES = ("scores", "score", "labels", "label")  # the names that the trainer takes
_SCORES_OF_PARTS = ("pos_scores", "neg_scores")
_OPTIONAL = (*_NEGATIVE, "scores", "labels", *_SCORES_OF_PARTS)  # "scope" and "store" would be near "score"
_NUMBERED = re.compile(r"document_(\d{1,9})")
_POSITIVES = re.compile(rf"({'|'.join(_POSITIVE)}|positives)_?\d{{0,9}}")
_NEAR = 0.8  # similarity in difflib: "negativ" is near "negative" (0.93), "sources" not near "scores" (0.77)
_FORMATS = (
    "{query, positive, negative, ...}, {query, pos, neg, ...}, {query, documents, scores}, {query, document_1, "
    "document_2, ..., scores} or {query_id, document_ids, scores}"
)
_EXPECTED_SCORES = (
    "a list, a teacher's score for each document. If it says which pairs are relevant, give those alone, without it"
)
_LONGEST_NAME = 100  # a longer name is no misspelling, and difflib takes quadratic time


class Example(NamedTuple):
    """One row: its name in messages, its query, its documents, and a teacher's scores of them or None."""

    where: str
    query: str
    documents: list[str]
    scores: list[float] | None


def read_row(
    row: Any, where: str, queries: Mapping[Any, str] | None = None, documents: Mapping[Any, str] | None = None
) -> list[Example]:
    """Read a row in any of the formats: one example for each positive; with scores, one example with all documents."""
    if not isinstance(row, Mapping):
        raise InvalidArgumentError(f"{where} is {short(row)}; expected an object, such as {_FORMATS}.")
    row = _plain(row)
    if row.get("document_ids") is not None:
        _check_names(row, where)
        return [_of_ids(row, where, queries, documents)]
    query, positive = _first(row, _QUERY), _first(row, _POSITIVE)
    texts = _list(row["documents"], where, "documents") if row.get("documents") is not None else None
    if texts is None and positive is None:
        texts = _numbered_documents(row)
    if query is None or (positive is None and texts is None):
        raise InvalidArgumentError(
            f"{where} has the fields {', '.join(map(repr, row)) or 'none'}; expected {_FORMATS}."
        )
    _check_names(row, where)
    if texts is not None:
        name = _score_field(row)
        return [Example(where, query, texts, None if name is None else _scores(row, name, texts, where))]
    positives = _one_or_several(positive)
    negatives = _negatives(row)
    scores = _scores_of_parts(row, positives, negatives, where)
    if scores is not None:
        return [Example(where, query, [*positives, *negatives], scores)]
    if not positives:
        raise InvalidArgumentError(f"{where} has no positive; give each query at least one.")
    return [Example(where, query, [one, *negatives], None) for one in positives]


def texts_by_id(rows: Iterable[tuple[str, Any]], kind: str) -> dict[Any, str]:
    """Return id to text.

    `rows`: pairs of a row's name in messages and the row: a dict, or an ``(id, text)`` item of a dict. `kind`:
    ``"query"`` or ``"document"``: the prefix of the field with the id, and another name of the field ``text``. Returns:
    id to text; a title is put before the text. Raises `InvalidArgumentError` if a row has no id or no text, or has the
    id of another row with another text.
    """
    texts: dict[Any, str] = {}
    for where, row in rows:
        if isinstance(row, tuple) and len(row) == 2:
            row = {"id": row[0], "text": row[1]}
        if not isinstance(row, Mapping):
            raise InvalidArgumentError(f"{where} is {short(row)}; expected {kind}_id and text.")
        row = _plain(row)
        id_ = next((row[name] for name in (f"{kind}_id", "_id", "id") if name in row), None)
        text = next((row[name] for name in ("text", kind) if name in row), None)
        if id_ is None or text is None:
            raise InvalidArgumentError(
                f"{where} has the fields {', '.join(map(str, row))}; expected {kind}_id and text."
            )
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


def _plain(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a row with lists, numbers and texts of Python in place of those of numpy and torch."""
    return {
        name: value.tolist() if is_array(value) or isinstance(value, np.generic) else value
        for name, value in row.items()
    }


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _check_names(row: Mapping[str, Any], where: str) -> None:
    """Check that no field would be ignored that holds texts or scores, or has nearly the name of such a field."""
    given = [name for name in row if isinstance(name, str) and row[name] is not None]
    for name in given:
        if (near := _near_name(name)) is not None:
            raise InvalidArgumentError(
                f"{where} has the field {short(name)}, which is no field of {_FORMATS}; did you mean {near!r}? Rename "
                "or remove it."
            )
    for names in _alternatives(tuple(given)):
        if len(names) > 1:
            raise InvalidArgumentError(
                f"{where} has the fields {short(names[0])} and {short(names[1])}, of which only one can be read; "
                f"expected {_FORMATS}, where pos and neg may be lists. Remove one of the two, or rename it."
            )


@functools.lru_cache(maxsize=1024)
def _alternatives(names: tuple[str, ...]) -> tuple[list[str], ...]:
    """Return the given names of the query, of the documents and of the scores: a row has one of each."""
    numbered = [name for name in names if _NUMBERED.fullmatch(name)][:1]
    positives = [name for name in names if _POSITIVES.fullmatch(name) and not _NUMBERED.fullmatch(name)]
    lists = [name for name in ("document_ids", "documents") if name in names] + numbered
    parts = [name for name in names if _is_negative(name) or name in _SCORES_OF_PARTS] if lists else []
    return (
        [name for name in names if name in _QUERY],
        [*lists, *positives, *parts],
        [name for name in names if name in _SCORES],
    )


@functools.lru_cache(maxsize=1024)
def _near_name(name: str) -> str | None:
    """Return the optional field that a name may stand for, such as ``negative`` for ``hard_negative``."""
    if name in (*_OPTIONAL, *_SCORES) or _is_negative(name) or len(name) > _LONGEST_NAME:
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
    return Example(where, query, texts, _scores(row, _score_field(row) or "scores", texts, where))


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
    return [text for value in values for text in _one_or_several(value)]


def _one_or_several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_negative(name: str) -> bool:
    return re.fullmatch(r"(neg|negatives?)_?\d{0,9}", name) is not None


def _numbered_documents(row: Mapping[str, Any]) -> list[Any] | None:
    """Return the texts of ``document_1``, ``document_2``, ..., in this order; None if there are no such fields."""
    matches = (_NUMBERED.fullmatch(name) for name in row if isinstance(name, str))
    numbers = sorted((int(match[1]), match[0]) for match in matches if match is not None)
    return [row[name] for _, name in numbers] or None


def _score_field(row: Mapping[str, Any]) -> str | None:
    return next((name for name in _SCORES if row.get(name) is not None), None)


def _scores_of_parts(
    row: Mapping[str, Any], positives: Sequence[str], negatives: Sequence[str], where: str
) -> list[float] | None:
    """Return the scores of the positives, then of the negatives: ``scores``, or ``pos_scores`` and ``neg_scores``."""
    given = [name for name in (*_SCORES, *_SCORES_OF_PARTS) if row.get(name) is not None]
    if not given:
        return None
    if len(given) == 1 and given[0] in _SCORES:
        return _scores(row, given[0], [*positives, *negatives], where)
    if given[0] in _SCORES:
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


def _list(value: Any, where: str, name: str, expected: str = "a list") -> list[Any]:
    """Return a list that is given as such, as JSON or as a Python literal."""
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, RecursionError, MemoryError):  # MemoryError: nested too deeply
                value = None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidArgumentError(f"{where}: {name} is {short(given)}; expected {expected}.")
    return list(value)


def _scores(row: Mapping[str, Any], name: str, documents: Sequence[str], where: str) -> list[float]:
    values = _list(row.get(name), where, name, _EXPECTED_SCORES)
    if len(values) != len(documents):
        raise InvalidArgumentError(
            f"{where} has {len(values)} {name} for {len(documents)} documents; give one for each."
        )
    numbers = list(map(_number, values))
    for value, number in zip(values, numbers, strict=True):
        if not math.isfinite(number):
            raise InvalidArgumentError(f"{where}: {name} holds {short(value)}; expected numbers.")
    return numbers


def _number(value: Any) -> float:
    """Return a number as a float; NaN if it is none, or larger than any float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
