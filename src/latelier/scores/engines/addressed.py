"""Documents scored at their addresses in memory: copying them together first would take as long as scoring them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.arrays import dtype_name, is_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.utils.ragged import lengths_to_offsets

if TYPE_CHECKING:
    import torch

__all__ = ["AddressedDocuments"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class AddressedDocuments:
    """Documents in the CPU's memory by the addresses of their rows, for `kernels.float_maxsim`.

    `owner`: the object that owns the memory, referenced so that the memory is not freed. `addresses`: address of each
    document's first row, ``(n,)`` int64; its rows are contiguous. `lengths`: number of tokens of each document,
    ``(n,)`` int64. `dim`: numbers per token. `dtype`: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    """

    owner: Any
    addresses: np.ndarray
    lengths: np.ndarray
    dim: int
    dtype: str

    @classmethod
    def of_list(cls, items: Sequence[torch.Tensor]) -> AddressedDocuments | None:
        """Return the addresses of one or more matrices of one dtype, dim and device.

        None if the kernel cannot read them: another dtype, no dimension, not contiguous, not on the CPU, or a view
        whose numbers are negated when they are read.
        """
        import torch

        dim, dtype = items[0].shape[1], dtype_name(items[0])
        # Not one Python statement per matrix: a thousand of them would take a tenth of the time of scoring them.
        in_place = all(map(torch.Tensor.is_contiguous, items)) and all(map(attrgetter("is_cpu"), items))
        if dtype not in _BYTES or not dim or not in_place or any(map(torch.Tensor.is_neg, items)):
            return None
        addresses = np.fromiter(map(torch.Tensor.data_ptr, items), dtype="int64", count=len(items))
        numbers = np.fromiter(map(torch.Tensor.numel, items), dtype="int64", count=len(items))
        return cls(items, addresses, numbers // dim, dim, dtype)

    @classmethod
    def of_packed(cls, embeddings: TokenEmbeddings) -> AddressedDocuments:
        """Return the addresses of packed embeddings on the CPU; copied if not contiguous or of another dtype."""
        if embeddings.dtype not in _BYTES:
            embeddings = embeddings.to("float32")
        vectors = embeddings.vectors
        vectors = vectors.contiguous() if is_tensor(vectors) else np.ascontiguousarray(vectors)
        start = vectors.data_ptr() if is_tensor(vectors) else vectors.ctypes.data
        addresses = start + embeddings.offsets[:-1] * (embeddings.dim * _BYTES[embeddings.dtype])
        return cls(vectors, addresses, embeddings.lengths, embeddings.dim, embeddings.dtype)

    @property
    def offsets(self) -> np.ndarray:
        """Offsets ``(n + 1,)`` int64, as if the documents were packed."""
        return lengths_to_offsets(self.lengths)

    @property
    def row_bytes(self) -> int:
        """Bytes per token."""
        return self.dim * _BYTES[self.dtype]

    def __len__(self) -> int:
        return len(self.addresses)
