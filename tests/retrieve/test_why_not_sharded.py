"""Why a search of shards does not find a document: the reports of one index with the same documents."""

import pytest

from latelier import indexes
from latelier.models import load
from latelier.retrieve import Retriever

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
MODES = ["keywords", "hybrid", "rerank"]


@pytest.fixture(scope="module")
def retrievers(minilm, docstrings, tmp_path_factory, ray_session):
    """One index in one bit per number and the same documents in two shards; another two of exact shards."""
    model, chosen = load(minilm, device="cpu", max_length_document=32), docstrings[:1200:8]
    documents = [each["id"] for each in chosen], [each["text"] for each in chosen]
    vectors = model.encode_document(documents[1], packed=True)
    folders = tmp_path_factory.mktemp("indexes")
    made = {
        "ivf": (indexes.IVF(nbits=1), indexes.Sharded(folders / "ivf", shards=2, index="ivf", nbits=1)),
        "flat": (indexes.Flat(), indexes.Sharded(folders / "flat", shards=2, index="flat")),
    }
    for pair in made.values():
        for index in pair:
            index.add(documents[0], vectors, documents[1])
    yield {kind: tuple(Retriever(model, index) for index in pair) for kind, pair in made.items()}
    for _, sharded in made.values():
        sharded.close()


def causes(report):
    return [(cause.kind, cause.details) for cause in report.causes]


def options(kind):
    return {"effort": "exact"} if kind == "ivf" else {}


@pytest.mark.parametrize("kind", ["ivf", "flat"])
@pytest.mark.parametrize("mode", MODES)
def test_reports_by_keywords(retrievers, kind, mode):
    query, named = "how to parse command line arguments", set()
    one, sharded = retrievers[kind]
    for result in one.search(query, k=12, **options(kind))[4:]:
        expected = one.why_not(query, result.id, k=2, mode=mode, **options(kind))
        found = sharded.why_not(query, result.id, k=2, mode=mode)
        assert (found.rank, found.last_id, found.changes) == (expected.rank, expected.last_id, expected.changes)
        assert [cause.kind for cause in found.causes] == [cause.kind for cause in expected.causes]
        for mine, other in zip(found.causes, expected.causes, strict=True):
            assert mine.details == pytest.approx(other.details) if "rank" in mine.details else mine == other
        named.update(cause.kind for cause in found.causes)
    assert named


def test_a_document_far_behind_by_vectors_has_a_rank(retrievers):
    """A search with the default effort scores a part of the documents; the rank is among all of them."""
    query = "how to parse command line arguments"
    one, sharded = retrievers["ivf"]
    last = one.search(query, k=150, effort="exact")[-1].id
    [cause] = [
        cause for cause in sharded.why_not(query, last, k=2, mode="hybrid").causes if cause.kind == "vector_rank"
    ]
    assert cause.details["rank"] == len(one)


def test_rounding_is_named(retrievers):
    one, sharded = retrievers["ivf"]
    for query in ("read a file as text", "wait for several tasks", "round a number"):
        for result in one.search(query, k=20, effort="exact")[5:]:
            expected = one.why_not(query, result.id, k=5, effort="exact")
            if "quantised" not in [cause.kind for cause in expected.causes]:
                continue
            found = sharded.why_not(query, result.id, k=5, effort="exact")
            assert [cause.kind for cause in found.causes] == [cause.kind for cause in expected.causes]
            for mine, other in zip(found.causes, expected.causes, strict=True):
                assert mine.details == pytest.approx(other.details, rel=1e-4), mine.kind
            assert found.changes == expected.changes
            return
    pytest.fail("none of the documents was lost by rounding")
