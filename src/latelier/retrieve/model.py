"""The model of an index: opening it, which model it is, and encoding with it.

An index stores the mean embedding of a sentence as the fingerprint of its model's weights, which can change behind a
name. It may come from an untrusted source, so nothing that it says can name code, and no encoder is read from its
folder: one that this user has exported is found in the cache folder by name, options and fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError, ModelLoadError
from latelier.indexes import Index
from latelier.indexes.base import PathLike
from latelier.indexes.store.integrity import CATALOG
from latelier.models.exported import (
    DESCRIPTION_FILE,
    ExportedEncoder,
    is_own,
    is_whole,
    token_starts,
    tokenizer_lock,
    tokenizer_offsets,
)
from latelier.models.location import DEFAULT_MODEL
from latelier.models.untrusted import load, load_untrusted
from latelier.retrieve.remote import RemoteEncoder, is_address
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_choice, check_unicode, cut, describe, is_count, short
from latelier.utils.files import cache_folder, is_folder

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.models.encoding import Job
    from latelier.models.tokenization import PictureTokens
    from latelier.retrieve.images import Picture


def open_with_model(
    place: PathLike | Index,
    model: PathLike | None = None,
    *,
    device: str | None = None,
    backend: str = "auto",
    computing: Mapping[str, Any] | None = None,
    read_only: bool = False,
    max_memory: int | str | None = None,
    trust_remote_code: bool = False,
    make: Callable[[], Index] | None = None,
    check: Callable[[Index], None] | None = None,
) -> tuple[QueryModel, Index]:
    """Open an index with the model that filled it, or with the one that the user names, see `Retriever.open`.

    `check` may refuse an index before a model is loaded; `make` makes one where there is none, after that.
    """
    check_choice("backend", backend, ["auto", "onnx", "torch"])
    if model is not None and backend != "auto" and is_exported(model) != (backend == "onnx"):
        kind = "" if is_exported(model) else "not "
        raise InvalidArgumentError(
            f"received backend={backend!r} for {short(str(model))}, which is {kind}the folder of an exported encoder "
            "(Retriever.export_encoder() returns one); omit one of them."
        )
    if trust_remote_code and model is None:
        raise InvalidArgumentError(
            "only a model that you name is trusted, not one that an index names.", advice="give-model"
        )
    if trust_remote_code:
        trust = {"trust_remote_code": True}
    else:
        trust = {}
    index = find_index(place, read_only=read_only, max_memory=max_memory)
    if index is None and make is None:
        index = indexes.open(place, read_only=read_only)  # type: ignore[arg-type]  # raises: there is no index
    try:
        if index is not None and check is not None:
            check(index)
        if index is not None and (make is None or index.dim is not None or ModelIdentity.stored_in(index)):
            query_model = _stored_model(index, model, device, backend, computing or {}, trust)
        else:
            query_model = given_model(model, device, computing, trust)
        query_model.is_deferred = index is not None and make is not None and model is None
        query_model.prepare()
        if index is None:
            return query_model, make()  # type: ignore[misc]  # without it, `open` has raised
        query_model.check(index)
        return query_model, index
    except BaseException:
        if index is not None and index is not place:
            index.close()
        raise


def find_index(
    place: PathLike | Index | None, *, read_only: bool = False, max_memory: int | str | None = None
) -> Index | None:
    """Return an open index, or the one in a folder; None if there is none yet, or another process is making one."""
    if isinstance(place, Index):
        if read_only or max_memory is not None:
            raise InvalidArgumentError(
                f"received read_only={read_only} and max_memory={short(max_memory)} for an open index; they are for "
                "one given by its folder. Open the index with them."
            )
        return place
    if place is None:
        return None
    try:
        return indexes.open(place, read_only=read_only, max_memory=max_memory)
    except IndexFormatError:
        # A catalog, with what SQLite puts beside it, is there before the index is described in it.
        if all(path.name.startswith(CATALOG) for path in (Path(place).iterdir() if is_folder(Path(place)) else ())):
            return None
        raise


def given_model(
    model: Any,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust: Mapping[str, Any] | None = None,
) -> QueryModel:
    """Return the model that a user gives; `trust` are options to load it with that no index stores."""
    if isinstance(model, QueryModel):
        return model
    if not isinstance(model, (str, os.PathLike, type(None))):
        from latelier.models import ColBERT

        if not isinstance(model, ColBERT):
            raise InvalidArgumentError(f"received {describe(model)} as the model; expected a ColBERT or a name.")
        _refuse_options(device, options, "a loaded model")
        return QueryModel(None, {}, lambda: model)
    name = os.fspath(DEFAULT_MODEL if model is None else model)
    if is_address(name):
        _refuse_options(device, options, "a model on a server")
        return QueryModel(None, {}, None, RemoteEncoder(name))
    if is_folder(Path(name)):  # as an absolute path, so that the index can be opened from any working directory
        name = str(Path(name).resolve())
    if not is_exported(name):
        computation = Computation.of(options or {})
        loaded = load(name, device=device, **computation.loading_options, **(trust or {}))
        return QueryModel(name, computation.identity_options, lambda: loaded, None, computation.compute_dtype)
    _refuse_options(None if device == "cpu" else device, options, "an exported encoder, which runs on the CPU,")
    return QueryModel(name, {}, None, ExportedEncoder(name))


def _refuse_options(device: str | None, options: Mapping[str, Any] | None, kind: str) -> None:
    if device is not None or options:
        raise InvalidArgumentError(f"{kind} takes no device and no options; omit device and model_options.")


def _stored_model(
    index: Index,
    model: PathLike | None,
    device: str | None,
    backend: str,
    computing: Mapping[str, Any],
    trust: Mapping[str, Any],
) -> QueryModel:
    """Return the model that an index names, or the one that the user names, loaded with the options that it stores."""
    try:
        stored = ModelIdentity.stored_in(index)
    except IndexFormatError:
        if model is None:
            raise
        stored = None
    options = dict(stored.options) if stored else {}
    asked = computing.get("compute_dtype", "auto")
    is_int8 = options.get("compute_dtype") == "int8"
    if index.dim is not None and asked != "auto" and (asked == "int8") != is_int8:
        if is_int8:
            filled = "in int8"
        else:
            filled = "in another dtype than int8"
        raise InvalidArgumentError(
            f"received compute_dtype={asked!r}, but the index was filled {filled}; omit it, or make a new index."
        )
    if model is not None:
        is_loaded = not (is_exported(model) or is_address(os.fspath(model)))
        return given_model(model, device, {**options, **computing} if is_loaded else computing, trust)
    if stored is None or stored.name is None or stored.unstored:
        reason = "does not name its model: it is empty, or filled with embeddings or with a model given as an object"
        if stored is not None and stored.name is not None:
            unstored = ", ".join(map(short, stored.unstored))
            reason = f"was filled by {short(stored.name)} with options that are not stored: {unstored}"
        raise InvalidArgumentError(f"{index!r} {reason}.", advice="give-model")
    on_cpu = device in (None, "cpu")
    name = stored.name
    if backend != "torch" and on_cpu:
        encoder = _exported_encoder(stored)
    else:
        encoder = None
    if backend == "onnx" and encoder is None:
        if on_cpu:
            where = "on the CPU of this machine"
        else:
            where = f"for device={device!r}, only for the CPU"
        raise InvalidArgumentError(f"there is no exported encoder of {short(name)} {where}.", advice="export-encoder")
    if not on_cpu or backend == "torch":  # which do not compute in int8
        options.pop("compute_dtype", None)
    computation = Computation.of({**options, **computing})
    loading = computation.loading_options
    return QueryModel(
        name, stored.options, lambda: load_untrusted(name, device, **loading), encoder, computation.compute_dtype
    )


class Computation(NamedTuple):
    """A model's options: to load it with, to compute in, and those (int8) that say which vectors it makes."""

    loading_options: dict[str, Any]
    compute_dtype: str
    identity_options: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Computation:
        """Divide the options that a user gives, or that an index stores."""
        others = dict(options)
        backend = others.pop("backend", None)
        dtype = others.pop("compute_dtype", None) or "auto"
        if dtype == "int8":
            identity = {**others, "compute_dtype": "int8"}
        else:
            identity = dict(others)
        if backend is None and dtype == "int8":
            backend = "onnx"
        if backend not in (None, "torch", "onnx", "auto"):  # whose vectors may differ
            identity["backend"] = backend
        return cls(others if backend is None else {**others, "backend": backend}, dtype, identity)


