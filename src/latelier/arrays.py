"""Functions for token vectors in numpy arrays or torch tensors: dtype names, joining, int8 quantisation, checks.

torch takes a second to import, and a search needs none of it: nothing here imports it unless it is given a tensor or
asked for one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from latelier.errors import EmbeddingsError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

__all__ = [
    "DTYPES",
    "Array",
    "as_booleans",
    "as_matrices",
    "as_tensor",
    "at_least_float32",
    "cast",
    "concatenate",
    "dequantize",
    "describe_matrix",
    "dtype_name",
    "is_array",
    "is_tensor",
    "quantize",
    "torch_dtype",
]

Array: TypeAlias = "np.ndarray | torch.Tensor"
"""An array of numpy or a tensor of torch."""

DTYPES = ("float32", "float16", "bfloat16", "int8")
"""Names of the dtypes that token vectors may be converted to."""
# Rows that are quantised at a time: a few hundred kilobytes, which stay in the cache from one step to the next.
_BLOCK_ROWS = 1024
_TINY = np.finfo("float32").tiny
# numpy takes 2 microseconds to format a dtype, and a search needs the name a dozen times.
_NAMES: dict[np.dtype | torch.dtype, str] = {np.dtype(name): name for name in ("float32", "float16", "int8", "float64")}


def is_tensor(value: object) -> TypeIs[torch.Tensor]:
    """Whether this is a torch tensor; torch is not imported for the answer.

    Examples
    --------
    >>> is_tensor(np.ones(3))
    False
    """
    # No tensor exists before torch is imported. While another thread imports it, it has no Tensor yet.
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_array(value: object) -> TypeIs[Array]:
    """Whether this is a numpy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def dtype_name(source: Array | torch.dtype) -> str:
    """Return ``"float32"``, ``"int8"``, ... for an array, a tensor or a torch dtype."""
    dtype: Any = getattr(source, "dtype", source)
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of a name in `DTYPES`.

    Examples
    --------
    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    import torch

    return getattr(torch, name)


def describe_matrix(matrix: Array) -> str:
    """Describe a token matrix in an error message."""
    if is_tensor(matrix):
        kind = "torch"
    else:
        kind = "numpy"
    return f"{kind} {dtype_name(matrix)} with dim {matrix.shape[1]}"


def as_tensor(array: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory where torch can.

    Read-only arrays (memory maps) and arrays with negative strides are copied: torch supports neither.
    """
    import torch

    if isinstance(array, torch.Tensor):
        return array
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shareable else np.array(array, order="C"))


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert half precision to float32; return wider numbers unchanged."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _as_array(matrix: Any) -> Any:
    """Return a tensor as it is, and anything else as numpy's own array: subclasses have methods of their own."""
    if is_tensor(matrix):
        return matrix
    return np.asarray(matrix, dtype=None if isinstance(matrix, np.ndarray) else "float32")


def as_matrices(matrices: Iterable[Any]) -> list[Any]:
    """Check that matrices can be packed together, and return them as a list; nested lists become float32 arrays."""
    items = list(map(_as_array, matrices))
    for i, item in enumerate(items):
        if item.ndim != 2:
            raise EmbeddingsError(f"text {i} has embeddings of shape {tuple(item.shape)}; expected 2-D (tokens, dim).")
        if describe_matrix(item) != describe_matrix(items[0]):
            raise EmbeddingsError(
                f"text {i} is {describe_matrix(item)}, text 0 is {describe_matrix(items[0])}; all must share kind, "
                "dtype and dim."
            )
    return items


def as_booleans(mask: Any) -> Array:
    """Return a mask of any number type as booleans, numpy or torch as it was given.

    Examples
    --------
    >>> as_booleans([[1, 0]])
    array([[ True, False]])
    """
    if is_tensor(mask):
        return mask.bool()
    return np.asarray(mask).astype(bool)


def concatenate(arrays: Sequence[Any]) -> Array:
    """Join arrays of one kind along their first axis."""
    if is_tensor(arrays[0]):
        import torch

        return torch.cat(list(arrays))
    return np.concatenate(arrays)


def dequantize(codes: Array, scales: Any) -> Array:
    """Return the float32 vectors ``(n, dim)`` of int8 codes ``(n, dim)`` and scales ``(n,)``."""
    if is_tensor(codes):
        return codes.float() * scales[:, None]
    return codes.astype("float32") * scales[:, None]


def quantize(vectors: Array) -> tuple[Array, Array]:
    """Return symmetric int8 codes ``(n, dim)`` and one float32 scale per vector ``(n,)``.

    ``scale = max(abs(vector)) / 127``, so the error of each number is at most half a scale; a zero vector gets scale 0.
    """
    if not is_tensor(vectors):
        return _quantize_rows(vectors)
    source = vectors.detach()
    if source.is_cpu:
        if dtype_name(source) == "bfloat16":  # which numpy does not have
            floats = source.float()
        else:
            floats = source
        rows, row_scales = _quantize_rows(floats.numpy())
        return as_tensor(rows), as_tensor(row_scales)
    source = source.float()
    if source.numel():
        scales = source.abs().amax(1) / 127
    else:
        scales = source.new_zeros(len(source))
    codes = (source / scales.clamp_min(float(_TINY))[:, None]).round().to(torch_dtype("int8"))
    return codes, scales


def _quantize_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Not by torch: after a parallel operation its threads keep the other cores busy for some milliseconds, waiting for
    # the next one, and scoring, which often follows, would have to do with one core.
    codes = np.empty(vectors.shape, dtype="int8")
    scales = np.empty(len(vectors), dtype="float32")
    for first in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        rows = vectors[block].astype("float32", copy=False)
        scales[block] = np.abs(rows).max(1, initial=0) / 127
        with np.errstate(invalid="ignore"):  # no code stands for NaN, but the scale of its token is NaN or infinity
            quotients = rows / np.maximum(scales[block], _TINY)[:, None]
            codes[block] = np.rint(quotients, out=quotients)
    return codes, scales


def cast(vectors: Array, scales: Any, name: str) -> tuple[Array, Any]:
    """Return vectors of the dtype `name`, and their scales, None unless it is int8; bfloat16 vectors are tensors."""
    if name == "int8":
        return quantize(vectors)
    if scales is None:
        floats = vectors
    else:
        floats = dequantize(vectors, scales)
    if is_tensor(floats) or name == "bfloat16":
        return as_tensor(floats).to(torch_dtype(name)), None
    return floats.astype(name), None
