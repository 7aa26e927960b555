"""Ids, matrices, texts and metadata of users, checked and packed.

Embeddings may be packed batches, lists of matrices or iterables of either, numpy or torch, of any floating type and
device. `DocumentBatches` reads them together with ids, texts and metadata, in batches of bounded size, so that a
collection that does not fit in memory can be given as generators. Documents and queries go through the same checks.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.arrays import dtype_name, is_array, is_tensor, refuse_mask
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes.results import Id, as_id, check_text, is_single_id
from latelier.indexes.store import connections
from latelier.indexes.store.rows import DocumentColumns, StoredDocument, encode_metadata
from latelier.kernels.threads import allowed_threads, map_each
from latelier.utils.batching import lengths_to_offsets, split_by_rows
from latelier.utils.misc import progress_bar


def pack(
    items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str], dtype: str, dim: int | None
) -> TokenEmbeddings:
    """Check, convert and pack the matrices of several documents or queries.

    `items`: one matrix ``(tokens, dim)`` each, or packed embeddings. `name`: returns the name of the item at a
    position, for an error message. `dtype`: floating type to convert to. `dim`: the expected dim; ``None`` for that of
    the first item. Returns: numpy, of `dtype`; each has at least one token. Whether all numbers are finite is left to
    `check_finite`.
    """
    if isinstance(items, TokenEmbeddings):
        source = _floats(items)
        vectors, offsets = source.vectors, source.offsets
    else:
        matrices = [_matrix(item, position, name) for position, item in enumerate(items)]
        expected = matrices[0].shape[1] if dim is None else dim
        for position, matrix in enumerate(matrices):
            _check_dim(matrix.shape[1], expected, position, name)
        vectors = np.concatenate(matrices)
        offsets = lengths_to_offsets([len(matrix) for matrix in matrices])
    _check_dim(vectors.shape[1], vectors.shape[1] if dim is None else dim, 0, name)
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{name(int(without[0]))} has no token; every text needs at least one.")
    if vectors.dtype != dtype:
        with np.errstate(over="ignore"):  # `check_finite` finds numbers beyond the range of the dtype
            vectors = vectors.astype(dtype)
    elif isinstance(items, TokenEmbeddings):
        return source  # TokenEmbeddings has checked its offsets
    return TokenEmbeddings(vectors, offsets)


def check_finite(packed: TokenEmbeddings, items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str]) -> None:
    """Raise an error for NaN, infinity and numbers beyond the range of the dtype that they were converted to.

    `packed`: what `pack` has made of `items`; `items`, `name`: see `pack`.
    """
    finite = np.isfinite(packed.vectors)
    if finite.all():
        return
    row = int(np.argmin(finite.all(axis=1)))
    position = int(np.searchsorted(packed.offsets, row, side="right")) - 1
    item = items[position]
    matrix = _floats(items)[position] if isinstance(items, TokenEmbeddings) else _matrix(item, position, name)
    given = matrix[row - int(packed.offsets[position])]
    if np.isfinite(given).all():
        raise EmbeddingsError(
            f"{name(position)} holds {given[np.abs(given).argmax()]:g}, outside of the range of {packed.dtype}; "
            "normalise the vectors."
        )
    raise EmbeddingsError(f"{name(position)} holds NaN or infinity; check the model that encoded it.")


def _floats(embeddings: TokenEmbeddings) -> TokenEmbeddings:
    """Return packed embeddings as numpy arrays of a floating dtype."""
    source = embeddings.to("numpy")
    return source if source.scales is None else source.to("float32")


def _matrix(item: Any, position: int, name: Callable[[int], str]) -> np.ndarray:
    """Return a matrix as a 2-D numpy array of a floating dtype, or raise an error."""
    refuse_mask(item, name(position))
    if is_tensor(item):
        try:
            item = item.detach().cpu().resolve_neg()
            item = (item.float() if dtype_name(item) == "bfloat16" else item).numpy()
        except (RuntimeError, TypeError) as error:  # sparse, quantized, on the device "meta", of an 8-bit float type
            raise EmbeddingsError(
                f"{name(position)} came with a torch tensor of {item.dtype}, {item.layout}, on {item.device}, which "
                "numpy cannot hold; expected a dense one of float32, float16, bfloat16 or float64."
            ) from error
    elif not isinstance(item, np.ndarray):
        try:
            item = np.asarray(item, dtype="float32")
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: tensors with a gradient
            raise EmbeddingsError(
                f"{name(position)} came with {type(item).__name__}; expected a 2-D numpy or torch matrix (tokens, dim)."
            ) from error
    if item.ndim != 2:
        hint = "; padded batches go through TokenEmbeddings.from_padded(padded, mask)" if item.ndim == 3 else ""
        raise EmbeddingsError(
            f"{name(position)} has embeddings of shape {item.shape}; expected 2-D (tokens, dim){hint}."
        )
    if item.dtype.kind != "f":
        raise EmbeddingsError(
            f"{name(position)} has embeddings of dtype {item.dtype}; expected floating numbers (int8 codes come with "
            "their scales, as TokenEmbeddings)."
        )
    return item


def _check_dim(received: int, expected: int, position: int, name: Callable[[int], str]) -> None:
    if received != expected:
        raise EmbeddingsError(
            f"{name(position)} has dim {received}, but the index or the first one given has dim {expected}; encode all "
            "with one model."
        )
    if received == 0:
        raise EmbeddingsError(f"{name(position)} has dim 0; every token needs at least one number.")


Encode: TypeAlias = Callable[[TokenEmbeddings, "dict[str, np.ndarray] | None"], "dict[str, np.ndarray]"]

_AreFinite: TypeAlias = Callable[["dict[str, np.ndarray]"], bool]

# Documents are read at a time up to about this size and number for each thread, and this many threads, which limits the
# memory. Packed embeddings are in memory: of them, as much is read as for the most threads.
_READ_BYTES, _READ_DOCUMENTS, _READ_THREADS = 16 << 20, 1024, 4
_PROVIDING = connections.Lock()
_BYTES = (bytes, bytearray, memoryview)  # iterating over them gives integers, which would be ids


class DocumentBatch(NamedTuple):
    """Documents that are stored together, and their token arrays, which have one row per token."""

    documents: Sequence[StoredDocument]
    lengths: np.ndarray
    dim: int
    arrays: dict[str, np.ndarray]


class GivenDocuments(NamedTuple):
    """Documents as a user gives them, or some of them as lists."""

    ids: Any
    embeddings: Any
    texts: Any = None
    metadata: Any = None


class DocumentBatches:
    """The documents of one `add` or `update`, read batch by batch.

    `batch_bytes`: a batch ends when its vectors, texts and metadata reach this size; `show_progress`: show a progress
    bar on stderr.
    """

    def __init__(
        self,
        given: GivenDocuments,
        *,
        dtype: str = "float32",
        batch_bytes: int = 256 << 20,
        show_progress: bool = False,
    ) -> None:
        ids, embeddings, texts, metadata = given
        _check_not_padded(embeddings)
        for name, values in (("ids", ids), ("texts", texts), ("metadata", metadata)):
            if is_array(values) and values.ndim == 0:
                raise InvalidArgumentError(f"received an array without dimensions as {name}; give one per document.")
        if is_single_id(ids):
            ids, texts, metadata = [ids], None if texts is None else [texts], None if metadata is None else [metadata]
        columns = [_Column("ids", ids)]  # before the others are compared with it
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
        columns += [_Column("texts", texts), _Column("metadata", metadata)]
        _compare_lengths(columns, embeddings)
        self._columns = columns
        self._dtype = dtype
        self._batch_bytes = batch_bytes
        self._show_progress = show_progress

    def read(
        self, dim: int | None, encode: Encode, are_finite: _AreFinite = lambda _: False
    ) -> Iterator[DocumentBatch]:
        """Yield the batches; they can be read once.

        `dim`: the dim of the index; ``None`` takes the dim of the first document. `encode`: returns the token arrays of
        some vectors, which it may write to the places given as its second argument. It is called for parts of a batch,
        so that only its results are held in memory. `are_finite`: whether token arrays show that all vectors were
        finite. If not, the vectors themselves are checked, which reads them once more. Yields: with at least one
        document.
        """
        documents = DocumentColumns([], [], [], [])
        lengths: list[np.ndarray] = []
        arrays, size, reader, left = _TokenArrays(), 0, None, self._columns[0].length

        def batch() -> DocumentBatch:
            return DocumentBatch(documents, np.concatenate(lengths), dim or 0, arrays.filled())

        with progress_bar(shown=self._show_progress, total=self._columns[0].length, unit=" documents") as progress:
            for given in self._given():
                if reader is None:  # the first document says which dim the others must have
                    dim = _first_dim(given, self._dtype) if dim is None else dim
                    reader = _Reader(self._dtype, dim, encode, are_finite)
                for part in reader.read(given, arrays, self._batch_bytes, left):
                    documents.extend(part.documents)
                    lengths.append(part.lengths)
                    size += part.nbytes
                    progress.update(len(part.documents))
                left = None if left is None else left - len(given.ids)
                if size >= self._batch_bytes:
                    yield batch()
                    documents, lengths, arrays, size = DocumentColumns([], [], [], []), [], _TokenArrays(), 0
        if documents:
            yield batch()

    def _given(self) -> Iterator[GivenDocuments]:
        """Yield some documents at a time."""
        count = 0
        for items in _split(self._embeddings, self._batch_bytes, min(allowed_threads(), _READ_THREADS)):
            ids, texts, metadata = (column.take(len(items), count) for column in self._columns)
            count += len(items)
            yield GivenDocuments(ids, items, texts, metadata)
        for column in self._columns:
            column.expect_end(count)


class _Part(NamedTuple):
    """A part of a batch, and the size of its vectors, texts and metadata before they were encoded."""

    documents: DocumentColumns
    lengths: np.ndarray
    nbytes: int


class _Reader(NamedTuple):
    """Checks, converts and encodes documents; see `DocumentBatches.read`."""

    dtype: str
    dim: int
    encode: Encode
    are_finite: _AreFinite

    def read(self, given: GivenDocuments, arrays: _TokenArrays, batch_bytes: int, left: int | None) -> list[_Part]:
        """Read documents in parts, each by one thread, which writes its token arrays to their place in `arrays`.

        `batch_bytes`: the size of the vectors with which a batch ends. `left`: the number of these documents and those
        after them; None if it is not known.
        """
        # More parts than threads, since some take longer than others and each is converted as a whole; a few documents
        # are not worth a thread.
        count = max(1, min(4 * allowed_threads(), len(given.ids) // 4))
        cuts = np.linspace(0, len(given.ids), count + 1).astype("int64").tolist()
        parts = [GivenDocuments(*(column[first:last] for column in given)) for first, last in pairwise(cuts)]
        layout = self.encode(TokenEmbeddings(np.empty((0, self.dim), self.dtype), [0]), None)
        row_bytes = np.dtype(self.dtype).itemsize * self.dim
        full = (batch_bytes + min(_READ_BYTES * _READ_THREADS, batch_bytes)) // row_bytes
        tokens = [_count_tokens(part.embeddings) for part in parts]
        expected = 0 if left is None else sum(tokens) * left // len(given.ids)
        places = arrays.reserve(layout, tokens, expected, full)
        return map_each(lambda part: self._read_part(*part), zip(parts, places, strict=True))

    def _read_part(self, given: GivenDocuments, place: dict[str, np.ndarray]) -> _Part:
        ids = list(map(as_id, given.ids))
        name = _name_by(ids)
        packed = pack(given.embeddings, name, self.dtype, self.dim)
        encoded = list(map(encode_metadata, given.metadata, ids))
        texts = list(map(check_text, given.texts, ids))
        documents = DocumentColumns(ids, texts, [json for json, _ in encoded], [fields for _, fields in encoded])
        reserved = min(map(len, place.values()))
        if packed.num_tokens != reserved:
            raise EmbeddingsError(
                f"the documents {ids[0]!r} to {ids[-1]!r} have {packed.num_tokens} tokens, and had {reserved} before; "
                "do not change embeddings while they are added."
            )
        _provide(place.values())
        try:
            arrays = self.encode(packed, place)
        except EmbeddingsError as error:
            row = int(np.abs(packed.vectors).max(axis=1).argmax())
            largest = int(np.searchsorted(packed.offsets, row, side="right")) - 1
            raise EmbeddingsError(f"{name(largest)}: {error}") from error
        if not self.are_finite(arrays):
            check_finite(packed, given.embeddings, name)
        for array, rows in arrays.items():
            if rows is not place[array]:
                place[array][:] = rows
        return _Part(documents, packed.lengths, packed.vectors.nbytes + documents.nbytes)


def _first_dim(given: GivenDocuments, dtype: str) -> int:
    """Return the dim of the first document."""
    return pack(given.embeddings[:1], _name_by([as_id(given.ids[0])]), dtype, None).dim


def _name_by(ids: list[Id]) -> Callable[[int], str]:
    return lambda position: f"document {ids[position]!r}"


def _count_tokens(items: Any) -> int:
    """Return the number of tokens of documents; any number, if there are some that `pack` rejects."""
    return items.num_tokens if isinstance(items, TokenEmbeddings) else sum(map(_count_rows, items))


def _count_rows(item: Any) -> int:
    try:
        shape = (len(item),) if isinstance(item, Sequence) else np.shape(item)
    except (TypeError, ValueError, RuntimeError):
        return 0
    return shape[0] if shape else 0


class _TokenArrays:
    """The token arrays of a batch, filled part by part.

    Memory is reserved for all documents, or for a full batch where their number is not known, with the second call of
    `reserve`: the system provides it only as it is written. Parts that are kept and concatenated at the end would take
    twice the memory, and more time than their encoding.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._tokens = self._reserved = 0

    def reserve(
        self, layout: dict[str, np.ndarray], tokens: list[int], expected: int, full: int
    ) -> list[dict[str, np.ndarray]]:
        """Return where the arrays of some parts are to be written.

        `expected`: about how many tokens are to come, these included; 0 if that is not known. `full`: about how many
        tokens a full batch has.
        """
        ends = self._tokens + np.cumsum(tokens)
        end = int(ends[-1])
        if end > self._reserved:
            self._reserved = max(end, full if self._tokens else min(expected + expected // 16, full))
            reserved = {name: np.empty((self._reserved, *rows.shape[1:]), rows.dtype) for name, rows in layout.items()}
            for name, rows in self._arrays.items():
                reserved[name][: self._tokens] = rows[: self._tokens]
            self._arrays = reserved
        self._tokens = end
        return [
            {name: rows[last - count : last] for name, rows in self._arrays.items()}
            for count, last in zip(tokens, ends.tolist(), strict=True)
        ]

    def filled(self) -> dict[str, np.ndarray]:
        """Return the arrays; copies if most of what was reserved is not needed."""
        some = {name: rows[: self._tokens] for name, rows in self._arrays.items()}
        return some if 2 * self._tokens > self._reserved else {name: rows.copy() for name, rows in some.items()}


def _provide(arrays: Iterable[np.ndarray]) -> None:
    """Let the system provide the memory of arrays now, for one thread at a time.

    In a virtual machine it takes twice as long where several threads are the first to write to their memory.
    """
    with _PROVIDING.current:
        for array in arrays:
            array.reshape(-1).view("uint8")[:: mmap.PAGESIZE] = 0


class _Column:
    """Ids, texts or metadata, read together with the embeddings; ``None`` stands for ``None`` for each document."""

    def __init__(self, name: str, values: Any) -> None:
        if values is None and name == "ids":
            raise InvalidArgumentError("received None as ids; give one id per document, a str or an int.")
        if values is not None and (not isinstance(values, Iterable) or isinstance(values, _BYTES)):
            each = ", a str or an int" if name == "ids" else ""
            raise InvalidArgumentError(f"received {type(values).__name__} as {name}; give one per document{each}.")
        self.name = name
        self.length: int | None = len(values) if isinstance(values, Sized) else None
        self._values = None if values is None else iter(values)

    def take(self, n: int, before: int) -> list[Any]:
        if self._values is None:
            return [None] * n
        taken = list(islice(self._values, n))
        if len(taken) < n:
            hint = "" if self.length != 1 else "; the tokens of one document are one array (tokens, dim), not a list"
            raise InvalidArgumentError(
                f"{self.name} ended after {before + len(taken)} documents, but there are more embeddings; give one of "
                f"each per document{hint}."
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


def _split(embeddings: Any, batch_bytes: int, threads: int) -> Iterator[list[Any] | TokenEmbeddings]:
    """Cut embeddings into what is read at a time: lists of matrices, or slices of packed embeddings."""
    if isinstance(embeddings, TokenEmbeddings):
        yield from _split_packed(embeddings, batch_bytes)
        return
    if not isinstance(embeddings, Iterable) or isinstance(embeddings, (str, bytes, Mapping)):
        raise InvalidArgumentError(
            f"received {type(embeddings).__name__} as embeddings; give TokenEmbeddings, a list of (tokens, dim) "
            "matrices or an iterable of either."
        )
    most_bytes, most_documents = min(_READ_BYTES * threads, batch_bytes), _READ_DOCUMENTS * threads
    waiting: list[Any] = []
    size = 0
    for item in embeddings:
        if isinstance(item, TokenEmbeddings):
            if waiting:
                yield waiting
                waiting, size = [], 0
            yield from _split_packed(item, batch_bytes)
            continue
        waiting.append(item)
        size += _float_bytes(item)
        if size >= most_bytes or len(waiting) >= most_documents:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _float_bytes(item: Any) -> int:
    """Return about the size of a matrix in memory, as float32 at least; 0 for what `pack` rejects."""
    if is_array(item):
        is_sparse = is_tensor(item) and str(item.layout) != "torch.strided"  # it has no size
        return 0 if is_sparse else max(int(item.nbytes), 4 * int(np.prod(item.shape)))
    first = item[0] if isinstance(item, Sequence) and item else None
    return 4 * len(item) * len(first) if isinstance(first, Sized) else 0


def _split_packed(embeddings: TokenEmbeddings, batch_bytes: int) -> Iterator[TokenEmbeddings]:
    tokens = max(1, min(_READ_BYTES * _READ_THREADS, batch_bytes) // max(1, 4 * embeddings.dim))
    for first, last in split_by_rows(embeddings.offsets, tokens, _READ_DOCUMENTS * _READ_THREADS):
        yield embeddings[first:last]


def prepare_queries(queries: Any, dim: int | None) -> TokenEmbeddings:
    """Return the queries of a search, checked and packed as float32.

    `queries`: `TokenEmbeddings`, a sequence of matrices, or one matrix for one query. `dim`: the dim of the index;
    ``None`` while it is empty. Returns: one matrix per query; for an empty index, of any dim.
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
    packed = pack(queries, "query {}".format, "float32", dim)
    check_finite(packed, queries, "query {}".format)
    return packed


def _check_not_padded(embeddings: object) -> None:
    """Raise an error for a padded batch: without a mask, its padding would count as tokens."""
    if is_array(embeddings) and embeddings.ndim != 2:
        hint = "; give padded embeddings as TokenEmbeddings.from_padded(padded, mask)" if embeddings.ndim == 3 else ""
        raise EmbeddingsError(
            f"received an array of shape {tuple(embeddings.shape)}; expected a 2-D matrix (tokens, dim) per text{hint}."
        )
