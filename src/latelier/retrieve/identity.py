"""Which model an index was filled with, kept in the index itself.

A name is not enough: it may stand for other weights tomorrow, and searching with other weights than those that filled
the index gives plausible nonsense. So the embedding of one fixed sentence is kept as well, as the model's fingerprint.
Two loads of the same weights agree on it to three digits, on any device and in any floating type; other weights, or
the same after more training, do not.

An index may come from anywhere, so this is where what it stores becomes trusted: values of known names, types and
ranges, none of which can name code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes import Index
from latelier.models import ColBERT
from latelier.retrieve.options import check_option, plain_options
from latelier.utils.describing import cut, describe, short

__all__ = ["Identity", "identify", "is_same_model", "probe"]

# The key under which it stands among the settings of the index.
_SETTING = "retriever"
_SENTENCE = "Late interaction compares every word of a question with every word of a text."
# Half precision gives 0.9999 or more, dynamic int8 about 0.99, other models anything around 0.
_LEAST_COSINE = 0.97
_LONGEST_NAME = 4096  # characters, as of a path
_MOST_DIMENSIONS = 65_536


class Identity(NamedTuple):
    """A model: its name, plain options of loading it, its fingerprint, and names of options that are not stored.

    The name is None for a model that was handed over loaded.
    """

    name: str | None
    options: dict[str, Any]
    probe: list[float]
    unstored: list[str]

    @classmethod
    def stored_in(cls, index: Index) -> Identity | None:
        """Return which model filled an index, None where no retriever did.

        Raises
        ------
        IndexFormatError
            If what is stored has another form, or options that nobody may store.
        """
        stored = _stored(index)
        if stored is None:
            return None
        (name, fingerprint), (options, unstored) = _read_filler(stored), _read_options(stored)
        return cls(name, options, fingerprint, unstored)

    def store_in(self, index: Index) -> None:
        """Note that this model fills the index."""
        index.settings[_SETTING] = self._asdict()

    def check(self, index: Index) -> None:
        """Refuse an index that another model has filled.

        Raises
        ------
        InvalidArgumentError
            If the dimensions or the fingerprints differ.
        IndexFormatError
            If the fingerprint that is stored is none.
        """
        if index.dim is None:
            return
        # Not the options: whoever gives the model by hand gives those that it needs.
        stored = _stored(index)
        name, fingerprint = (None, None) if stored is None else _read_filler(stored)
        filler = f"the model {short(name)}" if name else "another model"
        if index.dim != len(self.probe):
            raise InvalidArgumentError(
                f"the index holds embeddings of {index.dim} dimensions, this model makes {len(self.probe)}: it was "
                f"filled by {filler}. Retriever.open(path) takes the model that an index names; or make a new index."
            )
        if fingerprint and not is_same_model(fingerprint, self.probe):
            raise InvalidArgumentError(
                f"the index was filled by {filler} with other weights than this model has, so their embeddings cannot "
                "be compared. Retriever.open(path) takes the model that an index names; or make a new index."
            )


def identify(name: str | None, options: Mapping[str, Any], model: ColBERT) -> Identity:
    """Return the identity of a model; of the options that it was loaded with, only plain ones are to be stored."""
    plain = plain_options(options)
    return Identity(name, plain, probe(model), sorted(set(options) - set(plain)))


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
    """Whether two fingerprints are of the same weights."""
    if len(left) != len(right):
        return False
    cosine = np.dot(left, right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12)
    return bool(cosine >= _LEAST_COSINE)


_FOREIGN = "the index says of the model that filled it what this library does not store"
_BY_HAND = "If you know the model, give it by hand: Retriever(model, path), or --model on the command line."
_FORGET = "If you know the model, del index.settings['retriever'] lets Retriever(model, index) take it, unchecked."


def _stored(index: Index) -> Any:
    """Return what an index says about its model, as it is; None where it says nothing."""
    try:
        return index.settings.get(_SETTING)
    except LatelierError:
        raise
    except (ValueError, RecursionError) as error:  # no JSON, or nested without end
        raise IndexFormatError(f"{_FOREIGN}: {error}. {_FORGET}") from error


def _read_filler(stored: Any) -> tuple[str | None, list[float]]:
    """Check the name and the fingerprint, which may be made up."""
    if not isinstance(stored, dict):
        raise IndexFormatError(f"{_FOREIGN}: {describe(stored)}. {_FORGET}")
    name, fingerprint = stored.get("name"), stored.get("probe")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME):
        raise IndexFormatError(f"{_FOREIGN}: the name {describe(name)}. {_FORGET}")
    if (
        not isinstance(fingerprint, list)
        or not 0 < len(fingerprint) <= _MOST_DIMENSIONS
        or not all(type(value) in (int, float) and -1e6 <= value <= 1e6 for value in fingerprint)
    ):
        raise IndexFormatError(f"{_FOREIGN}: the fingerprint {describe(fingerprint)}. {_FORGET}")
    return name, fingerprint


def _read_options(stored: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Check the options, which may be made up, and the names of those that are not stored."""
    options, unstored = stored.get("options"), stored.get("unstored", [])
    if not isinstance(options, dict):
        raise IndexFormatError(f"{_FOREIGN}: the options {describe(options)}. {_BY_HAND}")
    for option, value in options.items():
        try:
            check_option(option, value)
        except InvalidArgumentError as error:
            raise IndexFormatError(f"{_FOREIGN}: {error} {_BY_HAND}") from error
    if not isinstance(unstored, list) or not all(isinstance(each, str) for each in unstored):
        raise IndexFormatError(f"{_FOREIGN}: the names of options {describe(unstored)}. {_BY_HAND}")
    return options, [cut(each, 60) for each in unstored[:20]]
