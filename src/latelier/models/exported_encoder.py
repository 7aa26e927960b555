"""`ExportedEncoder`: computes with a model that was exported to ONNX; its files, its session.

The maximum length and the padding of a call are a state of the tokenizers of Hugging Face. Without a lock, a thread
that encodes a query would truncate another thread's documents to the length of queries.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, RLock
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError, StorageError
from latelier.kernels.threads import allowed_threads, for_each, limited_threads
from latelier.utils import batch_by_tokens, tokens_per_batch
from latelier.utils.checks import check_count, check_unicode, describe
from latelier.utils.files import as_path, cache_folder, parse_json
from latelier.utils.misc import needs_extra


def text_ranges(offsets: Iterable[tuple[int, int]], prompt: str, text: str) -> list[tuple[int, int] | None]:
    """Return the characters of a text (first, one after the last) that each token stands for, None for special tokens.

    `offsets` are in the prompt and the text without outer white space, as tokenizers count; ranges have no white space
    at their ends, and include the combining marks that follow.
    """
    first = len(prompt) - (len(text) - len(text.lstrip()))
    return [_range(max(start, len(prompt)) - first, end - first, text) for start, end in offsets]


def _range(start: int, end: int, text: str) -> tuple[int, int] | None:
    """Return a range of a text, moved to what a reader sees as whole characters; None if it is empty."""
    if end <= start:
        return None
    words = text[start:end].strip()
    if words:  # a token of white space alone, such as a line end, keeps its range
        start += text[start:end].index(words)
        end = start + len(words)
    while end < len(text) and unicodedata.category(text[end]) in ("Mn", "Mc", "Me"):  # removed with the accents
        end += 1
    return start, end


_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

if hasattr(os, "register_at_fork"):
    # The thread that held a lock does not exist in a forked process.
    os.register_at_fork(after_in_child=_locks.clear)


@contextmanager
def tokenizer_lock(tokenizer: Any) -> Iterator[None]:
    """Call a tokenizer inside the block, in one thread at a time; None for a model without one.

    A panic of the package tokenizers is no `Exception`, and would end threads that answer for any: it is an error here.
    """
    try:
        with nullcontext() if tokenizer is None else _locks.setdefault(tokenizer, RLock()):
            yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LatelierError(f"the tokenizer of this model cannot read these texts: {error!s:.300}") from error


# Returns the offsets (start, end) in characters of the tokens of each text, without special tokens.
Offsets: TypeAlias = Callable[[list[str]], "list[list[tuple[int, int]]]"]

# A tokenizer takes some hundred bytes per token: longer texts are tokenised piece by piece. In characters.
_PIECE = 1 << 17


def token_starts(offsets: Offsets, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the position of the first character of each token, ascending, one array per text.

    Texts of more than 131,072 characters are tokenised in pieces that end at white space, which limits the memory.
    `offsets`: tokenises texts, see `tokenizer_offsets`.
    """
    pieces = [_pieces(text) for text in texts]
    tokenized = iter(offsets([piece for each in pieces for _, piece in each]))
    starts = []
    for each in pieces:
        # Some tokens include the space before a word.
        parts = [
            np.array([a + piece[a : a + 1].isspace() for a, _ in next(tokenized)], dtype="int64") + first
            for first, piece in each
        ]
        # The tokens of one character, such as the bytes of an emoji, begin at the same position.
        starts.append(np.maximum.accumulate(np.concatenate(parts)))
    return starts


def tokenizer_offsets(tokenizer: Any) -> Offsets:
    """Return the function that `token_starts` needs of a tokenizer of transformers."""
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgumentError(f"the tokenizer, a {type(tokenizer).__name__}, does not say where its tokens are.")

    def offsets(texts: list[str]) -> list[list[tuple[int, int]]]:
        options = {"add_special_tokens": False, "truncation": False, "verbose": False, "return_attention_mask": False}
        with tokenizer_lock(tokenizer):
            encoded = tokenizer(texts, return_offsets_mapping=True, **options)
        found: list[list[tuple[int, int]]] = encoded["offset_mapping"]
        return found

    return offsets


def _pieces(text: str) -> list[tuple[int, str]]:
    """Cut a text at white space into pieces of a limited length; return them with their positions."""
    pieces = []
    first = 0
    while len(text) - first > _PIECE:
        last = first + _PIECE
        # Up to a thousand characters back for white space; without any, the piece ends within a word.
        space = next((at for at in range(last, last - 1000, -1) if text[at].isspace()), last)
        pieces.append((first, text[first:space]))
        first = space
    return [*pieces, (first, text[first:])]


