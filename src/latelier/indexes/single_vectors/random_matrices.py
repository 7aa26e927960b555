"""Random matrices that are the same on every machine and with every version of numpy.

They are computed with integers from the words of the generator PCG64 (`numpy.random.PCG64.random_raw`), whose stream
numpy guarantees (NEP 19). The methods of `numpy.random.Generator` may return other numbers in another version, and
logarithms and cosines other last digits on another processor.
"""

from __future__ import annotations

import numpy as np

__all__ = ["RandomBits"]

# Random signs in each normal entry. Their sum has the moments of a normal number up to the third, and an excess
# kurtosis of -2 / 64; a product with a token vector adds up dim of them and is nearer to normal still.
_SIGNS = 64


class RandomBits:
    """Random matrices from a seed, one after the other.

    Parameters
    ----------
    seed
        At least 0.

    Examples
    --------
    >>> bits = RandomBits(0)
    >>> bits.signs((2, 4)).tolist()
    [[1, 1, 1, 1], [1, -1, 1, -1]]
    """

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
