"""Exact search on a GPU: the vectors of an index are copied there once, and every query is scored against all of them.

The stages that save a CPU from multiplying follow lists and count bits, which is not what a GPU is made for, and may
miss documents. Queries are scored many at a time, so that the vectors are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch

from latelier.arrays import DTYPES, as_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes.catalog import forks
from latelier.indexes.exact import Bounds, blocks, scan
from latelier.indexes.storage.segments import Part, Segment
from latelier.indexes.storage.snapshot import Snapshot
from latelier.scores.engines.choice import choose_engine
from latelier.scores.inputs import Side
from latelier.scores.topk import TopK

__all__ = ["GpuSearch"]

# Scored at once: queries, and of documents as many as make so many tokens and scores.
_QUERIES, _BOUNDS = 256, Bounds(tokens=1 << 21, scores=1 << 23)
# Numbers that are decoded at once, on their way to the device.
_PIECE = 1 << 24
# Norm up to which no inner product leaves the range of half precision.
_HALF_NORM = 128.0


class GpuSearch:
    """The vectors of an index on a device.

    Parameters
    ----------
    device
        Where to.
    decode
        Gives the vectors of stored documents.
    dtype
        ``"float16"`` or ``"float32"``; of a segment with vectors too long for half precision always the latter.
    """

    def __init__(self, device: torch.device, decode: Callable[[Part], TokenEmbeddings], dtype: str) -> None:
        self.device = device
        self._decode, self._dtype = decode, dtype
        # A segment is shared by all snapshots that have it; when the last of them is gone, so is its copy.
        self._copies: WeakKeyDictionary[Segment, TokenEmbeddings] = WeakKeyDictionary()
        self._lock = forks.Lock()

    def search(self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK) -> None:
        """Score all documents of `parts`, and leave the best of each query in `best`; see `StoredIndex._search`.

        Raises
        ------
        LatelierError
            If the device has no room for the vectors.
        """
        try:
            copies = [(part, self._copy(part.segment, queries.dim)) for part in parts]
            for first in range(0, len(queries), _QUERIES):
                self._search_some(copies, queries[first : first + _QUERIES], best, first)
        except torch.cuda.OutOfMemoryError as error:
            numbers = sum(int(part.segment.offsets[-1]) for part in parts) * queries.dim
            size = numbers * DTYPES[self._dtype].itemsize / 2**30
            raise LatelierError(
                f"{self.device} has no room for this index, whose vectors take {size:,.1f} GiB there; leave out device="
                " to search on the CPU."
            ) from error

    def clear(self) -> None:
        """Give the device's memory back; a later search copies anew."""
        with self._lock.current:
            self._copies.clear()

    def _search_some(
        self, copies: list[tuple[Part, TokenEmbeddings]], queries: TokenEmbeddings, best: TopK, first: int
    ) -> None:
        scores = torch.zeros(len(queries), 0, device=self.device)
        numbers = torch.zeros(len(queries), 0, dtype=torch.int64, device=self.device)
        short = _longest(queries) <= _HALF_NORM
        for part, documents in copies:
            asked = queries.to(documents.dtype if short else "float32").to(str(self.device))
            for positions, more in scan(part, documents, asked, _score, _BOUNDS):
                names = torch.from_numpy(part.segment.numbers[positions]).to(self.device)
                scores = torch.cat([scores, more], dim=1)
                numbers = torch.cat([numbers, names.expand(len(queries), -1)], dim=1)
                # Stable: of equal scores the earlier document comes first.
                scores, order = scores.sort(dim=1, descending=True, stable=True)
                scores, numbers = scores[:, : best.k], numbers.gather(1, order[:, : best.k])
        best.scores[first : first + len(queries)] = list(scores.cpu().numpy())
        best.numbers[first : first + len(queries)] = list(numbers.cpu().numpy())

    def _copy(self, segment: Segment, dim: int) -> TokenEmbeddings:
        with self._lock.current:
            if segment not in self._copies:
                self._copies[segment] = self._upload(segment, dim)
            return self._copies[segment]

    def _upload(self, segment: Segment, dim: int) -> TokenEmbeddings:
        """Copy a segment piece by piece, in a dtype that can hold it."""
        whole = Part(segment, np.arange(len(segment)))
        vectors = torch.empty(int(segment.offsets[-1]), dim, dtype=DTYPES[self._dtype], device=self.device)
        for positions in blocks(whole, Bounds(tokens=_PIECE // dim, scores=len(segment))):
            piece = self._decode(Part(segment, positions))
            if _longest(piece) > _HALF_NORM:
                vectors = vectors.float()
            first, last = segment.offsets[[positions[0], positions[-1] + 1]]
            vectors[first:last] = as_tensor(piece.vectors).to(self.device)
        return TokenEmbeddings(vectors, segment.offsets)


def _score(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    left, right = Side("queries", packed=queries), Side("documents", packed=documents)
    with torch.no_grad():
        return choose_engine("auto", left, right).all_pairs(left, right).to(documents.device)


def _longest(embeddings: TokenEmbeddings) -> float:
    """Return the largest norm of a token."""
    vectors = np.asarray(embeddings.vectors, dtype="float32")
    return float(np.sqrt(np.einsum("td,td->t", vectors, vectors).max(initial=0.0)))
