"""Scores of a teacher: a cross-encoder, or a larger late-interaction model."""

from __future__ import annotations

from typing import Any

import torch

from latelier.arrays import is_array
from latelier.data.training_set import TrainingSet, check_training_set
from latelier.errors import InvalidArgumentError
from latelier.scores import colbert_scores_pairwise
from latelier.utils.checks import describe

__all__ = ["teacher_scores"]


def teacher_scores(
    teacher: Any, examples: TrainingSet, *, batch_size: int = 32, show_progress_bar: bool = False
) -> TrainingSet:
    """Score all documents of all rows with a teacher, for `Distillation` or `MarginMSE`.

    Parameters
    ----------
    teacher
        A `sentence_transformers.CrossEncoder`, or another object with a ``predict`` that scores a list of pairs of
        texts; or a late-interaction model, such as `latelier.models.ColBERT`.
    examples
        Queries and documents, from `load_training_set` or `mine_hard_negatives`.
    batch_size
        Texts, or pairs of texts, per batch of the teacher.
    show_progress_bar
        Show the teacher's progress bar.

    Returns
    -------
    TrainingSet
        The same rows with scores. Scores of a late-interaction model are sums over query tokens: train on them with
        ``Distillation(model, normalize_scores=False)``.

    Raises
    ------
    InvalidArgumentError
        If the teacher is neither of these, or does not give one number for each pair.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> teacher = ColBERT.from_dense(name, device="cpu")
    >>> documents = ["Rome lies on the Tiber.", "Iron and oxygen form rust."]
    >>> examples = TrainingSet(["where is Rome?"], [documents])
    >>> scores = teacher_scores(teacher, examples).scores[0]
    >>> scores[0] > scores[1]
    True
    """
    check_training_set(examples, "examples")
    pairs = [(q, d) for q, documents in zip(examples.queries, examples.documents, strict=True) for d in documents]
    options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
    if callable(getattr(teacher, "predict", None)):
        flat = _numbers(teacher.predict(pairs, **options), len(pairs)) if pairs else []
    elif callable(getattr(teacher, "encode_query", None)) and callable(getattr(teacher, "encode_document", None)):
        flat = _late_interaction(teacher, pairs, options)
    else:
        raise InvalidArgumentError(
            f"received a teacher of type {type(teacher).__name__}; expected a CrossEncoder or a late-interaction model."
        )
    width = examples.width
    scores = [flat[start : start + width] for start in range(0, len(flat), max(width, 1))]
    return TrainingSet(examples.queries, examples.documents, scores, examples.rows)


def _numbers(predicted: Any, pairs: int) -> list[float]:
    """Return what a teacher's ``predict`` returned as one number for each pair."""
    try:
        numbers = [float(score) for score in predicted]
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a row of a tensor
        received = f"shape {tuple(predicted.shape)}" if is_array(predicted) else describe(predicted)
        raise InvalidArgumentError(
            f"the teacher's predict returned {received}; expected one number for each of {pairs} pairs. A cross-encoder"
            " with several labels, such as one for NLI, has no single score."
        ) from error
    if len(numbers) != pairs:
        raise InvalidArgumentError(
            f"the teacher's predict returned {len(numbers)} scores for {pairs} pairs; expected one for each."
        )
    return numbers


def _late_interaction(teacher: Any, pairs: list[tuple[str, str]], options: dict[str, Any]) -> list[float]:
    """Score pairs; each text is encoded once, even if several rows have it."""
    queries, documents = ({text: i for i, text in enumerate(dict.fromkeys(pair[j] for pair in pairs))} for j in (0, 1))
    with torch.inference_mode():
        left = teacher.encode_query(list(queries), **options)
        right = teacher.encode_document(list(documents), **options)
        scores: list[float] = []
        for start in range(0, len(pairs), 1024):
            part = pairs[start : start + 1024]
            chosen = [left[queries[q]] for q, _ in part], [right[documents[d]] for _, d in part]
            scores += colbert_scores_pairwise(*chosen).tolist()
    return scores
