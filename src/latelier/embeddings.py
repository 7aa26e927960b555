"""`TokenEmbeddings`: token matrices of many texts in one packed array, the data structure that all sub-packages share.

Nothing is padded: ``vectors`` holds the tokens of all texts one after the other, ``offsets`` where each text begins.
``offsets`` is a numpy array in host memory even for vectors on a GPU, so slicing never waits for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from latelier.arrays import (
    DTYPES,
    Array,
    as_booleans,
    as_matrices,
    as_tensor,
    cast,
    concatenate,
    dequantize,
    describe_matrix,
    dtype_name,
    is_array,
    is_tensor,
    torch_dtype,
)
from latelier.errors import EmbeddingsError, InvalidArgumentError, StorageError
from latelier.utils import resolve_device
from latelier.utils.batching import lengths_to_offsets, rows_of
from latelier.utils.files import as_path, open_binary, replaced
from latelier.utils.misc import warn_caller

if TYPE_CHECKING:
    import torch

__all__ = ["Array", "TokenEmbeddings"]

_FORMAT_VERSION = "1"
# float64 is accepted, for gradient checks, but is not a target of `TokenEmbeddings.to`.
_ACCEPTED = {*DTYPES, "float64"}


@dataclass(frozen=True, init=False, eq=False, repr=False, slots=True)
class TokenEmbeddings(Sequence[Any]):
    """Many ``(n_i, dim)`` token matrices in one packed array.

    Parameters
    ----------
    vectors
        All tokens of all texts, one after the other: ``(total_tokens, dim)``, numpy or torch, in float32, float16,
        bfloat16 (torch only) or int8.
    offsets
        ``(n + 1,)`` non-decreasing integers from 0 to ``total_tokens``: text ``i`` is
        ``vectors[offsets[i]:offsets[i + 1]]``. A text may have no token. The offsets are copied and read-only.
    scales
        ``(total_tokens,)`` floats for int8, kept as float32: the vectors are ``vectors * scales[:, None]``.

    Raises
    ------
    EmbeddingsError
        If the shapes, dtypes or offsets do not fit together. NaN and infinity are left to an index, which rejects them.

    Examples
    --------
    >>> import numpy as np
    >>> matrices = [np.ones((2, 4), "float32"), np.zeros((3, 4), "float32")]
    >>> embeddings = TokenEmbeddings.from_list(matrices)
    >>> embeddings
    TokenEmbeddings(2 texts, 5 tokens, dim=4, float32, numpy)
    >>> embeddings[1].shape
    (3, 4)
    >>> embeddings[1:].lengths
    array([3])
    >>> padded, mask = embeddings.pad()
    >>> padded.shape, mask.tolist()
    ((2, 3, 4), [[True, True, False], [True, True, True]])
    """

    vectors: Any  # not Array: callers know which of numpy and torch it is, in ways that a type checker cannot follow
    offsets: np.ndarray
    scales: Any

    # Kernels compute addresses from offsets without checking them, and rely on the checks here: offsets begin with 0,
    # never decrease and end with the number of rows of `vectors`. The three attributes cannot be replaced and the
    # offsets are a read-only copy, so this stays true.
    def __init__(self, vectors: Array, offsets: Array | Sequence[int], scales: Array | None = None) -> None:
        if not is_array(vectors) or vectors.ndim != 2:
            shape = getattr(vectors, "shape", None)
            raise EmbeddingsError(
                f"received vectors of type {type(vectors).__name__} and shape {shape}; expected a 2-D numpy array or "
                "torch tensor (total_tokens, dim). Use TokenEmbeddings.from_list for a list of matrices."
            )
        dtype = dtype_name(vectors)
        if dtype not in _ACCEPTED or (len(vectors) and not vectors.shape[1]):
            raise EmbeddingsError(
                f"received vectors of dtype {vectors.dtype} and dim {vectors.shape[1]}; expected one of "
                f"{', '.join(DTYPES)}, and a dim of at least 1."
            )
        # Copied before they are checked, so that no other thread can change them in between.
        own = np.array(offsets.tolist() if is_tensor(offsets) else offsets)
        if own.ndim != 1 or len(own) == 0 or own.dtype.kind not in "iu":
            raise EmbeddingsError(
                f"received offsets of dtype {own.dtype} and shape {own.shape}; expected (n + 1,) integers from 0."
            )
        # Compared, not subtracted: the difference of large numbers may overflow and look positive.
        if own[0] != 0 or own[-1] != len(vectors) or (len(own) > 2 and (own[1:] < own[:-1]).any()):
            falling = np.flatnonzero(own[1:] < own[:-1])
            if len(falling):
                where = f", and from {own[falling[0]]} to {own[falling[0] + 1]} at text {falling[0]}"
            else:
                where = ""
            raise EmbeddingsError(
                f"received offsets from {own[0]} to {own[-1]} for {len(vectors)} tokens{where}; "
                "expected non-decreasing offsets from 0 to the number of tokens."
            )
        own = own.astype("int64", copy=False)
        own.flags.writeable = False
        if (scales is None) == (dtype == "int8"):
            raise EmbeddingsError("int8 vectors need one float32 scale per token, and no other dtype takes scales.")
        if scales is not None:
            if not is_array(scales) or tuple(scales.shape) != (len(vectors),):
                raise EmbeddingsError(
                    f"received scales of shape {tuple(getattr(scales, 'shape', ()))} and type {type(scales).__name__}; "
                    f"expected an array of shape ({len(vectors)},)."
                )
            # Kernels read four bytes per scale without looking at the dtype.
            if is_tensor(vectors):
                scales = as_tensor(scales).to(vectors.device, torch_dtype("float32"))
            else:
                scales = np.asarray(scales.detach().cpu() if is_tensor(scales) else scales, dtype="float32")
        object.__setattr__(self, "vectors", vectors if is_tensor(vectors) else np.asarray(vectors))
        object.__setattr__(self, "offsets", own)
        object.__setattr__(self, "scales", scales)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and unpickled embeddings are made by the constructor, so they are checked too.
        return type(self), (self.vectors, self.offsets, self.scales)

    @classmethod
    def from_list(cls, matrices: Iterable[Any], dim: int | None = None) -> TokenEmbeddings:
        """Pack a list of ``(n_i, dim)`` matrices, numpy or torch; the vectors are copied once.

        Parameters
        ----------
        matrices
            The matrices, all of one kind, dtype and ``dim``. Nested lists of numbers become float32 arrays.
        dim
            The dimension of an empty list; default 0.

        Raises
        ------
        InvalidArgumentError
            If a matrix is not 2-D or not as the first in kind, dtype and ``dim``.

        Examples
        --------
        >>> TokenEmbeddings.from_list([[[1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]]).lengths
        array([1, 2])
        """
        items = as_matrices(matrices)
        if not items:
            return cls(np.zeros((0, dim or 0), dtype="float32"), [0])
        return cls(concatenate(items), lengths_to_offsets([len(item) for item in items]))

    @classmethod
    def from_padded(cls, padded: Array, mask: Array) -> TokenEmbeddings:
        """Pack the tokens of a padded batch where a mask is true; masked ones are dropped wherever they are.

        Parameters
        ----------
        padded
            ``(n, max_length, dim)`` vectors, an array of numpy or a tensor.
        mask
            ``(n, max_length)``: booleans, or numbers that are 0 for what is dropped.

        Returns
        -------
        TokenEmbeddings
            Of the kind and the dtype of `padded`.

        Raises
        ------
        EmbeddingsError
            If the shapes do not fit together.

        Examples
        --------
        >>> padded = np.eye(4, dtype="float32").reshape(2, 2, 4)
        >>> batch = TokenEmbeddings.from_padded(padded, np.array([[1, 0], [1, 1]]))
        >>> batch.lengths, batch[0].tolist()
        (array([1, 2]), [[1.0, 0.0, 0.0, 0.0]])
        """
        if padded.ndim != 3 or mask.shape != padded.shape[:2]:
            raise EmbeddingsError(
                f"received padded embeddings of shape {tuple(padded.shape)} and a mask of shape {tuple(mask.shape)}; "
                "expected (n, max_length, dim) and (n, max_length)."
            )
        keep = as_booleans(mask)
        if is_tensor(keep):
            lengths = keep.sum(1).cpu().numpy()
        else:
            lengths = keep.sum(1)
        return cls(padded[keep], lengths_to_offsets(lengths))

    @classmethod
    def concatenate(cls, parts: Iterable[TokenEmbeddings]) -> TokenEmbeddings:
        """Join packed batches into one.

        Parameters
        ----------
        parts
            Batches of one kind, dtype and dim; those of no texts and dim 0 are left out.

        Returns
        -------
        TokenEmbeddings
            Their texts in order.

        Raises
        ------
        EmbeddingsError
            If the batches differ.

        Examples
        --------
        >>> one = TokenEmbeddings.from_list([[[1.0, 2.0]]])
        >>> len(TokenEmbeddings.concatenate([one, one, one]))
        3
        """
        given = list(parts)
        if len(given) == 1:
            return given[0]
        parts = [part for part in given if len(part) or part.dim] or given[:1]
        first = parts[0]
        for part in parts:
            mine = describe_matrix(part.vectors)
            others = describe_matrix(first.vectors)
            if mine != others:
                if part.dim == first.dim:
                    hint = "convert them with .to(...) first"
                else:
                    hint = "encode them with one model"
                raise EmbeddingsError(f"received batches of {others} and of {mine}; {hint}.")
        offsets = lengths_to_offsets(np.concatenate([part.lengths for part in parts]))
        if first.scales is None:
            scales = None
        else:
            scales = concatenate([part.scales for part in parts])
        return cls(concatenate([part.vectors for part in parts]), offsets, scales)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text, ``(n,)`` int64."""
        return np.diff(self.offsets)

    @property
    def dim(self) -> int:
        """Dimension of the token vectors."""
        return int(self.vectors.shape[1])

    @property
    def dtype(self) -> str:
        """Name of the dtype: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"int8"``."""
        return dtype_name(self.vectors)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all texts."""
        return int(self.vectors.shape[0])

    @property
    def device(self) -> torch.device:
        """Device of the vectors; numpy arrays are on the CPU."""
        import torch

        if self.is_torch:
            return self.vectors.device
        return torch.device("cpu")

    @property
    def is_torch(self) -> bool:
        """Whether the vectors are a torch tensor rather than a numpy array."""
        return is_tensor(self.vectors)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> TokenEmbeddings: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one text's ``(n_i, dim)`` matrix, or several texts as `TokenEmbeddings`.

        One text and a slice of step 1 are views; a boolean mask selects texts as in numpy. Single texts of int8
        embeddings are dequantised to float32.
        """
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                begin = self.offsets[start]
                end = self.offsets[max(start, stop)]
                if self.scales is None:
                    scales = None
                else:
                    scales = self.scales[begin:end]
                return TokenEmbeddings(
                    self.vectors[begin:end], self.offsets[start : max(start, stop) + 1] - begin, scales
                )
            index = range(start, stop, step)
        if hasattr(index, "__index__") and not getattr(index, "ndim", 0):
            return self._text(int(index))
        if not hasattr(index, "dtype"):
            index = np.asarray(index, dtype=None if len(index) else "int64")
        index = np.arange(len(self))[index]  # as numpy reads them: from the end, by a mask, or an IndexError
        offsets = lengths_to_offsets(self.offsets[index + 1] - self.offsets[index])
        rows = rows_of(self.offsets, index)
        picked: Any = rows
        if self.is_torch:
            picked = as_tensor(rows).to(self.device)
        return TokenEmbeddings(self.vectors[picked], offsets, None if self.scales is None else self.scales[picked])

    def __iter__(self) -> Iterator[Array]:
        return (self._text(i) for i in range(len(self)))

    def pad(self) -> tuple[Array, Array]:
        """Return zero-padded vectors ``(n, max_length, dim)`` and the boolean mask ``(n, max_length)`` of real tokens.

        Both are of the kind and on the device of the vectors; int8 embeddings are dequantised to float32.

        Returns
        -------
        tuple of (array, array)
            Vectors and mask, both numpy or both torch.

        Examples
        --------
        >>> vectors, mask = TokenEmbeddings.from_list([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]).pad()
        >>> vectors.shape, mask.tolist()
        ((2, 2, 2), [[True, False], [True, True]])
        """
        if self.scales is not None:
            source = self.to("float32")
        else:
            source = self
        lengths = source.lengths
        width = int(lengths.max(initial=0))
        host_mask = np.arange(width) < lengths[:, None]
        if source.is_torch:
            mask = as_tensor(host_mask).to(source.vectors.device)
            padded = source.vectors.new_zeros(len(self), width, self.dim)
            # index_put, not assignment into a view: it keeps the gradient of the packed vectors.
            return padded.index_put(mask.nonzero(as_tuple=True), source.vectors), mask
        out = np.zeros((len(self), width, self.dim), dtype=source.vectors.dtype)
        out[host_mask] = source.vectors
        return out, host_mask

    def to(self, target: str | torch.device | torch.dtype) -> TokenEmbeddings:
        """Convert to a device, a dtype, or to numpy or torch.

        Parameters
        ----------
        target
            A device (``"cpu"``, ``"cuda:1"``, ``"mps"``), a dtype (``"float32"``, ``"float16"``, ``"bfloat16"``,
            ``"int8"``, or the torch dtype), ``"numpy"`` or ``"torch"``. A device or bfloat16 turns numpy into torch.

        Returns
        -------
        TokenEmbeddings
            The same object if nothing changes. ``"int8"`` has one scale per token, its largest absolute value divided
            by 127; the error of each number is at most half a scale.

        Raises
        ------
        InvalidArgumentError
            If the target is none of these, or a device that this machine lacks.

        Examples
        --------
        >>> small = TokenEmbeddings.from_list([[[0.5, -1.0]]]).to("int8")
        >>> small.vectors.tolist(), small[0].round(3).tolist()
        ([[64, -127]], [[0.5040000081062317, -1.0]])
        """
        if isinstance(target, str):
            name = target
        else:
            name = str(target).removeprefix("torch.")
        if name in ("numpy", "torch"):
            if name == "numpy":
                return self._numpy()
            return self._torch()
        if name in DTYPES:
            return self._cast(name)
        try:
            device = resolve_device(target)  # type: ignore[arg-type]
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"cannot convert embeddings to {target!r:.80}: {error} A dtype is one of {', '.join(DTYPES)}."
            ) from error
        moved = self._torch()
        if moved.vectors.device == device:
            return moved
        if moved.scales is None:
            scales = None
        else:
            scales = moved.scales.to(device)
        return TokenEmbeddings(moved.vectors.to(device), self.offsets, scales)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically; an existing file is replaced.

        Parameters
        ----------
        path
            The file.

        Raises
        ------
        StorageError
            If it cannot be written, for example on a full disk: an existing file is unchanged then.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "embeddings.safetensors"
        >>> TokenEmbeddings.from_list([[[1.0, 2.0]]]).save(path)
        >>> TokenEmbeddings.load(path)
        TokenEmbeddings(1 texts, 1 tokens, dim=2, float32, numpy)
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = as_path(path)
        source = self._torch().to("cpu")
        parts = {"vectors": source.vectors, "offsets": as_tensor(self.offsets), "scales": source.scales}
        tensors = {name: part.contiguous() for name, part in parts.items() if part is not None}
        kind = "torch" if self.is_torch else "numpy"
        metadata = {"latelier": "TokenEmbeddings", "version": _FORMAT_VERSION, "kind": kind}
        try:
            with replaced(path) as new:
                save_file(tensors, new, metadata=metadata)
        except (SafetensorError, OSError, ValueError) as error:  # ValueError: a surrogate in the name
            raise StorageError(f"could not write {str(path)!r}: {error}; an existing file is unchanged.") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TokenEmbeddings:
        """Read a file written by `save`, as the kind (numpy or torch) that was saved.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        TokenEmbeddings
            What was saved.

        Raises
        ------
        InvalidArgumentError
            If there is no such file.
        EmbeddingsError
            If it is damaged, or another file.

        Examples
        --------
        >>> TokenEmbeddings.from_list([[[1.0, 2.0]]]).save("one.safetensors")
        >>> TokenEmbeddings.load("one.safetensors")[0].tolist()
        [[1.0, 2.0]]
        """
        from safetensors import SafetensorError, safe_open

        open_binary(as_path(path)).close()  # safetensors' own errors for folders and impossible names are unclear
        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: impossible shapes
            raise EmbeddingsError(f"{path} is not a complete safetensors file: {error}.") from error
        if (metadata.get("latelier"), metadata.get("version")) != ("TokenEmbeddings", _FORMAT_VERSION):
            raise EmbeddingsError(
                f"{path} was not written by TokenEmbeddings.save of this version of latelier: it has format version "
                f"{metadata.get('version')} and holds {sorted(tensors)}."
            )
        try:
            loaded = cls(tensors["vectors"], tensors["offsets"], tensors.get("scales"))
            if metadata.get("kind") == "torch":
                return loaded
            return loaded._numpy()
        except (KeyError, ValueError) as error:  # numpy rejects some shapes too
            raise EmbeddingsError(f"{path} is damaged: {error}") from error

    def __eq__(self, other: object) -> bool:
        """Compare dtype, lengths and every number; numpy and torch embeddings may be equal."""
        if not isinstance(other, TokenEmbeddings):
            return NotImplemented
        if self.dtype != other.dtype or self.dim != other.dim or not np.array_equal(self.offsets, other.offsets):
            return False
        mine = self._numpy()
        theirs = other._numpy()
        same = np.array_equal(mine.vectors, theirs.vectors)
        return same and (mine.scales is None or np.array_equal(mine.scales, theirs.scales))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        where = str(self.device) if self.is_torch else "numpy"
        return f"TokenEmbeddings({len(self)} texts, {self.num_tokens} tokens, dim={self.dim}, {self.dtype}, {where})"

    def _text(self, index: int) -> Array:
        index = range(len(self))[index]
        start = self.offsets[index]
        stop = self.offsets[index + 1]
        matrix = self.vectors[start:stop]
        if self.scales is None:
            return matrix
        return dequantize(matrix, self.scales[start:stop])

    def _numpy(self) -> TokenEmbeddings:
        if not self.is_torch:
            return self
        if self.dtype == "bfloat16":  # which numpy does not have
            source = self._cast("float32")
        else:
            source = self
        return TokenEmbeddings(source.vectors.detach().cpu().numpy(), self.offsets, source.scales)

    def _torch(self) -> TokenEmbeddings:
        if self.is_torch:
            return self
        return TokenEmbeddings(as_tensor(self.vectors), self.offsets, self.scales)

    def _cast(self, name: str) -> TokenEmbeddings:
        if self.dtype == name:
            return self
        vectors, scales = cast(self.vectors, self.scales, name)
        return TokenEmbeddings(vectors, self.offsets, scales)


def without_zero_rows(packed: TokenEmbeddings, name: Callable[[int], str]) -> tuple[TokenEmbeddings, int]:
    """Drop rows of zeros, which are padding, and return their number, too.

    A text without any other row has no token.
    """
    is_zero = ~packed.vectors.any(axis=1)
    count = int(is_zero.sum())
    if not count:
        return packed, 0
    kept = np.concatenate([[0], np.cumsum(~is_zero)])
    offsets = kept[packed.offsets].astype("int64")
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{name(int(without[0]))} has no token that is not zeros; every text needs at least one.")
    return TokenEmbeddings(packed.vectors[~is_zero], offsets), count


def warn_of_zero_rows(count: int) -> None:
    """Say how many rows of zeros were dropped, if any."""
    if count:
        warn_caller(f"{count:,} rows of zeros were dropped: they are padding, not tokens.")
