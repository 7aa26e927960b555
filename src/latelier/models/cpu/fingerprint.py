"""Where the weights of modules are, and some of their numbers: enough to see that they have changed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller

import numpy as np
from torch import Tensor, nn

__all__ = ["Fingerprint"]

_SAMPLES = 16  # numbers of each weight that are compared: an optimiser step changes nearly all of them
_WORD = 4  # bytes
# Called by `map`, without the steps of a loop in Python.
_values, _version = methodcaller("values"), attrgetter("_version")


class Fingerprint:
    """What modules hold at one time, to be compared before each text is encoded.

    `modules`: the modules; those inside them do not count.
    """

    __slots__ = ("_addresses", "_counting", "_found", "_parameters", "_samples", "_tensors", "_versions", "_words")

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._parameters = [module._parameters for module in modules if module._parameters]
        self._found = self._find()
        self._tensors = [each for each in self._found if each is not None]
        self._addresses = [*map(Tensor.data_ptr, self._tensors)]
        self._counting = [each for each in self._tensors if not each.is_inference()]  # those that count their changes
        self._versions = [*map(_version, self._counting)]
        self._samples = _Samples(self._tensors)
        self._words = self._samples.read()

    def matches(self) -> bool:
        """Whether the modules still have the weights of which this is the fingerprint."""
        found = self._find()
        return (
            len(found) == len(self._found)
            and all(map(is_, found, self._found))
            # Before memory is read: where a weight has moved (`share_memory` moves it), what it left may be freed.
            and [*map(Tensor.data_ptr, self._tensors)] == self._addresses
            and [*map(_version, self._counting)] == self._versions
            and self._samples.read() == self._words
        )

    def _find(self) -> list[Tensor | None]:
        return [*chain.from_iterable(map(_values, self._parameters))]


class _Samples:
    """Some numbers of each of many tensors, read in one step: a step for each tensor takes three times as long.

    In-place changes through ``.data`` leave no other trace than the numbers.
    """

    __slots__ = ("_memory", "_positions")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        addresses = np.unique(np.concatenate([_sampled_words(each) for each in tensors] or [np.empty(0, "int64")]))
        first, words = (addresses[0], np.ptp(addresses) // _WORD + 1) if len(addresses) else (0, 0)
        # All memory from the first sampled word to the last; what lies between the tensors is not read.
        self._memory = np.ctypeslib.as_array((ctypes.c_uint32 * int(words)).from_address(int(first)))
        self._positions = (addresses - first) // _WORD

    def read(self) -> bytes:
        return self._memory.take(self._positions).tobytes()


def _sampled_words(tensor: Tensor) -> np.ndarray:
    """Return the addresses of the words that hold the sampled numbers."""
    flat = np.arange(0, tensor.numel(), max(1, tensor.numel() // _SAMPLES))
    positions = np.zeros_like(flat)
    if tensor.ndim:
        for index, stride in zip(np.unravel_index(flat, tensor.shape), tensor.stride(), strict=True):
            positions += index * stride
    size = tensor.element_size()
    first = (tensor.data_ptr() + size * positions) // _WORD * _WORD
    return np.asarray((first[:, None] + np.arange(0, max(size, _WORD), _WORD)).ravel())