DESCRIPTION_FILE = "export.json"
_FORMAT = 4
_READ_BYTES = 1 << 22
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_UNFINISHED = "latelier-unfinished-"


def write_folder(folder: Path, write: Callable[[Path], Mapping[str, Any] | None]) -> None:
    """Write an export beside its place, then rename it: another process finds a whole one or none.

    `folder`: its place. What is there is replaced, unless another process has just put a whole export there. `write`:
    writes the files into the folder that it is called with, and returns what else to describe, as JSON. Raises
    `StorageError` if the files cannot be written, or a process that has them open keeps them from being replaced.
    """
    unfinished = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_UNFINISHED))
        new = unfinished / "new"
        old = unfinished / "old"
        new.mkdir(mode=0o755)
        _describe(new, write(new) or {})
        with suppress(FileNotFoundError):
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if not is_whole(folder):
                with suppress(OSError):  # in which case the first error says more
                    old.rename(folder)
                raise
    except LatelierError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the export {folder}: {error}. LATELIER_CACHE names another cache.") from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Put a file of the cache into an export: inside the cache as a second name, which takes no space."""
    # Windows does not sync a file that another process has mapped.
    if os.name != "nt" and cache_folder().resolve() in target.resolve().parents:
        with suppress(OSError):  # some file systems have no hard links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


class ExportLoadError(ModelLoadError):
    """An export could not be found or read."""

    def __init__(self, folder: str, reason: Exception) -> None:
        if isinstance(reason, OSError):
            described = str(reason)
        else:
            described = f"{type(reason).__name__}: {reason}"
        LatelierError.__init__(
            self,
            f"could not load the model {folder!r:.300}: {described.strip().splitlines()[0].rstrip('.')}. Give a folder "
            "that ColBERT.export wrote.",
        )


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of an export, after comparing its files with it.

    A file with the size and the time of modification that it was written with is not read; others must have their
    checksum, such as those of a copied folder. Raises `ModelLoadError` if there is none, it has another format, or a
    file is missing or damaged.
    """
    path = folder / DESCRIPTION_FILE
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"{DESCRIPTION_FILE} does not describe an export of this version of latelier.")
        for name, file in content["files"].items():
            found = (folder / name).stat()
            is_same = Path(name).name == name and found.st_size == file["bytes"]
            if not is_same or (found.st_mtime_ns != file["modified"] and _sha256(folder / name) != file["sha256"]):
                raise ValueError(f"the file {name!r} is damaged: it differs from its size or checksum.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportLoadError(str(folder), error) from error
    return content


def is_whole(folder: Path) -> bool:
    """Whether a folder holds an export whose files have the checksums that they were written with."""
    try:
        files = read_description(folder)["files"]
        return all(_sha256(folder / name) == file["sha256"] for name, file in files.items())
    except (ModelLoadError, OSError, KeyError, TypeError):
        return False


def is_own(folder: Path) -> bool:
    """Whether a folder and its files are this user's or root's, no links, and cannot be written by others.

    ONNX Runtime is not made for files of untrusted sources, and a cache folder may be one that others can write. On
    Windows, where the cache lies in the user's profile, it is True for every folder that is no link.
    """
    try:
        found = [path.lstat() for path in (folder, *folder.iterdir())]
    except OSError:
        return False
    if os.name == "nt":
        return not any(stat.S_ISLNK(each.st_mode) for each in found)
    plain = all(stat.S_ISDIR(each.st_mode) or stat.S_ISREG(each.st_mode) for each in found)
    return plain and all(each.st_uid in (0, os.geteuid()) and not each.st_mode & _WRITABLE_BY_OTHERS for each in found)


def _describe(folder: Path, content: Mapping[str, Any]) -> None:
    """Sync the files of a folder to disk, then write their description."""
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(path.stat().st_mode & ~_WRITABLE_BY_OTHERS)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        found = path.stat()
        files[path.name] = {"bytes": found.st_size, "modified": found.st_mtime_ns, "sha256": _sha256(path)}
    description = folder / DESCRIPTION_FILE
    with description.open("x", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **content, "files": files}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    description.chmod(description.stat().st_mode & ~_WRITABLE_BY_OTHERS)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


GRAPH_FILE = "encoder.onnx"
# Weights outside the graph are memory-mapped: a session opens in a third of the time and half of the memory.
WEIGHTS_FILE = "encoder.onnx.data"
# Queries have 32 tokens at most by default; the threads of one pass over MiniLM are woken some 40 times.
SINGLE_TOKENS = 64
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class OnnxEncoder:
    """A transformer as exported by `latelier.models.onnx_export`: token ids in, last hidden state out.

    Inputs of few tokens are computed by the calling thread alone: waking other threads for each product takes longer
    than a query. Idle threads sleep rather than spin, so that on a busy machine two threads are not slower than one.
    `folder`: the folder with `GRAPH_FILE` and `WEIGHTS_FILE`; `ModelLoadError` if they are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / GRAPH_FILE
        single = _open_session(self._path, 1)
        self._by_threads = {1: single}
        self._lock = Lock()
        self._names = [each.name for each in single.get_inputs()]

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray | None) -> np.ndarray:
        """Return the last hidden state, ``(n, length, dim)`` float32.

        `input_ids`, `attention_mask`, `token_type_ids`: ``(n, length)`` int64; types that are None are zeros. Raises
        `ModelLoadError` if the graph cannot compute these inputs, such as token ids that its table of embeddings does
        not have.
        """
        given: dict[str, Any] = dict(zip(INPUTS, (input_ids, attention_mask, token_type_ids), strict=True))
        if token_type_ids is None:
            given["token_type_ids"] = np.zeros_like(input_ids)
        session = self._session(1 if input_ids.size <= SINGLE_TOKENS else allowed_threads())
        try:
            hidden: np.ndarray = session.run(None, {name: given[name] for name in self._names})[0]
        except Exception as error:  # as above
            raise ExportLoadError(str(self._path), error) from error
        return hidden

    def _session(self, threads: int) -> Any:
        """Return the session with a number of threads, opened when first used: it copies the weights once more."""
        with self._lock:
            if threads not in self._by_threads:
                self._by_threads[threads] = _open_session(self._path, threads)
            return self._by_threads[threads]


