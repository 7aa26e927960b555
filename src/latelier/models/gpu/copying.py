"""Copies to host memory that run while the GPU computes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["start_copy"]


def start_copy(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start to copy tensors to host memory.

    Parameters
    ----------
    tensors
        Tensors on one device. Those of a CUDA device are copied in the order of its work, without waiting for it.

    Returns
    -------
    callable
        Waits for the copies, and returns them.
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
