"""`QueryModel`: the model of a retriever, loaded when it is needed, and its exported encoder, which needs no torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes import Index
from latelier.models.loading import load, load_untrusted
from latelier.models.token_starts import token_starts, tokenizer_offsets
from latelier.models.tokenizer_lock import tokenizer_lock
from latelier.retrieve.computation import Computation
from latelier.retrieve.encoder_store import export_encoder, find_encoder, is_exported, open_encoder
from latelier.retrieve.model_identity import ModelIdentity
from latelier.utils.checks import check_choice, describe, short

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.models.exported import ExportedEncoder

__all__ = ["QueryModel", "check_query_backend"]


def check_query_backend(backend: Any, model: Any) -> None:
    """Check what is to encode the queries of an index, before the index is opened.

    Parameters
    ----------
    backend
        ``"auto"``, ``"onnx"`` or ``"torch"``, see `latelier.retrieve.Retriever.open`.
    model
        Name or folder of the model, or folder of an exported encoder, that the user names; None: the index's own.

    Raises
    ------
    InvalidArgumentError
        If the backend is unknown, or not that of the model that the user names, or the model is not named.
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
        """Return where the tokens of texts begin, see `latelier.models.token_starts`."""
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
