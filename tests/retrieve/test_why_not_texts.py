"""Why a search by text does not find a document: by tokens, in passages, by mode, and in texts that were cut off."""

import re

import numpy as np
import pytest

from latelier import indexes
from latelier.models import load
from latelier.retrieve import Retriever

MOON = "The moon is far away from the earth, and tides follow it. It has no air, no water and no weather. "
PEAR = "Pears are a healthy fruit that grows on trees."
TRUNCATED = 3 * MOON + PEAR
QUERY = "which fruit is good for your health?"


def kinds(report):
    return [cause.kind for cause in report.causes]


def check_changes(retriever, report, query, **arguments):
    """The changes find the document in a search of these arguments."""
    changes = [change for change in report.changes if change.target == "search"]
    assert changes
    for change in changes:
        found = retriever.search(query, **{"k": report.k, **arguments, **change.arguments})
        assert report.id in [result.id for result in found]


@pytest.fixture(scope="module")
def short_model(minilm):
    return load(minilm, device="cpu", max_length_document=32)


def test_documents_that_are_found_missing_or_filtered(shared_retriever):
    report = shared_retriever.why_not("unhealthy fruit", "fruit", k=2)
    assert (report.rank, report.causes) == (1, ())
    report = shared_retriever.why_not("unhealthy fruit", "Moon")
    assert (kinds(report), report.causes[0].details) == (["not_stored"], {"near": ["moon"]})
    filter = {"filter": ["year >= ?", "lang = ?"], "parameters": (2020, "en")}
    report = shared_retriever.why_not("unhealthy fruit", "fruit", **filter)
    assert kinds(report) == ["filtered"]
    assert report.causes[0].details == {"expressions": ["year >= ?"], "values": {"year": 2019}}
    check_changes(shared_retriever, report, "unhealthy fruit", **filter)


def test_a_lower_score_by_query_tokens(shared_retriever):
    report = shared_retriever.why_not("unhealthy fruit", "moon", k=1, mode="vectors")
    assert kinds(report) == ["scored_lower"]
    by_default = shared_retriever.why_not("unhealthy fruit", "moon", k=1)
    assert (by_default.mode, kinds(by_default)) == ("hybrid", ["no_query_word", "vector_rank"])
    assert by_default.differences == report.differences
    assert "by query token" in str(by_default)
    check_changes(shared_retriever, by_default, "unhealthy fruit")
    assert [each.token for each in report.differences] == shared_retriever.model.tokens("unhealthy fruit")
    explained = [shared_retriever.explain("unhealthy fruit", id) for id in ("moon", "fruit")]
    for each, mine, other in zip(report.differences, explained[0].tokens, explained[1].tokens, strict=True):
        assert each.similarity == pytest.approx(mine.similarity, abs=1e-5)
        assert each.other == pytest.approx(other.similarity, abs=1e-5)
    worst = min(report.differences, key=lambda each: each.difference)
    assert f"{worst.token} {worst.difference:+.3f}" in str(report)
    check_changes(shared_retriever, report, "unhealthy fruit", mode="vectors")


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_a_text_of_which_the_end_was_not_encoded(short_model, minilm, kind):
    others = [("fruit", "Apples and pears are eaten raw."), ("sea", "Water is salty."), ("sky", "The sky is blue.")]
    with Retriever(short_model, kind()) as retriever:
        retriever.add([*others, ("long", TRUNCATED)], passages=False)
        report = retriever.why_not(QUERY, "long", k=1, mode="vectors")
        assert kinds(report) == ["scored_lower", "truncated"]
        by_default = retriever.why_not(QUERY, "long", k=1)
        assert (by_default.mode, kinds(by_default)) == ("hybrid", ["vector_rank", "truncated"])
        assert by_default.causes[1] == report.causes[1]
        assert {change.target for change in by_default.changes} == {"search"}
        check_changes(retriever, by_default, QUERY)
        details = report.causes[1].details
        start, end = details["left_out"]
        assert end == len(TRUNCATED)
        read = short_model.tokens(TRUNCATED, is_query=False)
        assert TRUNCATED[:start].split()[-1].lower().rstrip(",.") == read[-2]  # before [SEP]
        assert "healthy fruit" in TRUNCATED[slice(*details["best_passage"])]
        targets = {change.target: change.arguments for change in report.changes}
        assert targets.keys() == {"search", "model", "passages"}
        check_changes(retriever, report, QUERY, mode="vectors")
        retriever.add([("passage", TRUNCATED[targets["passages"]["start"] : targets["passages"]["end"]])])
        assert retriever.search(QUERY, k=1)[0].id == "passage"
        retriever.add([("elsewhere", "Apples are eaten raw. " + 8 * MOON)])  # whose end scores lower
        assert kinds(retriever.why_not(QUERY, "elsewhere", k=1, mode="vectors")) == ["scored_lower"]
    with Retriever(load(minilm, device="cpu", **targets["model"]), kind()) as longer:
        longer.add([*others, ("long", TRUNCATED)])
        assert longer.search(QUERY, k=1)[0].id == "long"


