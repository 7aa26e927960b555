"""Users' documents and queries: checks, and conversion to packed embeddings, before anything is stored or searched.

Embeddings may be packed batches, lists of matrices or iterables of either, numpy or torch, of any floating type and
device. `DocumentBatches` reads them together with ids, texts and metadata, in batches of bounded size, so that a
collection that does not fit in memory can be given as generators. Documents and queries go through the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.arrays import dtype_name, is_array, is_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes.catalog.document_rows import DocumentColumns, StoredDocument
from latelier.indexes.catalog.metadata import encode_metadata
from latelier.indexes.catalog.values import as_id, check_text, is_single_id
from latelier.kernels.threads import allowed_threads, map_each
from latelier.utils.progress import progress_bar
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["DocumentBatch", "DocumentBatches", "Encode", "prepare_queries"]

Encode: TypeAlias = Callable[[TokenEmbeddings], "dict[str, np.ndarray]"]

# A batch is converted in parts of about this size, and at most this many documents, which limits the memory.
_PART_BYTES = 16 << 20
_PART_DOCUMENTS = 1024


class DocumentBatch(NamedTuple):
    """Documents that are stored together.

    Attributes
    ----------
    documents
        The id, text and metadata of each document, as the catalog stores them.
    lengths
        Number of tokens of each document.
    dim
        Dimension of the token vectors.
    arrays
        The token arrays of the index, with one row per token.
    """

    documents: Sequence[StoredDocument]
    lengths: np.ndarray
    dim: int
    arrays: dict[str, np.ndarray]


class DocumentBatches:
    """The documents of one `add` or `update`, read batch by batch.

    Parameters
    ----------
    ids, embeddings, texts, metadata
        As the user gave them.
    dtype
        The floating type to convert vectors to.
    batch_bytes
        A batch ends when its vectors, texts and metadata reach this size.
    show_progress
        Show a progress bar on stderr.

    Examples
    --------
    >>> matrices = (np.ones((n, 2)) for n in (1, 3))
    >>> batches = DocumentBatches(["a", "b"], matrices, None, None)
    >>> def encode(embeddings):
    ...     return {"sums": embeddings.vectors.sum(axis=1)}
    >>> [batch] = batches.read(None, encode)
    >>> batch.lengths, batch.dim, batch.arrays
    (array([1, 3]), 2, {'sums': array([2., 2., 2., 2.], dtype=float32)})
    """

    def __init__(
        self,
        ids: Any,
        embeddings: Any,
        texts: Any,
        metadata: Any,
        *,
        dtype: str = "float32",
        batch_bytes: int = 256 << 20,
        show_progress: bool = False,
    ) -> None:
        _check_not_padded(embeddings)
        for name, values in (("ids", ids), ("texts", texts), ("metadata", metadata)):
            if getattr(values, "ndim", 1) == 0:
                raise InvalidArgumentError(f"received an array without dimensions as {name}; give one per document.")
        if is_single_id(ids):
            ids, texts, metadata = [ids], None if texts is None else [texts], None if metadata is None else [metadata]
        if isinstance(ids, Sized) and len(ids) == 1:
            embeddings = [embeddings] if is_array(embeddings) else embeddings
            texts = [texts] if isinstance(texts, str) else texts
            metadata = [metadata] if isinstance(metadata, Mapping) else metadata
        elif is_array(embeddings):
            raise InvalidArgumentError("a single matrix needs a single id; for several ids, give a list of matrices.")
        if isinstance(texts, str) or isinstance(metadata, Mapping):
            raise InvalidArgumentError(
                "a single text or dict of metadata needs a single id; for several ids, give lists."
            )
        self._embeddings = embeddings
        columns = [_Column("ids", ids), _Column("texts", texts), _Column("metadata", metadata)]
        _compare_lengths(columns, embeddings)
        self._columns = columns
        self._dtype = dtype
        self._batch_bytes = batch_bytes
        self._show_progress = show_progress

    def read(self, dim: int | None, encode: Encode) -> Iterator[DocumentBatch]:
        """Yield the batches; they can be read once.

        Parameters
        ----------
        dim
            The dim of the index; ``None`` takes the dim of the first document.
        encode
            Returns the token arrays of some vectors. It is called for parts of a batch, so that only its results are
            held in memory.

        Yields
        ------
        DocumentBatch
            With at least one document.

        Raises
        ------
        EmbeddingsError
            If a document's vectors cannot be stored; the message names its id.
        InvalidArgumentError
            If ids, embeddings, texts and metadata differ in number, or one of them cannot be stored.
        """
        documents = DocumentColumns([], [], [], [])
        lengths: list[np.ndarray] = []
        arrays, size = _TokenArrays(), 0

        def batch() -> DocumentBatch:
            return DocumentBatch(documents, np.concatenate(lengths), dim or 0, arrays.filled())

        with progress_bar(shown=self._show_progress, total=self._columns[0].length, unit=" documents") as progress:
            for parts in self._parts(dim, encode):
                dim = parts[0].dim
                for part in parts:
                    documents.extend(part.documents)
                    lengths.append(part.lengths)
                    arrays.append(part.arrays, int(part.lengths.sum()), self._full_batch(dim))
                    size += part.nbytes
                    progress.update(len(part.documents))
                if size >= self._batch_bytes:
                    yield batch()
                    documents, lengths, arrays, size = DocumentColumns([], [], [], []), [], _TokenArrays(), 0
        if documents:
            yield batch()

    def _full_batch(self, dim: int) -> int:
        """Return about how many tokens a batch has at most."""
        return (self._batch_bytes + _PART_BYTES) // (np.dtype(self._dtype).itemsize * dim)

    def _parts(self, dim: int | None, encode: Encode) -> Iterator[list[_Part]]:
        """Yield what was read at a time, in parts that were converted and encoded each by one thread."""
        for given in self._given():
            threads = allowed_threads()
            # More parts than threads, since some take longer than others; a few documents are not worth a thread. The
            # first document says which dim the others must have.
            count = max(1, min(4 * threads, len(given[0]) // 4)) if threads > 1 and dim is not None else 1
            cuts = np.linspace(0, len(given[0]), count + 1).astype("int64").tolist()
            some = [tuple(column[first:last] for column in given) for first, last in pairwise(cuts)]
            parts = map_each(partial(_read_part, dtype=self._dtype, dim=dim, encode=encode), some)
            dim = parts[0].dim
            yield parts

    def _given(self) -> Iterator[tuple[list[Any], list[Any], list[Any], Any]]:
        """Yield some ids, texts, metadata and embeddings at a time, as the user gave them."""
        count = 0
        for items in _split(self._embeddings, min(_PART_BYTES, self._batch_bytes)):
            ids, texts, metadata = (column.take(len(items), count) for column in self._columns)
            count += len(items)
            yield ids, texts, metadata, items
        for column in self._columns:
            column.expect_end(count)


class _Part(NamedTuple):
    """A part of a batch, and the size of its vectors, texts and metadata before they were encoded."""

    documents: DocumentColumns
    lengths: np.ndarray
    dim: int
    arrays: dict[str, np.ndarray]
    nbytes: int


def _read_part(given: tuple[Any, ...], dtype: str, dim: int | None, encode: Encode) -> _Part:
    """Check, convert and encode documents, given as ids, texts, metadata and embeddings."""
    ids, texts, metadata, items = given
    ids = list(map(as_id, ids))
    packed = _pack(items, [f"document {id!r}" for id in ids], dtype, dim)
    encoded = list(map(encode_metadata, metadata, ids))
    documents = DocumentColumns(
        ids, list(map(check_text, texts, ids)), [json for json, _ in encoded], [fields for _, fields in encoded]
    )
    size = packed.vectors.nbytes + documents.nbytes
    return _Part(documents, packed.lengths, packed.dim, encode(packed), size)


class _TokenArrays:
    """The token arrays of a batch, filled part by part.

    With the second part, memory for a full batch is reserved: the system provides it only as it is written. Parts that
    are kept and concatenated at the end would take twice the memory, and more time than their encoding.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._tokens = self._reserved = 0

    def append(self, part: dict[str, np.ndarray], tokens: int, full: int) -> None:
        """Copy the arrays of a part of so many tokens; a full batch has about `full` tokens."""
        begin, end = self._tokens, self._tokens + tokens
        if end > self._reserved:
            self._reserved = max(end, full) if begin else end
            reserved = {name: np.empty((self._reserved, *rows.shape[1:]), rows.dtype) for name, rows in part.items()}
            for name, rows in self._arrays.items():
                reserved[name][:begin] = rows[:begin]
            self._arrays = reserved
        for name, rows in part.items():
            self._arrays[name][begin:end] = rows
        self._tokens = end

    def filled(self) -> dict[str, np.ndarray]:
        """Return the arrays; copies if most of what was reserved is not needed."""
        some = {name: rows[: self._tokens] for name, rows in self._arrays.items()}
        return some if 2 * self._tokens > self._reserved else {name: rows.copy() for name, rows in some.items()}


