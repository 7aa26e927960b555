"""A collection to evaluate on: documents, queries and relevance judgements, from a folder in BEIR's layout."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.evaluation.checks import (
    Problems,
    check_evaluated,
    check_excluded,
    check_relevance,
    check_str_ids,
)
from latelier.evaluation.files import (
    DOCUMENT_FILES,
    QUERY_FILES,
    Judgement,
    excluded_ids,
    find_files,
    find_split,
    irds_dataset,
    judgements,
)
from latelier.reading.documents import TEXT_FORMATS, text_record, texts_header
from latelier.reading.records import irds_record
from latelier.reading.rows import Fault, OnProblem, Row, Source, read_rows
from latelier.utils.checks import short
from latelier.utils.files import as_path, is_folder


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
        """Return document id to the text to index: title and text joined by a space, as in BEIR's published figures.

        Examples
        --------
        >>> Collection({"1": {"title": "Moon", "text": "It is far away."}}, queries={}, qrels={}).texts()
        {'1': 'Moon It is far away.'}
        """
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


def load_beir(folder: str | Path | Any, split: str = "test", *, on_problem: OnProblem = "stop") -> Collection:
    r"""Read the documents, the queries and the qrels of a split of a collection.

    Parameters
    ----------
    folder
        The folder that holds them, in the layout of BEIR, MTEB or LIMIT: ``corpus.jsonl``, ``queries.jsonl`` and
        ``qrels/<split>.tsv``; of MS MARCO or LoTTE: ``collection.tsv``, ``queries.tsv`` or ``queries.<split>.tsv``, and
        ``qrels.<split>.tsv`` or ``qas.<split>.jsonl``; or of the Hugging Face Hub: Parquet files in ``corpus``,
        ``queries`` and ``qrels``. Lines may be compressed (``.gz``), and files of these layouts be mixed. Or a data set
        of ir_datasets, or its name after ``irds:``, as ``"irds:beir/scifact/test"`` (extra ``irds``).
    split
        Which qrels of a folder: ``"test"``, ``"dev"``, ``"train"``, ..., in any form that `read_qrels` reads.
        ``queries`` holds the queries with a qrel in this split.
    on_problem
        What to do with faulty lines: empty texts, unknown ids in the qrels, duplicates, malformed JSON, missing
        fields, a relevance that is not an integer or beyond a million. ``"stop"`` raises an error that lists them;
        ``"skip"`` leaves them out (of duplicates, the first is kept) and issues one warning.

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
    dataset = irds_dataset(folder)
    if dataset is None:
        rows = _folder_rows(as_path(folder, "folder"), split)
    else:
        rows = _Rows(_irds_documents(dataset), _irds_queries(dataset), _irds_qrels(dataset))
    problems = Problems(on_problem)
    documents = {
        id_: {"title": record.get("title") or "", "text": record["text"] or ""}
        for id_, record in _records(rows.documents, ("text", "title"), problems)
    }
    texts = {}
    excluded = {}
    for id_, record in _records(rows.queries, ("text",), problems):
        texts[id_] = record["text"]
        if ids := excluded_ids(record):
            excluded[id_] = ids
    qrels = _qrels(rows.qrels, documents, texts, problems)
    problems.settle(str(folder))
    judged = {id_: text for id_, text in texts.items() if id_ in qrels}
    return Collection(documents, judged, qrels, {id_: ids for id_, ids in excluded.items() if id_ in qrels})


class _Rows(NamedTuple):
    """The rows of a collection before they are checked: records of texts, and judgements."""

    documents: Iterator[Row | Fault]
    queries: Iterator[Row | Fault]
    qrels: Iterator[Judgement | Fault]


def _folder_rows(folder: Path, split: str) -> _Rows:
    corpus = _find(folder, DOCUMENT_FILES, split)
    qrels = find_split(folder, split)
    queries = _find(folder, QUERY_FILES, split)
    return _Rows(_file_rows(corpus), _file_rows(queries), _file_qrels(qrels))


def _file_rows(paths: list[Path]) -> Iterator[Row | Fault]:
    for path in paths:
        yield from read_rows(Source(path, path.name), TEXT_FORMATS, texts_header)


