"""The model of an index: identity, exported encoder, opening, queries.

The weights behind a name can change, and queries encoded with other weights give plausible but wrong results. So the
embedding of a fixed sentence is stored as the model's fingerprint: on any device and in any floating type, equal
weights give nearly equal fingerprints, and other weights do not. An index may come from an untrusted source, so only
known option names with values of known types and ranges are accepted; none of them can name code.

Float32 by torch and by ONNX Runtime are equal to 1e-5 and the half precisions nearly so, so an index does not store
them. Vectors in int8 differ: an index that was filled in int8 stores it, and its queries are encoded in int8 as well.

An index may come from an untrusted source, and ONNX Runtime is not made for files of such sources. So no encoder is
read from the folder of an index: an index only names its model, and an encoder that this user has exported from a model
of the same name, options and fingerprint is found by a hash of these three.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError, ModelLoadError
from latelier.indexes import Index
from latelier.indexes.base import PathLike
from latelier.indexes.store.checks import CATALOG
from latelier.models.exported import DESCRIPTION_FILE, is_own, is_whole
from latelier.models.location import DEFAULT_MODEL
from latelier.models.tokens import token_starts, tokenizer_lock, tokenizer_offsets
from latelier.models.untrusted import load, load_untrusted
from latelier.utils import is_count
from latelier.utils.checks import check_choice, cut, describe, short
from latelier.utils.files import cache_folder, check_unicode, is_folder

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.models.exported import ExportedEncoder

__all__ = [
    "INT8",
    "Computation",
    "ModelIdentity",
    "QueryModel",
    "check_option",
    "check_query_backend",
    "checked_queries",
    "encoder_folder",
    "export_encoder",
    "find_encoder",
    "given_model",
    "is_exported",
    "is_same_model",
    "model_fingerprint",
    "open_encoder",
    "open_existing",
    "open_if_made",
    "open_or_make",
    "storable_options",
    "stored_model",
]

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

        Raises `IndexFormatError` if the stored identity is malformed, or has options that may not be stored.
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

    `encode`: a model's `encode_document`.

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
    """
    stored = {name: value for name, value in options.items() if name in _OPTIONS and _OPTIONS[name][0](value)}
    return {name: int(value) if is_count(value) else value for name, value in stored.items()}  # integers of numpy


def check_option(name: str, value: Any) -> None:
    """Check that an option may be stored.

    Raises `InvalidArgumentError` if the name is unknown, or the value has another type or is out of range.
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


# The option that an index stores.
INT8 = {"compute_dtype": "int8"}
_EQUAL_BACKENDS = (None, "torch", "onnx", "auto")


class Computation(NamedTuple):
    """The options of a model, divided into what computes and all others.

    `backend`: as in `latelier.models.ColBERT`; None for its default, or ONNX Runtime for int8. `compute_dtype`: as in
    `latelier.models.ColBERT.encode`.

    Examples
    --------
    >>> given = {"backend": "auto", "compute_dtype": "int8", "dim": 64}
    >>> computation = Computation.of(given)
    >>> computation.loading_options, computation.identity_options
    ({'dim': 64, 'backend': 'auto'}, {'dim': 64, 'compute_dtype': 'int8'})
    >>> Computation.of({"compute_dtype": "int8"}).loading_options
    {'backend': 'onnx'}
    """

    backend: str | None
    compute_dtype: str
    others: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Computation:
        """Divide the options that a model is given by a user, or by an index."""
        others = dict(options)
        backend, compute_dtype = others.pop("backend", None), others.pop("compute_dtype", "auto")
        return cls("onnx" if backend is None and compute_dtype == "int8" else backend, compute_dtype, others)

    @property
    def loading_options(self) -> dict[str, Any]:
        """The options to load the model with."""
        return self.others if self.backend is None else {**self.others, "backend": self.backend}

    @property
    def identity_options(self) -> dict[str, Any]:
        """The options that say which vectors the model makes."""
        options = {**self.others, **(INT8 if self.compute_dtype == "int8" else {})}
        return options if self.backend in _EQUAL_BACKENDS else {**options, "backend": self.backend}

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Check that this does not ask for int8 where an index was filled without, or the reverse."""
        is_int8 = stored.get("compute_dtype") == "int8"
        if self.compute_dtype != "auto" and (self.compute_dtype == "int8") != is_int8:
            filled = "in int8" if is_int8 else "in another dtype than int8"
            raise InvalidArgumentError(
                f"received compute_dtype={self.compute_dtype!r}, but the index was filled {filled}; omit it, or make "
                "a new index."
            )