def _open_session(path: Path, threads: int) -> Any:
    with needs_extra("Encoding with ONNX Runtime", "onnx"):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors: all others are raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # ONNX Runtime's fusion of a residual with the norm after it is slower than the two (a quarter of int8).
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
        )
    except Exception as error:  # the classes of ONNX Runtime's errors have no narrower base
        raise ExportLoadError(str(path), error) from error


_PACKAGES = ("onnxruntime", "onnx", "onnxscript")


@cache  # looking for packages takes a tenth of the time of a short query
def is_installed() -> bool:
    """Whether the packages of the extra ``onnx`` are here."""
    return all(find_spec(package) is not None for package in _PACKAGES)


def quantize_int8(source: Path, folder: Path) -> None:
    """Write an export whose products with weights are of int8: one scale per column of weights, and one per input.

    Weights have 7 bits: without VNNI instructions, x86 adds two products in 16 bits, which 8 bits overflow. `source`:
    folder of the float32 export. `folder`: where to write; it must exist.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # onnx refuses files with several hard links, as the weights of an exported encoder have.
    copied = folder / "float32"
    copied.mkdir()
    for name in (GRAPH_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, copied / name)
    with quietly():
        quantize_dynamic(
            str(copied / GRAPH_FILE),
            str(folder / GRAPH_FILE),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            # Products with weights, not those of attention, whose output's type onnx does not infer.
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    shutil.rmtree(copied)
    model = onnx.load(str(folder / GRAPH_FILE))
    (folder / GRAPH_FILE).unlink()
    onnx.save_model(model, str(folder / GRAPH_FILE), save_as_external_data=True, location=WEIGHTS_FILE)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the exporters' warnings, which are about models in general."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


TOKENIZER_FILE = "tokenizer.json"
HEADS_FILE = "heads.safetensors"
# Activation functions that a linear layer may have, by the names of torch's classes.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}
RESIDUAL = " and residual"  # behind the activation of a layer that adds its input, projected, to its output
_LEAST_NORM = 1e-12  # that of torch.nn.functional.normalize
# One thread's pass over MiniLM takes 3.3 ms and 0.18 ms per token: where the texts of a batch would be padded with more
# than these tokens, a pass more takes less.
_MAX_PADDING = 16


def put_behind_first(ids: list[int], marker: int | None, offsets: list[tuple[int, int]] | None = None) -> None:
    """Exchange the first two tokens of a text, and their offsets, if it begins with the marker."""
    if marker is not None and len(ids) > 1 and ids[0] == marker:
        ids[:2] = ids[1::-1]
        if offsets:
            offsets[:2] = offsets[1::-1]


class _Task(NamedTuple):
    """How queries, or documents, are tokenised and which of their tokens have a vector."""

    prompt: str
    max_length: int | None
    expansion: Mapping[str, Any] | None
    skipped: np.ndarray
    kept: np.ndarray | None
    inserted: int | None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> _Task:
        """Return the settings that an export describes."""
        skipped = np.array(described["skipped"], "int64")
        kept = described["kept"]
        kept = None if kept is None else np.array(kept, "int64")
        inserted = described.get("inserted")  # a marker behind the first token
        return cls(described["prompt"], described["max_length"], described["expansion"], skipped, kept, inserted)


class _Tokens(NamedTuple):
    """The tokens of one text: ``(tokens,)`` arrays, and the offsets of those that are not added, prompt included."""

    ids: np.ndarray
    types: np.ndarray
    attended: np.ndarray
    scored: np.ndarray
    offsets: list[tuple[int, int]]


class _Head(NamedTuple):
    """A linear layer: weights and residual weights ``(out, in)``, bias ``(out,)``, and an activation function."""

    weight: np.ndarray
    bias: np.ndarray | None
    activation: Callable[[Any], Any]
    residual: np.ndarray | None

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        out = vectors @ self.weight.T
        out = self.activation(out if self.bias is None else out + self.bias)
        if self.residual is None:
            return out
        return out + vectors @ self.residual.T


class ExportedEncoder:
    """A model that `latelier.models.onnx_export.export` wrote: texts in, one vector per token out.

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

    encodes_in_parallel = True
    has_offsets = True

    def __init__(self, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
        self.folder = as_path(folder, "the folder of an export")
        self._threads = check_count("threads", threads, optional=True) or sys.maxsize
        described = read_description(self.folder)
        try:
            self.embedding_size = int(described["dim"])
            self.compute_dtype = str(described["compute_dtype"])
            self.fingerprint = str(described["fingerprint"])
            self.similarity_fn_name = str(described["similarity_fn_name"])
            self._tasks = {task: _Task.of(described[task]) for task in ("query", "document")}
            self._pad_id = int(described["pad_id"])
            self.longest_query = int(described["longest_query"])
            self._normalizes = bool(described["normalizes"])
            if described["truncation_side"] == "left":
                self._direction = "left"
            else:
                self._direction = "right"
            self._json = (self.folder / TOKENIZER_FILE).read_text(encoding="utf-8")
            self._encoder = OnnxEncoder(self.folder)
            self._heads = _read_heads(self.folder / HEADS_FILE, described["heads"])
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

    def with_longer_queries(self) -> ExportedEncoder:
        """Return an encoder of the same weights that reads up to `longest_query` tokens of a query."""
        longer = copy(self)
        longer._tasks = self._tasks | {"query": self._tasks["query"]._replace(max_length=self.longest_query)}
        longer._tokenizers = {}
        return longer

    def copy_to(self, folder: Path) -> None:
        """Put a copy of the export into another folder of the cache.

        Parameters
        ----------
        folder
            The new folder.
        """
        described = read_description(self.folder)

        def write(target: Path) -> dict[str, Any]:
            for name in described["files"]:
                link_or_copy(self.folder / name, target / name)
            return {key: value for key, value in described.items() if key not in ("format", "files")}

        write_folder(folder, write)

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

    def encode(self, texts: Sequence[str], task: str, bar: Any = None) -> TokenEmbeddings:
        """Return the token vectors of queries or documents, one behind the other.

        Parameters
        ----------
        texts
            A list of texts.
        task
            ``"query"`` or ``"document"``.
        bar
            What is told of each batch, by its ``update``; None: nothing.

        Returns
        -------
        TokenEmbeddings
            Of numpy, in float32.
        """
        return TokenEmbeddings.from_list(self._encode(texts, task, bar))

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for, as `ColBERT.tokens` does.

        Parameters
        ----------
        text, is_query
            The text, and whether it is a query rather than a document.

        Returns
        -------
        list of str
            As many as the embedding has rows.
        """
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
        """Return the offsets of all tokens of texts, as `latelier.models.exported_encoder.Offsets`.

        Parameters
        ----------
        texts
            A list of texts, which are not cut.

        Returns
        -------
        list of list of (int, int)
            For each token of a text its first character and the one after its last.
        """
        with tokenizer_lock(None):
            found = self._tokenizer("untruncated").encode_batch(texts, add_special_tokens=False)
        return [encoding.offsets for encoding in found]

    def limits(self, task: str) -> tuple[int, int | None]:
        """Return the number of tokens of an empty text of a task, and the most that are read; None: no limit.

        Parameters
        ----------
        task
            ``"query"`` or ``"document"``.
        """
        settings = self._tasks[task]
        return len(self._tokenizer("untruncated").encode(settings.prompt).ids), settings.max_length

    def prompt_and_expansion(self, task: str) -> tuple[str, Any]:
        """Return the prompt of a task and its query expansion, for reports.

        Parameters
        ----------
        task
            ``"query"`` or ``"document"``.
        """
        return self._tasks[task].prompt, self._tasks[task].expansion

    @property
    def origin(self) -> dict[str, str | None]:
        """The dtype; a name and a revision, which the export does not state."""
        return {"model": None, "revision": None, "dtype": self.compute_dtype}

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens of the tokenizer, such as ``[CLS]``."""
        added = self._tokenizer("query").get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    def join(self, tokens: list[str]) -> str:
        """Return the text that tokens form, as `convert_tokens_to_string` of transformers does.

        Parameters
        ----------
        tokens
            As `tokens` returns them.
        """
        decoder = self._tokenizer("query").decoder
        if decoder is None:
            return " ".join(tokens)
        return str(decoder.decode(tokens))

    def vocabulary(self) -> dict[str, int]:
        """Return the tokens with their numbers."""
        known: dict[str, int] = self._tokenizer("query").get_vocab()
        return known

    def _encode(self, texts: Sequence[str], task: str, bar: Any = None) -> list[np.ndarray]:
        rows = self._tokenize(texts, task)
        encoded: dict[int, np.ndarray] = {}

        def encode(batch: np.ndarray) -> None:
            width = max(len(rows[i].ids) for i in batch)
            ids = np.full((len(batch), width), self._pad_id, dtype="int64")
            types = np.zeros_like(ids)
            attended = np.zeros_like(ids)
            for place, i in enumerate(batch):
                row = rows[i]
                length = len(rows[i].ids)
                ids[place, :length] = row.ids
                types[place, :length] = row.types
                attended[place, :length] = row.attended
            hidden = self._encoder.run(ids, attended, types)
            for place, i in enumerate(batch):
                scored = rows[i].scored
                encoded[int(i)] = self._project(hidden[place, : len(scored)][scored])
            if bar is not None:
                bar.update(len(batch))

        lengths = [len(row.ids) for row in rows]
        with limited_threads(self._threads):
            budget = tokens_per_batch(sum(lengths), allowed_threads())
            for_each(encode, batch_by_tokens(lengths, budget, max_padding=_MAX_PADDING))
        return [encoded[i] for i in range(len(rows))]

    def _tokenize(self, texts: Sequence[str], task: str) -> list[_Tokens]:
        given = list(texts)
        if isinstance(texts, (str, bytes)) or not all(isinstance(text, str) for text in given):
            raise InvalidArgumentError(f"received {describe(texts)} as texts; give a list of str.")
        for i, text in enumerate(given):
            check_unicode(text, f"texts[{i}]")
        settings = self._tasks[task]
        with tokenizer_lock(None):
            encodings = self._tokenizer(task).encode_batch([settings.prompt + text.strip() for text in given])
        rows: list[_Tokens] = []
        for encoding in encodings:
            tokens = encoding.ids
            offsets = encoding.offsets
            put_behind_first(tokens, settings.inserted, offsets)
            ids, types = (np.array(each, dtype="int64") for each in (tokens, encoding.type_ids))
            attended = np.ones_like(ids)
            expansion = settings.expansion
            if expansion is not None and len(ids) < expansion["length"]:
                more = (0, expansion["length"] - len(ids))
                ids = np.pad(ids, more, constant_values=expansion["token_id"])
                types = np.pad(types, more)
                attended = np.pad(attended, more, constant_values=int(expansion["attend"]))
            scored = ~np.isin(ids, settings.skipped)
            if settings.kept is not None:
                scored &= np.isin(ids, settings.kept)
            rows.append(_Tokens(ids, types, attended, scored, offsets))
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
            vectors = head.apply(vectors)
        if self._normalizes:
            vectors = _normalize(vectors)
        if vectors.shape[1] == self.embedding_size:
            return vectors
        return _normalize(vectors[:, : self.embedding_size])


def _normalize(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST_NORM)
    return unit


def _read_heads(path: Path, kinds: list[str]) -> list[_Head]:
    """Read the linear layers of an export, which has no file for none; a kind is an activation, with its residual."""
    if not kinds:
        return []
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = load_file(str(path))
    return [
        _Head(
            weights[f"{i}.weight"],
            weights.get(f"{i}.bias"),
            ACTIVATIONS[kind.removesuffix(RESIDUAL)],
            weights[f"{i}.residual"] if kind.endswith(RESIDUAL) else None,
        )
        for i, kind in enumerate(kinds)
    ]