def _file_qrels(paths: list[Path]) -> Iterator[Judgement | Fault]:
    for path in paths:
        name = path.name
        if path.parent.name == "qrels":
            name = path.relative_to(path.parent.parent).as_posix()
        yield from judgements(path, name)


def _irds_documents(dataset: Any) -> Iterator[Row | Fault]:
    for number, document in enumerate(dataset.docs_iter(), start=1):
        yield Row(f"docs:{number}", irds_record(document))


def _irds_queries(dataset: Any) -> Iterator[Row | Fault]:
    for number, query in enumerate(dataset.queries_iter(), start=1):
        yield Row(f"queries:{number}", {"_id": query.query_id, "text": query.default_text()})


def _irds_qrels(dataset: Any) -> Iterator[Judgement | Fault]:
    for number, qrel in enumerate(dataset.qrels_iter(), start=1):
        yield Judgement(f"qrels:{number}", qrel.query_id, qrel.doc_id, qrel.relevance)


def read_texts(
    source: str | Path | Any, split: str, queries: Container[str], documents: Container[str], *, on_problem: OnProblem
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of some queries and documents of a collection by id, see `load_beir`; it needs no qrels."""
    dataset = irds_dataset(source)
    if dataset is None:
        folder = as_path(source, "folder")
        document_rows = _file_rows(_find(folder, DOCUMENT_FILES, split))
        query_rows = _file_rows(_find(folder, QUERY_FILES, split))
    else:
        document_rows = _irds_documents(dataset)
        query_rows = _irds_queries(dataset)
    problems = Problems(on_problem)
    document_texts = {}
    for id_, record in _records(document_rows, ("text", "title"), problems):
        if id_ in documents:
            document_texts[id_] = f"{record.get('title') or ''} {record['text'] or ''}".strip()
    query_texts = {id_: record["text"] for id_, record in _records(query_rows, ("text",), problems) if id_ in queries}
    problems.settle(str(source))
    return query_texts, document_texts


def holds_collection(folder: Path) -> bool:
    """Whether a folder holds documents of a collection, rather than rows to train on."""
    return any(folder.glob("corpus*")) or any(folder.glob("collection.*"))


def _find(folder: Path, names: tuple[str, ...], split: str) -> list[Path]:
    if files := find_files(folder, names, split):
        return files
    name = names[0]
    if is_folder(folder):
        present = ", ".join(sorted(path.name for path in folder.iterdir()))
        found = f"it holds: {present or 'nothing'}"
    else:
        found = "it is not a folder"
    raise InvalidArgumentError(
        f"{folder} has no {name} or {name}.gz ({found}); expected corpus.jsonl, queries.jsonl and qrels/<split>.tsv, "
        "or collection.tsv, queries.tsv and qrels.<split>.tsv, or corpus, queries and qrels with Parquet files."
    )


def _records(
    rows: Iterator[Row | Fault], fields: tuple[str, ...], problems: Problems
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the record of each valid row."""
    seen: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Fault):
            problems.add(row.place, row.reason)
            continue
        record = text_record(row.values)
        fault = _fault(record, fields)
        if fault is None:
            id_ = str(record["_id"])
            if id_ not in seen:
                seen[id_] = row.place
                yield id_, record
                continue
            fault = f"duplicate _id {id_!r}, first at {seen[id_]}"
        problems.add(row.place, fault)


def _fault(record: Any, fields: tuple[str, ...]) -> str | None:
    """Return what is wrong with a record, None if it is valid."""
    if not isinstance(record, dict):
        return f"expected a JSON object or columns of an id and a text, received {short(record)}"
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
    rows: Iterator[Judgement | Fault],
    documents: dict[str, dict[str, str]],
    queries: dict[str, str],
    problems: Problems,
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for row in rows:
        if isinstance(row, Fault):
            problems.add(row.place, row.reason)
        elif row.query not in queries:
            problems.add(row.place, f"unknown query id {row.query!r}")
        elif row.document not in documents:
            problems.add(row.place, f"unknown document id {row.document!r}")
        elif row.document in qrels.get(row.query, ()):
            problems.add(row.place, f"duplicate qrel of document {row.document!r} for query {row.query!r}")
        else:
            qrels.setdefault(row.query, {})[row.document] = row.relevance
    return qrels
