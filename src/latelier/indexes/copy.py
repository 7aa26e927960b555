"""`copy_documents`: documents with their vectors from one index to another, or to and from a Parquet file.

A file has the columns ``id``, ``text``, ``vectors`` (a list of token vectors) and one per metadata key, and row groups
of bounded size. If documents are stored in passages, ``passages`` has the range of each, and how many of the vectors
are its own. What Parquet cannot hold as it is becomes JSON texts; the file's own metadata names those columns, and has
the settings of the index.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import (
    CorruptedIndexError,
    EmbeddingsError,
    InvalidArgumentError,
    StorageError,
)
from latelier.indexes.base import Index, PathLike
from latelier.indexes.ivf import IVF
from latelier.indexes.packing import GivenDocuments
from latelier.indexes.results import CUT, WEAK, Passage, Record, duplicate_ids
from latelier.indexes.store.sources import Changes, FileState, Origin, Source
from latelier.utils.batching import consecutive, lengths_to_offsets
from latelier.utils.checks import describe, parse_bytes, short
from latelier.utils.files import parse_json, replaced
from latelier.utils.misc import needs_extra, progress_bar
from latelier.utils.values import INT64, Id, dump_json

# Bytes of the vectors of a batch: a transaction of an index, a row group of a file. A batch is in memory a few times.
_BATCH_BYTES = 64 << 20
_MOST_DOCUMENTS = 4096
_COLUMNS = ("id", "text", "vectors", "passages")
# Attributes of an index that a new one gets from a file of its documents.
_ABOUT = ("kind", "nbits", "dtype", "tokenizer")
# Before the names of columns of metadata keys that would be taken for others.
_PREFIX = "metadata."
_MISSING = object()


@dataclass(frozen=True)
class TransferReport:
    """What was copied; prints as one line.

    Parameters
    ----------
    documents, tokens
        Number of documents of the source, and of their token vectors.
    written
        Number of documents that this call wrote; the others were there already, from an interrupted call.
    destination
        The file, or the kind and folder of the index, that they were written to.
    seconds
        Duration of this call.

    Examples
    --------
    >>> print(TransferReport(1500, 180_000, 400, "./moved", 2.5))
    1,500 documents with 180,000 tokens: 400 written to ./moved, 1,100 were there already (2.5 s)
    """

    documents: int
    tokens: int
    written: int
    destination: str
    seconds: float

    @property
    def kept(self) -> int:
        """Number of documents that were there already."""
        return self.documents - self.written

    def __str__(self) -> str:
        if self.kept:
            there = f", {self.kept:,} were there already"
        else:
            there = ""
        moved = f"{self.documents:,} documents with {self.tokens:,} tokens: {self.written:,} written"
        return f"{moved} to {self.destination}{there} ({self.seconds:.1f} s)"


class _Batch(NamedTuple):
    """Some documents, in the order of insertion; vectors are float32 or float16, a matrix for each row."""

    ids: list[Id]
    embeddings: TokenEmbeddings
    texts: list[str | None]
    metadata: list[dict[str, Any]]
    passages: list[tuple[Passage, ...]]
    origins: list[Origin | None]

    @property
    def rows(self) -> np.ndarray:
        """How many rows each document has."""
        return np.array([len(each) or 1 for each in self.passages], dtype="int64")

    def select(self, positions: Sequence[int]) -> _Batch:
        columns: Any = (self.ids, self.texts, self.metadata, self.passages, self.origins)
        ids, texts, metadata, passages, origins = ([column[i] for i in positions] for column in columns)
        begins = lengths_to_offsets(self.rows)
        own = np.array(positions, dtype="int64")
        rows = consecutive(begins[own], self.rows[own])
        return _Batch(ids, self.embeddings[rows], texts, metadata, passages, origins)


def copy_documents(
    source: Index | PathLike,
    target: Index | PathLike,
    *,
    settings: bool = True,
    batch_size: int | str = _BATCH_BYTES,
    show_progress: bool = False,
) -> TransferReport:
    """Add the documents of an index to another one of any kind, or copy them to or from a Parquet file.

    Vectors, texts, metadata, ids and their order are copied; vectors of a quantised index as they are decoded. Each
    batch is one transaction of an index. After an interruption the same call goes on: documents that are in the index
    are compared with those of the source, and the others are added. A file is there as a whole, or not at all.

    Parameters
    ----------
    source
        The index, read as of one moment if it has snapshots, or the name of a ``.parquet`` file. A file of another
        program needs the columns ``id`` and ``vectors`` (lists of lists of floats); columns other than ``text`` become
        metadata.
    target
        The index, usually an empty one, or the name of a new ``.parquet`` file.
    settings
        Store the settings of the source, such as the model that encoded the documents, and which files they came
        from, so that a folder goes on being followed in the target. False keeps those of the target, for documents
        that fit them.
    batch_size
        Size of the vectors of a batch, and of a row group of the file, in bytes or as a text such as ``"64MB"``.
    show_progress
        Show a progress bar on stderr.

    Returns
    -------
    TransferReport
        What was written; prints as one line.

    Raises
    ------
    CorruptedIndexError
        If a document of the source is damaged, by its checksums.
    DuplicateIdError
        If the target holds another document with the same id, or a file holds an id twice.
    EmbeddingsError
        If the target holds vectors of another dim, or vectors of a file hold NaN or infinity.
    InvalidArgumentError
        If the target has other settings, the file to write exists, or the file to read is not such a file.
    MissingExtraError
        If pyarrow, of the extra ``parquet``, is not installed.
    StorageError
        If others change the source meanwhile.

    Examples
    --------
    >>> import tempfile
    >>> from latelier import indexes
    >>> flat, ivf = indexes.Flat(), indexes.IVF(nbits=4)
    >>> metadata = [{"year": 2020}, {}]
    >>> flat.add(["a", "b"], [np.eye(2), np.ones((1, 2))], metadata=metadata)
    >>> indexes.copy_documents(flat, ivf).written, ivf.ids()
    (2, ['a', 'b'])
    >>> file = tempfile.mkdtemp() + "/library.parquet"
    >>> indexes.copy_documents(flat, file).written
    2
    >>> again = indexes.Flat()
    >>> report = indexes.copy_documents(file, again)
    >>> again.get("a").metadata
    {'year': 2020}
    """
    began = perf_counter()
    size = parse_bytes("batch_size", batch_size) or _BATCH_BYTES
    tokens = written = 0
    with ExitStack() as stack:
        if isinstance(source, Index):
            given: Index | ParquetDocuments = source
            stack.enter_context(source.snapshot())
            if damaged := source.verify().ids:  # its copy would have checksums of the damaged bytes
                raise CorruptedIndexError(
                    f"{len(damaged):,} documents of {source!r} are damaged, such as {damaged[0]!r:.60}; verify() lists "
                    "them. Update or remove them, or restore the index from a backup."
                )
            ids = source.ids()
            total = len(ids)
            batches = _read_index(source, ids, size)
        else:
            given = ParquetDocuments(source)
            total = len(given)
            batches = given.read(size)
        stored = dict(given.settings) if settings else {}
        if isinstance(target, Index):
            if isinstance(source, IVF) and isinstance(target, IVF) and source.dim is not None:
                choice = source.codec_choice(source.dim)
                target.take_codec(source.dim, choice if target.dim is None else choice._replace(codebook=None))
            sources: list[Source] = []
            files: list[FileState] = []
            if settings and isinstance(source, Index):
                sources = _sources_to_take(source, target)
                files = [file for each in sources for file in source.origins.files(each.key).values()]
            added = _add_batches(batches, target, stored, sources)
        elif isinstance(source, Index):
            added = _write_parquet(batches, parquet_path(target), source, ids, stored)
        else:
            raise InvalidArgumentError("source and target are files; one of them must be an index.")
        with progress_bar(shown=show_progress, total=total, unit=" documents") as progress:
            for batch, new in added:
                tokens = tokens + batch.embeddings.num_tokens
                written = written + new
                progress.update(len(batch.ids))
        if isinstance(target, Index) and files:  # after their documents: a file that is known is not read again
            target.write(GivenDocuments([], []), Changes(files=files))
    if isinstance(target, Index):
        destination = repr(target)
    else:
        destination = str(target)
    return TransferReport(total, tokens, written, destination, perf_counter() - began)


# Indexes.


def _read_index(index: Index, ids: Sequence[Id], size: int) -> Iterator[_Batch]:
    # the size of documents is not known before the first are read
    first = 0
    count = 16
    while first < len(ids):
        some = list(ids[first : first + count])
        embeddings = index.get_embeddings(some).to("numpy")
        records = index.get(some)
        if embeddings.dtype != "float16":
            embeddings = embeddings.to("float32")
        texts = [record.text for record in records]
        metadata = [record.metadata for record in records]
        seen = index.origins.seen(some)
        origins = [seen[id].origin if id in seen else None for id in some]
        yield _Batch(some, embeddings, texts, metadata, [record.passages for record in records], origins)
        first += len(some)
        count = max(1, min(size * len(some) // max(1, embeddings.vectors.nbytes), 4 * count, _MOST_DOCUMENTS))
    if index.ids() != ids:
        raise StorageError("the source changed while it was copied; copy again while nothing is written.")


def _sources_to_take(source: Index, target: Index) -> list[Source]:
    """Return the folders and files that documents came from, but those that the target is filled from by itself."""
    own = {each.root: each.key for each in target.origins.sources()}
    return [each for each in source.origins.sources() if own.get(each.root, each.key) == each.key]


def _add_batches(
    batches: Iterator[_Batch], index: Index, settings: dict[str, Any], taken: Sequence[Source]
) -> Iterator[tuple[_Batch, int]]:
    """Add documents that an index does not have, and compare the others; yield each batch, and how many were new.

    `taken` are the sources whose documents keep where they came from.
    """
    before = set(index.ids())
    moved = set[Id]()
    _store_settings(index, settings, has_documents=bool(before))
    kept = {"", *(each.key for each in taken)}  # a document that a user gave has no source
    if taken:
        index.write(GivenDocuments([], []), Changes(sources=taken))
    for batch in batches:
        if twice := [id for id, count in Counter(batch.ids).items() if count > 1 or id in moved]:
            raise duplicate_ids(twice, "in the source twice")
        there = [i for i, id in enumerate(batch.ids) if id in before]
        if there:
            _compare(index, batch.select(there))
            new = batch.select([i for i, id in enumerate(batch.ids) if id not in before])
        else:
            new = batch
        if new.ids:
            ranges = [each or None for each in new.passages]
            origins = [origin if origin and origin.source in kept else None for origin in new.origins]
            columns = (new.ids, new.embeddings, new.texts, new.metadata, ranges)
            index.write(GivenDocuments(*columns, origins=origins), replace=False)
        moved.update(batch.ids)
        yield batch, len(new.ids)


def _store_settings(index: Index, settings: dict[str, Any], *, has_documents: bool) -> None:
    """Store settings before the first document, since they say what the vectors mean."""
    stored = dict(index.settings)
    own = {CUT, WEAK}
    # An index with documents and without a setting may hold documents of another model, or prepared otherwise.
    meant = [name for name in settings if name not in own and (name in stored or has_documents)]
    differing = [name for name in meant if stored.get(name) != settings[name]]
    if differing:
        raise InvalidArgumentError(
            f"{index!r} does not have the settings {', '.join(map(short, differing[:5]))} of the source: another model "
            "may have encoded its documents.",
            advice="copy-settings",
        )
    index.settings.update({name: value for name, value in settings.items() if name not in stored})


def _compare(index: Index, batch: _Batch) -> None:
    """Raise an error unless the index holds these documents, as far as its codes tell."""
    records = index.get(batch.ids)
    given = map(Record, batch.ids, batch.texts, batch.metadata, batch.passages)
    other = [record.id for record, each in zip(records, given, strict=True) if record != each]
    owners = [id for id, count in zip(batch.ids, batch.rows.tolist(), strict=True) for _ in range(count)]
    if not other:
        stored = index.get_embeddings(batch.ids).to("numpy")
        for id, *pair in zip(owners, batch.embeddings, stored, strict=True):
            mine, theirs = (np.asarray(each, dtype="float32") for each in pair)
            # Codes keep the sign of each number or make it zero: no token has a negative product with its stored one.
            if mine.shape != theirs.shape or not (np.einsum("td,td->t", mine, theirs) >= 0).all():
                other.append(id)
    other = list(dict.fromkeys(other))
    if other:
        raise duplicate_ids(other, "in the index already, with another text, other metadata or other vectors")


# Parquet.


def parquet_path(path: object) -> Path:
    """Return the path of a ``.parquet`` file that a user gives where an index could stand."""
    if isinstance(path, (str, os.PathLike)) and Path(path).suffix == ".parquet":
        return Path(path)
    raise InvalidArgumentError(f"received {describe(path)}; expected an index, or the name of a .parquet file.")


def _pyarrow() -> tuple[Any, Any]:
    with needs_extra("Copying to and from Parquet files", "parquet"):
        import pyarrow
        from pyarrow import parquet
    return pyarrow, parquet


def _write_parquet(
    batches: Iterator[_Batch], path: Path, source: Index, ids: Sequence[Id], settings: dict[str, Any]
) -> Iterator[tuple[_Batch, int]]:
    """Write a file with a row group per batch; yield each batch, and how many documents it has."""
    pyarrow, parquet = _pyarrow()
    if path.exists():
        raise InvalidArgumentError(f"{path} exists already; remove it, or give the name of a new file.")
    types = _column_types(pyarrow, source, ids)
    if source.dtype == "float16":
        numbers = pyarrow.float16()
    else:
        numbers = pyarrow.float32()
    vectors = pyarrow.list_(numbers, source.dim or -1)
    columns = {"id": types.pop("id"), "text": pyarrow.string(), "vectors": pyarrow.list_(vectors)}
    has_passages = source.statistics().passages > 0
    if has_passages:
        texts_of_passage = {name: pyarrow.string() for name in ("title", "metadata")}
        numbers_of_passage = {name: pyarrow.int64() for name in ("start", "end", "tokens")}
        columns["passages"] = pyarrow.list_(pyarrow.struct({**texts_of_passage, **numbers_of_passage}))
    columns |= types
    about = {name: getattr(source, name, None) for name in _ABOUT}
    about |= {"settings": settings, "passages": has_passages}
    about["json"] = [name for name, kind in columns.items() if kind is None]
    fields = [(name, kind or pyarrow.string()) for name, kind in columns.items()]
    schema = pyarrow.schema(fields, {"latelier": dump_json(about)})

    def column(name: str, batch: _Batch) -> Any:
        if name == "vectors":
            flat = pyarrow.array(batch.embeddings.vectors.astype(numbers.to_pandas_dtype()).ravel())
            tokens = pyarrow.FixedSizeListArray.from_arrays(flat, type=vectors)
            ends = batch.embeddings.offsets[lengths_to_offsets(batch.rows)]
            return pyarrow.ListArray.from_arrays(ends.astype("int32"), tokens)
        if name == "passages":
            lengths = iter(batch.embeddings.lengths.tolist())
            lists = []
            for own, count in zip(batch.passages, batch.rows.tolist(), strict=True):
                tokens = [next(lengths) for _ in range(count)]
                pairs = zip(own, tokens, strict=False)
                lists.append([_passage_values(passage, each) for passage, each in pairs] or None)
            return pyarrow.array(lists, schema.field(name).type)
        if name in types:
            key = name.removeprefix(_PREFIX)
            values = [metadata.get(key, _MISSING) for metadata in batch.metadata]
        else:
            values = list(batch.ids if name == "id" else batch.texts)
        encode = dump_json if columns[name] is None else lambda value: value
        return pyarrow.array([None if v is _MISSING else encode(v) for v in values], schema.field(name).type)

    try:
        with replaced(path) as new, parquet.ParquetWriter(new, schema, use_dictionary=False) as writer:
            for batch in batches:
                table = pyarrow.table([column(name, batch) for name in columns], schema)
                writer.write_table(table, len(batch.ids))
                yield batch, len(batch.ids)
    except OSError as error:
        raise error if isinstance(error, StorageError) else StorageError(f"cannot write {path}: {error}") from error


def _column_types(pyarrow: Any, source: Index, ids: Sequence[Id]) -> dict[str, Any]:
    """Return the type of the columns of ids and of metadata keys; None for those that hold JSON."""
    known = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    found: dict[str, set[Any]] = {"id": {type(id) for id in ids} or {str}}
    for first in range(0, len(ids), _MOST_DOCUMENTS):
        for record in source.get(ids[first : first + _MOST_DOCUMENTS]):
            for key, value in record.metadata.items():
                if key in _COLUMNS or key.startswith(_PREFIX):
                    name = _PREFIX + key
                else:
                    name = key
                found.setdefault(name, set()).add(None if type(value) is int and value not in INT64 else type(value))
    return {name: known.get(next(iter(kinds))) if len(kinds) == 1 else None for name, kinds in found.items()}


def _passage_values(passage: Passage, tokens: int) -> dict[str, Any]:
    own = None if passage.metadata is None else dump_json(passage.metadata)
    return {**passage._asdict(), "metadata": own, "tokens": tokens}


def _passage(values: Mapping[str, Any]) -> Passage:
    own = None if values["metadata"] is None else parse_json(values["metadata"])
    return Passage(values["start"], values["end"], values["title"], own)


class ParquetDocuments:
    """The documents in a file; its attributes are those of the index that wrote it, None if another program did."""

    def __init__(self, path: object) -> None:
        self.path = parquet_path(path)
        self._pyarrow, parquet = _pyarrow()
        try:
            self._file = parquet.ParquetFile(self.path)
            schema = self._file.schema_arrow
            about = parse_json((schema.metadata or {}).get(b"latelier", b"{}").decode())
            self.settings = dict(about.get("settings", {}))
            self.kind, self.nbits, self.dtype, self.tokenizer = map(about.get, _ABOUT)
            self._json = {name for name in schema.names if name in about.get("json", ())}
            self._has_passages = about.get("passages") is True and "passages" in schema.names
        except (self._pyarrow.ArrowException, OSError, AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{self.path} is not a Parquet file that can be read: {error}.") from error
        if not {"id", "vectors"} <= set(schema.names):
            raise InvalidArgumentError(f"{self.path} needs the columns 'id' and 'vectors'; it has {schema.names}.")

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, size: int) -> Iterator[_Batch]:
        """Yield the documents in batches of about `size` bytes."""
        groups = self._file.metadata
        total = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
        count = max(1, min(_MOST_DOCUMENTS, size * len(self) // max(1, total)))
        try:
            yield from (self._documents(batch) for batch in self._file.iter_batches(count) if batch.num_rows)
        except (self._pyarrow.ArrowException, OSError) as error:
            raise CorruptedIndexError(f"{self.path} is damaged: {error}.") from error

    def _documents(self, batch: Any) -> _Batch:
        rows = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "vectors"}
        for name in self._json:
            rows[name] = [_MISSING if value is None else parse_json(str(value)) for value in rows[name]]
        ids = rows.pop("id")
        texts = rows.pop("text", [None] * batch.num_rows)
        embeddings = self._embeddings(batch.column("vectors"))
        passages: list[tuple[Passage, ...]] = [()] * batch.num_rows
        if self._has_passages:
            embeddings, passages = self._divided(embeddings, rows.pop("passages"))
        metadata: list[dict[str, Any]] = [{} for _ in ids]
        for name, values in rows.items():
            missing = _MISSING if name in self._json else None
            for document, value in zip(metadata, values, strict=True):
                if value is not missing:
                    document[name.removeprefix(_PREFIX)] = value
        return _Batch(ids, embeddings, texts, metadata, passages, [None] * len(ids))

    def _divided(
        self, embeddings: TokenEmbeddings, column: list[Any]
    ) -> tuple[TokenEmbeddings, list[tuple[Passage, ...]]]:
        """Return a matrix for each passage, in place of one for each document, and the passages of each document."""
        lengths: list[int] = []
        passages = []
        for whole, own in zip(embeddings.lengths.tolist(), column, strict=True):
            tokens = [each["tokens"] for each in own or ()] or [whole]
            if sum(tokens) != whole or min(tokens) < 1:
                raise CorruptedIndexError(f"{self.path} is damaged: passages have {tokens} of {whole} vectors.")
            lengths += tokens
            passages.append(tuple(map(_passage, own or ())))
        return TokenEmbeddings(embeddings.vectors, lengths_to_offsets(lengths)), passages

    def _embeddings(self, column: Any) -> TokenEmbeddings:
        """Return a column of lists of lists of numbers as token vectors."""
        from pyarrow import compute, types

        kind = getattr(getattr(column.type, "value_type", None), "value_type", None)
        if kind is None or not types.is_floating(kind):
            raise InvalidArgumentError(f"{self.path} has vectors of type {column.type}; give lists of lists of floats.")
        lengths = compute.list_value_length(column)
        tokens = column.flatten()
        numbers = tokens.flatten()
        dims = compute.list_value_length(tokens).unique().to_pylist()
        if column.null_count or tokens.null_count or numbers.null_count or len(dims) != 1 or not dims[0]:
            raise EmbeddingsError(f"the vectors in {self.path} are empty, differ in dim, or have missing numbers.")
        vectors = numbers.to_numpy(zero_copy_only=False).reshape(-1, dims[0])
        offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype="int64")])
        return TokenEmbeddings(vectors if vectors.dtype == "float16" else vectors.astype("float32"), offsets)
