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
    "checked_offsets",
    "checked_scales",
    "checked_vectors",
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
# float64 is accepted, for gradient checks, but is not a target of `TokenEmbeddings.to`.
_ACCEPTED = {*DTYPES, "float64"}
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
    kind = "torch" if is_tensor(matrix) else "numpy"
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


def as_matrices(matrices: Iterable[Any]) -> list[Any]:
    """Check that matrices can be packed together, and return them as a list; nested lists become float32 arrays."""
    items = [
        # np.matrix and other subclasses have methods of their own
        each if is_tensor(each) else np.asarray(each, dtype=None if isinstance(each, np.ndarray) else "float32")
        for each in matrices
    ]
    for i, item in enumerate(items):
        if item.ndim != 2:
            raise EmbeddingsError(f"text {i} has embeddings of shape {tuple(item.shape)}; expected 2-D (tokens, dim).")
        if describe_matrix(item) != describe_matrix(items[0]):
            raise EmbeddingsError(
                f"text {i} is {describe_matrix(item)}, text 0 is {describe_matrix(items[0])}; all must share kind, "
                "dtype and dim."
            )
    return items


def as_booleans(mask: Any, name: str) -> Array:
    """Return a mask of any number type as booleans, numpy or torch as it was given.

    Examples
    --------
    >>> as_booleans([[1, 0]], "the mask")
    array([[ True, False]])
    """
    if is_tensor(mask):
        return mask.bool()
    array = np.asarray(mask)
    if array.dtype.kind not in "biuf" and array.size:
        raise EmbeddingsError(
            f"received {name} of type {type(mask).__name__} and dtype {array.dtype}; expected true or 1 where a token "
            "counts."
        )
    return array.astype(bool)


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
        floats = source.float() if dtype_name(source) == "bfloat16" else source  # numpy has no bfloat16
        rows, row_scales = _quantize_rows(floats.numpy())
        return as_tensor(rows), as_tensor(row_scales)
    source = source.float()
    scales = source.abs().amax(1) / 127 if source.numel() else source.new_zeros(len(source))
    codes = (source / scales.clamp_min(float(_TINY))[:, None]).round().to(torch_dtype("int8"))
    return codes, scales


def _quantize_rows(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Not by torch: after a parallel operation its threads keep the other cores busy for some milliseconds, waiting for
    # the next one, and scoring, which often follows, would have to do with one core.
    codes, scales = np.empty(vectors.shape, dtype="int8"), np.empty(len(vectors), dtype="float32")
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
    floats = vectors if scales is None else dequantize(vectors, scales)
    if is_tensor(floats) or name == "bfloat16":
        return as_tensor(floats).to(torch_dtype(name)), None
    return floats.astype(name), None


def checked_vectors(vectors: Any) -> Array:
    """Return a packed array of token vectors, which shares its memory with what was given."""
    if not is_array(vectors) or vectors.ndim != 2:
        shape = getattr(vectors, "shape", None)
        raise EmbeddingsError(
            f"received vectors of type {type(vectors).__name__} and shape {shape}; expected a 2-D numpy array or torch "
            "tensor (total_tokens, dim). Use TokenEmbeddings.from_list for a list of matrices."
        )
    if is_tensor(vectors) and str(vectors.layout) != "torch.strided":
        raise EmbeddingsError(f"received vectors in the layout {vectors.layout}; give dense ones: vectors.to_dense().")
    if dtype_name(vectors) not in _ACCEPTED:
        raise EmbeddingsError(f"received vectors of dtype {vectors.dtype}; expected one of {', '.join(DTYPES)}.")
    if len(vectors) and not vectors.shape[1]:
        raise EmbeddingsError(f"received {len(vectors)} tokens of dim 0; expected at least 1.")
    return vectors if is_tensor(vectors) else np.asarray(vectors)


def checked_offsets(offsets: Array | Sequence[int], tokens: int) -> np.ndarray:
    """Return a read-only int64 copy of offsets.

    Raises `EmbeddingsError` unless they are non-decreasing integers from 0 to the number of tokens.
    """
    if is_tensor(offsets):
        offsets = offsets.cpu().tolist()
    own = np.array(offsets)  # copied before they are checked, so that no other thread can change them in between
    if own.ndim != 1 or len(own) == 0 or own.dtype.kind not in "iu":
        raise EmbeddingsError(
            f"received offsets of dtype {own.dtype} and shape {own.shape}; expected (n + 1,) integers from 0."
        )
    # Compared, not subtracted: the difference of large numbers may overflow and look positive. Those of one text, such
    # as a query, need no look in between.
    rises = len(own) <= 2 or bool((own[1:] >= own[:-1]).all())
    if own[0] != 0 or own[-1] != tokens or not rises:
        falling = np.flatnonzero(own[1:] < own[:-1])
        where = f", and from {own[falling[0]]} to {own[falling[0] + 1]} at text {falling[0]}" if falling.size else ""
        raise EmbeddingsError(
            f"received offsets from {own[0]} to {own[-1]} for {tokens} tokens{where}; "
            "expected non-decreasing offsets from 0 to the number of tokens."
        )
    own = own.astype("int64", copy=False)
    own.flags.writeable = False
    return own


def checked_scales(scales: Any, vectors: Array) -> Array | None:
    """Return the scales of int8 vectors as float32, of the same kind and on the same device as the vectors.

    Raises `EmbeddingsError` if int8 vectors do not have one floating scale each, or vectors of another dtype have
    scales.
    """
    if (scales is None) == (dtype_name(vectors) == "int8"):
        raise EmbeddingsError("int8 vectors need one float32 scale per token, and no other dtype takes scales.")
    if scales is None:
        return None
    if not is_array(scales) or tuple(scales.shape) != (len(vectors),):
        shape = tuple(getattr(scales, "shape", ()))
        raise EmbeddingsError(
            f"received scales of shape {shape} and type {type(scales).__name__}; expected an array of shape "
            f"({len(vectors)},)."
        )
    # Kernels read four bytes per scale without looking at the dtype.
    if is_tensor(vectors):
        return as_tensor(scales).to(vectors.device, torch_dtype("float32"))
    return np.asarray(scales.detach().cpu() if is_tensor(scales) else scales, dtype="float32")
