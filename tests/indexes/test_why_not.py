"""Why a search does not find a document: each cause on small indexes, and changes that find it when tried."""

import numpy as np
import pytest

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes.why_not import not_stored_cause

QUERY = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])


def kinds(report):
    return [cause.kind for cause in report.causes]


def check_changes(index, query, report, **arguments):
    """Every change of the search finds the document, and the smallest k is the smallest."""
    assert report.changes
    for change in report.changes:
        arguments = {"k": report.k, **arguments, **change.arguments}
        assert report.id in [hit.id for hit in index.search(query, **arguments)[0]]
        if list(change.arguments) == ["k"]:
            fewer = {**arguments, "k": change.arguments["k"] - 1}
            assert report.id not in [hit.id for hit in index.search(query, **fewer)[0]]


@pytest.fixture
def filled(index):
    """Five documents, one token each, that match the query less and less, and one that ties with the third."""
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


def test_an_equal_score_of_a_document_that_was_added_earlier(filled):
    report = filled.why_not(QUERY, "tie", k=3)
    assert kinds(report) == ["tied"]
    assert report.causes[0].details == {"higher": 2, "equal": 1}
    assert report.score == report.last_score
    check_changes(filled, QUERY, report)
    assert filled.why_not(QUERY, "c", k=3).rank == 3


@pytest.mark.parametrize(
    ("id", "near"), [("A", ["a"]), (" b", ["b"]), ("7", [7]), ("tye", ["tie"]), ("nothing", []), (8, [])]
)
def test_an_id_that_is_not_stored(filled, id, near):
    report = filled.why_not(QUERY, id, k=2)
    assert kinds(report) == ["not_stored"]
    assert report.causes[0].details == {"near": near}
    assert report.changes == ()
    assert report.score is None
    assert repr(id) in str(report)
    assert all(repr(each) in str(report) for each in near)


def test_an_empty_index(index):
    assert kinds(index.why_not(QUERY, "a")) == ["not_stored"]


def test_removed_documents_are_not_stored(filled):
    filled.remove("b")
    assert kinds(filled.why_not(QUERY, "b")) == ["not_stored"]
    assert filled.why_not(QUERY, "c", k=2).rank == 2


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
        ("lang IS NULL", (), ["lang IS NULL"], {"lang": "de"}, None),
        ("text = 'y'", (), ["text = 'y'"], {}, None),
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


def test_a_filter_on_a_field_that_the_document_does_not_have(filled):
    filled.add(["new"], [np.ones((1, 4))])
    report = filled.why_not(QUERY, "new", filter="year > 2000")
    assert report.causes[0].details["values"] == {"year": None}
    assert "no year" in str(report)


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


def test_wrong_arguments(filled):
    with pytest.raises(InvalidArgumentError, match="received 2 queries; why_not is about the search of one"):
        filled.why_not(TokenEmbeddings.from_list([QUERY, QUERY]), "a")
    with pytest.raises(InvalidArgumentError, match="k=0"):
        filled.why_not(QUERY, "a", k=0)
    with pytest.raises(InvalidArgumentError, match="as an id"):
        filled.why_not(QUERY, 1.5)
    with pytest.raises(EmbeddingsError, match="dim"):
        filled.why_not(np.ones((1, 3)), "a")
    with pytest.raises(InvalidArgumentError, match="unknown field"):
        filled.why_not(QUERY, "a", filter="colour = 1")


def test_near_ids_of_many_are_those_that_differ_in_case_or_type():
    ids = [f"document-{i}" for i in range(60_000)]
    assert not_stored_cause("Document-5", ids).details == {"near": ["document-5"]}
    assert not_stored_cause("documnt-5", ids).details == {"near": []}


def test_notebooks_show_a_table_with_escaped_texts(filled):
    filled.add(["<b>"], [-np.ones((1, 4))])
    page = filled.why_not(QUERY, "<b>", k=1)._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "scored_lower" in page
    assert "k=7" in page


def test_the_k_that_is_proposed_is_the_smallest_where_a_smaller_one_selects_fewer_candidates():
    rng = np.random.default_rng(1)
    topics = rng.standard_normal((200, 48))

    def near(centres, noise):
        vectors = centres + noise * rng.standard_normal(centres.shape)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("float32")

    documents = [near(topics[rng.choice(200, 3)][rng.integers(0, 3, rng.integers(30, 51))], 0.8) for _ in range(4000)]
    with indexes.IVF(nbits=1) as index:
        index.add(range(4000), documents)
        for document in documents[::200]:
            query = near(document[:8], 0.3)
            ranking = [hit.id for hit in index.search(query, k=4000, effort="exact")[0]]
            for id_ in (ranking[15], ranking[25], ranking[60]):
                report = index.why_not(query, id_, k=10)
                if not report.is_found:
                    check_changes(index, query, report)
