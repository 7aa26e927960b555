"""`load_training_set`: training data of any of the usual forms as one form of rows.

The format of a row is recognised by the names of its fields; errors name the file and the line.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import json
import math
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.arrays import is_array
from latelier.errors import InvalidArgumentError
from latelier.evaluation import load_beir
from latelier.evaluation.collection import holds_collection
from latelier.reading.documents import TEXT_FORMATS, text_record, texts_header
from latelier.reading.rows import (
    NAMES,
    Header,
    HeaderOf,
    Source,
    checked_rows,
    names_of,
    parquet_files,
    read_rows,
    value_of,
)
from latelier.utils.checks import check_count, check_unicode, parse_bytes, short
from latelier.utils.files import as_path, is_folder
from latelier.utils.misc import needs_extra

if TYPE_CHECKING:
    from datasets import Dataset


_SCORES = NAMES["scores"]
_SCORES_OF_PARTS = ("pos_scores", "neg_scores")
_OPTIONAL = (*NAMES["negative"], "scores", "labels", *_SCORES_OF_PARTS)  # "scope" and "store" would be near "score"
_NUMBERED = re.compile(r"document_(\d{1,9})")
_POSITIVES = re.compile(rf"({'|'.join(names_of('positive'))}|positives)_?\d{{0,9}}")
_NEAR = 0.8  # similarity in difflib: "negativ" is near "negative" (0.93), "sources" not near "scores" (0.77)
_FORMATS = (
    "{query, positive, negative, ...}, {query, pos, neg, ...}, {query, documents, scores}, {query, document_1, "
    "document_2, ..., scores}, {query, positive_passages, negative_passages}, {query_id, document_ids, scores} or "
    "[query, positive, negative, ...]"
)
_EXPECTED_SCORES = (
    "a list, a teacher's score for each document. If it says which pairs are relevant, give those alone, without it"
)
_LONGEST_NAME = 100  # a longer name is no misspelling, and difflib takes quadratic time


class Example(NamedTuple):
    """One row: its name in messages, its query, its documents, and a teacher's scores of them or None.

    `group`: the document that the positive is a passage of.
    """

    where: str
    query: str
    documents: list[str]
    scores: list[float] | None
    group: str | None = None


def read_row(
    row: Any, where: str, queries: Mapping[Any, str] | None = None, documents: Mapping[Any, str] | None = None
) -> list[Example]:
    """Read a row in any of the formats: one example for each positive; with scores, one example with all documents.

    With `queries` and `documents`, the texts of ids, a row holds ids.
    """
    if isinstance(row, (list, tuple)):
        row = _named(row)
    if not isinstance(row, Mapping):
        raise InvalidArgumentError(f"{where} is {short(row)}; expected an object, such as {_FORMATS}.")
    row = _plain(row)
    has_ids = row.get("document_ids") is not None
    if has_ids:
        _check_names(row, where)
        ids = _list(row["document_ids"], where, "document_ids")
        scores = _scores(row, _score_field(row) or "scores", ids, where)
        examples = [Example(where, row.get("query_id"), ids, scores)]
    else:
        roles = ["query_id"] * (queries is not None)
        examples = _examples(row, where, *roles, "query")
        has_ids = all(_is_number(value) for each in examples for value in (each.query, *each.documents))
    if (document := row.get("document_id")) is not None:
        examples = [example._replace(group=str(document)) for example in examples]
    if queries is not None and documents is not None:
        return [_with_texts(example, queries, documents) for example in examples]
    if has_ids or queries is not None or documents is not None:
        raise InvalidArgumentError(f"{where} holds ids; pass queries=... and documents=... with their texts.")
    return examples


def _named(row: Sequence[Any]) -> Any:
    """Return a row that is a list with names: query, positive, negatives; or query, then pairs of an id and a score."""
    if len(row) < 2:
        return row
    scored = [each for each in row[1:] if isinstance(each, (list, tuple)) and len(each) == 2 and _is_real(each[1])]
    if len(scored) == len(row) - 1:
        ids = [id_ for id_, _ in scored]
        return {"query_id": row[0], "document_ids": ids, "scores": [score for _, score in scored]}
    named = {"query": row[0], "positive": row[1]}
    if len(row) > 2:
        named["negative"] = [each for value in row[2:] for each in _one_or_several(value)]
    return named


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_real(value) or (isinstance(value, str) and value.isdecimal())


def _examples(row: dict[Any, Any], where: str, *query_roles: str) -> list[Example]:
    query = value_of(row, *query_roles)
    positive = value_of(row, "positive")
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
    positives = _texts(positive)
    negatives = _negatives(row)
    scores = _scores_of_parts(row, positives, negatives, where)
    if scores is not None:
        return [Example(where, query, [*positives, *negatives], scores)]
    if not positives:
        raise InvalidArgumentError(f"{where} has no positive; give each query at least one.")
    titles = [each.get("title") if isinstance(each, Mapping) else None for each in _records(positive)]
    return [
        Example(where, query, [one, *negatives], None, title or None)
        for one, title in zip(positives, titles, strict=True)
    ]


def texts_by_id(rows: Iterable[tuple[str, Any]], kind: str) -> dict[Any, str]:
    """Return id to text of the rows of a `kind`, a title before its text; an id with two texts is refused."""
    texts: dict[Any, str] = {}
    for where, row in rows:
        row = text_record(row, f"{kind}_id")
        if not isinstance(row, Mapping):
            raise InvalidArgumentError(f"{where} is {short(row)}; expected {kind}_id and text.")
        row = _plain(row)
        id_ = row.get("_id")
        text = row.get("text", row.get(kind))
        if id_ is None or text is None:
            raise InvalidArgumentError(
                f"{where} has the fields {', '.join(map(str, row))}; expected {kind}_id and text."
            )
        text = titled({**row, "text": text})
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
        [name for name in names if name in NAMES["query"]],
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
    near = near or difflib.get_close_matches(last_word, NAMES["negative"], 1, _NEAR)
    near = near or [whole for whole in ("negatives", "negative") if plain.startswith(whole)]
    if near:
        return near[0]
    return None


def _with_texts(example: Example, queries: Mapping[Any, str], documents: Mapping[Any, str]) -> Example:
    """Return an example of ids with texts in their places."""
    query = _text(queries, example.query, example.where, "query")
    texts = [_text(documents, id_, example.where, "document") for id_ in example.documents]
    return example._replace(query=query, documents=texts)


def _text(texts: Mapping[Any, str], id_: Any, where: str, kind: str) -> str:
    """Find a text by id, also if one side has it as a string and the other as an integer."""
    if isinstance(id_, Hashable) and not isinstance(id_, tuple):
        number = int(id_) if isinstance(id_, str) and id_.isdecimal() and len(id_) < 20 else id_
        same = number if str(number) == id_ else id_  # "007" is another id than 7
        found = next((texts[key] for key in (id_, str(id_), same) if key in texts), None)
        if found is not None:
            return found
    raise InvalidArgumentError(
        f"{where}: there is no text for the {kind} {short(id_)}; with queries=... and documents=..., rows hold ids."
    )


def _negatives(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of ``negative``, ``negative_1``, ..., or of lists of them, in the order of the fields."""
    values = [
        value for name, value in row.items() if isinstance(name, str) and _is_negative(name) and value is not None
    ]
    return [text for value in values for text in _texts(value)]


