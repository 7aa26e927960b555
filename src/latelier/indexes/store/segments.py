"""Array files with checksums, segments of documents, and snapshots of them.

A segment holds rows, whole documents or passages of them: their row ids, ids, ranges and token offsets, so a search of
an open segment does not need the catalog, whatever other processes commit meanwhile. It also holds the token arrays of
the index, with one entry per token: float vectors, or the codes of a quantised index.

A segment is written into a folder with a temporary name; its files and the folder are synced, and the folder is renamed
to its final name, so a folder with a final name is complete. It never changes again: memory-mapped files do not shrink
(no SIGBUS), and a reader can use the files that it has open even after the segment is deleted.

Only `FileStore` turns names in the catalog into paths, and only those that `store.integrity` lets pass.

Opening a file compares its description (size, dtype, shape) except the CRC-32 of all bytes; `verify` compares that, and
so does a merge before it copies an array. Reading a row through a map makes up to 16 pages resident on Linux, so an
index with a memory budget gives the memory of maps back block by block. Later snapshots share unchanged segments.
"""

from __future__ import annotations

import errno
import io
import json
import math
import mmap
import os
import re
import secrets
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.results import Hit
from latelier.indexes.store import catalog
from latelier.indexes.store.catalog import Files, FolderRow, SegmentRow
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.folder import looking_into
from latelier.indexes.store.integrity import check_description, check_segment, damaged, is_segment_name, own_file
from latelier.indexes.store.keywords import checked_tokenizer, keyword_damage, without_keywords
from latelier.indexes.store.postings import Postings, WordSearch
from latelier.indexes.store.selections import SelectionCache
from latelier.utils.batching import consecutive, lengths_to_offsets, rows_or_slice, split_by_rows
from latelier.utils.files import new_folder, sync_folder
from latelier.utils.values import Id

# Errors of the operating system that mean damage. All others (too many open files, no memory) are temporary.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
# Smaller files are read rather than memory-mapped: a map holds a file descriptor, and their number is limited.
_MAP_BYTES = 1 << 20
# Linux makes up to this many bytes around a mapped byte resident when it is read.
AROUND = 1 << 16
_COMMIT = re.compile(r"commit-(\d{18})")
# Bytes read or written at a time.
_CHUNK_BYTES = 1 << 22