class _Column:
    """Ids, texts or metadata, read together with the embeddings; ``None`` stands for ``None`` for each document."""

    def __init__(self, name: str, values: Any) -> None:
        if values is None and name == "ids":
            raise InvalidArgumentError("received None as ids; give one id per document.")
        if values is not None and not isinstance(values, Iterable):
            raise InvalidArgumentError(f"received {type(values).__name__} as {name}; give one per document.")
        self.name = name
        self.length: int | None = len(values) if isinstance(values, Sized) else None
        self._values = None if values is None else iter(values)

    def take(self, n: int, before: int) -> list[Any]:
        if self._values is None:
            return [None] * n
        taken = list(islice(self._values, n))
        if len(taken) < n:
            raise InvalidArgumentError(
                f"{self.name} ended after {before + len(taken)} documents, but there are more embeddings; give one of "
                "each per document."
            )
        return taken

    def expect_end(self, count: int) -> None:
        if self._values is not None and next(self._values, self) is not self:
            raise InvalidArgumentError(
                f"embeddings ended after {count} documents, but there are more {self.name}; give one of each per "
                "document."
            )


def _compare_lengths(columns: list[_Column], embeddings: Any) -> None:
    """Raise an error if the lengths differ, as far as they are known before anything is read."""
    known: dict[str, int] = {column.name: column.length for column in columns if column.length is not None}
    if isinstance(embeddings, TokenEmbeddings):
        known["embeddings"] = len(embeddings)
    if len(set(known.values())) > 1:
        lengths = ", ".join(f"{length} {name}" for name, length in known.items())
        raise InvalidArgumentError(f"received {lengths}; give one of each per document.")


