"""The part of a document's text that was not encoded, and what it would add to the document's score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Cause, Change, Index
from latelier.retrieve.quantisation import scores_when_stored
from latelier.retrieve.query_model import QueryModel

__all__ = ["Passage", "left_out_passages", "truncation_cause", "truncation_changes"]

# Passages of a left-out part that are encoded; the report then says that there are more.
_MOST_PASSAGES = 64
# Characters that are tokenised for one passage, as a multiple of those that the model read of the text, and at least.
_WINDOW, _LEAST_WINDOW = 4, 2000


class Passage(NamedTuple):
    """A piece of a text that the model reads whole: its first character, the one after its last, its tokens.

    Examples
    --------
    >>> Passage(start=1200, end=2400, tokens=254).tokens
    254
    """

    start: int
    end: int
    tokens: int


def left_out_passages(model: QueryModel, text: str) -> list[Passage]:
    """Return the parts of a document's text that the model does not read, each as long as it reads at once.

    Parameters
    ----------
    model
        Encodes documents.
    text
        The text of one document.

    Returns
    -------
    list of Passage
        In the order of the text, at most 64; empty if the model reads the whole text.
    """
    first, last = _read(model, text)
    window = max(_LEAST_WINDOW, _WINDOW * (last - first))  # to tokenise the whole rest each time is quadratic
    passages: list[Passage] = []
    for begin, end in ((0, first), (last, len(text))):
        while begin < end and text[begin:end].strip() and len(passages) < _MOST_PASSAGES:
            piece = text[begin : min(end, begin + window)]
            ranges = [each for each in model.token_ranges(piece, is_query=False) if each is not None]
            if not ranges:  # characters without a vector, such as punctuation
                break
            passages.append(Passage(begin + ranges[0][0], begin + ranges[-1][1], len(ranges)))
            begin += ranges[-1][1]
    return sorted(passages)


def truncation_cause(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, score: float, passages: list[Passage]
) -> Cause | None:
    """Return the cause if a part of a text that was left out scores higher than what was encoded.

    Parameters
    ----------
    model
        Encodes documents.
    index
        Holds the document.
    query
        One query.
    text
        The text of the document.
    score
        The document's score.
    passages
        From `left_out_passages`, at least one.
    """
    pieces = [text[passage.start : passage.end] for passage in passages]
    scores = scores_when_stored(index, query, model.encode_documents(pieces, batch_size=8))
    best = int(scores.argmax())
    if scores[best] <= score:
        return None
    tokens, left_out = sum(passage.tokens for passage in passages), (passages[0].start, passages[-1].end)
    more = ", and more follow" if len(passages) == _MOST_PASSAGES else ""
    message = (
        f"characters {left_out[0]:,} to {left_out[1]:,} of its text were not encoded ({tokens:,} tokens{more}); alone, "
        f"characters {passages[best].start:,} to {passages[best].end:,} score {scores[best]:.3f}"
    )
    details: dict[str, Any] = {
        "left_out": list(left_out),
        "tokens": tokens,
        "best_passage": list(passages[best][:2]),
        "best_score": float(scores[best]),
    }
    return Cause("truncated", message, details)


def truncation_changes(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, cause: Cause, last_score: float | None
) -> list[Change]:
    """Return the changes that give the document a higher score than the last hit has: a maximum length, or passages.

    Parameters
    ----------
    model, index, query, text
        As for `truncation_cause`.
    cause
        From `truncation_cause`.
    last_score
        Score of the last hit; None if any score is enough.
    """
    changes, least = [], -np.inf if last_score is None else last_score
    if model.can_load:
        from latelier.models.longer_documents import document_length, encode_up_to

        length = document_length(model.loaded, text)
        if length is not None:
            whole = TokenEmbeddings.from_list([encode_up_to(model.loaded, text, length)])
            if scores_when_stored(index, query, whole)[0] > least:
                changes.append(Change({"max_length_document": length}, "model"))
    if cause.details["best_score"] > least:
        start, end = cause.details["best_passage"]
        changes.append(Change({"start": start, "end": end}, "passages"))
    return changes


def _read(model: QueryModel, text: str) -> tuple[int, int]:
    """Return the first character that the model reads, and the one after the last."""
    ranges = [each for each in model.token_ranges(text, is_query=False) if each is not None]
    return (ranges[0][0], ranges[-1][1]) if ranges else (0, len(text))
