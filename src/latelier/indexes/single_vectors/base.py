"""`SingleVectors`: the contract of what turns the token vectors of a text into one vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.utils.ragged import split_by_rows

__all__ = ["SingleVectors"]

# A block has at most this many tokens, and at most this many numbers of single vectors: 8 MiB as float64, in which they
# are added up.
_BLOCK_TOKENS = 1 << 12
_BLOCK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class SingleVectors(ABC):
    """One vector per document and one per query; the larger their inner product, the higher the MaxSim expected.

    An engine for single vectors finds candidates by the inner product, and MaxSim of the token vectors orders them. A
    subclass is a frozen dataclass of its parameters, which are numbers: two with equal parameters give equal vectors.

    Examples
    --------
    >>> from latelier.indexes import FixedDimensionalEncodings, MeanVectors
    >>> isinstance(MeanVectors(), SingleVectors), MeanVectors().size(128)
    (True, 128)
    >>> FixedDimensionalEncodings(k_sim=3, d_proj=8, r_reps=20).size(128)
    1280
    """

    kind: ClassVar[str]

    @abstractmethod
    def size(self, dim: int) -> int:
        """Return the dimension of the single vectors of texts with token vectors of dimension `dim`."""

    def encode_documents(self, embeddings: TokenEmbeddings | Sequence[Any]) -> np.ndarray:
        """Return one vector per document.

        Parameters
        ----------
        embeddings
            `TokenEmbeddings`, or a list of ``(tokens, dim)`` matrices; numpy or torch, of any supported dtype.

        Returns
        -------
        numpy.ndarray
            ``(documents, size(dim))`` float32.

        Raises
        ------
        EmbeddingsError
            If a document has no token, holds NaN or infinity, or is not a matrix of numbers.
        """
        return self._encode(embeddings, "document", self._documents)

    def encode_queries(self, embeddings: TokenEmbeddings | Sequence[Any]) -> np.ndarray:
        """Return one vector per query.

        Parameters
        ----------
        embeddings
            As for `encode_documents`.

        Returns
        -------
        numpy.ndarray
            ``(queries, size(dim))`` float32.

        Raises
        ------
        EmbeddingsError
            As for `encode_documents`.
        """
        return self._encode(embeddings, "query", self._queries)

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the parameters as a JSON object; `single_vectors_from_dict` is the inverse."""
        return {"kind": self.kind, **asdict(self)}

    @abstractmethod
    def _documents(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Encode documents: float32 ``(tokens, dim)`` vectors and ``(documents + 1,)`` offsets, each with a token."""

    @abstractmethod
    def _queries(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Encode queries, given like documents."""

    def _encode(
        self,
        embeddings: TokenEmbeddings | Sequence[Any],
        name: str,
        encode: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        packed = embeddings if isinstance(embeddings, TokenEmbeddings) else TokenEmbeddings.from_list(embeddings)
        without = np.flatnonzero(packed.lengths == 0)
        if without.size:
            raise EmbeddingsError(f"{name} {without[0]} has no token; every text needs at least one.")
        out = np.empty((len(packed), self.size(packed.dim)), dtype="float32")
        most = max(1, _BLOCK_NUMBERS // max(1, out.shape[1]))
        for first, last in split_by_rows(packed.offsets, _BLOCK_TOKENS, most):
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
                block = packed[first:last].to("numpy").to("float32")
                finite = np.isfinite(block.vectors).all(axis=1)
                if not finite.all():
                    at = first + int(np.searchsorted(block.offsets, np.argmin(finite), side="right")) - 1
                    raise EmbeddingsError(
                        f"{name} {at} holds NaN, infinity or a number beyond float32; check the model that encoded it."
                    )
                out[first:last] = encode(block.vectors, block.offsets)
            finite = np.isfinite(out[first:last]).all(axis=1)
            if not finite.all():
                raise EmbeddingsError(
                    f"{name} {first + int(np.argmin(finite))} has numbers too large to add up in float32; normalise "
                    "the vectors."
                )
        return out
