"""Segment, Part, stores of segments.

A segment holds the numbers, ids and token offsets of its documents, so a search of an open segment does not need the
catalog, whatever other processes commit meanwhile. It also holds the token arrays of the index, with one row per token:
float vectors, or the codes of a quantised index.

A segment is written into a folder with a temporary name; its files and the folder are synced, and the folder is renamed
to its final name, so a folder with a final name is complete. It never changes again: memory-mapped files do not shrink
(no SIGBUS), and a reader can use the files that it has open even after the segment is deleted.

Only `FileStore` turns names in the catalog into paths, and only those that `latelier.indexes.store.checks` lets pass.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.results import Id
from latelier.indexes.store.catalog import Files, SegmentRow
from latelier.indexes.store.checks import check_segment, is_segment_name, own_file
from latelier.indexes.store.connections import looking_into
from latelier.indexes.store.files import Scratch, compare_checksum, file_damage, read_file, release_memory, write_file
from latelier.utils.files import new_folder, sync_folder
from latelier.utils.ragged import lengths_to_offsets, rows_or_slice, split_by_rows

Arrays: TypeAlias = "dict[str, np.ndarray]"

# Names of the two arrays that describe the documents; all others are the token arrays of the index.
_DOCUMENTS, _IDS = "documents", "ids"
# Rows of the array "documents".
_NUMBERS, _OFFSETS, _ID_OFFSETS = range(3)
# Tokens of a block that `Part.blocks` yields.
_BLOCK_TOKENS = 1 << 14

_JSON = json.JSONEncoder(ensure_ascii=False)


class TokenArray(NamedTuple):
    """A token array of an index: its dtype, and the shape of its entry for one token."""

    dtype: np.dtype
    shape: tuple[int, ...]


# Returns the token arrays of an index by name, for vectors of a given dim.
Layout: TypeAlias = "Callable[[int], dict[str, TokenArray]]"


@dataclass(frozen=True, eq=False)
class Segment:
    """Some documents in the order of insertion.

    `arrays`: the stored arrays: ``"documents"``, int64 ``(3, n + 1)``, with the rows `numbers`, `offsets` and
    `id_offsets`; ``"ids"``, uint8, the ids as JSON; and the token arrays of the index, one row per token.
    """

    arrays: Arrays
    dim: int = 0

    @classmethod
    def build(
        cls,
        numbers: Sequence[int] | np.ndarray,
        ids: Sequence[Id],
        lengths: Sequence[int] | np.ndarray,
        arrays: Arrays,
    ) -> Segment:
        """Return a segment of new documents; `numbers`: their row ids, ascending."""
        encoded = [(str(id) if isinstance(id, int) else _JSON.encode(id)).encode() for id in ids]
        sizes = list(map(len, encoded))
        return cls({**_document_arrays(numbers, lengths, b"".join(encoded), sizes), **arrays})

    @classmethod
    def merge(cls, parts: Sequence[Part], scratch: Scratch | None = None) -> Segment:
        """Return one segment with the documents of all parts (at least one), in order.

        `scratch`: where the arrays are made; None: in memory.
        """
        scratch = scratch or Scratch()
        numbers = np.concatenate([part.segment.numbers[part.positions] for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        sizes = np.concatenate([np.diff(part.segment.id_offsets)[part.positions] for part in parts])
        ids = [part.segment.arrays[_IDS][rows_or_slice(part.segment.id_offsets, part.positions)] for part in parts]
        names = [name for name in parts[0].segment.arrays if name not in (_DOCUMENTS, _IDS)]
        arrays = _document_arrays(numbers, lengths, np.concatenate(ids).tobytes(), sizes)
        for name in names:
            rows = (block for part in parts for block in part.blocks(name))
            arrays[name] = scratch.concatenate(rows, int(lengths.sum()), like=parts[0].segment.arrays[name])
        return cls(arrays)

    @cached_property
    def numbers(self) -> np.ndarray:
        """``(n,)``: the row ids of the documents, ascending."""
        return self.arrays[_DOCUMENTS][_NUMBERS, :-1]

    @cached_property
    def offsets(self) -> np.ndarray:
        """``(n + 1,)``: document ``i`` has the tokens ``offsets[i]:offsets[i + 1]``."""
        return self.arrays[_DOCUMENTS][_OFFSETS]

    @cached_property
    def id_offsets(self) -> np.ndarray:
        """``(n + 1,)``: document ``i`` has the bytes ``id_offsets[i]:id_offsets[i + 1]`` of the array of ids."""
        return self.arrays[_DOCUMENTS][_ID_OFFSETS]

    @property
    def token_names(self) -> list[str]:
        """Names of the token arrays."""
        return [name for name in self.arrays if name not in (_DOCUMENTS, _IDS)]

    @property
    def tokens(self) -> int:
        """Number of tokens of all documents."""
        return int(self.offsets[-1])

    def release(self) -> None:
        """Give the memory of its mapped arrays back to the system; they are read again when they are needed."""
        for array in self.arrays.values():
            release_memory(array)

    def live(self, removed: Sequence[int]) -> Part:
        """Return the live documents, given the row ids of the removed ones."""
        if not removed:
            return Part(self, np.arange(len(self)))
        is_removed = np.isin(self.numbers, np.array(removed, dtype="int64"), assume_unique=True)
        return Part(self, np.flatnonzero(~is_removed))

    def ids(self, positions: Sequence[int] | np.ndarray) -> list[Id]:
        """Return the ids of the documents at `positions`."""
        # Views of memory take less time to slice than arrays.
        encoded, places = self.arrays[_IDS].data, np.asarray(positions, dtype="int64")
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
        return self.arrays[_DOCUMENTS].shape[1] - 1


class Part(NamedTuple):
    """Some documents of one segment, by ascending position."""

    segment: Segment
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each document."""
        return self.segment.offsets[self.positions + 1] - self.segment.offsets[self.positions]

    @property
    def tokens(self) -> int:
        """Number of tokens of all these documents."""
        return self.segment.tokens if len(self.positions) == len(self.segment) else int(self.lengths.sum())

    def rows(self, name: str) -> np.ndarray:
        """Return the rows of a token array that belong to these documents; a view if they are contiguous."""
        return self.segment.arrays[name][rows_or_slice(self.segment.offsets, self.positions)]

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield the same rows, in blocks of bounded size; the memory of mapped ones is given back after each."""
        for first, last in split_by_rows(lengths_to_offsets(self.lengths), _BLOCK_TOKENS):
            yield Part(self.segment, self.positions[first:last]).rows(name)
            release_memory(self.segment.arrays[name])  # not that of the block, which may be a copy


def _document_arrays(
    numbers: Sequence[int] | np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    ids: bytes,
    id_sizes: Sequence[int] | np.ndarray,
) -> Arrays:
    """Return the two arrays that describe the documents of a segment."""
    documents = np.empty((3, len(numbers) + 1), dtype="int64")
    documents[_NUMBERS, :-1], documents[_NUMBERS, -1] = numbers, numbers[-1] + 1
    documents[_OFFSETS] = lengths_to_offsets(lengths)
    documents[_ID_OFFSETS] = lengths_to_offsets(id_sizes)
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

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays with this name."""
        return self._arrays[name]

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Yield nothing."""
        return iter(())

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Do nothing."""

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
        if _DOCUMENTS in arrays:
            arrays[_DOCUMENTS] = np.array(arrays[_DOCUMENTS])  # a copy of the map, which cannot change with the file
        try:
            check_segment(arrays, row, self._layout(dim))
        except CorruptedIndexError as error:
            raise CorruptedIndexError(f"{self.folder / row.name} is damaged: {error}") from error
        return Segment(arrays, dim)

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays in a folder, the larger ones memory-mapped; see `read_file` for its errors."""
        with looking_into(self.folder.parent):
            paths = [own_file(self.folder, name, file) for file in files]
            return {path.stem: read_file(path, written) for path, written in zip(paths, files.values(), strict=True)}

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Read every byte in a folder; yield each damaged file and what is wrong with it."""
        for file, written in files.items():
            try:
                reason = file_damage(self._path(name, file), written)
            except CorruptedIndexError as error:
                reason = str(error)
            if reason is not None:
                yield f"{self.folder.name}/{name}/{file}", reason

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Compare open arrays with their checksums, before they are copied into another segment."""
        for file, written in files.items():
            compare_checksum(arrays[Path(file).stem], self._path(name, file), written)

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

    def _path(self, name: str, file: str) -> Path:
        with looking_into(self.folder.parent):
            return own_file(self.folder, name, file)


SegmentStore: TypeAlias = "MemoryStore | FileStore"
