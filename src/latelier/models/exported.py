"""A late-interaction model as exported for search: it encodes with tokenizers and ONNX Runtime, without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.kernels.threads import allowed_threads, for_each, limited_threads
from latelier.models.cpu.onnx_files import ExportLoadError, read_description
from latelier.models.cpu.onnx_session import OnnxEncoder
from latelier.models.token_offsets import text_ranges
from latelier.utils import batch_by_tokens, check_count, tokens_per_batch
from latelier.utils.checks import describe
from latelier.utils.files import as_path, check_unicode

__all__ = ["ACTIVATIONS", "HEADS_FILE", "TOKENIZER_FILE", "ExportedEncoder"]

TOKENIZER_FILE = "tokenizer.json"
HEADS_FILE = "heads.safetensors"
# Activation functions that a linear layer may have, by the names of torch's classes.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}
_LEAST_NORM = 1e-12  # that of torch.nn.functional.normalize
# What a damaged description may ask for: ids and lengths that fit the int64 and uint64 of tokenizers and ONNX Runtime,
# and an expansion whose ids fit the memory.
_LARGEST = 10**9
_LONGEST_EXPANSION = 10**6
# One thread's pass over MiniLM takes 3.3 ms and 0.18 ms per token: where the texts of a batch would be padded with more
# than these tokens, a pass more takes less.
_MAX_PADDING = 16


class _Task(NamedTuple):
    """How queries, or documents, are tokenised and which of their tokens have a vector."""

    prompt: str
    max_length: int | None
    expansion: Mapping[str, Any] | None
    skipped: np.ndarray
    kept: np.ndarray | None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> _Task:
        """Return the settings that an export describes; `TypeError`, `KeyError` or `ValueError` if they are damaged."""
        prompt, expansion, kept = (described[name] for name in ("prompt", "expansion", "kept"))
        if not isinstance(prompt, str):
            raise ValueError(f"the prompt is {describe(prompt)}; expected a text.")
        max_length = check_count("max_length", described["max_length"], most=_LARGEST, optional=True)
        if expansion is not None:
            expansion = {
                "length": check_count("length", expansion["length"], most=_LONGEST_EXPANSION),
                "token_id": check_count("token_id", expansion["token_id"], 0, _LARGEST),
                "attend": bool(expansion["attend"]),
            }
        return cls(prompt, max_length, expansion, _ids(described["skipped"]), None if kept is None else _ids(kept))


class _Tokens(NamedTuple):
    """The tokens of one text: ``(tokens,)`` arrays, and the offsets of those that are not added, prompt included."""

    ids: np.ndarray
    types: np.ndarray
    attended: np.ndarray
    scored: np.ndarray
    offsets: list[tuple[int, int]]


class _Head(NamedTuple):
    """A linear layer: weights ``(out, in)``, bias ``(out,)`` or None, and an activation function."""

    weight: np.ndarray
    bias: np.ndarray | None
    activation: Callable[[Any], Any]


class ExportedEncoder:
    """A model that `latelier.models.exporting.export` wrote: texts in, one vector per token out.

    Its vectors are those of `ColBERT.encode_query` and `ColBERT.encode_document`: equal to 1e-5 if it was exported in
    float32.

    Parameters
    ----------
    folder
        The folder of the export.
    threads
        Maximum number of threads; default: torch's if it is imported, otherwise ``OMP_NUM_THREADS`` or the number of
        cores.

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
        self._threads = check_count("threads", threads, optional=True) or sys.maxsize
        described = read_description(self.folder)
        try:
            self.embedding_size = check_count("dim", described["dim"], most=_LARGEST)
            self.compute_dtype = str(described["compute_dtype"])
            self.fingerprint = str(described["fingerprint"])
            self._tasks = {task: _Task.of(described[task]) for task in ("query", "document")}
            self._pad_id = check_count("pad_id", described["pad_id"], 0, _LARGEST)
            self._normalizes = bool(described["normalizes"])
            self._direction = "left" if described["truncation_side"] == "left" else "right"
            self._json = (self.folder / TOKENIZER_FILE).read_text(encoding="utf-8")
            self._encoder = OnnxEncoder(self.folder)
            self._heads = _read_heads(self.folder / HEADS_FILE, described["heads"], self._encoder.width)
            width = self._heads[-1].weight.shape[0] if self._heads else self._encoder.width
            if self.embedding_size > width:
                raise ValueError(f"it describes vectors of {self.embedding_size} dimensions; its weights make {width}.")
        except ModelLoadError:
            raise
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ExportLoadError(str(self.folder), error) from error
        self._tokenizers: dict[str, Any] = {}

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
        row = self._tokenize([text], task)[0]
        tokenizer = self._tokenizer(task)
        return [tokenizer.id_to_token(int(token)) for token in row.ids[row.scored]]

    def token_ranges(self, text: str, is_query: bool = True) -> list[tuple[int, int] | None]:
        """Return the range of the text's characters that each of these tokens stands for.

        Parameters
        ----------
        text, is_query
            As in `tokens`.

        Returns
        -------
        list of (int, int) or None
            First character of each token and the one after its last; None for tokens that stand for none: special
            tokens, markers and added mask tokens.
        """
        task = "query" if is_query else "document"
        row = self._tokenize([text], task)[0]
        ranges = text_ranges(row.offsets, self._tasks[task].prompt, text)
        ranges += [None] * (len(row.ids) - len(ranges))  # added mask tokens
        return [ranges[i] for i in np.flatnonzero(row.scored)]

    def text_offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Return the offsets of all tokens of texts, as `latelier.models.token_starts.Offsets`."""
        found = self._tokenizer("untruncated").encode_batch(texts, add_special_tokens=False)
        return [encoding.offsets for encoding in found]

    @property
    def document_overhead(self) -> int:
        """Number of tokens of an empty document: special tokens and markers."""
        return len(self._tokenizer("untruncated").encode(self._tasks["document"].prompt).ids)

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

        def encode(batch: np.ndarray) -> None:
            width = max(len(rows[i].ids) for i in batch)
            ids = np.full((len(batch), width), self._pad_id, dtype="int64")
            types, attended = np.zeros_like(ids), np.zeros_like(ids)
            for place, i in enumerate(batch):
                row, length = rows[i], len(rows[i].ids)
                ids[place, :length], types[place, :length], attended[place, :length] = row.ids, row.types, row.attended
            hidden = self._encoder.run(ids, attended, types)
            for place, i in enumerate(batch):
                scored = rows[i].scored
                encoded[int(i)] = self._project(hidden[place, : len(scored)][scored])

        lengths = [len(row.ids) for row in rows]
        with limited_threads(self._threads):
            budget = tokens_per_batch(sum(lengths), allowed_threads())
            for_each(encode, batch_by_tokens(lengths, budget, max_padding=_MAX_PADDING))
        return [encoded[i] for i in range(len(rows))]

    def _tokenize(self, texts: Sequence[str], task: str) -> list[_Tokens]:
        is_list = isinstance(texts, Iterable) and not isinstance(texts, (str, bytes, Mapping))
        given = list(texts) if is_list else []
        if not is_list or not all(isinstance(text, str) for text in given):
            raise InvalidArgumentError(f"received {describe(texts)} as texts; give a list of str.")
        for i, text in enumerate(given):
            check_unicode(text, f"texts[{i}]")
        settings = self._tasks[task]
        try:
            encodings = self._tokenizer(task).encode_batch([settings.prompt + text for text in given])
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"cannot tokenise these texts: {str(error).rstrip('.')}. Give texts, as str."
            ) from error
        rows: list[_Tokens] = []
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
            rows.append(_Tokens(ids, types, attended, scored, encoding.offsets))
        return rows

    def _tokenizer(self, task: str) -> Any:
        """Return the tokenizer of a task: its maximum length is a state of the tokenizer."""
        if task not in self._tokenizers:
            from tokenizers import Tokenizer

            try:
                tokenizer = Tokenizer.from_str(self._json)
            except Exception as error:  # tokenizers raises no narrower class
                raise ExportLoadError(str(self.folder / TOKENIZER_FILE), error) from error
            tokenizer.no_padding()
            tokenizer.no_truncation()
            settings = self._tasks.get(task)  # "untruncated" is no task
            if settings is not None and (max_length := settings.max_length) is not None:
                tokenizer.enable_truncation(max_length, strategy="longest_first", direction=self._direction)
            self._tokenizers[task] = tokenizer
        return self._tokenizers[task]

    def _project(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the linear layers and the normalisation to hidden states ``(tokens, width)``."""
        for head in self._heads:
            out = vectors @ head.weight.T
            vectors = head.activation(out if head.bias is None else out + head.bias)
        if self._normalizes:
            vectors = _normalize(vectors)
        return vectors if vectors.shape[1] == self.embedding_size else _normalize(vectors[:, : self.embedding_size])


