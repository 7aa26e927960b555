"""Why a search by text does not find a document: one real document for each cause, and changes that find it."""

import itertools

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.indexes.ivf.index import Thresholds
from latelier.models import load
from latelier.retrieve import Retriever
from latelier.retrieve.why_not import _left_out_passages

MOON = "The moon is far away from the earth, and tides follow it. It has no air, no water and no weather. "
PEAR = "Pears are a healthy fruit that grows on trees."
TRUNCATED = 3 * MOON + PEAR
QUERY = "which fruit is good for your health?"


def kinds(report):
    return [cause.kind for cause in report.causes]


@pytest.fixture(scope="module")
def short_model(minilm):
    """A model that reads the first 32 tokens of a document."""
    return load(minilm, device="cpu", max_length_document=32)


@pytest.fixture(scope="module")
def encoded(short_model, docstrings):
    """Ids, vectors and texts of documents about many modules."""
    chosen = docstrings[:2400:8]
    texts = [each["text"] for each in chosen]
    return [each["id"] for each in chosen], short_model.encode_document(texts, packed=True), texts


@pytest.fixture
def documented(short_model, encoded, monkeypatch):
    """Make a retriever of these documents and an index with inverted lists."""
    monkeypatch.setattr(
        indexes.IVF, "_thresholds", Thresholds(train_tokens=1000, train_documents=1, small=0, append_tokens=100)
    )

    def make(nbits=8):
        index = indexes.IVF(nbits=nbits)
        index.add(*encoded, metadata=[{"number": i} for i in range(len(encoded[0]))])
        return Retriever(short_model, index)

    return make


def check_changes(retriever, report, query, **arguments):
    """Every change of the search finds the document."""
    changes = [change for change in report.changes if change.target == "search"]
    assert changes
    for change in changes:
        found = retriever.search(query, **{"k": report.k, **arguments, **change.arguments})
        assert report.id in [result.id for result in found]


def test_a_document_that_is_found(shared_retriever):
    report = shared_retriever.why_not("unhealthy fruit", "fruit", k=2)
    assert (report.rank, report.causes) == (1, ())
    assert str(report).startswith("'fruit' is found for 'unhealthy fruit': rank 1 (k=2), score ")


def test_an_id_that_is_not_stored(retriever):
    retriever.add([(7, "Seven.")])
    report = retriever.why_not("unhealthy fruit", "7")
    assert kinds(report) == ["not_stored"]
    assert report.causes[0].details == {"near": [7]}
    assert retriever.why_not("unhealthy fruit", "Moon").causes[0].details == {"near": ["moon"]}


def test_a_filter_of_several_expressions(shared_retriever):
    filter = {"filter": ["year >= ?", "lang = ?"], "parameters": (2020, "en")}
    report = shared_retriever.why_not("unhealthy fruit", "fruit", **filter)
    assert kinds(report) == ["filtered"]
    assert report.causes[0].details == {"expressions": ["year >= ?"], "values": {"year": 2019}}
    assert report.changes[0].arguments == {"filter": "lang = ?", "parameters": ("en",)}
    check_changes(shared_retriever, report, "unhealthy fruit", **filter)


def test_a_lower_score_by_query_tokens(shared_retriever):
    report = shared_retriever.why_not("unhealthy fruit", "moon", k=1)
    assert kinds(report) == ["scored_lower"]
    assert [each.token for each in report.differences] == shared_retriever.model.tokens("unhealthy fruit")
    explained = [shared_retriever.explain("unhealthy fruit", id) for id in ("moon", "fruit")]
    for each, mine, other in zip(report.differences, explained[0].tokens, explained[1].tokens, strict=True):
        assert each.similarity == pytest.approx(mine.similarity, abs=1e-5)
        assert each.other == pytest.approx(other.similarity, abs=1e-5)
    worst = min(report.differences, key=lambda each: each.difference)
    assert f"{worst.token} {worst.difference:+.3f}" in str(report)
    check_changes(shared_retriever, report, "unhealthy fruit")


def test_an_equal_score(retriever):
    # The same vectors: encoded in another batch, they could differ in their last digits.
    retriever.index.add(["again"], retriever.index.get_embeddings(["fruit"]), ["Bananas are healthy."])
    report = retriever.why_not("unhealthy fruit", "again", k=1)
    assert kinds(report) == ["tied"]
    assert report.changes[0].arguments == {"k": 2}


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_a_text_of_which_the_end_was_not_encoded(short_model, minilm, kind):
    others = [("fruit", "Apples and pears are eaten raw."), ("sea", "Water is salty."), ("sky", "The sky is blue.")]
    with Retriever(short_model, kind()) as retriever:
        retriever.add([*others, ("long", TRUNCATED)])
        report = retriever.why_not(QUERY, "long", k=1)
        assert kinds(report) == ["scored_lower", "truncated"]
        details = report.causes[1].details
        start, end = details["left_out"]
        assert (start, end) == (len(TRUNCATED) - details["left_out"][1] + start, len(TRUNCATED))
        read = short_model.tokens(TRUNCATED, is_query=False)
        assert TRUNCATED[:start].split()[-1].lower().rstrip(",.") == read[-2]  # before [SEP]
        assert "healthy fruit" in TRUNCATED[slice(*details["best_passage"])]
        targets = {change.target: change.arguments for change in report.changes}
        assert targets.keys() == {"search", "model", "passages"}
        check_changes(retriever, report, QUERY)
        passage = TRUNCATED[targets["passages"]["start"] : targets["passages"]["end"]]
        retriever.add([("passage", passage)])
        assert retriever.search(QUERY, k=1)[0].id == "passage"
    with Retriever(load(minilm, device="cpu", **targets["model"]), kind()) as longer:
        longer.add([*others, ("long", TRUNCATED)])
        assert longer.search(QUERY, k=1)[0].id == "long"


