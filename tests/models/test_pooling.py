"""Token pooling is compared with scipy's tree, cut by scipy, and with sentence-transformers' own pooling."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.kernels import ward
from latelier.models import pool_tokens


def unit_rows(rng, tokens, dim=8, spread=1.0):
    """Random vectors of length 1; with a small spread they are close to each other, as a real text's are."""
    rows = rng.standard_normal(dim) + spread * rng.standard_normal((tokens, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("float32")


def distances_of(rows):
    return np.clip(np.float32(1) - rows @ rows.T, 0, 2)


def scipy_labels(distances, clusters):
    """The clusters of the reference, numbered by their first tokens."""
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    if len(distances) == 1:
        return [0]
    tree = hierarchy.linkage(distances[np.triu_indices(len(distances), 1)], method="ward")
    labels = hierarchy.fcluster(tree, clusters, criterion="maxclust")
    first = {label: i for i, label in reversed(list(enumerate(labels)))}
    order = {label: i for i, label in enumerate(sorted(first, key=first.get))}
    return [order[label] for label in labels]


def our_labels(distances, clusters):
    squares = distances.astype("float64") ** 2
    np.fill_diagonal(squares, np.inf)
    return ward._cut(ward._merge(squares, np.ones(len(squares))), clusters).tolist()


def naive_pool(rows, factor, protected):
    """What a document becomes, by scipy and a loop."""
    kept, rest = rows[:protected], rows[protected:]
    if len(rest) == 0:
        return kept
    labels = scipy_labels(distances_of(rest), max(len(rest) // factor, 1))
    means = [rest[np.equal(labels, c)].astype("float64").mean(axis=0) for c in range(max(labels) + 1)]
    return np.concatenate([kept, [mean / np.linalg.norm(mean) for mean in means]])


@settings(max_examples=400)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_clusters_are_those_of_scipy(tokens, seed, data):
    rng = np.random.default_rng(seed)
    distances = distances_of(unit_rows(rng, tokens, spread=rng.choice([0.1, 1.0, 10.0])))
    clusters = data.draw(st.integers(1, tokens))
    assert our_labels(distances, clusters) == scipy_labels(distances, clusters)


@pytest.mark.parametrize("tokens", [100, 257, 400])
def test_clusters_of_long_documents_are_those_of_scipy(tokens):
    distances = distances_of(unit_rows(np.random.default_rng(tokens), tokens, dim=32))
    for clusters in (1, 2, tokens // 3, tokens // 2, tokens - 1, tokens):
        assert our_labels(distances, clusters) == scipy_labels(distances, clusters)


@given(st.lists(st.lists(st.integers(-1, 1), min_size=2, max_size=2), min_size=1, max_size=30), st.integers(2, 4))
@example([[1, 0]] * 30, 3)
@example([[0, 0]] * 30, 2)
def test_ties_end_and_make_as_many_clusters_as_wanted(rows, factor):
    pooled = pool_tokens(TokenEmbeddings.from_list([np.array(rows, dtype="float32")]), factor)
    rest = len(rows) - 1
    assert pooled.lengths.tolist() == [1 + (max(rest // factor, 1) if rest else 0)]
    lengths = np.linalg.norm(pooled[0][1:], axis=1)
    assert np.all((lengths == 0) | (np.abs(lengths - 1) < 1e-6))


def test_equal_distances_of_any_size_end():
    """Rounding of equal distances can make unions seem nearer than their parts, which must not confuse the chains."""
    for distance in np.linspace(0.001, 2, 300):
        labels = our_labels(np.full((31, 31), distance), 10)
        assert len(set(labels)) == 10


@pytest.mark.parametrize("factor", [2, 3, 7])
@pytest.mark.parametrize("protected", [0, 1, 3])
@pytest.mark.parametrize("dim", [3, 16, 33])
def test_documents_of_all_lengths(factor, protected, dim):
    rng = np.random.default_rng(dim)
    documents = [unit_rows(rng, tokens, dim) for tokens in [*range(13), 40, 0, 21]]
    pooled = pool_tokens(TokenEmbeddings.from_list(documents), factor, protected_tokens=protected)
    assert len(pooled) == len(documents)
    for document, ours in zip(documents, pooled, strict=True):
        np.testing.assert_allclose(ours, naive_pool(document, factor, protected), atol=1e-6)


def test_rows_are_those_of_sentence_transformers():
    modules = pytest.importorskip("sentence_transformers.multi_vector_encoder.modules")
    rng = np.random.default_rng(0)
    documents = [torch.from_numpy(unit_rows(rng, int(n), 24)) for n in rng.integers(1, 90, 60)]
    for factor, protected in ((2, 1), (3, 0), (5, 4)):
        pooled = pool_tokens(TokenEmbeddings.from_list(documents), factor, protected_tokens=protected)
        expected = modules.HierarchicalTokenPooling(factor, num_protected_tokens=protected).pool(documents)
        for ours, theirs in zip(pooled, expected, strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours[:protected], theirs[:protected])
            # The order of clusters is another one: sort both by the first number of each row.
            torch.testing.assert_close(ours[ours[:, 0].argsort()], theirs[theirs[:, 0].argsort()])


def test_kernel_distances():
    """Lengths around the blocks of the kernel, vectors that are not of length 1."""
    rng = np.random.default_rng(0)
    for tokens in range(1, 14):
        rows = rng.standard_normal((tokens, 5)).astype("float32")
        squares = np.full((tokens, tokens), np.nan)
        ward._square_distances(rows, squares)
        expected = distances_of(rows).astype("float64") ** 2
        np.fill_diagonal(expected, np.inf)
        np.testing.assert_allclose(squares, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_dtype_and_kind_are_kept(dtype, kind):
    rng = np.random.default_rng(0)
    exact = TokenEmbeddings.from_list([unit_rows(rng, n) for n in (9, 4)])
    given = exact.to(dtype).to(kind)
    pooled = pool_tokens(given, 2, protected_tokens=2)
    assert (pooled.dtype, pooled.is_torch, pooled.lengths.tolist()) == (given.dtype, kind == "torch", [5, 3])
    expected = pool_tokens(given.to("float32"), 2, protected_tokens=2).to(given.dtype).to("float32").to("numpy")
    np.testing.assert_allclose(pooled.to("float32").to("numpy").vectors, expected.vectors, atol=1e-6)
    assert pooled[[0]][0][:2].tolist() == given[0][:2].tolist()


def test_protected_int8_tokens_keep_codes_and_scales():
    codes = np.arange(-12, 12, dtype="int8").reshape(6, 4)  # not what quantising would choose
    given = TokenEmbeddings(codes, [0, 6], np.linspace(0.01, 0.02, 6, dtype="float32"))
    pooled = pool_tokens(given, 2, protected_tokens=2)
    assert pooled.vectors[:2].tolist() == codes[:2].tolist()
    assert pooled.scales[:2].tolist() == given.scales[:2].tolist()
    assert np.abs(pooled.vectors[2:]).max(axis=1).tolist() == [127, 127]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_is_kept():
    given = TokenEmbeddings.from_list([torch.from_numpy(unit_rows(np.random.default_rng(0), 9))])
    pooled = pool_tokens(given.to("cuda"), 2)
    assert pooled.device.type == "cuda"
    assert pooled.to("cpu") == pool_tokens(given, 2)


def test_input_is_not_changed_and_may_be_read_only_or_strided():
    rng = np.random.default_rng(0)
    rows = unit_rows(rng, 20, 16)
    before = rows.copy()
    rows.flags.writeable = False
    expected = pool_tokens(TokenEmbeddings(before, [0, 12, 20]), 2).vectors
    assert pool_tokens(TokenEmbeddings(rows, [0, 12, 20]), 2).vectors.tolist() == expected.tolist()
    wide = np.repeat(before, 2, axis=1)[:, ::2]
    assert pool_tokens(TokenEmbeddings(wide, [0, 12, 20]), 2).vectors.tolist() == expected.tolist()
    assert rows.tolist() == before.tolist()


def test_threads_give_the_same_rows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 300, 400)
    vectors = torch.from_numpy(unit_rows(rng, int(lengths.sum()), 32))
    embeddings = TokenEmbeddings(vectors, np.concatenate([[0], np.cumsum(lengths)]))
    shared = pool_tokens(embeddings, 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert pool_tokens(embeddings, 2) == shared
    finally:
        torch.set_num_threads(threads)
    assert pool_tokens(embeddings[300:310], 2) == shared[300:310]


def test_factor_1_and_empty_batches_come_back_as_they_are():
    embeddings = TokenEmbeddings.from_list([np.full((3, 2), 7, dtype="float32")])
    assert pool_tokens(embeddings, 1) is embeddings
    nothing = TokenEmbeddings.from_list([np.zeros((0, 2), dtype="float32")] * 2)
    assert pool_tokens(nothing, 2).lengths.tolist() == [0, 0]
    assert len(pool_tokens(TokenEmbeddings.from_list([]), 2)) == 0


def test_opposite_vectors_have_no_mean_direction():
    pooled = pool_tokens(TokenEmbeddings.from_list([[[1.0, 0.0], [-1.0, 0.0]]]), 2, protected_tokens=0)
    assert pooled[0].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_text(value):
    matrices = [unit_rows(np.random.default_rng(0), 6) for _ in range(3)]
    matrices[1][4, 2] = value
    with pytest.raises(EmbeddingsError, match="text 1 has embeddings that hold NaN or infinity"):
        pool_tokens(TokenEmbeddings.from_list(matrices), 2)


class TestEncode:
    texts = ("unhealthy fruits are rare in quiet towns", "", "rain")

    def test_list_packed_numpy_and_single_agree(self, dense):
        whole = dense.encode_document(list(self.texts), packed=True)
        packed = dense.encode_document(list(self.texts), packed=True, pool_factor=2)
        assert whole.lengths.tolist() == [12, 2, 3]
        assert packed.lengths.tolist() == [1 + 11 // 2, 2, 2]
        assert packed == pool_tokens(whole, 2)
        listed = dense.encode(list(self.texts), is_query=False, pool_factor=2)
        assert [part.tolist() for part in listed] == [part.tolist() for part in packed]
        arrays = dense.encode_document(list(self.texts), pool_factor=2, convert_to_numpy=True)
        assert all(isinstance(part, np.ndarray) for part in arrays)
        assert [part.tolist() for part in arrays] == [part.tolist() for part in packed]
        single = dense.encode_document(self.texts[0], pool_factor=2)
        torch.testing.assert_close(single, packed[0], atol=1e-5, rtol=0)

    def test_protected_tokens_are_handed_on(self, dense):
        whole = dense.encode_document(self.texts[0])
        pooled = dense.encode_document(self.texts[0], pool_factor=3, protected_tokens=4)
        assert pooled.shape[0] == 4 + 8 // 3
        assert torch.equal(pooled[:4], whole[:4])

    def test_queries_are_refused(self, dense):
        with pytest.raises(InvalidArgumentError, match="pool_factor=2 for queries; only documents are pooled"):
            dense.encode_query("rain", pool_factor=2)
        with pytest.raises(InvalidArgumentError, match="only documents are pooled"):
            dense.encode(["rain"], pool_factor=2)
        assert dense.encode_query("rain", pool_factor=1).shape[0] == 3
