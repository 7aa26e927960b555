"""`load_training_set`: training data of any of the usual forms as one form of rows.

The format of a row is recognised by the names of its fields; errors name the file and the line.
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import math
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.arrays import is_array
from latelier.errors import InvalidArgumentError
from latelier.evaluation import load_beir
from latelier.utils.checks import check_count, check_unicode, short
from latelier.utils.files import as_path, is_folder, open_binary, parse_json, text_lines
from latelier.utils.misc import needs_extra

if TYPE_CHECKING:
    from datasets import Dataset


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
    query = _first(row, _QUERY)
    positive = _first(row, _POSITIVE)
    if row.get("documents") is not None:
        texts = _list(row["documents"], where, "documents")
    else:
        texts = None
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
    """Return id to text of the rows of a `kind`, a title before its text; an id with two texts is refused."""
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
        if row.get("title"):
            text = f"{row['title']} {text}".strip()
        if texts.get(id_, text) != text:
            raise InvalidArgumentError(
                f"{where} has the id {short(id_)} with the text {short(text)}; a row before it has this id with the "
                f"text {short(texts[id_])}. Give each {kind} an id of its own."
            )
        texts[id_] = text
    return texts


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
    if lists:
        parts = [name for name in names if _is_negative(name) or name in _SCORES_OF_PARTS]
    else:
        parts = []
    return (
        [name for name in names if name in _QUERY],
        [*lists, *positives, *parts],
        # beside scores, labels say which documents are relevant
        [name for name in names if name in _SCORES[:2]] or [name for name in names if name in _SCORES],
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
    if near:
        return near[0]
    return None


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
        same = number if str(number) == id_ else id_  # "007" is another id than 7
        found = next((texts[key] for key in (id_, str(id_), same) if key in texts), None)
        if found is not None:
            return found
    raise InvalidArgumentError(f"{where}: there is no text for the {kind} {short(id_)}.")


def _negatives(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of ``negative``, ``negative_1``, ..., or of lists of them, in the order of the fields."""
    values = [
        value for name, value in row.items() if isinstance(name, str) and _is_negative(name) and value is not None
    ]
    return [text for value in values for text in _one_or_several(value)]


def _one_or_several(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


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
    whole = _score_field(row)
    given = [name for name in (whole, *_SCORES_OF_PARTS) if name is not None and row.get(name) is not None]
    if not given:
        return None
    if len(given) == 1 and given[0] in _SCORES:
        return _scores(row, given[0], [*positives, *negatives], where)
    if given[0] in _SCORES or "pos_scores" not in given or ("neg_scores" not in given and negatives):
        raise InvalidArgumentError(
            f"{where} has {' and '.join(given)}; give scores, or pos_scores and neg_scores, a score for each text."
        )
    scores = _scores(row, "pos_scores", positives, where)
    if "neg_scores" in given:
        return scores + _scores(row, "neg_scores", negatives, where)
    return scores


def _list(value: Any, where: str, name: str, expected: str = "a list") -> list[Any]:
    """Return a list that is given as such, as JSON or as a Python literal."""
    given = value
    if isinstance(value, str):
        for parse in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):  # MemoryError: nested too deeply
                value = parse(given)
                break
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidArgumentError(f"{where}: {name} is {short(given)}; expected {expected}.")
    return list(value)


def _scores(row: Mapping[str, Any], name: str, documents: Sequence[str], where: str) -> list[float]:
    values = _list(row.get(name), where, name, _EXPECTED_SCORES)
    if len(values) != len(documents):
        raise InvalidArgumentError(
            f"{where} has {len(values)} {name} for {len(documents)} documents; give one for each."
        )
    return values


