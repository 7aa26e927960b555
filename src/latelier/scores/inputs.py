"""The sides of a score, checked, and the base of all engines.

Each becomes a `Side`, which offers the texts packed and padded: the form that was not given is made on first use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch

from latelier.arrays import as_booleans, as_matrices, as_tensor, dtype_name, is_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError

_FLOATS = ("float32", "float16", "bfloat16", "float64")


class Side:
    """The queries or the documents of a scoring call.

    `name`: ``"queries"`` or ``"documents"``, for error messages. `packed`: the texts, packed; or None if `padded` or
    `listed` is given. `padded`: vectors ``(n, tokens, dim)`` and bool mask ``(n, tokens)``. `listed`: one tensor
    ``(tokens, dim)`` per text, at least one, of equal dtype, dim and device. `group`: number of documents per query, if
    the shape of the input gives it.
    """

    def __init__(
        self,
        name: str,
        packed: TokenEmbeddings | None = None,
        padded: tuple[torch.Tensor, torch.Tensor] | None = None,
        listed: list[torch.Tensor] | None = None,
        group: int | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self.listed = listed
        self._packed = packed
        self._padded = padded

    def __len__(self) -> int:
        if self.listed is not None:
            return len(self.listed)
        if self._packed is not None:
            return len(self._packed)
        return len(self.padded[0])

    @property
    def vectors(self) -> torch.Tensor:
        """The vectors of some or all texts, to read their dim, dtype and device."""
        if self.listed is not None:
            return self.listed[0]
        if self._packed is not None:
            return self._packed.vectors
        return self.padded[0]

    @property
    def requires_grad(self) -> bool:
        """Whether any of the vectors requires a gradient."""
        if self.listed is not None:
            return any(m.requires_grad for m in self.listed)
        return self.vectors.requires_grad

    @property
    def dim(self) -> int:
        """Numbers per token."""
        return int(self.vectors.shape[-1])

    def part(self, first: int, last: int) -> Side:
        """Return texts ``first`` to ``last - 1``."""
        if self.listed is not None:
            return Side(self.name, listed=self.listed[first:last])
        return Side(self.name, packed=self.packed[first:last])

    @property
    def is_padded(self) -> bool:
        """Whether the texts are at hand padded."""
        return self._padded is not None

    @property
    def packed(self) -> TokenEmbeddings:
        """The texts without padding (torch inside)."""
        if self._packed is None and self.listed is not None:
            self._packed = TokenEmbeddings.from_list(self.listed)
        elif self._packed is None:
            self._packed = _without_padding(*self.padded)
        return self._packed

    @property
    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors ``(n, tokens, dim)`` and bool mask ``(n, tokens)``."""
        if self._padded is None:
            self._padded = self.packed.pad()  # type: ignore[assignment]
        return self._padded  # type: ignore[return-value]


def read_sides(queries: Any, documents: Any, queries_mask: Any, documents_mask: Any) -> tuple[Side, Side]:
    """Read the queries and the documents of a scoring call.

    `queries`: ``(n, tokens, dim)``, a list of 2-D matrices, one 2-D matrix or `TokenEmbeddings`. `documents`: the same
    forms; or groups, ``(n, group, tokens, dim)`` or a list of lists or of 3-D arrays. `queries_mask`,
    `documents_mask`: True or 1 where a token counts; or None. Returns: the queries and the documents, of one dim.
    """
    left = _read("queries", queries, queries_mask)
    right = _read_documents(documents, documents_mask)
    if left.dim != right.dim and len(left) and len(right):
        raise EmbeddingsError(
            f"the queries have dim {left.dim}, the documents {right.dim}; encode both with the same model."
        )
    return left, right


def check_pairs(queries: Side, documents: Side) -> None:
    """Raise `EmbeddingsError` unless there are as many documents as queries."""
    if len(queries) != len(documents):
        raise EmbeddingsError(f"received {len(queries)} queries and {len(documents)} documents; expected pairs.")


def documents_per_query(queries: Side, documents: Side) -> int:
    """Return how many documents each query has; raise `EmbeddingsError` unless all have the same number."""
    if documents.group is not None:
        n = documents.group
    else:
        n = len(documents) // max(len(queries), 1)
    if n * len(queries) != len(documents):
        raise EmbeddingsError(
            f"received {len(queries)} queries and {len(documents)} documents"
            + (f" in groups of {documents.group}" if documents.group else "")
            + "; expected (b, n, tokens, dim) documents for b queries, the same n for each."
        )
    return n


def _read_documents(documents: Any, mask: Any) -> Side:
    if _is_grouped(documents):
        sizes = {len(group) for group in documents}
        if len(sizes) > 1:
            raise EmbeddingsError(f"received groups of {sorted(sizes)} documents; every query needs equally many.")
        side = _read("documents", [item for group in documents for item in group], mask)
        side.group = sizes.pop()
        return side
    if getattr(documents, "ndim", 0) == 4:
        vectors = as_tensor(documents)
        if mask is None:
            flat = None
        else:
            flat = as_tensor(as_booleans(mask)).flatten(0, 1)
        side = _read("documents", vectors.flatten(0, 1), flat)
        side.group = int(vectors.shape[1])
        return side
    return _read("documents", documents, mask)


