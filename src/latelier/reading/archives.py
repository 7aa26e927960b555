"""Zip files of XML, which documents, slides, sheets and books are, with a limit on what is taken of them."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath
from xml.etree import ElementTree

from latelier.errors import InvalidArgumentError
from latelier.reading.content import MOST_BYTES

# What office files hold beside their text, by the names of the members.
_OTHERS = {
    "picture": r"(?:.*/media/|Pictures/).*\.(?:png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp)",
    "recording": r".*/media/.*\.(?:mp[34]|m4[av]|wav|wma|wmv|mov|avi)",
    "chart": r".*/charts/chart\d*\.xml",
    "embedded file": r".*/embeddings/.*|Object \d+/content\.xml",
    "macro project": r".*/vbaProject\.bin",
}


class Archive:
    """The members of a zip file, of which a limited number of bytes is read."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._left = MOST_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._zip.NameToInfo

    def names(self, pattern: str) -> list[str]:
        """Return the names of members that match, in the order of the numbers in them."""
        found = [name for name in self._zip.namelist() if re.fullmatch(pattern, name, re.IGNORECASE)]
        return sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def others(self) -> list[str]:
        """Return the kind of each member that is no text: "picture", "chart" ..."""
        return [kind for kind, pattern in _OTHERS.items() for _ in self.names(pattern)]

    def read(self, name: str) -> bytes:
        """Return the bytes of a member."""
        with self._zip.open(name) as member:
            data = member.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise InvalidArgumentError(f"it unpacks to more than {MOST_BYTES:,} bytes.")
        return data

    def xml(self, name: str) -> ElementTree.Element:
        """Return the root of a member."""
        return ElementTree.fromstring(self.read(name))

    def related(self, name: str) -> dict[str, tuple[str, str]]:
        """Return what a member of an Office file refers to: by the id, the last part of the kind, and the name."""
        place = PurePosixPath(name)
        relations = str(place.parent / "_rels" / f"{place.name}.rels")
        if relations not in self:
            return {}
        found = {}
        for each in inside(self.xml(relations), "Relationship"):
            target = attribute(each, "Target")
            path = target.lstrip("/") if target.startswith("/") else normpath(str(place.parent / target))
            found[attribute(each, "Id")] = (attribute(each, "Type").rpartition("/")[2], path)
        return found


def tag_of(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace; of a comment nothing."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: ElementTree.Element | None, name: str) -> str:
    """Return an attribute by its name without a namespace; empty if there is none."""
    items = () if element is None else element.attrib.items()
    return next((value for key, value in items if key.rpartition("}")[2] == name), "")


def inside(element: ElementTree.Element, *tags: str) -> Iterator[ElementTree.Element]:
    """Yield the elements of some tags in the order of the document, of those within each other the outermost."""
    waiting = [element]
    while waiting:
        each = waiting.pop()
        if each is not element and tag_of(each) in tags:
            yield each
        else:
            waiting.extend(reversed(each))
