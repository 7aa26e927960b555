"""A list of matrices, scored where they are: copying them together first would take as long as scoring them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from latelier.scores.kernels import choose_kernel

__all__ = ["Matrices"]


@dataclass(frozen=True)
class Matrices:
    """Float32 matrices in the CPU's memory, for the kernel that takes addresses.

    Parameters
    ----------
    items
        ``(tokens, dim)`` tensors, kept here so that their memory is.
    addresses
        Where each begins, ``(n,)`` int64.
    lengths
        Tokens of each, ``(n,)`` int64.
    """

    items: Sequence[torch.Tensor]
    addresses: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, items: Sequence[torch.Tensor]) -> Matrices | None:
        """Return the matrices, or None if the kernel of this processor cannot take them as they are."""
        fit = all(m.dtype == torch.float32 and m.device.type == "cpu" and m.is_contiguous() for m in items)
        if not fit or choose_kernel() != "avx512":
            return None
        addresses = np.fromiter((m.data_ptr() for m in items), dtype="int64", count=len(items))
        return cls(items, addresses, np.fromiter(map(len, items), dtype="int64", count=len(items)))

    @property
    def offsets(self) -> np.ndarray:
        """As if they stood one after the other, ``(n + 1,)`` int64."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return len(self.items)

    def place(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return addresses and lengths of a range."""
        return self.addresses[first:last], self.lengths[first:last]
