"""A collection to evaluate on: documents, queries and relevance judgements, from a folder in BEIR's layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.evaluation.checks import (
    OnProblem,
    Problems,
    check_evaluated,
    check_excluded,
    check_relevance,
    check_str_ids,
)
from latelier.evaluation.files import excluded_ids, find_split, numbered_lines, qrels_entries
from latelier.utils.files import as_path, is_file, is_folder, parse_json


@dataclass(frozen=True, repr=False)
class Collection:
    """A test collection: documents, queries, and which documents are relevant to which query.

    Parameters
    ----------
    documents
        Document id to ``{"title": ..., "text": ...}``; the title may be empty.
    queries
        Query id to text.
    qrels
        Query id to document id to relevance: 0 is not relevant, higher is more relevant.
    excluded
        Query id to the ids of documents that do not count for it, as in BRIGHT: those that the question was made of.

    Raises
    ------
    InvalidArgumentError
        If they have another form, an id is not a str, or a relevance is not an integer or beyond a million.

    Examples
    --------
    >>> collection = Collection(
    ...     documents={"d1": {"title": "Paris", "text": "Capital of France."}},
    ...     queries={"q1": "capital of france"},
    ...     qrels={"q1": {"d1": 1}},
    ... )
    >>> collection
    Collection(1 document, 1 query, 1 qrel)
    >>> collection.texts()
    {'d1': 'Paris Capital of France.'}
    """

    documents: dict[str, dict[str, str]]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    excluded: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Here, as evaluation would find it only after all documents are encoded.
        for name, ids, what in (("documents", self.documents, "document id"), ("queries", self.queries, "query id")):
            check_str_ids(what, ids, name)
        check_evaluated(self.qrels, "qrels")
        check_relevance(self.qrels)
        check_excluded(self.excluded)

    def texts(self) -> dict[str, str]:
        """Return document id to the text to index: title and text joined by a space, as in BEIR's published figures."""
        return {id_: f"{document['title']} {document['text']}".strip() for id_, document in self.documents.items()}

    def identical_ids(self) -> bool | None:
        """Return whether the queries stand among the documents under their own ids; None if they share no id.

        Known by the texts: ids of two lists that are numbered from 1 are the same by chance.

        Examples
        --------
        >>> documents = {"1": {"title": "", "text": "The moon."}}
        >>> Collection(documents, queries={"1": "what is far away"}, qrels={}).identical_ids()
        False
        """
        shared = [id_ for id_ in self.queries if id_ in self.documents]
        if not shared:
            return None
        same = 0
        for id_ in shared:
            document = self.documents[id_]
            texts = {_squeezed(document["text"]), _squeezed(f"{document['title']} {document['text']}")}
            same += _squeezed(self.queries[id_]) in texts
        return same * 2 > len(shared)

    def __repr__(self) -> str:
        qrels = sum(len(judged) for judged in self.qrels.values())
        counts = (
            f"{len(self.documents):,} document{'' if len(self.documents) == 1 else 's'}",
            f"{len(self.queries):,} quer{'y' if len(self.queries) == 1 else 'ies'}",
            f"{qrels:,} qrel{'' if qrels == 1 else 's'}",
        )
        return f"Collection({', '.join(counts)})"


def _squeezed(text: str) -> str:
    """Return a text without differences of case and white space."""
    return " ".join(text.lower().split())


