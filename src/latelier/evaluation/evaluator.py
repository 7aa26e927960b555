"""`RetrievalEvaluator`: measures a model while it is trained, by searching a collection in a temporary index."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from sentence_transformers.base.evaluation import BaseEvaluator

from latelier.embeddings import TokenEmbeddings
from latelier.errors import StorageError
from latelier.evaluation.collection import Collection
from latelier.evaluation.measures import DEFAULT_MEASURES, Evaluation, evaluate_named
from latelier.indexes import Flat, Index
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.retriever import SearchRun, search_settings
from latelier.utils.checks import check_count

MakeIndex: TypeAlias = Callable[[Path], Index]

# Texts encoded and stored at once: memory depends on these.
_CHUNK = 2048


@contextmanager
def temporary_index(make: MakeIndex) -> Iterator[Index]:
    """Yield a new index in a temporary folder, which is removed afterwards."""
    temporary = TemporaryDirectory(prefix="latelier-index-", ignore_cleanup_errors=True)
    with temporary as folder, make(Path(folder) / "index") as index:
        yield index


def fill_index(
    index: Index, documents: Iterable[tuple[str, Any]], encode: Callable[[list[Any]], Any], *, at_once: int = _CHUNK
) -> None:
    """Encode texts, or pictures, and add them to an index, so many at once."""
    remaining = iter(documents)
    while chunk := list(islice(remaining, at_once)):
        index.add([id_ for id_, _ in chunk], encode([document for _, document in chunk]))


def search_index(
    index: Index,
    queries: Mapping[str, str],
    encode: Callable[[list[str]], Any],
    k: int,
    options: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Return the run of queries (query id to text): query id to document id to score."""
    if not queries:
        return {}
    found = index.search(encode(list(queries.values())), k, **options)
    return {query: {str(hit.id): hit.score for hit in hits} for query, hits in zip(queries, found, strict=True)}


def describe_index(make: MakeIndex, options: Mapping[str, Any]) -> dict[str, str | float]:
    """Return what makes an index and the options of its search as JSON values, for reports."""
    settings: dict[str, Any] = dict(options)
    while isinstance(make, partial):
        settings = {**make.keywords, **settings}
        make = make.func
    settings = {"index": getattr(make, "__name__", type(make).__name__), **settings}
    return {key: value if isinstance(value, (int, float, str)) else repr(value) for key, value in settings.items()}


