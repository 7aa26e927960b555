"""A retriever of passages: documents in, documents out, whatever they are cut into."""

import json
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from latelier import indexes
from latelier.errors import DuplicateIdError, IndexFormatError, InvalidArgumentError, UnknownIdError
from latelier.indexes import Passage
from latelier.retrieve import Passages, Retriever
from naive import naive_maxsim

WORDS = ["pears", "ripen", "in", "autumn", "and", "figs", "dry", "on", "the", "roof", "while", "moon", "is", "far"]


def long_text(seed, words=120):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(WORDS, words)
    return "".join(f"{word}{'. ' if i % 7 == 6 else ' '}" for i, word in enumerate(chosen)).strip()


TEXTS = {"a": long_text(1), "b": "Short.", 1: long_text(2, 60), "1": long_text(3, 200)}


@pytest.fixture
def filled(small):
    retriever = Retriever(small)
    retriever.add([{"id": id, "text": text, "n": i} for i, (id, text) in enumerate(TEXTS.items())], passages=32)
    return retriever


def naive_groups(retriever, query, k):
    vectors = retriever.model.encode_query(query).numpy()
    best = {}
    for id in retriever.documents:
        best[id] = max(naive_maxsim(vectors, matrix) for matrix in retriever.index.get_embeddings([id]))
    return sorted(best.items(), key=lambda pair: -pair[1])[:k]


