"""`load`: one way in for the forms in which people have training data.

A form is told by the names of a row's fields, so a file of any of them is read without saying which it is; what is
wrong is said with the file and the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from latelier.data.examples import TrainingSet
from latelier.data.forms import Example, read_row, texts_by_id
from latelier.errors import InvalidArgumentError
from latelier.evaluation import load_beir
from latelier.utils import check_count
from latelier.utils.describing import describe
from latelier.utils.reading import as_path, is_folder, open_binary, parse_json, text_lines

__all__ = ["load"]


def load(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    queries: Any = None,
    documents: Any = None,
    candidates: int | None = None,
    split: str = "train",
) -> TrainingSet:
    """Read training data.

    Parameters
    ----------
    source
        A file with one JSON object per line (``.jsonl``, ``.jsonl.gz``), a folder in BEIR layout, a
        `datasets.Dataset`, or any iterable of dicts. A row is one of

        * ``{query, positive}``, with any number of ``negative``, ``negative_1``, ... or a list ``negatives``;
          ``anchor`` or ``question`` for the query do as well;
        * ``{query, pos, neg}`` (FlagEmbedding), lists of texts: one row for each positive, with all negatives; with
          ``pos_scores`` and ``neg_scores`` one row with all of them as scored candidates;
        * ``{query, documents, scores}``, two lists;
        * ``{query_id, document_ids, scores}`` (PyLate), lists or their string form, together with `queries` and
          `documents`.
    queries, documents
        Id to text, for rows of ids: a dict, or rows (file, data set, iterable) of ``{query_id, text}`` and
        ``{document_id, text}``; ``_id`` or ``id``, ``query`` and ``document`` do as well.
    candidates
        Keep the first so many documents of each row; for rows that have unequally many.
    split
        Of a BEIR folder, which ``qrels/<split>.tsv``: one row for each document that is relevant.

    Returns
    -------
    TrainingSet
        Its `to_dataset` is what the trainer takes.

    Raises
    ------
    InvalidArgumentError
        If a row has none of these forms, lacks a text, or has another number of documents; the message names it.

    Examples
    --------
    >>> rows = [{"query": "where is Rome?", "pos": ["On the Tiber."], "neg": ["In Georgia."]}]
    >>> load(rows).to_dataset()[0]
    {'query': 'where is Rome?', 'positive': 'On the Tiber.', 'negative_1': 'In Georgia.'}
    >>> scored = [{"query_id": 1, "document_ids": "['a', 'b']", "scores": "[0.9, 0.1]"}]
    >>> load(scored, queries={1: "where is Rome?"}, documents={"a": "On the Tiber.", "b": "In Georgia."})
    TrainingSet(1 row, 2 documents each, with scores)
    """
    check_count("candidates", candidates, optional=True)
    if isinstance(source, (str, os.PathLike)) and is_folder(as_path(source, "source")):
        return _from_beir(as_path(source), split)
    by_id = (
        None if queries is None else texts_by_id(_numbered(queries, "queries"), "query"),
        None if documents is None else texts_by_id(_numbered(documents, "documents"), "document"),
    )
    examples = [example for where, row in _numbered(source, "row") for example in read_row(row, where, *by_id)]
    scored = {example.scores is not None for example in examples}
    if len(scored) > 1:
        odd = next(e for e in examples if (e.scores is None) != (examples[0].scores is None))
        raise InvalidArgumentError(
            f"{odd.where} has {'no scores' if odd.scores is None else 'scores'}, unlike the rows before it; all rows "
            "need a teacher's scores, or none."
        )
    return _cut(examples, candidates, scored == {True})


def _cut(examples: list[Example], candidates: int | None, scored: bool) -> TrainingSet:
    for example in examples:
        if candidates is not None and len(example.documents) < candidates:
            raise InvalidArgumentError(
                f"{example.where} has {len(example.documents)} documents; candidates={candidates} needs as many."
            )
    return TrainingSet(
        [example.query for example in examples],
        [example.documents[:candidates] for example in examples],
        [(example.scores or [])[:candidates] for example in examples] if scored else None,
        [example.where for example in examples],
    )


def _numbered(source: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield rows with where they stand, for messages."""
    if isinstance(source, Mapping):
        yield from ((f"{name}[{key!r}]", (key, value)) for key, value in source.items())
    elif isinstance(source, (str, os.PathLike)):
        yield from _lines(as_path(source, name))
    else:
        try:
            rows = iter(source)
        except TypeError as error:
            raise InvalidArgumentError(
                f"received {describe(source)} as {name}; expected a path, a data set, or an iterable of dicts."
            ) from error
        yield from ((f"{name} {i}" if name == "row" else f"{name}[{i}]", row) for i, row in enumerate(rows))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path.name}:{number}"
            try:
                value = parse_json(line)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{where}: {error} Expected one object per line.") from error
            yield where, value


def _from_beir(folder: Path, split: str) -> TrainingSet:
    collection = load_beir(folder, split)
    texts = collection.texts()
    pairs = [
        (query, document)
        for query, judged in collection.qrels.items()
        for document, judgement in judged.items()
        if judgement > 0
    ]
    return TrainingSet(
        [collection.queries[query] for query, _ in pairs],
        [[texts[document]] for _, document in pairs],
        rows=[f"query {query!r}, document {document!r}" for query, document in pairs],
    )
