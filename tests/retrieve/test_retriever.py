"""Text in, ranked documents out: adding, searching, replacing, and refusing what would give nonsense."""

import copy
import warnings

import numpy as np
import pandas
import pytest
import torch

from latelier import indexes
from latelier.errors import DuplicateIdError, IndexFormatError, InvalidArgumentError, UnknownIdError
from latelier.models import ColBERT, load
from latelier.retrieve import Result, Retriever
from latelier.scores import colbert_scores
from naive import naive_maxsim

QUERIES = ["unhealthy fruit", "capital city", "sum of numbers"]


def test_results_are_those_of_the_model_and_carry_what_was_stored(retriever, model):
    results = retriever.search(QUERIES, k=3, mode="vectors")
    assert [found[0].id for found in results] == ["fruit", "berlin", "sum"]
    assert results[1][0].text == "Berlin It is the capital of Germany."
    assert results[1][0].metadata == {"year": 2023, "lang": "de"}
    assert results[2][0].metadata == {"year": 2024}
    ids = ["fruit", "moon", "berlin", "sum"]
    texts = [record.text for record in retriever.index.get(ids)]
    scores = colbert_scores(model.encode_query(QUERIES), model.encode_document(texts)).numpy()
    for found, row in zip(results, scores, strict=True):
        assert [result.id for result in found] == [ids[j] for j in np.argsort(-row)[:3]]
        assert [result.score for result in found] == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-4)


def test_one_query_gives_one_list_and_several_a_list_each(shared_retriever, small):
    single = shared_retriever.search("unhealthy fruit", k=2)
    assert isinstance(single[0], Result)
    assert [result.id for result in single] == [hit.id for hit in shared_retriever.search(["unhealthy fruit"], k=2)[0]]
    assert len(shared_retriever.search("fruit", k=50)) == 4
    assert shared_retriever.search([]) == []
    run = shared_retriever.run({"a": "unhealthy fruit"}, k=2)
    assert run == {"a": pytest.approx({hit.id: hit.score for hit in single}, abs=1e-4)}
    empty = Retriever(small)
    assert (empty.search("fruit"), empty.search(["fruit", "moon"]), empty.run({"q": "fruit"})) == (
        [],
        [[], []],
        {"q": {}},
    )


def test_texts_are_searched_by_vectors_and_words_unless_none_are_stored(retriever, model):
    query = "healthy capital"
    by_default = retriever.search(query)
    assert by_default == retriever.search(query, mode="hybrid") != retriever.search(query, mode="vectors")
    assert (by_default.mode, retriever.search([query], mode="rerank")[0].mode) == ("hybrid", "rerank")
    run = retriever.run({"q": query})
    assert run == {"q": {result.id: result.score for result in by_default}}
    assert run.settings["mode"] == "hybrid"
    for index in (indexes.Flat(keywords=False), indexes.Flat()):
        index.add("bare", model.encode_document("Bananas are healthy."))
        bare = Retriever(model, index)
        assert bare.search(query) == bare.search(query, mode="vectors")
        assert (bare.search(query).mode, bare.run({"q": query}).settings["mode"]) == ("vectors", "vectors")
        assert bare.search(query, min_score=1.0) != bare.search(query, min_score=99.0)


def test_filters_see_the_metadata(retriever):
    assert [r.id for r in retriever.search("fruit", filter="year >= ?", parameters=(2023,))] == ["sum", "berlin"]
    assert [r.id for r in retriever.search("fruit", filter="lang = :lang", parameters={"lang": "de"})] == ["berlin"]
    assert retriever.search("fruit", filter="year > 3000") == []
    both = ["year >= ?", "lang = ?"]
    found = retriever.search("fruit", filter=both, parameters=(2023, "de"), filter_timeout=None)
    assert [r.id for r in found] == ["berlin"]


def test_texts_get_running_numbers_that_count_on(model):
    retriever = Retriever(model)
    texts = ["Bananas are healthy.", "The moon is far away."]
    retriever.add(texts)
    assert texts[retriever.search("fruit", k=1)[0].id] == texts[0]
    retriever.remove(0)
    retriever.add([(10, "Ten."), "Eleven."])
    retriever.add(iter(["Twelve."]))
    assert retriever.index.ids() == [1, 10, 11, 12]