# The key among the settings of the index.
_SETTING = "retriever"
_SENTENCE = "Late interaction compares every word of a question with every word of a text."
# Minimum cosine of two fingerprints of the same weights: half precision gives 0.9999 or more, dynamic int8 about 0.99;
# other models give about 0.
_LEAST_COSINE = 0.97
# Pictures encoded before their vectors are pooled and rounded: about a thousand vectors each.
_PICTURES = 64
_NO_LIMIT = 1 << 30  # tokenizers that state no limit have a larger number
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
        stored = _read_identity(index)
        if stored is None:
            return None
        options = stored.get("options")
        unstored = stored.get("unstored", [])
        if isinstance(options, dict):
            given = options
        else:
            given = {"options": options}
        wrong = [name for name, value in given.items() if not _is_storable(name, value)]
        if wrong or not isinstance(unstored, list):
            raise IndexFormatError(
                f"{_FOREIGN}: the option {short([*wrong, 'unstored'][0])} is not one of {', '.join(_OPTIONS)}, or its "
                "value is not one of these.",
                advice="give-model",
            )
        return cls(stored["name"], given, stored["fingerprint"], [cut(str(name), 60) for name in unstored[:20]])

    def store_in(self, index: Index) -> None:
        """Store that this model fills the index."""
        index.settings[_SETTING] = self._asdict()

    def check(self, index: Index) -> None:
        """Raise `InvalidArgumentError` if other weights filled an index; the options are the user's own choice."""
        dim = index.dim
        if dim is None:
            return
        stored = _read_identity(index) or {"name": None, "fingerprint": None}
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
        if stored["fingerprint"] and not is_same_model(stored["fingerprint"], self.fingerprint):
            raise InvalidArgumentError(
                f"the index was filled by {filler} with other weights than this model has, so their embeddings cannot "
                "be compared. Retriever.open(path) loads the model that an index names; or make a new index."
            )


