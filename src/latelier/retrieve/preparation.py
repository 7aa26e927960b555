"""What an index stores of documents: they are read in chunks and given ids, titled, and cut into passages.

A chunk goes from one step to the next as a list; what it holds bounds the memory that the steps take.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index, Passage, Record
from latelier.indexes.store.rows import encode_metadata
from latelier.reading.images import Picture
from latelier.reading.records import HEADINGS, FileDocuments, InputDocument, Part, parse_documents
from latelier.retrieve.late import LateText, late_text
from latelier.retrieve.passages import (
    LEAST_TOKENS,
    Passages,
    cut_texts,
)
from latelier.retrieve.query_model import QueryModel
from latelier.utils.checks import short

# What to do with a document if its id is in the index; to update, each document needs an id.
OnExisting: TypeAlias = Literal["raise", "update", "skip", "synchronise"]
# Documents with the ids that they are to be stored under.
Chunk: TypeAlias = "list[tuple[Id, InputDocument]]"
# Characters of the texts of a chunk.
_MOST_CHARACTERS = 1 << 26
# Metadata of files that is no reason to encode them again.
_TIME = "modified"
# Tokens of a passage of files at most, as far as the model reads: longer ones find less.
_LONGEST_PASSAGE = 512
# Passages need room for some words beside special tokens and markers.
_LEAST_ROOM = 8


def default_passages(
    documents: Iterable[Any], model: QueryModel, size: int
) -> tuple[Iterable[InputDocument], Passages | None]:
    """Return the documents and passages of a new index: whole documents, if the model reads the first `size` whole."""
    tokens = min(model.limits("document")[1] or _LONGEST_PASSAGE, _LONGEST_PASSAGE)
    if tokens < LEAST_TOKENS:
        return documents, None
    passages = Passages(tokens)
    if isinstance(documents, FileDocuments) and documents.are_texts:
        return documents, passages
    remaining = parse_documents(documents)
    first = list(itertools.islice(remaining, 1))
    if not first or first[0].image is not None:
        return itertools.chain(first, remaining), None
    first += itertools.islice(remaining, size - 1)
    is_longer = any(model.unread([whole_text(document)], "document")[0] for document in first)
    return itertools.chain(first, remaining), passages if is_longer else None


def read_chunks(
    documents: Iterable[Any], model: QueryModel, index: Index, size: int, on_existing: OnExisting, bar: Any
) -> Iterator[Chunk]:
    """Yield `size` documents at a time, fewer if they are long, with ids that the index accepts."""
    chunk: Chunk = []
    characters = 0
    positions: dict[Id, int] = {}  # of all documents so far: about 100 bytes for each, a thousandth of its vectors
    number: int | None = None  # the next one for a document without an id
    for position, document in enumerate(parse_documents(documents)):
        if document.image is not None:
            document = _with_picture(document, position, model)
        id_ = document.id
        if id_ is None:
            if on_existing in ("update", "skip"):
                raise InvalidArgumentError(
                    f"documents[{position}] has no id, so nobody can tell whether it is in the index.",
                    advice="skip-needs-ids" if on_existing == "skip" else None,
                )
            id_ = number = next_number([*index.ids(), *positions]) if number is None else number
        if id_ in positions:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is given twice; documents[{positions[id_]}] has it too. Give "
                "each document an id of its own, or none an id."
            )
        positions[id_] = position
        if number is not None and isinstance(id_, int):
            number = max(number, id_ + 1)
        chunk.append((id_, document))
        characters += len(document.text) + (document.image.held if document.image else 0)
        if len(chunk) == size or characters > _MOST_CHARACTERS:
            yield _without_stored(chunk, index, on_existing, positions, bar)
            chunk = []
            characters = 0
    if chunk:
        yield _without_stored(chunk, index, on_existing, positions, bar)


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
        picture = picture._replace(text=whole_text(document) if model.loading.reads_text_beside else "")
        return document._replace(metadata={**document.metadata, **picture.metadata}, image=picture)
    if document.text and isinstance(image, str):  # such as an address in a table
        return document._replace(metadata={**document.metadata, "image": image}, image=None)
    raise InvalidArgumentError(
        f"documents[{position}] is a picture, and this model reads texts only; give one that reads pictures, "
        "such as ColPali or ColQwen2."
    )


def _without_stored(chunk: Chunk, index: Index, on_existing: OnExisting, positions: dict[Id, int], bar: Any) -> Chunk:
    """Leave out, or refuse, the documents that are in the index, unless they are to be replaced."""
    given = [id for id, document in chunk if document.id is not None]
    if not given or on_existing in ("update", "synchronise"):
        return chunk
    found = index.existing(given)
    if found and on_existing == "raise":
        position, id = min((positions[id], id) for id in found)
        raise DuplicateIdError(
            f"documents[{position}]: id {short(id)} is in the index already.", advice="update-or-skip"
        )
    bar.update(len(found))
    return [each for each in chunk if each[0] not in found]


def next_number(ids: Iterable[Id]) -> int:
    """Return the integer after the largest id that is one."""
    return 1 + max((id for id in ids if isinstance(id, int)), default=-1)


class PreparedDocument(NamedTuple):
    """A document in the form that is stored: its text, and its passages, none if it is whole.

    `inputs` are what the model reads: the texts of the rows, a picture in their place, or windows of a text.
    """

    id: Id
    given: InputDocument
    text: str
    passages: tuple[Passage, ...]
    inputs: list[str | Picture]
    late: LateText | None = None

    @classmethod
    def whole(cls, id: Id, document: InputDocument) -> PreparedDocument:
        """Return a document that is stored whole."""
        text = whole_text(document)
        return cls(id, document, text, (), [document.image or text])

    @property
    def rows(self) -> int:
        """In how many rows it is stored."""
        return len(self.passages) or 1

    def equals(self, record: Record) -> bool:
        """Whether the index holds the same text, passages and metadata."""
        ignored = {_TIME} if self.given.parts else set()
        is_same = (record.text, record.passages) == (self.text, self.passages)
        metadata = self.given.metadata
        return is_same and _as_json(record.metadata, self.id, ignored) == _as_json(metadata, self.id, ignored)


def prepare(chunk: Chunk, passages: Passages | None, model: QueryModel) -> list[PreparedDocument]:
    """Return documents in the form that is stored: each whole, or as its passages."""
    if passages is None:
        return [PreparedDocument.whole(id, document) for id, document in chunk]
    texts = [each for each in chunk if each[1].image is None]
    in_passages: Iterator[PreparedDocument] = iter(())
    if texts:
        in_passages = iter(_in_passages(texts, passages, model))
    prepared = []
    for id, document in chunk:
        if document.image is None:
            prepared.append(next(in_passages))
        else:
            prepared.append(PreparedDocument.whole(id, document))
    return prepared


def compare(documents: list[PreparedDocument], index: Index) -> dict[Id, bool]:
    """Return of those documents that are in the index whether they have the same passages, texts and metadata there."""
    with index.snapshot():
        found = index.existing([document.id for document in documents])
        records = {record.id: record for record in index.get(list(found))}
    return {document.id: document.equals(records[document.id]) for document in documents if document.id in records}


def _in_passages(chunk: Chunk, passages: Passages, model: QueryModel) -> list[PreparedDocument]:
    tokens = passages.max_tokens or 0
    (overhead, limit) = model.limits("document")
    room = tokens - overhead
    if room < _LEAST_ROOM:
        raise InvalidArgumentError(
            f"received passages of {tokens} tokens, of which special tokens and markers of this model take {overhead}; "
            f"expected at least {overhead + _LEAST_ROOM}."
        )
    parts = [document.parts or (Part(0),) for _, document in chunk]
    if passages.late:
        parts = [tuple(part._replace(headings="", header="", is_apart=False) for part in each) for each in parts]
    titles = _shown_titles(chunk, parts, room // 2, model)
    places = _places(chunk, parts, titles, room, passages.overlap or 0, model)
    prepared = []
    for (id, document), each, ranges in zip(chunk, parts, places, strict=True):
        firsts = [part.start for part in each]
        own = [each[max(bisect_right(firsts, start) - 1, 0)] for start, _ in ranges]
        stored = []
        for (start, end), part in zip(ranges, own, strict=True):
            shown = titles[_title(document, part)].text
            before = "" if is_in_text(shown, document.text[start:end]) else shown
            stored.append(Passage(start, end, before, _place(part)))
        texts = [passage.text_in(document.text) for passage in stored]
        inputs: list[str | Picture] = [*texts]
        late = None
        if passages.late:
            title = titles[_title(document, each[0])]
            heading = f"{title.text} " if title.text else ""
            window = (limit or tokens) - overhead - title.tokens
            late = late_text(document.text, each[0].start, heading, ranges, texts, window, model)
            inputs = [*late.inputs]
        prepared.append(PreparedDocument(id, document, document.text, tuple(stored), inputs, late))
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


def _shown_titles(chunk: Chunk, parts: list[tuple[Part, ...]], most: int, model: QueryModel) -> dict[str, _ShownTitle]:
    """Return for each title what is put before passages: its first `most` tokens, half of what a passage holds."""
    titles = dict.fromkeys(
        _title(document, part) for (_, document), each in zip(chunk, parts, strict=True) for part in each
    )
    shown = {}
    for title, starts in zip(titles, model.token_starts(list(titles)), strict=True):
        text = title
        if len(starts) > most:
            text = title[: starts[most]].rstrip()
        shown[title] = _ShownTitle(text, min(len(starts), most))
    return shown


def _places(
    chunk: Chunk,
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
    for number, ((_, document), each) in enumerate(zip(chunk, parts, strict=True)):
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
    places: list[list[tuple[int, int]]] = [[] for _ in chunk]
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


def _as_json(metadata: dict[str, Any], id: Id, ignored: set[str]) -> str:
    """Return metadata as JSON with sorted keys, which tells apart 1, 1.0 and true; for ``==`` they are equal."""
    kept = {name: value for name, value in metadata.items() if name not in ignored}
    return json.dumps(json.loads(encode_metadata(kept, id)[0]), sort_keys=True)