class Overtaken(indexes.Flat):
    """An index to which others add documents while those of an `add` are encoded."""

    others = ()

    def write(self, *arguments, **options):
        others, self.others = self.others, ()
        for write in others:
            write()
        return super().write(*arguments, **options)


@pytest.mark.parametrize("passages", [None, 16])
def test_numbers_that_others_have_taken_meanwhile_are_replaced(small, passages):
    index = Overtaken()
    retriever, other = Retriever(small, index), Retriever(small, index)
    longer = "It begins like this" + " and goes on" * 20
    retriever.add(["zero"], passages=passages)
    index.others = [lambda: other.add([longer, "two"]), lambda: other.add([(7, "seven")])]
    retriever.add(["one", (9, longer), "last"])
    found = {id: retriever.documents[id].text for id in retriever.documents}
    # After 7, and after 9, which is in the same commit.
    assert found == {0: "zero", 1: longer, 2: "two", 7: "seven", 10: "one", 9: longer, 11: "last"}
    assert len(retriever.search("one", k=20)) == 7


@pytest.mark.parametrize(("passages", "skip_existing"), [(None, False), (16, True)])
def test_ids_that_others_have_taken_meanwhile_are_an_error_or_skipped(small, passages, skip_existing):
    index = Overtaken()
    retriever, other = Retriever(small, index), Retriever(small, index)
    retriever.add([("a", "first")], passages=passages)
    index.others = [lambda: other.add([("b", "theirs")])]
    documents = [("b", "mine and longer"), ("c", "third")]
    if skip_existing:
        retriever.add(documents, skip_existing=True)
    else:
        with pytest.raises(DuplicateIdError, match=r"in the index already.* with skip_existing=True"):
            retriever.add(documents)
    assert [retriever.documents[id].text for id in ("a", "b")] == ["first", "theirs"]
    retriever.add([("b", "mine and longer"), ("c", "third")], skip_existing=True)
    assert retriever.documents.ids() == ["a", "b", "c"]


def test_chunks_before_an_invalid_document_are_kept_and_nothing_of_its_own(small):
    retriever = Retriever(small)
    documents = [("a", "one"), ("b", "two"), ("c", "three"), ("d", ""), ("e", "five")]
    with pytest.raises(InvalidArgumentError, match=r"documents\[3\]: the text of 'd' is empty"):
        retriever.add(documents, chunk_size=2)
    assert retriever.index.ids() == ["a", "b"]
    with pytest.raises(DuplicateIdError, match=r"documents\[3\]: id 'b' is in the index already"):
        retriever.add([("c", "one"), ("d", "two"), ("e", "three"), ("b", "four")], chunk_size=2)
    assert retriever.index.ids() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("write", ["add", "resume", "update", "update if changed"])
@pytest.mark.parametrize("size", [2, 3])
def test_an_id_given_twice_is_an_error_at_any_distance(small, write, size):
    retriever = Retriever(small)
    documents = [("a", "one"), ("b", "two"), ("a", "three")]
    options = {
        "add": {},
        "resume": {"skip_existing": True},
        "update": {},
        "update if changed": {"skip_unchanged": True},
    }
    call = retriever.update if write.startswith("update") else retriever.add
    with pytest.raises(DuplicateIdError, match=r"documents\[2\]: id 'a' is given twice"):
        call(documents, chunk_size=size, **options[write])
    assert retriever.index.ids() == ([] if size == 3 else ["a", "b"])
    retriever.update([("a", "four"), ("b", "two")])  # in another call
    assert retriever.index.get("a").text == "four"


