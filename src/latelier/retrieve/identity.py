"""Which model an index was filled with, kept in the index itself.

A name is not enough: it may stand for other weights tomorrow, and searching with other weights than those that filled
the index gives plausible nonsense. So the place where the model puts one fixed sentence is kept as well. Two loads of
the same weights agree on it to three digits, on any device and in any floating type; other weights, or the same after
more training, do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes import Index
from latelier.models import ColBERT

__all__ = ["Identity", "is_same_model", "probe"]

# The key under which it stands among the settings of the index.
_SETTING = "retriever"
_SENTENCE = "Late interaction compares every word of a question with every word of a text."
# Half precision gives 0.9999 or more, dynamic int8 about 0.99, other models anything around 0.
_LEAST_COSINE = 0.97


class Identity(NamedTuple):
    """A model: its name (None for one that was handed over loaded), options of loading it, and its `probe`."""

    name: str | None
    options: dict[str, Any]
    probe: list[float]

    @classmethod
    def stored_in(cls, index: Index) -> Identity | None:
        """Return which model filled an index, None where no retriever did."""
        stored = index.settings.get(_SETTING)
        return None if stored is None else cls(stored["name"], stored["options"], stored["probe"])

    def store_in(self, index: Index) -> None:
        """Note that this model fills the index."""
        index.settings[_SETTING] = self._asdict()

    def check(self, index: Index) -> None:
        """Refuse an index that another model has filled.

        Raises
        ------
        InvalidArgumentError
            If the dimensions or the probes differ.
        """
        if index.dim is None:
            return
        stored = self.stored_in(index)
        filler = f"the model {stored.name!r}" if stored and stored.name else "another model"
        if index.dim != len(self.probe):
            raise InvalidArgumentError(
                f"the index holds embeddings of {index.dim} dimensions, this model makes {len(self.probe)}: it was "
                f"filled by {filler}. Retriever.open(path) takes the model that an index names; or make a new index."
            )
        if stored and not is_same_model(stored.probe, self.probe):
            raise InvalidArgumentError(
                f"the index was filled by {filler} with other weights than this model has, so their embeddings cannot "
                "be compared. Retriever.open(path) takes the model that an index names; or make a new index."
            )


def probe(model: ColBERT) -> list[float]:
    """Return the mean of one sentence's token vectors, ``(dim,)``, rounded for a small catalog.

    Examples
    --------
    >>> from latelier.models import load
    >>> here = probe(load(device="cpu"))
    >>> len(here), is_same_model(here, here), is_same_model(here, [0.1] * 384)
    (384, True, False)
    """
    vectors = model.encode_document([_SENTENCE], packed=True).to("numpy").to("float32")[0]
    return [round(float(value), 4) for value in np.mean(vectors, axis=0)]


def is_same_model(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether two probes are of the same weights."""
    if len(left) != len(right):
        return False
    cosine = np.dot(left, right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12)
    return bool(cosine >= _LEAST_COSINE)
