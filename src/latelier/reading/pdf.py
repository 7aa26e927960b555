"""PDF, read by pdfium: the text of each page, and what else a page holds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.reading.content import Content, counted, in_pages
from latelier.utils.misc import needs_extra

_LINK, _WIDGET, _POPUP = 2, 20, 16  # kinds of annotations


def read_pdf(data: bytes) -> Iterator[Content]:
    """Yield the text of a PDF, of which each page is a part."""
    with needs_extra("Reading PDF", "files"):
        import pypdfium2
    try:
        file = pypdfium2.PdfDocument(data)
        texts = []
        pictures = []
        others = ["attached file"] * file.count_attachments()
        for number, page in enumerate(file, start=1):
            texts.append(page.get_textpage().get_text_bounded().replace("\r\n", "\n").strip())
            if not texts[-1] and next(page.get_objects(max_depth=2), None) is not None:
                pictures.append(number)
            others += _annotations(page)
        title = str(file.get_metadata_dict().get("Title") or "").strip()
    except pypdfium2.PdfiumError as error:
        raise InvalidArgumentError(f"it is damaged, encrypted, or no PDF: {error}") from error
    if pictures and not any(texts):
        raise InvalidArgumentError("it holds pictures of pages, and no text; recognise it first.")
    unread = counted(others)
    if pictures:
        listed = ", ".join(map(str, pictures[:_MOST_LISTED])) + (" ..." if len(pictures) > _MOST_LISTED else "")
        unread = (f"{len(pictures):,} of {len(texts):,} pages without text ({listed})", *unread)
    metadata = {"pages": len(texts)}
    yield in_pages(texts)._replace(title=title if any(texts) else "", metadata=metadata, unread=unread)


_MOST_LISTED = 5


def _annotations(page: Any) -> Iterator[str]:
    """Yield what people have put on a page: comments, and fields of forms that are filled in."""
    import pypdfium2.raw as pdfium

    for number in range(pdfium.FPDFPage_GetAnnotCount(page)):
        annotation = pdfium.FPDFPage_GetAnnot(page, number)
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        if kind == _WIDGET and _length(annotation, b"V"):
            yield "filled field"
        elif kind not in (_LINK, _WIDGET, _POPUP) and _length(annotation, b"Contents"):
            yield "comment"
        pdfium.FPDFPage_CloseAnnot(annotation)


def _length(annotation: Any, key: bytes) -> int:
    """Return how many characters a text of an annotation has."""
    import pypdfium2.raw as pdfium

    size = pdfium.FPDFAnnot_GetStringValue(annotation, key, ctypes.POINTER(ctypes.c_ushort)(), 0)
    return max(size // 2 - 1, 0)
