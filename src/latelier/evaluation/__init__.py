"""Test collections, runs, retrieval measures such as nDCG@10, and comparisons of runs."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.evaluation.collection import Collection, load_beir
    from latelier.evaluation.comparison import Comparison, MeasureComparison, compare
    from latelier.evaluation.evaluator import RetrievalEvaluator
    from latelier.evaluation.measures import Evaluation, evaluate
    from latelier.evaluation.runs import read_qrels, read_run, write_run
    from latelier.evaluation.trec import (
        Qrels,
        Run,
        ranking,
        read_trec,
        read_trec_qrels,
        write_trec,
        write_trec_qrels,
    )

__all__ = [
    "Collection",
    "Comparison",
    "Evaluation",
    "MeasureComparison",
    "Qrels",
    "RetrievalEvaluator",
    "Run",
    "compare",
    "evaluate",
    "load_beir",
    "ranking",
    "read_qrels",
    "read_run",
    "read_trec",
    "read_trec_qrels",
    "write_run",
    "write_trec",
    "write_trec_qrels",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    collection=("Collection", "load_beir"),
    comparison=("Comparison", "MeasureComparison", "compare"),
    evaluator=("RetrievalEvaluator",),
    measures=("Evaluation", "evaluate"),
    runs=("read_qrels", "read_run", "write_run"),
    trec=("Qrels", "Run", "ranking", "read_trec", "read_trec_qrels", "write_trec", "write_trec_qrels"),
)
