"""`Collection`: documents, queries and judgements, and reading them from a folder in BEIR's layout.

The three dicts have the form that the field's tools exchange, so a collection goes into them as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.evaluation.files import OnProblem, Problems, numbered_lines
from latelier.utils.describing import describe
from latelier.utils.reading import as_path, is_file, is_folder, parse_json

__all__ = ["Collection", "load_beir"]


@dataclass(frozen=True, repr=False)
class Collection:
    """A test collection: what is searched, what is asked, and which answers are right.

    Parameters
    ----------
    documents
        Document id to ``{"title": ..., "text": ...}``; the title may be empty.
    queries
        Query id to text.
    qrels
        Query id to document id to judgement: 0 is not relevant, more is better.

    Examples
    --------
    >>> collection = Collection(
    ...     documents={"d1": {"title": "Paris", "text": "Capital of France."}},
    ...     queries={"q1": "capital of france"},
    ...     qrels={"q1": {"d1": 1}},
    ... )
    >>> collection
    Collection(1 document, 1 query, 1 judgement)
    >>> collection.texts()
    {'d1': 'Paris Capital of France.'}
    """

    documents: dict[str, dict[str, str]]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]

    def texts(self) -> dict[str, str]:
        """Return what is indexed: title and text joined by a space, as BEIR's figures are computed.

        Returns
        -------
        dict
            Document id to text; ``retriever.add(collection.texts().items())`` indexes them.
        """
        return {id_: f"{document['title']} {document['text']}".strip() for id_, document in self.documents.items()}

    def __repr__(self) -> str:
        judgements = sum(len(judged) for judged in self.qrels.values())
        counts = (
            f"{len(self.documents):,} document{'' if len(self.documents) == 1 else 's'}",
            f"{len(self.queries):,} quer{'y' if len(self.queries) == 1 else 'ies'}",
            f"{judgements:,} judgement{'' if judgements == 1 else 's'}",
        )
        return f"Collection({', '.join(counts)})"


def load_beir(folder: str | Path, split: str = "test", *, on_problem: OnProblem = "error") -> Collection:
    r"""Read ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``, each plain or with ``.gz``.

    Parameters
    ----------
    folder
        The folder that holds them.
    split
        Which judgements: ``"test"``, ``"dev"``, ``"train"``, ... Queries without a judgement in this split are left
        out of ``queries``.
    on_problem
        What to do about faulty lines: empty texts, ids that the judgements name and no file defines, duplicates,
        malformed JSON, missing fields, judgements that are no integers. ``"error"`` lists them; ``"warn"`` leaves
        them out (of duplicates, the first stays) and says so in one warning.

    Returns
    -------
    Collection
        Titles and texts; other fields of the corpus are not kept. Ids written as JSON integers become strings.

    Raises
    ------
    InvalidArgumentError
        If a file or the split is missing, or for faulty lines; the message names files, lines and splits.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "d1", "title": "Paris", "text": "Capital of France."}')
    >>> _ = (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "capital of france"}')
    >>> (folder / "qrels").mkdir()
    >>> _ = (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1")
    >>> load_beir(folder)
    Collection(1 document, 1 query, 1 judgement)
    """
    folder = as_path(folder, "folder")
    corpus, queries, judgements = _find(folder, "corpus.jsonl"), _find(folder, "queries.jsonl"), _split(folder, split)
    problems = Problems(on_problem)
    documents = {
        id_: {"title": record.get("title") or "", "text": record["text"] or ""}
        for id_, record in _records(corpus, ("text", "title"), problems)
    }
    texts = {id_: record["text"] for id_, record in _records(queries, ("text",), problems)}
    qrels = _qrels(judgements, documents, texts, problems)
    problems.settle(str(folder))
    return Collection(documents, {id_: text for id_, text in texts.items() if id_ in qrels}, qrels)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if is_file(candidate):
            return candidate
    present = ", ".join(sorted(path.name for path in folder.iterdir())) if is_folder(folder) else ""
    found = f"it holds: {present or 'nothing'}" if is_folder(folder) else "it is not a folder"
    raise InvalidArgumentError(
        f"{folder} has no {name} or {name}.gz ({found}); expected corpus.jsonl, queries.jsonl and qrels/<split>.tsv."
    )


def _split(folder: Path, split: str) -> Path:
    if not isinstance(split, str):
        raise InvalidArgumentError(f"received {describe(split)} as split; expected a name such as 'test'.")
    for candidate in (folder / "qrels" / f"{split}.tsv", folder / "qrels" / f"{split}.tsv.gz"):
        if is_file(candidate):
            return candidate
    names = {path.name.removesuffix(".gz").removesuffix(".tsv") for path in (folder / "qrels").glob("*.tsv*")}
    available = ", ".join(sorted(names)) or "none (no qrels/*.tsv file is there)"
    raise InvalidArgumentError(f"{folder} has no judgements for split={split!r}; splits available: {available}.")


def _records(path: Path, fields: tuple[str, ...], problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the record of each sound line of a JSON-lines file."""
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
    """Say what is wrong with one record, if anything."""
    if not isinstance(record, dict):
        return f"expected a JSON object, received {type(record).__name__}"
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
    for row, (number, line) in enumerate(numbered_lines(path)):
        columns, name = line.split("\t"), f"qrels/{path.name}"
        if len(columns) != 3:
            problems.add(name, number, f"{len(columns)} columns; expected query id, document id, judgement, by tabs")
            continue
        query, document, value = columns
        try:
            judgement = int(value)
        except ValueError:
            # Only the first row may be a header, and a header names no query.
            if row or query in queries:
                problems.add(name, number, f"judgement {value!r} is not an integer")
            continue
        if query not in queries:
            problems.add(name, number, f"unknown query id {query!r}")
        elif document not in documents:
            problems.add(name, number, f"unknown document id {document!r}")
        elif document in qrels.get(query, ()):
            problems.add(name, number, f"duplicate judgement of document {document!r} for query {query!r}")
        else:
            qrels.setdefault(query, {})[document] = judgement
    return qrels
