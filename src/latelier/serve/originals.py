"""The files that documents come from, and pictures of the pages of PDF, where the owner of a server allows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.serve.errors import NoFileError
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from fastapi import Response
    from fastapi.responses import FileResponse

# What a browser shows by itself, and cannot run anything.
_SHOWN = {
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".html": "text/html; charset=utf-8",
    ".htm": "text/html; charset=utf-8",
}
# Texts that another program shows better, or that could run something; a text of any other name is shown.
_SAVED = frozenset({".eml", ".mbox", ".rtf", ".svg", ".xhtml", ".xml"})
_LOOKED_AT = 4096  # bytes, of which a text has no NUL
# A page of HTML may look as it likes, but nothing in it runs or loads; viewers of PDF need styles of their own.
_POLICIES = {
    "text/html; charset=utf-8": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "application/pdf": "default-src 'none'; style-src 'unsafe-inline'; object-src 'self'; frame-ancestors 'none'",
}


class Originals(NamedTuple):
    """The folder of the files of each index, by its name; one without is not served any file."""

    folders: Mapping[str, Path]

    @classmethod
    def of(cls, folders: Mapping[str, str | os.PathLike[str]], names: Mapping[str, Any]) -> Originals:
        """Check folders by the names of the indexes that a server has."""
        checked = {}
        for name, given in folders.items():
            if name not in names:
                raise InvalidArgumentError(
                    f"received the folder of files of {name!r}, which is no index of this server; there are: "
                    f"{', '.join(map(repr, names))}."
                )
            folder = Path(given)
            if not folder.is_dir():
                raise InvalidArgumentError(f"received {str(folder)!r} as the folder of files of {name!r}; it is none.")
            checked[name] = folder.resolve()
        return cls(checked)

    def find(self, index: str, metadata: Mapping[str, Any] | None) -> Path:
        """Return the file of a document, which is in the folder and not hidden; raise `NoFileError` otherwise."""
        folder = self.folders.get(index)
        path = (metadata or {}).get("path")
        if folder is None:
            raise NoFileError("this server shows no files of this index; who runs it may allow it: --serve-files.")
        if not isinstance(path, str) or not path or "\0" in path:
            raise NoFileError("this document has no file: its metadata has no path.")
        try:
            found = (folder / path).resolve()
            is_file = found.is_relative_to(folder) and found.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, or a loop of links
            is_file = False
        if not is_file or _is_hidden(PurePosixPath(path)) or _is_hidden(found.relative_to(folder)):
            raise NoFileError("the file of this document is not there any more, or was never in the folder served.")
        return found


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def file_response(path: Path) -> Response:
    """Return a file as browsers show it without running anything in it; other formats are saved."""
    suffix = path.suffix.lower()
    kind = _SHOWN.get(suffix)
    if kind is None and suffix not in _SAVED:
        with path.open("rb") as file:
            if b"\0" not in file.read(_LOOKED_AT):
                kind = "text/plain; charset=utf-8"
    disposition = "inline" if kind else "attachment"
    kind = kind or "application/octet-stream"
    headers = {}
    if kind in _POLICIES:
        headers["content-security-policy"] = _POLICIES[kind]
    return FileResponse(
        path, media_type=kind, headers=headers, filename=path.name, content_disposition_type=disposition
    )
