"""Exact search on a GPU, which holds a copy of all vectors of an index and scores every document for every query.

It does not use inverted lists or sign codes: reading them is slow on a GPU, and they may miss documents. Many queries
are scored together, so that the vectors are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch

from latelier.arrays import as_tensor, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes.catalog import forks
from latelier.indexes.exact import BlockSize, score_blocks, split_part
from latelier.indexes.storage.segments import Part, Segment
from latelier.indexes.storage.snapshot import Snapshot
from latelier.scores.engines.choice import choose_engine
from latelier.scores.inputs import Side
from latelier.scores.topk import TopK

__all__ = ["GpuSearch"]

# If all norms are at most 128, inner products are at most 128 ** 2 = 16,384; half precision ends at 65,504.
_HALF_NORM = 128.0
_BLOCK = BlockSize(tokens=1 << 23, scores=1 << 25)


class GpuSearch:
    """Searches the vectors of an index on a device.

    Parameters
    ----------
    device
        The GPU.
    decode
        Returns the vectors of stored documents.
    dtype
        ``"float16"`` or ``"float32"``. Segments with norms too large for half precision are always held in float32.
    queries_at_once
        Number of queries scored together.
    block
        Maximum size of a block of documents scored together.
    upload_numbers
        Number of vector components that are decoded and copied to the device at a time.
    """

    def __init__(
        self,
        device: torch.device,
        decode: Callable[[Part], TokenEmbeddings],
        dtype: str,
        *,
        queries_at_once: int = 256,
        block: BlockSize = _BLOCK,
        upload_numbers: int = 1 << 24,
    ) -> None:
        self.device = device
        self._decode, self._dtype = decode, dtype
        self._queries_at_once, self._block, self._upload_numbers = queries_at_once, block, upload_numbers
        # All snapshots that contain a segment share it; its copy is freed with the last of these snapshots.
        self._copies: WeakKeyDictionary[Segment, TokenEmbeddings] = WeakKeyDictionary()
        self._lock = forks.Lock()

    def search(self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK) -> None:
        """Score all documents of `parts`, and write the best of each query to `best`; see `StoredIndex._search`.

        Parameters
        ----------
        snapshot
            Not used; `parts` have all that a search needs.
        parts
            The documents to search.
        queries
            The queries.
        best
            Written: the scores and numbers of the best documents.

        Raises
        ------
        LatelierError
            If the vectors do not fit into the memory of the device.
        """
        try:
            copies = [(part, self._copy(part.segment, queries.dim)) for part in parts]
            for first in range(0, len(queries), self._queries_at_once):
                self._search_some(copies, queries[first : first + self._queries_at_once], best, first)
        except torch.cuda.OutOfMemoryError as error:
            numbers = sum(part.segment.tokens for part in parts) * queries.dim
            size = numbers * torch_dtype(self._dtype).itemsize / 2**30
            raise LatelierError(
                f"{self.device} has no room for this index, whose vectors take {size:,.1f} GiB there; leave out device="
                " to search on the CPU."
            ) from error

    def clear(self) -> None:
        """Free the memory of the device; a later search copies the vectors again."""
        with self._lock.current:
            self._copies.clear()

    def _search_some(
        self, copies: list[tuple[Part, TokenEmbeddings]], queries: TokenEmbeddings, best: TopK, first: int
    ) -> None:
        """Search for some of the queries, which have the numbers from `first` on in `best`."""
        scores = torch.zeros(len(queries), 0, device=self.device)
        places = torch.zeros(len(queries), 0, dtype=torch.int64, device=self.device)
        fit_half = _largest_norm(queries) <= _HALF_NORM
        seen: list[tuple[Segment, np.ndarray]] = []
        count = 0
        for part, vectors in copies:
            converted = queries.to(vectors.dtype if fit_half else "float32").to(str(self.device))
            for positions, block_scores in score_blocks(part, vectors, converted, _score, self._block):
                highest, which = _highest(block_scores, best.k)
                merged = torch.cat([scores, highest], dim=1)
                scores, order = _highest(merged, best.k)
                places = torch.cat([places, which + count], dim=1).gather(1, order)
                seen.append((part.segment, positions))
                count += len(positions)
        best.scores[first : first + len(queries)] = list(scores.cpu().numpy())
        best.numbers[first : first + len(queries)] = list(_numbers(seen, places.cpu().numpy()))

    def _copy(self, segment: Segment, dim: int) -> TokenEmbeddings:
        with self._lock.current:
            if segment not in self._copies:
                self._copies[segment] = self._upload(segment, dim)
            return self._copies[segment]

    def _upload(self, segment: Segment, dim: int) -> TokenEmbeddings:
        """Copy a segment to the device piece by piece; switch to float32 if its norms are too large."""
        whole = Part(segment, np.arange(len(segment)))
        vectors = torch.empty(segment.tokens, dim, dtype=torch_dtype(self._dtype), device=self.device)
        for positions in split_part(whole, self._upload_numbers // dim, len(segment)):
            piece = self._decode(Part(segment, positions))
            if _largest_norm(piece) > _HALF_NORM:
                vectors = vectors.float()
            first, last = segment.offsets[[positions[0], positions[-1] + 1]]
            vectors[first:last] = as_tensor(piece.vectors).to(self.device)
        return TokenEmbeddings(vectors, segment.offsets)


def _score(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    left, right = Side("queries", packed=queries), Side("documents", packed=documents)
    with torch.no_grad():
        return choose_engine("auto", left, right).all_pairs(left, right).to(documents.device)


def _highest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` highest scores of each row, descending, and their columns; of equal scores the first come first.

    `torch.topk` keeps any of equal scores, and a stable sort of all takes as long as scoring them. So a key has the
    bits of a score, in an order as integers have it, above the column, counted from the end.
    """
    columns = scores.shape[1]
    bits = torch.fmax(scores + 0.0, scores.new_tensor(-torch.inf)).view(torch.int32)  # no -0.0, and no NaN
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys = ordered + torch.arange(columns - 1, -1, -1, device=scores.device)
    best = keys.topk(min(k, columns), dim=1).indices
    return scores.gather(1, best), best


def _numbers(blocks: Sequence[tuple[Segment, np.ndarray]], places: np.ndarray) -> np.ndarray:
    """Return the document numbers of places in blocks that follow one another, each some documents of a segment."""
    numbers = np.empty_like(places)
    offsets = np.cumsum([0, *(len(positions) for _, positions in blocks)])
    owners = np.searchsorted(offsets, places, side="right") - 1
    for owner in np.unique(owners):
        segment, positions = blocks[owner]
        mine = owners == owner
        numbers[mine] = segment.numbers[positions[places[mine] - offsets[owner]]]
    return numbers


def _largest_norm(embeddings: TokenEmbeddings) -> float:
    """Return the largest norm of a token vector."""
    vectors = np.asarray(embeddings.vectors, dtype="float32")
    return float(np.sqrt(np.einsum("td,td->t", vectors, vectors).max(initial=0.0)))
