"""`FixedDimensionalEncodings`: MUVERA's vectors, whose inner product approximates MaxSim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from latelier.indexes.single_vectors.base import SingleVectors
from latelier.indexes.single_vectors.random_matrices import RandomBits
from latelier.utils.checks import check_count

__all__ = ["FixedDimensionalEncodings"]

# 256 buckets, more than most documents have tokens. Filling the empty ones takes 4 ** k_sim steps per repetition.
_MOST_BITS = 8
# The random matrices of this many encodings are kept; those of the default take 1 MB for 384 dimensions.
_KEPT = 8
# Repetitions are added up together until they have this many numbers: 512 KiB as float64, which stay in the cache.
_GROUP_NUMBERS = 1 << 16


@dataclass(frozen=True)
class FixedDimensionalEncodings(SingleVectors):
    """Fixed dimensional encodings of MUVERA (Dhulipala et al., 2024, https://arxiv.org/abs/2405.19504).

    Each of `r_reps` repetitions cuts the space of token vectors into ``2 ** k_sim`` buckets by the signs of `k_sim`
    random projections (SimHash). With the tokens ``D_b`` of a document and ``Q_b`` of a query in bucket ``b``, and a
    random projection ``S`` to `d_proj` dimensions,

        document_b = S mean(D_b)        query_b = S sum(Q_b) / r_reps

    are the parts of both vectors, for all repetitions and buckets. Their inner product is an estimate of MaxSim: the
    tokens most similar to a query token are likely to be in its bucket. A bucket without a token of the document takes
    the mean of the tokens whose buckets differ from it in the fewest bits; empty buckets of a query stay 0. The entries
    of ``S`` are ``+-1 / sqrt(d_proj)``, so that ``<S q, S d>`` is ``<q, d>`` on average.

    Parameters
    ----------
    k_sim
        Random projections per repetition, 0 to 8; with 0, all tokens are in one bucket.
    d_proj
        Dimension to which token vectors are projected; those of at most `d_proj` dimensions are kept as they are. The
        defaults are the paper's for vectors of 128 dimensions; those of more need a larger `d_proj`.
    r_reps
        Number of repetitions.
    d_final
        Dimension to which the whole vectors are projected by a Count-Sketch (Charikar et al., 2002): the inner product
        stays the same on average. None: no such projection.
    seed
        Seed of all random numbers. Documents and queries must be encoded with the same parameters and seed.

    Raises
    ------
    InvalidArgumentError
        If a parameter is out of range.

    Notes
    -----
    Departures from the paper: its inner products are `r_reps` times ours, and are estimates of MaxSim after division;
    it fills an empty bucket with one of the nearest tokens, at random, and we with the mean of all of them, which does
    not depend on the order of tokens; its random projections are normal, and ours are sums of random signs (see
    `latelier.indexes.single_vectors.random_matrices`), so that the matrices are the same on every machine. The vectors
    are the same up to rounding, unless rounding moves a token that is on the border of two buckets.

    Examples
    --------
    >>> import numpy as np
    >>> encodings = FixedDimensionalEncodings(k_sim=2, d_proj=8, r_reps=10)
    >>> encodings.size(128)
    320
    >>> query = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> near = np.array([[0.8, 0.6, 0.0], [0.0, 0.8, 0.6]])  # MaxSim 1.6
    >>> far = np.array([[0.0, 0.0, 1.0], [0.0, 0.6, -0.8]])  # MaxSim 0.6
    >>> one = encodings.encode_queries([query])
    >>> (one @ encodings.encode_documents([near, far]).T).round(2)
    array([[1.37, 0.33]], dtype=float32)
    """

    k_sim: int = 5
    d_proj: int = 16
    r_reps: int = 20
    d_final: int | None = None
    seed: int = 0

    kind: ClassVar[str] = "fde"

    def __post_init__(self) -> None:
        checked = {
            "k_sim": check_count("k_sim", self.k_sim, 0, _MOST_BITS),
            "d_proj": check_count("d_proj", self.d_proj),
            "r_reps": check_count("r_reps", self.r_reps),
            "d_final": check_count("d_final", self.d_final, optional=True),
            "seed": check_count("seed", self.seed, 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # an int, also for one of numpy, which is not JSON

    def size(self, dim: int) -> int:
        """Return `d_final`, or ``r_reps * 2 ** k_sim * min(d_proj, dim)`` if it is None."""
        return self.d_final or self.r_reps * 2**self.k_sim * min(self.d_proj, dim)

    def _documents(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        sums, counts = self._add_up(vectors, offsets)
        _fill_empty(sums, counts, self.k_sim)
        sums /= counts
        return self._finish(sums, vectors.shape[1])

    def _queries(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        sums, _ = self._add_up(vectors, offsets)
        sums /= self.r_reps
        return self._finish(sums, vectors.shape[1])

    def _add_up(self, vectors: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add up the projected tokens in each bucket.

        Returns the sums ``(texts, r_reps, buckets, d_proj)`` and the numbers of tokens, with 1 as the last axis.
        """
        matrices = _draw_matrices(vectors.shape[1], self)
        tokens, texts, buckets = len(vectors), len(offsets) - 1, 2**self.k_sim
        products = vectors @ matrices.projections
        signs = products[:, : self.r_reps * self.k_sim] > 0
        codes = signs.reshape(tokens, self.r_reps, self.k_sim) @ (1 << np.arange(self.k_sim))
        if vectors.shape[1] > self.d_proj:
            values = products[:, self.r_reps * self.k_sim :].reshape(tokens, self.r_reps, self.d_proj)
        else:
            values = np.broadcast_to(vectors[:, None], (tokens, self.r_reps, vectors.shape[1]))
        width = values.shape[2]
        sums = np.empty((texts, self.r_reps, buckets, width))
        counts = np.empty((texts, self.r_reps, buckets, 1))
        text = np.repeat(np.arange(texts), np.diff(offsets))[:, None]
        group = max(1, _GROUP_NUMBERS // (tokens * width))
        for first in range(0, self.r_reps, group):
            own = slice(first, min(first + group, self.r_reps))
            reps = own.stop - own.start
            # The bucket of each token in each repetition, numbered over all texts: (tokens, reps).
            bucket = (text * reps + np.arange(reps)) * buckets + codes[:, own]
            place = bucket[:, :, None] * width + np.arange(width)
            # bincount adds up in float64, and is several times faster than `np.add.at`.
            total = np.bincount(place.ravel(), values[:, own].ravel(), sums[:, own].size)
            sums[:, own] = total.reshape(texts, reps, buckets, width)
            number = np.bincount(bucket.ravel(), minlength=counts[:, own].size)
            counts[:, own] = number.reshape(texts, reps, buckets, 1)
        return sums, counts

    def _finish(self, parts: np.ndarray, dim: int) -> np.ndarray:
        """Join the parts ``(texts, r_reps, buckets, width)`` of each vector, and project them to `d_final`."""
        whole = parts.reshape(len(parts), -1)
        if self.d_final is None:
            return whole
        matrices = _draw_matrices(dim, self)
        whole *= matrices.sketch_signs
        rows = np.arange(len(whole))[:, None] * self.d_final
        sketched = np.bincount((rows + matrices.sketch_places).ravel(), whole.ravel(), len(whole) * self.d_final)
        return sketched.reshape(len(whole), self.d_final)


class _Matrices(NamedTuple):
    """The random numbers of an encoding.

    `projections` has the columns of the SimHash, ``(dim, r_reps * k_sim)``, then those of the projection to `d_proj`
    dimensions, ``(dim, r_reps * d_proj)``, if there is one. Number ``i`` of a whole vector is multiplied by
    ``sketch_signs[i]`` and added to number ``sketch_places[i]`` of the sketch.
    """

    projections: np.ndarray
    sketch_signs: np.ndarray
    sketch_places: np.ndarray


@lru_cache(_KEPT)
def _draw_matrices(dim: int, encodings: FixedDimensionalEncodings) -> _Matrices:
    bits = RandomBits(encodings.seed)
    projections = bits.normals((dim, encodings.r_reps * encodings.k_sim))
    if dim > encodings.d_proj:
        signs = bits.signs((dim, encodings.r_reps * encodings.d_proj))
        scale = np.float32(1 / np.sqrt(encodings.d_proj))
        projections = np.concatenate([projections, signs * scale], axis=1)
    whole = 0 if encodings.d_final is None else replace(encodings, d_final=None).size(dim)
    places = bits.words(whole) % np.uint64(encodings.d_final or 1)
    return _Matrices(projections, bits.signs((whole,)), places.astype("int64"))


def _fill_empty(sums: np.ndarray, counts: np.ndarray, k_sim: int) -> None:
    """Give each empty bucket the tokens of the nearest buckets that are not empty, by the number of differing bits.

    `sums` ``(documents, r_reps, buckets, width)`` and `counts` ``(documents, r_reps, buckets, 1)`` are overwritten.
    """
    empty = counts == 0
    own_sums, own_counts = sums.copy(), counts.copy()
    buckets = np.arange(2**k_sim)
    bits = (buckets[:, None] >> np.arange(k_sim)) & 1
    different = (bits[:, None] != bits).sum(axis=2)
    for distance in range(1, k_sim + 1):
        if not empty.any():
            return
        near = (different == distance).astype("float64")
        np.copyto(sums, near @ own_sums, where=empty)
        np.copyto(counts, near @ own_counts, where=empty)
        empty = counts == 0
