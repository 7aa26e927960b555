"""Validation: split off queries, and measure how well their positives are found among documents of all rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator

from latelier.data import TrainingSet
from latelier.models import ColBERT

__all__ = ["BEST", "evaluator", "measure", "measured", "split_validation"]

# Documents to search: enough to make the search hard, few enough to encode them at each validation.
_CORPUS = 2000
_ONE_IN = 10  # at most one query in ten is used for validation
_NAME = "validation"
# Name in reports to key of the evaluator's result.
_MEASURES = {"success@1": f"{_NAME}_maxsim_accuracy@1", "ndcg@10": f"{_NAME}_maxsim_ndcg@10"}
BEST = f"eval_{_MEASURES['ndcg@10']}"
"""The trainer's key of the measure that chooses the best checkpoint."""


def split_validation(data: TrainingSet, queries: int, seed: int) -> tuple[TrainingSet, TrainingSet]:
    """Split off queries for validation, with all of their rows.

    Parameters
    ----------
    data
        All rows.
    queries
        Maximum number of queries to split off; at most a tenth of all queries are.
    seed
        Seed for drawing the queries.

    Returns
    -------
    tuple of TrainingSet
        Rows to train on, and rows to validate on.

    Examples
    --------
    >>> data = TrainingSet([f"query {i}" for i in range(20)], [["text"]] * 20)
    >>> split_validation(data, 5, seed=0)
    (TrainingSet(18 rows, 1 document each), TrainingSet(2 rows, 1 document each))
    """
    shuffled = list(dict.fromkeys(data.queries))
    random.Random(seed).shuffle(shuffled)
    chosen = set(shuffled[: min(queries, len(shuffled) // _ONE_IN)])
    rows = range(len(data))
    return (
        data.select([i for i in rows if data.queries[i] not in chosen]),
        data.select([i for i in rows if data.queries[i] in chosen]),
    )


def evaluator(validation: TrainingSet, data: TrainingSet, seed: int) -> MultiVectorInformationRetrievalEvaluator:
    """Make an evaluator that measures how well the positives of validation queries are found.

    Parameters
    ----------
    validation
        Rows to validate on, at least one.
    data
        All rows. The corpus consists of the documents of `validation`, filled up to 2,000 with others of `data`.
    seed
        Seed for drawing the others.

    Returns
    -------
    MultiVectorInformationRetrievalEvaluator
        Its result has the keys that `measured` reads.
    """
    own = list(dict.fromkeys(text for documents in validation.documents for text in documents))
    others = sorted({text for documents in data.documents for text in documents} - set(own))
    random.Random(seed).shuffle(others)
    corpus: dict[str, Any] = {str(i): text for i, text in enumerate([*own, *others[: max(0, _CORPUS - len(own))]])}
    ids = {text: id_ for id_, text in corpus.items()}
    queries = {text: str(i) for i, text in enumerate(dict.fromkeys(validation.queries))}
    relevant: dict[str, set[str]] = {id_: set() for id_ in queries.values()}
    for query, text in zip(validation.queries, _positives(validation), strict=True):
        relevant[queries[query]].add(ids[text])
    return MultiVectorInformationRetrievalEvaluator(
        queries={id_: text for text, id_ in queries.items()},
        corpus=corpus,
        relevant_docs=relevant,
        name=_NAME,
        write_csv=False,
    )


def measure(evaluator: Any, model: ColBERT) -> dict[str, float]:
    """Return the measures of a model; an empty dict without an evaluator."""
    return {} if evaluator is None else measured(evaluator(model.eval()))


def measured(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the measures of a report from the evaluator's result or, with a prefix, from the trainer's logs.

    Examples
    --------
    >>> measured({"eval_validation_maxsim_ndcg@10": 0.75, "epoch": 1.0}, "eval_")
    {'ndcg@10': 0.75}
    """
    return {name: float(values[prefix + key]) for name, key in _MEASURES.items() if prefix + key in values}


def _positives(rows: TrainingSet) -> list[str]:
    """Return the positive of each row: the first document, or the one with the highest score of the teacher."""
    if rows.scores is None:
        return [documents[0] for documents in rows.documents]
    best = [max(range(len(scores)), key=scores.__getitem__) for scores in rows.scores]
    return [documents[i] for documents, i in zip(rows.documents, best, strict=True)]
