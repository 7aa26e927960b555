"""What a user calls on a model: encode in all its spellings, forward, scores, tokenize, tokens, errors."""

import logging

import numpy as np
import pytest
import torch
from folders import by_hand

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, Recipe
from naive import naive_maxsim

TEXTS = ["Fruits are healthy!", "", "A pear.", "the quick brown fox jumps over the lazy dog"]


def assert_equal_lists(left, right):
    assert [tuple(a.shape) for a in left] == [tuple(b.shape) for b in right]
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-5, atol=2e-6)


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
    assert_equal_lists(list(packed), expected)
    arrays = fresh.encode_document(TEXTS, convert_to_numpy=True)
    assert all(isinstance(array, np.ndarray) for array in arrays)
    assert_equal_lists(arrays, expected)
    assert len(fresh.encode_document("one text", packed=True)) == 1


def test_batches_do_not_change_the_embeddings(dense):
    texts = [" ".join(["pear"] * n) for n in (1, 40, 3, 200, 7, 90, 2)]
    one_by_one = [dense.encode_document(text) for text in texts]
    assert_equal_lists(dense.encode_document(texts, batch_size=1), one_by_one)
    assert_equal_lists(dense.encode_document(texts, batch_size=64), one_by_one)


def test_many_texts_come_back_in_order(dense):
    texts = [f"number {i}" for i in range(2060)]  # more than are tokenised at once
    encoded = dense.encode_document(texts, packed=True)
    assert len(encoded) == 2060
    for i in (0, 2047, 2048, 2059):
        torch.testing.assert_close(encoded[i], dense.encode_document(texts[i]), rtol=1e-4, atol=1e-5)


def test_raw_outputs_are_those_of_sentence_transformers(fresh):
    raw = fresh.encode_document(TEXTS[:2], output_value=None)
    kept = [item["token_embeddings"][item["attention_mask"].bool()] for item in raw]
    assert_equal_lists(kept, fresh.encode_document(TEXTS[:2]))


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
    assert fresh(["pear"], query_mode=False)["embeddings"].shape == (1, 350, 16)
    assert fresh(texts=[])["embeddings"].shape == (0, 32, 16)


def test_scores_are_maxsim_of_what_encode_returns_and_differentiable(fresh):
    queries, documents = TEXTS[:3], ["Pears are good.", "x", "Nothing, at all."]
    scores = fresh.scores(queries, documents, batch_size=2, tqdm_bar=False)
    pairs = zip(fresh.encode_query(queries), fresh.encode_document(documents), strict=True)
    assert scores.detach().numpy() == pytest.approx([naive_maxsim(q, d) for q, d in pairs], abs=1e-4)
    scores.sum().backward()
    assert fresh[1].linear.weight.grad.abs().sum() > 0
    fresh.zero_grad()
    assert fresh.scores([], [], tqdm_bar=False).shape == (0,)


def test_tokens_name_the_rows(fresh, dense):
    assert fresh.tokens("a, pear!", is_query=False) == ["[CLS]", "[D] ", "a", "pear", "[SEP]"]
    tokens = fresh.tokens("a pear")
    assert tokens == ["[CLS]", "[Q] ", "a", "pear", "[SEP]", *["[MASK]"] * 27]
    assert len(tokens) == len(fresh.encode_query("a pear"))
    assert dense.tokens("a, pear!") == ["[CLS]", "a", ",", "pear", "!", "[SEP]"]


def test_query_lengths_of_from_dense_are_the_encoders(dense, shallow):
    assert (dense.max_length_query, dense.max_length_document) == (512, 350)
    assert dense.encode_query(" ".join(["pear"] * 600)).shape == (512, 384)
    expected = by_hand(shallow, " ".join(["pear"] * 100), marker_id=None, weight=None)
    torch.testing.assert_close(dense.encode_query(" ".join(["pear"] * 100)), expected, rtol=1e-5, atol=2e-6)


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
    assert "need training. To search without training, use ColBERT.from_dense" in messages[0]
    assert not any("Converting" in record.message for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        ColBERT.from_dense(tiny, device="cpu")
    ours = [r.message for r in caplog.records if r.name.startswith(("latelier", "sentence_transformers"))]
    assert ours == []


def test_another_recipe(tiny):
    recipe = Recipe(query_marker="", document_marker="[DOC]", query_expansion=False, skiplist=("pear",))
    model = ColBERT(tiny, device="cpu", recipe=recipe)
    assert model.tokens("a pear, two", is_query=True) == ["[CLS]", "a", "pear", ",", "two", "[SEP]"]
    assert model.tokens("a pear, two", is_query=False) == ["[CLS]", "[DOC]", "a", ",", "two", "[SEP]"]
    assert model.max_length_query == 32


def test_prompts_given_by_the_caller_are_taken_as_they_are(tiny):
    model = ColBERT(tiny, device="cpu", prompts={"query": "find: "})
    assert model.tokens("pear")[:4] == ["[CLS]", "find", ":", "pear"]
    assert model.tokens("pear", is_query=False)[1] == "[D] "
    explicit = model.encode_query("pear", prompt="")
    assert explicit.shape == (32, 128)


def test_the_calls_of_neural_cherche(minilm, tmp_path):
    queries = ["Berlin", "Paris", "London"]
    documents = [
        "Berlin is the capital of Germany",
        "Paris is the capital of France and France is in Europe",
        "London is the capital of England",
    ]
    encoder = ColBERT(
        model_name_or_path=minilm, embedding_size=128, max_length_query=32, max_length_document=350, device="cpu"
    )
    scores = encoder.scores(queries=queries, documents=documents, tqdm_bar=False)
    assert scores.requires_grad
    encoder.save_pretrained(tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="embedding_size=64 is ignored"):
        reloaded = ColBERT(model_name_or_path=tmp_path / "checkpoint", embedding_size=64, device="cpu")
    assert torch.equal(reloaded.scores(queries=queries, documents=documents, tqdm_bar=False), scores)
    assert reloaded(texts=queries, query_mode=True)["embeddings"].shape == (3, 32, 128)
    assert reloaded(texts=queries, query_mode=False)["embeddings"].shape == (3, 350, 128)


def test_save_pretrained_saves_as_save_does_in_a_subclass_too(tiny, tmp_path):
    """Trainers call `save_pretrained`."""

    class Noting(ColBERT):
        def save(self, path, *args, **kwargs):
            super().save(path, *args, **kwargs)
            (path / "note").touch()

    model = Noting.from_dense(tiny, device="cpu")
    model.save_pretrained(tmp_path / "model", layout="sentence-transformers")
    assert {"note", "modules.json"} <= {file.name for file in (tmp_path / "model").iterdir()}