def encoder_folder(identity: ModelIdentity) -> Path:
    """Return the folder for the exported encoder of a model, in the cache folder; it need not exist.

    `identity`: the name, options and fingerprint of the model, as an index stores them.
    """
    content = json.dumps([identity.name, identity.options, identity.fingerprint], sort_keys=True)
    return cache_folder() / "encoders" / hashlib.sha256(content.encode()).hexdigest()[:32]


def export_encoder(model: ColBERT, identity: ModelIdentity) -> Path:
    """Export a model for the indexes that store this identity, unless there is a whole export; return the folder."""
    folder = encoder_folder(identity)
    if not (is_own(folder) and is_whole(folder)):
        from latelier.models.onnx import export

        export(model, folder, compute_dtype=identity.options.get("compute_dtype", "float32"))
    return folder


def find_encoder(identity: ModelIdentity) -> ExportedEncoder | None:
    """Return the exported encoder of a model; None if there is none that can be used.

    It cannot be used if it is damaged, others can write it, or ONNX Runtime is missing.
    """
    folder = encoder_folder(identity)
    if find_spec("onnxruntime") is None or not is_exported(folder) or not is_own(folder):
        return None
    try:
        return open_encoder(folder)
    except ModelLoadError:
        return None


def is_exported(folder: Any) -> bool:
    """Whether a folder holds an exported encoder."""
    try:
        return (Path(folder) / DESCRIPTION_FILE).is_file()
    except (OSError, ValueError):  # a name that is no path
        return False


def open_encoder(folder: Any) -> ExportedEncoder:
    """Open an exported encoder."""
    from latelier.models.exported import ExportedEncoder

    return ExportedEncoder(folder)


def check_query_backend(backend: Any, model: Any) -> None:
    """Check what is to encode the queries of an index, before the index is opened.

    `backend`: ``"auto"``, ``"onnx"`` or ``"torch"``, see `latelier.retrieve.Retriever.open`. `model`: name or folder of
    the model, or folder of an exported encoder, that the user names; None: the index's own.
    """
    if not isinstance(model, (str, os.PathLike, type(None))):
        raise InvalidArgumentError(
            f"received {describe(model)} as the model to open an index with; expected its name or folder. With a "
            "loaded model: Retriever(model, path)."
        )
    check_choice("backend", backend, ["auto", "onnx", "torch"])
    if model is not None and backend == "torch" and is_exported(model):
        raise InvalidArgumentError(f"received backend='torch' for {short(str(model))}, an exported encoder; omit one.")
    if model is not None and backend == "onnx" and not is_exported(model):
        raise InvalidArgumentError(
            f"received backend='onnx' for {short(str(model))}, which is not the folder of an exported encoder. Give "
            "such a folder (Retriever.export_encoder() returns one), or omit the backend."
        )


