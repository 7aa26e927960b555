"""Coded documents to call kernels with, and what their codes stand for by a naive loop."""

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.store.segments import Segment

DIMS = [1, 31, 64, 100, 130]
LENGTHS = np.array([1, 2, 7, 8, 9, 16, 33, 5])


class CodedSample:
    """Random documents, and an order other than that in memory to read them in."""

    def __init__(self, dim, bits=8, seed=0):
        rng = np.random.default_rng(seed)
        self.vectors = [rng.standard_normal((n, dim)).astype("float32") for n in LENGTHS]
        self.codec = Codec(bits, dim)
        self.arrays = self.codec.encode(TokenEmbeddings.from_list(self.vectors))
        numbers = np.arange(len(LENGTHS))
        segment = Segment.build(numbers, numbers.tolist(), LENGTHS, self.arrays)
        self.documents = self.codec.locate(segment)
        self.chosen = np.array([6, 0, 3, 5, 1, 7, 2, 4])

    def decoded(self):
        """The vectors that the codes stand for, computed number by number from what is stored."""
        bits, dim = self.codec.bits, self.codec.dim
        scales = (self.arrays["scales"].astype("uint32") << 15).view("float32").astype("float64")
        rows = []
        for t in range(int(LENGTHS.sum())):
            row = []
            for i in range(dim):
                if bits == 8:
                    number = int(self.arrays["codes"][t, i]) - 128
                else:
                    code = bit(self.arrays["signs"][t], i)
                    for plane in range(bits - 1):
                        code = 2 * code + bit(self.arrays["codes"][t, plane], i)
                    number = 2 * code - (2**bits - 1)
                row.append(number * scales[t])
            rows.append(row)
        return np.split(np.array(rows), np.cumsum(LENGTHS)[:-1])


def bit(words, i):
    return int(words[i // 32]) >> (i % 32) & 1
