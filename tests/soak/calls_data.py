"""Evaluation, training data and utilities, which read what others have written."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from latelier import data, evaluation, utils
from soak.arguments import COUNTS, NONSENSE
from soak.caller import REFUSED, Caller
from soak.cases import Wrong

_NAMES = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=3)
_SCORES = st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([10**400, True, "1", None]))
_RUNS = st.dictionaries(_NAMES, st.dictionaries(_NAMES, st.floats(allow_nan=False), max_size=4), max_size=3)
_QRELS = st.dictionaries(_NAMES, st.dictionaries(_NAMES, st.integers(0, 3), max_size=4), max_size=3)
_MEASURES = st.lists(
    st.sampled_from(["nDCG@10", "RR@10", "R@100", "AP", "P@5", "Success@1", "P(rel=2)@5"]), min_size=1, max_size=2
)
_WORDS = st.sampled_from(["a", "b", "", " ", "\ud800", "text", "x" * 999])
_ROW_NAMES = (
    "query",
    "anchor",
    "positive",
    "negative",
    "negatives",
    "pos",
    "neg",
    "pos_scores",
    "neg_scores",
    "documents",
)
_ROWS = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(_WORDS, st.lists(_WORDS, max_size=3), st.lists(_SCORES, max_size=3), NONSENSE)
        for name in (*_ROW_NAMES, "scores", "query_id", "document_ids")
    },
)
_GOOD_ROWS = st.lists(
    st.fixed_dictionaries({"query": st.just("q"), "pos": st.just(["p"]), "neg": st.just(["n", "m"])}),
    min_size=1,
    max_size=4,
)


def measure(call: Caller, scratch: Path) -> None:
    """``evaluate`` and ``ranking``."""
    draw = call.draw
    run, qrels = draw(st.one_of(_RUNS, _RUNS, NONSENSE)), draw(st.one_of(_QRELS, _QRELS, NONSENSE))
    measures = draw(st.one_of(_MEASURES, _MEASURES, NONSENSE))
    found = call(evaluation.evaluate, run, qrels, measures)
    if found is not REFUSED and any(not 0 <= value <= 1 for value in found.values()):
        raise Wrong(f"measures {dict(found)}")
    scores = draw(
        st.one_of(st.dictionaries(_NAMES, st.floats(allow_nan=False)), st.dictionaries(_NAMES, _SCORES), NONSENSE)
    )
    ranked = call(evaluation.ranking, scores)
    found = [] if ranked is REFUSED else [score for _, score in ranked]
    if not any(map(math.isnan, found)) and found != sorted(found, reverse=True):
        raise Wrong(f"ranked {ranked}")


def exchange(call: Caller, scratch: Path) -> None:
    """TREC's files: what is written is read again; what is damaged is refused or read as what it says."""
    draw, path = call.draw, scratch / "file.trec"
    run = draw(_RUNS)
    written = call(evaluation.write_trec, run, path)
    if written is not REFUSED:
        found = call(evaluation.read_trec, path, valid=True)
        if found != {query: scores for query, scores in run.items() if scores}:
            raise Wrong(f"read {found}")
    call(evaluation.write_trec, draw(NONSENSE), scratch / "other", draw(st.one_of(st.just("name"), NONSENSE)))
    qrels = draw(st.one_of(_QRELS, NONSENSE))
    if call(evaluation.write_trec_qrels, qrels, path) is not REFUSED:
        _damage(draw, path)
    for read in (evaluation.read_trec, evaluation.read_trec_qrels):
        call(read, path)
        call(read, draw(st.one_of(NONSENSE.filter(_no_number), st.just(scratch), st.just(scratch / "missing"))))


