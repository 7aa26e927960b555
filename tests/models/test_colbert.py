"""What a user calls on a model, in the spellings of sentence-transformers, PyLate and neural-cherche too."""

import inspect
import logging

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder

from latelier import scores
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, Recipe
from naive import naive_maxsim

TEXTS = ["Fruits are healthy!", "", "A pear.", "the quick brown fox jumps over the lazy dog"]
GROUPS = [["Fruits are healthy!", "A pear."], [], ["two figs", "a plum", ""]]


@pytest.fixture(scope="module")
def plain(fresh, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "ours"
    fresh.save(folder)
    return MultiVectorEncoder(str(folder), device="cpu")


def assert_same(left, right):
    if isinstance(left, list):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        torch.testing.assert_close(torch.as_tensor(left), torch.as_tensor(right), rtol=1e-5, atol=2e-6)


def test_shapes_of_one_text_a_list_and_nothing(fresh):
    assert fresh.encode_query("pear").shape == (32, 16)
    assert [e.shape for e in fresh.encode_query(["pear"])] == [(32, 16)]
    assert fresh.encode_query([]) == []
    assert fresh.encode_document("").shape == (3, 16)  # [CLS] [D] [SEP]
    empty = fresh.encode_document([], packed=True)
    assert (len(empty), empty.dim, empty.is_torch) == (0, 16, True)


def test_packed_and_numpy_hold_the_same_numbers(fresh):
    expected = fresh.encode_document(TEXTS)
    packed = fresh.encode_document(TEXTS, packed=True)
    assert isinstance(packed, TokenEmbeddings)
    assert_same(list(packed), expected)
    arrays = fresh.encode_document(TEXTS, convert_to_numpy=True)
    assert all(isinstance(array, np.ndarray) for array in arrays)
    assert_same(arrays, expected)
    assert len(fresh.encode_document("one text", packed=True)) == 1
    raw = fresh.encode_document(TEXTS[:2], output_value=None)
    assert_same([item["token_embeddings"][item["attention_mask"].bool()] for item in raw], expected[:2])


def test_forward_is_of_full_length_with_zero_rows_for_padding(fresh):
    out = fresh(texts=["pear", "a, b"], query_mode=True)
    assert set(out) == {"embeddings"}
    assert out["embeddings"].shape == (2, 32, 16)
    torch.testing.assert_close(out["embeddings"].norm(dim=2), torch.ones(2, 32))  # expansion counts
    out = fresh(texts=["pear", "a, b"], query_mode=False)["embeddings"]
    assert out.shape == (2, 350, 16)
    # [CLS] [D] a , b [SEP]: the comma is read but does not count, and leaves a hole.
    assert (out.norm(dim=2) > 0)[:, :8].tolist() == [
        [True] * 4 + [False] * 4,
        [True, True, True, False, True, True, False, False],
    ]
    torch.testing.assert_close(out[1][out[1].norm(dim=1) > 0], fresh.encode_document("a, b"))
    assert fresh(texts=[])["embeddings"].shape == (0, 32, 16)
    for options in ({"is_query": False}, {"task": "document"}):
        assert_same(fresh(texts=["pear", "a, b"], **options)["embeddings"], out)


@torch.no_grad()
def test_forward_leaves_its_features_and_takes_the_task_that_is_given(fresh):
    """A document's skiplist leaves tokens out, a query has none."""
    features = fresh.tokenize(["a pear, and a fig!"], is_query=False)
    given = {name: value.clone() for name, value in features.items() if isinstance(value, torch.Tensor)}
    first, again = (fresh(features)["token_embeddings"] for _ in range(2))
    assert torch.equal(first, again)
    assert all(torch.equal(features[name], value) for name, value in given.items())
    kept = [int(fresh(features, is_query=is_query)["attention_mask"].sum()) for is_query in (True, False)]
    assert kept == [10, 8]


def test_scores_are_maxsim_of_what_encode_returns_and_differentiable(fresh):
    queries, documents = TEXTS[:3], ["Pears are good.", "x", "Nothing, at all."]
    scores = fresh.scores(queries, documents, batch_size=2, tqdm_bar=False)
    pairs = zip(fresh.encode_query(queries), fresh.encode_document(documents), strict=True)
    assert scores.detach().numpy() == pytest.approx([naive_maxsim(q, d) for q, d in pairs], abs=1e-4)
    scores.sum().backward()
    assert fresh[1].linear.weight.grad.abs().sum() > 0
    fresh.zero_grad()
    assert fresh.scores([], [], tqdm_bar=False).shape == (0,)
    assert_same(fresh.scores(queries, documents, 2, False, truncation=True, add_special_tokens=False), scores)
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] has \d+ tokens, but a document is cut at"):
        fresh.scores(["pear"], ["pear " * 400], tqdm_bar=False, truncation=False)
    with pytest.raises(InvalidArgumentError, match="scores has no argument 'truncate'; did you mean 'truncation'"):
        fresh.scores([], [], tqdm_bar=False, truncate=True)


