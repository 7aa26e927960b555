"""Bringing embeddings back from worker processes: one tensor per chunk of texts.

sentence-transformers sends one shared-memory tensor per text, and each holds an open file in the parent until the
last chunk is in: about a thousand texts exhaust the usual limit of 1,024 open files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["PackedChunk", "PackingQueue"]


class PackedChunk(NamedTuple):
    """The embeddings of a chunk of texts: ``(total tokens, dim)`` and the number of tokens of each."""

    vectors: Tensor
    lengths: list[int]

    @classmethod
    def pack(cls, matrices: list[Tensor]) -> PackedChunk:
        """Join matrices ``(tokens, dim)`` into one tensor."""
        return cls(torch.cat(matrices), [len(matrix) for matrix in matrices])

    def unpack(self) -> list[Tensor]:
        """Return the matrices; the copy lets go of the shared memory, and so of its open file."""
        return list(self.vectors.clone().split(self.lengths))


class PackingQueue:
    """The queue of results as a worker sees it: packs lists of matrices on their way out."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put(self, result: list[Any]) -> None:
        """Send ``[chunk id, output]``; outputs other than lists of matrices go as they are."""
        chunk, output = result
        matrices = isinstance(output, list) and output and all(isinstance(m, Tensor) and m.ndim == 2 for m in output)
        self._queue.put([chunk, PackedChunk.pack(output) if matrices else output])
