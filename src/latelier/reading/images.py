"""Pictures: files, pages of PDF and images of PIL as RGB, within bounds, whoever made them.

The header of a file says how many pixels it has, so that a bomb is refused before it is decoded.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.utils.checks import cut, describe, is_count, short
from latelier.utils.files import as_path, read_bytes
from latelier.utils.misc import needs_extra

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".gif", ".bmp"})
_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
_MOST_BYTES = 1 << 28  # of a file
_MOST_PIXELS = (1 << 28) // 3  # 256 MB as RGB: a page at 600 dpi has 35 million
# models refuse, or squeeze to nothing, what is narrower
_LEAST_SIDE = 8
_LARGEST_RATIO = 100
# A page of A4 is 1240 x 1754: more than models of page images read.
_DPI = 150
_LONGEST_SIDE = 3000
_MOST_PAGES = 10_000
# What PIL raises for damaged files.
_FAULTS = (
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    SyntaxError,
    TypeError,
    MemoryError,
    struct.error,
    zlib.error,
)
_PDFIUM = Lock()  # which keeps its state in globals


class Picture(NamedTuple):
    """A picture to encode: its source, a path, bytes or an image of PIL; the metadata to store; a text beside it."""

    source: Any
    metadata: dict[str, Any]
    text: str = ""

    @classmethod
    def of(cls, source: Any, page: int | None = None) -> Picture:
        """Look at a picture once, so that a faulty one is known before anything is encoded; pages are not rendered."""
        if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
            raise InvalidArgumentError(f"{short(source)} is an address; give a file of this machine, or its bytes.")
        if not isinstance(source, (str, os.PathLike)):
            if isinstance(source, bytes):
                image = _decoded(source)
            else:
                image = _from_pil(source)
            checksum = hashlib.sha256(source if isinstance(source, bytes) else image.tobytes()).hexdigest()[:32]
            size = {"width": image.width, "height": image.height}
            return cls(source if isinstance(source, bytes) else image, size | {"checksum": checksum})
        given = as_path(source, "the image")
        path = given.absolute()
        with _naming(given):
            if is_pdf(path):
                with _open_page(path, page) as found:
                    width, height = _pixels(found)
            else:
                width, height = _decoded(_contents(path)).size
            checksum = _checksum(path)
        paged = {"page": page} if is_pdf(path) else {}
        return cls(path, {"image": str(path), **paged, "width": width, "height": height, "checksum": checksum})

    @property
    def pixels(self) -> int:
        """Their number."""
        return int(self.metadata["width"] * self.metadata["height"])

    @property
    def held(self) -> int:
        """The bytes in memory until it is encoded, of a picture that has no file."""
        if isinstance(self.source, Path):
            return 0
        return 3 * self.pixels

    def load(self) -> Any:
        """Return what a model reads, as it was when it was looked at."""
        if isinstance(self.source, Path):
            image = load_image(self.metadata)
        else:
            if isinstance(self.source, bytes):
                image = _decoded(self.source)
            else:
                image = self.source
        if self.text:
            return {"image": image, "text": self.text}
        return image


def load_image(source: Any, page: int | None = None) -> Any:
    """Return a file, or a page of a PDF from 1 on, as an RGB image of PIL; a stored record's, if it is still the same.

    `source`: a path; or a record, a result or its metadata, of which the file has to have the stored checksum.
    """
    metadata = getattr(source, "metadata", source)
    if isinstance(metadata, Mapping):
        path = _stored_path(metadata)
        page = metadata.get("page") if page is None else page
    else:
        path = as_path(source, "the image")
    with _naming(path):
        if not is_pdf(path):
            return _decoded(_contents(path))
        with _open_page(path, page) as found:
            _pixels(found)
            return found.render(scale=_scale(found)).to_pil().convert("RGB")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.fact}") from error


def refuse_named(metadata: Mapping[str, Any]) -> None:
    """Raise an error for metadata of strangers that would have a server open a file."""
    if {"image", "checksum"} <= metadata.keys():
        raise InvalidArgumentError(
            "received metadata with 'image' and 'checksum', which are those of a picture; a server opens no path that "
            "a client names. Rename one, or index pictures where they are: latelier index FOLDER --pages images."
        )


def place(metadata: Mapping[str, Any]) -> str:
    """Return the file and the page of a picture that is stored, for a line of a result; of other documents nothing."""
    if not {"width", "height", "checksum"} <= metadata.keys():
        return ""
    if "page" in metadata:
        page = f", page {metadata['page']}"
    else:
        page = ""
    return f"{metadata.get('path') or metadata.get('image') or 'picture'}{page}"


def is_pdf(path: Path) -> bool:
    """Whether a path has the name of a PDF."""
    return path.suffix.lower() == ".pdf"


def is_picture(name: str) -> bool:
    """Whether a file is a picture or has pages that can be rendered, by its name."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES | {".pdf"}


def page_count(path: Path) -> int:
    """Return the number of pages of a PDF."""
    with _naming(path), _open_pdf(path) as pdf:
        return len(pdf)