def test_similarity_of_texts_and_of_vectors_that_do_not_fit(fresh):
    expected = scores.colbert_scores(fresh.encode_query(["fig"]), fresh.encode_document(["pear", "fig tree"]))
    assert_same(fresh.similarity("fig", ["pear", "fig tree"]), expected)
    assert_same(fresh.similarity_pairwise(["fig"], ["pear"]), expected[0, :1])
    for wrong in (np.ones((2, 5), "float32"), [np.ones((2, 5), "float32")], torch.ones(1, 2, 5)):
        with pytest.raises(InvalidArgumentError, match=f"vectors of {fresh.embedding_size} and of 5 dimensions"):
            fresh.similarity("fig", wrong)


@pytest.mark.parametrize("precision", [None, "int8"])
def test_similarity_of_packed_embeddings(fresh, precision):
    queries = fresh.encode_query(TEXTS, packed=True)
    documents = fresh.encode_document(TEXTS, packed=True, precision=precision)
    expected = scores.colbert_scores(queries, documents)
    assert_same(fresh.similarity(queries, documents), expected)
    assert_same(fresh.similarity(list(queries.to("numpy")), documents.to("numpy")), expected)
    assert_same(fresh.similarity_pairwise(queries, documents), expected.diagonal())
    if precision is None:  # int8 documents are multiplied as int8 above, and dequantised with options
        mean = expected / torch.from_numpy(queries.lengths)[:, None]
        assert_same(fresh.similarity(queries, documents, length_normalize=True), mean)


def test_tokens_name_the_rows(fresh, dense):
    assert fresh.tokens("a, pear!", is_query=False) == ["[CLS]", "[D] ", "a", "pear", "[SEP]"]
    tokens = fresh.tokens("a pear")
    assert tokens == ["[CLS]", "[Q] ", "a", "pear", "[SEP]", *["[MASK]"] * 27]
    assert len(tokens) == len(fresh.encode_query("a pear"))
    assert dense.tokens("a, pear!") == ["[CLS]", "a", ",", "pear", "!", "[SEP]"]


def test_truncation_false_refuses_to_cut(fresh):
    long = " ".join(["pear"] * 40)
    with pytest.raises(InvalidArgumentError, match=r"texts\[1\] has 43 tokens, but a query is cut at 32"):
        fresh.encode(["short", long], truncation=False)
    assert fresh.encode([long], is_query=False, truncation=False)[0].shape == (43, 16)
    with pytest.raises(InvalidArgumentError, match="a query is cut at 32"):
        fresh(texts=[long], truncation=False)


def test_a_fresh_model_says_once_that_it_wants_training(tiny, caplog):
    with caplog.at_level(logging.WARNING):
        ColBERT(tiny, device="cpu")
    messages = [record.message for record in caplog.records if record.name.startswith("latelier")]
    assert len(messages) == 1
    assert "need training" in messages[0]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        ColBERT.from_dense(tiny, device="cpu")
    assert [r for r in caplog.records if r.name.startswith(("latelier", "sentence_transformers"))] == []


def test_another_recipe_and_prompts(tiny):
    recipe = Recipe(query_marker="", document_marker="[DOC]", query_expansion=False, skiplist=("pear",))
    model = ColBERT(tiny, device="cpu", recipe=recipe)
    assert model.tokens("a pear, two", is_query=True) == ["[CLS]", "a", "pear", ",", "two", "[SEP]"]
    assert model.tokens("a pear, two", is_query=False) == ["[CLS]", "[DOC]", "a", ",", "two", "[SEP]"]
    assert model.max_length_query == 32
    model = ColBERT(tiny, device="cpu", prompts={"query": "find: "})
    assert model.tokens("pear")[:4] == ["[CLS]", "find", ":", "pear"]
    assert model.tokens("pear", is_query=False)[1] == "[D] "
    assert model.encode_query("pear", prompt="").shape == (32, 128)


