"""The files of an exported encoder, and a description of them that tells damaged files from whole ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from latelier.errors import ModelLoadError
from latelier.utils.reading import parse_json

__all__ = ["DESCRIPTION_FILE", "is_whole", "read_description", "write_folder"]

DESCRIPTION_FILE = "export.json"
_FORMAT = 1
_READ_BYTES = 1 << 22
_LARGEST_DESCRIPTION = 1 << 24


def write_folder(folder: Path, write: Callable[[Path], Mapping[str, Any] | None]) -> None:
    """Write an export beside its place, then rename it: another process finds a whole one or none.

    Parameters
    ----------
    folder
        Its place. What is there is replaced, unless another process has just put a whole export there.
    write
        Writes the files into the folder that it is called with, and returns what else to describe, as JSON.

    Raises
    ------
    OSError
        If the files cannot be written, or a process that has them open keeps them from being replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    new, old = unfinished / "new", unfinished / "old"
    try:
        new.mkdir()
        _describe(new, write(new) or {})
        with suppress(FileNotFoundError):
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if not is_whole(folder):
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of an export, after comparing the sizes of its files with it.

    Raises
    ------
    ModelLoadError
        If there is none, it has another format, or a file is missing or has another size.
    """
    path = folder / DESCRIPTION_FILE
    try:
        if path.stat().st_size > _LARGEST_DESCRIPTION:
            raise ValueError(f"{DESCRIPTION_FILE} is larger than 16 MiB.")
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"{DESCRIPTION_FILE} does not describe an export of this version of latelier.")
        for name, file in content["files"].items():
            if Path(name).name != name or (folder / name).stat().st_size != file["bytes"]:
                raise ValueError(f"the file {name!r} is damaged: it does not have the size that it was written with.")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(str(folder), error) from error
    return content


def is_whole(folder: Path) -> bool:
    """Whether a folder holds an export whose files have the checksums that they were written with."""
    try:
        files = read_description(folder)["files"]
        return all(_sha256(folder / name) == file["sha256"] for name, file in files.items())
    except (ModelLoadError, OSError, KeyError, TypeError):
        return False


def _describe(folder: Path, content: Mapping[str, Any]) -> None:
    """Sync the files of a folder to disk, then write their description."""
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    with (folder / DESCRIPTION_FILE).open("x", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **content, "files": files}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
