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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
from latelier.models.exported_encoder import (
    DESCRIPTION_FILE,
    ExportedEncoder,
    is_installed,
    is_own,
    is_whole,
    token_starts,
)
from latelier.models.loading import load
from latelier.models.location import DEFAULT_MODEL, find_named
from latelier.models.untrusted import load_untrusted
from latelier.retrieve.encoders import Encoder, LoadedEncoder, Task, reduced
from latelier.retrieve.query_transform import change_queries
from latelier.retrieve.remote import RemoteEncoder, is_address
from latelier.retrieve.results import EncodedQueries
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_choice, check_unicode, cut, describe, is_count, short
from latelier.utils.files import CATALOG, cache_folder, is_folder
from latelier.utils.misc import warn_caller

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.reading.images import Picture


class DeferredModel(NamedTuple):
    """A model that a retriever opens when it is first needed."""

    open: Callable[[], QueryModel]


def open_index(place: PathLike | Index, *, read_only: bool = False, max_memory: int | str | None = None) -> Index:
    """Return an open index, or the one in a folder."""
    index = find_index(place, read_only=read_only, max_memory=max_memory)
    if index is None:
        return indexes.open(place, read_only=read_only)  # type: ignore[arg-type]  # raises: there is no index
    return index


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
        return QueryModel.of(model)
    name = os.fspath(DEFAULT_MODEL if model is None else model)
    if is_address(name):
        _refuse_options(device, options, "a model on a server")
        return QueryModel(None, {}, RemoteEncoder(name))
    if is_folder(Path(name)):  # as an absolute path, so that the index can be opened from any working directory
        name = str(Path(name).resolve())
    if not is_exported(name):
        computation = Computation.of(options or {})
        loading = {**computation.loading_options, **(trust or {})}
        encoder = None
        if computation.compute_dtype == "int8" and device in (None, "cpu"):
            encoder = _int8_encoder(name, loading)
        if encoder is not None:
            model = LoadedEncoder(lambda: load(name, device=device, **loading), computation.compute_dtype)
            return QueryModel(name, computation.identity_options, encoder, model)
        loaded = load(name, device=device, **loading)
        model = LoadedEncoder(lambda: loaded, computation.compute_dtype)
        return QueryModel(name, computation.identity_options, model, model)
    _refuse_options(None if device == "cpu" else device, options, "an exported encoder, which runs on the CPU,")
    return QueryModel(name, {}, ExportedEncoder(name))


def _int8_encoder(name: str, loading: Mapping[str, Any]) -> ExportedEncoder | None:
    """Return the int8 encoder of a model that can be exported without torch; None for others."""
    lengths = {key: value for key, value in loading.items() if key not in ("backend", "revision")}
    if not set(lengths) <= {"max_length_query", "max_length_document"} or not is_installed():
        return None
    from latelier.models.bert_export import export_int8

    try:
        folder = export_int8(find_named(name, loading.get("revision")), lengths)
    except (ModelLoadError, OSError, ValueError):  # what is wrong is told when the model is loaded
        return None
    if folder is None:
        return None
    return ExportedEncoder(folder)


