"""What an index holds, for people who have not searched yet: folders, kinds of files, newest documents, questions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from latelier.indexes import Id, ValueCount
from latelier.reading.records import HEADINGS
from latelier.retrieve import Retriever
from latelier.retrieve.synchronisation import changed_last
from latelier.serve import schemas

# Reading the ids of more documents than these, or their paths, would take longer than a search.
_MOST_IDS = 100_000
_MOST_PATHS = 100_000
# Files and newest documents that are named, and documents that are looked at for questions.
_NAMED = 100
_NEWEST = 5
_LOOKED_AT = 24
_QUESTIONS = 4
_LONGEST_TITLE = 80


def browse(retriever: Retriever, body: schemas.BrowseRequest) -> schemas.BrowseResponse:
    """Return what the documents that a filter selects have in each field, and their kinds, folders and files."""
    index = retriever.index
    chosen: dict[str, Any] = {"filter": body.filter, "parameters": body.parameters}
    fields = index.field_values(field=body.field, **chosen)
    paths: list[ValueCount] = []
    if "path" in index.fields:
        (known,) = index.field_values(_MOST_PATHS, field="path", **chosen)
        if known.is_complete:
            paths = [each for each in known.values or () if isinstance(each.value, str)]
    paths.sort(key=lambda each: str(each.value))
    return schemas.BrowseResponse(
        fields=fields, types=_types(paths), folders=_folders(paths, body.folder), files=paths[:_NAMED]
    )


def _types(paths: Iterable[ValueCount]) -> list[ValueCount]:
    """Return the suffixes of files with the number of their documents, most frequent first."""
    counts: Counter[str] = Counter()
    for each in paths:
        suffix = PurePosixPath(str(each.value)).suffix.lower().removeprefix(".")
        if suffix:
            counts[suffix] += each.documents
    return [ValueCount(*pair) for pair in counts.most_common()]


def _folders(paths: Iterable[ValueCount], folder: str) -> list[ValueCount]:
    """Return the folders directly in a folder, as paths with a slash at the end."""
    counts: Counter[str] = Counter()
    for each in paths:
        path = str(each.value)
        name, slash, _ = path[len(folder) :].partition("/")
        if path.startswith(folder) and slash:
            counts[f"{folder}{name}/"] += each.documents
    return [ValueCount(*pair) for pair in sorted(counts.items())]


def newest(retriever: Retriever) -> list[schemas.NewDocument]:
    """Return the documents of the files that were changed last; of no folder, those that were added last."""
    documents = retriever.documents
    changed: dict[Id, str | None] = dict(changed_last(retriever.index, _NEWEST))
    if not changed and len(retriever.index) <= _MOST_IDS:
        changed = dict.fromkeys(reversed(documents.ids()[-_NEWEST:]))
    stored = retriever.index.existing(list(changed))
    found = []
    for record in documents.get([id for id in changed if id in stored]):
        file = PurePosixPath(str(record.metadata.get("path") or "")).name
        title = record.metadata.get("title") or file or _first_words(record.text or "") or record.id
        shown = str(title)[:_LONGEST_TITLE]
        found.append(schemas.NewDocument(id=record.id, title=shown, modified=changed[record.id]))
    return found


def _first_words(text: str) -> str:
    return " ".join(text.lstrip("# \n").split("\n")[0].split()[:8])


def questions(retriever: Retriever) -> list[str]:
    """Return questions about titles of documents, or headings in them, each of another file."""
    if len(retriever.index) > _MOST_IDS:
        return []
    ids = retriever.documents.ids()
    chosen = list(dict.fromkeys(ids[len(ids) * i // _LOOKED_AT] for i in range(_LOOKED_AT))) if ids else []
    heads: dict[str, str] = {}
    for number, record in enumerate(retriever.documents.get(chosen)):
        text = record.text or ""
        title = ""
        source = str(record.metadata.get("path") or record.id)
        if record.passages:  # another one of each document
            passage = record.passages[len(record.passages) * number // len(chosen)]
            title = passage.title
            text = text[passage.start : passage.end]
        head = record.metadata.get("title") or title.strip().rpartition(HEADINGS)[2] or text.strip().split("\n")[0]
        shown = " ".join(str(head)[:_LONGEST_TITLE].lstrip("# ").split()[:8]).rstrip(".,:;")
        if shown and _is_readable(shown) > _is_readable(heads.get(source, "")):
            heads[source] = shown
        elif shown:
            heads.setdefault(source, shown)
    titles = list(dict.fromkeys(sorted(heads.values(), key=_is_readable, reverse=True)))
    return [_question(title) for title in titles[:_QUESTIONS]]


def _question(title: str) -> str:
    if title.endswith("?"):
        return title
    return f"What does “{title}” say?"


def _is_readable(title: str) -> bool:
    """Whether a title is of several words, and of words only."""
    return " " in title and all(part.isalnum() for part in re.split(r"[\s,'-]+", title.rstrip("?")))
