"""Measures against a naive computation, and what happens to missing queries and misspelt names."""

import math
import random
import sys

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.evaluation import Collection, evaluate, read_qrels, read_run


def naive(scores, judged, k):
    """NDCG@k, RR@k, Success@k and R@k of one query, from their definitions."""
    order = sorted(sorted(scores, reverse=True), key=lambda id_: -scores[id_])[:k]
    gains = [max(judged.get(id_, 0), 0) for id_ in order]
    ideal = sorted((max(value, 0) for value in judged.values()), reverse=True)[:k]
    dcg = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))
    best = sum(gain / math.log2(rank + 2) for rank, gain in enumerate(ideal))
    first = next((rank for rank, gain in enumerate(gains, start=1) if gain > 0), None)
    relevant = sum(value > 0 for value in judged.values())
    return {
        f"nDCG@{k}": dcg / best if best else 0.0,
        f"RR@{k}": 1 / first if first else 0.0,
        f"Success@{k}": float(first is not None),
        f"R@{k}": sum(gain > 0 for gain in gains) / relevant if relevant else 0.0,
    }


@pytest.mark.parametrize("k", [1, 3, 10])
def test_measures_equal_their_definitions(k):
    rng = random.Random(k)
    documents = [f"d{i}" for i in range(30)]
    # Coarse scores: many ties, which every measure must break in the same way.
    run = {f"q{i}": {d: rng.randrange(5) / 4 for d in rng.sample(documents, 15)} for i in range(40)}
    qrels = {query: {d: rng.choice([0, 1, 2, 3]) for d in rng.sample(documents, 8)} for query in run}
    expected = {query: naive(run[query], qrels[query], k) for query in run}
    result = evaluate(run, qrels, [f"nDCG@{k}", f"RR@{k}", f"Success@{k}", f"R@{k}"])
    assert list(result) == [f"nDCG@{k}", f"RR@{k}", f"Success@{k}", f"R@{k}"]
    for name, mean in result.items():
        assert mean == pytest.approx(sum(values[name] for values in expected.values()) / len(expected), abs=1e-9)
        for query, values in expected.items():
            assert result.per_query[query][name] == pytest.approx(values[name], abs=1e-9)


def test_files_are_measured_as_by_trec_eval(tmp_path):
    """By hand, to four digits: scores count and not ranks, equal scores go by descending id, q3 has no judgements."""
    (tmp_path / "qrels").write_text("q1 0 d1 2\nq1 0 d2 1\nq1 0 d3 0\nq1 0 d4 1\nq1 0 d5 1\nq2 0 d1 1\nq2 0 d7 0\n")
    (tmp_path / "run").write_text(
        "q1 Q0 d1 1 4.0 x\nq1 Q0 d2 2 3.0 x\nq1 Q0 d3 3 4 x\nq1 Q0 d5 4 2e0 x\nq1 Q0 d9 5 5.0 x\n"
        "q2 Q0 d7 1 1.0 x\nq2 Q0 d1 2 2.0 x\nq2 Q0 d8 3 3.0 x\nq3 Q0 d1 1 1.0 x\n"
    )
    expected = {  # of q1, whose order is d9 d3 d1 d2 d5, and of q2, whose order is d8 d1 d7
        "P@5": (0.6, 0.2),
        "RR": (0.3333, 0.5),
        "AP": (0.3583, 0.5),  # (1/3 + 2/4 + 3/5) / 4
        "Rprec": (0.5, 0.0),
        "Bpref": (0.0, 1.0),
        "R@100": (0.75, 1.0),
        "nDCG@5": (0.5103, 0.6309),  # (2/2 + 1/2.3219 + 1/2.5850) / (2 + 1/1.5850 + 1/2 + 1/2.3219), 1/1.5850
    }
    found = evaluate(read_run(tmp_path / "run"), read_qrels(tmp_path / "qrels"), expected)
    for name, (first, second) in expected.items():
        assert found.per_query["q1"][name] == pytest.approx(first, abs=5e-5), name
        assert found.per_query["q2"][name] == pytest.approx(second, abs=5e-5), name
        assert found[name] == pytest.approx((first + second) / 2, abs=5e-5), name


