"""Pooling to a fixed number of vectors, and by the attention that tokens receive in the encoder."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, pool_tokens

TEXTS = [
    "Unhealthy fruits are rare in quiet northern towns, and nobody asks why.",
    "Rain",
    "",
    "Planes fly over the ocean at night while the passengers sleep.",
]


def documents(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((n, 6)).astype("float32") for n in lengths]
    return TokenEmbeddings.from_list([row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows])


def naive_attention(rows, weights, clusters):
    """Attention-guided clustering of one document, token by token."""
    chosen = sorted(sorted(range(len(rows)), key=lambda i: -weights[i])[:clusters])
    sums = [np.zeros(rows.shape[1]) for _ in chosen]
    for i, row in enumerate(rows):
        nearest = chosen.index(i) if i in chosen else int(np.argmax([row @ rows[c] for c in chosen]))
        sums[nearest] += weights[i] * row
    return np.stack([each / np.linalg.norm(each) for each in sums])


@pytest.mark.parametrize("method", ["ward", "attention", "attention-ward"])
@pytest.mark.parametrize(("protected", "lengths"), [(0, [6, 5, 1, 0]), (2, [6, 5, 1, 0])])
def test_num_vectors_is_an_upper_bound_that_counts_protected_tokens(method, protected, lengths):
    given = documents(20, 5, 1, 0)
    weights = None if method == "ward" else np.linspace(0.1, 2, given.num_tokens)
    pooled = pool_tokens(given, num_vectors=6, method=method, weights=weights, protected_tokens=protected)
    assert pooled.lengths.tolist() == lengths
    assert np.array_equal(pooled[0][:protected], given[0][:protected])
    np.testing.assert_allclose(pooled[1], given[1], atol=1e-6)  # no more tokens than vectors


def test_num_vectors_and_factor_make_the_same_clusters():
    given = documents(20, 40)
    by_number = pool_tokens(given, num_vectors=10, protected_tokens=0)
    assert np.array_equal(by_number[0], pool_tokens(given, 2, protected_tokens=0)[0])
    assert np.array_equal(by_number[1], pool_tokens(given, 4, protected_tokens=0)[1])


@pytest.mark.parametrize("protected", [0, 1])
def test_attention_guided_clusters_are_those_of_the_loop(protected):
    given = documents(17, 9, 3)
    weights = np.random.default_rng(1).random(given.num_tokens)
    pooled = pool_tokens(given, num_vectors=4, method="attention", weights=weights, protected_tokens=protected)
    for i, (ours, rows) in enumerate(zip(pooled, given, strict=True)):
        own = weights[given.offsets[i] : given.offsets[i + 1]]
        clusters = min(4, len(rows)) - protected
        expected = naive_attention(rows[protected:], own[protected:], clusters)
        np.testing.assert_allclose(ours[protected:], expected, atol=1e-6)


def test_equal_weights_are_wards_method_whatever_their_size():
    given = documents(17, 9)
    expected = pool_tokens(given, 3)
    for weight in (1.0, 40.0, 0.0):
        weights = np.full(given.num_tokens, weight)
        found = pool_tokens(given, 3, method="attention-ward", weights=torch.from_numpy(weights))
        np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)


def test_a_weight_of_3_is_three_tokens():
    given = documents(9)
    weights = np.array([3.0, *[1.0] * 8])
    repeated = TokenEmbeddings.from_list([np.concatenate([given[0][:1], given[0][:1], given[0]])])
    found = pool_tokens(given, num_vectors=4, method="attention-ward", weights=weights, protected_tokens=0)
    np.testing.assert_allclose(found[0], pool_tokens(repeated, num_vectors=4, protected_tokens=0)[0], atol=1e-6)


def received_attention(model, text):
    """The weights of a text's tokens from transformers' eager attention, layer by layer and head by head."""
    encoder, features = model[0].model, model.tokenize(text, is_query=False)
    before = encoder.config._attn_implementation
    encoder.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        layers = encoder(**inputs, output_attentions=True).attentions
    encoder.set_attn_implementation(before)
    heads = layers[-1][0]
    scored = model[-2](dict(features), task="document")["attention_mask"][0].bool()
    return np.array([sum(float(head[:, i].sum()) for head in heads) / len(heads) for i in torch.where(scored)[0]])


@pytest.mark.parametrize("method", ["attention", "attention-ward"])
@pytest.mark.parametrize("model", ["dense", "fresh"])
def test_encoding_pools_by_the_attention_of_the_last_layer(model, method, request):
    """With and without markers and a skiplist: weights belong to the tokens that are scored."""
    model = request.getfixturevalue(model)
    whole = model.encode_document(TEXTS, packed=True)
    weights = np.concatenate([received_attention(model, text) for text in TEXTS])
    expected = pool_tokens(whole, num_vectors=5, method=method, weights=weights)
    found = model.encode_document(TEXTS, packed=True, num_vectors=5, pool_method=method)
    assert found.lengths.tolist() == np.minimum(whole.lengths, 5).tolist()
    torch.testing.assert_close(found.vectors, expected.vectors, atol=1e-4, rtol=0)
    streamed = model.encode_stream(TEXTS, num_vectors=5, pool_method=method)
    for ours, theirs in zip(streamed, found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert model[0].model.config._attn_implementation == "sdpa"


def test_models_without_readable_attention_say_so(dense, shallow):
    compressed = ColBERT.from_dense(shallow, device="cpu").compress_documents(4)
    with pytest.raises(InvalidArgumentError, match="a pipeline that does not pool documents"):
        compressed.encode_document(TEXTS, num_vectors=3, pool_method="attention")
    with pytest.raises(InvalidArgumentError, match="are encoded by sentence-transformers"):
        dense.encode_document(TEXTS, num_vectors=3, pool_method="attention", normalize_embeddings=True)
    with pytest.raises(InvalidArgumentError, match="num_vectors=3 for queries; only documents are pooled"):
        dense.encode_query(TEXTS, num_vectors=3)


@pytest.mark.parametrize("method", ["attention", "attention-ward"])
def test_several_threads_pool_by_attention_at_once(dense, method):
    """They share the encoder's configuration, which names the attention that records."""
    options = {"num_vectors": 3, "pool_method": method}
    expected = dense.encode_document(TEXTS, **options)
    before = dense[0].model.config._attn_implementation
    at_once = Barrier(3, timeout=60)

    def encode(_):
        at_once.wait()
        return [dense.encode_document(TEXTS, **options) for _ in range(5)]

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(encode, range(3)))
    for matrices in (matrices for each in found for matrices in each):
        for matrix, wanted in zip(matrices, expected, strict=True):
            torch.testing.assert_close(matrix, wanted, rtol=0, atol=1e-5)
    assert dense[0].model.config._attn_implementation == before
