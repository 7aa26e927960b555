"""Results of worker processes: one tensor per chunk of texts rather than one per text.

sentence-transformers sends one shared-memory tensor per text, and each is an open file in the parent process until the
last chunk has arrived: about a thousand texts exhaust the usual limit of 1,024 open files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

__all__ = ["JoinedChunk", "JoiningQueue", "encode_chunks", "take_result"]


class JoinedChunk(NamedTuple):
    """The embeddings of a chunk of texts: ``(total tokens, dim)``, and the number of tokens of each text."""

    vectors: Tensor
    lengths: list[int]

    @classmethod
    def of(cls, rows: list[Tensor]) -> JoinedChunk:
        """Join one ``(tokens, dim)`` tensor per text into one."""
        return cls(torch.cat(rows), [len(row) for row in rows])

    def split(self) -> list[Tensor]:
        """Return one tensor per text, in memory that is not shared: the open file is closed."""
        return list(self.vectors.clone().split(self.lengths))


class JoiningQueue:
    """The queue that a worker process puts results into; joins the tensors of a chunk first."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put(self, result: list[Any]) -> None:
        """Send ``[chunk id, output]``; an output that is not a list of token vectors is sent unchanged."""
        chunk, output = result
        joins = isinstance(output, list) and output and all(isinstance(m, Tensor) and m.ndim == 2 for m in output)
        self._queue.put([chunk, JoinedChunk.of(output) if joins else output])


def encode_chunks(target_device: str, model: Any, input_queue: Any, results_queue: Any) -> None:
    """Run a worker process as sentence-transformers does; results go through a `JoiningQueue`."""
    joining: Any = JoiningQueue(results_queue)
    MultiVectorEncoder._multi_process_worker(target_device, model, input_queue, joining)


def take_result(pool: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for ``[chunk id, output]`` as sentence-transformers does, and split what a `JoiningQueue` has joined."""
    chunk, output = MultiVectorEncoder._get_worker_result(pool, *args, **kwargs)
    return [chunk, output.split() if isinstance(output, JoinedChunk) else output]