def test_a_query_without_results_counts_as_zero_and_is_named():
    run = {"q1": {"d1": 1.0}, "q2": {}, "unjudged": {"d1": 1.0}}
    qrels = {"q1": {"d1": 1}, "q2": {"d1": 1}, "q3": {"d1": 1}, "nothing judged": {}}
    with pytest.warns(UserWarning, match="count as 0: 'q2', 'q3'") as caught:
        result = evaluate(run, qrels, ["nDCG@10"])
    assert [each.filename for each in caught] == [__file__]
    assert result == {"nDCG@10": pytest.approx(1 / 3)}
    assert result.per_query == {"q1": {"nDCG@10": 1.0}, "q2": {"nDCG@10": 0.0}, "q3": {"nDCG@10": 0.0}}


def test_what_stands_after_the_sign_may_be_a_recall():
    run, qrels = {"q": {"x": 3.0, "a": 2.0, "b": 1.0}}, {"q": {"a": 1, "b": 1, "c": 1, "d": 1}}
    result = evaluate(run, qrels, ["IPrec@0.1", "IPrec@0", "IPrec(rel=1)@0.5", "IPrec@0.6", "IPrec@1"])
    # The largest precision at this recall or above: 2 of 3 documents, at a recall of 0.5.
    assert list(result.values()) == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0, 0])


def test_queries_whose_judgements_are_all_negative_have_no_relevant_document():
    run = {"p": {"a": 1.0, "b": 2.0}, "q": {"d": 1.0, "not-relevant-0": 0.5, "e": 0.2}}
    measures = ["nDCG@10", "AP", "Bpref", "R@100", "RR", "P@5", "NumRet", "NumRel", "Judged@10"]
    for relevance in (-1, -2, -1_000_000):
        qrels = {"p": {"a": 1, "b": 0}, "q": {"d": relevance}}
        values = evaluate(run, qrels, measures).per_query
        assert values["q"] == dict.fromkeys(measures, 0.0) | {"NumRet": 3.0, "Judged@10": 1 / 3}
        assert (values["p"]["RR"], values["p"]["NumRet"], values["p"]["NumRel"]) == (0.5, 2.0, 1.0)


def test_a_measure_has_the_same_value_beside_any_other():
    run = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}, "p": {"a": 2.0, "z": 1.0, "y": 0.5}}
    qrels = {"q": {"b": 1, "x": 1, "y": 2}, "p": {"a": 1, "w": 0, "y": 2}}
    measures = ["NumRet", "NumQ", "nDCG@2", "nDCG(gains={1: 3})@2", "AP(judged_only=True)", "AP", "RR(rel=2)"]
    measures += ["nDCG(judged_only=True)@2", "IPrec@0.3", "IPrec@0.33", "IPrec@0.4", "SetF", "SetF(beta=2.0)"]
    alone = {measure: evaluate(run, qrels, [measure])[measure] for measure in measures}
    assert alone["NumRet"] == 6.0
    for order in (measures, measures[::-1], sorted(measures)):
        assert evaluate(run, qrels, order) == alone


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("nDGC@10", "unknown measure 'nDGC@10'; did you mean 'nDCG'\\?"),
        ("IPrec@10", "cannot read measure 'IPrec@10': the recall must be from 0 to 1"),
        ("IPrec@0.331", "cannot read measure 'IPrec@0.331': the recall must be from 0 to 1, with at most two"),
        ("a b", "cannot read measure 'a b'; expected Name"),
    ],
)
def test_measures_that_cannot_be_read(measure, message):
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}}, [measure])


@pytest.mark.parametrize(
    ("run", "qrels", "measures", "message"),
    [
        ({1: {"2": 1.0}}, {"1": {"2": 1}}, ["RR"], r"received 1 \(int\) as a query id of the run; .* ids as str"),
        ({"q": {"d": 1.0}}, {"q": {"d": 5}}, ["ERR@10"], r"ERR@10 takes relevances up to 4; query 'q' has 5 \(int\)"),
        ({"q": {"d": 1.0}}, {"q": {"d": 1}}, ["Accuracy"], r"cannot compute .*Accuracy.*: float division by zero"),
        ({"q": {"d": math.nan}}, {"q": {"d": 1}}, ["RR"], "document 'd' of query 'q' in the run has score NaN"),
        ({"1": {"d": 1.0}}, {"q1": {"d": 1}}, ["RR"], "share no query: the run has '1', ..., the qrels 'q1'"),
    ],
)
def test_input_that_cannot_be_evaluated(run, qrels, measures, message):
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate(run, qrels, measures)