def _texts(value: Any) -> list[Any]:
    """Return texts that are given as one, as a list, or as passages with titles."""
    return [titled(each) if isinstance(each, Mapping) else each for each in _records(value)]


def _records(value: Any) -> list[Any]:
    """Return texts, or passages with titles, of which a data set makes columns, as a list."""
    if isinstance(value, Mapping) and all(isinstance(column, list) for column in value.values()):
        value = [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]
    return _one_or_several(value)


def titled(record: Mapping[str, Any]) -> Any:
    """Return the text of a record, after its title as in documents."""
    text = record.get("text")
    if record.get("title") and isinstance(text, str):
        return f"{record['title']} {text}".strip()
    return text


def _one_or_several(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


def _is_negative(name: str) -> bool:
    return re.fullmatch(r"(neg|negatives?)_?\d{0,9}|negative_passages", name) is not None


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
    groups
        Name of the document that each row's positive is a passage of, or None: a split keeps a group on one side. None
        for no groups.

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
    groups: Sequence[str | None] | None = None

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

    def select(self, rows: Sequence[int] | np.ndarray) -> TrainingSet:
        """Return the rows at some positions, in this order.

        Parameters
        ----------
        rows
            Positions; negative ones count from the end.

        Returns
        -------
        TrainingSet
            With as many rows as there are positions.

        Examples
        --------
        >>> TrainingSet(["a", "b"], [["x"], ["y"]]).select([1]).queries
        ['b']
        """
        if hasattr(rows, "tolist"):  # an array or a tensor, whose integers are not those of Python
            rows = rows.tolist()
        return TrainingSet(
            [self.queries[i] for i in rows],
            [self.documents[i] for i in rows],
            None if self.scores is None else [self.scores[i] for i in rows],
            None if self.rows is None else [self.rows[i] for i in rows],
            None if self.groups is None else [self.groups[i] for i in rows],
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
        return Dataset.from_dict(self._columns())

    def _columns(self) -> dict[str, Sequence[str] | Sequence[Sequence[float]]]:
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
        return columns

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
    max_memory: int | str | None = "1GB",
) -> TrainingSet:
    """Load training data.

    Parameters
    ----------
    source
        A file, a folder in BEIR layout or with Parquet files as the Hugging Face Hub has them, a `datasets.Dataset`, or
        any iterable of rows. A file is JSON Lines, a table with tabs or commas, each plain or with ``.gz``, or Parquet;
        a table without a header holds query, positive and negatives. A row has one of these formats:

        * ``[query, positive, negative, ...]``, where a negative may be a list of them;
        * ``{query, positive}``, with any number of ``negative``, ``negative_1``, ... or a list ``negatives``;
          the query may also be called ``anchor`` or ``question``, the positive ``document`` or ``answer``; with
          ``scores``, a list, the positive's first, one row with all texts as scored candidates;
        * ``{query, pos, neg}`` (FlagEmbedding), lists of texts: makes one row per positive, with all negatives; with
          ``pos_scores`` and ``neg_scores``, or with ``scores``, one row with all texts as scored candidates;
        * ``{query, documents}``, a list, the positive first; or ``{query, documents, scores}``, two lists;
        * ``{query, document_1, document_2, ..., scores}``, as `TrainingSet.to_dataset` writes it;
        * ``{query, positive_passages, negative_passages}`` (Tevatron), lists of ``{title, text}``, as ``pos`` and
          ``neg``;
        * ``{query_id, document_ids, scores}`` (PyLate), lists or their string form, or
          ``[query_id, [document_id, score], ...]`` (ColBERT), together with `queries` and `documents`.

        With `queries` and `documents`, the other formats hold ids in the places of texts, as MS MARCO's
        ``qidpidtriples`` and ColBERT's ``triples.jsonl``.

        ``scores`` may also be called ``score``, ``labels`` or ``label``, which beside scores are ignored; they are
        lists of numbers in any case. ``document_id``, one for the row, or the title of a passage, or of a document in
        BEIR layout, names the document that the positive is a passage of (`TrainingSet.groups`). Lists may be arrays.
        Other fields are ignored, unless the name is nearly that of negatives or scores: ``hard_negative`` and
        ``negative_text`` are errors. So are two fields of which only one would be read, such as ``positive`` and
        ``answer``, or ``documents`` and ``negative``.
    queries, documents
        Id to text, for rows that hold ids: a dict, or rows (file, data set, iterable) of ``{query_id, text}`` and
        ``{document_id, text}``. The id may also be called ``_id``, ``id``, ``qid``, ``docid``, ``docno``, ``doc_id`` or
        ``pid``, the text ``query``, ``document`` or ``contents``; a file may be MS MARCO's ``queries.tsv`` or
        ``collection.tsv``, without a header. They are kept in memory. The ids ``7`` and ``"7"`` are the same, ``"007"``
        is another one.
    candidates
        Keep the first `candidates` documents of each row, for rows of unequal length; default: all.
    split
        For a folder: the relevance judgements to use, ``qrels/<split>.tsv``, of which each relevant document makes a
        row; or the Parquet files to read, ``<split>-00000-of-00002.parquet``.
    max_memory
        Rows that take more are kept in a temporary file, and read when they are used: bytes, or a text such as
        ``"1GB"``; None keeps all in memory.

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
    most = parse_bytes("max_memory", max_memory)
    rows: Iterable[tuple[str, Any]]
    if isinstance(source, (str, os.PathLike)) and is_folder(folder := as_path(source, "source")):
        files = parquet_files(folder, split)
        if not files or holds_collection(folder):
            return _from_beir(folder, split)
        rows = _read(files, _example_header)
    else:
        rows = _numbered(source, "row", _example_header)
    query_texts = None
    if queries is not None:
        query_texts = texts_by_id(_numbered(queries, "queries", texts_header), "query")
    document_texts = None
    if documents is not None:
        document_texts = texts_by_id(_numbered(documents, "documents", texts_header), "document")
    read = (example for where, row in rows for example in read_row(row, where, query_texts, document_texts))
    examples = _uniform(read, candidates)
    kept: list[Example] = []
    size = 0
    for example in examples:
        kept.append(example)
        size += _BYTES_OF_ROW + sum(map(_size, (example.query, *example.documents)))
        if most is not None and size > most:
            return _stored(itertools.chain(kept, examples))
    return _in_memory(kept)


# Python's own of a row and of a text, beside its characters.
_BYTES_OF_ROW = 400
_BYTES_OF_TEXT = 60


def _size(text: Any) -> int:
    if isinstance(text, str):
        return _BYTES_OF_TEXT + len(text)
    return 0


def _uniform(examples: Iterable[Example], candidates: int | None) -> Iterator[Example]:
    """Yield examples of the first `candidates` documents, after a check that all have scores, or none has."""
    is_scored = None
    for example in examples:
        if is_scored is None:
            is_scored = example.scores is not None
        if (example.scores is not None) != is_scored:
            raise InvalidArgumentError(
                f"{example.where} has {'no scores' if is_scored else 'scores'}, unlike the rows before it; all rows "
                "need a teacher's scores, or none."
            )
        if candidates is not None and len(example.documents) < candidates:
            raise InvalidArgumentError(
                f"{example.where} has {len(example.documents)} documents; candidates={candidates} needs as many."
            )
        scores = example.scores
        if scores is not None:
            scores = scores[:candidates]
        yield example._replace(documents=example.documents[:candidates], scores=scores)


def _in_memory(examples: Sequence[Example]) -> TrainingSet:
    scores = None
    if examples and examples[0].scores is not None:
        scores = [example.scores or [] for example in examples]
    return TrainingSet(
        [example.query for example in examples],
        [example.documents for example in examples],
        scores,
        [example.where for example in examples],
        [example.group for example in examples],
    )


_ROWS_OF_BATCH = 1000


def _stored(examples: Iterator[Example]) -> TrainingSet:
    """Write rows to a temporary file, and return them as they are there."""
    with needs_extra("Reading training data larger than max_memory", "train"):
        import pyarrow
        from datasets import Dataset
    folder = _TemporaryFolder()
    file = str(folder.path / "rows.arrow")
    first = next(examples)
    examples = itertools.chain([first], examples)
    writer = None
    with ExitStack() as stack:
        while batch := list(itertools.islice(examples, _ROWS_OF_BATCH)):
            checked = _in_memory([first, *batch])  # the first of all again: each has as many documents
            groups = pyarrow.array(checked.groups, pyarrow.string())  # also where all are None
            table = pyarrow.table({**checked._columns(), "row": checked.rows, "group": groups}).slice(1)
            if writer is None:
                sink = stack.enter_context(pyarrow.OSFile(file, "wb"))
                writer = stack.enter_context(pyarrow.ipc.new_stream(sink, table.schema))
            writer.write_table(table)
    return _StoredTrainingSet(Dataset.from_file(file), folder)


class _TemporaryFolder:
    """A folder that is removed when nothing refers to it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="latelier-rows-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _StoredTrainingSet(TrainingSet):
    """Rows in a file, read when they are asked for; they were checked when they were written."""

    _dataset: Dataset
    _folder: _TemporaryFolder

    def __init__(self, dataset: Dataset, folder: _TemporaryFolder) -> None:
        self.__dict__ |= {"_dataset": dataset, "_folder": folder, "scores": None}
        names = dataset.column_names
        for name, column in {"queries": "query", "scores": "scores", "rows": "row", "groups": "group"}.items():
            if column in names:
                self.__dict__[name] = _Values(dataset, column)
        others = [name for name in names if name not in ("query", "scores", "row", "group")]
        self.__dict__["documents"] = _Values(dataset, others)

    def select(self, rows: Sequence[int] | np.ndarray) -> TrainingSet:
        """Return the rows at some positions, without reading them."""
        positions = np.asarray(rows, "int64")
        chosen = self._dataset.select(np.where(positions < 0, positions + len(self), positions))
        return _StoredTrainingSet(chosen, self._folder)

    def to_dataset(self) -> Dataset:
        """Return the data set of the file."""
        return self._dataset.remove_columns(["row", "group"])


class _Values(Sequence[Any]):
    """One column of a data set, or the lists of several ones; each value is read when it is asked for."""

    def __init__(self, dataset: Dataset, names: str | list[str]) -> None:
        self._dataset = dataset.select_columns(names)
        self._names = names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position: Any) -> Any:
        row = self._dataset[position]
        if isinstance(self._names, str):
            return row[self._names]
        return [row[name] for name in self._names]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._dataset.iter(_ROWS_OF_BATCH):
            if isinstance(self._names, str):
                yield from batch[self._names]
            else:
                yield from map(list, zip(*(batch[name] for name in self._names), strict=True))


def _example_header(cells: list[str]) -> Header:
    """Return the names of the columns of examples; without those of a query, rows are lists: query, positive, ..."""
    if {cell.lower() for cell in cells} & {*names_of("query", "query_id")}:
        return Header(cells)
    return Header((), is_row=True)


def _read(paths: Iterable[Path], header_of: HeaderOf) -> Iterator[tuple[str, Any]]:
    for path in paths:
        yield from checked_rows(read_rows(Source(path, path.name), TEXT_FORMATS, header_of))


def _numbered(source: Any, name: str, header_of: HeaderOf) -> Iterator[tuple[str, Any]]:
    """Yield rows, each with its name in error messages."""
    if isinstance(source, Mapping):
        for key, value in source.items():
            yield f"{name}[{key!r}]", {"_id": key, "text": value}
    elif isinstance(source, (str, os.PathLike)):
        yield from _read([as_path(source, name)], header_of)
    else:
        yield from ((f"{name} {i}" if name == "row" else f"{name}[{i}]", row) for i, row in enumerate(source))


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
        groups=[collection.documents[document].get("title") or None for _, document in pairs],
    )
