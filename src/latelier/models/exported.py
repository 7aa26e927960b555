"""A late-interaction model as exported for search: it encodes with tokenizers and ONNX Runtime, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.kernels.threads import thread_count
from latelier.models.cpu.onnx_files import read_description
from latelier.models.cpu.onnx_session import OnnxEncoder
from latelier.utils import batch_by_tokens, check_count
from latelier.utils.describing import describe
from latelier.utils.reading import as_path

__all__ = ["ACTIVATIONS", "HEADS_FILE", "TOKENIZER_FILE", "ExportedEncoder"]

TOKENIZER_FILE = "tokenizer.json"
HEADS_FILE = "heads.safetensors"
# Activation functions that a linear layer may have, by the names of torch's classes.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}
# As in `latelier.models.encoding`: the activations of larger batches do not fit the caches of a processor.
_BATCH_TOKENS = 2048
_LEAST_NORM = 1e-12  # that of torch.nn.functional.normalize


class _Task(NamedTuple):
    """How queries, or documents, are tokenised and which of their tokens have a vector."""

    prompt: str
    max_length: int | None
    expansion: Mapping[str, Any] | None
    skipped: np.ndarray
    kept: np.ndarray | None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> _Task:
        kept = described["kept"]
        skipped, allowed = (np.array(each, dtype="int64") for each in (described["skipped"], kept or ()))
        prompt, max_length, expansion = (described[name] for name in ("prompt", "max_length", "expansion"))
        return cls(prompt, max_length, expansion, skipped, None if kept is None else allowed)


class ExportedEncoder:
    """A model that `latelier.models.exporting.export` wrote: texts in, one vector per token out.

    Its vectors are those of `ColBERT.encode_query` and `ColBERT.encode_document`: equal to 1e-5 if it was exported in
    float32.

    Parameters
    ----------
    folder
        The folder of the export.
    threads
        Number of threads; default: torch's if it is imported, otherwise ``OMP_NUM_THREADS`` or the number of cores.

    Raises
    ------
    MissingExtraError
        If ONNX Runtime is not installed.
    ModelLoadError
        If the folder is not an export, or is damaged.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> model.export("exported")
    >>> encoder = ExportedEncoder("exported")
    >>> query = encoder.encode_queries(["a pear"])[0]
    >>> expected = model.encode_query("a pear").numpy()
    >>> query.shape, np.allclose(query, expected, rtol=0, atol=1e-5)
    ((4, 384), True)
    >>> encoder.tokens("a pear")
    ['[CLS]', 'a', 'pear', '[SEP]']
    """

    def __init__(self, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
        self.folder = as_path(folder, "the folder of an export")
        check_count("threads", threads, optional=True)
        described = read_description(self.folder)
        try:
            self.embedding_size = int(described["dim"])
            self.compute_dtype = str(described["compute_dtype"])
            self.fingerprint = str(described["fingerprint"])
            self._tasks = {task: _Task.of(described[task]) for task in ("query", "document")}
            self._pad_id, self._heads = int(described["pad_id"]), list(described["heads"])
            self._normalizes = bool(described["normalizes"])
            self._direction = str(described["truncation_side"])
            self._weights = _read_weights(self.folder / HEADS_FILE) if self._heads else {}
            self._json = (self.folder / TOKENIZER_FILE).read_text(encoding="utf-8")
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ModelLoadError(str(self.folder), error) from error
        self._tokenizers: dict[str, Any] = {}
        self._encoder = OnnxEncoder(self.folder, threads or thread_count())

    @property
    def max_length_query(self) -> int | None:
        """Maximum number of tokens of a query, markers and special tokens included; None: no limit."""
        return self._tasks["query"].max_length

    @property
    def max_length_document(self) -> int | None:
        """Maximum number of tokens of a document, markers and special tokens included; None: no limit."""
        return self._tasks["document"].max_length

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return one ``(tokens, dim)`` float32 array per query.

        Parameters
        ----------
        texts
            A list of texts.

        Raises
        ------
        InvalidArgumentError
            If `texts` is not a list of texts.
        """
        return self._encode(texts, "query")

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return one ``(tokens, dim)`` float32 array per document.

        Parameters
        ----------
        texts
            A list of texts.

        Raises
        ------
        InvalidArgumentError
            If `texts` is not a list of texts.
        """
        return self._encode(texts, "document")

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for, as `ColBERT.tokens` does."""
        task = "query" if is_query else "document"
        ids, _, _, scored = self._tokenize([text], task)[0]
        tokenizer = self._tokenizer(task)
        return [tokenizer.id_to_token(int(token)) for token in ids[scored]]

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens of the tokenizer, such as ``[CLS]``."""
        added = self._tokenizer("query").get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    def join(self, tokens: list[str]) -> str:
        """Return the text that tokens form, as `convert_tokens_to_string` of transformers does."""
        decoder = self._tokenizer("query").decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))

    def _encode(self, texts: Sequence[str], task: str) -> list[np.ndarray]:
        rows = self._tokenize(texts, task)
        encoded: dict[int, np.ndarray] = {}
        for batch in batch_by_tokens([len(row[0]) for row in rows], _BATCH_TOKENS):
            width = max(len(rows[i][0]) for i in batch)
            ids = np.full((len(batch), width), self._pad_id, dtype="int64")
            types, attended = np.zeros_like(ids), np.zeros_like(ids)
            for place, i in enumerate(batch):
                length = len(rows[i][0])
                ids[place, :length], types[place, :length], attended[place, :length], _ = rows[i]
            hidden = self._encoder.run(ids, attended, types)
            for place, i in enumerate(batch):
                scored = rows[i][3]
                encoded[int(i)] = self._project(hidden[place, : len(scored)][scored])
        return [encoded[i] for i in range(len(rows))]

    def _tokenize(self, texts: Sequence[str], task: str) -> list[tuple[np.ndarray, ...]]:
        """Return ids, token types, which positions are attended to, and which are scored, of each text."""
        is_list = isinstance(texts, Iterable) and not isinstance(texts, (str, bytes, Mapping))
        given = list(texts) if is_list else []
        if not is_list or not all(isinstance(text, str) for text in given):
            raise InvalidArgumentError(f"received {describe(texts)} as texts; give a list of str.")
        settings = self._tasks[task]
        try:
            encodings = self._tokenizer(task).encode_batch([settings.prompt + text for text in given])
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"cannot tokenise these texts: {error} Give texts, as str.") from error
        rows: list[tuple[np.ndarray, ...]] = []
        for encoding in encodings:
            ids, types = (np.array(each, dtype="int64") for each in (encoding.ids, encoding.type_ids))
            attended = np.ones_like(ids)
            expansion = settings.expansion
            if expansion is not None and len(ids) < expansion["length"]:
                more = (0, expansion["length"] - len(ids))
                ids = np.pad(ids, more, constant_values=expansion["token_id"])
                types, attended = np.pad(types, more), np.pad(attended, more, constant_values=int(expansion["attend"]))
            scored = ~np.isin(ids, settings.skipped)
            if settings.kept is not None:
                scored &= np.isin(ids, settings.kept)
            rows.append((ids, types, attended, scored))
        return rows

    def _tokenizer(self, task: str) -> Any:
        """Return the tokenizer of a task: its maximum length is a state of the tokenizer."""
        if task not in self._tokenizers:
            from tokenizers import Tokenizer

            try:
                tokenizer = Tokenizer.from_str(self._json)
            except Exception as error:  # tokenizers raises no narrower class
                raise ModelLoadError(str(self.folder / TOKENIZER_FILE), error) from error
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if (max_length := self._tasks[task].max_length) is not None:
                tokenizer.enable_truncation(max_length, strategy="longest_first", direction=self._direction)
            self._tokenizers[task] = tokenizer
        return self._tokenizers[task]

    def _project(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the linear layers and the normalisation to hidden states ``(tokens, width)``."""
        for i, head in enumerate(self._heads):
            out = vectors @ self._weights[f"{i}.weight"].T
            if f"{i}.bias" in self._weights:
                out = out + self._weights[f"{i}.bias"]
            vectors = ACTIVATIONS[head](out)
        if self._normalizes:
            vectors = _normalize(vectors)
        return vectors if vectors.shape[1] == self.embedding_size else _normalize(vectors[:, : self.embedding_size])


def _normalize(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST_NORM)
    return unit


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = load_file(str(path))
    return weights