def load_beir(folder: str | Path, split: str = "test", *, on_problem: OnProblem = "error") -> Collection:
    r"""Read ``corpus.jsonl``, ``queries.jsonl`` and the qrels of a split, each plain or with ``.gz``.

    Parameters
    ----------
    folder
        The folder that holds them, in the layout of BEIR, MTEB or LIMIT.
    split
        Which qrels: ``"test"``, ``"dev"``, ``"train"``, ... of ``qrels/<split>.tsv``, ``qrels/<split>.jsonl``,
        ``<split>.jsonl`` or ``qrels.jsonl`` (of ``"test"``), in any form that `read_qrels` reads. ``queries`` holds the
        queries with a qrel in this split.
    on_problem
        What to do with faulty lines: empty texts, unknown ids in the qrels, duplicates, malformed JSON, missing
        fields, a relevance that is not an integer or beyond a million. ``"error"`` raises an error that lists them;
        ``"warn"`` skips them (of duplicates, the first is kept) and issues one warning.

    Returns
    -------
    Collection
        Titles and texts, and ``excluded_ids`` of queries; other fields are dropped. Ids written as JSON integers become
        strings.

    Raises
    ------
    InvalidArgumentError
        If a file or the split is missing, or for faulty lines; the message names files, lines and splits.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "qrels").mkdir()
    >>> for name, text in {
    ...     "corpus.jsonl": '{"_id": "d1", "title": "Paris", "text": "Big."}',
    ...     "queries.jsonl": '{"_id": "q1", "text": "capital of france"}',
    ...     "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1",
    ... }.items():
    ...     _ = (folder / name).write_text(text)
    >>> load_beir(folder)
    Collection(1 document, 1 query, 1 qrel)
    """
    folder = as_path(folder, "folder")
    corpus = _find(folder, "corpus.jsonl")
    queries = _find(folder, "queries.jsonl")
    split_qrels = find_split(folder, split)
    problems = Problems(on_problem)
    documents = {
        id_: {"title": record.get("title") or "", "text": record["text"] or ""}
        for id_, record in _records(corpus, ("text", "title"), problems)
    }
    texts = {}
    excluded = {}
    for id_, record in _records(queries, ("text",), problems):
        texts[id_] = record["text"]
        if ids := excluded_ids(record):
            excluded[id_] = ids
    qrels = _qrels(split_qrels, documents, texts, problems)
    problems.settle(str(folder))
    judged = {id_: text for id_, text in texts.items() if id_ in qrels}
    return Collection(documents, judged, qrels, {id_: ids for id_, ids in excluded.items() if id_ in qrels})


def holds_collection(folder: Path) -> bool:
    """Whether a folder holds documents of a collection, rather than rows to train on."""
    return any(folder.glob("corpus*")) or any(folder.glob("collection.*"))


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if is_file(candidate):
            return candidate
    if is_folder(folder):
        present = ", ".join(sorted(path.name for path in folder.iterdir()))
    else:
        present = ""
    if is_folder(folder):
        found = f"it holds: {present or 'nothing'}"
    else:
        found = "it is not a folder"
    raise InvalidArgumentError(
        f"{folder} has no {name} or {name}.gz ({found}); expected corpus.jsonl, queries.jsonl and qrels/<split>.tsv."
    )


def _records(path: Path, fields: tuple[str, ...], problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the record of each valid line of a JSONL file."""
    seen: dict[str, int] = {}
    for number, line in numbered_lines(path):
        try:
            record = parse_json(line)
        except InvalidArgumentError as error:
            problems.add(path.name, number, str(error).removesuffix("."))
            continue
        fault = _fault(record, fields)
        if fault is None:
            id_ = str(record["_id"])
            if id_ not in seen:
                seen[id_] = number
                yield id_, record
                continue
            fault = f"duplicate _id {id_!r}, first on line {seen[id_]}"
        problems.add(path.name, number, fault)


def _fault(record: Any, fields: tuple[str, ...]) -> str | None:
    """Return what is wrong with a record, None if it is valid."""
    if not isinstance(record, dict):
        return f"expected a JSON object, received {type(record).__name__}"
    if "_id" not in record and "id" in record:  # as MTEB writes it
        record["_id"] = record.pop("id")
    for name in ("_id", "text"):
        if name not in record:
            return f"no {name!r} field; its fields are {', '.join(map(repr, record)) or 'none'}"
    if isinstance(record["_id"], bool) or not isinstance(record["_id"], (str, int)) or record["_id"] == "":
        return f"_id is {record['_id']!r}; expected a string"
    for name in fields:
        if not isinstance(record.get(name) or "", str):
            return f"{name} is {type(record[name]).__name__}; expected a string"
    if not any((record.get(name) or "").strip() for name in fields):
        return f"{' and '.join(fields)} {'are' if len(fields) > 1 else 'is'} empty (_id {record['_id']!r})"
    return None


def _qrels(
    path: Path, documents: dict[str, dict[str, str]], queries: dict[str, str], problems: Problems
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    if path.parent.name == "qrels":
        name = str(path.relative_to(path.parent.parent))
    else:
        name = path.name
    for number, entry in qrels_entries(path):
        if isinstance(entry, str):
            problems.add(name, number, entry)
            continue
        query, document, relevance = entry
        if query not in queries:
            problems.add(name, number, f"unknown query id {query!r}")
        elif document not in documents:
            problems.add(name, number, f"unknown document id {document!r}")
        elif document in qrels.get(query, ()):
            problems.add(name, number, f"duplicate qrel of document {document!r} for query {query!r}")
        else:
            qrels.setdefault(query, {})[document] = relevance
    return qrels