def _read_identity(index: Index) -> dict[str, Any] | None:
    """Return what an index stores about its model, its name and fingerprint checked, its options not."""
    try:
        stored = index.settings.get(_SETTING)
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
    cosine = np.dot(left, right) / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12)
    return bool(cosine >= _LEAST_COSINE)


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


def _is_storable(name: str, value: Any) -> bool:
    return name in _OPTIONS and (value is None or _OPTIONS[name](value))


def encoder_folder(identity: ModelIdentity) -> Path:
    """Return the folder for the exported encoder of a model, in the cache folder; it need not exist."""
    content = json.dumps([identity.name, identity.options, identity.fingerprint], sort_keys=True)
    return cache_folder() / "encoders" / hashlib.sha256(content.encode()).hexdigest()[:32]


def is_exported(folder: Any) -> bool:
    """Whether a folder holds an exported encoder."""
    try:
        return (Path(folder) / DESCRIPTION_FILE).is_file()
    except (OSError, ValueError):  # a name that is no path
        return False


def _exported_encoder(identity: ModelIdentity) -> ExportedEncoder | None:
    """Open the exported encoder of a model; None if there is none, it is damaged, or others can write it."""
    folder = encoder_folder(identity)
    if find_spec("onnxruntime") is None or not is_exported(folder) or not is_own(folder):
        return None
    try:
        return ExportedEncoder(folder)
    except ModelLoadError:
        return None


