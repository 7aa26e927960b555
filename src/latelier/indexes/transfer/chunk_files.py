"""The two files of a chunk: vectors and offsets as safetensors; ids, texts and metadata as JSON Lines.

Files may come from strangers: links and pipes are refused, sizes and checksums are compared before anything is parsed,
and what is parsed is compared with the manifest. A chunk of any size is read in parts of bounded size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, InvalidArgumentError
from latelier.indexes.store.files import read_error
from latelier.indexes.store.rows import StoredMetadata, encode_metadata
from latelier.indexes.transfer.batches import PART_BYTES, TransferBatch
from latelier.indexes.transfer.manifest import ChunkFile, ExportedChunk, ExportManifest, chunk_paths
from latelier.indexes.values import as_id, check_text, dump_json
from latelier.utils.checks import describe, short
from latelier.utils.files import parse_json, write_bytes

__all__ = ["chunk_contents", "describe_chunk", "has_files", "read_chunk", "write_chunk"]

_SAFETENSORS = {"float32": "F32", "float16": "F16"}
# SQLite holds texts of up to 10^9 bytes, so no line of a document in this library's own storage is longer than this.
_LONGEST_LINE = 1 << 31
_READ_BYTES = 1 << 22
_NAMES = {"id", "text", "metadata"}


def chunk_contents(batch: TransferBatch) -> tuple[bytes, bytes]:
    """Return the contents of the two files of a chunk."""
    from safetensors.numpy import save

    offsets = np.ascontiguousarray(batch.embeddings.offsets, dtype="int64")
    vectors = save({"vectors": np.ascontiguousarray(batch.embeddings.vectors), "offsets": offsets})
    rows = zip(batch.ids, batch.texts, batch.metadata, strict=True)
    lines = [f"{dump_json({'id': id, 'text': text, 'metadata': more})}\n".encode() for id, text, more in rows]
    return vectors, b"".join(lines)


def describe_chunk(batch: TransferBatch, contents: tuple[bytes, bytes]) -> ExportedChunk:
    """Return the description of a chunk for the manifest."""
    vectors, lines = map(ChunkFile.of, contents)
    return ExportedChunk(len(batch.ids), batch.embeddings.num_tokens, vectors, lines)


def write_chunk(folder: Path, number: int, contents: tuple[bytes, bytes]) -> None:
    """Write the two files of a chunk, and sync them.

    Raises `StorageError` if one cannot be written.
    """
    for path, content in zip(chunk_paths(folder, number), contents, strict=True):
        write_bytes(path, content)


def has_files(folder: Path, number: int, chunk: ExportedChunk) -> bool:
    """Whether both files of a chunk are there, with the right sizes."""
    files = zip(chunk_paths(folder, number), (chunk.vectors, chunk.contents), strict=True)
    return all(path.is_file() and path.stat().st_size == file.size for path, file in files)


def read_chunk(folder: Path, number: int, manifest: ExportManifest) -> Iterator[TransferBatch]:
    """Yield the documents of a chunk, in parts of about `PART_BYTES`, after both files were compared with the manifest.

    Whether vectors are finite and ids are unique is checked by the index that they are added to. Raises
    `CorruptedIndexError` if a file is missing or damaged, or does not fit the manifest; raises `StorageError` if the
    operating system cannot read a file now.
    """
    chunk = manifest.chunks[number]
    vectors_path, lines_path = chunk_paths(folder, number)
    try:
        _check_file(vectors_path, chunk.vectors)
        _check_file(lines_path, chunk.contents)
        yield from _read_parts(vectors_path, lines_path, chunk, manifest)
    except OSError as error:
        raise read_error(folder, error) from error


def _check_file(path: Path, expected: ChunkFile) -> None:
    """Raise an error unless a file has the size and the checksum in the manifest."""
    if path.is_symlink() or not path.is_file():
        raise CorruptedIndexError(f"{path} is missing, or is a link; an export holds its own files.")
    size, digest = path.stat().st_size, hashlib.sha256()
    if size != expected.size:
        raise CorruptedIndexError(f"{path} is damaged: it has {size:,} bytes, but {expected.size:,} were written.")
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    if digest.hexdigest() != expected.sha256:
        raise CorruptedIndexError(f"{path} is damaged: its bytes do not match their checksum.")


def _read_parts(
    vectors_path: Path, lines_path: Path, chunk: ExportedChunk, manifest: ExportManifest
) -> Iterator[TransferBatch]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(vectors_path, framework="np")
    except (SafetensorError, ValueError) as error:
        raise CorruptedIndexError(f"{vectors_path} is not a safetensors file: {error}") from error
    with opened as tensors, lines_path.open("rb") as lines:
        offsets = _offsets(tensors, vectors_path, chunk, manifest)
        vectors, row_bytes = tensors.get_slice("vectors"), (manifest.dim or 0) * np.dtype(manifest.dtype).itemsize
        first = 0
        while first < chunk.documents:
            rows, size, last = [], 0, first
            while last < chunk.documents and size < PART_BYTES:
                line = lines.readline(_LONGEST_LINE)
                rows.append(_parse_line(line, f"{lines_path}:{last + 1}"))
                size += len(line) + int(offsets[last + 1] - offsets[last]) * row_bytes
                last += 1
            if last == chunk.documents and lines.read(1):
                raise CorruptedIndexError(f"{lines_path} is damaged: it has more than {chunk.documents:,} lines.")
            begin, end = int(offsets[first]), int(offsets[last])
            embeddings = TokenEmbeddings(vectors[begin:end], offsets[first : last + 1] - begin)
            ids, texts, metadata = (list(column) for column in zip(*rows, strict=True))
            yield TransferBatch(ids, embeddings, texts, metadata)
            first = last


def _offsets(tensors: Any, path: Path, chunk: ExportedChunk, manifest: ExportManifest) -> np.ndarray:
    """Return the offsets of a chunk, after the names, dtypes and shapes of its tensors and the offsets were checked."""
    expected = {
        "vectors": (_SAFETENSORS[manifest.dtype], [chunk.tokens, manifest.dim]),
        "offsets": ("I64", [chunk.documents + 1]),
    }
    found = {}
    for name in tensors.keys():  # noqa: SIM118 (not a dict)
        tensor = tensors.get_slice(name)
        found[name] = (tensor.get_dtype(), tensor.get_shape())
    if found != expected:
        raise CorruptedIndexError(f"{path} is damaged: it holds {short(found)}, but its manifest says {expected}.")
    offsets: np.ndarray = tensors.get_tensor("offsets")
    # Neighbours are compared, as differences could overflow.
    if offsets[0] != 0 or offsets[-1] != chunk.tokens or (offsets[1:] <= offsets[:-1]).any():
        raise CorruptedIndexError(f"{path} is damaged: its offsets do not divide {chunk.tokens:,} tokens.")
    return offsets


def _parse_line(line: bytes, place: str) -> tuple[Any, Any, Any]:
    """Return the id, text and metadata of a document."""
    try:
        row = parse_json(line.decode())
        if not isinstance(row, dict) or not row.keys() <= _NAMES or "id" not in row:
            raise InvalidArgumentError(f"it is {describe(row)}, but a line is an object with {', '.join(_NAMES)}.")
        id = as_id(row["id"])
        metadata = row.get("metadata")
        encode_metadata(StoredMetadata(metadata) if isinstance(metadata, dict) else metadata, id)
        return id, check_text(row.get("text"), id), metadata or {}
    except ValueError as error:  # of the encoding too
        raise CorruptedIndexError(f"{place} is damaged: {error}") from error
