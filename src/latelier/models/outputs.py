"""What `encode` returns: a list of tensors or arrays, or `TokenEmbeddings`; pooled, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latelier.arrays import DTYPES, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models.pooling import Pooling, pool_tokens
from latelier.utils import check_choice, check_flag

__all__ = ["OutputForm"]

_UNPOOLED = Pooling()


@dataclass(frozen=True)
class OutputForm:
    """The form in which a call of `encode` returns token vectors.

    Parameters
    ----------
    packed
        `TokenEmbeddings` rather than a list.
    precision
        Name of a dtype; None keeps the dtype that the model computed in.
    numpy
        Arrays rather than tensors.
    raw
        sentence-transformers' own features (``output_value=None``), returned unchanged.
    pooling
        How to pool the vectors; with weights from the encoder's attention, the encoding loop has pooled them already.

    Raises
    ------
    InvalidArgumentError
        If `packed` is not a flag, the precision is unknown, or the form cannot hold it.
    """

    packed: bool = False
    precision: str | None = None
    numpy: bool = False
    raw: bool = False
    pooling: Pooling = _UNPOOLED

    def __post_init__(self) -> None:
        check_flag("packed", self.packed)
        if self.raw and self.packed:
            raise InvalidArgumentError("received packed=True with output_value=None; features are returned unchanged.")
        if self.precision is None:
            return
        check_choice("precision", self.precision, DTYPES, optional=True)
        if self.raw:
            raise InvalidArgumentError(
                f"received precision={self.precision!r} with output_value=None; features are returned unchanged."
            )
        if self.precision == "int8" and not self.packed:
            raise InvalidArgumentError(
                "precision='int8' needs packed=True: the scale of each token is kept beside the vectors, and a list "
                "of matrices has no place for it."
            )
        if self.precision == "bfloat16" and self.numpy:
            raise InvalidArgumentError(
                "numpy has no bfloat16; ask for precision='float16' or 'float32', or for tensors "
                "(convert_to_numpy=False)."
            )

    @property
    def works_on_packed(self) -> bool:
        """Whether `convert` needs `TokenEmbeddings`; encoding then returns them without a detour through a list."""
        return self.packed or self._pools

    @property
    def encoded_precision(self) -> str | None:
        """The precision to encode in: None with pooling, which needs the vectors as computed."""
        return None if self._pools else self.precision

    @property
    def _pools(self) -> bool:
        return self.pooling.is_on and not self.pooling.uses_attention

    def convert(self, encoded: Any, dim: int, single: bool) -> Any:
        """Return the embeddings of all texts in this form.

        Parameters
        ----------
        encoded
            A list of ``(tokens, dim)`` tensors or arrays, or `TokenEmbeddings`.
        dim
            Their dimension, needed where there are no texts.
        single
            Whether one text was given rather than a list.
        """
        if self._pools and len(encoded):
            encoded = self._pool(_join(encoded))
        if self.raw:
            return encoded[0] if single else encoded
        if self.packed:
            if not len(encoded):
                encoded = TokenEmbeddings(torch.zeros(0, dim), [0])
            joined = _join(encoded)
            joined = joined if self.precision is None else joined.to(self.precision)
            return joined.to("numpy") if self.numpy else joined
        rows = [self._cast(row) for row in encoded]
        return rows[0] if single else rows

    def convert_window(self, encoded: TokenEmbeddings) -> TokenEmbeddings:
        """Return a window of a stream, encoded in `encoded_precision`, pooled and in this precision."""
        if not self._pools:
            return encoded
        pooled = self._pool(encoded)
        return pooled if self.precision is None else pooled.to(self.precision)

    def _pool(self, encoded: TokenEmbeddings) -> TokenEmbeddings:
        how = self.pooling
        return pool_tokens(encoded, how.pool_factor, num_vectors=how.num_vectors, protected_tokens=how.protected_tokens)

    def _cast(self, row: Any) -> Any:
        """Convert one tensor or array to the wanted kind and precision."""
        if self.numpy and not isinstance(row, np.ndarray):
            row = (row.float() if row.dtype == torch.bfloat16 else row).cpu().numpy()
        if self.precision is None or self.precision == "int8":
            return row
        return row.to(torch_dtype(self.precision)) if isinstance(row, Tensor) else row.astype(self.precision)


def _join(encoded: Any) -> TokenEmbeddings:
    return encoded if isinstance(encoded, TokenEmbeddings) else TokenEmbeddings.from_list(encoded)