class QueryModel:
    """A model, loaded when it is first needed, its exported encoder, which needs no torch, or both."""

    def __init__(
        self,
        name: str | None,
        options: Mapping[str, Any],
        load: Callable[[], ColBERT] | None,
        encoder: ExportedEncoder | RemoteEncoder | None = None,
        compute_dtype: str = "auto",
    ) -> None:
        self.name = name
        self.options = dict(options)
        self.encoder = encoder
        self.compute_dtype = compute_dtype
        self._load = load
        self._lock = threading.Lock()
        # By default, sentence-transformers shows a bar if the program logs at the level INFO.
        self._encoding: dict[str, Any] = {"compute_dtype": compute_dtype, "show_progress_bar": False}
        self._loaded: ColBERT | None = None
        self._identity: ModelIdentity | None = None
        self._longer: QueryModel | None = None
        self.is_deferred = False  # whether it is loaded and checked only if there is something to write

    @property
    def loaded(self) -> ColBERT:
        """The model itself, loaded on first use."""
        if self._load is None:
            if self.name is None:
                given = "a server only encodes"
            else:
                given = f"{short(self.name)} is an exported encoder"
            raise InvalidArgumentError(f"{given}, without the model that this needs; give the model.")
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
            kept = {name: value for name, value in self.options.items() if _is_storable(name, value)}
            stored = {name: int(value) if is_count(value) else value for name, value in kept.items()}  # of numpy
            whole: Any = self._encode_whole([_SENTENCE])
            if not len(whole[0]):  # of documents, the model keeps the vectors of patches alone
                whole = self.loaded.encode_query([_SENTENCE], **self._encoding)
            vectors = TokenEmbeddings.from_list(whole).to("numpy").to("float32")[0]
            fingerprint = [round(float(value), 4) for value in np.mean(vectors, axis=0)]
            self._identity = ModelIdentity(self.name, stored, fingerprint, sorted(set(self.options) - set(stored)))
        return self._identity

    def prepare(self) -> None:
        """Load the model and compute its fingerprint, unless it is deferred or an exported encoder stands in for it."""
        if self.encoder is None and not self.is_deferred:
            _ = self.identity

    def check(self, index: Index) -> None:
        """Check the weights; an exported encoder of the cache is found by those that the index stores."""
        if (self.encoder is None and not self.is_deferred) or self._load is None:
            self.identity.check(index)

    def export(self, index: Index) -> Path:
        """Export the encoder for indexes that name this model as `index` does, unless there is a whole export."""
        if self.name is None:
            raise InvalidArgumentError("the model was given as an object, which no index names; give it by name.")
        model = self.loaded
        identity = ModelIdentity.stored_in(index) or self.identity
        folder = encoder_folder(identity)
        if not (is_own(folder) and is_whole(folder)):
            from latelier.models.onnx import export

            export(model, folder, compute_dtype=identity.options.get("compute_dtype", "float32"))
        return folder

    @property
    def dim(self) -> int:
        """Dimension of the token vectors."""
        if self.encoder is None:
            return self.loaded.embedding_size
        return self.encoder.embedding_size

    @property
    def is_mean(self) -> bool:
        """Whether the model's scores are means over the vectors of the query (``meanmaxsim``), not their sums."""
        return (self.encoder or self.loaded).similarity_fn_name == "meanmaxsim"

    @property
    def longest_query(self) -> int | None:
        """The most tokens of a query that the model can read; None if only its server knows."""
        if isinstance(self.encoder, RemoteEncoder):
            return None
        if self.encoder is not None:
            return self.encoder.longest_query
        from latelier.models.construction import longest_query

        return longest_query(self.loaded)

    def reading(self, query: str, *, whole: bool) -> QueryModel:
        """Return the model that reads a query; with `whole`, one of the same weights if this one would cut it."""
        if whole and self.longest_query is None:
            raise InvalidArgumentError("received whole_query=True, but the server that encodes cuts queries by itself.")
        if not whole or not self.unread([query], "query")[0]:
            return self
        if self._longer is None:
            self._longer = self._with_longer_queries()
        if tokens := self._longer.unread([query], "query")[0]:
            raise InvalidArgumentError(
                f"received whole_query=True for a query that is {tokens:,} tokens longer than the model can read at "
                f"all, {self.longest_query:,} tokens: {short(query)}; shorten it, or leave whole_query out."
            )
        return self._longer

    def _with_longer_queries(self) -> QueryModel:
        if self.encoder is not None:
            encoder: Any = self.encoder
            return QueryModel(self.name, self.options, None, encoder.with_longer_queries(), self.compute_dtype)
        from latelier.models.encoding import with_longer_queries

        loaded: Any = with_longer_queries(self.loaded)
        return QueryModel(self.name, self.options, lambda: loaded, None, self.compute_dtype)

    def encode_queries(self, texts: Sequence[str], *, whole: bool = False) -> TokenEmbeddings:
        """Return the token vectors of some queries, as numpy arrays; divided by their number if scores are means."""
        if whole:
            groups: dict[QueryModel, list[int]] = {}
            for i, text in enumerate(texts):
                groups.setdefault(self.reading(text, whole=True), []).append(i)
            parts = [model.encode_queries([texts[i] for i in rows]) for model, rows in groups.items()]
            return TokenEmbeddings.concatenate(parts)[np.argsort(list(chain(*groups.values())))]
        if self.encoder is not None:
            vectors = TokenEmbeddings.from_list(self.encoder.encode_queries(texts))
        else:
            packed: Any = self.loaded.encode_query(list(texts), packed=True, **self._encoding)
            vectors = packed.to("numpy")
        if not self.is_mean:
            return vectors
        counts = np.repeat(vectors.lengths, vectors.lengths)[:, None]
        return TokenEmbeddings(vectors.vectors / counts.astype("float32"), vectors.offsets)

    def encode_picture(self, picture: Picture) -> TokenEmbeddings:
        """Return the vectors of a picture that is a query, as numpy arrays."""
        if not self.reads_pictures:
            raise InvalidArgumentError("the query is a picture, and this model reads texts only; give a text.")
        from latelier.models.encoding import Job

        job = Job("query", compute_dtype=self.compute_dtype, truncate_dim=self.loaded.truncate_dim)
        return self._encode_pictures([picture], job).to("numpy")

    @property
    def reads_pictures(self) -> bool:
        """Whether documents may be pictures."""
        return self.can_load and "image" in self.loaded.modalities

    @property
    def reads_text_beside(self) -> bool:
        """Whether the model reads a text beside a picture; ColPali, ColQwen2 and others read one or the other."""
        return self.reads_pictures and not self._is_of_pages and self.loaded.supports(("image", "text"))

    @property
    def _is_of_pages(self) -> bool:
        """Whether the model takes any text for a query."""
        return self.can_load and getattr(self.loaded[0], "transformer_task", "") == "retrieval"

    def own_vectors(self, texts: Sequence[str], queries: TokenEmbeddings, *, whole: bool = False) -> TokenEmbeddings:
        """Return the vectors of tokens that stand for characters of the texts, or of all if none does."""
        rows: list[int] = []
        lengths: list[int] = []
        for text, first, last in zip(texts, queries.offsets[:-1].tolist(), queries.offsets[1:].tolist(), strict=True):
            try:
                ranges = self.reading(text, whole=whole).token_ranges(text, is_query=True)
            except LatelierError:  # the model pools the tokens of queries
                ranges = []
            own = [first + i for i, each in enumerate(ranges) if each is not None and first + i < last]
            rows += own or range(first, last)
            lengths.append(len(own) or last - first)
        vectors = queries.vectors[rows]
        if self.is_mean:
            vectors = vectors * np.repeat(queries.lengths, lengths)[:, None].astype("float32")
        return TokenEmbeddings(vectors, lengths_to_offsets(lengths))

    def encode_documents(
        self,
        documents: Sequence[str | Picture],
        *,
        batch_size: int,
        pool_factor: int = 1,
        precision: str | None = None,
    ) -> TokenEmbeddings:
        """Return the token vectors of some texts and pictures; arguments are those of `Retriever.add`."""

        def reduced(vectors: TokenEmbeddings) -> TokenEmbeddings:
            if pool_factor != 1:
                from latelier.models.pooling import pool_tokens

                vectors = pool_tokens(vectors, pool_factor)
            if precision is None:
                return vectors
            return vectors.to(precision)

        texts: list[str] = []
        pictures: list[Picture] = []
        for each in documents:
            texts.append(each) if isinstance(each, str) else pictures.append(each)
        if self._load is None:
            return reduced(TokenEmbeddings.from_list(self._encode_whole(texts)))
        from latelier.models.encoding import Job, packed_windows

        dtype = self.compute_dtype
        dim = self.loaded.truncate_dim
        job = Job("document", batch_size=batch_size, compute_dtype=dtype, truncate_dim=dim)
        windows = packed_windows(self.loaded, texts, job, precision if pool_factor == 1 else None)
        encoded = list(map(reduced, windows))
        for first in range(0, len(pictures), _PICTURES):
            encoded.append(reduced(self._encode_pictures(pictures[first : first + _PICTURES], job)))
        joined = TokenEmbeddings.concatenate(encoded)
        if not (texts and pictures):
            return joined
        order = np.argsort([not isinstance(each, str) for each in documents], kind="stable")
        return joined[np.argsort(order).tolist()]

    def _encode_pictures(self, pictures: Sequence[Picture], job: Job) -> TokenEmbeddings:
        from latelier.models.encoding import encode_pictures

        model = self.loaded
        job = replace(job, prompt=model.prompts.get(job.task), device=model.device, save_to_cpu=True)
        return encode_pictures(model, lambda i: pictures[i].load(), [each.pixels for each in pictures], job)

    def _encode_whole(self, texts: Sequence[str]) -> list[Any]:
        """Return the token vectors of documents as the model makes them."""
        if self.encoder is not None and self._load is None:
            return self.encoder.encode_documents(texts)
        task = "query" if self._is_of_pages else "document"
        return list(self.loaded.encode(list(texts), task=task, **self._encoding))

    def limits(self, task: str) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit."""
        if self.encoder is not None:
            longest = {"query": self.encoder.max_length_query, "document": self.encoder.max_length_document}
            return self.encoder.overhead(task), longest[task]
        from latelier.models.construction import max_length

        model: Any = self.loaded
        with tokenizer_lock(model.tokenizer):
            empty = model.tokenizer(model.prompts.get(task) or "", truncation=False, verbose=False)
        limit = max_length(model, task)
        return len(empty["input_ids"]), limit if limit < _NO_LIMIT else None

    def unread(self, texts: Sequence[str], task: str) -> list[int]:
        """Return how many tokens at the end of each text the model does not read; 0 where it cannot tell."""
        unread = [0] * len(texts)
        (overhead, limit) = self.limits(task)
        if limit is None or not (self.encoder or getattr(self.loaded.tokenizer, "is_fast", False)):
            return unread
        # A token has more than two bytes on average: shorter texts need not be tokenised to know that they are read.
        most = 2 * (limit - overhead)
        long = [i for i, text in enumerate(texts) if len(text) * (1 if text.isascii() else 3) > most]
        if long:
            for i, starts in zip(long, self.token_starts([texts[i] for i in long]), strict=True):
                unread[i] = max(0, len(starts) + overhead - limit)
        return unread

    @property
    def settings(self) -> dict[str, Any]:
        """What its vectors depend on, as JSON values, for reports."""
        revision: Any = self.options.get("revision")
        dtype: Any = self.compute_dtype
        name: Any = self.name
        if self.encoder is None:
            from latelier.models.construction import encoder_module

            model: Any = self.loaded
            module = encoder_module(model)
            config = getattr(module, "config", None)
            name = name or getattr(config, "name_or_path", None)
            revision = revision or getattr(config, "_commit_hash", None)
            dtype = str(model.dtype).removeprefix("torch.") + ("" if dtype == "auto" else f", computed in {dtype}")
            tasks = {task: (model.prompts.get(task), module.query_expansion) for task in ("query", "document")}
        else:
            dtype = self.encoder.compute_dtype
            tasks = {task: self.encoder.settings(task) for task in ("query", "document")}
        found = {"model": name, "revision": revision, "dtype": dtype}
        for task, (prompt, _) in tasks.items():
            found |= {f"{task}_length": self.limits(task)[1], f"{task}_prompt": prompt or ""}
        expansion = tasks["query"][1]
        return {**found, "expansion": dict(expansion) if expansion else None}

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the first character of each token of each text."""
        if self.encoder is not None:
            offsets = self.encoder.text_offsets
        else:
            offsets = tokenizer_offsets(self.loaded.tokenizer)
        return token_starts(offsets, texts)

    def tokens(self, text: str, *, is_query: bool) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""
        return (self.encoder or self.loaded).tokens(text, is_query=is_query)

    def token_ranges(self, text: str, *, is_query: bool) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""
        if self.encoder is not None:
            return self.encoder.token_ranges(text, is_query=is_query)
        from latelier.models.tokenization import scored_ranges

        return scored_ranges(self.loaded, self.loaded.tokenize([text], is_query=is_query), text)

    def picture_tokens(self, width: int, height: int) -> PictureTokens:
        """Return the tokens of a picture of this size that have a vector, and the grid of its patches."""
        from latelier.models.tokenization import picture_tokens

        return picture_tokens(self.loaded, width, height)

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


def checked_queries(texts: Any, name: str = "queries") -> list[str]:
    """Return one text or several as a list of texts that can be encoded; messages call them `name`."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # an iterable of other things
        raise InvalidArgumentError(
            f"received a {type(texts).__name__} as {name}; expected a text or a list of texts, such as the column of a "
            'data frame that holds them: df["text"].'
        )
    queries = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(queries):
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"{name}[{position}] is {short(text)}; expected a text that is not empty.")
        check_unicode(text, f"{name}[{position}]")
    return queries