def test_texts_that_cannot_be_examined(retriever, model):
    retriever.index.add(["bare"], model.encode_document(["The weather."], packed=True))
    retriever.index.add(["pooled"], [model.encode_document(MOON)[::2]], [MOON])
    for id, reason in (("bare", "its text was not stored"), ("pooled", "it has .* vectors, but its text has")):
        report = retriever.why_not("unhealthy fruit", id, k=1, mode="vectors")
        assert kinds(report) == ["scored_lower"]
        for each in (report, retriever.why_not("unhealthy fruit", id, k=1)):
            assert re.search(f"not examined: truncation: {reason}", str(each))


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_documents_that_are_stored_as_passages(model, kind):
    texts = {"fruit": 5 * (PEAR + " "), "moon": 5 * MOON, "sea": "Water is salty. " * 9, 7: "The sky is blue."}
    with Retriever(model, kind()) as retriever:
        retriever.add([{"id": id, "text": text, "year": 2020} for id, text in texts.items()], passages=24)
        by_vectors = {"mode": "vectors"}
        ranking = [result.id for result in retriever.search(QUERY, k=4, **by_vectors)]
        for rank, id in enumerate(ranking, start=1):
            for k in (1, 2, 3, 4):
                report = retriever.why_not(QUERY, id, k, **by_vectors)
                assert (report.id, report.rank) == (id, rank if rank <= k else None)
                if rank > k:
                    assert kinds(report)[0] == "scored_lower"
                    assert report.last_id == ranking[k - 1]
                    assert report.changes[0].arguments == {"k": rank}
                    assert "stored as passages" in report.unexamined[-1]
                    check_changes(retriever, report, QUERY, **by_vectors)
        filtered = retriever.why_not(QUERY, "fruit", k=1, filter="year > 2021")
        assert filtered.causes[0].details == {"expressions": ["year > 2021"], "values": {"year": 2020}}
        assert filtered.changes[0].arguments == {"filter": None, "parameters": ()}
        assert retriever.why_not(QUERY, "7").causes[0].details == {"near": [7]}


WORDS = "bananas fruit"
TEXTS = {
    "apple": "Apples are eaten raw. ",
    "fruit": "Bananas are healthy. ",
    "moon": "The moon is far from the earth. ",
    "tree": "Pears are a fruit that grows on trees. ",
    7: "Bananas and bananas. ",
}


def make(model, kind=indexes.Flat, passages=None):
    retriever = Retriever(model, kind())
    documents = [{"id": id, "text": 6 * text, "year": 2020 + i} for i, (id, text) in enumerate(TEXTS.items())]
    retriever.add(documents, passages=passages)
    return retriever


@pytest.mark.parametrize(("kind", "passages"), [(indexes.Flat, None), (indexes.IVF, None), (indexes.Flat, 24)])
def test_reports_of_modes_agree_with_searches(model, kind, passages):
    """The document is found or not as the search says, ranks are those of the two sides, and every change finds it."""
    retriever = make(model, kind, passages)
    sides = {
        "keyword_rank": [result.id for result in retriever.search(WORDS, 9, mode="keywords")],
        "vector_rank": [result.id for result in retriever.search(WORDS, 9, mode="vectors")],
    }
    seen = set()
    for mode in ("keywords", "hybrid", "rerank"):
        ranking = [result.id for result in retriever.search(WORDS, 9, mode=mode)]
        for id in TEXTS:
            report = retriever.why_not(WORDS, id, 1, mode=mode)
            assert report.rank == (1 if ranking[0] == id else None)
            if report.is_found:
                continue
            assert (report.last_id, report.score) == (ranking[0], None)
            for cause in report.causes:
                seen.add((mode, cause.kind))
                if cause.kind == "no_query_word":
                    assert id not in sides["keyword_rank"]
                    assert cause.details == {"words": ["bananas", "fruit"]}
                else:
                    among = ranking if mode == "rerank" else sides[cause.kind]
                    assert (cause.details["rank"], cause.details["documents"]) == (among.index(id) + 1, len(among))
            check_changes(retriever, report, WORDS, mode=mode)
    both = {(mode, kind) for mode in ("keywords", "hybrid") for kind in ("no_query_word", "keyword_rank")}
    assert both | {("hybrid", "vector_rank"), ("rerank", "no_query_word"), ("rerank", "vector_rank")} == seen


def test_a_hybrid_search_that_gives_up_early_finds_more_with_a_higher_effort(tiny):
    random = np.random.default_rng(0)
    vectors = [random.standard_normal((8, 48)).astype("float32") for _ in range(2000)]
    with Retriever(tiny, indexes.IVF(), device="cpu") as retriever:
        retriever.index.add(range(2000), vectors, [f"Ship {n % 10}." for n in range(2000)])
        quick, whole = (retriever.search("ship 7", 5, effort=effort) for effort in (0.05, "exact"))
        [lost, *_] = {result.id for result in whole} - {result.id for result in quick}
        report = retriever.why_not("ship 7", lost, 5, effort=0.05)
        assert (report.mode, report.is_found) == ("hybrid", False)
        assert {"effort": "exact"} in [change.arguments for change in report.changes]
        check_changes(retriever, report, "ship 7", effort=0.05)