def test_known_ids_are_rejected_before_anything_is_encoded(retriever, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("encoded")

    monkeypatch.setattr(retriever.model, "encode_document", refuse)
    with pytest.raises(DuplicateIdError, match=r"id 'moon' is in the index already\. update"):
        retriever.add([("new", "text"), ("moon", "text")])
    with pytest.raises(InvalidArgumentError, match=r"documents\[0\] has no id"):
        retriever.update(["a text"])
    assert len(retriever) == 4


def test_an_interrupted_call_goes_on_where_it_stopped(small):
    read, documents = [], [(f"d{i}", f"text number {i}") for i in range(10)]

    def interrupted():
        yield from documents[:7]
        raise KeyboardInterrupt("stopped by hand")

    retriever = Retriever(small)
    with pytest.raises(KeyboardInterrupt, match="stopped by hand"):
        retriever.add(interrupted(), chunk_size=3)
    assert len(retriever) == 6
    encode = small.encode_document
    small.encode_document = lambda texts, **options: read.extend(texts) or encode(texts, **options)
    try:
        retriever.add(documents, chunk_size=4, skip_existing=True)
    finally:
        del small.encode_document
    assert retriever.index.ids() == [id_ for id_, _ in documents]
    assert retriever.index.get("d8").text == "text number 8"
    assert not set(read) & {text for _, text in documents[:6]}
    retriever.add([("d0", "another text")], skip_existing=True)
    assert retriever.index.get("d0").text == "text number 0"
    with pytest.raises(InvalidArgumentError, match=r"documents\[1\] has no id.* skip_existing needs"):
        retriever.add([("d0", "text"), "text"], skip_existing=True)


def test_update_replaces_and_inserts_and_remove_removes(retriever):
    retriever.update([("moon", "Apples are red."), {"id": "new", "text": "Oranges are orange.", "year": 2025}])
    assert retriever.index.get("moon").text == "Apples are red."
    assert retriever.index.get("moon").metadata == {}
    assert {result.id for result in retriever.search("apples and oranges", k=2)} == {"moon", "new"}
    retriever.remove(["moon", "new"])
    assert retriever.index.ids() == ["fruit", "berlin", "sum"]
    with pytest.raises(UnknownIdError, match="moon"):
        retriever.remove("moon")


def test_a_folder_remembers_its_model_and_is_opened_by_path_alone(tiny, tmp_path):
    folder = tmp_path / "index"
    with Retriever(tiny, folder, device="cpu", model_options={"max_length_document": np.int64(16)}) as retriever:
        retriever.add([("a", "Bananas are healthy."), ("b", "word " * 50)], passages=False)
        expected = retriever.search("fruit")
        assert repr(retriever).startswith(f"Retriever({tiny!r}, IVF(2 documents")
    with Retriever.open(folder, device="cpu", read_only=True) as opened:
        assert (opened.model.max_length_document, opened.model_options) == (16, {"max_length_document": 16})
        assert opened.search("fruit") == expected
        assert len(opened.index.get_embeddings(["b"])[0]) == 16
    with Retriever(tiny, folder, device="cpu") as again:
        assert len(again) == 2


def test_what_cannot_be_opened_by_path_alone(model, tmp_path):
    with Retriever(model, tmp_path / "nameless") as retriever:
        retriever.add(["text"])
        assert repr(retriever).startswith("Retriever(ColBERT(dim=384), IVF(")
    with pytest.raises(InvalidArgumentError, match="does not name its model"):
        Retriever.open(tmp_path / "nameless")
    with Retriever(model, tmp_path / "nameless") as retriever:
        assert len(retriever.search("text")) == 1
    with pytest.raises(IndexFormatError, match="absent"):
        Retriever.open(tmp_path / "absent")


def test_another_dimension_is_rejected_before_the_corpus_is_read(model, tiny, tmp_path):
    with Retriever(model, tmp_path / "index") as retriever:
        retriever.add(["text"])
    small = ColBERT.from_dense(tiny, projection="orthogonal", embedding_size=16, device="cpu")
    with pytest.raises(InvalidArgumentError, match="holds embeddings of 384 dimensions"):
        Retriever(small, tmp_path / "index")


def test_other_weights_of_the_same_dimension_are_rejected(tiny, tmp_path):
    with Retriever(tiny, tmp_path / "index", device="cpu") as retriever:
        retriever.add(["text"])
    other = ColBERT.from_dense(tiny, projection="orthogonal", embedding_size=48, device="cpu")
    with pytest.raises(InvalidArgumentError, match=r"filled by the model '.*' with other weights"):
        Retriever(other, tmp_path / "index")
    with indexes.open(tmp_path / "index") as index:
        with pytest.raises(InvalidArgumentError, match="with other weights"):
            Retriever(other, index)
        assert len(index) == 1  # the caller's own index stays open
        with pytest.warns(UserWarning, match=r"one sentence by this model and by the model .* the cosine -?0"):
            retriever = Retriever(other, index, same_space=True)
        assert [hit.text for hit in retriever.search("text")] == ["text"]
        with pytest.raises(InvalidArgumentError, match="with other weights"):
            retriever.add(["another"])
    smaller = ColBERT.from_dense(tiny, projection="orthogonal", embedding_size=16, device="cpu")
    with pytest.raises(InvalidArgumentError, match="holds embeddings of 48 dimensions"):
        Retriever(smaller, tmp_path / "index", same_space=True)


def test_another_model_of_the_same_space_is_named_beside_the_first(tiny, tmp_path):
    prompts = {"query": "query: ", "document": ""}
    with Retriever(tiny, tmp_path / "index", device="cpu", model_options={"prompts": prompts}) as retriever:
        retriever.add(["pears", "the moon"])
        assert retriever.document_model_name is None
        assert "document_model" not in retriever.run({"q": "pears"}).settings
        filler = retriever.model_name
    similar = ColBERT.from_dense(tiny, device="cpu", prompts=prompts)
    with torch.no_grad():
        for weights in similar.parameters():
            weights.add_(0.1 * weights.std() * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    similar.save(tmp_path / "similar")
    with pytest.raises(InvalidArgumentError, match="with other weights"):
        Retriever.open(tmp_path / "index", model=tmp_path / "similar", device="cpu")
    with pytest.raises(InvalidArgumentError, match=r"same_space=True without model="):
        Retriever.open(tmp_path / "index", same_space=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = Retriever.open(tmp_path / "index", model=tmp_path / "similar", device="cpu", same_space=True)
    with opened as retriever:
        assert retriever.document_model_name == filler
        settings = retriever.run({"q": "pears"}).settings
        assert (settings["model"], settings["document_model"]) == (str(tmp_path / "similar"), filler)
        assert "document_model" not in retriever.run({"q": "pears"}, mode="keywords").settings
    with Retriever.open(tmp_path / "index", device="cpu") as retriever:  # which keeps it for queries
        assert (retriever.model_name, retriever.document_model_name) == (str(tmp_path / "similar"), filler)
        with pytest.raises(InvalidArgumentError, match="with other weights"):
            retriever.add(["another"])
        del retriever.index.settings["queries"]
    with Retriever.open(tmp_path / "index", device="cpu") as retriever:
        assert (retriever.model_name, retriever.document_model_name) == (filler, None)
    similar.prompts = {"query": "find: ", "document": ""}
    with pytest.warns(UserWarning, match="puts 'find: ' before a query, .* filled with the prompt 'query: '"):
        Retriever(similar, tmp_path / "index", same_space=True).close()


def test_an_index_that_was_emptied_takes_another_model(model, tiny, tmp_path):
    small = load(tiny, device="cpu", max_length_document=8)
    other = ColBERT.from_dense(tiny, projection="orthogonal", embedding_size=16, device="cpu")
    with Retriever(small, tmp_path / "index") as retriever:
        retriever.add(["text"])
        retriever.remove(0)
    with Retriever(other, tmp_path / "index") as retriever:
        retriever.add(["text"])
    with Retriever(other, tmp_path / "index") as retriever:
        assert [result.id for result in retriever.search("text")] == [0]


def test_rerank_orders_texts_by_their_maxsim_score(retriever):
    texts = ["The moon is far away.", "Bananas are healthy.", "Bananas are healthy.", "Kings."]
    query = retriever.model.encode_query(["fruit"])[0]
    scores = [naive_maxsim(query, document) for document in retriever.model.encode_document(texts)]
    hits = retriever.rerank("fruit", texts)
    assert [hit.id for hit in hits] == sorted(range(4), key=lambda i: -scores[i])
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True), rel=1e-4)
    assert retriever.rerank("fruit", iter(texts), k=1) == hits[:1]
    assert retriever.rerank("fruit", []) == []
    for wrong in (lambda: retriever.rerank("fruit", texts, top_k=1), lambda: retriever.search("fruit", top_k=1)):
        with pytest.raises(InvalidArgumentError, match=r"'top_k'.*Did you mean 'k'"):
            wrong()
    for missing in (lambda: retriever.rerank("fruit", None), lambda: retriever.search(None)):
        with pytest.raises(InvalidArgumentError, match=r"received None as .*; expected a text or a list of texts"):
            missing()
    with pytest.raises(InvalidArgumentError, match=r"texts\[1\] is ' '"):
        retriever.rerank("fruit", ["Pears.", " "])


def test_rerank_gives_records_and_rows_back_in_order(retriever):
    found = [
        {"id": "moon", "text": "The moon is far away.", "year": 1969},
        {"id": "fruit", "title": "Bananas", "text": "They are healthy.", "year": 2020},
    ]
    hits = retriever.rerank("fruit", ["The moon is far away.", "Bananas They are healthy."])
    assert [hit.id for hit in hits] == [1, 0]
    ordered = [{**found[hit.id], "score": hit.score} for hit in hits]
    assert retriever.rerank("fruit", iter(found)) == ordered
    assert retriever.rerank("fruit", found, k=1) == ordered[:1]
    frame = pandas.DataFrame(found).assign(rank=[0, 1])
    rows = retriever.rerank("fruit", frame)
    assert rows["id"].tolist() == ["fruit", "moon"]
    assert rows["year"].tolist() == [2020, 1969]
    assert rows["rank"].tolist() == [0, 1]
    assert rows["score"].tolist() == [hit.score for hit in hits]
    assert list(retriever.rerank("fruit", frame.drop(columns="rank"))) == ["id", "text", "year", "title", "score"]
    with pytest.raises(InvalidArgumentError, match=r"documents\[1\]: it has no 'text'"):
        retriever.rerank("fruit", [found[0], {"id": "x"}])


def test_documents_that_do_not_count_for_a_query_leave_their_places_to_others(retriever):
    queries = {"q1": "fruit", "q2": "fruit"}
    whole = list(retriever.run(queries, 3)["q1"].items())
    excluded = {"q1": [whole[0][0], "unknown"], "other": [whole[1][0]]}
    run = retriever.run(queries, 2, excluded=excluded)
    assert list(run["q1"]) == [id for id, _ in whole[1:]]
    assert list(run["q1"].values()) == pytest.approx([score for _, score in whole[1:]])
    assert list(run["q2"]) == [id for id, _ in whole[:2]]


def test_texts_that_are_longer_than_the_model_reads_are_told(model):
    retriever = Retriever(model)
    retriever.add([("short", "pear " * 348)])
    with pytest.warns(UserWarning, match=r"1 document is .*350 tokens\): 52 tokens at their ends are not"):
        retriever.add([("long", "pear " * 400)])
    assert retriever.index.statistics().cut == 1
    assert retriever.run({"q": "pear"}).settings["documents_cut"] == 0.5
    retriever.add([("longer", "pear " * 500), ("short too", "pear")], passages=False)
    assert retriever.index.statistics().cut == 2  # of both calls
    assert [found.unread for found in retriever.search(["pear", "pear " * 600])] == [0, 90]
    assert retriever.rerank("pear", ["pear " * 349, "pear"]).cut == [0]


def test_a_query_is_read_whole_on_demand(minilm, model):
    short, usual = Retriever(minilm, device="cpu", model_options={"max_length_query": 8}), Retriever(model)
    for retriever in (short, usual):
        retriever.add(["Bananas are healthy.", "The moon is far away.", "Seven kings."])
    query = "a question that says only at its very end that it is about the moon"
    by_vectors = {"mode": "vectors"}
    assert short.search(query, **by_vectors)[0].score < usual.search(query, **by_vectors)[0].score - 1
    queries = [query, "kings"]
    for whole, every in zip(
        *(each.search(queries, mode="vectors", whole_query=True, min_mean_score=0) for each in (short, usual)),
        strict=True,
    ):
        assert [hit.id for hit in whole] == [hit.id for hit in every]
        for name in ("score", "mean_score"):
            np.testing.assert_allclose(
                [getattr(hit, name) for hit in whole], [getattr(hit, name) for hit in every], atol=1e-5
            )
    run = short.run({"q": query, "k": "kings"}, mode="vectors", whole_query=True)
    scores = [usual.search(each, mode="vectors")[0].score for each in queries]
    assert [run["q"]["1"], run["k"]["2"]] == pytest.approx(scores, abs=1e-5)
    assert (run.settings["whole_query"], run.settings["queries_cut"]) == (True, 0.0)
    explanation = short.explain(query, 1, whole_query=True)
    assert explanation.score == pytest.approx(run["q"]["1"], abs=1e-5)
    assert "moon" in [match.token for match in explanation.tokens]
    assert short.why_not(query, 1, whole_query=True).is_found
    with pytest.raises(InvalidArgumentError, match="90 tokens longer than the model can read at all, 512"):
        short.search("pear " * 600, whole_query=True)
    with pytest.raises(InvalidArgumentError, match="whole_query=True for vectors"):
        short.index.search(model.encode_query("moon"), whole_query=True)


def test_a_whole_query_that_is_longer_than_its_expansion_is_not_expanded(tiny):
    model = ColBERT(tiny, device="cpu", max_length_query=8)
    retriever = Retriever(model)
    retriever.add(["The moon."])
    short, long = "moon", "a word " * 10
    found = retriever.search([short, long], whole_query=True)
    assert found[0][0].score == pytest.approx(retriever.search(short)[0].score, abs=1e-5)
    tokens = [match.token for match in retriever.explain(long, 0, whole_query=True).tokens]
    assert tokens == ["[CLS]", "[Q] ", *["a", "word"] * 10, "[SEP]"]


def test_a_memory_budget_bounds_what_is_encoded_and_changes_no_result(model, tmp_path, monkeypatch):
    texts = [f"Document {i} is about {i % 7} pears and the moon." for i in range(60)]
    batches: list = []
    exact = indexes.Flat(tmp_path / "bounded", max_memory="80MB")
    with Retriever(model, exact) as bounded, Retriever(model) as free:
        for retriever in (bounded, free):
            write = retriever.index.write

            def written(given, *arguments, write=write, **options):
                batches.append(len(given.texts))
                return write(given, *arguments, **options)

            monkeypatch.setattr(retriever.index, "write", written)
            retriever.add(texts)
        assert batches[-1] == 60 > max(batches[:-1])
        found, expected = ([(r.id, r.text) for r in one.search("the moon", k=5)] for one in (bounded, free))
        assert found == expected
    with pytest.raises(InvalidArgumentError, match="max_memory='1GB' for an open index"):
        Retriever(model, indexes.Flat(), max_memory="1GB")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"q": "fruit"}, "as queries; expected a text"),
        ("", r"queries\[0\] is ''"),
        ("broken \ud800", r"queries\[0\] is not valid Unicode"),
    ],
)
def test_what_is_no_query(shared_retriever, texts, message):
    with pytest.raises(InvalidArgumentError, match=message):
        shared_retriever.search(texts)


def test_arguments_that_cannot_be(shared_retriever, model):
    for call, message in (
        (lambda: shared_retriever.search("fruit", 0), "received k=0"),
        (lambda: shared_retriever.search("fruit", effort=2.0), "has no option 'effort'; its options are mode"),
        (lambda: Retriever(5), "as the model; expected a ColBERT or a name"),
        (lambda: Retriever(model, device="cpu"), "a loaded model takes no device"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(shared_retriever)
    assert len(shared_retriever) == 4


def test_options_of_the_index_reach_its_search(model):
    approximate = Retriever(model, indexes.IVF())
    approximate.add(["Bananas are healthy.", "The moon is far away."])
    for options in ({"nprobe": 1, "candidates": 1}, {"effort": "exact"}):
        assert [hit.id for hit in approximate.search("fruit", 1, **options)] == [0]
        assert list(approximate.run({"q": "fruit"}, 1, **options)["q"]) == ["0"]
    for name in ("effort", "nprobe", "candidates"):
        with pytest.raises(InvalidArgumentError, match=f"received {name}=-1; expected"):
            approximate.search("fruit", **{name: -1})