def _read(name: str, value: Any, mask: Any) -> Side:
    if isinstance(value, TokenEmbeddings):
        if mask is not None:
            raise EmbeddingsError(f"received packed {name} and a mask; packed embeddings hold real tokens only.")
        return Side(name, packed=value.to("torch"))
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim in (2, 3):
        _check_padded(name, value)
        vectors = as_tensor(value).resolve_neg()  # see `TokenEmbeddings`
        return Side(name, padded=_read_padded(name, vectors if vectors.ndim == 3 else vectors[None], mask))
    if isinstance(value, (list, tuple)):
        listed = as_matrices(value)
        if listed and not is_tensor(listed[0]):
            listed = [as_tensor(matrix) for matrix in listed]
        if mask is not None:
            listed = _apply_masks(name, listed, mask)
        if listed:
            return Side(name, listed=listed)
        return Side(name, packed=TokenEmbeddings(torch.zeros(0, 0), [0]))
    raise EmbeddingsError(
        f"received {name} of type {type(value).__name__} and shape {getattr(value, 'shape', None)}; expected a padded "
        "(n, tokens, dim) array or tensor with a mask, a list of (tokens, dim) matrices, or TokenEmbeddings."
    )


def _check_padded(name: str, vectors: Any) -> None:
    """Raise an error for what no engine can multiply, or only as other numbers."""
    if dtype_name(vectors) not in _FLOATS:
        raise EmbeddingsError(
            f"received {name} of dtype {vectors.dtype}; expected one of {', '.join(_FLOATS)} in the byte order of this "
            "machine, or int8 with scales, as TokenEmbeddings."
        )


def _read_padded(name: str, vectors: torch.Tensor, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if mask is None:
        return vectors, _not_all_zero(vectors)
    mask = as_tensor(as_booleans(mask)).to(vectors.device)
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != vectors.shape[:2]:
        raise EmbeddingsError(
            f"received {name} of shape {tuple(vectors.shape)} and a mask of shape {tuple(mask.shape)}; "
            "expected (n, tokens, dim) and (n, tokens)."
        )
    return vectors, mask


def _not_all_zero(vectors: torch.Tensor) -> torch.Tensor:
    """Return the mask of an input without one: rows of zeros are padding, as in sentence-transformers."""
    mask = vectors[..., :1].any(dim=-1)
    unclear = ~mask  # only these rows have to be read to the end
    if bool(unclear.any()):
        mask[unclear] = vectors[unclear].any(dim=-1)
    return mask


def _without_padding(vectors: torch.Tensor, mask: torch.Tensor) -> TokenEmbeddings:
    if bool(mask.all()):  # no padding, so no copy
        n, tokens, _ = vectors.shape
        return TokenEmbeddings(vectors.flatten(0, 1), np.arange(n + 1) * tokens)
    return TokenEmbeddings.from_padded(vectors, mask)


def _apply_masks(name: str, matrices: list[torch.Tensor], masks: Any) -> list[torch.Tensor]:
    """Drop the masked tokens of a list of matrices; a mask may be longer than its matrix."""
    keeps = [as_tensor(as_booleans(mask)) for mask in masks]
    pairs = zip(matrices, keeps, strict=True)
    return [matrix[keep[: len(matrix)].to(matrix.device)] for matrix, keep in pairs]


def _is_grouped(documents: Any) -> bool:
    """Whether these are lists of matrices, a list for each query, or arrays ``(n, tokens, dim)``, one for each."""
    listed = isinstance(documents, (list, tuple)) and bool(documents)
    if listed and all(getattr(group, "ndim", 0) == 3 for group in documents):
        return True
    return (
        listed and all(isinstance(group, (list, tuple)) for group in documents) and all(map(_is_matrix, documents[0]))
    )


def _is_matrix(item: Any) -> bool:
    try:
        return bool(np.ndim(item) == 2)
    except (TypeError, ValueError):  # lists of unequal length
        return False


class Engine(ABC):
    """An implementation of MaxSim; `name` is the value of ``backend=`` that selects it."""

    name: str

    @abstractmethod
    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Return why the engine cannot score these inputs, as the end of a sentence; None if it can."""

    @abstractmethod
    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score every query against every document: ``(q, d)`` float32."""

    @abstractmethod
    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score each of ``b`` queries against its own ``n`` of ``b * n`` documents: ``(b, n)`` float32."""


def needs_gradient(queries: Side, documents: Side) -> bool:
    """Whether the scores need a gradient."""
    return torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)


_Returned = TypeVar("_Returned")


def outside_graphs(function: Callable[..., _Returned]) -> Callable[..., _Returned]:
    """Make a function that calls kernels run uncompiled, inside compiled models too.

    `torch.compiler.disable` imports torch's compiler, which takes 130 MB and a second even in a program that only
    searches an index, and a call through it takes as long as a small one does. So it is called only in a graph.
    """

    @cache
    def disabled() -> Any:
        return torch.compiler.disable(function)

    @wraps(function)
    def call(*args: Any, **options: Any) -> _Returned:
        if not torch.compiler.is_compiling():
            return function(*args, **options)
        result: _Returned = disabled()(*args, **options)
        return result

    return call
