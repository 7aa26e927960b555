"""What an index stores of documents: they are read in chunks, looked for in the index, and cut into passages.

A chunk goes from one step to the next as a list; what it holds bounds the memory that the steps take.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index, Passage
from latelier.indexes.store.sources import Changes, Origin, Seen
from latelier.reading.images import Picture
from latelier.reading.records import HEADINGS, InputDocument, Part, parse_documents
from latelier.retrieve.late import LateText, late_text
from latelier.retrieve.passages import LEAST_TOKENS, Passages, cut_texts
from latelier.retrieve.query_model import QueryModel
from latelier.utils.checks import short

# What to do with a document if its id is in the index; to update, each document needs an id.
OnExisting: TypeAlias = Literal["raise", "update", "skip"]
# Characters of the texts of a chunk.
_MOST_CHARACTERS = 1 << 26
# Metadata of files that is no reason to encode them again.
_TIME = "modified"
# Tokens of a passage of files at most, as far as the model reads: longer ones find less.
_LONGEST_PASSAGE = 512
# Passages need room for some words beside special tokens and markers.
_LEAST_ROOM = 8


class Write(NamedTuple):
    """A document on its way into the index: the number of the row that was seen under its id, and where it is from."""

    document: InputDocument
    seen: int | None = None
    origin: Origin = Origin()


def given_writes(documents: Iterable[Any]) -> Iterator[Write]:
    """Yield documents that a user gives, in any form."""
    return map(Write, parse_documents(documents))


def default_passages(
    writes: Iterator[Write], model: QueryModel, size: int, *, are_texts: bool
) -> tuple[Iterator[Write], Passages | None]:
    """Return the documents and passages of a new index: whole documents, if the model reads the first `size` whole."""
    tokens = min(model.limits("document")[1] or _LONGEST_PASSAGE, _LONGEST_PASSAGE)
    if tokens < LEAST_TOKENS:
        return writes, None
    passages = Passages(tokens)
    if are_texts:
        return writes, passages
    first = list(itertools.islice(writes, 1))
    if not first or first[0].document.image is not None:
        return itertools.chain(first, writes), None
    first += itertools.islice(writes, size - 1)
    is_longer = any(model.unread([whole_text(write.document)], "document")[0] for write in first)
    return itertools.chain(first, writes), passages if is_longer else None


def read_chunks(writes: Iterable[Write], model: QueryModel, size: int) -> Iterator[list[Write]]:
    """Yield `size` documents at a time, fewer if they are long, with the hash of what each is made of."""
    chunk: list[Write] = []
    characters = 0
    positions: dict[Id, int] = {}  # of all documents so far: about 100 bytes for each, a thousandth of its vectors
    for position, (document, seen, origin) in enumerate(writes):
        if document.image is not None:
            document = _with_picture(document, position, model)
        if document.id is not None:
            if document.id in positions:
                raise DuplicateIdError(
                    f"documents[{position}]: id {short(document.id)} is given twice; "
                    f"documents[{positions[document.id]}] has it too. Give each document an id of its own, or none an "
                    "id."
                )
            positions[document.id] = position
        chunk.append(Write(document, seen, Origin(origin.source, origin.file, origin.place, content_hash(document))))
        characters += len(document.text) + (document.image.held if document.image else 0)
        if len(chunk) == size or characters > _MOST_CHARACTERS:
            yield chunk
            chunk = []
            characters = 0
    if chunk:
        yield chunk


def content_hash(document: InputDocument) -> str:
    """Return a hash of what a document is made of, which tells apart 1, 1.0 and true."""
    metadata = document.metadata
    if document.parts and _TIME in metadata:
        metadata = {name: value for name, value in metadata.items() if name != _TIME}
    content = _ENCODER.encode([document.text, document.title, metadata, document.parts])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


class GivenRule:
    """What becomes of documents that a user gives: those that are in the index are refused, skipped or replaced."""

    def __init__(
        self, index: Index, on_existing: OnExisting, *, skip_unchanged: bool = False, needs_ids: bool = True
    ) -> None:
        self.replace = {"raise": False, "update": True, "skip": None}[on_existing]
        self._index = index
        self._on_existing = on_existing
        self._skip_unchanged = skip_unchanged
        self._needs_ids = needs_ids and on_existing != "raise"
        self._count = 0
        self.kinds: Counter[str] = Counter()  # of documents that are compared: new, changed, unchanged

    def choose(self, chunk: list[Write]) -> list[Write]:
        """Return the documents that are stored."""
        first = self._count
        self._count += len(chunk)
        ids = [write.document.id for write in chunk if write.document.id is not None]
        if self._needs_ids and len(ids) < len(chunk):
            position = first + next(i for i, write in enumerate(chunk) if write.document.id is None)
            raise InvalidArgumentError(
                f"documents[{position}] has no id, so nobody can tell whether it is in the index.",
                advice="skip-needs-ids" if self._on_existing == "skip" else None,
            )
        if self._on_existing == "update" and not self._skip_unchanged:
            return chunk
        rows = self._index.origins.seen(ids)
        if self._on_existing == "update":
            return [write for write in chunk if self._differs(write, rows)]
        for position, write in enumerate(chunk, first):
            if self._on_existing == "raise" and write.document.id in rows:
                raise DuplicateIdError(
                    f"documents[{position}]: id {short(write.document.id)} is in the index already.",
                    advice="update-or-skip",
                )
        return [write for write in chunk if write.document.id not in rows]

    def _differs(self, write: Write, rows: Mapping[Id, Seen]) -> bool:
        id = write.document.id
        if id is None or id not in rows:
            kind = "new"
        elif rows[id].origin.hash == write.origin.hash:
            kind = "unchanged"
        else:
            kind = "changed"
        self.kinds[kind] += 1
        return kind != "unchanged"

    def changes(self, stored: list[Write]) -> Changes:
        """Return what is stored with documents: nothing else."""
        return Changes()

    def stored(self, stored: list[Write], left: list[int]) -> None:
        """Do nothing after a commit."""


def _with_picture(document: InputDocument, position: int, model: QueryModel) -> InputDocument:
    """Return a document with its picture looked at and described in its metadata, if the model reads pictures."""
    image = document.image
    if model.reads_pictures:
        if isinstance(image, Picture):
            return document
        try:
            picture = Picture.of(image, document.metadata.get("page"))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error.fact}") from error
        picture = picture._replace(text=whole_text(document) if model.model.reads_text_beside else "")
        return document._replace(metadata={**document.metadata, **picture.metadata}, image=picture)
    if document.text and isinstance(image, str):  # such as an address in a table
        return document._replace(metadata={**document.metadata, "image": image}, image=None)
    raise InvalidArgumentError(
        f"documents[{position}] is a picture, and this model reads texts only; give one that reads pictures, "
        "such as ColPali or ColQwen2."
    )


class PreparedDocument(NamedTuple):
    """A document as it is stored: its text, and where its passages are in it; None: whole.

    `inputs` are what the model reads: the text, a picture in its place, the passages, or windows of the text.
    """

    write: Write
    text: str
    passages: list[Passage] | None
    inputs: list[str | Picture]
    late: LateText | None = None

    @property
    def rows(self) -> int:
        """How many rows of vectors it has."""
        return len(self.passages or ()) or 1


def prepare(chunk: list[Write], passages: Passages | None, model: QueryModel) -> list[PreparedDocument]:
    """Return documents in the form that is stored: each whole, or as its passages."""
    texts = [write for write in chunk if write.document.image is None]
    in_passages: Iterator[PreparedDocument] = iter(())
    if texts and passages is not None:
        in_passages = iter(_in_passages(texts, passages, model))
    prepared = []
    for write in chunk:
        if passages is not None and write.document.image is None:
            prepared.append(next(in_passages))
        else:
            text = whole_text(write.document)
            prepared.append(PreparedDocument(write, text, None, [write.document.image or text]))
    return prepared


def _in_passages(chunk: list[Write], passages: Passages, model: QueryModel) -> list[PreparedDocument]:
    tokens = passages.max_tokens or 0
    (overhead, limit) = model.limits("document")
    room = tokens - overhead
    if room < _LEAST_ROOM:
        raise InvalidArgumentError(
            f"received passages of {tokens} tokens, of which special tokens and markers of this model take {overhead}; "
            f"expected at least {overhead + _LEAST_ROOM}."
        )
    documents = [write.document for write in chunk]
    parts = [document.parts or (Part(0),) for document in documents]
    if passages.late:
        parts = [tuple(part._replace(headings="", header="", is_apart=False) for part in each) for each in parts]
    titles = _shown_titles(documents, parts, room // 2, model)
    places = _places(documents, parts, titles, room, passages.overlap or 0, model)
    prepared = []
    for write, each, ranges in zip(chunk, parts, places, strict=True):
        document = write.document
        firsts = [part.start for part in each]
        found = []
        for start, end in ranges:
            part = each[max(bisect_right(firsts, start) - 1, 0)]
            title = titles[_title(document, part)].text
            if is_in_text(title, document.text[start:end]):
                title = ""
            found.append(Passage(start, end, title, _place(part)))
        texts = [passage.text_in(document.text) for passage in found]
        inputs: list[str | Picture] = [*texts]
        late = None
        if passages.late:
            shown = titles[_title(document, each[0])]
            heading = f"{shown.text} " if shown.text else ""
            window = (limit or tokens) - overhead - shown.tokens
            late = late_text(document.text, each[0].start, heading, ranges, texts, window, model)
            inputs = [*late.inputs]
        prepared.append(PreparedDocument(write, document.text, found, inputs, late))
    return prepared


def _place(part: Part) -> dict[str, Any] | None:
    """Return where a part is in its file, as metadata of the passages in it."""
    if part.page:
        return {"page": part.page}
    if part.time:
        return {"time": part.time}
    return None


class _ShownTitle(NamedTuple):
    """What is put before a passage, and how many tokens it has."""

    text: str
    tokens: int


def _shown_titles(
    documents: list[InputDocument], parts: list[tuple[Part, ...]], most: int, model: QueryModel
) -> dict[str, _ShownTitle]:
    """Return for each title what is put before passages: its first `most` tokens, half of what a passage holds."""
    titles = dict.fromkeys(
        _title(document, part) for document, each in zip(documents, parts, strict=True) for part in each
    )
    shown = {}
    for title, starts in zip(titles, model.token_starts(list(titles)), strict=True):
        text = title
        if len(starts) > most:
            text = title[: starts[most]].rstrip()
        shown[title] = _ShownTitle(text, min(len(starts), most))
    return shown


def _places(
    documents: list[InputDocument],
    parts: list[tuple[Part, ...]],
    titles: dict[str, _ShownTitle],
    room: int,
    overlap: int,
    model: QueryModel,
) -> list[list[tuple[int, int]]]:
    """Return the ranges of passages of each text, which is cut as a whole, or each of its pages, functions, classes."""
    spans = []
    texts = []
    rooms = []
    for number, (document, each) in enumerate(zip(documents, parts, strict=True)):
        starts = [i for i, part in enumerate(each) if part.is_apart or not i]
        for first, last in zip(starts, [*starts[1:], len(each)], strict=True):
            own_room = room - max(titles[_title(document, part)].tokens for part in each[first:last])
            start = each[first].start
            end = each[last].start if last < len(each) else len(document.text)
            text = document.text[start:end]
            if text.strip() or len(starts) == 1:
                spans.append((number, start))
                texts.append(text)
                rooms.append(own_room)
    places: list[list[tuple[int, int]]] = [[] for _ in documents]
    for (number, begin), ranges in zip(spans, cut_texts(texts, rooms, overlap, model.token_starts), strict=True):
        places[number] += [(begin + start, begin + end) for start, end in ranges]
    return places


def _title(document: InputDocument, part: Part) -> str:
    """Return what is put before a passage: the title of its document, the headings above it, and its header."""
    headings = HEADINGS.join(filter(None, (document.title, part.headings)))
    return f"{headings}\n{part.header}" if part.header else headings


def whole_text(document: InputDocument) -> str:
    """Return the text of a document that is not cut, after its title."""
    if not document.parts:
        return with_title(document.title, document.text)
    first = document.parts[0]
    return with_title(_title(document, first._replace(headings="")), document.text[first.start :])


def with_title(title: str, part: str) -> str:
    """Return a text after its title; one that begins with it as a heading stays as it is."""
    if not title or is_in_text(title, part):
        return part
    if "\n" in title:
        return f"{title}\n{part}".strip()
    return f"{title} {part}".strip()


def is_in_text(title: str, part: str) -> bool:
    """Whether a text, or a part of it, begins with its title as a heading."""
    return HEADINGS not in title and _begins_with(part, title)


_FIRST_LINES = re.compile(r"\s*([^\r\n]*)(?:\r\n|[\r\n]|\Z)(?: {0,3}(=+|-+)[ \t]*(?:[\r\n]|\Z))?")


def _begins_with(part: str, title: str) -> bool:
    """Whether a part begins with its title as a heading of Markdown: after #, or underlined."""
    found = _FIRST_LINES.match(part)
    if found is None:
        return False
    line = found[1].rstrip(" \t")
    if found[2] and line == title:
        return True
    name = line.lstrip("#")
    return name != line and title in (name.lstrip(), name.rstrip("#").strip())
