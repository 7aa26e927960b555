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
_BLOCK = BlockSize(tokens=1 << 21, scores=1 << 23)


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
        numbers = torch.zeros(len(queries), 0, dtype=torch.int64, device=self.device)
        fit_half = _largest_norm(queries) <= _HALF_NORM
        for part, vectors in copies:
            converted = queries.to(vectors.dtype if fit_half else "float32").to(str(self.device))
            for positions, block_scores in score_blocks(part, vectors, converted, _score, self._block):
                block_numbers = torch.from_numpy(part.segment.numbers[positions]).to(self.device)
                scores = torch.cat([scores, block_scores], dim=1)
                numbers = torch.cat([numbers, block_numbers.expand(len(queries), -1)], dim=1)
                # A stable sort: of documents with equal scores, the earlier one comes first.
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


def _largest_norm(embeddings: TokenEmbeddings) -> float:
    """Return the largest norm of a token vector."""
    vectors = np.asarray(embeddings.vectors, dtype="float32")
    return float(np.sqrt(np.einsum("td,td->t", vectors, vectors).max(initial=0.0)))