class QueryModel:
    """A model by name and options, its exported encoder, or both.

    Parameters
    ----------
    name
        Name or folder of the model; None for one that was given as an object.
    options
        The options that it is loaded with.
    load
        Loads it; called once, when the model is first needed. None if there is only an exported encoder.
    encoder
        Encodes queries as the model does, without torch; None: the model encodes them.
    compute_dtype
        What the model computes in, as in `latelier.models.ColBERT.encode`.
    """

    def __init__(
        self,
        name: str | None,
        options: Mapping[str, Any],
        load: Callable[[], ColBERT] | None,
        encoder: ExportedEncoder | None = None,
        compute_dtype: str = "auto",
    ) -> None:
        self.name, self.options, self.encoder = name, dict(options), encoder
        self.compute_dtype = compute_dtype
        self._load, self._lock = load, threading.Lock()
        self._loaded: ColBERT | None = None
        self._identity: ModelIdentity | None = None

    @classmethod
    def given(cls, model: Any, compute_dtype: str = "auto") -> QueryModel:
        """Return a model that was given as an object; raise `InvalidArgumentError` for anything else."""
        from latelier.models import ColBERT

        if not isinstance(model, ColBERT):
            raise InvalidArgumentError(f"received {describe(model)} as the model; expected a ColBERT or a name.")
        return cls(None, {}, lambda: model, compute_dtype=compute_dtype)

    @classmethod
    def named(cls, name: str, device: str | None, options: Mapping[str, Any]) -> QueryModel:
        """Load a model or open an exported encoder that the user names."""
        if not is_exported(name):
            computation = Computation.of(options)
            model = load(name, device=device, **computation.loading_options)
            dtype = computation.compute_dtype
            return cls(name, computation.identity_options, lambda: model, compute_dtype=dtype)
        if device not in (None, "cpu"):
            raise InvalidArgumentError(f"{short(name)} is an exported encoder, which runs on the CPU; omit the device.")
        if options:
            raise InvalidArgumentError(
                f"{short(name)} is an exported encoder, which has the options that its model was exported with; omit "
                f"model_options: {', '.join(map(short, options))}."
            )
        return cls(name, {}, None, open_encoder(name))

    @classmethod
    def stored(
        cls, identity: ModelIdentity, device: str | None, backend: str, computing: Mapping[str, Any] | None = None
    ) -> QueryModel:
        """Return the model that an index names, with its exported encoder if this machine has one.

        Parameters
        ----------
        identity
            The name, options and fingerprint that the index stores.
        device
            Where to load the model; a GPU excludes the exported encoder.
        backend
            ``"auto"``, ``"onnx"`` or ``"torch"``, see `latelier.retrieve.Retriever.open`.
        computing
            The backend and the dtype of the model itself, where they are not the default.

        Raises
        ------
        InvalidArgumentError
            If the backend is ``"onnx"`` and the device is a GPU, or there is no exported encoder.
        """
        on_cpu = device in (None, "cpu")
        if backend == "onnx" and not on_cpu:
            raise InvalidArgumentError(
                f"received backend='onnx' with device={device!r}; an exported encoder runs on the CPU. Omit one."
            )
        encoder = find_encoder(identity) if backend != "torch" and on_cpu else None
        if backend == "onnx" and encoder is None:
            raise InvalidArgumentError(
                f"this machine has no exported encoder of the model {short(identity.name)}: make one with "
                "Retriever.export_encoder() or latelier index, which need the extra 'onnx'; or use backend=\"torch\"."
            )
        name = str(identity.name)
        options = dict(identity.options)
        if not on_cpu or backend == "torch":  # which do not compute in int8
            options.pop("compute_dtype", None)
        computation = Computation.of({**options, **(computing or {})})
        options = computation.loading_options
        return cls(
            name, identity.options, lambda: load_untrusted(name, device, **options), encoder, computation.compute_dtype
        )

    @property
    def loaded(self) -> ColBERT:
        """The model itself, loaded on first use."""
        if self._load is None:
            raise InvalidArgumentError(
                f"{short(self.name)} is an exported encoder, without the model that this needs; give the model."
            )
        with self._lock:
            self._loaded = self._loaded or self._load()
        return self._loaded

    @property
    def can_load(self) -> bool:
        """Whether there is a model, not only an exported encoder."""
        return self._load is not None

    @property
    def identity(self) -> ModelIdentity:
        """The name, the storable options and the fingerprint of the model, or of an encoder without a model."""
        if self._identity is None:
            self._identity = ModelIdentity.of(self._encode_document, self.name, self.options)
        return self._identity

    def prepare(self) -> None:
        """Load the model and compute its fingerprint, unless an exported encoder stands in for it."""
        if self.encoder is None:
            _ = self.identity

    def check(self, index: Index) -> None:
        """Check that an index is empty or was filled by this model.

        An exported encoder in the cache folder needs no check: it is found by the identity that the index stores.

        Raises
        ------
        InvalidArgumentError
            If the dimensions or the fingerprints differ.
        IndexFormatError
            If the stored fingerprint is malformed.
        """
        if self.encoder is None or self._load is None:
            self.identity.check(index)

    @property
    def dim(self) -> int:
        """Dimension of the token vectors."""
        return self.loaded.embedding_size if self.encoder is None else self.encoder.embedding_size

    def encode_queries(self, texts: Sequence[str]) -> TokenEmbeddings:
        """Return the token vectors of some queries, as numpy arrays."""
        if self.encoder is not None:
            return TokenEmbeddings.from_list(self.encoder.encode_queries(texts))
        # By default, sentence-transformers shows a bar if the program logs at the level INFO.
        options = {"compute_dtype": self.compute_dtype, "show_progress_bar": False}
        packed: Any = self.loaded.encode_query(list(texts), packed=True, **options)
        vectors: TokenEmbeddings = packed.to("numpy")
        return vectors

    def encode_documents(
        self,
        texts: Sequence[str],
        *,
        batch_size: int,
        pool_factor: int = 1,
        precision: str | None = None,
        bar: Any = None,
    ) -> TokenEmbeddings:
        """Return the token vectors of some documents.

        Parameters
        ----------
        texts
            The documents.
        batch_size
            Texts of maximum length per batch; batches of shorter texts hold more.
        pool_factor
            About how many token vectors are pooled into one, see `latelier.models.pool_tokens`; 1: none.
        precision
            Number format of the vectors; None: as the model computes them.
        bar
            A progress bar to update; None for none.
        """
        if self._load is None:
            vectors = self._reduced(TokenEmbeddings.from_list(self._encode_document(texts)), pool_factor, precision)
            if bar is not None:
                bar.update(len(texts))
            return vectors
        from latelier.models.encoding import Job, packed_windows

        dtype, dim = self.compute_dtype, self.loaded.truncate_dim
        job = Job("document", batch_size=batch_size, compute_dtype=dtype, truncate_dim=dim)
        windows = packed_windows(self.loaded, texts, job, precision if pool_factor == 1 else None, bar=bar)
        return TokenEmbeddings.concatenate([self._reduced(window, pool_factor, precision) for window in windows])

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return where the tokens of texts begin, see `latelier.models.tokens`."""
        if self.encoder is not None:
            return token_starts(self.encoder.text_offsets, texts)
        return token_starts(tokenizer_offsets(self.loaded.tokenizer), texts)

    @property
    def document_limits(self) -> tuple[int, int | None]:
        """Number of tokens of an empty document, and maximum number of tokens of a document; None: no limit."""
        if self.encoder is not None:
            return self.encoder.document_overhead, self.encoder.max_length_document
        model: Any = self.loaded
        with tokenizer_lock(model.tokenizer):
            empty = model.tokenizer(model.prompts.get("document") or "", truncation=False, verbose=False)
        return len(empty["input_ids"]), model.max_length_document

    def tokens(self, text: str, *, is_query: bool) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""
        return (self.encoder or self.loaded).tokens(text, is_query=is_query)

    def token_ranges(self, text: str, *, is_query: bool) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""
        if self.encoder is not None:
            return self.encoder.token_ranges(text, is_query=is_query)
        from latelier.models.tokenization import scored_ranges

        return scored_ranges(self.loaded, self.loaded.tokenize([text], is_query=is_query), text)

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens of the tokenizer, such as ``[CLS]``."""
        if self.encoder is not None:
            return self.encoder.special_tokens
        tokenizer: Any = self.loaded.tokenizer
        return list(tokenizer.all_special_tokens)

    def join(self, tokens: list[str]) -> str:
        """Return the text that tokens form."""
        if self.encoder is not None:
            return self.encoder.join(tokens)
        tokenizer: Any = self.loaded.tokenizer
        return str(tokenizer.convert_tokens_to_string(tokens))

    def export(self, index: Index) -> Path:
        """Export the encoder for indexes that name this model as `index` does; see `Retriever.export_encoder`."""
        if self.name is None:
            raise InvalidArgumentError("the model was given as an object, which no index names; give it by name.")
        return export_encoder(self.loaded, ModelIdentity.stored_in(index) or self.identity)

    def _reduced(self, vectors: TokenEmbeddings, pool_factor: int, precision: str | None) -> TokenEmbeddings:
        """Return pooled vectors in a number format."""
        if pool_factor != 1:
            from latelier.models.pooling import pool_tokens

            vectors = pool_tokens(vectors, pool_factor)
        return vectors if precision is None else vectors.to(precision)

    def _encode_document(self, texts: Sequence[str]) -> list[Any]:
        """Return the token vectors of documents by the model itself, or by an encoder without a model."""
        if self.encoder is not None and self._load is None:
            return self.encoder.encode_documents(texts)
        options = {"compute_dtype": self.compute_dtype, "show_progress_bar": False}
        return list(self.loaded.encode_document(list(texts), **options))


