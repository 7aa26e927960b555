"""`ExportManifest`: the file ``manifest.json`` of an export, which describes the documents and each chunk.

No name of a file is stored: the files of a chunk are named by its number. So a manifest of a stranger cannot point
outside of its folder. All values are checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from latelier.errors import CorruptedIndexError, IndexFormatError, InvalidArgumentError
from latelier.indexes.base import Index
from latelier.indexes.results import Id
from latelier.indexes.store.keywords import TOKENIZERS
from latelier.indexes.values import as_key, dump_json, encode_json
from latelier.utils.checks import describe, is_count, short
from latelier.utils.files import parse_json, read_text, write_bytes

__all__ = ["MANIFEST", "ChunkFile", "ExportManifest", "ExportedChunk", "chunk_paths", "digest_ids"]

MANIFEST = "manifest.json"
DTYPES = ("float32", "float16")
_FORMAT, _VERSION = "latelier export", 1
_MOST = 1 << 48  # documents, tokens or bytes
_MOST_DIMENSIONS = 65_536
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class ChunkFile:
    """One file of a chunk: its size in bytes, and the SHA-256 of all bytes, in hexadecimal digits."""

    size: int
    sha256: str

    @classmethod
    def of(cls, contents: bytes) -> ChunkFile:
        """Return the description of a file with these contents."""
        return cls(len(contents), hashlib.sha256(contents).hexdigest())


@dataclass(frozen=True)
class ExportedChunk:
    """One chunk: its number of documents and of token vectors, and its two files."""

    documents: int
    tokens: int
    vectors: ChunkFile
    contents: ChunkFile


@dataclass(frozen=True)
class ExportManifest:
    """The description of an export.

    `dim`, `dtype`: dimension and floating type of the vectors; the dim is None for an empty index. `kind`, `nbits`:
    kind of the exported index, such as ``"ivf"``, and its bits per number, if it is quantised. `tokenizer`: tokenizer
    of its keyword index; None if it has none. `settings`: the settings of the index: its model, how its documents were
    prepared, and those of users. `ids_sha256`: checksum of all ids in the order of insertion; None if another program
    wrote the export.
    """

    complete: bool
    documents: int
    dim: int | None
    dtype: str
    kind: str
    nbits: int | None
    tokenizer: str | None
    settings: dict[str, Any]
    ids_sha256: str | None
    chunks: tuple[ExportedChunk, ...] = ()

    @classmethod
    def of(cls, index: Index, ids: list[Id], dtype: str) -> ExportManifest:
        """Return the description of an index, without chunks."""
        kind, nbits, tokenizer = (getattr(index, name, None) for name in ("kind", "nbits", "tokenizer"))
        return cls(
            complete=False,
            documents=len(ids),
            dim=index.dim if ids else None,
            dtype=dtype,
            kind=kind or type(index).__name__.lower(),
            nbits=nbits,
            tokenizer=tokenizer,
            settings=dict(index.settings),
            ids_sha256=digest_ids(ids),
        )

    @property
    def tokens(self) -> int:
        """Number of token vectors of the finished chunks."""
        return sum(chunk.tokens for chunk in self.chunks)

    @classmethod
    def read(cls, folder: Path) -> ExportManifest:
        """Return the manifest of the export in a folder.

        Raises `IndexFormatError` if there is no export, or one that a newer version wrote; raises `CorruptedIndexError`
        if the manifest is damaged.
        """
        file = folder / MANIFEST
        if file.is_symlink() or not file.is_file():
            raise IndexFormatError(
                f"there is no export in {folder}: it has no {MANIFEST}, or it is a link. Make one with latelier export."
            )
        try:
            stored = parse_json(read_text(file))
        except InvalidArgumentError as error:
            raise CorruptedIndexError(f"{file} is damaged: {error}") from error
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise IndexFormatError(f"{file} is not the manifest of an export: its format is not {_FORMAT!r}.")
        if stored.get("version") != _VERSION:
            raise IndexFormatError(
                f"the export in {folder} has the format version {short(stored.get('version'))}; this version of "
                f"latelier reads version {_VERSION}. Upgrade with: pip install --upgrade latelier"
            )
        try:
            return _checked(stored)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorruptedIndexError(f"{file} is damaged: {reason}") from error

    def write(self, folder: Path) -> None:
        """Write the manifest; the former one stays until this one is on disk.

        Raises `StorageError` if it cannot be written.
        """
        values = {"format": _FORMAT, "version": _VERSION, **asdict(self), "tokens": self.tokens}
        del values["chunks"]
        head = json.dumps(values, ensure_ascii=False, indent=1).removesuffix("\n}")
        # One line per chunk: an export of terabytes stays below the longest text that is read.
        chunks = ",\n".join(json.dumps(asdict(chunk)) for chunk in self.chunks)
        text = f'{head},\n "chunks": [\n{chunks}\n ]\n}}\n'
        write_bytes(folder / MANIFEST, text.encode())


def chunk_paths(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the files of a chunk, with its vectors and with its ids, texts and metadata.

    Examples
    --------
    >>> [path.name for path in chunk_paths(Path("moved"), 3)]
    ['chunk-000003.safetensors', 'chunk-000003.jsonl']
    """
    return folder / f"chunk-{number:06}.safetensors", folder / f"chunk-{number:06}.jsonl"


