"""Why a search does not find a document: each cause on small indexes, and changes that find it when tried."""

import numpy as np
import pytest

QUERY = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])


def kinds(report):
    return [cause.kind for cause in report.causes]


def check_changes(index, query, report, **arguments):
    assert report.changes
    for change in report.changes:
        arguments = {"k": report.k, **arguments, **change.arguments}
        assert report.id in [hit.id for hit in index.search(query, **arguments)[0]]
        if list(change.arguments) == ["k"]:
            fewer = {**arguments, "k": change.arguments["k"] - 1}
            assert report.id not in [hit.id for hit in index.search(query, **fewer)[0]]


@pytest.fixture
def filled(index):
    vectors = [np.array([[4.0 - i, 4.0 - i, 1.0, 1.0]]) for i in (0, 1, 2, 2, 3, 4)]
    metadata = [{"year": 2019 + i, "lang": "en" if i % 2 else "de"} for i in range(6)]
    index.add(["a", "b", "c", "tie", "d", 7], vectors, texts=["x"] * 6, metadata=metadata)
    return index


def test_a_document_that_is_found(filled):
    report = filled.why_not(QUERY, "b", k=3)
    assert report.is_found
    assert (report.rank, report.causes, report.changes) == (2, (), ())
    assert report.score == filled.search(QUERY, k=2)[0][1].score
    assert str(report) == f"'b' is found: rank 2 (k=3), score {report.score:.3f}."


def test_a_lower_score(filled):
    report = filled.why_not(QUERY, "d", k=2)
    assert kinds(report) == ["scored_lower"]
    assert (report.exact_rank, report.last_id, report.changes[0].arguments) == (5, "b", {"k": 5})
    assert report.causes[0].details == {"higher": 4, "equal": 0}
    assert sum(each.difference for each in report.differences) == pytest.approx(
        report.score - report.last_score, abs=0.02
    )
    assert [each.similarity for each in report.differences] == pytest.approx([1.0, 1.0], abs=0.02)
    assert [each.other for each in report.differences] == pytest.approx([3.0, 3.0], abs=0.02)
    check_changes(filled, QUERY, report)


def test_an_equal_score_of_a_document_that_was_added_earlier(filled, request):
    if request.node.callspec.id == "sharded-ivf":
        pytest.skip("each shard has codes of its own")
    report = filled.why_not(QUERY, "tie", k=3)
    assert kinds(report) == ["tied"]
    assert report.causes[0].details == {"higher": 2, "equal": 1}
    assert report.score == report.last_score
    check_changes(filled, QUERY, report)
    assert filled.why_not(QUERY, "c", k=3).rank == 3


def test_an_id_that_is_not_stored(filled):
    for id, near in [("A", ["a"]), (" b", ["b"]), ("7", [7]), ("tye", ["tie"]), ("nothing", []), (8, [])]:
        report = filled.why_not(QUERY, id, k=2)
        assert kinds(report) == ["not_stored"]
        assert report.causes[0].details == {"near": near}
        assert (report.changes, report.score) == ((), None)
        assert all(repr(each) in str(report) for each in [id, *near])


@pytest.mark.parametrize(
    ("filter", "parameters", "expressions", "values", "change"),
    [
        ("year >= 2020", (), ["year >= 2020"], {"year": 2019}, {"filter": None, "parameters": ()}),
        ("Year > ? AND lang = ?", (2020, "en"), ["Year > ? AND lang = ?"], {"year": 2019, "lang": "de"}, None),
        (
            ["lang = ?", "year IN (?, ?)"],
            ("de", 1, 2),
            ["year IN (?, ?)"],
            {"year": 2019},
            {"filter": "lang = ?", "parameters": ("de",)},
        ),
        (
            ["lang = :l", "year = :y"],
            {"l": "en", "y": 2019},
            ["lang = :l"],
            {"lang": "de"},
            {"filter": "year = :y", "parameters": {"l": "en", "y": 2019}},
        ),
    ],
)
def test_a_filter_that_excludes_it(filled, filter, parameters, expressions, values, change):
    report = filled.why_not(QUERY, "a", k=1, filter=filter, parameters=parameters)
    assert kinds(report) == ["filtered"]
    assert report.causes[0].details == {"expressions": expressions, "values": values}
    if change:
        assert report.changes[0].arguments == change
    check_changes(filled, QUERY, report, filter=filter, parameters=parameters)


def test_a_filter_and_a_lower_score(filled):
    report = filled.why_not(QUERY, "d", k=1, filter="lang = 'en'")
    assert kinds(report) == ["filtered", "scored_lower"]
    assert report.changes[0].arguments == {"filter": None, "parameters": (), "k": 5}
    check_changes(filled, QUERY, report, filter="lang = 'en'")


def test_any_document_of_random_indexes(index):
    rng = np.random.default_rng(0)
    documents = [rng.integers(-2, 3, size=(rng.integers(1, 5), 4)).astype("float32") for _ in range(60)]  # many ties
    index.add(range(60), documents, metadata=[{"n": i % 3} for i in range(60)])
    for round in range(30):
        query = rng.integers(-2, 3, size=(2, 4)).astype("float32") + 1e-3
        k, id = int(rng.integers(1, 30)), int(rng.integers(60))
        filter = [None, "n = 1", ["n < 2", "n > 0"]][round % 3]
        report = index.why_not(query, id, k, filter=filter)
        assert report.is_found == (id in [hit.id for hit in index.search(query, k, filter=filter)[0]])
        assert report.is_found == (not report.causes)
        assert ("filtered" in kinds(report)) == (filter is not None and id % 3 != 1)
        if not report.is_found:
            check_changes(index, query, report, filter=filter)
