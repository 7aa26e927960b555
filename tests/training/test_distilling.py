"""Distilling a layer: pooled documents, and fewer dimensions, rank more like the whole than by Ward's method or PCA."""

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.scores import colbert_scores
from latelier.training import distill_head, distill_pooling
from latelier.training.distilling import _Batch, _loss

STEPS = {"steps": 60, "batch_size": 16, "seed": 3}


@pytest.fixture(scope="module")
def texts(docstrings):
    return [document["text"][:400] for document in docstrings[:4000:3] if len(document["text"]) > 200]


@pytest.fixture(scope="module")
def whole(shallow, texts):
    """Unpooled vectors of documents, and of queries made of the ends of others."""
    model = ColBERT.from_dense(shallow, device="cpu")
    return model.encode_document(texts, packed=True), model.encode_query([text[-80:] for text in texts], packed=True)


@pytest.fixture(scope="module")
def distilled(shallow, whole):
    model = ColBERT.from_dense(shallow, device="cpu").compress_documents(4)
    documents, queries = whole
    return distill_pooling(model, documents[100:], queries[100:], **STEPS)


def same_first(model, texts, whole) -> float:
    """Share of queries with the first document that unpooled vectors give; the texts were not trained with."""
    documents, queries = whole
    scores = colbert_scores(queries[:100], model.encode_document(texts[:100], packed=True))
    return (scores.argmax(dim=1) == colbert_scores(queries[:100], documents[:100]).argmax(dim=1)).float().mean().item()


def test_rankings_come_closer_to_those_of_unpooled_documents(shallow, distilled, texts, whole):
    ward = ColBERT.from_dense(shallow, device="cpu").compress_documents(4)
    assert same_first(distilled, texts, whole) > same_first(ward, texts, whole) + 0.02
    assert not distilled.training


def test_the_encoder_and_queries_stay_as_they_were(distilled, texts, whole):
    queries = distilled.encode_query([text[-80:] for text in texts[:5]], packed=True)
    assert torch.allclose(queries.vectors, whole[1][:5].vectors, atol=1e-5)


def test_texts_give_the_same_as_their_vectors_and_a_seed_decides(shallow, texts):
    def train(documents, queries, seed=0):
        model = ColBERT.from_dense(shallow, device="cpu")
        torch.manual_seed(0)
        return distill_pooling(model.compress_documents(3), documents, queries, steps=2, seed=seed)

    some = texts[:8]
    model = ColBERT.from_dense(shallow, device="cpu")
    vectors = [model.encode(some, is_query=q, packed=True, precision="float16") for q in (False, True)]
    first, second, other = train(some, some), train(*vectors), train(some, some, seed=1)
    assert torch.equal(first[2].queries, second[2].queries)
    assert not torch.equal(first[2].queries, other[2].queries)
    assert train(some, None, seed=np.int64(1))[2].queries.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_model_in_half_precision_is_trained_in_float32(shallow, whole, dtype):
    model = ColBERT.from_dense(shallow, device="cpu").compress_documents(4).to(dtype)
    distill_pooling(model, whole[0][:20], whole[1][:20], steps=3, batch_size=4)
    weights = model[2].state_dict()
    assert {each.dtype for each in weights.values()} == {dtype}
    assert weights["queries"].any()  # zeros at first
    assert all(each.isfinite().all() for each in weights.values())


def test_loss_is_that_of_the_formula(distilled, whole):
    pooling = distilled[2]
    documents, queries = whole[0][:3], whole[1][:2]
    padded, mask = documents.pad()
    rows = torch.repeat_interleave(torch.arange(2), torch.from_numpy(queries.lengths))
    found = _loss(pooling, _Batch(queries.vectors, rows, padded, mask))

    relevance = (colbert_scores(queries, documents) / 0.5).softmax(dim=1)
    pooled = TokenEmbeddings.from_list(pooling.pool(list(documents)))
    approximate = (colbert_scores(queries, pooled) / 0.5).softmax(dim=1)
    divergence = (relevance * (relevance.log() - approximate.log())).sum(dim=1).mean()
    matched = []
    for row, query in enumerate(queries):
        for token in query:
            for d, document in enumerate(documents):
                weights = pooling.log_weights(document).log_softmax(dim=0)
                matched.append(relevance[row, d] * -weights[(document @ token).argmax()])
    expected = 3 * divergence + torch.stack(matched).sum() / queries.num_tokens
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def rank_correlation(model, texts, whole) -> float:
    """Mean correlation, over queries that were not trained with, of documents' ranks with those of all dimensions."""
    queries = model.encode_query([text[-80:] for text in texts[:100]], packed=True)
    scores = colbert_scores(queries, model.encode_document(texts[:100], packed=True))
    ranks = (
        each.argsort(dim=1).argsort(dim=1).double() for each in (scores, colbert_scores(whole[1][:100], whole[0][:100]))
    )
    return np.mean([np.corrcoef(mine, full)[0, 1] for mine, full in zip(*ranks, strict=True)])


def test_a_head_ranks_more_like_all_dimensions_than_pca(shallow, texts, whole, tmp_path):
    documents, queries = whole
    head = ColBERT.from_dense(shallow, device="cpu")
    head = distill_head(head, documents[100:], 24, queries[100:], steps=60, batch_size=16, seed=3)
    pca = ColBERT.from_dense(shallow, "pca", 24, device="cpu").fit_projection(texts[100:])
    assert rank_correlation(head, texts, whole) > rank_correlation(pca, texts, whole) + 0.01
    head.save(tmp_path / "saved")
    saved = ColBERT(str(tmp_path / "saved"), device="cpu")
    assert torch.allclose(saved.encode_query("a pear"), head.encode_query("a pear"), atol=1e-6)


def test_a_head_needs_more_dimensions_and_no_pooling(shallow):
    with pytest.raises(InvalidArgumentError, match="has 384"):
        distill_head(ColBERT.from_dense(shallow, device="cpu"), ["a pear"], 384)
    with pytest.raises(InvalidArgumentError, match="pools its documents"):
        distill_head(ColBERT.from_dense(shallow, device="cpu").compress_documents(4), ["a pear"], 16)
