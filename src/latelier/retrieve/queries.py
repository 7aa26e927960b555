"""Queries as they are searched: their texts, their vectors and how they were read, and what an index finds for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Hit, Index
from latelier.indexes.options import SearchOptions
from latelier.retrieve.weak import weak_hits


class Query(NamedTuple):
    """One query of a search, as it was read."""

    text: str  # empty for a picture and for vectors
    vectors: Any = None  # of its tokens, as they were compared, ``(tokens, dim)``; None for a search by keywords
    is_whole: bool = False  # whether it was read beyond the model's query length


@dataclass(frozen=True)
class EncodedQueries:
    """The queries of a search."""

    texts: list[str]  # of each query; empty for queries that are pictures or vectors
    vectors: TokenEmbeddings | None = None  # of the tokens of each query; None for keywords
    own: TokenEmbeddings | None = None  # of the text's own tokens, for `Result.mean_score`; None: no mean is wanted

    def __len__(self) -> int:
        return len(self.texts) if self.vectors is None else len(self.vectors)

    @property
    def needed_vectors(self) -> TokenEmbeddings:
        """The vectors, for what is not done without."""
        return cast("TokenEmbeddings", self.vectors)

    @classmethod
    def concatenate(cls, parts: Sequence[EncodedQueries]) -> EncodedQueries:
        """Return the queries of parts that all have vectors, and all or none of which have own ones."""
        texts = [text for part in parts for text in part.texts]
        vectors = [part.vectors for part in parts if part.vectors is not None]
        own = [part.own for part in parts if part.own is not None]
        return cls(
            texts,
            vectors=TokenEmbeddings.concatenate(vectors) if vectors else None,
            own=TokenEmbeddings.concatenate(own) if own else None,
        )

    def query(self, row: int, *, is_whole: bool = False) -> Query:
        """Return one of the queries."""
        return Query(
            self.texts[row] if self.texts else "",
            None if self.vectors is None else self.vectors[row],
            is_whole,
        )

    def rows(self, rows: list[int]) -> EncodedQueries:
        """Return some of the queries."""
        return EncodedQueries(
            texts=[self.texts[row] for row in rows] if self.texts else [],
            vectors=None if self.vectors is None else self.vectors[rows],
            own=None if self.own is None else self.own[rows],
        )


class Found(NamedTuple):
    """A hit in an index, its mean score, and whether it is weak, see `Result`."""

    hit: Hit
    mean_score: float | None
    weak: bool | None


def find(index: Index, queries: EncodedQueries, k: int, options: SearchOptions) -> list[list[Found]]:
    """Return the best documents of each query."""
    least = None
    if queries.own is not None:
        least = options.min_mean_score
        options = replace(options, min_mean_score=None)
    texts = [] if options.mode == "vectors" else queries.texts
    hits = index.find(queries.vectors, k, texts, options)
    weak = weak_hits(index, queries.texts, queries.vectors, hits, options)
    means = None if queries.own is None else index.mean_scores(queries.own, hits)
    found = []
    for i, row in enumerate(hits):
        own: Sequence[float | None] = [None] * len(row) if means is None else means[i]
        every = map(Found, row, own, weak[i])
        found.append([each for each in every if least is None or each.mean_score is None or each.mean_score >= least])
    return found