def test_a_run_without_a_judged_document_is_an_error_and_no_score():
    with pytest.raises(
        InvalidArgumentError, match=r"none of the 2 judged documents, such as 'A-10', 'A-11'.* has '0', '1'"
    ):
        evaluate({"q1": {"0": 2.0, "1": 1.0}}, {"q1": {"A-10": 1, "A-11": 0}})
    found = evaluate({"q1": {"A-11": 2.0}}, {"q1": {"A-10": 1, "A-11": 0}}, ["RR"])
    assert found["RR"] == 0.0  # its ids are those of the judgements, so it has earned it


@pytest.mark.parametrize("relevance", [0.7, 1.5, math.inf, np.float32(0.5)])
def test_a_relevance_between_integers_is_refused(relevance):
    with pytest.raises(
        InvalidArgumentError, match=r"relevance of document 'd' for query 'q' is not an integer: received .*; give"
    ):
        evaluate({"q": {"d": 1.0}}, {"q": {"d": relevance}}, ["nDCG@10"])


@pytest.mark.parametrize("relevance", [1_000_001, -1_000_001, 2**31 - 1, 2**32, 2**63, np.int64(-(2**63)), 1e300])
def test_a_relevance_that_takes_all_memory_or_ends_the_process_is_refused(relevance):
    with pytest.raises(InvalidArgumentError, match="document 'b' for query 'q' is not from"):
        evaluate({"q": {"a": 1.0}}, {"q": {"a": 10**6, "b": relevance}}, ["nDCG@10"])


def test_query_ids_need_not_be_numbers_for_any_measure():
    run, qrels = {"7": {"x": 2.0, "a": 1.0}, "01": {"a": 1.0}}, {"7": {"a": 1}, "01": {"a": 4}}
    expected = evaluate(run, qrels, ["ERR@10", "RR"])
    assert expected["ERR@10"] == pytest.approx((1 / 16 / 2 + 15 / 16) / 2, abs=1e-4)
    named = {"7": "q-7", "01": "q 01"}
    renamed = [{named[query]: row for query, row in table.items()} for table in (run, qrels)]
    result = evaluate(*renamed, ["ERR@10", "RR"])
    assert result == expected
    assert result.per_query == {named[query]: values for query, values in expected.per_query.items()}


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingExtraError, match=r'pip install "latelier\[eval\]"'):
        evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}})


def test_the_document_with_the_id_of_its_query_is_left_out_where_it_is_no_answer():
    run, qrels = {"a1": {"a1": 9.0, "b1": 5.0}, "a2": {"b2": 2.0, "a2": 1.0}}, {"a1": {"b1": 1}, "a2": {"b2": 1}}
    found = evaluate(run, qrels, ["RR"])
    assert found["RR"] == 1.0
    assert repr(found).endswith("\nignore_identical_ids True")
    kept = evaluate(run, qrels, ["RR"], ignore_identical_ids=False)
    assert (kept["RR"], kept.settings) == (0.75, {})
    own = {"a1": {"a1": 1}, "a2": {"b2": 1}}  # the same ids mean that they belong together
    assert evaluate(run, own, ["RR"]).per_query["a1"]["RR"] == 1.0
    assert evaluate(run, own, ["RR"], ignore_identical_ids=True).per_query["a1"]["RR"] == 0.0


def test_numbers_of_two_lists_are_the_same_ids_only_if_the_texts_agree():
    run, qrels = {"1": {"1": 9.0, "3": 5.0}, "2": {"3": 2.0}}, {"1": {"3": 1}, "2": {"3": 1}}
    with pytest.warns(UserWarning, match="1 queries of the run found a document with their id, such as '1'"):
        assert evaluate(run, qrels, ["RR"])["RR"] == 0.75
    documents = {"1": {"title": "", "text": "The moon."}, "3": {"title": "", "text": "Pears."}}
    other = Collection(documents, {"1": "what ripens", "2": "fruit"}, qrels)
    own = Collection(documents, {"1": "the  moon.", "2": "fruit"}, qrels)
    assert (other.identical_ids(), own.identical_ids()) == (False, True)
    assert Collection(documents, {"2": "fruit"}, qrels).identical_ids() is None
    assert evaluate(run, qrels, ["RR"], ignore_identical_ids=own.identical_ids())["RR"] == 1.0
