"""`Contrastive` against a loop over single documents, and what it refuses and warns of."""

import warnings

import pytest
import torch
from naive_losses import Lexicon, features, naive_contrastive, score_each, vocabulary_texts

from latelier.losses import CachedContrastive, Contrastive

pytestmark = pytest.mark.processor

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2}


def small_batch(negatives, model, b=3, seed=0):
    queries = vocabulary_texts(b, seed, lowest=4)
    documents = [vocabulary_texts(1 + negatives, seed + 10 + i) for i in range(b)]
    columns = [features([documents[i][j] for i in range(b)], "document") for j in range(1 + negatives)]
    all_documents = [model.one(document, "document") for group in documents for document in group]
    return [features(queries, "query"), *columns], [score_each(model.one(q, "query"), all_documents) for q in queries]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_value_and_gradient_equal_the_loop(negatives, mean, temperature, dtype):
    model = Lexicon(dtype=dtype)
    batch, scores = small_batch(negatives, model)
    loss = Contrastive(model, size_average=mean, temperature=temperature)(batch)
    expected = naive_contrastive(scores, 1 + negatives, temperature, mean)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    loss_gradient, expected_gradient = (torch.autograd.grad(x, model.table.weight)[0] for x in (loss, expected))
    scale = expected_gradient.abs().max()
    assert scale > 1e-2
    torch.testing.assert_close(loss_gradient / scale, expected_gradient / scale, rtol=0, atol=TOLERANCE[dtype])


def test_nothing_to_contrast_is_said_once():
    model = Lexicon()
    batch = [features([[4]], "query"), features([[5]], "document")]
    loss = Contrastive(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert loss(batch).item() == 0
        assert loss(batch).item() == 0
        assert Contrastive(model)([*batch, features([[6]], "document")]).item() > 0
    assert [str(w.message).split(",")[0] for w in caught] == ["the batch holds one query and one document"]


def small_batch_cached_contrastive(b=5, negatives=1):
    queries = features(vocabulary_texts(b, 0, lowest=4), "query")
    return [queries, *[features(vocabulary_texts(b, 1 + j), "document") for j in range(1 + negatives)]]


def gradients(loss, batch, seed=None):
    loss.zero_grad()
    if seed is not None:
        torch.manual_seed(seed)
    value = loss(batch)
    value.backward()
    return value.item(), [p.grad.clone() for p in loss.parameters() if p.grad is not None]


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_value_and_gradient_are_those_of_contrastive(size, mean, dtype):
    model, batch = Lexicon(dtype=dtype), small_batch_cached_contrastive()
    value, (gradient,) = gradients(CachedContrastive(model, size_average=mean, mini_batch_size=size), batch)
    expected, (wanted,) = gradients(Contrastive(model, size_average=mean), batch)
    assert value == pytest.approx(expected, rel=1e-5)
    scale = wanted.abs().max()
    assert scale > 1e-2
    torch.testing.assert_close(gradient / scale, wanted / scale, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "gradient-checkpointing"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_a_real_model_gets_the_same_gradient(colbert, autocast, checkpointing):
    if checkpointing:
        colbert.gradient_checkpointing_enable()
        colbert.train().apply(without_dropout)
    texts = ["are fruits healthy?", "how do planes fly?", "where is Rome?"]
    documents = ["Fruits (and berries) are good for your health.", "Wings push air down.", "Rome is in Italy."]
    batch = [colbert.tokenize(texts), colbert.tokenize(documents, is_query=False)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value, found = gradients(CachedContrastive(colbert, mini_batch_size=1), batch)
        expected, wanted = gradients(Contrastive(colbert), batch)
    assert value == pytest.approx(expected, rel=5e-2 if autocast else 1e-4)
    assert len(found) == len(wanted) > 30
    found, wanted = (torch.cat([g.flatten() for g in parts]) for parts in (found, wanted))
    assert torch.cosine_similarity(found, wanted, dim=0) > (0.99 if autocast else 0.99999)
    assert found.norm() / wanted.norm() == pytest.approx(1, rel=0.05 if autocast else 1e-4)


def without_dropout(module):
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    if hasattr(module, "dropout_prob"):
        module.dropout_prob = 0.0


def test_the_second_run_of_a_mini_batch_has_the_dropout_of_the_first(colbert):
    class Recorder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.seen = colbert.train(), []

        def forward(self, features, task):
            out = self.model(features, task=task)
            self.seen.append((task, out["token_embeddings"].detach().clone()))
            return out

    model = Recorder()
    batch = [colbert.tokenize(["what flies?", "what is red?"]), colbert.tokenize(["a bird", "blood"], is_query=False)]
    CachedContrastive(model, mini_batch_size=1)(batch).backward()
    assert len(model.seen) == 8
    first, second = model.seen[:4], model.seen[4:]
    for task, vectors in first:
        twins = [other for side, other in second if side == task and torch.equal(other, vectors)]
        assert len(twins) == 1
    assert not torch.equal(first[0][1], first[1][1])
