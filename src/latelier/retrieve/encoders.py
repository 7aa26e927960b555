"""What encodes the texts of a retriever: one protocol, and the encoder that is a loaded model.

The other is `latelier.models.ExportedEncoder`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.models.exported_encoder import tokenizer_lock, tokenizer_offsets

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.models.encoding import Job
    from latelier.models.tokenization import PictureTokens
    from latelier.reading.images import Picture

Task: TypeAlias = Literal["query", "document"]

# Pictures encoded before their vectors are pooled and rounded: about a thousand vectors each.
_PICTURES = 64
_NO_LIMIT = 1 << 30  # tokenizers that state no limit have a larger number


class Encoder(Protocol):
    """Texts in, one vector per token out, and the tokens that the vectors stand for."""

    @property
    def embedding_size(self) -> int:
        """Dimension of the token vectors."""

    @property
    def similarity_fn_name(self) -> str | None:
        """``"maxsim"`` or ``"meanmaxsim"``."""

    @property
    def encodes_in_parallel(self) -> bool:
        """Whether calls of several threads at a time take less time than one after the other."""

    @property
    def longest_query(self) -> int:
        """The most tokens of a query that it can read."""

    @property
    def has_offsets(self) -> bool:
        """Whether it knows which characters its tokens stand for."""

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens of the tokenizer, such as ``[CLS]``."""

    @property
    def origin(self) -> dict[str, str | None]:
        """``model`` (a name), ``revision`` and ``dtype``, for reports; None where it does not know them."""

    def prompt_and_expansion(self, task: Task) -> tuple[str | None, Any]:
        """Return the prompt of a task and its query expansion, for reports."""

    def encode(self, texts: Sequence[str], task: Task) -> TokenEmbeddings:
        """Return the token vectors of texts, as numpy arrays."""

    def with_longer_queries(self) -> Encoder:
        """Return an encoder of the same weights that reads up to `longest_query` tokens of a query."""

    def limits(self, task: Task) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit."""

    def text_offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Return the offsets of all tokens of texts, as `latelier.models.exported_encoder.Offsets`."""

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""

    def token_ranges(self, text: str, is_query: bool = True) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""

    def join(self, tokens: list[str]) -> str:
        """Return the text that tokens form."""

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokens with their numbers, which tokenizers order by frequency; empty if they are unknown."""


class LoadedEncoder:
    """A model that is loaded when it is first needed; it also encodes documents in batches, and pictures."""

    encodes_in_parallel = False  # torch encodes in all threads

    def __init__(self, load: Callable[[], ColBERT], compute_dtype: str = "auto") -> None:
        self.compute_dtype = compute_dtype
        self._load = load
        self._lock = threading.Lock()
        self._loaded: ColBERT | None = None

    @property
    def loaded(self) -> ColBERT:
        """The model itself."""
        with self._lock:
            self._loaded = self._loaded or self._load()
        return self._loaded

    @property
    def embedding_size(self) -> int:
        """Dimension of the token vectors."""
        return self.loaded.embedding_size

    @property
    def similarity_fn_name(self) -> str | None:
        """``"maxsim"`` or ``"meanmaxsim"``."""
        return self.loaded.similarity_fn_name

    @property
    def longest_query(self) -> int:
        """The most tokens of a query that the model can read."""
        from latelier.models.construction import longest_query

        return longest_query(self.loaded)

    @property
    def has_offsets(self) -> bool:
        """Whether the tokenizer is one of the package tokenizers."""
        return bool(getattr(self.loaded.tokenizer, "is_fast", False))

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens of the tokenizer, such as ``[CLS]``."""
        tokenizer: Any = self.loaded.tokenizer
        return list(tokenizer.all_special_tokens)

    @property
    def origin(self) -> dict[str, str | None]:
        """Name and revision that the weights were loaded by, and their dtype."""
        from latelier.models.construction import encoder_module

        model: Any = self.loaded
        config = getattr(encoder_module(model), "config", None)
        dtype = str(model.dtype).removeprefix("torch.")
        if self.compute_dtype != "auto":
            dtype += f", computed in {self.compute_dtype}"
        return {
            "model": getattr(config, "name_or_path", None),
            "revision": getattr(config, "_commit_hash", None),
            "dtype": dtype,
        }

    def prompt_and_expansion(self, task: Task) -> tuple[str | None, Any]:
        """Return the prompt of a task and its query expansion, for reports."""
        from latelier.models.construction import encoder_module

        module: Any = encoder_module(self.loaded)
        return self.loaded.prompts.get(task), module.query_expansion

    def encode(self, texts: Sequence[str], task: Task) -> TokenEmbeddings:
        """Return the token vectors of texts, as numpy arrays."""
        model: Any = self.loaded
        if task == "query" or self._is_of_pages:
            encode = model.encode_query
        else:
            encode = model.encode_document
        # By default, sentence-transformers shows a bar if the program logs at the level INFO.
        packed: TokenEmbeddings = encode(
            list(texts), packed=True, compute_dtype=self.compute_dtype, show_progress_bar=False
        )
        return packed.to("numpy")

    def with_longer_queries(self) -> LoadedEncoder:
        """Return an encoder of the same weights that reads up to `longest_query` tokens of a query."""
        from latelier.models.encoding import with_longer_queries

        longer: Any = with_longer_queries(self.loaded)
        return LoadedEncoder(lambda: longer, self.compute_dtype)

    def limits(self, task: Task) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit."""
        from latelier.models.construction import max_length

        model: Any = self.loaded
        with tokenizer_lock(model.tokenizer):
            empty = model.tokenizer(model.prompts.get(task) or "", truncation=False, verbose=False)
        limit = max_length(model, task)
        return len(empty["input_ids"]), limit if limit < _NO_LIMIT else None

    def text_offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Return the offsets of all tokens of texts, as `latelier.models.exported_encoder.Offsets`."""
        return tokenizer_offsets(self.loaded.tokenizer)(texts)

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for."""
        return self.loaded.tokens(text, is_query=is_query)

    def token_ranges(self, text: str, is_query: bool = True) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for; None: no character."""
        from latelier.models.tokenization import scored_ranges

        return scored_ranges(self.loaded, self.loaded.tokenize([text], is_query=is_query), text)

    def join(self, tokens: list[str]) -> str:
        """Return the text that tokens form."""
        tokenizer: Any = self.loaded.tokenizer
        return str(tokenizer.convert_tokens_to_string(tokens))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokens with their numbers."""
        tokenizer: Any = self.loaded.tokenizer
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        return vocabulary

    @property
    def _is_of_pages(self) -> bool:
        """Whether the model takes any text for a query."""
        return getattr(self.loaded[0], "transformer_task", "") == "retrieval"

    @property
    def reads_pictures(self) -> bool:
        """Whether documents may be pictures."""
        return "image" in self.loaded.modalities

    @property
    def reads_text_beside(self) -> bool:
        """Whether the model reads a text beside a picture; ColPali, ColQwen2 and others read one or the other."""
        return self.reads_pictures and not self._is_of_pages and self.loaded.supports(("image", "text"))

    def picture_tokens(self, width: int, height: int) -> PictureTokens:
        """Return the tokens of a picture of this size that have a vector, and the grid of its patches."""
        from latelier.models.tokenization import picture_tokens

        return picture_tokens(self.loaded, width, height)

    def encode_picture(self, picture: Picture) -> TokenEmbeddings:
        """Return the vectors of a picture that is a query, as numpy arrays."""
        from latelier.models.encoding import Job

        job = Job("query", compute_dtype=self.compute_dtype, truncate_dim=self.loaded.truncate_dim)
        return self._encode_pictures([picture], job).to("numpy")

    def encode_documents(
        self,
        documents: Sequence[str | Picture],
        *,
        batch_size: int,
        pool_factor: int,
        precision: str | None,
        bar: Any = None,
    ) -> TokenEmbeddings:
        """Return the token vectors of some texts and pictures; arguments are those of `Retriever.add`.

        `bar` is told how many are encoded.
        """
        from latelier.models.encoding import Job, packed_windows

        texts: list[str] = []
        pictures: list[Picture] = []
        for document in documents:
            if isinstance(document, str):
                texts.append(document)
            else:
                pictures.append(document)
        model = self.loaded
        job = Job("document", batch_size=batch_size, compute_dtype=self.compute_dtype, truncate_dim=model.truncate_dim)
        encoded = [
            reduced(window, pool_factor, precision)
            for window in packed_windows(model, texts, job, precision if pool_factor == 1 else None, bar)
        ]
        for first in range(0, len(pictures), _PICTURES):
            vectors = self._encode_pictures(pictures[first : first + _PICTURES], job)
            encoded.append(reduced(vectors, pool_factor, precision))
            if bar is not None:
                bar.update(len(pictures[first : first + _PICTURES]))
        joined = TokenEmbeddings.concatenate(encoded)
        if not (texts and pictures):
            return joined
        order = np.argsort([not isinstance(document, str) for document in documents], kind="stable")
        return joined[np.argsort(order).tolist()]

    def _encode_pictures(self, pictures: Sequence[Picture], job: Job) -> TokenEmbeddings:
        from latelier.models.encoding import encode_pictures

        model = self.loaded
        job = replace(job, prompt=model.prompts.get(job.task), device=model.device, save_to_cpu=True)
        return encode_pictures(model, lambda i: pictures[i].load(), [each.pixels for each in pictures], job)


def reduced(vectors: TokenEmbeddings, pool_factor: int, precision: str | None) -> TokenEmbeddings:
    """Return the vectors of documents pooled and rounded, see `Retriever.add`."""
    if pool_factor != 1:
        from latelier.models.pooling import pool_tokens

        vectors = pool_tokens(vectors, pool_factor)
    if precision is None:
        return vectors
    return vectors.to(precision)