def collect(call: Caller, scratch: Path) -> None:
    """``load_beir`` of a folder that is damaged, and ``data.load_training_set`` of the same."""
    draw, folder = call.draw, scratch / "beir"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    texts = {
        "corpus.jsonl": [{"_id": "d1", "title": "t", "text": "x"}, {"_id": "d2", "text": "y"}],
        "queries.jsonl": [{"_id": "q1", "text": "z"}],
    }
    for name, rows in texts.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    if not call(evaluation.load_beir, folder, valid=True).documents:
        raise Wrong("no documents")
    _damage(draw, draw(st.sampled_from([path for path in sorted(folder.rglob("*")) if path.is_file()])))
    problem = draw(st.one_of(st.sampled_from(["error", "warn"]), NONSENSE))
    call(evaluation.load_beir, folder, draw(st.one_of(st.just("test"), NONSENSE)), on_problem=problem)
    call(data.load_training_set, folder, split="test")
    call(evaluation.load_beir, draw(NONSENSE.filter(_no_number)))


def train(call: Caller, scratch: Path) -> None:
    """``data.load_training_set``, and what is done with its result."""
    draw = call.draw
    valid = draw(st.booleans())
    rows = draw(_GOOD_ROWS) if valid else draw(st.one_of(st.lists(_ROWS, max_size=3), NONSENSE.filter(_no_number)))
    options = (
        {}
        if valid
        else draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "queries": NONSENSE.filter(_no_number),
                    "documents": NONSENSE.filter(_no_number),
                    "candidates": COUNTS,
                },
            )
        )
    )
    found = call(data.load_training_set, rows, valid=valid, **options)
    if found is not REFUSED:
        call(repr, found)
        call(len, found)
        call(
            data.order_by_neighbours,
            found,
            draw(COUNTS),
            negatives=draw(COUNTS),
            passes=draw(st.sampled_from([-1, 0, 1, 2, True, None, "3", 1.5])),
        )
    call(data.TrainingSet, draw(NONSENSE), draw(NONSENSE), draw(st.one_of(st.none(), NONSENSE)))


def share_out(call: Caller, scratch: Path) -> None:
    """``batch_by_tokens`` puts each text into one batch within the budget; devices and lengths."""
    draw = call.draw
    lengths = draw(st.lists(st.integers(0, 50), max_size=12))
    budget, rows = draw(st.integers(1, 100)), draw(st.one_of(st.none(), st.integers(1, 5)))
    batches = call(lambda *args: list(utils.batch_by_tokens(*args)), lengths, budget, rows, valid=True)
    if sorted(np.concatenate([*batches, np.zeros(0, int)]).tolist()) != list(range(len(lengths))):
        raise Wrong(f"batches {batches}")
    if any(len(batch) > 1 and len(batch) * max(lengths[i] for i in batch) > budget for batch in batches):
        raise Wrong(f"batches {batches} over {budget}")
    odd = (draw(st.one_of(st.lists(st.integers()), NONSENSE)), draw(COUNTS), draw(st.one_of(COUNTS, NONSENSE)))
    call(lambda *args: next(iter(utils.batch_by_tokens(*args)), None), *odd)
    call(
        utils.resolve_device,
        draw(st.one_of(NONSENSE, st.sampled_from(["cuda", "cpu:1", "mps", "meta", "gpu", "cuda:99"]))),
    )
    call(
        utils.resolve_length,
        "max_length",
        draw(COUNTS),
        draw(st.sampled_from([None, 300])),
        draw(st.sampled_from([None, 512])),
    )
    call(utils.encoder_limit, draw(NONSENSE))


def _damage(draw: Any, path: Path) -> None:
    rng = random.Random(draw(st.integers(0, 2**32)))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 2, 5])):
        at = rng.randrange(len(content) + 1)
        content[at : at + rng.randrange(3)] = rng.choice(
            [b"", b"\xff", b"\0", b'"', b"\n", b"\t", b" ", b"[" * 9999, b"9" * 5000, b"\\ud800"]
        )
    path.write_bytes(content)


def _no_number(value: Any) -> bool:
    """Whether a value is no number: as a path, a number is a file that is open already."""
    return not isinstance(value, (int, float))


TARGETS = (measure, exchange, collect, train, share_out)
