"""Windows of a batch, copies to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from latelier.arrays import torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.utils.ragged import lengths_to_offsets, rows_of

__all__ = ["Batch", "Window", "embeddings_on_host", "start_copy", "windows_on_host"]


def start_copy(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start to copy tensors to host memory.

    `tensors`: tensors on one device. Those of a CUDA device are copied in the order of its work, without waiting for
    it.
    """
    if not tensors or tensors[0].device.type != "cuda":
        return lambda: [tensor.cpu() for tensor in tensors]
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    with torch.cuda.device(tensors[0].device):
        for host, tensor in zip(pinned, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

    def wait() -> list[Tensor]:
        done.synchronize()
        # Pinned memory is scarce and goes back to torch's pool: the next window is copied through it.
        return [host.clone() for host in pinned]

    return wait


_Result = TypeVar("_Result")


class Batch(NamedTuple):
    """Encoded texts: their positions in the window, ``(tokens, dim)`` vectors of all of them, and their lengths."""

    rows: np.ndarray
    vectors: Tensor
    lengths: list[int]


class Window(NamedTuple):
    """The encoded batches of texts that were tokenised together; each text is in one batch."""

    batches: list[Batch]

    def to_list(self) -> list[Tensor]:
        """Return one ``(tokens, dim)`` tensor per text, in order; those of a batch share memory."""
        encoded: dict[int, Tensor] = {}
        for batch in self.batches:
            encoded.update(zip(batch.rows.tolist(), batch.vectors.split(batch.lengths), strict=True))
        return [encoded[row] for row in range(len(encoded))]

    def to_embeddings(self, precision: str | None = None) -> TokenEmbeddings:
        """Return the texts in order, copied once at most, and converted to `precision` on the way."""
        first = self.batches[0]
        # int8 needs the vectors as computed: the scale of a token comes from them.
        dtype = first.vectors.dtype if precision in (None, "int8") else torch_dtype(precision)
        if len(first.rows) == len(self.batches) == 1:  # a query on its own is in order
            packed = TokenEmbeddings(first.vectors.to(dtype), [0, len(first.vectors)])
        else:
            packed = self._in_order(dtype)
        return packed if precision is None else packed.to(precision)

    def _in_order(self, dtype: torch.dtype) -> TokenEmbeddings:
        rows = np.concatenate([batch.rows for batch in self.batches])
        lengths = np.zeros(len(rows), dtype="int64")
        for batch in self.batches:
            lengths[batch.rows] = batch.lengths
        offsets = lengths_to_offsets(lengths)
        if np.array_equal(rows, np.arange(len(rows))):  # batches in order, of which a GPU needs no index
            return TokenEmbeddings(torch.cat([batch.vectors.to(dtype) for batch in self.batches]), offsets)
        first = self.batches[0].vectors
        vectors = first.new_empty(int(offsets[-1]), first.shape[1], dtype=dtype)
        for batch in self.batches:
            places = torch.from_numpy(rows_of(offsets, batch.rows)).to(vectors.device)
            vectors[places] = batch.vectors.to(dtype)
        return TokenEmbeddings(vectors, offsets)


def windows_on_host(windows: Iterable[Window]) -> Iterator[Window]:
    """Yield windows of a GPU in host memory, each copied there while the next one is computed."""

    def start(window: Window) -> Callable[[], Window]:
        wait = start_copy([batch.vectors for batch in window.batches])
        parts = [(batch.rows, batch.lengths) for batch in window.batches]
        return lambda: Window([Batch(rows, copy, lengths) for (rows, lengths), copy in zip(parts, wait(), strict=True)])

    return _one_behind(map(start, windows))


def embeddings_on_host(windows: Iterable[TokenEmbeddings]) -> Iterator[TokenEmbeddings]:
    """Yield embeddings of a GPU in host memory, each copied there while the next ones are computed."""

    def start(window: TokenEmbeddings) -> Callable[[], TokenEmbeddings]:
        wait = start_copy([window.vectors] if window.scales is None else [window.vectors, window.scales])
        offsets = window.offsets

        def finish() -> TokenEmbeddings:
            vectors, *scales = wait()
            return TokenEmbeddings(vectors, offsets, *scales)

        return finish

    return _one_behind(map(start, windows))


def _one_behind(started: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Yield the results of what was started, each after the next one has been started."""
    finish: Callable[[], _Result] | None = None
    for following in started:
        if finish is not None:
            yield finish()
        finish = following
    if finish is not None:
        yield finish()
