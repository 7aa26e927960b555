"""Which model filled an index: its name, its options and its fingerprint, stored among the index's settings.

The weights behind a name can change, and queries encoded with other weights give plausible but wrong results. So the
embedding of a fixed sentence is stored as the model's fingerprint: on any device and in any floating type, equal
weights give nearly equal fingerprints, and other weights do not. An index may come from an untrusted source, so only
known option names with values of known types and ranges are accepted; none of them can name code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes import Index
from latelier.utils import is_count
from latelier.utils.checks import cut, describe, short

__all__ = ["ModelIdentity", "check_option", "is_same_model", "model_fingerprint", "storable_options"]

# Returns one matrix per text.
EncodeDocuments: TypeAlias = Callable[[list[str]], Any]

# The key among the settings of the index.
_SETTING = "retriever"
_SENTENCE = "Late interaction compares every word of a question with every word of a text."
# Minimum cosine of two fingerprints of the same weights: half precision gives 0.9999 or more, dynamic int8 about 0.99;
# other models give about 0.
_LEAST_COSINE = 0.97
_LONGEST_NAME = 4096  # characters, the longest path
_MOST_DIMENSIONS = 65_536
_LARGEST_NUMBER = 1_000_000
_LONGEST_TEXT = 10_000
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)


class ModelIdentity(NamedTuple):
    """The name of a model, the options stored with it, its fingerprint, and the names of options that are not stored.

    The name is None for a model that was given as an object.
    """

    name: str | None
    options: dict[str, Any]
    fingerprint: list[float]
    unstored: list[str]

    @classmethod
    def of(cls, encode: EncodeDocuments, name: str | None, options: Mapping[str, Any]) -> ModelIdentity:
        """Return the identity of a model, given its `encode_document`, and the name and options it was loaded with."""
        stored = storable_options(options)
        return cls(name, stored, model_fingerprint(encode), sorted(set(options) - set(stored)))

    @classmethod
    def stored_in(cls, index: Index) -> ModelIdentity | None:
        """Return the identity of the model that filled an index; None if no retriever filled it.

        Raises
        ------
        IndexFormatError
            If the stored identity is malformed, or has options that may not be stored.
        """
        stored = _read_setting(index)
        if stored is None:
            return None
        (name, fingerprint), (options, unstored) = _check_name_and_fingerprint(stored), _check_options(stored)
        return cls(name, options, fingerprint, unstored)

    def store_in(self, index: Index) -> None:
        """Store that this model fills the index."""
        index.settings[_SETTING] = {
            "name": self.name,
            "options": self.options,
            "probe": self.fingerprint,
            "unstored": self.unstored,
        }

    def check(self, index: Index) -> None:
        """Check that an index is empty or was filled by this model.

        The options are not compared: users who pass a model have already chosen its options.

        Raises
        ------
        InvalidArgumentError
            If the dimensions or the fingerprints differ.
        IndexFormatError
            If the stored fingerprint is malformed.
        """
        if index.dim is None:
            return
        stored = _read_setting(index)
        name, fingerprint = (None, None) if stored is None else _check_name_and_fingerprint(stored)
        filler = f"the model {short(name)}" if name else "another model"
        if index.dim != len(self.fingerprint):
            raise InvalidArgumentError(
                f"the index holds embeddings of {index.dim} dimensions, this model makes {len(self.fingerprint)}: it "
                f"was filled by {filler}. Retriever.open(path) loads the model that an index names; or make a new "
                "index."
            )
        if fingerprint and not is_same_model(fingerprint, self.fingerprint):
            raise InvalidArgumentError(
                f"the index was filled by {filler} with other weights than this model has, so their embeddings cannot "
                "be compared. Retriever.open(path) loads the model that an index names; or make a new index."
            )


def model_fingerprint(encode: EncodeDocuments) -> list[float]:
    """Return the mean of the token vectors of a fixed sentence, ``(dim,)``, rounded to four digits.

    Parameters
    ----------
    encode
        A model's `encode_document`.

    Examples
    --------
    >>> from latelier.models import load
    >>> fingerprint = model_fingerprint(load(device="cpu").encode_document)
    >>> len(fingerprint), is_same_model(fingerprint, fingerprint)
    (384, True)
    >>> is_same_model(fingerprint, [0.1] * 384)
    False
    """
    vectors = TokenEmbeddings.from_list(encode([_SENTENCE])).to("numpy").to("float32")[0]
    return [round(float(value), 4) for value in np.mean(vectors, axis=0)]


def is_same_model(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether two fingerprints are of the same weights: their cosine is at least 0.97."""
    if len(left) != len(right):
        return False
    cosine = np.dot(left, right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12)
    return bool(cosine >= _LEAST_COSINE)