def _normalize(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST_NORM)
    return unit


def _ids(listed: Any) -> np.ndarray:
    if not isinstance(listed, list):
        raise ValueError(f"a list of token ids is {describe(listed)}.")
    return np.array([check_count("a token id", each, 0, _LARGEST) for each in listed], dtype="int64")


def _read_heads(path: Path, activations: Any, width: int) -> list[_Head]:
    """Read the linear layers of an export; `KeyError`, `TypeError` or `ValueError` if they are damaged.

    Parameters
    ----------
    path
        Their file.
    activations
        The name of each layer's activation.
    width
        Dimensions of the input of the first layer.
    """
    if not isinstance(activations, list):
        raise ValueError(f"the activations of its layers are {describe(activations)}; expected a list.")
    if not activations:
        return []
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights: dict[str, np.ndarray] = load_file(str(path))
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged: {error}.") from error
    heads: list[_Head] = []
    for i, activation in enumerate(activations):
        weight, bias = weights[f"{i}.weight"], weights.get(f"{i}.bias")
        rows = weight.shape[0] if weight.ndim else 0
        if rows == 0 or weight.shape != (rows, width) or (bias is not None and bias.shape != (rows,)):
            raise ValueError(f"a linear layer has weights {weight.shape} for vectors of {width} dimensions.")
        for each in (weight, bias):
            if each is not None and not (each.dtype == np.float32 and np.isfinite(each).all()):
                raise ValueError("the weights of a linear layer are not finite numbers in float32.")
        heads.append(_Head(weight, bias, ACTIVATIONS[activation]))
        width = rows
    return heads
