"""Books in EPUB: their chapters in the order of the book."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

from latelier.errors import InvalidArgumentError
from latelier.reading.archives import Archive, attribute, inside
from latelier.reading.content import Content, counted
from latelier.reading.web_pages import read_web_page

_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")


def read_book(data: bytes) -> Iterator[Content]:
    """Yield the text of a book, with its title and its authors."""
    archive = Archive(data)
    place = attribute(next(inside(archive.xml("META-INF/container.xml"), "rootfile"), None), "full-path")
    package = archive.xml(place)
    if "META-INF/encryption.xml" in archive:
        methods = inside(archive.xml("META-INF/encryption.xml"), "EncryptionMethod")
        if any(attribute(each, "Algorithm") not in _FONTS for each in methods):
            raise InvalidArgumentError("it is encrypted.")
    items = {attribute(item, "id"): item for item in inside(package, "item")}
    texts = []
    unread = ["picture" for item in items.values() if attribute(item, "media-type").startswith("image/")]
    for reference in inside(package, "itemref"):
        item = items.get(attribute(reference, "idref"))
        href = unquote(attribute(item, "href"))
        name = normpath(str(PurePosixPath(place).parent / href))
        if href.endswith(("html", "htm", "xml")) and name in archive:
            texts += [content.text for content in read_web_page(archive.read(name))]
    titles = [each.text for each in inside(package, "title") if each.text]
    authors = [each.text for each in inside(package, "creator") if each.text]
    metadata = {"author": ", ".join(authors)} if authors else {}
    yield Content("\n\n".join(texts), titles[0] if titles else "", metadata, unread=counted(unread))
