"""Where the weights of linear layers are, and some of their numbers: enough to see that they have changed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

__all__ = ["Fingerprint"]

_SAMPLES = 16  # numbers of each weight that are compared: an optimiser step changes nearly all of them


class Fingerprint:
    """What linear layers hold at one time, to be compared before each text is encoded.

    Parameters
    ----------
    linears
        The layers.
    """

    __slots__ = ("_contents", "_places", "_samples")

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        # In-place changes through `.data` leave torch's version counter as it was, so some weights are compared too.
        weights = [linear.weight.detach().reshape(-1).numpy() for linear in linears]
        self._samples = [each[:: max(1, len(each) // _SAMPLES)] for each in weights]
        self._places = _find_places(linears)
        self._contents = self._read_samples()

    def matches(self, linears: Sequence[nn.Linear]) -> bool:
        """Whether these layers have the weights of which this is the fingerprint."""
        # Places first: where a weight has moved (`share_memory` moves it), the sampled memory may be freed.
        return self._places == _find_places(linears) and self._contents == self._read_samples()

    def _read_samples(self) -> list[bytes]:
        return [sample.tobytes() for sample in self._samples]


def _find_places(linears: Sequence[nn.Linear]) -> list[tuple[int, int] | None]:
    # Not by attribute: torch then searches three dictionaries in Python, for each layer of each short query.
    tensors = [tensor for linear in linears for tensor in linear._parameters.values()]
    return [None if tensor is None else (tensor.data_ptr(), tensor._version) for tensor in tensors]
