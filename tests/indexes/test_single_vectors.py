"""Single vectors against the definitions as loops, and their inner products against MaxSim."""

import json

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes import FixedDimensionalEncodings, MeanVectors, single_vectors, single_vectors_from_dict
from naive import naive_matrix

DIM = 12
# Sums in float32 of DIM products of numbers around 1, and of up to 64 tokens.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
KINDS = [
    MeanVectors(),
    FixedDimensionalEncodings(k_sim=3, d_proj=4, r_reps=5),
    FixedDimensionalEncodings(k_sim=0, d_proj=4, r_reps=2, seed=7),
    FixedDimensionalEncodings(k_sim=4, d_proj=DIM, r_reps=3, seed=3),
    FixedDimensionalEncodings(k_sim=2, d_proj=5, r_reps=4, d_final=40, seed=11),
]


def unit(*lengths, dim=DIM, seed=0):
    rng = np.random.default_rng(seed)
    matrices = [rng.standard_normal((length, dim), dtype="float32") for length in lengths]
    return [matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in matrices]


def naive_encoding(encodings, matrix, *, is_query):
    k_sim, d_proj, r_reps, d_final = encodings.k_sim, encodings.d_proj, encodings.r_reps, encodings.d_final
    dim, bits = matrix.shape[1], single_vectors.RandomBits(encodings.seed)
    planes = bits.normals((dim, r_reps * k_sim)).astype("float64")
    inner = bits.signs((dim, r_reps * d_proj)) / np.sqrt(d_proj) if d_proj < dim else None
    whole = []
    for r in range(r_reps):
        own = planes[:, r * k_sim : (r + 1) * k_sim]
        buckets = [tuple(int(token @ plane > 0) for plane in own.T) for token in matrix.astype("float64")]
        for number in range(2**k_sim):
            bucket = tuple(number >> bit & 1 for bit in range(k_sim))
            differences = [sum(a != b for a, b in zip(bucket, other, strict=True)) for other in buckets]
            nearest = 0 if is_query else min(differences)
            chosen = [token for token, count in zip(matrix, differences, strict=True) if count == nearest]
            part = np.sum(chosen, axis=0, dtype="float64") if chosen else np.zeros(dim)
            part = part / r_reps if is_query else part / len(chosen)
            whole.append(part if inner is None else part @ inner[:, r * d_proj : (r + 1) * d_proj])
    whole = np.concatenate(whole)
    if d_final is None:
        return whole
    places, signs = bits.words(len(whole)) % np.uint64(d_final), bits.signs((len(whole),))
    sketch = np.zeros(d_final)
    for place, sign, value in zip(places, signs, whole, strict=True):
        sketch[place] += sign * value
    return sketch


def naive_vector(kind, matrix, *, is_query):
    if isinstance(kind, FixedDimensionalEncodings):
        return naive_encoding(kind, matrix, is_query=is_query)
    mean = matrix.astype("float64").mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_vectors_equal_the_definition(kind):
    texts = unit(1, 2, 9, 64, 30)
    for is_query, encode in ((False, kind.encode_documents), (True, kind.encode_queries)):
        texts[2][4] *= not is_query  # a vector on every border, which of a document would be padding
        expected = [naive_vector(kind, text, is_query=is_query) for text in texts]
        found = encode(texts)
        assert found.dtype == np.float32
        assert found.shape == (5, kind.size(DIM))
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_many_blocks_equal_one_document_at_a_time(kind):
    documents = unit(*np.random.default_rng(0).integers(1, 300, size=60), 9000, 3)
    together = kind.encode_documents(TokenEmbeddings.from_list(documents))
    alone = np.concatenate([kind.encode_documents([document]) for document in documents])
    np.testing.assert_allclose(together, alone, **CLOSE)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_dtype_and_kind_of_array(kind):
    # Halves and quarters, which each dtype holds exactly, so that no token changes its bucket.
    rng = np.random.default_rng(1)
    matrices = [(rng.integers(-4, 5, (n, DIM)) / 4).astype("float32") for n in (4, 20)]
    for matrix in matrices:
        matrix[:, 0] = 127 / 4  # the scale of int8 is a quarter
    expected = kind.encode_documents(matrices)
    packed = TokenEmbeddings.from_list(matrices)
    for dtype in ("float16", "bfloat16", "int8"):
        np.testing.assert_allclose(kind.encode_documents(packed.to(dtype)), expected, **CLOSE)
    tensors = [torch.from_numpy(matrix).double().requires_grad_() for matrix in matrices]
    np.testing.assert_allclose(kind.encode_documents(tensors), expected, **CLOSE)