def test_queries_are_expanded_to_a_least_length_and_longer_ones_read_whole(tiny, tmp_path):
    model = ColBERT(tiny, device="cpu", recipe=Recipe(query_expansion="min"), max_length_query=48)
    model.save(str(tmp_path))
    for each in (model, ColBERT(str(tmp_path), device="cpu")):
        assert [len(vectors) for vectors in each.encode_query(["pear", "pear " * 37, "pear " * 90])] == [32, 40, 48]
        assert each.max_length_query == 48
    assert ColBERT(str(tmp_path), device="cpu", max_length_query=64).encode_query("pear " * 90).shape == (64, 128)
    with pytest.raises(InvalidArgumentError, match="query_expansion='least'"):
        Recipe(query_expansion="least")


CALLS = {
    "query": lambda model: model.encode_query(TEXTS),
    "encode by position": lambda model: model.encode(
        TEXTS, "document", None, 1, False, "token_embeddings", False, None, False, None, None, None, "document"
    ),
    "processing": lambda model: model.encode_document(TEXTS, processing_kwargs={"text": {"max_length": 5}}),
    "similarity": lambda model: model.similarity(model.encode_query(TEXTS), model.encode_document(TEXTS)),
    "pairwise": lambda model: model.similarity_pairwise(model.encode_query(TEXTS), model.encode_document(TEXTS)),
    "forward": lambda model: model(model.preprocess(TEXTS, prompt="[Q] ", task="query"), task="query")[
        "token_embeddings"
    ].detach(),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_sentence_transformers_give_what_they_give_there(fresh, plain, call):
    assert_same(CALLS[call](fresh), CALLS[call](plain))


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document", "preprocess", "similarity"])
def test_arguments_stand_where_sentence_transformers_has_them(method):
    theirs = list(inspect.signature(getattr(MultiVectorEncoder, method)).parameters)[2:]
    ours = inspect.signature(getattr(ColBERT, method)).parameters
    assert list(ours)[2 : len(theirs) + 1] == [name for name in theirs if name != "kwargs"]


@pytest.mark.parametrize("task", ["query", "document"])
def test_every_spelling_of_texts_and_task(fresh, task):
    is_query = task == "query"
    expected = getattr(fresh, f"encode_{task}")(TEXTS)
    for name in ("inputs", "texts", "sentences"):
        assert_same(fresh.encode(task=task, **{name: TEXTS}), expected)
    for flag in ({"task": task}, {"is_query": is_query}, {"query_mode": is_query}):
        assert_same(fresh.encode(TEXTS, **flag), expected)
        features = fresh.tokenize(TEXTS, **flag)
        assert features["task"] == task
        assert torch.equal(features["input_ids"], fresh.preprocess(TEXTS, task=task)["input_ids"])
    both = fresh.encode(TEXTS, task=task, convert_to_numpy=True, convert_to_tensor=True)
    assert all(isinstance(matrix, torch.Tensor) for matrix in both)
    assert_same(both, expected)


@pytest.mark.parametrize("options", [{}, {"pool_factor": 2}, {"convert_to_numpy": True}, {"precision": "float16"}])
def test_groups_come_back_as_groups(fresh, options):
    encoded = fresh.encode(GROUPS, is_query=False, **options)
    assert [len(group) for group in encoded] == [2, 0, 3]
    flat = fresh.encode([text for group in GROUPS for text in group], is_query=False, **options)
    assert all((a == b).all() for a, b in zip([m for group in encoded for m in group], flat, strict=True))
    assert type(encoded[0][0]) is type(flat[0])


def test_the_calls_of_neural_cherche(tiny, tmp_path):
    queries, documents = ["Berlin", "Paris"], ["Berlin is the capital of Germany", "France is in Europe"]
    encoder = ColBERT(
        model_name_or_path=tiny, embedding_size=128, max_length_query=32, max_length_document=350, device="cpu"
    )
    scores = encoder.scores(queries=queries, documents=documents, tqdm_bar=False)
    assert scores.requires_grad
    encoder.save_pretrained(tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="embedding_size=64 is ignored"):
        reloaded = ColBERT(model_name_or_path=tmp_path / "checkpoint", embedding_size=64, device="cpu")
    assert torch.equal(reloaded.scores(queries=queries, documents=documents, tqdm_bar=False), scores)
    assert reloaded(texts=queries, query_mode=True)["embeddings"].shape == (2, 32, 128)
