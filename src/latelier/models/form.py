"""What `encode` gives back: a list of matrices, one matrix, or `TokenEmbeddings`, in which numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latelier.arrays import DTYPES
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError

__all__ = ["Form"]


@dataclass(frozen=True)
class Form:
    """The form of the result that a call of `encode` asks for.

    Parameters
    ----------
    packed
        `TokenEmbeddings` rather than a list.
    precision
        Name of a dtype; None leaves the numbers as computed.
    numpy
        Arrays rather than tensors.
    raw
        The features of sentence-transformers, which have no form of ours.

    Raises
    ------
    InvalidArgumentError
        If the precision is unknown, or the form cannot hold it.
    """

    packed: bool = False
    precision: str | None = None
    numpy: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        if self.precision is None:
            return
        if not isinstance(self.precision, str) or self.precision not in DTYPES:
            raise InvalidArgumentError(
                f"received precision={self.precision!r}; expected one of {', '.join(map(repr, DTYPES))}, or None."
            )
        if self.raw:
            raise InvalidArgumentError(
                f"received precision={self.precision!r} with output_value=None; features are given as they are."
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

    def pack(self, encoded: Any) -> TokenEmbeddings:
        """Join matrices, unless they are packed already."""
        return encoded if isinstance(encoded, TokenEmbeddings) else TokenEmbeddings.from_list(encoded)

    def cast(self, matrix: Any) -> Any:
        """Convert the numbers of one matrix, tensor or array."""
        if self.precision is None or self.precision == "int8":
            return matrix
        return matrix.to(DTYPES[self.precision]) if isinstance(matrix, Tensor) else matrix.astype(self.precision)

    def give(self, encoded: Any, dim: int, single: bool) -> Any:
        """Return what was encoded, a list of matrices or `TokenEmbeddings`, in this form.

        Parameters
        ----------
        encoded
            The embeddings of all texts.
        dim
            Their dimension, for no texts at all.
        single
            Whether one text was given rather than a list.
        """
        if self.raw:
            return encoded[0] if single else encoded
        if self.packed:
            if not len(encoded):
                encoded = TokenEmbeddings(torch.zeros(0, dim), [0])
            packed = self.pack(encoded)
            packed = packed if self.precision is None else packed.to(self.precision)
            return packed.to("numpy") if self.numpy else packed
        rows = [self.cast(self._kind(matrix)) for matrix in encoded]
        return rows[0] if single else rows

    def _kind(self, matrix: Any) -> Any:
        if not self.numpy or isinstance(matrix, np.ndarray):
            return matrix
        return (matrix.float() if matrix.dtype == torch.bfloat16 else matrix).cpu().numpy()