def options_of_filled(index: Index, model: Any, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options to load a model with for an index: in int8 if it was filled so.

    Raises `InvalidArgumentError` if the user asks for another `compute_dtype`.
    """
    given = dict(options or {})
    stored = None
    with suppress(IndexFormatError):  # options in a form of others are not followed
        stored = ModelIdentity.stored_in(index)
    if stored is None:
        return given
    _check_dtype(index, stored.options, given)
    if _leaves_open(model, given) and stored.options.get("compute_dtype") == "int8":
        given["compute_dtype"] = "int8"
    return given


def options_of_new(model: Any, device: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to load a model with for a new index of the command line: in int8, where that is as good.

    For the default model, whose nDCG@10 stays the same, where ONNX Runtime is installed and there is no GPU.
    """
    given = dict(options)
    is_default = model in (None, DEFAULT_MODEL, DEFAULT_MODEL.split("/")[1])
    if not is_default or not _leaves_open(model, given) or not is_installed():
        return given
    if device == "cpu" or (device is None and not _has_accelerator()):
        given["compute_dtype"] = "int8"
    return given


def _leaves_open(model: Any, options: Mapping[str, Any]) -> bool:
    """Whether a model is given by name, without a word on what to compute it in."""
    if "backend" in options or "compute_dtype" in options:
        return False
    if model is None:
        return True
    return isinstance(model, (str, os.PathLike)) and not (is_exported(model) or is_address(os.fspath(model)))


def _has_accelerator() -> bool:
    """Whether torch would compute on a GPU, or another device that is faster than the CPU."""
    import torch

    return torch.accelerator.is_available()


def _refuse_options(device: str | None, options: Mapping[str, Any] | None, kind: str) -> None:
    if device is not None or options:
        raise InvalidArgumentError(f"{kind} takes no device and no options; omit device and model_options.")


def model_to_write(
    index: Index | None,
    model: PathLike | None,
    *,
    device: str | None,
    computing: Mapping[str, Any],
    trust_remote_code: bool,
) -> QueryModel:
    """Return the model for an index that gets documents: the one that filled it, or for a new one any."""
    if index is not None and (index.dim is not None or ModelIdentity.stored_in(index)):
        return open_model(index, model, device=device, computing=computing, trust_remote_code=trust_remote_code)
    return given_model(model, device, options_of_new(model, device, computing), _trust(model, trust_remote_code))


def open_model(
    index: Index,
    model: PathLike | None,
    *,
    device: str | None = None,
    backend: str = "auto",
    computing: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> QueryModel:
    """Return the model that an index names, or the one that the user names, loaded with the options that it stores."""
    trust = _trust(model, trust_remote_code)
    _check_backend(backend, model)
    computing = computing or {}
    try:
        stored = ModelIdentity.stored_in(index)
    except IndexFormatError:
        if model is None:
            raise
        stored = None
    options = dict(stored.options) if stored else {}
    _check_dtype(index, options, computing)
    if model is None:
        return _named_model(index, stored, device, backend, computing)
    if is_exported(model) or is_address(os.fspath(model)):
        return given_model(model, device, computing, trust)
    return given_model(model, device, {**options, **computing}, trust)


def _trust(model: PathLike | None, trust_remote_code: bool) -> dict[str, Any]:
    """Return the options to load a model with that no index stores."""
    if not trust_remote_code:
        return {}
    if model is None:
        raise InvalidArgumentError(
            "only a model that you name is trusted, not one that an index names.", advice="give-model"
        )
    return {"trust_remote_code": True}


def _check_backend(backend: str, model: PathLike | None) -> None:
    check_choice("backend", backend, ["auto", "onnx", "torch"])
    if model is not None and backend != "auto" and is_exported(model) != (backend == "onnx"):
        kind = "" if is_exported(model) else "not "
        raise InvalidArgumentError(
            f"received backend={backend!r} for {short(str(model))}, which is {kind}the folder of an exported encoder "
            "(Retriever.export_encoder() returns one); omit one of them."
        )


def _check_dtype(index: Index, options: Mapping[str, Any], computing: Mapping[str, Any]) -> None:
    asked = computing.get("compute_dtype") or "auto"
    is_int8 = options.get("compute_dtype") == "int8"
    if index.dim is None or asked == "auto" or (asked == "int8") == is_int8:
        return
    if is_int8:
        filled = "in int8"
    else:
        filled = "in another dtype than int8"
    raise InvalidArgumentError(
        f"received compute_dtype={asked!r}, but the index was filled {filled}; omit it, or make a new index."
    )


def _named_model(
    index: Index, stored: ModelIdentity | None, device: str | None, backend: str, computing: Mapping[str, Any]
) -> QueryModel:
    """Return the model that an index names; its exported encoder stands in for it where there is one."""
    if stored is None or stored.name is None or stored.unstored:
        reason = "does not name its model: it is empty, or filled with embeddings or with a model given as an object"
        if stored is not None and stored.name is not None:
            unstored = ", ".join(map(short, stored.unstored))
            reason = f"was filled by {short(stored.name)} with options that are not stored: {unstored}"
        raise InvalidArgumentError(f"{index!r} {reason}.", advice="give-model")
    name = stored.name
    on_cpu = device in (None, "cpu")
    encoder = None
    if backend != "torch" and on_cpu:
        encoder = _exported_encoder(stored)
    if backend == "onnx" and encoder is None:
        if on_cpu:
            where = "on the CPU of this machine"
        else:
            where = f"for device={device!r}, only for the CPU"
        raise InvalidArgumentError(f"there is no exported encoder of {short(name)} {where}.", advice="export-encoder")
    options = {**stored.options, **computing}
    if not on_cpu or backend == "torch":  # which do not compute in int8, unless the user asks for it
        options = {**stored.options, "compute_dtype": None, **computing}
    computation = Computation.of(options)
    loading = computation.loading_options
    model = LoadedEncoder(lambda: load_untrusted(name, device, **loading), computation.compute_dtype)
    return QueryModel(name, stored.options, encoder or model, model)


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
_LEAST_COSINE_OF_A_SPACE = 0.3  # of models that were trained for one space; of others it is chance
# Characters of a query that are read: many more than the tokens of any model.
_LONGEST_QUERY = 100_000
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

    def check(self, index: Index, *, same_space: bool = False) -> None:
        """Raise `InvalidArgumentError` if other weights filled an index; the options are the user's own choice.

        `same_space`: the user says that the vectors of both can be compared; their dimensions have to be equal.
        """
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
    """What a retriever encodes with: queries by `encoder`; documents by `model`, if it has one, else by `encoder` too.

    The two are one loaded model, or the exported encoder of the cache stands in for a model that is loaded when
    documents are added. In int8 the model would compute what the exported encoder does, so that encodes documents too.
    An exported encoder that the user gives, and that of a server, have no model.
    """

    def __init__(
        self,
        name: str | None,
        options: Mapping[str, Any],
        encoder: Encoder,
        model: LoadedEncoder | None = None,
    ) -> None:
        self.name = name
        self.options = dict(options)
        self.encoder = encoder
        self.model = model
        self._identity: ModelIdentity | None = None
        self._longer: QueryModel | None = None

    @classmethod
    def of(cls, model: ColBERT, compute_dtype: str = "auto") -> QueryModel:
        """Return a model that is given as an object."""
        encoder = LoadedEncoder(lambda: model, compute_dtype)
        return cls(None, {}, encoder, encoder)

    @property
    def loading(self) -> LoadedEncoder:
        """The model, or an error if there is only an encoder."""
        if self.model is None:
            if self.name is None:
                given = "a server only encodes"
            else:
                given = f"{short(self.name)} is an exported encoder"
            raise InvalidArgumentError(f"{given}, without the model that this needs; give the model.")
        return self.model

    @property
    def loaded(self) -> ColBERT:
        """The model itself, loaded on first use."""
        return self.loading.loaded

    @property
    def identity(self) -> ModelIdentity:
        """The name, the storable options and the fingerprint of the model, or of an encoder without a model."""
        if self._identity is None:
            kept = {name: value for name, value in self.options.items() if _is_storable(name, value)}
            stored = {name: int(value) if is_count(value) else value for name, value in kept.items()}  # of numpy
            encoder = self.documents_model or self.encoder
            vectors = encoder.encode([_SENTENCE], "document").to("float32")[0]
            if not len(vectors):  # of documents, the model keeps the vectors of patches alone
                vectors = encoder.encode([_SENTENCE], "query").to("float32")[0]
            fingerprint = [round(float(value), 4) for value in np.mean(vectors, axis=0)]
            self._identity = ModelIdentity(self.name, stored, fingerprint, sorted(set(self.options) - set(stored)))
        return self._identity

    @property
    def documents_model(self) -> LoadedEncoder | None:
        """The model that encodes documents; None where the encoder does, which is all there is or computes the same."""
        if self.model is None or self.encoder is self.model or self.model.compute_dtype != "int8":
            return self.model
        return None

    @property
    def has_stand_in(self) -> bool:
        """Whether an encoder of the cache, found by the weights that the index stores, encodes queries alone."""
        return self.documents_model is not None and self.encoder is not self.model

    def prepare(self) -> None:
        """Load the model and compute its fingerprint, unless an encoder stands in for it."""
        if not self.has_stand_in:
            _ = self.identity

    def check(self, index: Index, *, same_space: bool = False) -> None:
        """Check that its weights are those that filled the index, unless an encoder stands in for it."""
        if not self.has_stand_in:
            self.identity.check(index, same_space=same_space)
        if not same_space:
            return
        stored = ModelIdentity.stored_in(index)
        expected = ((stored and stored.options.get("prompts")) or {}).get("query")
        prompt = self.encoder.prompt_and_expansion("query")[0] or ""
        if expected is not None and prompt != expected:
            warn_caller(
                f"this model puts {short(prompt)} before a query, and the index was filled with the prompt "
                f"{short(expected)} for queries."
            )

    def export(self, index: Index) -> Path:
        """Export the encoder for indexes that name this model as `index` does, unless there is a whole export."""
        if self.name is None:
            raise InvalidArgumentError("the model was given as an object, which no index names; give it by name.")
        identity = ModelIdentity.stored_in(index)
        if identity is None or not is_same_model(identity.fingerprint, self.identity.fingerprint):
            identity = self.identity  # of another model of the same space, not of the one that filled the index
        folder = encoder_folder(identity)
        if is_own(folder) and is_whole(folder):
            return folder
        if isinstance(self.encoder, ExportedEncoder) and self.model is not None and self.documents_model is None:
            self.encoder.copy_to(folder)
            return folder
        from latelier.models.onnx_export import export

        export(self.loaded, folder, compute_dtype=identity.options.get("compute_dtype", "float32"))
        return folder

    @property
    def dim(self) -> int:
        """Dimension of the token vectors."""
        return self.encoder.embedding_size

    @property
    def hidden_size(self) -> int:
        """The numbers of a token between the layers of the model, or 768 where it does not say."""
        if self.documents_model is None:
            return 768
        encoder: Any = getattr(self.loaded[0], "model", None)
        return int(getattr(getattr(encoder, "config", None), "hidden_size", 768))

    @property
    def is_untrained(self) -> bool:
        """Whether it is a dense model without training for late interaction; False if only its server knows."""
        return (self.documents_model or self.encoder).is_untrained

    @property
    def is_mean(self) -> bool:
        """Whether the model's scores are means over the vectors of the query (``meanmaxsim``), not their sums."""
        return self.encoder.similarity_fn_name == "meanmaxsim"

    def reading(self, query: str, *, whole: bool) -> QueryModel:
        """Return the model that reads a query; with `whole`, one of the same weights if this one would cut it."""
        if not whole:
            return self
        longest = self.encoder.longest_query
        if longest is None:
            raise InvalidArgumentError("received whole_query=True, but the server that encodes cuts queries by itself.")
        if not self.unread([query], "query")[0]:
            return self
        if self._longer is None:
            if self.model is not None and self.encoder is self.model:
                model = self.model.with_longer_queries()
                self._longer = QueryModel(self.name, self.options, model, model)
            else:
                self._longer = QueryModel(self.name, self.options, self.encoder.with_longer_queries())
        if tokens := self._longer.unread([query], "query")[0]:
            raise InvalidArgumentError(
                f"received whole_query=True for a query that is {tokens:,} tokens longer than the model can read at "
                f"all, {longest:,} tokens: {short(query)}; shorten it, or leave whole_query out."
            )
        return self._longer

    def encode_queries(self, texts: Sequence[str], *, whole: bool = False) -> TokenEmbeddings:
        """Return the token vectors of some queries, as numpy arrays; divided by their number if scores are means."""
        if whole:
            groups: dict[QueryModel, list[int]] = {}
            for i, text in enumerate(texts):
                groups.setdefault(self.reading(text, whole=True), []).append(i)
            parts = [model.encode_queries([texts[i] for i in rows]) for model, rows in groups.items()]
            return TokenEmbeddings.concatenate(parts)[np.argsort(list(chain(*groups.values())))]
        vectors = self.encoder.encode(texts, "query")
        if not self.is_mean:
            return vectors
        counts = np.repeat(vectors.lengths, vectors.lengths)[:, None]
        return TokenEmbeddings(vectors.vectors / counts.astype("float32"), vectors.offsets)

    def encode_for_search(
        self, texts: list[str], index: Index, *, whole: bool, plain: bool, with_own: bool
    ) -> EncodedQueries:
        """Return queries for a search of an index by vectors, changed as it says unless they are to be `plain`.

        `with_own`: with the vectors that a mean score is the mean of, which are not changed.
        """
        vectors = self.encode_queries(texts, whole=whole)
        own = None
        if with_own:
            own = self.own_vectors(texts, vectors, whole=whole)
        return EncodedQueries(texts, change_queries(vectors, index, plain=plain), own)

    def encode_picture(self, picture: Picture) -> TokenEmbeddings:
        """Return the vectors of a picture that is a query, as numpy arrays."""
        if self.model is None or not self.reads_pictures:
            raise InvalidArgumentError("the query is a picture, and this model reads texts only; give a text.")
        return self.model.encode_picture(picture)

    @property
    def reads_pictures(self) -> bool:
        """Whether documents may be pictures."""
        return self.documents_model is not None and self.documents_model.reads_pictures

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
        if self.documents_model is not None:
            return self.documents_model.encode_documents(
                documents, batch_size=batch_size, pool_factor=pool_factor, precision=precision
            )
        texts = [document for document in documents if isinstance(document, str)]
        return reduced(self.encoder.encode(texts, "document"), pool_factor, precision)

    def limits(self, task: Task) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit."""
        return self.encoder.limits(task)

    def unread(self, texts: Sequence[str], task: Task) -> list[int]:
        """Return how many tokens at the end of each text the model does not read; 0 where it cannot tell."""
        unread = [0] * len(texts)
        (overhead, limit) = self.limits(task)
        if limit is None or not self.encoder.has_offsets:
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
        origin = self.encoder.origin
        settings: dict[str, Any] = {
            "model": self.name or origin["model"],
            "revision": self.options.get("revision") or origin["revision"],
            "dtype": origin["dtype"],
        }
        tasks: tuple[Task, ...] = ("query", "document")
        for task in tasks:
            settings[f"{task}_length"] = self.limits(task)[1]
            settings[f"{task}_prompt"] = self.encoder.prompt_and_expansion(task)[0] or ""
        expansion = self.encoder.prompt_and_expansion("query")[1]
        return {**settings, "expansion": dict(expansion) if expansion else None}

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the first character of each token of each text."""
        return token_starts(self.encoder.text_offsets, texts)

    def tokens(self, text: str, *, is_query: bool) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""
        return self.encoder.tokens(text, is_query=is_query)

    def token_ranges(self, text: str, *, is_query: bool) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""
        return self.encoder.token_ranges(text, is_query=is_query)


def checked_queries(texts: Any, name: str = "queries") -> list[str]:
    """Return one text or several as a list of texts that can be encoded, cut; messages call them `name`."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # an iterable of other things
        raise InvalidArgumentError(
            f"received a {type(texts).__name__} as {name}; expected a text or a list of texts, such as the column of a "
            'data frame that holds them: df["text"].'
        )
    if not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"received {short(texts)} as {name}; expected a text or a list of texts.")
    queries = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(queries):
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"{name}[{position}] is {short(text)}; expected a text that is not empty.")
        check_unicode(text, f"{name}[{position}]")
    return [text[:_LONGEST_QUERY] for text in queries]
