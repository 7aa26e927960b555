"""`TrainingSet`: queries, their documents and, for distillation, a teacher's scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.utils import count_entries, is_count
from latelier.utils.checks import describe, short
from latelier.utils.files import check_unicode

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["TrainingSet", "check_training_set"]


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
        """Return the rows at some positions.

        Parameters
        ----------
        rows
            The positions, in the order of the result; negative ones count from the end.

        Returns
        -------
        TrainingSet
            These rows, with their scores and names.

        Raises
        ------
        InvalidArgumentError
            If a position is not an integer, or there is no row at it.

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
        """Convert to the data set that `sentence_transformers.MultiVectorEncoderTrainer` takes.

        Returns
        -------
        datasets.Dataset
            Columns ``query``, ``positive``, ``negative_1``, ...; with scores ``query``, ``document_1``, ...,
            ``scores``.

        Raises
        ------
        MissingExtraError
            If the extra 'train' is not installed.

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
