"""The files of an exported encoder, and a description of them that tells damaged files from whole ones."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from latelier.errors import LatelierError, ModelLoadError
from latelier.utils.files import parse_json

__all__ = ["DESCRIPTION_FILE", "ExportLoadError", "is_own", "is_whole", "read_description", "write_folder"]

DESCRIPTION_FILE = "export.json"
_FORMAT = 2
_READ_BYTES = 1 << 22
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LARGEST_DESCRIPTION = 1 << 24
_UNFINISHED = "latelier-unfinished-"
# An export takes a minute at most: what has not changed for a day was left by a process that was killed.
_ABANDONED_SECONDS = 24 * 3600


def write_folder(folder: Path, write: Callable[[Path], Mapping[str, Any] | None]) -> None:
    """Write an export beside its place, then rename it: another process finds a whole one or none.

    What killed processes have left beside it is removed after a day.

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
    _remove_abandoned(folder.parent)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_UNFINISHED))
    new, old = unfinished / "new", unfinished / "old"
    try:
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
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class ExportLoadError(ModelLoadError):
    """An export could not be found or read.

    Parameters
    ----------
    folder
        The folder of the export, or the file in it.
    reason
        What is wrong with it.
    """

    def __init__(self, folder: str, reason: Exception) -> None:
        described = str(reason) if isinstance(reason, OSError) else f"{type(reason).__name__}: {reason}"
        LatelierError.__init__(
            self,
            f"could not load the model {folder!r:.300}: {described.strip().splitlines()[0].rstrip('.')}. Give a folder "
            "that ColBERT.export wrote.",
        )


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of an export, after comparing its files with it.

    A file with the size and the time of modification that it was written with is not read; others must have their
    checksum, such as those of a copied folder.

    Raises
    ------
    ModelLoadError
        If there is none, it has another format, or a file is missing or damaged.
    """
    path = folder / DESCRIPTION_FILE
    try:
        if path.stat().st_size > _LARGEST_DESCRIPTION:
            raise ValueError(f"{DESCRIPTION_FILE} is larger than 16 MiB.")
        content = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"{DESCRIPTION_FILE} does not describe an export of this version of latelier.")
        for name, file in content["files"].items():
            if Path(name).name != name or (found := (folder / name).stat()).st_size != file["bytes"]:
                raise ValueError(f"the file {name!r} is damaged: its size differs from the one in {DESCRIPTION_FILE}.")
            if found.st_mtime_ns != file["modified"] and _sha256(folder / name) != file["sha256"]:
                raise ValueError(
                    f"the file {name!r} is damaged: its checksum differs from the one in {DESCRIPTION_FILE}."
                )
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
        return all(map(_is_own, (folder, *folder.iterdir())))
    except OSError:
        return False


def _is_own(path: Path) -> bool:
    found = path.lstat()
    if os.name == "nt":
        return not path.is_symlink()
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid in (0, os.geteuid()) and not found.st_mode & _WRITABLE_BY_OTHERS


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders in which `write_folder` of a killed process has left files."""
    latest = time.time() - _ABANDONED_SECONDS
    for path in parent.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):  # another process may be removing it
            inside = path.rglob("*") if not path.is_symlink() and path.is_dir() else iter(())
            if all(each.lstat().st_mtime < latest for each in (path, *inside)):
                shutil.rmtree(path, ignore_errors=True)


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