def storable_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of loading a model that an index may store.

    Options that could name code, files, credentials or another loader (``trust_remote_code``, ``model_kwargs``,
    ``token``, ``backend``, ...) are never stored.

    Examples
    --------
    >>> storable_options({"max_length_document": 64, "trust_remote_code": True})
    {'max_length_document': 64}
    """
    stored = {name: value for name, value in options.items() if name in _OPTIONS and _OPTIONS[name][0](value)}
    return {name: int(value) if is_count(value) else value for name, value in stored.items()}  # integers of numpy


def check_option(name: str, value: Any) -> None:
    """Check that an option may be stored.

    Raises
    ------
    InvalidArgumentError
        If the name is unknown, or the value has another type or is out of range.

    Examples
    --------
    >>> check_option("truncate_dim", 64)
    >>> check_option("trust_remote_code", True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: the option 'trust_remote_code' is not one of embedding_size, ...
    """
    if name not in _OPTIONS:
        raise InvalidArgumentError(f"the option {short(name)} is not one of {', '.join(_OPTIONS)}.")
    is_storable, expected = _OPTIONS[name]
    if not is_storable(value):
        raise InvalidArgumentError(f"the option {name} is {describe(value)}; expected {expected}.")


def _is_number(value: Any) -> bool:
    return value is None or is_count(value, most=_LARGEST_NUMBER)


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)


def _are_prompts(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and len(value) <= 100
        and all(isinstance(key, str) and len(key) <= 100 and isinstance(text, str) for key, text in value.items())
        and all(map(_is_text, value.values()))
    )


def _is_revision(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(_REVISION.fullmatch(value)) and ".." not in value)


def _is_int8(value: Any) -> bool:
    return isinstance(value, str) and value == "int8"


def _is_similarity(value: Any) -> bool:
    return value is None or value in ("maxsim", "meanmaxsim")


_NUMBER = (_is_number, f"an integer from 1 to {_LARGEST_NUMBER:,}")
# Each option that may be stored: whether a value is valid, and what a message says is expected.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "embedding_size": _NUMBER,
    "max_length_query": _NUMBER,
    "max_length_document": _NUMBER,
    "truncate_dim": _NUMBER,
    "prompts": (_are_prompts, "texts by name"),
    "default_prompt_name": (_is_text, f"a text of at most {_LONGEST_TEXT:,} characters"),
    "similarity_fn_name": (_is_similarity, "'maxsim' or 'meanmaxsim'"),
    "compute_dtype": (_is_int8, "'int8'"),
    "revision": (_is_revision, "the name of a branch, a tag or a commit"),
}

_FOREIGN = "the index describes its model in a form that this library does not write"
_PASS_MODEL = "If you know the model, pass it: Retriever(model, path), or --model on the command line."
_FORGET = (
    "If you know the model, del index.settings['retriever'] removes the description, and Retriever(model, index) then "
    "accepts the model unchecked."
)


def _read_setting(index: Index) -> Any:
    """Return what an index stores about its model, unchecked; None if it stores nothing."""
    try:
        return index.settings.get(_SETTING)
    except LatelierError:
        raise
    except (ValueError, RecursionError) as error:  # malformed JSON, or JSON nested too deeply
        raise IndexFormatError(f"{_FOREIGN}: {error}. {_FORGET}") from error


def _check_name_and_fingerprint(stored: Any) -> tuple[str | None, list[float]]:
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


def _check_options(stored: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options, and the names of the options that were not stored."""
    options, unstored = stored.get("options"), stored.get("unstored", [])
    if not isinstance(options, dict):
        raise IndexFormatError(f"{_FOREIGN}: the options {describe(options)}. {_PASS_MODEL}")
    for option, value in options.items():
        try:
            check_option(option, value)
        except InvalidArgumentError as error:
            raise IndexFormatError(f"{_FOREIGN}: {error} {_PASS_MODEL}") from error
    if not isinstance(unstored, list) or not all(isinstance(each, str) for each in unstored):
        raise IndexFormatError(f"{_FOREIGN}: the names of options {describe(unstored)}. {_PASS_MODEL}")
    return options, [cut(each, 60) for each in unstored[:20]]