def test_a_text_of_which_the_left_out_end_scores_lower(short_model):
    with Retriever(short_model) as retriever:
        retriever.add([("fruit", PEAR), ("long", "Apples are eaten raw. " + 8 * MOON)])
        assert kinds(retriever.why_not(QUERY, "long", k=1)) == ["scored_lower"]


def test_a_long_text_is_examined_in_pieces(short_model):
    """64 passages that follow each other, each as long as the model reads; the report says that there are more."""
    text = 6 * "Apples are eaten raw. " + 200 * MOON
    with Retriever(short_model) as retriever:
        retriever.add([("sky", "Air and weather."), ("long", text)])
        cause = retriever.why_not("air and weather", "long", k=1).causes[-1]
        passages = _left_out_passages(retriever._model, text)
    assert len(passages) == 64
    assert {passage.tokens for passage in passages} == {30}  # and two special tokens
    assert {text[before.end : after.start] for before, after in itertools.pairwise(passages)} == {" "}
    assert cause.kind == "truncated"
    assert "(1,920 tokens, and more follow)" in cause.text


QUERIES = ["how to parse command line arguments", "read a file as text", "wait for several tasks", "round a number"]


@pytest.mark.processor
@pytest.mark.parametrize(
    ("stage", "options", "parameter"),
    [
        ("not_probed", {"nprobe": 1, "candidates": 30}, "nprobe"),
        ("not_candidate", {"nprobe": 20, "candidates": 11}, "candidates"),
        ("sign_stage", {"rerank": 11}, "rerank"),
    ],
)
def test_a_stage_of_the_search(documented, stage, options, parameter):
    retriever = documented()
    lost = []
    for query in QUERIES:
        best = [hit.id for hit in retriever.search(query, 10, effort="exact")]
        found = [hit.id for hit in retriever.search(query, 10, **options)]
        for id in best:
            report = retriever.why_not(query, id, **options)
            assert report.is_found == (id in found)
            if kinds(report) == [stage]:
                check_changes(retriever, report, query, **options)
                lost.append(list(report.changes[0].arguments))
    assert [parameter] in lost


def test_a_document_without_its_text(retriever, model):
    retriever.index.add(["bare"], model.encode_document(["The weather."], packed=True))
    report = retriever.why_not("unhealthy fruit", "bare", k=1)
    assert kinds(report) == ["scored_lower"]
    assert report.unexamined == ("truncation: its text was not stored",)
    assert "not examined: truncation" in str(report)


def test_a_document_with_pooled_vectors(retriever, model):
    retriever.index.add(["pooled"], [model.encode_document(MOON)[::2]], [MOON])
    report = retriever.why_not("unhealthy fruit", "pooled", k=1)
    assert kinds(report) == ["scored_lower"]
    assert "vectors, but its text has" in report.unexamined[0]


def test_an_exported_encoder_without_its_model(shallow, tmp_path):
    load(shallow, device="cpu", max_length_document=32).export(tmp_path / "exported")
    with Retriever(tmp_path / "exported") as retriever:
        retriever.add([("fruit", "Apples and pears are eaten raw."), ("long", TRUNCATED)])
        report = retriever.why_not(QUERY, "long", k=1)
        assert kinds(report) == ["scored_lower", "truncated"]
        assert {change.target for change in report.changes} == {"search", "passages"}


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_documents_that_are_stored_as_passages(model, kind):
    texts = {"fruit": 5 * (PEAR + " "), "moon": 5 * MOON, "sea": "Water is salty. " * 9, 7: "The sky is blue."}
    with Retriever(model, kind()) as retriever:
        retriever.add([{"id": id, "text": text, "year": 2020} for id, text in texts.items()], passages=24)
        ranking = [result.id for result in retriever.search(QUERY, k=4)]
        for rank, id in enumerate(ranking, start=1):
            for k in (1, 2, 3, 4):
                report = retriever.why_not(QUERY, id, k)
                assert (report.id, report.rank) == (id, rank if rank <= k else None)
                if rank > k:
                    assert kinds(report)[0] == "scored_lower"
                    assert report.last_id == ranking[k - 1]
                    assert report.changes[0].arguments == {"k": rank}
                    check_changes(retriever, report, QUERY)
        filtered = retriever.why_not(QUERY, "fruit", k=1, filter="year > 2021")
        assert filtered.causes[0].details == {"expressions": ["year > 2021"], "values": {"year": 2020}}
        assert filtered.changes[0].arguments == {"filter": None, "parameters": ()}
        assert retriever.why_not(QUERY, "7").causes[0].details == {"near": [7]}


def test_wrong_arguments(shared_retriever):
    with pytest.raises(InvalidArgumentError, match=r"\['a'\] \(list\) as the query; why_not is about one query"):
        shared_retriever.why_not(["a"], "fruit")
    with pytest.raises(InvalidArgumentError, match="Flat has no option 'effort'"):
        shared_retriever.why_not("a", "fruit", effort=2)
    with pytest.raises(InvalidArgumentError, match="that is not empty"):
        shared_retriever.why_not(" ", "fruit")
    with pytest.raises(InvalidArgumentError, match="as an id"):
        shared_retriever.why_not("a", None)