def write_file(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Write an array into a new file, sync it, and return its description for the catalog."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array)))
    checksum = zlib.crc32(header.getvalue())
    with path.open("xb") as file:
        file.write(header.getvalue())
        for chunk in _chunks(array):
            file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    size = header.tell() + array.nbytes
    return {"bytes": size, "crc32": checksum, "dtype": array.dtype.str, "shape": list(array.shape)}


def read_file(path: Path, written: Any) -> np.ndarray:
    """Return an array, memory-mapped if it is large, given its description in the catalog.

    Its header is not parsed but compared with the description.
    """
    dtype, shape = check_description(written, path)
    with path.open("rb") as file:
        header = file.read(written["bytes"] - math.prod(shape) * dtype.itemsize)
        expected = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        if header[:8] != b"\x93NUMPY\x01\x00" or header[10:].rstrip() != expected.encode():
            raise CorruptedIndexError(f"it begins with {header[10:].rstrip()!r:.99}, but {expected} was written")
        if written["bytes"] <= _MAP_BYTES:
            return np.frombuffer(bytearray(file.read()), dtype).reshape(shape)
        # "c" is copy on write: torch accepts only writable memory without a copy, and no write reaches the file.
        return np.asarray(np.memmap(file, dtype, "c", len(header), shape))


def compare_checksum(path: Path, written: Any) -> None:
    """Read every byte of a file; raise `CorruptedIndexError` if it is not what was written."""
    check_description(written, path)
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    if checksum != written.get("crc32"):
        raise CorruptedIndexError("its bytes do not match their checksum")


def release_memory(array: np.ndarray) -> None:
    """Give the memory of an array that is mapped from a file back to the system; it is read again when it is needed."""
    base = array.base
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    mapped = getattr(base, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array; the memory of a mapped one is given back after each chunk."""
    content = np.ascontiguousarray(array).reshape(-1).view("uint8").data
    for first in range(0, len(content), _CHUNK_BYTES):
        yield content[first : first + _CHUNK_BYTES]
        release_memory(array)


# Bytes copied at a time, before the memory of mapped files is given back.
_COPIED = 4 << 20


class Scratch:
    """Makes arrays in memory, or in temporary files that are deleted with the array, even if the process is killed.

    Arrays of more than `most` bytes are in a file of `folder`; None for either keeps all in memory. `block`: bytes that
    a writer may hold in memory of each array that it reads or makes.
    """

    def __init__(self, folder: Path | None = None, most: int | None = None) -> None:
        self._folder = folder
        self._most = most
        if folder is None or most is None:
            self.block = sys.maxsize
        else:
            self.block = max(1 << 10, most)

    def empty(self, shape: int | Sequence[int], dtype: np.dtype | str) -> np.ndarray:
        """Return an array whose values are arbitrary."""
        if isinstance(shape, int):
            shape = (shape,)
        else:
            shape = tuple(shape)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if self._folder is None or self._most is None or size <= self._most:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process where it writes to the map
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
        except OSError as error:
            raise StorageError(
                f"could not write {size:,} temporary bytes into {self._folder}: {error.strerror or error}. Earlier "
                "commits are kept; free some space."
            ) from error

    def concatenate(self, blocks: Iterable[np.ndarray], rows: int, like: np.ndarray) -> np.ndarray:
        """Return the rows of all blocks in one array.

        `blocks`: arrays; the memory of mapped ones is given back while they are copied. `like`: an array with the dtype
        and the shape per row of the result.
        """
        joined = self.empty((rows, *like.shape[1:]), like.dtype)
        step = max(1, _COPIED // max(1, like.dtype.itemsize * math.prod(like.shape[1:])))
        count = 0
        for block in blocks:
            for first in range(0, len(block), step):
                some = block[first : first + step]
                joined[count : count + len(some)] = some
                count += len(some)
                release_memory(block)
                release_memory(joined)
        return joined


Arrays: TypeAlias = "dict[str, np.ndarray]"

# Names of the arrays that describe the documents; all others are the token arrays of the index.
_DOCUMENTS = "documents"
_IDS = "ids"
_PASSAGES = "passages"
# Tokens of a block that `Part.blocks` yields.
_BLOCK_TOKENS = 1 << 14

_JSON = json.JSONEncoder(ensure_ascii=False)


class TokenArray(NamedTuple):
    """A token array of an index: its dtype, and the shape of its entry for one token."""

    dtype: np.dtype
    shape: tuple[int, ...]


# Returns the token arrays of an index by name, for vectors of a given dim, in a segment that has arrays of some names.
Layout: TypeAlias = "Callable[[int, Collection[str]], dict[str, TokenArray]]"


class Segment:
    """Some rows in the order of insertion; `arrays` has the token arrays, ``"documents"`` and ``"ids"``, as JSON.

    ``"documents"``, int64 ``(3, n + 1)``: the row ids, ascending, and the offsets of tokens and of bytes of ids.
    ``"passages"``, int32 ``(3, n)``, if there are any: the position of each row among those of its document, and its
    range, -1 and -1 for a whole document. `numbers`: the number of the document of each row, ascending.
    """

    def __init__(self, arrays: Arrays, dim: int = 0) -> None:
        self.arrays = arrays
        self.dim = dim
        row_ids, self.offsets, self.id_offsets = arrays[_DOCUMENTS]
        self.row_ids = row_ids[:-1]
        self.numbers = self.row_ids
        self.ranges = arrays[_PASSAGES][1:].T if _PASSAGES in arrays else None
        if _PASSAGES in arrays:
            self.numbers = self.row_ids - arrays[_PASSAGES][0]

    @classmethod
    def build(
        cls,
        row_ids: Sequence[int] | np.ndarray,
        ids: Sequence[Id],
        lengths: Sequence[int] | np.ndarray,
        arrays: Arrays,
        passages: np.ndarray | None = None,
    ) -> Segment:
        """Return a segment of new rows with these `ids` of documents; `row_ids` ascend."""
        encoded = [(str(id) if isinstance(id, int) else _JSON.encode(id)).encode() for id in ids]
        sizes = list(map(len, encoded))
        own = {} if passages is None else {_PASSAGES: passages}
        return cls({**_document_arrays(row_ids, lengths, b"".join(encoded), sizes), **own, **arrays})

    @classmethod
    def merge(cls, parts: Sequence[Part], scratch: Scratch | None = None) -> Segment:
        """Return one segment with the rows of all parts (at least one), in order.

        `scratch`: where the arrays are made; None: in memory.
        """
        scratch = scratch or Scratch()
        coded = [part.segment.arrays.keys() - {_PASSAGES} for part in parts]
        if any(names != coded[0] for names in coded):
            raise damaged("its segments are not coded alike")
        row_ids = []
        lengths = []
        sizes = []
        ids = []
        for part in parts:
            segment, positions = part
            row_ids.append(segment.row_ids[positions])
            lengths.append(part.lengths)
            sizes.append(np.diff(segment.id_offsets)[positions])
            ids.append(segment.arrays[_IDS][rows_or_slice(segment.id_offsets, positions)])
        all_lengths = np.concatenate(lengths)
        arrays = _document_arrays(
            np.concatenate(row_ids), all_lengths, np.concatenate(ids).tobytes(), np.concatenate(sizes)
        )
        if any(part.segment.ranges is not None for part in parts):
            arrays[_PASSAGES] = np.concatenate([part.passages for part in parts], axis=1)
        for name, like in parts[0].segment.arrays.items():
            if name in coded[0] and name not in arrays:
                blocks = (block for part in parts for block in part.blocks(name))
                arrays[name] = scratch.concatenate(blocks, int(all_lengths.sum()), like)
        return cls(arrays)

    @property
    def tokens(self) -> int:
        """Number of tokens of all rows."""
        return int(self.offsets[-1])

    @property
    def documents(self) -> int:
        """Number of documents."""
        if self.ranges is None:
            return len(self)
        return len(np.unique(self.numbers))

    def release(self) -> None:
        """Give the memory of its mapped arrays back to the system; they are read again when they are needed."""
        for array in self.arrays.values():
            release_memory(array)

    def live(self, removed: Sequence[int]) -> Part:
        """Return the live rows, given the row ids of the removed ones."""
        if not removed:
            return Part(self, np.arange(len(self)))
        is_removed = np.isin(self.row_ids, np.array(removed, dtype="int64"), assume_unique=True)
        return Part(self, np.flatnonzero(~is_removed))

    def ids(self, positions: Sequence[int] | np.ndarray) -> list[Id]:
        """Return the ids of the documents of the rows at `positions`."""
        # Views of memory take less time to slice than arrays.
        encoded = self.arrays[_IDS].data
        places = np.asarray(positions, dtype="int64")
        ranges = zip(self.id_offsets[places].tolist(), self.id_offsets[places + 1].tolist(), strict=True)
        array = b"[" + b",".join([encoded[first:last] for first, last in ranges]) + b"]"
        try:
            ids = json.loads(array.decode())
            if b"\\" in array:
                "".join(map(str, ids)).encode()  # fails for a lone surrogate, which an escape of JSON can express
        except (ValueError, RecursionError):
            ids = []
        if len(ids) != len(places) or not {*map(type, ids)} <= {int, str}:
            raise CorruptedIndexError("the ids of a segment are damaged; verify() names the file")
        return list(ids)

    def __len__(self) -> int:
        return len(self.row_ids)


class Part(NamedTuple):
    """Some rows of one segment, by ascending position."""

    segment: Segment
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row."""
        return self.segment.offsets[self.positions + 1] - self.segment.offsets[self.positions]

    @property
    def passages(self) -> np.ndarray:
        """The array ``"passages"`` of these rows, also of a segment that has none."""
        if self.segment.ranges is not None:
            return self.segment.arrays[_PASSAGES][:, self.positions]
        whole = np.full((3, len(self.positions)), -1, dtype="int32")
        whole[0] = 0
        return whole

    @property
    def tokens(self) -> int:
        """Number of tokens of all these rows."""
        if len(self.positions) == len(self.segment):
            return self.segment.tokens
        return int(self.lengths.sum())

    def rows(self, name: str) -> np.ndarray:
        """Return what a token array has of these rows; a view if they are contiguous."""
        return self.segment.arrays[name][rows_or_slice(self.segment.offsets, self.positions)]

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield the same in blocks of bounded size; the memory of mapped ones is given back after each."""
        for first, last in split_by_rows(lengths_to_offsets(self.lengths), _BLOCK_TOKENS):
            yield Part(self.segment, self.positions[first:last]).rows(name)
            release_memory(self.segment.arrays[name])  # not that of the block, which may be a copy


def _document_arrays(
    row_ids: Sequence[int] | np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    ids: bytes,
    id_sizes: Sequence[int] | np.ndarray,
) -> Arrays:
    """Return the two arrays that describe the documents of a segment."""
    ends = np.append(row_ids, row_ids[-1] + 1).astype("int64")
    documents = np.stack([ends, lengths_to_offsets(lengths), lengths_to_offsets(id_sizes)])
    return {_DOCUMENTS: documents, _IDS: np.frombuffer(ids, dtype="uint8")}


class MemoryStore:
    """The segments and ANN data of an index in memory, which has no files."""

    def __init__(self) -> None:
        self._arrays: dict[str, Arrays] = {}

    def write(self, arrays: Arrays) -> tuple[str, Files]:
        """Store new arrays; return their name, and an empty description of files."""
        name = secrets.token_hex(8)
        self._arrays[name] = arrays
        return name, {}

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Return a segment."""
        if row.name not in self._arrays:  # a newer commit has merged it
            raise CorruptedIndexError("it is missing")
        return Segment(self._arrays[row.name], dim)

    def open_words(self, row: SegmentRow) -> Postings | None:
        """Return the words of a segment; None if no row has a text."""
        if row.words is None:
            return None
        if row.words.name not in self._arrays:
            raise CorruptedIndexError("they are missing")
        return Postings(self._arrays[row.words.name])

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays with this name."""
        return self._arrays[name]

    def find_damage(self, name: str, files: Files) -> list[tuple[str, str]]:
        """Return nothing."""
        return []

    def mark_committed(self, names: Iterable[str], generation: int) -> None:
        """Do nothing."""

    def commits(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    def delete(self, names: Iterable[str]) -> None:
        """Drop segments; readers that have one open can still use its arrays."""
        for name in names:
            self._arrays.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of everything stored."""
        return list(self._arrays)


class FileStore:
    """The segments and ANN data of an index on disk, in a folder of folders, which is made with the first segment."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout

    def write(self, arrays: Arrays) -> tuple[str, Files]:
        """Write arrays into a new folder; return its name, and the description of its files for the catalog.

        Raises `StorageError` if the file system reports an error, such as a full disk; no file is left behind.
        """
        name = secrets.token_hex(8)
        if self.folder.is_symlink():
            raise CorruptedIndexError(f"{self.folder} is a link, but an index must hold its own files.")
        try:
            if not self.folder.is_dir():
                self.folder.mkdir()
                sync_folder(self.folder.parent)
            with new_folder(self.folder / name) as new:
                return name, {f"{key}.npy": write_file(new / f"{key}.npy", array) for key, array in arrays.items()}
        except OSError as error:
            raise StorageError(
                f"could not write a segment into {self.folder}: {error.strerror or error}. The index is unchanged; "
                "free some space or choose another disk."
            ) from error

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Open a segment, and check that its arrays fit together, on which kernels rely."""
        arrays = self.open_arrays(row.name, row.files)
        for name in {_DOCUMENTS, _PASSAGES} & arrays.keys():
            arrays[name] = np.array(arrays[name])  # a copy of the map, which cannot change with the file
        with _naming(self.folder / row.name):
            check_segment(arrays, row, self._layout(dim, arrays))
        return Segment(arrays, dim)

    def open_words(self, row: SegmentRow) -> Postings | None:
        """Open the words of a segment, and check that its arrays fit together; None if no row has a text."""
        if row.words is None:
            return None
        arrays = self.open_arrays(*row.words)
        with _naming(self.folder / row.words.name):
            return Postings.opened(arrays, row.rows)

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays in a folder, the larger ones memory-mapped."""
        arrays = {}
        for file, written in files.items():
            with _naming(self.folder / name / file):
                arrays[Path(file).stem] = read_file(own_file(self.folder, name, file), written)
        return arrays

    def find_damage(self, name: str, files: Files) -> list[tuple[str, str]]:
        """Read every byte in a folder; return each damaged file and what is wrong with it."""
        found = []
        for file, written in files.items():
            try:
                with _naming(self.folder / name / file):
                    compare_checksum(own_file(self.folder, name, file), written)
            except CorruptedIndexError as error:
                found.append((f"{self.folder.name}/{name}/{file}", str(error.__cause__)))
        return found

    def mark_committed(self, names: Iterable[str], generation: int) -> None:
        """Note in folders which commit has referenced them, for a copy of the index without the end of its log."""
        for name in names:
            with suppress(OSError):
                (self.folder / name / f"commit-{generation:018}").touch()

    def commits(self) -> dict[str, int]:
        """Return the generation of the commit that has referenced a folder, by the name of the folder."""
        found: dict[str, int] = {}
        for name in self.names():
            # Another process may delete a folder meanwhile.
            with looking_into(self.folder), suppress(FileNotFoundError):
                matches = [_COMMIT.fullmatch(path.name) for path in (self.folder / name).iterdir()]
                if any(matches):
                    found[name] = max(int(match[1]) for match in matches if match)
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete segments that no reader will open any more; `compact` deletes later what cannot be deleted now."""
        for name in names:
            if is_segment_name(name) and not self.folder.is_symlink():
                shutil.rmtree(self.folder / name, ignore_errors=True)  # does not follow links

    def names(self) -> list[str]:
        """Return the names of all folders of segments, including the incomplete ones of killed writers."""
        with looking_into(self.folder.parent):
            if not self.folder.is_dir() or self.folder.is_symlink():
                return []
            return [path.name for path in self.folder.iterdir() if is_segment_name(path.name)]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors: damage, or a temporary failure of the system."""
    try:
        yield
    except (OSError, CorruptedIndexError) as error:
        if isinstance(error, OSError) and error.errno not in _DAMAGE:
            raise StorageError(
                f"could not read {path}: {error.strerror or error}. Nothing is lost; try again."
            ) from error
        raise CorruptedIndexError(f"{path} is damaged: {error}") from error


SegmentStore: TypeAlias = "MemoryStore | FileStore"


class SegmentState(NamedTuple):
    """One segment of a commit: its row in the catalog, its live rows and their words, or the errors of damage."""

    row: SegmentRow
    part: Part | CorruptedIndexError
    words: Postings | CorruptedIndexError | None

    @property
    def live(self) -> Part:
        """The live rows; raises `CorruptedIndexError` if the segment cannot be read."""
        if isinstance(self.part, Part):
            return self.part
        raise CorruptedIndexError(
            f"{self.part}. Its {self.row.documents} documents still have their texts and metadata "
            "but not their vectors; all other documents can be read. verify() lists the ids: update() or "
            "remove() them, or restore the file from a backup."
        ) from self.part


class AnnData(NamedTuple):
    """The ANN data of a commit: its row in the catalog, and its arrays, or the error if it is damaged."""

    row: FolderRow
    arrays: Arrays | CorruptedIndexError


class Snapshot:
    """The segments and ANN data of one commit.

    `dim`: None if there is no document. `segments`: in the order of insertion. `stamp`: the value of
    `read_stamp` for the commit. `tokenizer`: of the keyword index, None if there is none. `selections`: cache of the
    documents that filters have selected.
    """

    def __init__(
        self,
        stamp: Any,
        dim: int | None,
        segments: list[SegmentState],
        ann_state: AnnData | None,
        tokenizer: str | None,
    ) -> None:
        self.stamp = stamp
        self.tokenizer = tokenizer
        self.segments = segments
        self.ann_state = ann_state
        self.dim = dim if segments else None
        self.selections = SelectionCache()
        ends = np.array([(state.row.first, state.row.last) for state in segments], dtype="int64").reshape(-1, 2)
        self._firsts, self._lasts = np.ascontiguousarray(ends.T)

    @cached_property
    def damaged(self) -> frozenset[str]:
        """Names of the segments and of the ANN data that cannot be read."""
        names = {state.row.name for state in self.segments if isinstance(state.part, CorruptedIndexError)}
        words = [state.row.words for state in self.segments if isinstance(state.words, CorruptedIndexError)]
        names |= {row.name for row in words if row is not None}
        if self.ann_state is not None and self.ann_damage is not None:
            names.add(self.ann_state.row.name)
        return frozenset(names)

    @cached_property
    def has_words(self) -> bool:
        """Whether there is a keyword index, and a live row has a word; damage counts as one, and `words` raises it."""
        if self.tokenizer is None:
            return False
        read = [each for state in self.segments for each in (state.part, state.words)]
        return any(isinstance(each, CorruptedIndexError) for each in read) or self.words.has_words

    @cached_property
    def words(self) -> WordSearch:
        """Search for words; raises an error if there is no keyword index, or if it cannot be read."""
        if self.tokenizer is None:
            raise without_keywords()
        words = []
        for state in self.segments:
            if isinstance(state.words, CorruptedIndexError):
                raise keyword_damage(str(state.words)) from state.words
            words.append((state.live, state.words))
        return WordSearch(words)

    def release_words(self) -> None:
        """Give the memory of mapped words back to the system; they are read again when they are needed."""
        for state in self.segments:
            for array in state.words.arrays.values() if isinstance(state.words, Postings) else ():
                release_memory(array)

    @property
    def ann_data(self) -> Arrays | None:
        """The arrays of the ANN data; ``None`` if there are none or they cannot be read."""
        if self.ann_state is None:
            arrays = None
        else:
            arrays = self.ann_state.arrays
        if isinstance(arrays, dict):
            return arrays
        return None

    @property
    def ann_damage(self) -> CorruptedIndexError | None:
        """Why the ANN data cannot be read; ``None`` if it can, or there is none."""
        if self.ann_state is None:
            arrays = None
        else:
            arrays = self.ann_state.arrays
        if isinstance(arrays, CorruptedIndexError):
            return arrays
        return None

    @cached_property
    def documents(self) -> int:
        """Number of live documents."""
        return sum(state.row.documents for state in self.segments)

    @cached_property
    def passages(self) -> int:
        """Number of passages of live documents; 0 if all are whole, and for segments that cannot be read."""
        count = 0
        for state in self.segments:
            if isinstance(state.part, Part) and state.part.segment.ranges is not None:
                count += int(np.count_nonzero(state.part.segment.ranges[state.part.positions, 0] >= 0))
        return count

    @cached_property
    def tokens(self) -> int:
        """Number of tokens of the live documents, and of all documents in segments that cannot be read."""
        return sum(state.part.tokens if isinstance(state.part, Part) else state.row.tokens for state in self.segments)

    def parts(self, row_ids: np.ndarray | None = None) -> list[Part]:
        """Return live rows by segment, in the order of insertion.

        `row_ids`: those of live rows, ascending; ``None`` returns all. Raises `CorruptedIndexError` if one of them is
        in a segment that cannot be read, or in no segment.
        """
        if row_ids is None:
            return [state.live for state in self.segments]
        parts = []
        held = 0
        begins = np.searchsorted(row_ids, self._firsts).tolist()
        ends = np.searchsorted(row_ids, self._lasts, side="right").tolist()
        for state, begin, end in zip(self.segments, begins, ends, strict=True):
            if begin < end:
                segment, live = state.live
                positions = np.searchsorted(segment.row_ids, row_ids[begin:end])
                is_held = segment.row_ids[np.minimum(positions, len(segment) - 1)] == row_ids[begin:end]
                if state.row.removed:
                    is_held &= np.isin(positions, live)
                parts.append(Part(segment, positions[is_held]))
                held += len(parts[-1].positions)
        if held < len(row_ids):
            raise damaged("it names documents that no segment holds")
        return parts

    def hits(self, row_ids: np.ndarray, scores: np.ndarray) -> list[Hit]:
        """Return hits by the row ids of live rows, in any order, and their scores."""
        ids = np.empty(len(row_ids), dtype=object)
        for places, segment, positions in self._places(row_ids):
            ids[places] = segment.ids(positions)
        if not self.passages:
            return list(map(Hit, ids, scores.tolist()))
        hits = []
        for id, score, (start, end) in zip(ids, scores.tolist(), self.ranges(row_ids).tolist(), strict=True):
            hits.append(Hit(id, score, start, end) if start >= 0 else Hit(id, score))
        return hits

    def numbers(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the documents of live rows, which may be in any order."""
        if not self.passages:
            return row_ids
        numbers = np.empty(len(row_ids), dtype="int64")
        for places, segment, positions in self._places(row_ids):
            numbers[places] = segment.numbers[positions]
        return numbers

    def row_ids(self, numbers: np.ndarray) -> np.ndarray:
        """Return the row ids of live documents, ascending, by their numbers, in any order."""
        numbers = np.sort(numbers)
        if not self.passages:
            return numbers
        found = [np.zeros(0, "int64")]
        owners = np.searchsorted(self._firsts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            segment = self.segments[owner].live.segment
            own = numbers[owners == owner]
            begins = np.searchsorted(segment.numbers, own)
            ends = np.searchsorted(segment.numbers, own, side="right")
            found.append(segment.row_ids[consecutive(begins, ends - begins)])
        return np.concatenate(found)

    def ranges(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the ranges of live rows, ``(rows, 2)``; -1 and -1 of whole documents."""
        ranges = np.full((len(row_ids), 2), -1, dtype="int64")
        for places, segment, positions in self._places(row_ids):
            if segment.ranges is not None:
                ranges[places] = segment.ranges[positions]
        return ranges

    def _places(self, row_ids: np.ndarray) -> Iterator[tuple[np.ndarray, Segment, np.ndarray]]:
        """Yield the segments of some rows: their places among `row_ids`, and their positions in the segment."""
        owners = np.searchsorted(self._firsts, row_ids, side="right") - 1
        for owner in set(owners.tolist()):
            places = np.flatnonzero(owners == owner)
            segment = self.segments[owner].live.segment
            yield places, segment, np.searchsorted(segment.row_ids, row_ids[places])


def load_snapshot(connection: Connection, store: SegmentStore, previous: Snapshot | None) -> Snapshot:
    """Return the snapshot of the commit that `connection` reads; the previous one, if nothing has changed.

    Segments and ANN data that could not be read are opened again each time.
    """
    stamp = catalog.read_stamp(connection)
    is_same = previous is not None and previous.stamp == stamp
    if previous is not None and is_same and not previous.damaged:
        return previous
    settings = catalog.read_settings(connection)
    dim = settings["dim"]
    segments = []
    if previous:
        known = {state.row.name: state for state in previous.segments}
    else:
        known = {}
    for row in catalog.read_segments(connection):
        state = known.get(row.name)
        if state is None or isinstance(state.part, CorruptedIndexError):
            part = None
        else:
            part = state.part
        words = state.words if state is not None and state.row.words == row.words else CorruptedIndexError()
        if isinstance(words, CorruptedIndexError):
            words = _open_words(store, row)
        if state is None or part is None or state.row != row or state.words is not words:
            try:
                # If the segment is open already, only what was removed of it has changed.
                if part is None:
                    segment = store.open(row, dim)
                else:
                    segment = part.segment
                state = SegmentState(row, segment.live(catalog.tombstones(connection, row)), words)
            except CorruptedIndexError as error:
                state = SegmentState(row, error, words)
        segments.append(state)
    ann_row = catalog.read_ann_data(connection)
    ann_state = previous.ann_state if previous else None
    if ann_row is None:
        ann_state = None
    elif ann_state is None or ann_state.row != ann_row or isinstance(ann_state.arrays, CorruptedIndexError):
        try:
            ann_state = AnnData(ann_row, store.open_arrays(*ann_row))
        except CorruptedIndexError as error:
            ann_state = AnnData(ann_row, error)
    tokenizer = checked_tokenizer(settings.get("tokenizer"))
    snapshot = Snapshot(stamp, dim, segments, ann_state, tokenizer)
    if previous is not None and is_same and previous.damaged == snapshot.damaged:
        return previous
    return snapshot


def _open_words(store: SegmentStore, row: SegmentRow) -> Postings | CorruptedIndexError | None:
    """Return the words of a segment, or the error if they are damaged."""
    try:
        return store.open_words(row)
    except CorruptedIndexError as error:
        return error
