"""Why a search with keywords does not find a document: the side that misses it, and changes that find it."""

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.retrieve import Retriever

QUERY = "bananas fruit"
TEXTS = {
    "apple": "Apples are eaten raw. ",
    "fruit": "Bananas are healthy. ",
    "moon": "The moon is far from the earth. ",
    "tree": "Pears are a fruit that grows on trees. ",
    7: "Bananas and bananas. ",
}


def kinds(report):
    return [cause.kind for cause in report.causes]


def make(model, kind, passages=None):
    retriever = Retriever(model, kind())
    documents = [{"id": id, "text": 6 * text, "year": 2020 + i} for i, (id, text) in enumerate(TEXTS.items())]
    retriever.add(documents, **({"passages": passages} if passages else {}))
    return retriever


@pytest.mark.parametrize("passages", [None, 24])
@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_reports_agree_with_searches(model, kind, passages):
    """The document is found or not as the search says, ranks are those of the two sides, and every change finds it."""
    retriever = make(model, kind, passages)
    sides = {
        "keyword_rank": [result.id for result in retriever.search(QUERY, 9, mode="keywords")],
        "vector_rank": [result.id for result in retriever.search(QUERY, 9)],
    }
    seen = set()
    for mode in ("keywords", "hybrid", "rerank"):
        ranking = [result.id for result in retriever.search(QUERY, 9, mode=mode)]
        for id in TEXTS:
            report = retriever.why_not(QUERY, id, 1, mode=mode)
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
            assert report.changes
            for change in report.changes:
                assert id in [x.id for x in retriever.search(QUERY, **{"k": 1, "mode": mode, **change.arguments})]
    both = {(mode, kind) for mode in ("keywords", "hybrid") for kind in ("no_query_word", "keyword_rank")}
    assert both | {("hybrid", "vector_rank"), ("rerank", "no_query_word"), ("rerank", "vector_rank")} == seen


def test_a_document_below_the_depth_of_reranking(model):
    retriever = make(model, indexes.Flat)
    found = [result.id for result in retriever.search(QUERY, 9, mode="keywords")]
    report = retriever.why_not(QUERY, found[2], 1, mode="rerank", depth=1)
    assert kinds(report) == ["keyword_rank"]
    assert report.causes[0].text.endswith("; the best 1 are ordered by vectors")
    deeper = [change.arguments["depth"] for change in report.changes if "depth" in change.arguments]
    assert deeper in ([], [3])


def test_a_side_without_weight_is_no_cause(model):
    retriever = make(model, indexes.Flat)
    assert kinds(retriever.why_not(QUERY, "moon", 1, mode="hybrid", weights=(1, 0))) == ["vector_rank"]
    assert kinds(retriever.why_not(QUERY, "moon", 1, mode="hybrid", weights=(0, 1))) == ["no_query_word"]


def test_filters_and_unknown_ids(model):
    retriever = make(model, indexes.Flat, passages=24)
    report = retriever.why_not(QUERY, "fruit", 1, mode="keywords", filter="year > 2023")
    assert kinds(report)[0] == "filtered"
    for change in report.changes:
        found = retriever.search(QUERY, **{"k": 1, "mode": "keywords", "filter": "year > 2023", **change.arguments})
        assert "fruit" in [result.id for result in found]
    assert retriever.why_not(QUERY, "7", mode="keywords").causes[0].details == {"near": [7]}


def test_what_has_no_words(model):
    retriever = make(model, indexes.Flat)
    report = retriever.why_not("?!", "moon", 1, mode="keywords")
    assert (report.causes[0].text, report.causes[0].details) == ("the query has no word", {"words": []})
    retriever.index.add(["bare"], model.encode_document(["Bananas."], packed=True))
    report = retriever.why_not(QUERY, "bare", 1, mode="keywords")
    assert str(report).splitlines()[:2] == [
        "'bare' is not found for 'bananas fruit' with k=1 and mode='keywords'; the last hit 'tree' scores "
        f"{report.last_score:.3f}.",
        "  no_query_word: it was stored without its text",
    ]


def test_wrong_modes(model, shared_retriever):
    with pytest.raises(InvalidArgumentError, match="received mode='words'"):
        shared_retriever.why_not("fruit", "moon", mode="words")
    with pytest.raises(InvalidArgumentError, match="weights"):
        shared_retriever.why_not("fruit", "moon", mode="hybrid", weights=(0, 0))
    without = Retriever(model, indexes.Flat(keywords=False))
    without.add([("a", "Bananas are healthy.")])
    with pytest.raises(LatelierError, match=r"compact\(keywords=True\)"):
        without.why_not("fruit", "a", mode="hybrid")