@pytest.mark.parametrize("k", [2, 10])
def test_results_are_those_of_grouping_all_passages(filled, k):
    for query in ("figs on the roof", "the moon", "Short."):
        found = filled.search(query, k=k, mode="vectors")
        expected = naive_groups(filled, query, k)
        assert [result.id for result in found] == [id for id, _ in expected]
        assert [result.score for result in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        for result in found:
            assert TEXTS[result.id][result.start : result.end] == result.text
            assert type(result.id) in (int, str)
        known = [(id, score) for id, score in expected if id != 1]  # the ids of a run are str, and "1" is another
        run = filled.run({"q": query}, k=k, mode="vectors", filter="id IS NOT 1")["q"]
        assert list(run.items())[: len(known)] == [(id, pytest.approx(score, abs=1e-4)) for id, score in known]


@pytest.mark.parametrize("mode", ["keywords", "rerank"])
@pytest.mark.parametrize("k", [2, 2**63 - 1])
def test_every_mode_gives_the_best_passage_of_each_document(filled, mode, k):
    query = "figs on the roof"
    vectors = {}
    if mode == "rerank":
        vectors["queries"] = filled.model.encode_query([query])
    # Each passage as a document of its own.
    passages = indexes.Flat()
    for id in filled.documents:
        texts = [each.text_in(TEXTS[id]) for each in filled.documents[id].passages]
        passages.add([repr((id, i)) for i in range(len(texts))], filled.index.get_embeddings([id]), texts)
    [hits] = passages.search(texts=[query], k=1000, mode=mode, **vectors)
    best = {}
    for hit in hits:
        best.setdefault(hit.id.rpartition(", ")[0][1:], hit.score)
    found = filled.search(query, k=k, mode=mode)
    assert [(repr(result.id), pytest.approx(result.score, rel=1e-5)) for result in found] == list(best.items())[:k]


def test_many_passages_of_one_document_do_not_hide_the_others(small):
    retriever = Retriever(small)
    retriever.add([("long", "the same words again and again. " * 200), ("far", "quite another text")], passages=16)
    assert len(retriever.documents["long"].passages) > 60
    queries = ["again and again", "again"]
    found = retriever.search(queries, k=2)  # of the first, not in its 70 best passages
    assert [[result.id for result in results] for results in found] == [["long", "far"], ["far", "long"]]


def test_documents_are_removed_updated_and_skipped_as_a_whole(filled):
    with pytest.raises(DuplicateIdError, match="'a' is in the index already"):
        filled.add([("a", "again")])
    for _ in range(2):  # all of them are stored the second time
        filled.add([("a", "again"), ("c", "new")], skip_existing=True)
    assert filled.documents.ids() == ["a", "b", 1, "1", "c"]
    with pytest.raises(UnknownIdError, match="'absent'"):
        filled.remove(["a", "absent"])
    assert len(filled) == 5
    filled.remove(["a", 1])
    assert filled.documents.ids() == ["b", "1", "c"]
    filled.update([("1", "one passage now")])
    assert filled.documents["1"].passages == (Passage(0, 15),)
    filled.add(["without an id"])
    assert filled.documents.ids()[-1] == 0


@pytest.mark.parametrize("passages", [False, 32])
def test_unchanged_documents_are_left_as_they_are(small, passages):
    retriever = Retriever(small)
    records = [{"id": id, "title": "T", "text": text, "n": {"list": [1, 2.5]}} for id, text in TEXTS.items()]
    retriever.add(records, passages=passages)
    before = retriever.documents.ids()
    retriever.update(records, skip_unchanged=True)
    assert retriever.documents.ids() == before
    retriever.update([{"n": record["n"], **record} for record in reversed(records)], skip_unchanged=True)
    assert retriever.documents.ids() == before
    changes = [("a", {"text": "other text"}), ("b", {"title": "U"}), (1, {"n": {"list": [1, 2]}})]
    changes += [("a", {"n": {"list": [True, 2.5]}}), ("b", {"n": {"list": [1.0, 2.5]}})]  # equal for Python
    for id, change in changes:
        records = [{**record, **(change if record["id"] == id else {})} for record in records]
        retriever.update(records, skip_unchanged=True)
        assert retriever.documents.ids()[-1] == id  # it was written again, the others were not
        record = retriever.documents[id]
        expected = next(each for each in records if each["id"] == id)
        title = record.passages[0].title if passages else record.text[:1]
        assert (json.dumps(record.metadata), title) == (json.dumps({"n": expected["n"]}), expected["title"])


def test_filters_see_the_metadata_of_the_user(filled):
    assert {result.id for result in filled.search("pears", filter="n >= 2")} == {1, "1"}
    assert {result.id for result in filled.search("pears", filter="id = ?", parameters=("a",))} == {"a"}
    assert filled.search("pears", filter="n = 0")[0].metadata == {"n": 0}


def test_a_title_stands_before_each_passage(small):
    retriever = Retriever(small)
    text = long_text(5)
    retriever.add(
        [{"id": "t", "title": "On the moon", "text": text}, {"id": "only", "title": "Alone", "text": " "}], passages=32
    )
    record = retriever.documents["t"]
    assert len(record.passages) > 3
    assert record.text == text
    vectors = retriever.index.get_embeddings(["t"])
    for passage, matrix in zip(record.passages, vectors, strict=True):
        assert passage.text_in(text) == f"On the moon {text[passage.start : passage.end]}"
        assert len(matrix) <= 32
    found = retriever.search("On the moon", k=1)[0]
    assert found.text == f"On the moon {text[found.start : found.end]}"
    assert retriever.search("Alone", k=1)[0][2:6] == ("Alone", {}, 0, 0)
    retriever.add([{"id": "long", "title": "word " * 100, "text": text}])
    assert max(map(len, retriever.index.get_embeddings(["long"]))) <= 32


def test_an_index_keeps_its_passages(small, tmp_path):
    with Retriever(small, tmp_path / "index") as retriever:
        retriever.add([("a", long_text(1))], passages=Passages(40, 5))
    with Retriever(small, tmp_path / "index") as retriever:
        for same in (None, 40, True, Passages(40, 5), Passages(overlap=5)):
            retriever.update([("b", long_text(2))], passages=same)
        for other in (41, False, Passages(40, 6)):
            with pytest.raises(InvalidArgumentError, match="passages of 40 tokens that overlap by 5"):
                retriever.add([("c", "text")], passages=other)
        retriever.index.settings["documents"] = {"passages": {"max_tokens": -1}, "pool_factor": 1}
        with pytest.raises(IndexFormatError, match="describes its documents in a form"):
            retriever.add([("c", "text")])
    whole = Retriever(small)
    whole.add([("a", long_text(1))])
    assert whole.search("moon")[0][4:6] == (None, None)
    with pytest.raises(InvalidArgumentError, match="the index holds whole documents"):
        whole.add([("b", "text")], passages=32)
    assert "documents" not in whole.index.settings


def test_a_document_of_more_passages_than_a_chunk_is_one_commit(small, tmp_path):
    with Retriever(small, tmp_path / "index") as retriever:
        before = retriever.index.settings
        retriever.add([("a", "x"), ("long", long_text(1, 400)), ("b", "y")], passages=16, chunk_size=5)
        assert before["documents"] == {"passages": {"max_tokens": 16, "overlap": 2, "late": False}, "pool_factor": 1}
        assert retriever.documents.ids() == ["a", "long", "b"]
        assert len(retriever.documents["long"].passages) > 20


def test_ids_of_others_in_an_index_of_passages_are_documents(filled, small):
    vectors = small.encode_document(["a stranger"])
    filled.index.add(["stranger"], vectors, texts=["a stranger"])
    assert filled.search("a stranger", k=1)[0].id == "stranger"
    assert "stranger" in filled.documents.ids()
    filled.remove("stranger")
    assert len(filled) == 4


def test_pooled_documents(small):
    plain, pooled = Retriever(small), Retriever(small)
    plain.add([("a", TEXTS["a"])])
    pooled.add([("a", TEXTS["a"])], pool_factor=3, precision="float16")
    counts = [len(each.index.get_embeddings(["a"])[0]) for each in (plain, pooled)]
    assert counts[1] == 1 + (counts[0] - 1) // 3
    pooled.add([("b", "more text")])
    assert pooled.index.settings["documents"] == {"passages": None, "pool_factor": 3}
    with pytest.raises(InvalidArgumentError, match=r"pool_factor=2, .* the index have 3"):
        pooled.add([("c", "text")], pool_factor=2)
    for precision in ("float32", "float16", "bfloat16", "int8"):
        plain.add([(precision, TEXTS["a"])], precision=precision)
    a, *others = plain.index.get_embeddings(["a", "float32", "float16", "bfloat16", "int8"])
    for other, tolerance in zip(others, (0, 1e-3, 8e-3, 2e-2), strict=True):
        assert np.abs(a - other).max() <= tolerance


def test_an_explanation_is_of_the_best_passage(filled):
    for result in filled.search("figs on the roof", k=3, mode="vectors"):
        explanation = filled.explain("figs on the roof", result.id)
        assert (explanation.id, explanation.text) == (result.id, result.text)
        assert explanation.score == pytest.approx(result.score, abs=1e-3)
    assert filled.explain("figs", np.int64(1)).id == 1
    with pytest.raises(UnknownIdError, match="'absent'"):
        filled.explain("figs", "absent")


class Histories(RuleBasedStateMachine):
    model = None
    compared = 0  # documents that were compared with the dict

    @initialize()
    def begin(self):
        self.folder = tempfile.mkdtemp()
        self.retriever = Retriever(self.model, indexes.Flat(self.folder + "/index"))
        self.retriever.add([("first", long_text(0, 30))], passages=20)
        self.texts = {"first": long_text(0, 30)}

    def teardown(self):
        self.retriever.close()
        shutil.rmtree(self.folder)

    @rule(id=st.sampled_from(["a", 1, "1", 'a",', "first"]), seed=st.integers(0, 99), words=st.integers(1, 60))
    def update(self, id, seed, words):
        self.retriever.update([(id, long_text(seed, words))])
        self.texts.pop(id, None)
        self.texts[id] = long_text(seed, words)

    @rule(id=st.sampled_from(["a", 1, "1", 'a",']), seed=st.integers(0, 99))
    def add(self, id, seed):
        if id in self.texts:
            with pytest.raises(DuplicateIdError, match="is in the index already"):
                self.retriever.add([(id, "other")])
        else:
            self.retriever.add([(id, long_text(seed, 40))])
            self.texts[id] = long_text(seed, 40)

    @rule(id=st.sampled_from(["a", 1, "1", 'a",', "first"]))
    def remove(self, id):
        if id in self.texts:
            self.retriever.remove(id)
            del self.texts[id]
        else:
            with pytest.raises(UnknownIdError, match="no document has the id"):
                self.retriever.remove(id)

    @invariant()
    def holds_the_texts(self):
        if not hasattr(self, "texts"):
            return
        documents = self.retriever.documents
        assert documents.ids() == list(self.texts)
        for id, text in self.texts.items():
            record = documents[id]
            assert (type(record.id), record.text) == (type(id), text)
            assert record.passages[-1].end == len(text)
            assert len(self.retriever.index.get_embeddings([id])) == len(record.passages)
            Histories.compared += 1


def test_histories_leave_what_a_dict_would_hold(small):
    case = type("WithModel", (Histories,), {"model": small}).TestCase
    case.settings = settings(max_examples=8, stateful_step_count=8, suppress_health_check=list(HealthCheck))
    case("runTest").runTest()
    assert Histories.compared > 0