@dataclass(frozen=True, repr=False)
class TrainingSet:
    """Queries with the same number of documents each.

    Parameters
    ----------
    queries
        One text per row.
    documents
        Documents of each row: the positive, then negatives; with scores, candidates in any order.
    scores
        A teacher's scores of the documents of each row, or None.
    rows
        Names of the rows in error messages, such as ``pairs.jsonl:12``; default: their positions.

    Raises
    ------
    InvalidArgumentError
        If a text is empty, a row has another number of documents than the first, or a row has not one score per
        document.

    Examples
    --------
    >>> documents = ["Rome lies on the Tiber.", "Rome, Georgia, is a city."]
    >>> TrainingSet(["where is Rome?"], [documents])
    TrainingSet(1 row, 2 documents each)
    >>> two = ["where is Rome?", "what is rust?"]
    >>> TrainingSet(two, [documents, ["An oxide."]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: row 1 has 1 document, the rows before it have 2 each; ...
    """

    queries: Sequence[str]
    documents: Sequence[Sequence[str]]
    scores: Sequence[Sequence[float]] | None = None
    rows: Sequence[str] | None = None

    def __post_init__(self) -> None:
        counts = {n: len(v) for n, v in vars(self).items() if v is not None}
        if len(set(counts.values())) > 1:
            raise InvalidArgumentError(
                f"received {', '.join(f'{count} {name}' for name, count in counts.items())}; expected as many of each."
            )
        for i in range(len(self)):
            self._check_row(i)

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        rows = len(self)
        width = self.width
        scored = ", with scores" if self.scores is not None else ""
        if rows:
            return f"TrainingSet({rows:,} row{'s' * (rows != 1)}, {width} document{'s' * (width != 1)} each{scored})"
        return "TrainingSet(0 rows)"

    @property
    def width(self) -> int:
        """Number of documents per row."""
        if len(self):
            return len(self.documents[0])
        return 0

    def select(self, rows: Sequence[int]) -> TrainingSet:
        """Return the rows at some positions, in this order; negative ones count from the end.

        Examples
        --------
        >>> TrainingSet(["a", "b"], [["x"], ["y"]]).select([1]).queries
        ['b']
        """
        # integers of Python from an array or a tensor
        if hasattr(rows, "tolist"):
            rows = rows.tolist()
        return TrainingSet(
            [self.queries[i] for i in rows],
            [self.documents[i] for i in rows],
            None if self.scores is None else [self.scores[i] for i in rows],
            None if self.rows is None else [self.rows[i] for i in rows],
        )

    def to_dataset(self) -> Dataset:
        """Convert to the data set that `sentence_transformers.MultiVectorEncoderTrainer` takes (extra ``train``).

        Columns: ``query``, ``positive``, ``negative_1``, ...; with scores ``query``, ``document_1``, ..., ``scores``.

        Examples
        --------
        >>> TrainingSet(["a"], [["x", "y"]]).to_dataset().column_names
        ['query', 'positive', 'negative_1']
        """
        with needs_extra("Making a data set for the trainer", "train"):
            from datasets import Dataset
        columns: dict[str, Sequence[str] | Sequence[Sequence[float]]] = {"query": list(self.queries)}
        for j in range(self.width):
            if self.scores is not None:
                name = f"document_{j + 1}"
            elif j:
                name = f"negative_{j}"
            else:
                name = "positive"
            columns[name] = [documents[j] for documents in self.documents]
        if self.scores is not None:
            columns["scores"] = [list(map(float, scores)) for scores in self.scores]
        return Dataset.from_dict(columns)

    def _check_row(self, i: int) -> None:
        if self.rows is not None:
            where = self.rows[i]
        else:
            where = f"row {i}"
        documents = self.documents[i]
        if isinstance(documents, str) or not len(documents):  # an array of several has no truth value
            raise InvalidArgumentError(f"{where} has {short(documents)}; give each query a list of documents.")
        for name, text in [("query", self.queries[i]), *((f"document {j}", text) for j, text in enumerate(documents))]:
            if not isinstance(text, str) or not text.strip():
                raise InvalidArgumentError(f"{where}: {name} is {short(text)}; expected a text that is not empty.")
            check_unicode(text, f"{where}: {name}")
        if len(documents) != self.width:
            raise InvalidArgumentError(
                f"{where} has {len(documents)} document{'s' * (len(documents) != 1)}, the rows before it have "
                f"{self.width} each; give all rows the same number, or use load_training_set(..., candidates=n), "
                "which keeps the first n of each."
            )
        scores = None if self.scores is None else self.scores[i]
        if scores is not None and len(scores) != self.width:
            raise InvalidArgumentError(
                f"{where} has {len(scores)} scores for {self.width} documents; give one for each."
            )
        for score in () if scores is None else scores:
            if not (isinstance(score, Real) or getattr(score, "ndim", 1) == 0) or not math.isfinite(score):
                raise InvalidArgumentError(f"{where} has the score {short(score)}; expected finite numbers.")


