"""What an index stores of a document: its picture looked at, its title put before its text, which is cut into passages.

A prepared document also tells whether the index holds it already.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id
from latelier.indexes.store.rows import encode_metadata
from latelier.retrieve.images import Picture
from latelier.retrieve.late import LateText, late_text
from latelier.retrieve.model import QueryModel
from latelier.retrieve.passages import (
    PassageId,
    PassageRange,
    Passages,
    StoredDocuments,
    cut_texts,
    encode_passage_id,
)
from latelier.retrieve.records import HEADINGS, InputDocument, Part

# Documents with the ids that they are to be stored under.
Chunk: TypeAlias = "list[tuple[Id, InputDocument]]"
# Metadata of files that is no reason to encode them again.
_TIME = "modified"


class PreparedDocument(NamedTuple):
    """A document in the form that is stored: the id, text and metadata of itself, or of each of its passages."""

    id: Id
    document: InputDocument
    ids: list[Id]
    texts: list[str]
    metadata: list[dict[str, Any]]
    late: LateText | None = None

    @classmethod
    def whole(cls, id: Id, document: InputDocument, ids: list[Id]) -> PreparedDocument:
        """Return a document that is stored in one row."""
        return cls(id, document, ids, [document.with_title()], [document.metadata])

    @property
    def is_numbered(self) -> bool:
        """Whether the user has given it no id."""
        return self.document.id is None

    @property
    def inputs(self) -> list[str | Picture]:
        """What the model reads: the texts, a picture in their place, or windows of a text."""
        if self.document.image is not None:
            return [self.document.image]
        if self.late is not None:
            return list(self.late.inputs)
        return list(self.texts)

    def is_stored(self, stored: StoredDocuments) -> bool:
        """Whether the index holds a document with the same passages, texts and metadata."""
        if stored.parts(self.id) != self.ids:
            return False
        ignored = {_TIME} if self.document.parts else set()
        rows = zip(stored.index.get(self.ids), self.texts, self.metadata, strict=True)
        return all(
            record.text == text and _as_json(record.metadata, self.id, ignored) == _as_json(metadata, self.id, ignored)
            for record, text, metadata in rows
        )


def with_pictures(documents: Iterable[InputDocument], model: QueryModel) -> Iterator[InputDocument]:
    """Yield documents with their pictures looked at and described in their metadata, if the model reads them."""
    for position, document in enumerate(documents):
        image = document.image
        if image is None or (isinstance(image, Picture) and model.reads_pictures):
            yield document
        elif model.reads_pictures:
            try:
                picture = Picture.of(image, document.metadata.get("page"))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"documents[{position}]: {error.fact}") from error
            picture = picture._replace(text=document.with_title() if model.loading.reads_text_beside else "")
            yield document._replace(metadata={**document.metadata, **picture.metadata}, image=picture)
        elif document.text and isinstance(image, str):  # such as an address in a table
            yield document._replace(metadata={**document.metadata, "image": image}, image=None)
        else:
            raise InvalidArgumentError(
                f"documents[{position}] is a picture, and this model reads texts only; give one that reads pictures, "
                "such as ColPali or ColQwen2."
            )


# Passages need room for some words beside special tokens and markers.
_LEAST_ROOM = 8


def prepare(chunk: Chunk, passages: Passages | None, model: QueryModel) -> Iterator[PreparedDocument]:
    """Yield documents in the form that is stored: each whole, or as its passages."""
    if passages is None:
        for id, document in chunk:
            yield PreparedDocument.whole(id, document, [id])
        return
    of_texts = _passages([each for each in chunk if each[1].image is None], passages, model)
    for id, document in chunk:
        if document.image is None:
            yield next(of_texts)
        else:  # one passage, of no characters
            yield PreparedDocument.whole(id, document, [encode_passage_id(PassageId(id, 0, 0, 0))])


def _passages(chunk: Chunk, passages: Passages, model: QueryModel) -> Iterator[PreparedDocument]:
    tokens = passages.max_tokens or 0
    overlap = passages.overlap or 0
    overhead = model.limits("document")[0]
    room = tokens - overhead
    if room < _LEAST_ROOM:
        raise InvalidArgumentError(
            f"received passages of {tokens} tokens, of which special tokens and markers of this model take {overhead}; "
            f"expected at least {overhead + _LEAST_ROOM}."
        )
    parts = [document.parts or (Part(0),) for _, document in chunk]
    if passages.late:
        parts = [tuple(Part(part.start, page=part.page) for part in each) for each in parts]
    titles = {_title(document, part): 0 for (_, document), each in zip(chunk, parts, strict=True) for part in each}
    shown = {}
    for title, title_starts in zip(titles, model.token_starts(list(titles)), strict=True):
        titles[title] = taken = min(len(title_starts), room // 2)
        # A title of half a passage, or of more, is cut.
        if taken == len(title_starts):
            shown[title] = title
        else:
            shown[title] = title[: title_starts[taken]].rstrip()
    # of whole texts, or of their pages, functions and classes
    spans = []
    rooms = []
    for number, ((_, document), each) in enumerate(zip(chunk, parts, strict=True)):
        starts = [part.start for i, part in enumerate(each) if part.is_apart or not i]
        for start, end in zip(starts, [*starts[1:], len(document.text)], strict=True):
            if document.text[start:end].strip() or len(starts) == 1:
                spans.append((number, start, end))
                rooms.append(room - max(titles[_title(document, part)] for part in each))
    texts = [chunk[number][1].text[start:end] for number, start, end in spans]
    places: list[list[PassageRange]] = [[] for _ in chunk]
    for (number, begin, _), ranges in zip(spans, cut_texts(texts, rooms, overlap, model.token_starts), strict=True):
        places[number] += [PassageRange(begin + start, begin + end) for start, end in ranges]
    for (id, document), each, ranges in zip(chunk, parts, places, strict=True):
        ids: list[Id] = [encode_passage_id(PassageId(id, number, *place)) for number, place in enumerate(ranges)]
        firsts = [part.start for part in each]
        own = [each[max(bisect_right(firsts, start) - 1, 0)] for start, _ in ranges]
        cut = [document.text[start:end] for start, end in ranges]
        titled = [document.with_title(text, shown[_title(document, part)]) for text, part in zip(cut, own, strict=True)]
        metadata = [document.metadata | ({"page": part.page} if part.page else {}) for part in own]
        late = None
        if passages.late:
            title = _title(document, each[0])
            heading = f"{shown[title]} " if title else ""
            window = (model.limits("document")[1] or tokens) - overhead - titles[title]
            late = late_text(document.text, each[0].start, heading, ranges, titled, window, model)
        yield PreparedDocument(id, document, ids, titled, metadata, late)


def _title(document: InputDocument, part: Part) -> str:
    """Return what is put before a passage: the title of its document and the headings above it."""
    return HEADINGS.join(filter(None, (document.title, part.headings)))


def _as_json(metadata: dict[str, Any], id: Id, ignored: set[str]) -> str:
    """Return metadata as JSON with sorted keys, which tells apart 1, 1.0 and true; for ``==`` they are equal."""
    kept = {name: value for name, value in metadata.items() if name not in ignored}
    return json.dumps(json.loads(encode_metadata(kept, id)[0]), sort_keys=True)
