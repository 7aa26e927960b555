"""Test collections, runs, and retrieval measures such as nDCG@10."""

from latelier.evaluation.collection import Collection, load_beir
from latelier.evaluation.measures import Evaluation, evaluate
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
    "Evaluation",
    "Qrels",
    "Run",
    "evaluate",
    "load_beir",
    "ranking",
    "read_trec",
    "read_trec_qrels",
    "write_trec",
    "write_trec_qrels",
]
