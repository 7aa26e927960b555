"""Where the weights of modules are, and some of their numbers: enough to see that they have changed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Fingerprint"]

_SAMPLES = 16  # numbers of each weight that are compared: an optimiser step changes nearly all of them


class Fingerprint:
    """What modules hold at one time, to be compared before each text is encoded.

    Parameters
    ----------
    modules
        The modules; those inside them do not count.
    """

    __slots__ = ("_bytes", "_parameters", "_places", "_samples")

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._parameters = [module._parameters for module in modules if module._parameters]
        self._places = self._find_places()
        self._samples = [_sample(tensor) for tensor in self._tensors()]
        self._bytes = self._read_samples()

    def matches(self) -> bool:
        """Whether the modules still have the weights of which this is the fingerprint."""
        # Places first: where a weight has moved (`share_memory` moves it), the sampled memory may be freed.
        return self._places == self._find_places() and self._bytes == self._read_samples()

    def _tensors(self) -> list[Tensor]:
        return [each for parameters in self._parameters for each in parameters.values() if each is not None]

    def _find_places(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in self._tensors()]

    def _read_samples(self) -> list[bytes]:
        return [sample.tobytes() for sample in self._samples]


def _sample(tensor: Tensor) -> np.ndarray:
    """Return a view of the bytes of some numbers; in-place changes through ``.data`` leave no other trace."""
    numbers = tensor.detach().reshape(-1, 1).view(torch.uint8)  # (numbers, bytes of each)
    return numbers[:: max(1, len(numbers) // _SAMPLES)].numpy()