def page_text(path: Path, page: int) -> str:
    """Return the text of a page of a PDF, which keywords find; that of a scan is empty."""
    with _naming(path), _open_page(path, page) as found, closing(found.get_textpage()) as text:
        return str(text.get_text_bounded()).replace("\r\n", "\n").strip().encode("utf-8", "ignore").decode()


def _stored_path(metadata: Mapping[str, Any]) -> Path:
    """Return the path of a stored picture, once it is known to be the one that was stored."""
    name = metadata.get("image")
    checksum = metadata.get("checksum")
    if not (isinstance(name, str) and name and isinstance(checksum, str) and checksum):
        raise LatelierError("this document was stored without the file of a picture.")
    path = Path(name)
    if not os.path.isfile(path):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
        raise LatelierError(f"the picture {short(name)} is not there any more: it was moved or removed since.")
    if _checksum(path) != checksum:
        raise LatelierError(f"the picture {short(name)} has changed since it was stored; index it again.")
    return path


def _checksum(path: Path) -> str:
    status = path.stat()
    return _hashed(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _hashed(path: Path, modified: int, size: int) -> str:
    return hashlib.sha256(_contents(path)).hexdigest()[:32]


def _contents(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise InvalidArgumentError(f"{str(path)!r} is not a regular file.")
    return read_bytes(path, _MOST_BYTES)


def _pil() -> Any:
    with needs_extra("Reading pictures", "images"):
        from PIL import Image
    return Image


def _decoded(data: bytes) -> Any:
    """Return the first frame of a file's content in RGB, turned as its EXIF says."""
    pil = _pil()
    from PIL import ImageOps

    try:
        with pil.open(io.BytesIO(data), formats=_FORMATS) as opened:
            check_size(*opened.size)
            return _as_rgb(ImageOps.exif_transpose(opened))
    except LatelierError:
        raise
    except pil.UnidentifiedImageError as error:
        raise InvalidArgumentError(f"it is no picture in {', '.join(_FORMATS)}.") from error
    except pil.DecompressionBombError as error:
        raise InvalidArgumentError(f"it has more than {_MOST_PIXELS:,} pixels; reduce it.") from error
    except _FAULTS as error:
        raise InvalidArgumentError(f"it is damaged: {cut(str(error) or type(error).__name__, 200)}.") from error


def _from_pil(image: Any) -> Any:
    if not isinstance(image, _pil().Image):
        raise InvalidArgumentError(f"received {describe(image)} as image; expected a path, bytes or an image of PIL.")
    check_size(*image.size)
    try:
        return _as_rgb(image)
    except _FAULTS as error:
        raise InvalidArgumentError(f"it is damaged: {cut(str(error) or type(error).__name__, 200)}.") from error


def check_size(width: int, height: int) -> None:
    """Raise `InvalidArgumentError` for so many pixels that reading them is no use, or dangerous."""
    least, most = sorted((width, height))
    if least < _LEAST_SIDE or most > _LARGEST_RATIO * least or width * height > _MOST_PIXELS:
        raise InvalidArgumentError(
            f"it has {width:,} x {height:,} pixels; expected at least {_LEAST_SIDE} a side, at most "
            f"{_LARGEST_RATIO} times as long as wide, and at most {_MOST_PIXELS:,} in all."
        )


def _as_rgb(image: Any) -> Any:
    """Convert any mode of PIL: numbers of 16 or 32 bits are scaled, and what is transparent becomes white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.nan_to_num(np.asarray(image, dtype="float32"))
        if image.mode != "F":
            most = 65_535.0
        elif values.max() <= 1:
            most = 1.0
        else:
            most = 255.0
        return _pil().fromarray(np.clip(values * (255.0 / most), 0, 255).astype("uint8")).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return _pil().alpha_composite(_pil().new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


@contextmanager
def _open_pdf(path: Path) -> Iterator[Any]:
    with needs_extra("Reading PDF", "files"):
        import pypdfium2
    if not path.is_file():
        raise InvalidArgumentError("there is no such file.")
    try:
        with _PDFIUM, closing(pypdfium2.PdfDocument(path)) as pdf:
            if len(pdf) > _MOST_PAGES:
                raise InvalidArgumentError(f"it has {len(pdf):,} pages; expected at most {_MOST_PAGES:,}: split it.")
            yield pdf
    except (pypdfium2.PdfiumError, OSError) as error:
        raise InvalidArgumentError(f"it is damaged, encrypted, or no PDF: {error}") from error


@contextmanager
def _open_page(path: Path, page: Any) -> Iterator[Any]:
    with _open_pdf(path) as pdf:
        if not is_count(page, 1, most=len(pdf)):
            if page is None:
                given = "no page"
            else:
                given = f"page={short(page)}"
            raise InvalidArgumentError(f"received {given}; expected 1 to {len(pdf):,}.")
        with closing(pdf[page - 1]) as found:
            yield found


def _scale(page: Any) -> float:
    return min(_DPI / 72, _LONGEST_SIDE / max(*page.get_size(), 1e-9))  # from points


def _pixels(page: Any) -> tuple[int, int]:
    """Return the width and height of a page as it is rendered."""
    width, height = (math.ceil(side * _scale(page)) for side in page.get_size())
    check_size(width, height)
    return width, height
