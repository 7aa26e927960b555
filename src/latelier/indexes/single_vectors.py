"""One vector for each document, by which other engines find candidates: means, and fixed-dimensional encodings.

They are computed with integers from the words of the generator PCG64 (`numpy.random.PCG64.random_raw`), whose stream
numpy guarantees (NEP 19). The methods of `numpy.random.Generator` may return other numbers in another version, and
logarithms and cosines other last digits on another processor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings, warn_of_zero_rows, without_zero_rows
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.utils.batching import split_by_rows
from latelier.utils.checks import check_count, short

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
        if isinstance(embeddings, TokenEmbeddings):
            packed = embeddings
        else:
            packed = TokenEmbeddings.from_list(embeddings)
        without = np.flatnonzero(packed.lengths == 0)
        if without.size:
            raise EmbeddingsError(f"{name} {without[0]} has no token; every text needs at least one.")
        out = np.empty((len(packed), self.size(packed.dim)), dtype="float32")
        dropped = 0
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
                if name == "document":  # where padding would move the means of buckets
                    block, count = without_zero_rows(block, partial(_name_of_document, first))
                    dropped += count
                out[first:last] = encode(block.vectors, block.offsets)
            finite = np.isfinite(out[first:last]).all(axis=1)
            if not finite.all():
                raise EmbeddingsError(
                    f"{name} {first + int(np.argmin(finite))} has numbers too large to add up in float32; normalise "
                    "the vectors."
                )
        warn_of_zero_rows(dropped)
        return out


def _name_of_document(first: int, position: int) -> str:
    return f"document {first + position}"


@dataclass(frozen=True)
class MeanVectors(SingleVectors):
    """The mean of a text's token vectors, normalised to length 1; documents and queries alike.

    The inner product of two of them is the cosine of the means. A mean of length 0 stays 0.

    Examples
    --------
    >>> import numpy as np
    >>> document = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> MeanVectors().encode_documents([document]).round(3)
    array([[0.894, 0.447]], dtype=float32)
    """

    kind: ClassVar[str] = "mean"

    def size(self, dim: int) -> int:
        """Return `dim`: a mean has the dimension of the token vectors."""
        return dim

    def _documents(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        # The sum has the direction of the mean. A product with a matrix of zeros and ones adds up the rows of a block
        # ten times as fast as `np.add.reduceat`.
        text = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        sums = (np.arange(len(offsets) - 1)[:, None] == text).astype("float32") @ vectors
        # In float64: the squares of 1e30 and of 1e-30 are beyond float32.
        lengths = np.linalg.norm(sums.astype("float64"), axis=1, keepdims=True)
        return np.divide(sums, lengths, out=sums, where=lengths > 0)

    def _queries(self, vectors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return self._documents(vectors, offsets)


# Random signs in each normal entry. Their sum has the moments of a normal number up to the third, and an excess
# kurtosis of -2 / 64; a product with a token vector adds up dim of them and is nearer to normal still.
_SIGNS = 64


class RandomBits:
    """Random matrices from a seed, one after the other."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.PCG64(seed)

    def words(self, count: int) -> np.ndarray:
        """Return ``(count,)`` words, uniform in the range of uint64."""
        return np.asarray(self._generator.random_raw(count), dtype="<u8")

    def signs(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an int8 array of -1 and 1: the bits of the next words, lowest first."""
        count = int(np.prod(shape))
        bits = np.unpackbits(self.words(-(-count // 64)).view("uint8"), count=count, bitorder="little")
        return (2 * bits.astype("int8") - 1).reshape(shape)

    def normals(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a float32 array of nearly normal numbers with mean 0 and variance 1: sums of 64 signs over 8."""
        return self.signs((*shape, _SIGNS)).sum(axis=-1, dtype="float32") / np.float32(np.sqrt(_SIGNS))


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
    center
        A vector that is subtracted from every token, of documents and queries: see `centered`. None: none.

    Raises
    ------
    InvalidArgumentError
        If a parameter is out of range.

    Notes
    -----
    Departures from the paper: its inner products are `r_reps` times ours, and are estimates of MaxSim after division;
    it fills an empty bucket with one of the nearest tokens, at random, and we with the mean of all of them, which does
    not depend on the order of tokens; its random projections are normal, and ours are sums of random signs (see
    `latelier.indexes.single_vectors`), so that the matrices are the same on every machine. The vectors
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
    center: tuple[float, ...] | None = None

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
        if self.center is not None:
            center = np.asarray(self.center, dtype="float32")
            if center.ndim != 1 or not np.isfinite(center).all():
                raise InvalidArgumentError(f"received center={short(self.center)}; give finite numbers, one per dim.")
            object.__setattr__(self, "center", tuple(center.tolist()))

    def centered(self, embeddings: TokenEmbeddings | Sequence[Any]) -> FixedDimensionalEncodings:
        """Return the same encodings with the mean token of some documents as their center.

        The tokens of many models lie in a narrow cone, where most random projections have one sign for all of them: a
        few buckets hold everything. Without their mean they spread over all buckets. The order of documents by MaxSim
        hardly depends on it: of the product with a token, ``<q - m, d - m>`` lacks ``<m, d>``, which is nearly the same
        for all.

        Parameters
        ----------
        embeddings
            A sample of the documents, as for `encode_documents`: some hundreds suffice. Encode all documents and
            queries with the result, which `to_dict` stores.

        Returns
        -------
        FixedDimensionalEncodings
            With `center` set.

        Raises
        ------
        EmbeddingsError
            If there is no token, or one holds NaN or infinity.

        Examples
        --------
        >>> import numpy as np
        >>> document = np.array([[1.0, 0.0], [0.5, 1.0]])
        >>> FixedDimensionalEncodings(r_reps=2).centered([document]).center
        (0.75, 0.5)
        """
        if isinstance(embeddings, TokenEmbeddings):
            packed = embeddings
        else:
            packed = TokenEmbeddings.from_list(embeddings)
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = packed.to("numpy").to("float32").vectors
            if len(vectors):
                center = vectors.mean(axis=0, dtype="float64")
            else:
                center = np.array([np.nan])
        if not np.isfinite(center).all():
            raise EmbeddingsError("the tokens have no finite mean; give documents with finite numbers.")
        return replace(self, center=tuple(center.tolist()))

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
        """Return the sums of each bucket ``(texts, r_reps, buckets, d_proj)``, and of how many tokens."""
        if self.center is not None:
            if len(self.center) != vectors.shape[1]:
                raise EmbeddingsError(
                    f"received tokens of {vectors.shape[1]} dims, but the center has {len(self.center)}; encode with "
                    "the model of the center."
                )
            vectors = vectors - np.array(self.center, dtype="float32")
        matrices = _draw_matrices(vectors.shape[1], replace(self, center=None))
        tokens = len(vectors)
        texts = len(offsets) - 1
        buckets = 2**self.k_sim
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
        matrices = _draw_matrices(dim, replace(self, center=None))
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
    if encodings.d_final is None:
        whole = 0
    else:
        whole = replace(encodings, d_final=None).size(dim)
    places = bits.words(whole) % np.uint64(encodings.d_final or 1)
    return _Matrices(projections, bits.signs((whole,)), places.astype("int64"))


def _fill_empty(sums: np.ndarray, counts: np.ndarray, k_sim: int) -> None:
    """Give each empty bucket the tokens of the nearest buckets that are not empty, by the number of differing bits.

    `sums` ``(documents, r_reps, buckets, width)`` and `counts` ``(documents, r_reps, buckets, 1)`` are overwritten.
    """
    empty = counts == 0
    own_sums = sums.copy()
    own_counts = counts.copy()
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


_KINDS: dict[str, type[SingleVectors]] = {each.kind: each for each in (MeanVectors, FixedDimensionalEncodings)}


def single_vectors_from_dict(settings: Mapping[str, Any]) -> SingleVectors:
    """Return the `SingleVectors` of a dict that `SingleVectors.to_dict` returned.

    Parameters
    ----------
    settings
        The kind and all parameters.

    Returns
    -------
    SingleVectors
        Equal to the one that the dict came from.

    Raises
    ------
    InvalidArgumentError
        If this version knows no such kind, or not these parameters of it.

    Examples
    --------
    >>> single_vectors_from_dict({"kind": "mean"})
    MeanVectors()
    """
    try:
        parameters = dict(settings)
        return _KINDS[parameters.pop("kind")](**parameters)
    except (KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"received {short(settings)}, which this version of latelier does not know ({error}); expected what "
            f"SingleVectors.to_dict returns, of kind {' or '.join(_KINDS)}. Upgrade latelier, if a later one wrote it."
        ) from error
