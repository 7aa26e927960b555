"""What an index stores about the model that filled it: its name, its options and a fingerprint of its weights.

The weights behind a name can change; their fingerprint is the mean embedding of one sentence. An index may come from an
untrusted source, so nothing that it stores can name code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes import Index
from latelier.utils.checks import cut, describe, is_count, short
from latelier.utils.misc import warn_caller

# The key among the settings of the index.
_SETTING = "retriever"
_OF_QUERIES = "queries"  # of another model of the same space
# Minimum cosine of two fingerprints of the same weights: half precision gives 0.9999 or more, dynamic int8 about 0.99;
# other models give about 0.
_LEAST_COSINE = 0.97
_LEAST_COSINE_OF_A_SPACE = 0.3  # of models that were trained for one space; of others it is chance
_LONGEST_NAME = 4096  # characters, the longest path
_MOST_DIMENSIONS = 65_536
_FOREIGN = "the index describes its model in a form that this library does not write"
_FORGET = (
    "If you know the model, del index.settings['retriever'] removes the description, and Retriever(model, index) then "
    "accepts the model unchecked."
)


class ModelIdentity(NamedTuple):
    """What an index stores about its model; the name is None for a model that was given as an object."""

    name: str | None
    options: dict[str, Any]
    fingerprint: list[float]
    unstored: list[str]

    @classmethod
    def stored_in(cls, index: Index) -> ModelIdentity | None:
        """Return the identity of the model that filled an index; None if no retriever filled it."""
        return cls._read(index, _SETTING)

    @classmethod
    def of_queries_in(cls, index: Index) -> ModelIdentity | None:
        """Return the identity of the model of the same space that an index keeps for queries; None if there is none."""
        return cls._read(index, _OF_QUERIES)

    @classmethod
    def _read(cls, index: Index, key: str) -> ModelIdentity | None:
        stored = _read_identity(index, key)
        if stored is None:
            return None
        options = stored.get("options")
        unstored = stored.get("unstored", [])
        if isinstance(options, dict):
            given = options
        else:
            given = {"options": options}
        wrong = [name for name, value in given.items() if not is_storable(name, value)]
        if wrong or not isinstance(unstored, list):
            raise IndexFormatError(
                f"{_FOREIGN}: the option {short([*wrong, 'unstored'][0])} is not one of {', '.join(_OPTIONS)}, or its "
                "value is not one of these.",
                advice="give-model",
            )
        return cls(stored["name"], given, stored["fingerprint"], [cut(str(name), 60) for name in unstored[:20]])

    @classmethod
    def readable_in(cls, index: Index) -> ModelIdentity | None:
        """Return it; None also where others have described the model in a form that cannot be followed."""
        with suppress(IndexFormatError):
            return cls.stored_in(index)
        return None

    def store_in(self, index: Index) -> None:
        """Store that this model fills the index."""
        index.settings[_SETTING] = self._asdict()

    def keep_for_queries_in(self, index: Index) -> None:
        """Store that this model of the same space encodes queries, so that opening the index takes it again."""
        if self.name is None or self.unstored or index.read_only or self.of_queries_in(index) == self:
            return
        index.settings[_OF_QUERIES] = self._asdict()

    def check(self, index: Index, *, same_space: bool = False) -> None:
        """Raise `InvalidArgumentError` if other weights filled an index; the options are the user's own choice.

        `same_space`: the user says that the vectors of both can be compared; their dimensions have to be equal.
        """
        dim = index.dim
        if dim is None:
            return
        stored = _read_identity(index, _SETTING) or {"name": None, "fingerprint": None}
        if stored["name"]:
            filler = f"the model {short(stored['name'])}"
        else:
            filler = "another model"
        if dim != len(self.fingerprint):
            raise InvalidArgumentError(
                f"the index holds embeddings of {dim} dimensions, this model makes {len(self.fingerprint)}: it "
                f"was filled by {filler}. Retriever.open(path) loads the model that an index names; or make a new "
                "index."
            )
        if same_space:
            cosine = 1.0
            if stored["fingerprint"]:
                cosine = _cosine(stored["fingerprint"], self.fingerprint)
            if cosine < _LEAST_COSINE_OF_A_SPACE:
                warn_caller(
                    f"received same_space=True, but the vectors of one sentence by this model and by {filler}, which "
                    f"filled the index, have the cosine {cosine:.2f}, as those of models of different spaces."
                )
            return
        if stored["fingerprint"] and not is_same_model(stored["fingerprint"], self.fingerprint):
            raise InvalidArgumentError(
                f"the index was filled by {filler} with other weights than this model has, so their embeddings cannot "
                "be compared. Retriever.open(path) loads the model that an index names; or make a new index.",
                advice="same-space",
            )


def _read_identity(index: Index, key: str) -> dict[str, Any] | None:
    """Return what an index stores about its model, its name and fingerprint checked, its options not."""
    try:
        stored = index.settings.get(key)
    except LatelierError:
        raise
    except (ValueError, RecursionError) as error:  # malformed JSON, or JSON nested too deeply
        raise IndexFormatError(f"{_FOREIGN}: {error}. {_FORGET}") from error
    if stored is None:
        return None
    if isinstance(stored, dict):
        name = stored.get("name")
        fingerprint = stored.get("fingerprint")
    else:
        name = ""
        fingerprint = None
    is_name = name is None or (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME)
    if (
        not is_name
        or not isinstance(fingerprint, list)
        or not 0 < len(fingerprint) <= _MOST_DIMENSIONS
        or not set(map(type, fingerprint)) <= {int, float}
        or not (np.abs(fingerprint) <= _LARGEST_NUMBER).all()
    ):
        raise IndexFormatError(f"{_FOREIGN}: {describe(stored)}. {_FORGET}")
    return {**stored, "name": name}


def is_same_model(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether two fingerprints are of the same weights."""
    if len(left) != len(right):
        return False
    return _cosine(left, right) >= _LEAST_COSINE


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return float(np.dot(left, right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12))


_LARGEST_NUMBER = 1_000_000
_LONGEST_TEXT = 10_000
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _are_prompts(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= 100 and all(map(_is_text, (*value, *value.values())))


def _is_number(value: Any) -> bool:
    return is_count(value, most=_LARGEST_NUMBER)


# Each option that may be stored, and whether a value, if it is not None, is valid. Options that could name code, files,
# credentials or another loader (trust_remote_code, token, ...) are not among them.
_OPTIONS: dict[str, Callable[[Any], bool]] = {
    "embedding_size": _is_number,
    "max_length_query": _is_number,
    "max_length_document": _is_number,
    "truncate_dim": _is_number,
    "prompts": _are_prompts,
    "default_prompt_name": _is_text,
    "similarity_fn_name": lambda value: value in ("maxsim", "meanmaxsim"),
    "compute_dtype": lambda value: value == "int8",
    "revision": lambda value: isinstance(value, str) and bool(_REVISION.fullmatch(value)) and ".." not in value,
}


def is_storable(name: str, value: Any) -> bool:
    """Whether an option of a model, and its value, are stored with an index."""
    return name in _OPTIONS and (value is None or _OPTIONS[name](value))
