"""`QueryModel`: what a retriever encodes queries and documents with; opening it, and the indexes beside it.

No encoder is read from the folder of an index, which may be anybody's: one that this user has exported is found in the
cache folder by name, options and fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from latelier.models.location import find_named
from latelier.models.untrusted import load_untrusted
from latelier.retrieve.choice import Asked, Choice, Kind, Machine, Stored, choose
from latelier.retrieve.encoders import Encoder, LoadedEncoder, Task, reduced
from latelier.retrieve.identity import ModelIdentity, is_same_model, is_storable
from latelier.retrieve.queries import EncodedQueries
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_unicode, describe, is_count, short
from latelier.utils.files import CATALOG, cache_folder, is_folder
from latelier.utils.misc import warn_caller

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.reading.images import Picture

# Characters of a query that are read: many more than the tokens of any model.
_LONGEST_QUERY = 100_000
# The sentence of the fingerprint of a model's weights.
_SENTENCE = "Late interaction compares every word of a question with every word of a text."


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


def open_model(asked: Asked, index: Index | None = None) -> QueryModel:
    """Return what to encode with, for an index that stores which model has filled it, or for none."""
    if isinstance(asked.model, QueryModel):
        return asked.model
    kind = _kind(asked.model)
    if kind == "checkpoint" and asked.model is not None and is_folder(Path(asked.model)):
        # An absolute path, so that the index can be opened from any working directory.
        asked = asked._replace(model=str(Path(asked.model).resolve()))
    stored = Stored()
    if index is not None:
        is_named = asked.model is not None or asked.purpose == "use"
        identity = ModelIdentity.readable_in(index) if is_named else ModelIdentity.stored_in(index)
        stored = Stored(identity, index.dim is not None, ModelIdentity.of_queries_in(index))
    choice = choose(asked, kind, stored, Machine(is_installed(), _has_accelerator))
    if choice.kind == "object":
        return QueryModel.of(asked.model)
    return _open(choice, stored)


def _kind(model: Any) -> Kind:
    """Return what a user names a model by; the default is a checkpoint."""
    if not isinstance(model, (str, os.PathLike, type(None))):
        from latelier.models import ColBERT

        if not isinstance(model, ColBERT):
            raise InvalidArgumentError(f"received {describe(model)} as the model; expected a ColBERT or a name.")
        return "object"
    if model is not None and is_exported(model):
        return "export"
    return "checkpoint"


def _has_accelerator() -> bool:
    """Whether torch would compute on a GPU, or another device that is faster than the CPU."""
    import torch

    return torch.accelerator.is_available()


def _open(choice: Choice, stored: Stored) -> QueryModel:
    """Open what was chosen: the only place that does."""
    name = str(choice.name)
    if choice.kind == "export":
        alone = ExportedEncoder(name)
        return QueryModel(name, {}, alone, alone)
    opening = load if choice.is_trusted else load_untrusted
    model = LoadedEncoder(partial(opening, name, choice.device, **choice.loading), choice.compute_dtype)
    exported = None
    if choice.exported == "cached":
        exported = _cached_encoder(stored, name)
    elif choice.exported == "int8":
        exported = _int8_encoder(name, choice.loading)
    if exported is None and choice.needs_export:
        raise InvalidArgumentError(
            f"there is no exported encoder of {short(name)} on the CPU of this machine.", advice="export-encoder"
        )
    if exported is None:
        if choice.is_trusted:  # what is wrong with a model that the user names is told at once
            _ = model.loaded
        return QueryModel(name, choice.identity, model, model, model)
    # In int8 the model would compute what its export does.
    documents: Encoder = exported if choice.compute_dtype == "int8" else model
    return QueryModel(name, choice.identity, exported, documents, model)


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


def _cached_encoder(stored: Stored, name: str) -> ExportedEncoder | None:
    """Open the exported encoder of a stored model; None if there is none, it is damaged, or others can write it."""
    identity = next(each for each in (stored.of_queries, stored.identity) if each is not None and each.name == name)
    folder = encoder_folder(identity)
    if find_spec("onnxruntime") is None or not is_exported(folder) or not is_own(folder):
        return None
    try:
        return ExportedEncoder(folder)
    except ModelLoadError:
        return None


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


class QueryModel:
    """What a retriever encodes with: an encoder for queries, and one for documents.

    Often the two are one. `model`: the model itself, loaded when it is first needed, for what its vectors are not
    enough for; None for an exported encoder that the user gives.
    """

    def __init__(
        self,
        name: str | None,
        options: Mapping[str, Any],
        queries: Encoder,
        documents: Encoder,
        model: LoadedEncoder | None = None,
    ) -> None:
        self.name = name
        self.options = dict(options)
        self.queries = queries
        self.documents = documents
        self._model = model
        self._identity: ModelIdentity | None = None
        self._longer: QueryModel | None = None

    @classmethod
    def of(cls, model: ColBERT, compute_dtype: str = "auto") -> QueryModel:
        """Return a model that is given as an object."""
        encoder = LoadedEncoder(lambda: model, compute_dtype)
        return cls(None, {}, encoder, encoder, encoder)

    @property
    def model(self) -> LoadedEncoder:
        """The model, or an error if there is only an encoder."""
        if self._model is None:
            raise InvalidArgumentError(
                f"{short(self.name)} is an exported encoder, without the model that this needs; give the model."
            )
        return self._model

    @property
    def identity(self) -> ModelIdentity:
        """The name, the storable options and the fingerprint of the model, or of an encoder without a model."""
        if self._identity is None:
            kept = {name: value for name, value in self.options.items() if is_storable(name, value)}
            stored = {name: int(value) if is_count(value) else value for name, value in kept.items()}  # of numpy
            encoder = self.documents
            vectors = encoder.encode([_SENTENCE], "document").to("float32")[0]
            if not len(vectors):  # of documents, the model keeps the vectors of patches alone
                vectors = encoder.encode([_SENTENCE], "query").to("float32")[0]
            fingerprint = [round(float(value), 4) for value in np.mean(vectors, axis=0)]
            self._identity = ModelIdentity(self.name, stored, fingerprint, sorted(set(self.options) - set(stored)))
        return self._identity

    def prepare(self) -> None:
        """Load the model and compute its fingerprint, unless queries have an encoder that was found by it."""
        if self.queries is self.documents:
            _ = self.identity

    def check(self, index: Index, *, same_space: bool = False) -> None:
        """Check that its weights are those that filled the index, unless its encoder was found by them."""
        if self.queries is self.documents:
            self.identity.check(index, same_space=same_space)
        if not same_space:
            return
        if self.queries is self.documents and self._model is not None:
            self.identity.keep_for_queries_in(index)
        stored = ModelIdentity.stored_in(index)
        expected = ((stored and stored.options.get("prompts")) or {}).get("query")
        prompt = self.queries.prompt_and_expansion("query")[0] or ""
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
        model = self.model
        if isinstance(self.documents, ExportedEncoder):
            self.documents.copy_to(folder)
            return folder
        from latelier.models.onnx_export import export

        export(model.loaded, folder, compute_dtype=identity.options.get("compute_dtype", "float32"))
        return folder

    @property
    def dim(self) -> int:
        """Dimension of the token vectors."""
        return self.queries.embedding_size

    @property
    def hidden_size(self) -> int:
        """The numbers of a token between the layers of the model, or 768 where it does not say."""
        if not isinstance(self.documents, LoadedEncoder):
            return 768
        encoder: Any = getattr(self.documents.loaded[0], "model", None)
        return int(getattr(getattr(encoder, "config", None), "hidden_size", 768))

    @property
    def is_mean(self) -> bool:
        """Whether the model's scores are means over the vectors of the query (``meanmaxsim``), not their sums."""
        return self.queries.similarity_fn_name == "meanmaxsim"

    def reading(self, query: str, *, whole: bool) -> QueryModel:
        """Return the model that reads a query; with `whole`, one of the same weights if this one would cut it."""
        if not whole:
            return self
        if not self.unread([query], "query")[0]:
            return self
        if self._longer is None:
            longer = self.queries.with_longer_queries()
            self._longer = QueryModel(self.name, self.options, longer, longer)
        if tokens := self._longer.unread([query], "query")[0]:
            raise InvalidArgumentError(
                f"received whole_query=True for a query that is {tokens:,} tokens longer than the model can read at "
                f"all, {self.queries.longest_query:,} tokens: {short(query)}; shorten it, or leave whole_query out."
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
        vectors = self.queries.encode(texts, "query")
        if not self.is_mean:
            return vectors
        counts = np.repeat(vectors.lengths, vectors.lengths)[:, None]
        return TokenEmbeddings(vectors.vectors / counts.astype("float32"), vectors.offsets)

    def encode_for_search(self, texts: list[str], *, whole: bool, with_own: bool) -> EncodedQueries:
        """Return queries for a search by vectors; `with_own`: with the vectors that a mean score is the mean of."""
        vectors = self.encode_queries(texts, whole=whole)
        own = None
        if with_own:
            own = self.own_vectors(texts, vectors, whole=whole)
        return EncodedQueries(texts, vectors, own)

    def encode_picture(self, picture: Picture) -> TokenEmbeddings:
        """Return the vectors of a picture that is a query, as numpy arrays."""
        if not isinstance(self.documents, LoadedEncoder) or not self.documents.reads_pictures:
            raise InvalidArgumentError("the query is a picture, and this model reads texts only; give a text.")
        return self.documents.encode_picture(picture)

    @property
    def reads_pictures(self) -> bool:
        """Whether documents may be pictures."""
        return isinstance(self.documents, LoadedEncoder) and self.documents.reads_pictures

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
        bar: Any = None,
    ) -> TokenEmbeddings:
        """Return the token vectors of some texts and pictures; arguments are those of `Retriever.add`.

        `bar` is told how many are encoded, if what encodes knows before the end.
        """
        if isinstance(self.documents, LoadedEncoder):
            return self.documents.encode_documents(
                documents, batch_size=batch_size, pool_factor=pool_factor, precision=precision, bar=bar
            )
        texts = [document for document in documents if isinstance(document, str)]
        if isinstance(self.documents, ExportedEncoder):
            encoded = self.documents.encode(texts, "document", bar)
        else:
            encoded = self.documents.encode(texts, "document")
        return reduced(encoded, pool_factor, precision)

    def limits(self, task: Task) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit."""
        return self.queries.limits(task)

    def unread(self, texts: Sequence[str], task: Task) -> list[int]:
        """Return how many tokens at the end of each text the model does not read; 0 where it cannot tell."""
        unread = [0] * len(texts)
        (overhead, limit) = self.limits(task)
        if limit is None or not self.queries.has_offsets:
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
        origin = self.queries.origin
        settings: dict[str, Any] = {
            "model": self.name or origin["model"],
            "revision": self.options.get("revision") or origin["revision"],
            "dtype": origin["dtype"],
        }
        tasks: tuple[Task, ...] = ("query", "document")
        for task in tasks:
            settings[f"{task}_length"] = self.limits(task)[1]
            settings[f"{task}_prompt"] = self.queries.prompt_and_expansion(task)[0] or ""
        expansion = self.queries.prompt_and_expansion("query")[1]
        return {**settings, "expansion": dict(expansion) if expansion else None}

    def token_starts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the first character of each token of each text."""
        return token_starts(self.queries.text_offsets, texts)

    def tokens(self, text: str, *, is_query: bool) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""
        return self.queries.tokens(text, is_query=is_query)

    def token_ranges(self, text: str, *, is_query: bool) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""
        return self.queries.token_ranges(text, is_query=is_query)


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
