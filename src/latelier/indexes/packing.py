"""What users give to an index, checked and packed: ids, matrices, texts and metadata.

Embeddings may be packed batches, lists of matrices or iterables of either, numpy or torch, of any floating type and
device. `DocumentBatches` reads them together with ids, texts and metadata, in batches of bounded size, so that a
collection that does not fit in memory can be given as generators. Documents and queries go through the same checks.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.arrays import dtype_name, is_array, is_tensor
from latelier.embeddings import TokenEmbeddings, warn_of_zero_rows, without_zero_rows
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes.store.rows import DocumentBatch, DocumentColumns
from latelier.kernels.threads import allowed_threads, for_each
from latelier.utils.batching import lengths_to_offsets, split_by_rows
from latelier.utils.misc import progress_bar
from latelier.utils.values import Id, is_single_id


def pack(
    items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str], dtype: str, dim: int | None
) -> TokenEmbeddings:
    """Check, convert and pack the matrices of several documents or queries; each has at least one token afterwards."""
    if isinstance(items, TokenEmbeddings):
        source = _floats(items)
        matrices = [source.vectors]
    else:
        matrices = [_matrix(item, position, name) for position, item in enumerate(items)]
    if dim is None:
        dim = matrices[0].shape[1]
    for position, matrix in enumerate(matrices):
        if matrix.shape[1] != dim:
            raise EmbeddingsError(
                f"{name(position)} has dim {matrix.shape[1]}, but the index or the first one given has dim {dim}; "
                "encode all with one model."
            )
    if isinstance(items, TokenEmbeddings):
        vectors = source.vectors
        offsets = source.offsets
    else:
        vectors = np.concatenate(matrices)
        offsets = lengths_to_offsets(list(map(len, matrices)))
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{name(int(without[0]))} has no token; every text needs at least one.")
    if vectors.dtype != dtype:
        with np.errstate(over="ignore"):  # `check_range` finds numbers beyond that of the dtype
            vectors = vectors.astype(dtype)
    elif isinstance(items, TokenEmbeddings):
        return source  # TokenEmbeddings has checked its offsets
    return TokenEmbeddings(vectors, offsets)


# Of a vector: with it, the sum of the scores of 300 query tokens is within float32.
LONGEST_VECTOR = 1e18


def check_range(packed: TokenEmbeddings, items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str]) -> None:
    """Raise an error for NaN, infinity, numbers beyond the dtype, and vectors whose products are beyond float32."""
    if packed.dtype == "float32":
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("td,td->t", packed.vectors, packed.vectors)
        fits = squares <= LONGEST_VECTOR**2  # false for NaN
    else:  # float16, with numbers up to 65,504
        fits = np.isfinite(packed.vectors).all(axis=1)
    if fits.all():
        return
    row = int(np.argmin(fits))
    position = int(np.searchsorted(packed.offsets, row, side="right")) - 1
    item = items[position]
    if isinstance(items, TokenEmbeddings):
        matrix = _floats(items)[position]
    else:
        matrix = _matrix(item, position, name)
    given: Any = matrix[row - int(packed.offsets[position])]
    if np.isfinite(packed.vectors[row]).all():
        raise EmbeddingsError(
            f"{name(position)} has a vector of length {np.linalg.norm(given.astype('float64')):.3g}, whose scores can "
            f"exceed single precision; the length may be {LONGEST_VECTOR:g}: normalise the vectors, or divide all by "
            "one number."
        )
    if np.isfinite(given).all():
        raise EmbeddingsError(
            f"{name(position)} holds {given[np.abs(given).argmax()]:g}, outside of the range of {packed.dtype}; "
            "normalise the vectors."
        )
    raise EmbeddingsError(f"{name(position)} holds NaN or infinity; check the model that encoded it.")


def _floats(embeddings: TokenEmbeddings) -> TokenEmbeddings:
    """Return packed embeddings as numpy arrays of a floating dtype."""
    source = embeddings.to("numpy")
    if source.scales is None:
        return source
    return source.to("float32")


def _matrix(item: Any, position: int, name: Callable[[int], str]) -> np.ndarray:
    """Return a matrix as a 2-D numpy array of a floating dtype, or raise an error."""
    try:
        if isinstance(item, np.ndarray) and item.dtype == object:  # as pandas reads a column of lists
            item = np.stack([np.asarray(row, dtype="float32") for row in item])
        if is_tensor(item):
            item = item.detach().cpu().resolve_neg()
            item = (item.float() if dtype_name(item) == "bfloat16" else item).numpy()
        elif not isinstance(item, np.ndarray):
            item = np.asarray(item, dtype="float32")
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: lists of tensors with a gradient
        raise EmbeddingsError(
            f"{name(position)} came with {type(item).__name__}: {error}; expected a 2-D numpy or torch matrix "
            "(tokens, dim)."
        ) from error
    if item.ndim != 2:
        if item.ndim == 3:
            hint = "; padded batches go through TokenEmbeddings.from_padded(padded, mask)"
        else:
            hint = ""
        raise EmbeddingsError(
            f"{name(position)} has embeddings of shape {item.shape}; expected 2-D (tokens, dim){hint}."
        )
    if item.dtype.kind != "f":
        raise EmbeddingsError(
            f"{name(position)} has embeddings of dtype {item.dtype}; expected floating numbers (int8 codes come with "
            "their scales, as TokenEmbeddings)."
        )
    return item


Encode: TypeAlias = Callable[[TokenEmbeddings, "dict[str, np.ndarray] | None"], "dict[str, np.ndarray]"]

_AreInRange: TypeAlias = Callable[["dict[str, np.ndarray]"], bool]

# Documents are read at a time up to about this size and number for each thread, and this many threads, which limits the
# memory.
_READ_BYTES = 16 << 20
_READ_DOCUMENTS = 1024
_READ_THREADS = 4
# An index looks at so many documents at least before it encodes its first ones.
_PEEKED = 16


class GivenDocuments(NamedTuple):
    """Documents as a user gives them, or some of them as lists; see `Index.add`.

    `seen`, `origins`: of a writer that follows files, see `StoredDocument`.
    """

    ids: Any
    embeddings: Any
    texts: Any = None
    metadata: Any = None
    ranges: Any = None
    seen: Any = None
    origins: Any = None


class DocumentBatches:
    """The documents of one `add` or `update`, in batches of `batch_bytes` of vectors, texts and metadata."""

    def __init__(
        self,
        given: GivenDocuments,
        *,
        dtype: str = "float32",
        batch_bytes: int = 256 << 20,
        show_progress: bool = False,
    ) -> None:
        ids, embeddings, texts, metadata, ranges, seen, origins = given
        if isinstance(embeddings, np.ndarray) and embeddings.dtype == object and embeddings.ndim == 1:
            embeddings = list(embeddings)
        if is_array(embeddings) and embeddings.ndim != 2:  # without a mask, padding would count as tokens
            raise EmbeddingsError(
                f"received an array of shape {tuple(embeddings.shape)}; expected a 2-D matrix (tokens, dim) per text, "
                "or padded embeddings as TokenEmbeddings.from_padded(padded, mask)."
            )
        if is_single_id(ids):
            ids = [ids]
            texts = None if texts is None else [texts]
            metadata = None if metadata is None else [metadata]
            ranges = None if ranges is None else [ranges]
        if isinstance(ids, Sized) and len(ids) == 1:
            if is_array(embeddings):
                embeddings = [embeddings]
            texts = [texts] if isinstance(texts, str) else texts
            if isinstance(metadata, Mapping):
                metadata = [metadata]
        elif is_array(embeddings) or isinstance(metadata, Mapping) or isinstance(texts, str):
            raise InvalidArgumentError("a single matrix, text or dict needs a single id; for several ids, give lists.")
        columns = {"ids": ids, "texts": texts, "metadata": metadata, "ranges": ranges, "seen": seen, "origins": origins}
        self._columns = {name: values for name, values in columns.items() if values is not None}
        known = {name: len(values) for name, values in self._columns.items() if isinstance(values, Sized)}
        self._count = known.get("ids")
        if isinstance(embeddings, TokenEmbeddings) and ranges is None:
            known["embeddings"] = len(embeddings)
        if len(set(known.values())) > 1:
            lengths = ", ".join(f"{length} {name}" for name, length in known.items())
            raise InvalidArgumentError(f"received {lengths}; give one of each per document.")
        self._embeddings = embeddings
        self._dtype = dtype
        self._batch_bytes = batch_bytes
        self._show_progress = show_progress
        self._read_bytes = min(_READ_BYTES * min(allowed_threads(), _READ_THREADS), batch_bytes // 4)
        self._chunks = self._given()
        self._dropped = 0  # rows of zeros

    def peek(self, tokens: int = 0) -> TokenEmbeddings | None:
        """Return some of the vectors, which `read` yields all the same; None if there are none.

        With any memory budget these are the same, since codes depend on them: if all are at hand, about so many tokens
        at equal distances, otherwise those of the first documents that have so many together.
        """
        if tokens:
            sampled = _sample(self._embeddings, tokens)
        else:
            sampled = None
        if sampled is not None:
            packed = pack(sampled, lambda _: "a sample of the documents", self._dtype, None)
            vectors = packed.vectors[packed.vectors.any(axis=1)]  # without padding
            return TokenEmbeddings(vectors, [0, len(vectors)]) if 0 < len(vectors) < packed.num_tokens else packed
        chunks: list[Any] = []
        dim = None
        found: list[TokenEmbeddings] = []
        for chunk in self._chunks:
            chunks.append(chunk)
            for first in range(0, len(chunk.embeddings), _PEEKED):
                some = chunk.embeddings[first : first + _PEEKED]
                name = _name_by(chunk.owners[first:])
                found.append(without_zero_rows(pack(some, name, self._dtype, dim), name)[0])
                dim = found[-1].dim
                tokens = tokens - found[-1].num_tokens
                if tokens <= 0:
                    break
            if tokens <= 0:
                break
        self._chunks = chain(chunks, self._chunks)
        if found:
            return TokenEmbeddings.concatenate(found)
        return None

    def read(
        self, dim: int | None, encode: Encode, are_in_range: _AreInRange = lambda _: False
    ) -> Iterator[DocumentBatch]:
        """Yield the batches, once; `encode` gets parts of a batch, and the places that it may write its results to.

        `are_in_range`: whether token arrays show what `check_range` checks; if not, the vectors are read once more.
        """
        documents = DocumentColumns()
        lengths = [np.zeros(0, "int64")]
        size = 0
        arrays = None
        with progress_bar(shown=self._show_progress, total=self._count, unit=" documents") as progress:
            for more, owners, embeddings, is_end, more_bytes in self._chunks:
                name = _name_by(owners)
                packed = pack(embeddings, name, self._dtype, dim)
                dim = packed.dim
                packed, dropped = without_zero_rows(packed, name)
                if dropped:
                    self._dropped += dropped
                    embeddings = packed
                if arrays is None:
                    row_bytes = np.dtype(self._dtype).itemsize * dim
                    arrays = _TokenArrays(encode, most=(self._batch_bytes + self._read_bytes) // row_bytes)
                encoded = arrays.append(packed)
                if not are_in_range(encoded):
                    check_range(packed, embeddings, name)
                documents.extend(more)
                lengths.append(packed.lengths)
                size += packed.vectors.nbytes + more_bytes
                progress.update(len(more))
                if size >= self._batch_bytes and is_end:
                    yield DocumentBatch(documents, np.concatenate(lengths), dim, arrays.filled())
                    documents = DocumentColumns()
                    lengths = []
                    size = 0
                    arrays = None
        if arrays is not None:
            yield DocumentBatch(documents, np.concatenate(lengths), dim or 0, arrays.filled())
        warn_of_zero_rows(self._dropped)

    def _given(self) -> Iterator[_Chunk]:
        """Yield some rows at a time: what is read of the embeddings, with the documents that begin in it."""
        columns = {name: iter(values) for name, values in self._columns.items()}
        count = 0
        missing = 0  # rows of the last document that have not been read
        for items in _split(self._embeddings, self._read_bytes):
            first = 0
            size = 0
            documents = DocumentColumns()
            owners: list[Id] = []
            for last in range(1, len(items) + 1):
                if not missing:
                    given = self._next_document(columns, count)
                    count += 1
                    size += documents.append(*(given.get(name) for name in _COLUMNS))
                    missing = len(documents.passages[-1]) or 1
                    owner = documents.ids[-1]
                missing -= 1
                owners.append(owner)
                if size >= self._read_bytes or last == len(items):
                    yield _Chunk(documents, owners, items[first:last], not missing, size)
                    first = last
                    size = 0
                    documents = DocumentColumns()
                    owners = []
        if missing:
            raise InvalidArgumentError(
                f"embeddings ended before the last {missing} passages of document {owner!r}; give a matrix for each of "
                "its ranges."
            )
        for name, values in columns.items():
            if next(values, self) is not self:
                raise InvalidArgumentError(
                    f"embeddings ended after {count} documents, but there are more {name}; give one of each per "
                    "document."
                )

    def _next_document(self, columns: Mapping[str, Iterator[Any]], count: int) -> dict[str, Any]:
        """Return what was given of the next document, for which there are embeddings, after so many."""
        given = {}
        for name, values in columns.items():
            given[name] = next(values, self)
            if given[name] is self:
                hint = "; the tokens of one document are one array (tokens, dim), not a list"
                raise InvalidArgumentError(
                    f"{name} ended after {count} documents, but there are more embeddings; give one of each "
                    f"per document{hint if self._count == 1 else ''}."
                )
        return given


class _Chunk(NamedTuple):
    """Rows that are read together: the documents that begin among them, and the id of the document of each row.

    `is_end`: whether the last document has no further row. `size`: bytes of ids, texts and metadata.
    """

    documents: DocumentColumns
    owners: list[Id]
    embeddings: Any
    is_end: bool
    size: int


# What is given of a document, in the order of `DocumentColumns.append`.
_COLUMNS = ("ids", "texts", "metadata", "ranges", "seen", "origins")


def _sample(embeddings: Any, tokens: int) -> TokenEmbeddings | None:
    """Return about so many tokens at equal distances, as one document; None if not all are at hand as arrays."""
    if isinstance(embeddings, TokenEmbeddings):
        step = max(1, embeddings.num_tokens // tokens)
        scales = embeddings.scales
        vectors = embeddings.vectors[::step]
        scales = None if scales is None else scales[::step]
    elif isinstance(embeddings, list) and {np.ndim(each) * isinstance(each, np.ndarray) for each in embeddings} == {2}:
        if len({each.shape[1] for each in embeddings}) > 1:
            return None  # `read` will raise an error that names the document
        begins = lengths_to_offsets([len(each) for each in embeddings]).tolist()
        step = max(1, begins[-1] // tokens)
        rows = [each[-begin % step :: step] for each, begin in zip(embeddings, begins, strict=False)]
        vectors = np.concatenate(rows)
        scales = None
    else:
        return None
    if len(vectors):
        return TokenEmbeddings(vectors, [0, len(vectors)], scales)
    return None


def _name_by(ids: list[Id]) -> Callable[[int], str]:
    return lambda position: f"document {ids[position]!r}"


class _TokenArrays:
    """The token arrays of a batch, filled part by part: concatenating parts at the end would take twice the memory."""

    def __init__(self, encode: Encode, most: int) -> None:
        self._encode = encode
        self._most = most
        self._arrays: dict[str, np.ndarray] = {}
        self._tokens = self._reserved = 0

    def append(self, packed: TokenEmbeddings) -> dict[str, np.ndarray]:
        """Encode documents, by several threads, and return their arrays."""
        before = self._tokens
        self._tokens = self._tokens + packed.num_tokens
        if self._tokens > self._reserved:
            self._reserved = max(self._tokens, self._most if before else 0)
            layout = self._encode(packed[:0], None)
            for name, rows in layout.items():
                reserved = np.empty((self._reserved, *rows.shape[1:]), rows.dtype)
                if before:
                    reserved[:before] = self._arrays[name][:before]
                self._arrays[name] = reserved
        added = {}
        for name, rows in self._arrays.items():
            added[name] = rows[before : self._tokens]
            # In a virtual machine, memory takes twice as long where several threads are the first to write to it.
            added[name].reshape(-1).view("uint8")[:: mmap.PAGESIZE] = 0

        def encode_part(cut: tuple[int, int]) -> None:
            part = packed[slice(*cut)]
            tokens = slice(*packed.offsets[list(cut)])
            places = {name: rows[tokens] for name, rows in added.items()}
            for name, rows in self._encode(part, places).items():
                if rows is not places[name]:
                    places[name][:] = rows

        # More parts than threads, since some take longer than others; a few documents are not worth a thread.
        count = max(1, min(4 * allowed_threads(), len(packed) // 4))
        for_each(encode_part, pairwise(np.linspace(0, len(packed), count + 1).astype("int64").tolist()))
        return added

    def filled(self) -> dict[str, np.ndarray]:
        """Return the arrays; copies if most of what was reserved is not needed."""
        filled = {}
        for name, rows in self._arrays.items():
            filled[name] = rows[: self._tokens]
            if 2 * self._tokens <= self._reserved:
                filled[name] = filled[name].copy()
        return filled


def _split(embeddings: Any, read_bytes: int) -> Iterator[list[Any] | TokenEmbeddings]:
    """Cut embeddings into what is read at a time: lists of matrices, or slices of packed embeddings."""
    waiting: list[Any] = []
    size = 0
    most = _READ_DOCUMENTS * _READ_THREADS
    for item in [embeddings] if isinstance(embeddings, TokenEmbeddings) else embeddings:
        is_packed = isinstance(item, TokenEmbeddings)
        if waiting and (is_packed or size >= read_bytes or len(waiting) >= most):
            yield waiting
            waiting = []
            size = 0
        if is_packed:
            for first, last in split_by_rows(item.offsets, max(1, read_bytes // max(1, 4 * item.dim)), most):
                yield item[first:last]
        else:
            waiting.append(item)
            size += _float_bytes(item)
    if waiting:
        yield waiting


def _float_bytes(item: Any) -> int:
    """Return the size of a matrix as float32; 0 for what `pack` rejects."""
    try:
        return 4 * len(item) * len(item[0])
    except (TypeError, IndexError):
        return 0


def prepare_queries(queries: Any, dim: int | None) -> TokenEmbeddings:
    """Return the queries of a search, checked and packed as float32; `dim` is None while the index is empty."""
    if is_array(queries):
        queries = [queries]
    if not isinstance(queries, (TokenEmbeddings, Sequence)) or isinstance(queries, (str, bytes)):
        raise EmbeddingsError(
            f"received {type(queries).__name__} as queries; give TokenEmbeddings, a list of (tokens, dim) matrices, or "
            "one matrix."
        )
    if len(queries) == 0:
        return TokenEmbeddings.from_list([], dim=dim)
    name = "query {}".format
    packed = pack(queries, name, "float32", dim)
    check_range(packed, queries, name)
    return packed


def check_queries(queries: Any, dim: int | None, texts: list[str], mode: str) -> TokenEmbeddings | None:
    """Return the vectors of the queries of a search, packed; None for ``"keywords"``, which uses none."""
    if mode == "keywords":
        return None
    if queries is None and mode != "vectors":
        raise InvalidArgumentError(f"mode={mode!r} needs the vectors of the queries too; only 'keywords' does not.")
    vectors = prepare_queries(queries, dim)
    if mode != "vectors" and len(vectors) != len(texts):
        raise InvalidArgumentError(
            f"received {len(vectors)} queries and {len(texts)} texts; give one text for each query."
        )
    return vectors
