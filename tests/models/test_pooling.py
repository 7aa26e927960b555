"""Token pooling beside scipy's tree, a loop by hand, sentence-transformers' pooling and transformers' own attention."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.models import pool_tokens

TEXTS = ["Unhealthy fruits are rare in quiet northern towns.", "Rain", "", "Planes fly at night, while we sleep."]


def unit_rows(rng, tokens, dim=8, spread=1.0):
    rows = rng.standard_normal(dim) + spread * rng.standard_normal((tokens, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("float32")


def documents(*lengths, seed=0, dim=6):
    rng = np.random.default_rng(seed)
    return TokenEmbeddings.from_list([unit_rows(rng, n, dim, spread=3) for n in lengths])


def scipy_labels(rows, clusters):
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    if len(rows) == 1:
        return [0]
    distances = np.clip(np.float32(1) - rows @ rows.T, 0, 2)
    tree = hierarchy.linkage(distances[np.triu_indices(len(rows), 1)], method="ward")
    labels = hierarchy.fcluster(tree, clusters, criterion="maxclust")
    first = {label: i for i, label in reversed(list(enumerate(labels)))}
    order = {label: i for i, label in enumerate(sorted(first, key=first.get))}
    return [order[label] for label in labels]


def naive_pool(rows, clusters, protected=0):
    kept, rest = rows[:protected], rows[protected:]
    if len(rest) == 0:
        return kept
    labels = scipy_labels(rest, max(clusters, 1))
    means = [rest[np.equal(labels, c)].astype("float64").mean(axis=0) for c in range(max(labels) + 1)]
    return np.concatenate([kept, [mean / np.linalg.norm(mean) for mean in means]])


@settings(max_examples=200)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_clusters_are_those_of_scipy(tokens, seed, data):
    rng = np.random.default_rng(seed)
    rows = unit_rows(rng, tokens, spread=rng.choice([0.1, 1.0, 10.0]))
    clusters = data.draw(st.integers(1, tokens))
    found = pool_tokens(TokenEmbeddings.from_list([rows]), num_vectors=clusters, protected_tokens=0)[0]
    np.testing.assert_allclose(found, naive_pool(rows, clusters), atol=1e-5)


@given(st.lists(st.lists(st.integers(-1, 1), min_size=2, max_size=2), min_size=1, max_size=30), st.integers(2, 4))
@example([[1, 0]] * 30, 3)
@example([[0, 0]] * 30, 2)
def test_ties_end_and_make_as_many_clusters_as_wanted(rows, factor):
    pooled = pool_tokens(TokenEmbeddings.from_list([np.array(rows, dtype="float32")]), factor)
    rest = len(rows) - 1
    assert pooled.lengths.tolist() == [1 + (max(rest // factor, 1) if rest else 0)]
    lengths = np.linalg.norm(pooled[0][1:], axis=1)
    assert np.all((lengths == 0) | (np.abs(lengths - 1) < 1e-6))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_dtype_and_kind_are_kept(dtype, kind):
    given = documents(9, 4).to(dtype).to(kind)
    pooled = pool_tokens(given, 2, protected_tokens=2)
    assert (pooled.dtype, pooled.is_torch, pooled.lengths.tolist()) == (given.dtype, kind == "torch", [5, 3])
    expected = pool_tokens(given.to("float32"), 2, protected_tokens=2).to(given.dtype).to("float32").to("numpy")
    np.testing.assert_allclose(pooled.to("float32").to("numpy").vectors, expected.vectors, atol=1e-6)
    assert pooled[[0]][0][:2].tolist() == given[0][:2].tolist()
    if dtype == "int8":
        assert pooled.scales[:2].tolist() == given.scales[:2].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_is_kept():
    given = documents(9).to("torch")
    pooled = pool_tokens(given.to("cuda"), 2)
    assert pooled.device.type == "cuda"
    assert pooled.to("cpu") == pool_tokens(given, 2)


def test_input_is_not_changed_and_may_be_read_only_or_strided():
    rows = unit_rows(np.random.default_rng(0), 20, 16)
    before = rows.copy()
    rows.flags.writeable = False
    expected = pool_tokens(TokenEmbeddings(before, [0, 12, 20]), 2).vectors
    assert pool_tokens(TokenEmbeddings(rows, [0, 12, 20]), 2).vectors.tolist() == expected.tolist()
    wide = np.repeat(before, 2, axis=1)[:, ::2]
    assert pool_tokens(TokenEmbeddings(wide, [0, 12, 20]), 2).vectors.tolist() == expected.tolist()
    assert rows.tolist() == before.tolist()


def test_threads_give_the_same_rows():
    embeddings = documents(*np.random.default_rng(0).integers(0, 300, 200), dim=32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shared = pool_tokens(embeddings, 2)
        torch.set_num_threads(1)
        assert pool_tokens(embeddings, 2) == shared
    finally:
        torch.set_num_threads(threads)
    assert pool_tokens(embeddings[100:110], 2) == shared[100:110]


def test_nothing_to_pool():
    embeddings = TokenEmbeddings.from_list([np.full((3, 2), 7, dtype="float32")])
    assert pool_tokens(embeddings, 1) is embeddings
    nothing = TokenEmbeddings.from_list([np.zeros((0, 2), dtype="float32")] * 2)
    assert pool_tokens(nothing, 2).lengths.tolist() == [0, 0]
    assert len(pool_tokens(TokenEmbeddings.from_list([]), 2)) == 0
    opposite = pool_tokens(TokenEmbeddings.from_list([[[1.0, 0.0], [-1.0, 0.0]]]), 2, protected_tokens=0)
    assert opposite[0].tolist() == [[0.0, 0.0]]  # no mean direction


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_text(value):
    matrices = [unit_rows(np.random.default_rng(0), 6) for _ in range(3)]
    matrices[1][4, 2] = value
    with pytest.raises(EmbeddingsError, match="text 1 has embeddings that hold NaN"):
        pool_tokens(TokenEmbeddings.from_list(matrices), 2)


@pytest.mark.parametrize("method", ["ward", "attention", "attention-ward"])
@pytest.mark.parametrize(("protected", "lengths"), [(0, [6, 5, 1, 0]), (2, [6, 5, 1, 0])])
def test_num_vectors_is_an_upper_bound_that_counts_protected_tokens(method, protected, lengths):
    given = documents(20, 5, 1, 0)
    weights = None if method == "ward" else np.linspace(0.1, 2, given.num_tokens)
    pooled = pool_tokens(given, num_vectors=6, method=method, weights=weights, protected_tokens=protected)
    assert pooled.lengths.tolist() == lengths
    assert np.array_equal(pooled[0][:protected], given[0][:protected])
    np.testing.assert_allclose(pooled[1], given[1], atol=1e-6)  # no more tokens than vectors


def naive_attention(rows, weights, clusters):
    """Attention-guided clustering of one document, token by token."""
    chosen = sorted(sorted(range(len(rows)), key=lambda i: -weights[i])[:clusters])
    sums = [np.zeros(rows.shape[1]) for _ in chosen]
    for i, row in enumerate(rows):
        nearest = chosen.index(i) if i in chosen else int(np.argmax([row @ rows[c] for c in chosen]))
        sums[nearest] += weights[i] * row
    return np.stack([each / np.linalg.norm(each) for each in sums])


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


def test_equal_weights_are_wards_method_and_whole_ones_count_as_copies():
    given = documents(17, 9)
    expected = pool_tokens(given, 3)
    for weight in (1.0, 40.0, 0.0):
        weights = torch.full((given.num_tokens,), weight)
        found = pool_tokens(given, 3, method="attention-ward", weights=weights)
        np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)
    given = documents(9)
    weights = np.array([3.0, *[1.0] * 8])
    repeated = TokenEmbeddings.from_list([np.concatenate([given[0][:1], given[0][:1], given[0]])])
    found = pool_tokens(given, num_vectors=4, method="attention-ward", weights=weights, protected_tokens=0)
    np.testing.assert_allclose(found[0], pool_tokens(repeated, num_vectors=4, protected_tokens=0)[0], atol=1e-6)


def received_attention(model, text):
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


def test_several_threads_pool_by_attention_at_once(dense):
    """They share the encoder's configuration, which names the attention that records."""
    options = {"num_vectors": 3, "pool_method": "attention"}
    expected = dense.encode_document(TEXTS, **options)
    at_once = Barrier(3, timeout=60)

    def encode(_):
        at_once.wait()
        return [dense.encode_document(TEXTS, **options) for _ in range(5)]

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(encode, range(3)))
    for matrices in (matrices for each in found for matrices in each):
        for matrix, wanted in zip(matrices, expected, strict=True):
            torch.testing.assert_close(matrix, wanted, rtol=0, atol=1e-5)
    assert dense[0].model.config._attn_implementation == "sdpa"