def digest_ids(ids: Iterable[Id]) -> str:
    """Return the SHA-256 of ids: of each one's JSON and a line end.

    Examples
    --------
    >>> digest_ids(["1"])[:8], digest_ids([1])[:8]
    ('ee0ce7db', '4355a46b')
    """
    digest = hashlib.sha256()
    for id in ids:
        digest.update(f"{dump_json(id)}\n".encode())
    return digest.hexdigest()


def _checked(stored: dict[str, Any]) -> ExportManifest:
    """Return a manifest from its JSON values; raise KeyError, TypeError or ValueError if they do not fit together."""
    chunks = tuple(_chunk(chunk) for chunk in _of_type(stored, "chunks", list))
    manifest = ExportManifest(
        complete=_of_type(stored, "complete", bool),
        documents=_count(stored, "documents"),
        dim=None if stored["dim"] is None else _count(stored, "dim", 1, _MOST_DIMENSIONS),
        dtype=_one_of(stored, "dtype", DTYPES),
        kind=_of_type(stored, "kind", str) if "kind" in stored else "flat",
        nbits=None if stored.get("nbits") is None else _count(stored, "nbits", 1, 64),
        tokenizer=_one_of(stored, "tokenizer", (*TOKENIZERS, None)) if "tokenizer" in stored else None,
        settings=_settings(stored) if "settings" in stored else {},
        ids_sha256=None if stored.get("ids_sha256") is None else _checksum(stored, "ids_sha256"),
        chunks=chunks,
    )
    documents = sum(chunk.documents for chunk in chunks)
    if documents > manifest.documents or (manifest.complete and documents < manifest.documents):
        raise ValueError(f"its chunks have {documents:,} documents, not {manifest.documents:,}")
    if manifest.complete and _count(stored, "tokens") != manifest.tokens:
        raise ValueError(f"its chunks have {manifest.tokens:,} tokens, not {stored['tokens']:,}")
    if chunks and manifest.dim is None:
        raise ValueError("it has chunks, but no dim")
    return manifest


def _chunk(stored: Any) -> ExportedChunk:
    if not isinstance(stored, dict):
        raise TypeError(f"a chunk is {describe(stored)}")
    vectors, contents = (_of_type(stored, name, dict) for name in ("vectors", "contents"))
    return ExportedChunk(
        documents=_count(stored, "documents", 1),
        tokens=_count(stored, "tokens", 1),
        vectors=ChunkFile(_count(vectors, "size"), _checksum(vectors, "sha256")),
        contents=ChunkFile(_count(contents, "size"), _checksum(contents, "sha256")),
    )


def _of_type(stored: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(stored[name], kind):
        raise TypeError(f"{name} is {describe(stored[name])}, not {kind.__name__}")
    return stored[name]


def _settings(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; raise an error for one that an index would refuse, before any of them is stored."""
    settings: dict[str, Any] = _of_type(stored, "settings", dict)
    for name, value in settings.items():
        what = f"the setting {name!r}"
        as_key(name, what)
        encode_json(value, what)
    return settings


def _count(stored: dict[str, Any], name: str, least: int = 0, most: int = _MOST) -> int:
    if not is_count(stored[name], least, most):
        raise ValueError(f"{name} is {describe(stored[name])}, not an integer from {least} to {most}")
    return int(stored[name])


def _one_of(stored: dict[str, Any], name: str, choices: tuple[Any, ...]) -> Any:
    if not (stored[name] is None or isinstance(stored[name], str)) or stored[name] not in choices:
        raise ValueError(f"{name} is {describe(stored[name])}, not one of {', '.join(map(repr, choices))}")
    return stored[name]


def _checksum(stored: dict[str, Any], name: str) -> str:
    if not isinstance(stored[name], str) or not _SHA256.fullmatch(stored[name]):
        raise ValueError(f"{name} is {describe(stored[name])}, not 64 hexadecimal digits")
    return str(stored[name])
