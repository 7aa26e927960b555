"""Files, data sets, TrainingSet.

The format of a row is recognised by the names of its fields; errors name the file and the line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.data.rows import Example, read_row, texts_by_id
from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.evaluation import load_beir
from latelier.utils import check_count, count_entries, is_count
from latelier.utils.checks import describe, short
from latelier.utils.files import as_path, check_unicode, is_folder, open_binary, parse_json, text_lines

if TYPE_CHECKING:
    from datasets import Dataset


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
        counts = [count_entries(self.queries, "queries"), count_entries(self.documents, "documents")]
        counts += [count_entries(self.scores, "scores")] if self.scores is not None else []
        if len(set(counts)) > 1 or (self.rows is not None and count_entries(self.rows, "rows") != counts[0]):
            scores = "" if self.scores is None else f" and {counts[2]} lists of scores"
            raise InvalidArgumentError(
                f"received {counts[0]} queries, {counts[1]} lists of documents{scores}; expected one list of "
                "documents (and of scores, and a name, if given) per query."
            )
        for i in range(len(self)):
            self._check_row(i)

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        rows, width = len(self), self.width
        scored = ", with scores" if self.scores is not None else ""
        return (
            f"TrainingSet({rows:,} row{'s' * (rows != 1)}, {width} document{'s' * (width != 1)} each{scored})"
            if rows
            else "TrainingSet(0 rows)"
        )

    @property
    def width(self) -> int:
        """Number of documents per row."""
        return len(self.documents[0]) if len(self) else 0

    def select(self, rows: Sequence[int]) -> TrainingSet:
        """Return the rows at some positions, in this order; negative ones count from the end.

        Examples
        --------
        >>> TrainingSet(["a", "b"], [["x"], ["y"]]).select([1]).queries
        ['b']
        """
        count_entries(rows, "rows", "a list of positions")
        rows = rows.tolist() if hasattr(rows, "tolist") else rows  # integers of Python from an array or a tensor
        count = len(self)
        wrong = next((i for i in rows if not is_count(i, -count, count - 1)), None)
        if wrong is not None:
            accepted = f"integers from 0 to {count - 1}, or from {-count} to -1" if count else "no positions"
            raise InvalidArgumentError(
                f"received the position {short(wrong)} for a TrainingSet of {count:,} row{'s' * (count != 1)}; "
                f"expected {accepted}."
            )
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
        try:
            from datasets import Dataset
        except ImportError as error:
            raise MissingExtraError("Making a data set for the trainer", "train") from error
        columns: dict[str, Sequence[str] | Sequence[Sequence[float]]] = {"query": list(self.queries)}
        for j in range(self.width):
            name = f"document_{j + 1}" if self.scores is not None else f"negative_{j}" if j else "positive"
            columns[name] = [documents[j] for documents in self.documents]
        if self.scores is not None:
            columns["scores"] = [list(map(float, scores)) for scores in self.scores]
        return Dataset.from_dict(columns)

    def _check_row(self, i: int) -> None:
        where = self.rows[i] if self.rows is not None else f"row {i}"
        documents = self.documents[i]
        count_entries(documents, f"the documents of {where}")
        for name, text in [("query", self.queries[i]), *((f"document {j}", text) for j, text in enumerate(documents))]:
            if not isinstance(text, str) or not text.strip():
                raise InvalidArgumentError(f"{where}: {name} is {short(text)}; expected a text that is not empty.")
            check_unicode(text, f"{where}: {name}")
        if not len(documents):  # an array of several has no truth value
            raise InvalidArgumentError(f"{where} has no document; give each query at least one.")
        if len(documents) != self.width:
            raise InvalidArgumentError(
                f"{where} has {len(documents)} document{'s' * (len(documents) != 1)}, the rows before it have "
                f"{self.width} each; give all rows the same number, or use load_training_set(..., candidates=n), "
                "which keeps the first n of each."
            )
        if self.scores is not None:
            self._check_scores(self.scores[i], where)

    def _check_scores(self, scores: Sequence[float], where: str) -> None:
        count = count_entries(scores, f"the scores of {where}")
        if count != self.width:
            raise InvalidArgumentError(f"{where} has {count} scores for {self.width} documents; give one for each.")
        try:
            finite = all(map(math.isfinite, scores))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"{where} has scores that are not numbers: {error}.") from error
        if not finite:
            raise InvalidArgumentError(f"{where} has scores with NaN or infinity; give numbers.")


def check_training_set(value: object, name: str) -> None:
    """Raise `InvalidArgumentError` unless the argument of this name is a `TrainingSet`."""
    if not isinstance(value, TrainingSet):
        raise InvalidArgumentError(
            f"received {describe(value)} as {name}; expected a TrainingSet, as load_training_set(rows) makes it."
        )


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

        ``scores`` may also be called ``score``, ``labels`` or ``label``; they are lists of numbers in any case. Lists
        may be arrays. Other fields are ignored, unless the name is nearly that of negatives or scores:
        ``hard_negative`` and ``negative_text`` are errors. So are two fields of which only one would be read, such as
        ``positive`` and ``answer``, or ``documents`` and ``negative``.
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
    return _cut(examples, candidates, scored == {True})


def _cut(examples: list[Example], candidates: int | None, scored: bool) -> TrainingSet:
    for example in examples:
        if candidates is not None and len(example.documents) < candidates:
            raise InvalidArgumentError(
                f"{example.where} has {len(example.documents)} documents; candidates={candidates} needs as many."
            )
    return TrainingSet(
        [example.query for example in examples],
        [example.documents[:candidates] for example in examples],
        [(example.scores or [])[:candidates] for example in examples] if scored else None,
        [example.where for example in examples],
    )


def _numbered(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield rows, each with its name in error messages."""
    if isinstance(source, Mapping):
        yield from ((f"{name}[{key!r}]", (key, value)) for key, value in source.items())
    elif isinstance(source, (str, os.PathLike)):
        yield from _lines(as_path(source, name))
    else:
        try:
            rows = iter(source)
        except TypeError as error:
            what = "training data" if name == "row" else name
            raise InvalidArgumentError(
                f"received {describe(source)} as {what}; expected a path, a data set, or an iterable of dicts."
            ) from error
        yield from ((f"{name} {i}" if name == "row" else f"{name}[{i}]", row) for i, row in enumerate(rows))


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
