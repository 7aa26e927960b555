"""What numpy arrays and torch tensors of token vectors have in common: names of dtypes, joining, int8 codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from latelier.errors import EmbeddingsError

__all__ = [
    "DTYPES",
    "Array",
    "as_matrices",
    "as_tensor",
    "concatenate",
    "dequantize",
    "describe",
    "dtype_name",
    "quantize",
]

Array: TypeAlias = "np.ndarray | torch.Tensor"

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}


def dtype_name(source: Array | torch.dtype) -> str:
    """Return ``"float32"``, ``"int8"``, ... for an array, a tensor or a torch dtype."""
    return str(source if isinstance(source, torch.dtype) else source.dtype).removeprefix("torch.")


def describe(matrix: Array) -> str:
    """Say what a token matrix is, for an error message."""
    kind = "torch" if isinstance(matrix, torch.Tensor) else "numpy"
    return f"{kind} {dtype_name(matrix)} with dim {matrix.shape[1]}"


def as_tensor(array: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory where torch can.

    Read-only memory (a memory map) and negative strides are copied: torch knows neither.
    """
    if isinstance(array, torch.Tensor):
        return array
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shareable else np.array(array, order="C"))


def as_matrices(matrices: Iterable[Any]) -> list[Any]:
    """Check that matrices belong together.

    Parameters
    ----------
    matrices
        2-D arrays or tensors; nested lists of numbers become float32 arrays.

    Returns
    -------
    list
        The matrices, of one kind, dtype and dim.

    Raises
    ------
    EmbeddingsError
        If one is not 2-D, or differs from the first; the message names it.

    Examples
    --------
    >>> [matrix.shape for matrix in as_matrices([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])]
    [(1, 2), (2, 2)]
    """
    items = [m if isinstance(m, (np.ndarray, torch.Tensor)) else np.asarray(m, dtype="float32") for m in matrices]
    for i, item in enumerate(items):
        if item.ndim != 2:
            raise EmbeddingsError(f"text {i} has embeddings of shape {tuple(item.shape)}; expected 2-D (tokens, dim).")
        if i == 0:
            first, (_, dim), kind, dtype = item, item.shape, type(item), item.dtype
        elif item.shape[1] != dim or type(item) is not kind or item.dtype != dtype:
            raise EmbeddingsError(
                f"text {i} is {describe(item)}, text 0 is {describe(first)}; all must share kind, dtype and dim."
            )
    return items


def concatenate(arrays: Sequence[Any]) -> Array:
    """Join arrays of one kind along their first axis."""
    return torch.cat(list(arrays)) if isinstance(arrays[0], torch.Tensor) else np.concatenate(arrays)


def dequantize(codes: Array, scales: Any) -> Array:
    """Return the float32 vectors ``(n, dim)`` that int8 codes ``(n, dim)`` and scales ``(n,)`` stand for."""
    if isinstance(codes, torch.Tensor):
        return codes.float() * scales[:, None]
    return codes.astype("float32") * scales[:, None]


def quantize(vectors: Array) -> tuple[Array, Array]:
    """Return symmetric int8 codes ``(n, dim)`` and one float32 scale per vector ``(n,)``.

    The scale is the largest absolute value divided by 127, so every number is off by at most half a scale; a vector
    of zeros gets scale 0.
    """
    source = as_tensor(vectors).detach().float()
    scales = source.abs().amax(1) / 127 if source.numel() else source.new_zeros(len(source))
    codes = (source / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8)
    return (codes, scales) if isinstance(vectors, torch.Tensor) else (codes.numpy(), scales.numpy())