class RetrievalEvaluator(BaseEvaluator):
    """An evaluator for the trainers of sentence-transformers that searches with an index.

    It encodes the documents of a collection with the model as it is, puts them into a new index in a temporary folder,
    searches the queries that have qrels, and measures the run with `evaluate`. So it measures what users of the index
    will get, its approximation and its quantisation included, and the change of the queries of a model without
    training. Memory depends on the index and not on the collection.

    Parameters
    ----------
    collection
        Documents, queries and qrels.
    measures
        Names in ir-measures' spelling. The first is the `primary_metric`, by which a trainer chooses the best
        checkpoint.
    index
        Makes the index in a folder: `latelier.indexes.Flat` (exact), `latelier.indexes.IVF`,
        ``functools.partial(IVF, nbits=2)``, ...
    search_options
        Further arguments of the index's `search`, such as ``{"effort": "fast"}``; default: none. Vectors alone are
        searched: the model is measured.
    k
        Documents to find for each query: at least the largest cutoff of the measures.
    name
        Name of the collection: the prefix of the metrics, ``"scifact_nDCG@10"``.
    batch_size
        Texts per batch of the model.
    write_csv
        Append the measures to ``Retrieval_evaluation_<name>_results.csv`` in the trainer's output folder.
    show_progress
        Show a progress bar while texts are encoded.
    ignore_identical_ids
        As in `evaluate`.

    Attributes
    ----------
    primary_metric
        Key of the first measure; ``metric_for_best_model=f"eval_{evaluator.primary_metric}"``.
    greater_is_better
        True.
    run
        The run of the last call, for `compare` and `write_run`; None before.
    evaluation
        The `Evaluation` of the last call, with the values per query; None before.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type; when called, as in `evaluate` and in the index's `search`.

    Examples
    --------
    >>> from latelier.evaluation import Collection
    >>> from latelier.models import ColBERT
    >>> collection = Collection(
    ...     documents={
    ...         "d1": {"title": "Rome", "text": "A low fare to Italy."},
    ...         "d2": {"title": "Carbonara", "text": "How to cook spaghetti."},
    ...     },
    ...     queries={"q1": "recipes for pasta"},
    ...     qrels={"q1": {"d2": 1}},
    ... )
    >>> evaluator = RetrievalEvaluator(collection, ["RR@10"], name="toy")
    >>> evaluator
    RetrievalEvaluator(Collection(2 documents, 1 query, 1 qrel), ['RR@10'], k=100)
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> evaluator(ColBERT.from_dense(name, device="cpu"))
    {'toy_RR@10': 1.0}
    >>> evaluator.primary_metric, list(evaluator.run["q1"])
    ('toy_RR@10', ['d2', 'd1'])
    """

    def __init__(
        self,
        collection: Collection,
        measures: Iterable[str] = DEFAULT_MEASURES,
        *,
        index: MakeIndex = Flat,
        search_options: Mapping[str, Any] | None = None,
        k: int = 100,
        name: str = "",
        batch_size: int = 32,
        write_csv: bool = True,
        show_progress: bool = False,
        ignore_identical_ids: bool | None = None,
    ) -> None:
        super().__init__()
        self.collection = collection
        if isinstance(measures, str):
            self.measures = [measures]
        else:
            self.measures = list(measures)
        self.index = index
        self.search_options = dict(search_options or {})
        self.k = check_count("k", k)
        self.name = name
        self.batch_size = check_count("batch_size", batch_size)
        self.write_csv = write_csv
        self.show_progress = show_progress
        self.ignore_identical_ids = ignore_identical_ids
        if name:
            self.primary_metric = f"{name}_{self.measures[0]}"
        else:
            self.primary_metric = self.measures[0]
        self.run: SearchRun | None = None
        self.evaluation: Evaluation | None = None

    def __repr__(self) -> str:
        return f"RetrievalEvaluator({self.collection}, {self.measures}, k={self.k})"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Measure a model.

        `model`: a `ColBERT`, or another multi-vector model of sentence-transformers. `output_path`: folder for the CSV
        file; None writes none. `epoch`, `steps`: when the trainer calls, for the CSV file; -1 outside of training.
        Returns: metric, with the prefix, to value. Raises `StorageError` if the CSV file cannot be written.
        """
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": self.show_progress}
        queries = {query: text for query, text in self.collection.queries.items() if self.collection.qrels.get(query)}
        with temporary_index(self.index) as index:
            fill_index(index, self.collection.texts().items(), partial(model.encode_document, **options))

            def encode(texts: list[str]) -> TokenEmbeddings:
                return TokenEmbeddings.from_list(model.encode_query(texts, **options)).to("numpy")

            begin = time.perf_counter()
            run = search_index(index, queries, encode, self.k, self.search_options)
            seconds = round(time.perf_counter() - begin, 3)
            chosen = index.checked_options(self.search_options, is_text=False)
            given = None if chosen.mode == "keywords" else QueryModel.of(model)
            settings = search_settings(given, index, list(queries.values()), self.k, chosen)
            self.run = SearchRun(run, settings | {"seconds": seconds})
        ignored = self.ignore_identical_ids
        if ignored is None:
            ignored = self.collection.identical_ids()
        self.evaluation = evaluate_named(
            self.run,
            self.collection.qrels,
            self.measures,
            "the run",
            ignored,
            self.collection.documents,
            self.collection.excluded,
        )
        if output_path is not None and self.write_csv:
            self._append(Path(output_path), epoch, steps, self.evaluation)
        metrics: dict[str, float] = self.prefix_name_to_metrics(dict(self.evaluation), self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        """What model cards call it."""
        return "Retrieval with an index"

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings that model cards show: the index, its options and `k`."""
        return {**describe_index(self.index, self.search_options), "k": self.k}

    def _append(self, folder: Path, epoch: int, steps: int, evaluation: Evaluation) -> None:
        path = folder / f"Retrieval_evaluation{f'_{self.name}' if self.name else ''}_results.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                if is_new:
                    rows.writerow(["epoch", "steps", *evaluation])
                rows.writerow([epoch, steps, *evaluation.values()])
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            raise StorageError(f"cannot write {path}: {error}.") from error
