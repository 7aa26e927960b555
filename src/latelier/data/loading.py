"""`load_training_set`: reads training data from files, BEIR folders, data sets and iterables.

The format of a row is recognised by the names of its fields; errors name the file and the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from latelier.data.row_formats import Example, read_row, texts_by_id
from latelier.data.training_set import TrainingSet
from latelier.errors import InvalidArgumentError
from latelier.evaluation import load_beir
from latelier.utils import check_count
from latelier.utils.checks import describe
from latelier.utils.files import as_path, is_folder, open_binary, parse_json, text_lines

__all__ = ["load_training_set"]


def load_training_set(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    queries: Any = None,
    documents: Any = None,
    candidates: int | None = None,
    split: str = "train",
) -> TrainingSet:
    """Load training data.

    Parameters
    ----------
    source
        A file with one JSON object per line (``.jsonl``, ``.jsonl.gz``), a folder in BEIR layout, a
        `datasets.Dataset`, or any iterable of dicts. A row has one of these formats:

        * ``{query, positive}``, with any number of ``negative``, ``negative_1``, ... or a list ``negatives``;
          the query may also be called ``anchor`` or ``question``, the positive ``document`` or ``answer``; with
          ``scores``, a list, the positive's first, one row with all texts as scored candidates;
        * ``{query, pos, neg}`` (FlagEmbedding), lists of texts: makes one row per positive, with all negatives; with
          ``pos_scores`` and ``neg_scores``, or with ``scores``, one row with all texts as scored candidates;
        * ``{query, documents}``, a list, the positive first; or ``{query, documents, scores}``, two lists;
        * ``{query, document_1, document_2, ..., scores}``, as `TrainingSet.to_dataset` writes it;
        * ``{query_id, document_ids, scores}`` (PyLate), lists or their string form, together with `queries` and
          `documents`.

        ``scores`` may also be called ``score``, ``labels`` or ``label``; they are lists of numbers in any case. Lists
        may be arrays. Other fields are ignored, unless the name is nearly that of negatives or scores:
        ``hard_negative`` and ``negative_text`` are errors. So are two fields of which only one would be read, such as
        ``positive`` and ``answer``, or ``documents`` and ``negative``.
    queries, documents
        Id to text, for rows that hold ids: a dict, or rows (file, data set, iterable) of ``{query_id, text}`` and
        ``{document_id, text}``. The id may also be called ``_id`` or ``id``, the text ``query`` or ``document``. The
        ids ``7`` and ``"7"`` are the same, ``"007"`` is another one.
    candidates
        Keep the first `candidates` documents of each row, for rows of unequal length.
    split
        For a BEIR folder: the relevance judgements to use, ``qrels/<split>.tsv``. Each relevant document makes a row.

    Returns
    -------
    TrainingSet
        Its `to_dataset` returns the data set that the trainer takes.

    Raises
    ------
    InvalidArgumentError
        If a row has none of these formats, lacks a text or a score, or has another number of documents than the first;
        an id has two texts; or a file has no rows. The message names the row or the file.

    Examples
    --------
    >>> row = {
    ...     "query": "where is Rome?",
    ...     "pos": ["On the Tiber."],
    ...     "neg": ["In Georgia."],
    ... }
    >>> load_training_set([row]).to_dataset()[0]
    {'query': 'where is Rome?', 'positive': 'On the Tiber.', 'negative_1': 'In Georgia.'}
    >>> scored = {"query_id": 1, "document_ids": ["a", "b"], "scores": [0.9, 0.1]}
    >>> texts = {"a": "On the Tiber.", "b": "In Georgia."}
    >>> load_training_set([scored], queries={1: "where is Rome?"}, documents=texts)
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
    """Yield rows, each with its name in error messages."""
    if isinstance(source, Mapping):
        yield from ((f"{name}[{key!r}]", (key, value)) for key, value in source.items())
    elif isinstance(source, (str, os.PathLike)):
        yield from _lines(as_path(source, name))
    else:
        try:
            rows = iter(source)
        except TypeError as error:
            what = "training data" if name == "row" else name
            raise InvalidArgumentError(
                f"received {describe(source)} as {what}; expected a path, a data set, or an iterable of dicts."
            ) from error
        yield from ((f"{name} {i}" if name == "row" else f"{name}[{i}]", row) for i, row in enumerate(rows))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_empty = False
            where = f"{path.name}:{number}"
            try:
                value = parse_json(line)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{where}: {error} Expected one object per line.") from error
            yield where, value
    if is_empty:
        raise InvalidArgumentError(f"{path} is empty; expected one object per line.")


def _from_beir(folder: Path, split: str) -> TrainingSet:
    collection = load_beir(folder, split)
    texts = collection.texts()
    pairs = [
        (query, document)
        for query, judged in collection.qrels.items()
        for document, relevance in judged.items()
        if relevance > 0
    ]
    return TrainingSet(
        [collection.queries[query] for query, _ in pairs],
        [[texts[document]] for _, document in pairs],
        rows=[f"query {query!r}, document {document!r}" for query, document in pairs],
    )