def _split(embeddings: Any, part_bytes: int) -> Iterator[list[Any] | TokenEmbeddings]:
    """Cut embeddings into parts of about `part_bytes`: lists of matrices, or slices of packed embeddings."""
    if isinstance(embeddings, TokenEmbeddings):
        yield from _split_packed(embeddings, part_bytes)
        return
    if not isinstance(embeddings, Iterable) or isinstance(embeddings, (str, bytes, Mapping)):
        raise InvalidArgumentError(
            f"received {type(embeddings).__name__} as embeddings; give TokenEmbeddings, a list of (tokens, dim) "
            "matrices or an iterable of either."
        )
    waiting: list[Any] = []
    size = 0
    for item in embeddings:
        if isinstance(item, TokenEmbeddings):
            if waiting:
                yield waiting
                waiting, size = [], 0
            yield from _split_packed(item, part_bytes)
            continue
        waiting.append(item)
        # A sparse tensor has no size; `_matrix` rejects it.
        is_sparse = is_tensor(item) and str(item.layout) != "torch.strided"
        size += 0 if is_sparse else getattr(item, "nbytes", 0)
        if size >= part_bytes or len(waiting) >= _PART_DOCUMENTS:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _split_packed(embeddings: TokenEmbeddings, part_bytes: int) -> Iterator[TokenEmbeddings]:
    tokens = max(1, part_bytes // max(1, 4 * embeddings.dim))
    for first, last in split_by_rows(embeddings.offsets, tokens, _PART_DOCUMENTS):
        yield embeddings[first:last]


def prepare_queries(queries: Any, dim: int | None) -> TokenEmbeddings:
    """Return the queries of a search, checked and packed as float32.

    Parameters
    ----------
    queries
        `TokenEmbeddings`, a sequence of matrices, or one matrix for one query.
    dim
        The dim of the index; ``None`` while it is empty.

    Returns
    -------
    TokenEmbeddings
        One matrix per query; for an empty index, of any dim.

    Raises
    ------
    EmbeddingsError
        If the queries are of a wrong type, shape, dtype or dim, or one has no token or holds NaN or infinity.

    Examples
    --------
    >>> prepare_queries(np.ones((3, 2)), dim=2)
    TokenEmbeddings(1 texts, 3 tokens, dim=2, float32, numpy)
    """
    _check_not_padded(queries)
    if is_array(queries):
        queries = [queries]
    if not isinstance(queries, (TokenEmbeddings, Sequence)) or isinstance(queries, (str, bytes)):
        raise EmbeddingsError(
            f"received {type(queries).__name__} as queries; give TokenEmbeddings, a list of (tokens, dim) matrices, or "
            "one matrix."
        )
    if len(queries) == 0:
        return TokenEmbeddings.from_list([], dim=dim)
    return _pack(queries, [f"query {i}" for i in range(len(queries))], "float32", dim)


def _check_not_padded(embeddings: object) -> None:
    """Raise an error for a padded batch: without a mask, its padding would count as tokens."""
    if is_array(embeddings) and embeddings.ndim != 2:
        hint = "; give padded embeddings as TokenEmbeddings.from_padded(padded, mask)" if embeddings.ndim == 3 else ""
        raise EmbeddingsError(
            f"received an array of shape {tuple(embeddings.shape)}; expected a 2-D matrix (tokens, dim) per text{hint}."
        )


def _pack(items: Sequence[Any] | TokenEmbeddings, names: Sequence[str], dtype: str, dim: int | None) -> TokenEmbeddings:
    """Check, convert and pack the matrices of several documents or queries.

    Parameters
    ----------
    items
        One matrix ``(tokens, dim)`` each, or packed embeddings.
    names
        The name of each item in error messages.
    dtype
        Floating type to convert to.
    dim
        The expected dim; ``None`` for that of the first item.

    Returns
    -------
    TokenEmbeddings
        numpy, of `dtype`; each has at least one token and every number is finite.

    Raises
    ------
    EmbeddingsError
        If an item has a wrong shape, dtype or dim, has no token, or holds NaN or infinity; the message begins with its
        name.

    Examples
    --------
    >>> import torch
    >>> items = [[[1.0, 2.0]], torch.ones(3, 2, dtype=torch.bfloat16)]
    >>> _pack(items, ["a", "b"], "float16", None)
    TokenEmbeddings(2 texts, 4 tokens, dim=2, float16, numpy)
    """
    if isinstance(items, TokenEmbeddings):
        source = items.to("numpy")
        source = source.to("float32") if source.scales is not None else source
        vectors, offsets = source.vectors, source.offsets
    else:
        matrices = [_matrix(item, name) for item, name in zip(items, names, strict=True)]
        for matrix, name in zip(matrices, names, strict=True):
            _check_dim(matrix.shape[1], matrices[0].shape[1] if dim is None else dim, name)
        vectors = np.concatenate(matrices)
        offsets = lengths_to_offsets([len(matrix) for matrix in matrices])
    _check_dim(vectors.shape[1], vectors.shape[1] if dim is None else dim, names[0])
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{names[without[0]]} has no token; every text needs at least one.")
    converted = _convert(vectors, offsets, names, dtype)
    if isinstance(items, TokenEmbeddings) and converted is source.vectors:
        return source  # not converted; TokenEmbeddings has checked its offsets
    return TokenEmbeddings(converted, offsets)


def _matrix(item: Any, name: str) -> np.ndarray:
    """Return a matrix as a 2-D numpy array of a floating dtype, or raise an error."""
    if is_tensor(item):
        try:
            item = item.detach().cpu()
            item = (item.float() if dtype_name(item) == "bfloat16" else item).numpy()
        except (RuntimeError, TypeError) as error:  # sparse, quantized, on the device "meta", of an 8-bit float type
            raise EmbeddingsError(
                f"{name} came with a torch tensor of {item.dtype}, {item.layout}, on {item.device}, which numpy cannot "
                "hold; expected a dense one of float32, float16, bfloat16 or float64."
            ) from error
    elif not isinstance(item, np.ndarray):
        try:
            item = np.asarray(item, dtype="float32")
        except (TypeError, ValueError) as error:
            raise EmbeddingsError(
                f"{name} came with {type(item).__name__}; expected a 2-D numpy or torch matrix (tokens, dim)."
            ) from error
    if item.ndim != 2:
        hint = "; padded batches go through TokenEmbeddings.from_padded(padded, mask)" if item.ndim == 3 else ""
        raise EmbeddingsError(f"{name} has embeddings of shape {item.shape}; expected 2-D (tokens, dim){hint}.")
    if item.dtype.kind != "f":
        raise EmbeddingsError(
            f"{name} has embeddings of dtype {item.dtype}; expected floating numbers (int8 codes come with their "
            "scales, as TokenEmbeddings)."
        )
    return item


def _check_dim(received: int, expected: int, name: str) -> None:
    if received != expected:
        raise EmbeddingsError(f"{name} has dim {received}, but the others have dim {expected}; encode with one model.")
    if received == 0:
        raise EmbeddingsError(f"{name} has dim 0; every token needs at least one number.")


def _convert(vectors: np.ndarray, offsets: np.ndarray, names: Sequence[str], dtype: str) -> np.ndarray:
    """Return vectors of a dtype, or raise an error for NaN, infinity and numbers beyond its range."""
    converted = vectors
    if vectors.dtype != dtype:
        with np.errstate(over="ignore"):
            converted = vectors.astype(dtype)
    finite = np.isfinite(converted)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=1)))
        name = names[int(np.searchsorted(offsets, row, side="right")) - 1]
        given = vectors[row]
        if np.isfinite(given).all():
            raise EmbeddingsError(
                f"{name} holds {given[np.abs(given).argmax()]:g}, outside of the range of {dtype}; normalise the "
                "vectors."
            )
        raise EmbeddingsError(f"{name} holds NaN or infinity; check the model that encoded it.")
    return converted
