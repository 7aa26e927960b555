"""Test collections, runs, retrieval measures such as nDCG@10, and comparisons of runs."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.evaluation.checks import Excluded, Qrels, Run
    from latelier.evaluation.collection import Collection, load_beir
    from latelier.evaluation.comparison import Comparison, MeasureComparison, compare
    from latelier.evaluation.evaluator import RetrievalEvaluator
    from latelier.evaluation.files import ranking, read_excluded, read_qrels, read_run, write_run, write_trec_qrels
    from latelier.evaluation.measures import Evaluation, evaluate

__all__ = [
    "Collection",
    "Comparison",
    "Evaluation",
    "Excluded",
    "MeasureComparison",
    "Qrels",
    "RetrievalEvaluator",
    "Run",
    "compare",
    "evaluate",
    "load_beir",
    "ranking",
    "read_excluded",
    "read_qrels",
    "read_run",
    "write_run",
    "write_trec_qrels",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    checks=("Excluded", "Qrels", "Run"),
    collection=("Collection", "load_beir"),
    comparison=("Comparison", "MeasureComparison", "compare"),
    evaluator=("RetrievalEvaluator",),
    files=("ranking", "read_excluded", "read_qrels", "read_run", "write_run", "write_trec_qrels"),
    measures=("Evaluation", "evaluate"),
)
