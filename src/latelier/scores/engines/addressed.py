"""Matrices scored where they are: copying them together first would take as long as scoring them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from latelier.arrays import dtype_name
from latelier.embeddings import TokenEmbeddings
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["Matrices"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Matrices:
    """Matrices in the CPU's memory, for the kernel that takes addresses.

    Parameters
    ----------
    owner
        What holds the memory, kept here so that it lives.
    addresses
        Where each begins, ``(n,)`` int64.
    lengths
        Tokens of each, ``(n,)`` int64.
    dim
        Numbers per token.
    dtype
        ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    """

    owner: Any
    addresses: np.ndarray
    lengths: np.ndarray
    dim: int
    dtype: str

    @classmethod
    def of_list(cls, items: Sequence[torch.Tensor]) -> Matrices | None:
        """Return matrices of one dtype, dim and device, at least one; or None if they cannot be read as they are."""
        dim, dtype = items[0].shape[1], dtype_name(items[0])
        # Not one Python statement per matrix: a thousand of them would take a tenth of the time of scoring them.
        in_place = all(map(torch.Tensor.is_contiguous, items)) and all(map(attrgetter("is_cpu"), items))
        if dtype not in _BYTES or not dim or not in_place:
            return None
        addresses = np.fromiter(map(torch.Tensor.data_ptr, items), dtype="int64", count=len(items))
        numbers = np.fromiter(map(torch.Tensor.numel, items), dtype="int64", count=len(items))
        return cls(items, addresses, numbers // dim, dim, dtype)

    @classmethod
    def of_packed(cls, embeddings: TokenEmbeddings) -> Matrices:
        """Return packed embeddings on the CPU, copied only where they are scattered or no floats of a known size."""
        if embeddings.dtype not in _BYTES:
            embeddings = embeddings.to("float32")
        vectors = embeddings.vectors
        vectors = vectors.contiguous() if isinstance(vectors, torch.Tensor) else np.ascontiguousarray(vectors)
        start = vectors.data_ptr() if isinstance(vectors, torch.Tensor) else vectors.ctypes.data
        addresses = start + embeddings.offsets[:-1] * (embeddings.dim * _BYTES[embeddings.dtype])
        return cls(vectors, addresses, embeddings.lengths, embeddings.dim, embeddings.dtype)

    @property
    def offsets(self) -> np.ndarray:
        """As if they stood one after the other, ``(n + 1,)`` int64."""
        return lengths_to_offsets(self.lengths)

    @property
    def row_bytes(self) -> int:
        """Bytes of a token."""
        return self.dim * _BYTES[self.dtype]

    def __len__(self) -> int:
        return len(self.addresses)
