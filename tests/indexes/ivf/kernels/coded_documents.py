"""Coded documents to call kernels with, and what their codes stand for by a naive loop."""

from dataclasses import replace

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.store.segments import Segment

DIMS = [1, 31, 64, 100, 130]
# The sizes of the integers of the codes; at 2 and 1 bits, in standard deviations of what a cell leaves.
SIZES = {4: (6, 18, 30, 44, 58, 75, 96, 127), 2: (0.511, 1.706), 1: (1,)}
LENGTHS = np.array([1, 2, 7, 8, 9, 16, 33, 5])


def random_axis(dim, seed=9):
    axis = np.random.default_rng(seed).standard_normal(dim)
    return (axis / np.linalg.norm(axis)).astype("float32")


class CodedSample:
    """Random documents along an axis, and an order other than that in memory to read them in."""

    def __init__(self, dim, bits=8, seed=0):
        rng = np.random.default_rng(seed)
        axis = random_axis(dim)
        self.vectors = [(rng.standard_normal((n, dim)) + 2 * axis).astype("float32") for n in LENGTHS]
        self.codec = Codec(bits, dim, axis)
        if bits < 4:  # of some of the same tokens, so that there are near cells and far ones
            self.codec = replace(self.codec, codebook=self.codec.choose_codebook(np.concatenate(self.vectors)[::2]))
        self.rests = [self.codec.rotate(vectors)[0] for vectors in self.vectors]
        self.arrays = self.codec.encode(TokenEmbeddings.from_list(self.vectors))
        numbers = np.arange(len(LENGTHS))
        segment = Segment.build(numbers, numbers.tolist(), LENGTHS, self.arrays)
        self.documents = self.codec.locate(segment)
        self.chosen = np.array([6, 0, 3, 5, 1, 7, 2, 4])

    @property
    def leads(self):
        padded = np.concatenate([np.zeros((len(self.arrays["leads"]), 1), "uint8"), self.arrays["leads"]], axis=1)
        return np.split(padded.view("<f4")[:, 0].astype("float64"), np.cumsum(LENGTHS)[:-1])

    def decoded(self):
        bits, dim = self.codec.bits, self.codec.dim
        scales = (self.arrays["scales"].astype("uint32") << 15).view("float32").astype("float64")
        rows = []
        for t in range(int(LENGTHS.sum())):
            row = []
            cell, size_number = divmod(int(self.arrays["cells"][t]), 16) if bits < 4 else (0, 0)
            deviation = 74.4 * 2 ** ((size_number - 15) / 4)
            for i in range(dim):
                if bits == 8:
                    number = int(self.arrays["codes"][t, i]) - 128
                else:
                    size = 0
                    for plane in range(bits - 1):
                        size = 2 * size + bit(self.arrays["codes"][t, plane], i)
                    size = SIZES[bits][size] if bits == 4 else np.rint(SIZES[bits][size] * deviation)
                    number = size if bit(self.arrays["signs"][t], i) else -size
                    if self.codec.codebook is not None:
                        number = np.clip(int(self.codec.codebook[cell, i]) + number, -128, 127)
                row.append(number * scales[t])
            rows.append(row)
        return np.split(np.array(rows), np.cumsum(LENGTHS)[:-1])


def bit(words, i):
    return int(words[i // 32]) >> (i % 32) & 1
