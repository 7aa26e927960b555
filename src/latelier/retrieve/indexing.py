"""How documents become transactions: read in chunks, given ids (checked first), cut into passages, encoded, stored."""

from __future__ import annotations

import itertools
import json
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.results import duplicate_ids
from latelier.indexes.store.rows import encode_metadata
from latelier.retrieve.images import Picture, with_pictures
from latelier.retrieve.model import QueryModel
from latelier.retrieve.passages import (
    PassageId,
    PassageRange,
    Passages,
    StoredDocuments,
    cut_texts,
    decode_passage_id,
    encode_passage_id,
    passage_prefix,
)
from latelier.retrieve.records import HEADINGS, FileDocuments, InputDocument, Part, parse_documents
from latelier.utils.checks import short

if TYPE_CHECKING:
    from latelier.retrieve.workers import EncodingWorkers

# What to do with a document if its id is in the index; to update, each document needs an id.
OnExisting: TypeAlias = Literal["raise", "update", "skip", "synchronise"]
# Documents with the ids that they are to be stored under.
Chunk: TypeAlias = "list[tuple[Id, InputDocument]]"

# Characters of the texts of a chunk.
_MOST_CHARACTERS = 1 << 26


def bounded_sizes(index: Index, model: QueryModel, batch_size: int, chunk_size: int) -> tuple[int, int]:
    """Lower the texts of a batch and of a transaction to the memory budget of the index, if it has one."""
    # Half of its working memory is for the activations of a batch: about 16 * hidden + heads * L numbers per token of a
    # text with L tokens, while one layer computes. A quarter is for the vectors of a transaction.
    working = index.working_memory
    if working is None:
        return batch_size, chunk_size
    length = model.limits("document")[1] or (1024 if model.reads_pictures else 512)
    encoder: Any = getattr(model.loaded[0], "model", None) if model.model is not None else None
    hidden = getattr(getattr(encoder, "config", None), "hidden_size", 768)
    activations = 4 * length * (16 * hidden + hidden // 32 * length)
    batch_size = min(batch_size, max(1, working // 2 // activations))
    return batch_size, min(chunk_size, max(1, working // 4 // (4 * length * model.dim)))


# Tokens of a passage of files at most, as far as the model reads: longer ones find less.
_LONGEST_PASSAGE = 512


def default_passages(
    documents: FileDocuments, model: QueryModel, size: int
) -> tuple[Iterable[InputDocument], Passages | None]:
    """Return the documents and passages of a new index: records are whole, if the first are read whole."""
    passages = Passages(min(model.limits("document")[1] or _LONGEST_PASSAGE, _LONGEST_PASSAGE))
    if documents.are_texts:
        return documents, passages
    remaining = iter(documents)
    first = list(itertools.islice(remaining, 1))
    if not first or first[0].image is not None:
        return itertools.chain(first, remaining), None
    first += itertools.islice(remaining, size - 1)
    is_longer = any(model.unread([document.with_title()], "document")[0] for document in first)
    return itertools.chain(first, remaining), passages if is_longer else None


def read_chunks(
    documents: Iterable[Any], model: QueryModel, stored: StoredDocuments, size: int, on_existing: OnExisting, bar: Any
) -> Iterator[Chunk]:
    """Yield `size` documents at a time, fewer if they are long, with ids that the index accepts."""
    chunk: Chunk = []
    characters = 0
    positions: dict[Id, int] = {}  # of all documents so far: about 100 bytes for each, a thousandth of its vectors
    number: int | None = None  # the next one for a document without an id
    for position, document in enumerate(with_pictures(parse_documents(documents), model)):
        id_ = document.id
        if id_ is None:
            if on_existing in ("update", "skip"):
                raise InvalidArgumentError(
                    f"documents[{position}] has no id, so nobody can tell whether it is in the index.",
                    advice="skip-needs-ids" if on_existing == "skip" else None,
                )
            id_ = number = _next_number([*stored.ids(), *positions]) if number is None else number
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
            yield _without_stored(chunk, stored, on_existing, positions, bar)
            chunk = []
            characters = 0
    if chunk:
        yield _without_stored(chunk, stored, on_existing, positions, bar)


def _without_stored(
    chunk: Chunk, stored: StoredDocuments, on_existing: OnExisting, positions: dict[Id, int], bar: Any
) -> Chunk:
    """Leave out, or refuse, the documents that are in the index, unless they are to be replaced."""
    given = [id for id, document in chunk if document.id is not None]
    if not given or on_existing in ("update", "synchronise"):
        return chunk
    found = stored.existing(given)
    if found and on_existing == "raise":
        position, id = min((positions[id], id) for id in found)
        raise DuplicateIdError(
            f"documents[{position}]: id {short(id)} is in the index already.", advice="update-or-skip"
        )
    bar.update(len(found))
    return [each for each in chunk if each[0] not in found]


def _next_number(ids: Iterable[Id]) -> int:
    return 1 + max((id for id in ids if isinstance(id, int)), default=-1)


class Pace:
    """Rows of a transaction, so many that one takes some seconds if it `adapts`, and the documents written so far."""

    def __init__(self, most: int, *, adapts: bool) -> None:
        self.most, self.rows, self._adapts = most, min(most, _FIRST_ROWS) if adapts else most, adapts
        self.new = self.changed = self.unchanged = 0
        self._begin = time.monotonic()

    def committed(self, rows: Rows) -> None:
        """Adapt the rows of the next transaction to the time that this one has taken."""
        seconds = time.monotonic() - self._begin
        self._begin = time.monotonic()
        if self._adapts and len(rows.ids) >= self.rows // 2:
            factor = min(max(_SECONDS / max(seconds, 0.01), 0.25), 4)
            self.rows = min(max(int(self.rows * factor), _LEAST_ROWS), self.most)


# Rows of the first transaction, and least and most: a model may encode ten passages a second, or ten thousand.
_FIRST_ROWS = 128
_LEAST_ROWS = 16
_SECONDS = 5.0


class Rows(NamedTuple):
    """What one transaction stores; `numbers` are those ids of documents that the user has not given.

    `inputs` are what the model reads: the texts, or pictures in their place.
    """

    ids: list[Id]
    texts: list[str]
    inputs: list[str | Picture]
    metadata: list[dict[str, Any]]
    documents: list[Id]
    numbers: list[Id]


def divide(
    chunks: Iterable[Chunk],
    model: QueryModel,
    passages: Passages | None,
    pace: Pace,
    stored: StoredDocuments,
    bar: Any,
    *,
    skip_unchanged: bool,
    may_replace: Callable[[Id], bool] | None = None,
) -> Iterator[Rows]:
    """Cut documents into passages and yield transactions of the pace's rows; a document is never in two.

    `may_replace`: whether a stored document may be replaced by one with another content; None: each may.
    """
    for chunk in chunks:
        rows = Rows([], [], [], [], [], [])
        known = stored.existing([id for id, _ in chunk]) if skip_unchanged else ()
        for (id, document), forms in zip(chunk, _stored_forms(chunk, passages, model), strict=True):
            if id in known:
                is_stored = _is_stored(stored, document, id, forms)
                if not is_stored and may_replace is not None and not may_replace(id):
                    bar.update(1)
                    continue
                pace.unchanged += is_stored
                pace.changed += not is_stored
                if is_stored:
                    bar.update(1)
                    continue
            else:
                pace.new += 1
            ids, texts, metadata = forms
            if rows.ids and len(rows.ids) + len(ids) > pace.rows:
                yield rows
                rows = Rows([], [], [], [], [], [])
            rows.ids.extend(ids)
            rows.texts.extend(texts)
            rows.inputs.extend(texts if document.image is None else [document.image])
            rows.metadata.extend(metadata)
            rows.documents.append(id)
            if document.id is None:
                rows.numbers.append(id)
        if rows.ids:
            yield rows


# Passages need room for some words beside special tokens and markers.
_LEAST_ROOM = 8


def _stored_forms(
    chunk: Chunk, passages: Passages | None, model: QueryModel
) -> Iterator[tuple[list[Id], list[str], list[dict[str, Any]]]]:
    """Yield the ids, texts and metadata under which each document is stored: its own, or those of its passages."""
    if passages is None:
        for id, document in chunk:
            yield [id], [document.with_title()], [document.metadata]
        return
    of_texts = _passages([each for each in chunk if each[1].image is None], passages, model)
    for id, document in chunk:
        if document.image is None:
            yield next(of_texts)
        else:  # one passage, of no characters
            yield [encode_passage_id(PassageId(id, 0, 0, 0))], [document.with_title()], [document.metadata]


def _passages(
    chunk: Chunk, passages: Passages, model: QueryModel
) -> Iterator[tuple[list[Id], list[str], list[dict[str, Any]]]]:
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
        yield (
            ids,
            [document.with_title(text, shown[_title(document, part)]) for text, part in zip(cut, own, strict=True)],
            [document.metadata | ({"page": part.page} if part.page else {}) for part in own],
        )


def _title(document: InputDocument, part: Part) -> str:
    """Return what is put before a passage: the title of its document and the headings above it."""
    return HEADINGS.join(filter(None, (document.title, part.headings)))


# Metadata of files that is no reason to encode them again.
_TIME = "modified"


def _is_stored(stored: StoredDocuments, document: InputDocument, id: Id, forms: tuple[list[Any], ...]) -> bool:
    """Whether the index holds a document with the same passages, texts and metadata."""
    ids, texts, metadata = forms
    if stored.parts(id) != ids:
        return False
    ignored = {_TIME} if document.parts else set()
    return all(
        record.text == text and _as_json(record.metadata, id, ignored) == _as_json(given, id, ignored)
        for record, text, given in zip(stored.index.get(ids), texts, metadata, strict=True)
    )


def _as_json(metadata: dict[str, Any], id: Id, ignored: set[str]) -> str:
    """Return metadata as JSON with sorted keys, which tells apart 1, 1.0 and true; for ``==`` they are equal."""
    kept = {name: value for name, value in metadata.items() if name not in ignored}
    return json.dumps(json.loads(encode_metadata(kept, id)[0]), sort_keys=True)


def encode(
    model: QueryModel, transactions: Iterable[Rows], size: int, bar: Any, **options: Any
) -> Iterator[tuple[Rows, Any]]:
    """Yield each transaction with its vectors; those of a document of more than `size` passages come in parts."""
    for rows in transactions:
        if len(rows.ids) <= size:
            yield rows, model.encode_documents(rows.inputs, **options)
        else:  # encoded while they are stored
            parts = (rows.inputs[first : first + size] for first in range(0, len(rows.inputs), size))
            yield rows, (model.encode_documents(part, **options) for part in parts)
        bar.update(len(rows.documents))


def encode_by_workers(
    workers: EncodingWorkers | int, model: QueryModel, transactions: Iterable[Rows], size: int, bar: Any, **options: Any
) -> Iterator[tuple[Rows, Any]]:
    """Yield each transaction with its vectors, while workers, or so many new ones, encode the next."""
    from latelier.retrieve.workers import open_workers  # with Ray's, only if workers are asked for

    waiting: deque[Rows] = deque()

    def parts() -> Iterator[list[Any]]:
        for rows in transactions:
            waiting.append(rows)
            yield from (rows.inputs[first : first + size] for first in range(0, len(rows.inputs), size))

    with open_workers(workers, model) as opened, closing(opened.encode(parts(), **options)) as encoded:
        for vectors in encoded:
            rows = waiting.popleft()
            remaining = -(-len(rows.texts) // size) - 1  # parts of a very long document, read while it is stored
            yield rows, itertools.chain([vectors], itertools.islice(encoded, remaining)) if remaining else vectors
            bar.update(len(rows.documents))


def store(
    rows: Rows, vectors: TokenEmbeddings | Iterable[TokenEmbeddings], stored: StoredDocuments, on_existing: OnExisting
) -> None:
    """Store documents in one commit."""
    if on_existing in ("update", "synchronise"):
        if stored.has_passages:
            prefixes = list(map(passage_prefix, rows.documents))
        else:
            prefixes = []
        stored.index.update(rows.ids, vectors, rows.texts, rows.metadata, remove_prefixes=prefixes)
        return
    try:
        stored.index.add(_row_ids(rows, stored), vectors, rows.texts, rows.metadata)
    except DuplicateIdError as error:
        raise DuplicateIdError(
            f"{error.fact} Another writer has stored documents with these ids since this call checked them.",
            advice="skip-stored",
        ) from error


def _row_ids(rows: Rows, stored: StoredDocuments) -> Iterator[Id]:
    """Yield the ids of new rows, read by the only writer: numbers that others have taken since give way to new ones.

    A document that is in the index by now is an error here: its passages may have other ids than the stored ones.
    """
    moved: dict[Id, Id] = {}
    if taken := stored.existing(rows.documents if stored.has_passages else rows.numbers):
        numbers = set(rows.numbers)
        given = [id for id in rows.documents if id not in numbers]
        if twice := [id for id in given if id in taken]:
            raise duplicate_ids(twice, "in the index already")
        moved = dict(zip(rows.numbers, itertools.count(_next_number([*stored.ids(), *given])), strict=False))
    for id in rows.ids:
        if moved and stored.has_passages:
            passage = decode_passage_id(id)
        else:
            passage = None
        if passage is None:
            yield moved.get(id, id)
        else:
            yield encode_passage_id(passage._replace(document=moved.get(passage.document, passage.document)))
