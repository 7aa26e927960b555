"""Where the weights of modules are, and some of their numbers: enough to see that they have changed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor, nn

__all__ = ["Fingerprint"]

_SAMPLES = 16  # numbers of each weight that are compared: an optimiser step changes nearly all of them
_WORD = 4  # bytes


class Fingerprint:
    """What modules hold at one time, to be compared before each text is encoded.

    Parameters
    ----------
    modules
        The modules; those inside them do not count.
    """

    __slots__ = ("_parameters", "_places", "_samples", "_words")

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._parameters = [module._parameters for module in modules if module._parameters]
        self._places = self._find_places()
        self._samples = _Samples(self._tensors())
        self._words = self._samples.read()

    def matches(self) -> bool:
        """Whether the modules still have the weights of which this is the fingerprint."""
        # Places first: where a weight has moved (`share_memory` moves it), the sampled memory may be freed.
        return self._places == self._find_places() and self._words == self._samples.read()

    def _tensors(self) -> list[Tensor]:
        return [each for parameters in self._parameters for each in parameters.values() if each is not None]

    def _find_places(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in self._tensors()]


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
