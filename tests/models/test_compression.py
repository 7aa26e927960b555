"""Models that pool their documents: encoding, saving, searching and training with an `AttentionPooling` inside."""

from functools import partial

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.embeddings import TokenEmbeddings
from latelier.losses import Contrastive
from latelier.models import ColBERT, pool_tokens
from latelier.modules import AttentionPooling

DOCUMENTS = [
    "Fruits and vegetables are healthy, and many of them taste sweet.",
    "Planes fly over the ocean at night while the passengers sleep.",
    "Rain",
    "",
    "The library keeps old maps of the harbour, drawn by hand in ink.",
]
QUERIES = ["healthy food", "old maps of a port"]
ROWS = 4


def disturb(model: ColBERT) -> ColBERT:
    torch.manual_seed(0)
    for parameter in pooling_of(model).parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model


def pooling_of(model: ColBERT) -> AttentionPooling:
    return next(module for module in model if isinstance(module, AttentionPooling))


@pytest.fixture(scope="module")
def compressed(shallow):
    return disturb(ColBERT.from_dense(shallow, device="cpu").compress_documents(ROWS, heads=2))


@pytest.fixture(scope="module")
def saved(compressed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "compressed"
    compressed.save(folder)
    return folder


def test_untrained_documents_are_pooled_by_wards_method_and_queries_are_not(shallow, dense):
    model = ColBERT.from_dense(shallow, device="cpu")
    assert model.compress_documents(ROWS) is model
    whole = dense.encode_document(DOCUMENTS, packed=True)
    pooled = model.encode_document(DOCUMENTS, packed=True)
    assert whole.lengths.tolist() == [15, 14, 3, 2, 17]
    assert pooled.lengths.tolist() == [4, 4, 3, 2, 4]
    assert torch.allclose(pooled[4], pool_tokens(whole[4:], 4, protected_tokens=0)[0], atol=1e-5)
    assert torch.allclose(pooled[2], whole[2], atol=1e-5)
    for ours, theirs in zip(model.encode_query(QUERIES), dense.encode_query(QUERIES), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_pooling_reads_what_is_scored_and_is_normalised(tiny):
    """It comes after the projection and the skiplist: punctuation is in no cluster."""
    model = ColBERT(tiny, 16, "cpu").compress_documents(64)
    kinds = [type(module).__name__ for module in model]
    assert kinds == ["Transformer", "Dense", "MultiVectorMask", "AttentionPooling", "Normalize"]
    plain, marked = model.encode_document(["maps old", "maps, old!"])
    assert len(plain) == len(marked) == 5
    assert torch.allclose(marked.norm(dim=1), torch.ones(5))


@pytest.mark.parametrize("load", [ColBERT, partial(MultiVectorEncoder, trust_remote_code=True)])
def test_saved_models_give_the_same_vectors(compressed, saved, load):
    loaded = load(str(saved), device="cpu")
    assert [type(module) for module in loaded] == [Transformer, MultiVectorMask, AttentionPooling, Normalize]
    assert repr(pooling_of(loaded)) == repr(pooling_of(compressed))
    for encode in ("encode_document", "encode_query"):
        expected = getattr(compressed, encode)(DOCUMENTS)
        found = getattr(loaded, encode)(DOCUMENTS)
        assert [len(rows) for rows in found] == [len(rows) for rows in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours.cpu(), theirs, atol=1e-5)


def test_every_way_to_encode_agrees(compressed):
    expected = compressed.encode_document(DOCUMENTS, packed=True)
    streamed = TokenEmbeddings.concatenate(list(compressed.encode_stream(DOCUMENTS, packed=True)))
    assert streamed.lengths.tolist() == expected.lengths.tolist()
    assert torch.allclose(streamed.vectors, expected.vectors, atol=1e-5)
    assert compressed.encode_document(DOCUMENTS, packed=True, pool_factor=2, protected_tokens=0).lengths.max() == 2
    half = compressed.encode_document(DOCUMENTS, packed=True, compute_dtype="bfloat16").to("float32")
    assert half.lengths.tolist() == expected.lengths.tolist()
    # The clusters of a text may change in half precision; most of its vectors stay close to one.
    assert (half[4] @ expected[4].T).max(dim=1).values.median() > 0.98
    with torch.no_grad():
        forward = compressed(texts=DOCUMENTS[:1], is_query=False)["embeddings"]
    assert torch.allclose(forward[0, :ROWS], expected[0], atol=1e-5)
    assert not forward[0, ROWS:].any()


def test_a_loss_trains_the_pooling(tiny):
    model = disturb(ColBERT.from_dense(tiny, device="cpu").compress_documents(ROWS, heads=2)).train()
    features = [model.tokenize(QUERIES, is_query=True), model.tokenize([DOCUMENTS[0], DOCUMENTS[4]], is_query=False)]
    Contrastive(model)(features, None).backward()
    assert all(parameter.grad.any() for parameter in pooling_of(model).parameters())