def open_if_made(folder: Path, **options: Any) -> Index | None:
    """Open the index in a folder; return None if there is none yet, even if another process has begun to make one.

    The classes of indexes expect that process, and open or make the index as it comes. `folder`: the folder; it may be
    missing. `**options`: arguments of `latelier.indexes.open`. Raises `LatelierError` if the folder holds other files,
    or its index cannot be opened.

    Examples
    --------
    >>> print(open_if_made(Path("no-folder")))
    None
    """
    names = [path.name for path in folder.iterdir()] if is_folder(folder) else []
    if not names:
        return None
    try:
        return indexes.open(folder, **options)
    except IndexFormatError:
        # A catalog, with what SQLite puts beside it, is there before the index is described in it.
        if all(name.startswith(CATALOG) for name in names):
            return None
        raise


def given_model(model: Any, device: str | None = None, options: Mapping[str, Any] | None = None) -> QueryModel:
    """Return the model that a user gives.

    `model`: a model, its name or folder, the folder of an exported encoder, or None for the default model; `device`,
    `options`: where and how to load a model given by name.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise InvalidArgumentError(f"received {describe(options)} as model_options; expected a dict.")
    if isinstance(model, QueryModel):
        return model
    if isinstance(model, (str, os.PathLike, type(None))):
        return QueryModel.named(_portable_name(DEFAULT_MODEL if model is None else model), device, options or {})
    given = QueryModel.given(model)
    if device is not None or options:
        raise InvalidArgumentError("device and model_options are for a model given by name, not a loaded one.")
    return given


def stored_model(
    path: PathLike | Index,
    index: Index,
    model: PathLike | None,
    device: str | None,
    backend: str,
    computing: Mapping[str, Any] | None = None,
) -> QueryModel:
    """Return the model that filled an index, or the one that the user names in its place.

    `path`, `index`: the folder of the index, or the index itself, for messages; and the index. `model`: name or folder
    of a model, loaded with the options that the index stores, or of an exported encoder; None for the model that the
    index names. `device`, `backend`: see `latelier.retrieve.Retriever.open`. `computing`: the ``backend`` and the
    ``compute_dtype`` of the model itself, where they are not the default.
    """
    options, computing = _stored_options(index), computing or {}
    if index.dim is not None:
        Computation.of(computing).check_stored(options)
    if model is not None:
        return given_model(model, device, computing if is_exported(model) else {**options, **computing})
    stored, which = ModelIdentity.stored_in(index), repr(index) if path is index else f"the index in {path}"
    if stored is None or stored.name is None:
        raise InvalidArgumentError(
            f"{which} does not name its model: it is empty, or was filled with embeddings or with a model given as an "
            "object. Give the model: Retriever(model, path), or --model."
        )
    if stored.unstored:
        raise InvalidArgumentError(
            f"{which} was filled by {short(stored.name)} with options that are not stored: "
            f"{', '.join(map(short, stored.unstored))}. Give the model: Retriever(model, path), or --model."
        )
    return QueryModel.stored(stored, device, backend, computing)


def open_existing(path: PathLike | Index, read_only: bool, max_memory: int | str | None) -> Index:
    """Open the index in a folder; an open index is returned.

    `read_only`, `max_memory`: how to open the folder; raises `IndexFormatError` if there is no index in the folder.
    """
    if not isinstance(path, Index):
        return indexes.open(path, read_only=read_only, max_memory=max_memory)
    if read_only or max_memory is not None:
        raise InvalidArgumentError(
            f"received read_only={read_only} and max_memory={short(max_memory)} for an open index; they are for one "
            "given by its folder. Open the index with them."
        )
    return path


def open_or_make(path: Index | PathLike | None, max_memory: int | str | None = None) -> Index:
    """Open the index in a folder; make a `latelier.indexes.Flat` in an empty or missing one, or in memory for None.

    `path`: the folder, None, or an index, which is returned.
    """
    if isinstance(path, Index):
        if max_memory is not None:
            raise InvalidArgumentError(
                f"received max_memory={short(max_memory)} for an open index; it is for one given by its folder. Open "
                "the index with max_memory."
            )
        return path
    if not isinstance(path, (str, os.PathLike, type(None))):
        raise InvalidArgumentError(f"received {describe(path)} as the index; expected an Index, a folder or None.")
    opened = None if path is None else open_if_made(Path(path), max_memory=max_memory)
    return indexes.Flat(path, max_memory=max_memory) if opened is None else opened


def _stored_options(index: Index) -> dict[str, Any]:
    """Return the stored options of the model that filled an index; none if they are malformed."""
    try:
        stored = ModelIdentity.stored_in(index)
    except IndexFormatError:
        return {}
    return stored.options if stored else {}


def _portable_name(model: PathLike) -> str:
    """Return a folder as an absolute path, so that the index can be opened from any working directory."""
    name = os.fspath(model)
    return str(Path(name).resolve()) if is_folder(Path(name)) else name


def checked_queries(texts: Any, name: str = "queries") -> list[str]:
    """Return one text or several as a list of texts that can be encoded; messages call them `name`."""
    if isinstance(texts, (bytes, bytearray, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"received {describe(texts)} as {name}; expected a text or a list of texts.")
    queries = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(queries):
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"{name}[{position}] is {short(text)}; expected a text that is not empty.")
        check_unicode(text, f"{name}[{position}]")
    return queries