def load_training_set(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    queries: Any = None,
    documents: Any = None,
    candidates: int | None = None,
    split: str = "train",
) -> TrainingSet:
    """Load training data.

    Parameters
    ----------
    source
        A file with one JSON object per line (``.jsonl``, ``.jsonl.gz``), a folder in BEIR layout, a
        `datasets.Dataset`, or any iterable of dicts. A row has one of these formats:

        * ``{query, positive}``, with any number of ``negative``, ``negative_1``, ... or a list ``negatives``;
          the query may also be called ``anchor`` or ``question``, the positive ``document`` or ``answer``; with
          ``scores``, a list, the positive's first, one row with all texts as scored candidates;
        * ``{query, pos, neg}`` (FlagEmbedding), lists of texts: makes one row per positive, with all negatives; with
          ``pos_scores`` and ``neg_scores``, or with ``scores``, one row with all texts as scored candidates;
        * ``{query, documents}``, a list, the positive first; or ``{query, documents, scores}``, two lists;
        * ``{query, document_1, document_2, ..., scores}``, as `TrainingSet.to_dataset` writes it;
        * ``{query_id, document_ids, scores}`` (PyLate), lists or their string form, together with `queries` and
          `documents`.

        ``scores`` may also be called ``score``, ``labels`` or ``label``, which beside scores are ignored; they are
        lists of numbers in any case. Lists may be arrays. Other fields are ignored, unless the name is nearly that of
        negatives or scores: ``hard_negative`` and ``negative_text`` are errors. So are two fields of which only one
        would be read, such as ``positive`` and ``answer``, or ``documents`` and ``negative``.
    queries, documents
        Id to text, for rows that hold ids: a dict, or rows (file, data set, iterable) of ``{query_id, text}`` and
        ``{document_id, text}``. The id may also be called ``_id`` or ``id``, the text ``query`` or ``document``. The
        ids ``7`` and ``"7"`` are the same, ``"007"`` is another one.
    candidates
        Keep the first `candidates` documents of each row, for rows of unequal length.
    split
        For a BEIR folder: the relevance judgements to use, ``qrels/<split>.tsv``. Each relevant document makes a row.

    Returns
    -------
    TrainingSet
        Its `to_dataset` returns the data set that the trainer takes.

    Raises
    ------
    InvalidArgumentError
        If a row has none of these formats, lacks a text or a score, or has another number of documents than the first;
        an id has two texts; or a file has no rows. The message names the row or the file.

    Examples
    --------
    >>> row = {
    ...     "query": "where is Rome?",
    ...     "pos": ["On the Tiber."],
    ...     "neg": ["In Georgia."],
    ... }
    >>> load_training_set([row]).to_dataset()[0]
    {'query': 'where is Rome?', 'positive': 'On the Tiber.', 'negative_1': 'In Georgia.'}
    >>> scored = {"query_id": 1, "document_ids": ["a", "b"], "scores": [0.9, 0.1]}
    >>> texts = {"a": "On the Tiber.", "b": "In Georgia."}
    >>> load_training_set([scored], queries={1: "where is Rome?"}, documents=texts)
    TrainingSet(1 row, 2 documents each, with scores)
    """
    check_count("candidates", candidates, optional=True)
    if isinstance(source, (str, os.PathLike)) and is_folder(as_path(source, "source")):
        return _from_beir(as_path(source), split)
    by_id = (
        None if queries is None else texts_by_id(_numbered(queries, "queries"), "query"),
        None if documents is None else texts_by_id(_numbered(documents, "documents"), "document"),
    )
    examples = [example for where, row in _numbered(source, "row") for example in read_row(row, where, *by_id)]
    scored = {example.scores is not None for example in examples}
    if len(scored) > 1:
        odd = next(e for e in examples if (e.scores is None) != (examples[0].scores is None))
        raise InvalidArgumentError(
            f"{odd.where} has {'no scores' if odd.scores is None else 'scores'}, unlike the rows before it; all rows "
            "need a teacher's scores, or none."
        )
    for example in examples:
        if candidates is not None and len(example.documents) < candidates:
            raise InvalidArgumentError(
                f"{example.where} has {len(example.documents)} documents; candidates={candidates} needs as many."
            )
    return TrainingSet(
        [example.query for example in examples],
        [example.documents[:candidates] for example in examples],
        [(example.scores or [])[:candidates] for example in examples] if scored == {True} else None,
        [example.where for example in examples],
    )


def _numbered(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield rows, each with its name in error messages."""
    if isinstance(source, Mapping):
        yield from ((f"{name}[{key!r}]", (key, value)) for key, value in source.items())
    elif isinstance(source, (str, os.PathLike)):
        yield from _lines(as_path(source, name))
    else:
        yield from ((f"{name} {i}" if name == "row" else f"{name}[{i}]", row) for i, row in enumerate(source))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_empty = False
            where = f"{path.name}:{number}"
            try:
                value = parse_json(line)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{where}: {error} Expected one object per line.") from error
            yield where, value
    if is_empty:
        raise InvalidArgumentError(f"{path} is empty; expected one object per line.")


def _from_beir(folder: Path, split: str) -> TrainingSet:
    collection = load_beir(folder, split)
    texts = collection.texts()
    pairs = [
        (query, document)
        for query, judged in collection.qrels.items()
        for document, relevance in judged.items()
        if relevance > 0
    ]
    return TrainingSet(
        [collection.queries[query] for query, _ in pairs],
        [[texts[document]] for _, document in pairs],
        rows=[f"query {query!r}, document {document!r}" for query, document in pairs],
    )
