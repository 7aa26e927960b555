"""`CachedContrastive` has the value and the gradient of `Contrastive`, and keeps one mini-batch in memory."""

import numpy as np
import pytest
import torch
from naive_losses import Lexicon, features, vocabulary_texts

from latelier.errors import InvalidArgumentError
from latelier.losses import CachedContrastive, Contrastive

pytestmark = pytest.mark.processor


def small_batch(b=5, negatives=1):
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
    model, batch = Lexicon(dtype=dtype), small_batch()
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


def test_nothing_but_the_token_vectors_is_kept_for_the_gradient(colbert):
    batch = [colbert.tokenize(["what flies?"] * 12), colbert.tokenize(["a bird, or a plane"] * 12, is_query=False)]
    kept = {}
    for loss in (Contrastive(colbert, mask_duplicates=False), CachedContrastive(colbert, mini_batch_size=2)):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            loss(batch)
        kept[type(loss).__name__] = sum(sizes)
    assert kept["CachedContrastive"] < kept["Contrastive"] / 10


def test_evaluation_needs_no_gradient():
    model, batch = Lexicon(), small_batch()
    with torch.no_grad():
        value = CachedContrastive(model, mini_batch_size=2)(batch)
    assert not value.requires_grad
    assert value.item() == pytest.approx(Contrastive(model)(batch).item(), rel=1e-5)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(InvalidArgumentError, match=r"mini_batch_size=.*; expected an integer of at least 1\.$"):
        CachedContrastive(Lexicon(), mini_batch_size=size)


def test_settings_for_the_model_card():
    loss = CachedContrastive(Lexicon(), mini_batch_size=np.int64(4), dims=[6, 3])
    assert loss.get_config_dict() == {
        "score_metric": "colbert_scores",
        "size_average": True,
        "dims": (6, 3),
        "temperature": 1.0,
        "mini_batch_size": 4,
    }
    assert type(loss.get_config_dict()["mini_batch_size"]) is int
    assert "gao-etal-2021-scaling" in loss.citation
    assert "khattab-zaharia-2020-colbert" in loss.citation