def test_a_document_of_one_token_has_its_maxsim_exactly():
    """Its token fills every bucket, so each query token meets it in each repetition."""
    encodings = FixedDimensionalEncodings(k_sim=6, d_proj=DIM, r_reps=3)
    queries, documents = unit(1, 8, 32, seed=1), unit(1, 1, 1, seed=2)
    scores = encodings.encode_queries(queries) @ encodings.encode_documents(documents).T
    np.testing.assert_allclose(scores, naive_matrix(queries, documents), **CLOSE)


def test_random_matrices_are_the_same_everywhere():
    """Written down once, from the words of PCG64; an index stores a seed and relies on them."""
    bits = single_vectors.RandomBits(5)
    assert [hex(word) for word in bits.words(2).tolist()] == ["0xce14abeeabb8e5a8", "0xced5352505cc99f5"]
    assert bits.signs((2, 5)).tolist() == [[-1, -1, -1, -1, -1], [-1, 1, 1, 1, -1]]
    assert (8 * bits.normals((6,))).tolist() == [-6, -2, -12, -10, 0, -16]
    normals = single_vectors.RandomBits(1).normals((200, 200)).ravel()
    moments = [(normals**power).mean() for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3 - 2 / 64], atol=0.1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_settings_are_json_and_come_back(kind):
    assert single_vectors_from_dict(json.loads(json.dumps(kind.to_dict()))) == kind
    with pytest.raises(InvalidArgumentError, match="'kind': 'sum'"):
        single_vectors_from_dict({"kind": "sum"})
    with pytest.raises(InvalidArgumentError, match="k_sim=9; expected an integer from 0 to 8"):
        FixedDimensionalEncodings(k_sim=9)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_document_and_bad_documents(kind):
    assert kind.encode_documents([]).shape[0] == 0
    assert kind.encode_queries(TokenEmbeddings.from_list([], dim=DIM)).shape == (0, kind.size(DIM))
    with pytest.raises(EmbeddingsError, match="query 1 has no token"):
        kind.encode_queries([np.ones((2, DIM)), np.ones((0, DIM))])
    documents = unit(*[1000] * 12)
    documents[7][999, 3] = np.nan
    with pytest.raises(EmbeddingsError, match="document 7 holds NaN"):
        kind.encode_documents(documents)


def test_a_mean_of_length_zero_stays_zero():
    assert MeanVectors().encode_documents([np.array([[1.0, -2.0], [-1.0, 2.0]])]).tolist() == [[0.0, 0.0]]


def test_centered_encodings_see_through_a_cone():
    rng = np.random.default_rng(0)
    words = rng.standard_normal((400, 64))
    documents = [words[rng.integers(0, 400, 20)] + 0.3 * rng.standard_normal((20, 64)) for _ in range(300)]
    queries = [documents[i][:8] + 0.3 * rng.standard_normal((8, 64)) for i in range(0, 300, 10)]
    mean = 40 * unit(1, dim=64)[0]
    encodings = FixedDimensionalEncodings(r_reps=10)

    def found(encodings, shift):
        given = encodings.encode_documents([d + shift for d in documents])
        scores = encodings.encode_queries([q + shift for q in queries]) @ given.T
        return np.mean(scores.argmax(axis=1) == np.arange(0, 300, 10))

    in_cone = encodings.centered([d + mean for d in documents[:100]])
    assert found(encodings, 0) > 0.9
    assert found(encodings, mean) < 0.5
    assert found(in_cone, mean) > 0.9
    shifted = encodings.encode_documents([documents[0] - np.array(in_cone.center)])
    np.testing.assert_allclose(in_cone.encode_documents(documents[:1]), shifted, rtol=1e-3, atol=1e-3)
    assert single_vectors_from_dict(json.loads(json.dumps(in_cone.to_dict()))) == in_cone


def test_padding_of_zeros_changes_no_encoding():
    documents = unit(5, 3)
    padded = [np.pad(matrix, ((0, 8 - len(matrix)), (0, 0))) for matrix in documents]
    encoder = FixedDimensionalEncodings(seed=1)
    with pytest.warns(UserWarning, match="8 rows of zeros were dropped"):
        found = encoder.encode_documents(padded)
    np.testing.assert_array_equal(found, encoder.encode_documents(documents))