def test_encoded_documents_are_pooled_in_every_form_and_queries_are_not(dense):
    whole = dense.encode_document(TEXTS, packed=True)
    packed = dense.encode_document(TEXTS, packed=True, pool_factor=2)
    assert packed == pool_tokens(whole, 2)
    assert packed.lengths.tolist() == [1 + max((n - 1) // 2, 1) for n in whole.lengths]
    listed = dense.encode(TEXTS, is_query=False, pool_factor=2)
    assert [part.tolist() for part in listed] == [part.tolist() for part in packed]
    arrays = dense.encode_document(TEXTS, pool_factor=2, convert_to_numpy=True)
    assert all(isinstance(part, np.ndarray) for part in arrays)
    assert [part.tolist() for part in arrays] == [part.tolist() for part in packed]
    pooled = dense.encode_document(TEXTS[0], pool_factor=3, protected_tokens=4)
    assert pooled.shape[0] == 4 + (len(whole[0]) - 4) // 3
    torch.testing.assert_close(pooled[:4], whole[0][:4], atol=1e-5, rtol=0)
    for options in ({"pool_factor": 2}, {"num_vectors": 3}):
        with pytest.raises(InvalidArgumentError, match="only documents are pooled"):
            dense.encode_query("rain", **options)
    assert dense.encode_query("rain", pool_factor=1).shape[0] == 3
