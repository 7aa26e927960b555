"""Codes of documents: against a naive loop, and what they lose."""

import numpy as np
import pytest
from coded_documents import DIMS, CodedSample, bit

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.indexes.ivf.codec import Codec, are_finite
from latelier.indexes.ivf.kernels.codes import decode_documents, unpack_documents, unpack_tokens
from latelier.indexes.ivf.layout import BITS, byte_width, sign_words

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_codes_are_near_the_vectors_and_sign_codes_have_their_signs(bits, dim):
    sample = CodedSample(dim, bits)
    for vectors, decoded in zip(sample.vectors, sample.decoded(), strict=True):
        if bits == 8:
            # Half a step, where a step is the largest number over 127, rounded up by at most 1/256.
            assert (np.abs(vectors - decoded) <= np.abs(vectors).max(axis=1, keepdims=True) / 127 * 0.503).all()
        else:
            norms = np.linalg.norm(vectors, axis=1)
            np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), norms, rtol=1 / 512)
            assert ((vectors >= 0) == (decoded > 0)).all()
    signs = np.array([[bit(row, i) for i in range(dim)] for row in sample.arrays["signs"]])
    assert (signs == (np.concatenate(sample.decoded()) >= 0)).all()
    for row in sample.arrays["signs"]:  # bits beyond the dim are the same everywhere: tables of 0 stand for them
        assert all(bit(row, i) == bit(sample.arrays["signs"][0], i) for i in range(dim, 32 * sign_words(dim)))


@pytest.mark.parametrize(("bits", "most"), [(4, 0.12), (2, 0.37), (1, 0.64)])
def test_coarse_codes_have_the_error_of_the_best_uniform_quantiser(bits, most):
    """Of a normal distribution, relative to the vector's norm."""
    sample = CodedSample(128, bits)
    vectors, decoded = np.concatenate(sample.vectors), np.concatenate(sample.decoded())
    lost = np.linalg.norm(vectors - decoded) / np.linalg.norm(vectors)
    assert 0.7 * most < lost < most


@pytest.mark.parametrize("bits", BITS)
def test_tokens_of_zeros_and_extremes_are_coded(bits):
    vectors = np.array([[0, 0, 0], [1e30, -1e30, 0], [1e-30, 1e-30, 2e-30], [1e-42, 0, 0]], "float32")
    arrays = Codec(bits, 3).encode(TokenEmbeddings.from_list([vectors]))
    scales = (arrays["scales"].astype("uint32") << 15).view("float32")
    assert np.isfinite(scales).all()
    assert scales[0] == 0
    assert (scales[1:3] > 0).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("exponent", [-118, -90, -65, 65, 98])
def test_codes_of_very_small_and_large_numbers_are_those_of_usual_ones(bits, exponent):
    vectors = np.random.default_rng(5).standard_normal((9, 64)).astype("float32")
    usual, extreme = (
        Codec(bits, 64).encode(TokenEmbeddings(v, [0, 9])) for v in (vectors, np.ldexp(vectors, exponent))
    )
    usual["scales"] += np.uint16(exponent << 8 & 0xFFFF)  # of the float32, the exponent is above 8 bits of the fraction
    for name, codes in extreme.items():
        np.testing.assert_array_equal(codes, usual[name])


@pytest.mark.parametrize("bits", BITS)
def test_numbers_whose_scores_could_be_infinite_are_rejected(bits):
    vectors = np.ones((3, 8), "float32")
    vectors[1] = 3.4e38  # is rounded up to infinity in a scale's 16 bits
    with pytest.raises(EmbeddingsError, match=r"received token vectors with numbers up to 3\.4e\+38.* up to 1e\+30"):
        Codec(bits, 8).encode(TokenEmbeddings.from_list([vectors]))


# The bits of float32 numbers: infinity, and NaN with any bits, of which some would overflow when they are rounded up.
NOT_FINITE = (0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("number", NOT_FINITE)
@pytest.mark.parametrize("place", [0, 2, 16])
def test_scales_show_tokens_that_are_not_finite(bits, number, place):
    vectors = np.ones((3, 17), "float32")
    vectors.view("uint32")[1, place] = number
    arrays = Codec(bits, 17).encode(TokenEmbeddings.from_list([vectors]))
    assert (arrays["scales"] >= 0xFF00).tolist() == [False, True, False]
    assert not are_finite(arrays)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_unpacking_and_decoding_equal_the_loop(bits, dim):
    sample = CodedSample(dim, bits)
    decoded = sample.decoded()
    wanted = np.concatenate([decoded[d] for d in sample.chosen])
    vectors = np.empty((len(wanted), dim), dtype="float32")
    documents, shape = tuple(sample.documents), tuple(sample.codec.shape)
    decode_documents(documents, sample.chosen, shape, vectors)
    np.testing.assert_allclose(vectors, wanted, rtol=1e-6)
    rows, scales = np.empty((len(wanted), byte_width(dim)), dtype="uint8"), np.empty(len(wanted), dtype="float32")
    unpack_documents(documents, sample.chosen, shape, rows, scales)
    np.testing.assert_allclose((rows[:, :dim].astype("float64") - 128) * scales[:, None], wanted, rtol=1e-6)
    assert (rows[:, dim:] == 128).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_single_tokens_are_those_of_their_documents(bits, dim):
    sample = CodedSample(dim, bits)
    documents, shape = tuple(sample.documents), tuple(sample.codec.shape)
    offsets = np.cumsum([0, *sample.documents.lengths[sample.chosen]])
    all_rows, all_scales = np.empty((offsets[-1], byte_width(dim)), "uint8"), np.empty(offsets[-1], "float32")
    unpack_documents(documents, sample.chosen, shape, all_rows, all_scales)
    ascending = np.arange(offsets[-1])
    for numbers in (
        ascending,
        ascending[::3],
        ascending[::-1].copy(),
        np.array([4, 4, 0, offsets[-1] - 1]),
        ascending[:0],
    ):
        rows, scales = np.empty((len(numbers), byte_width(dim)), "uint8"), np.empty(len(numbers), "float32")
        unpack_tokens(documents, sample.chosen, offsets, numbers, shape, rows, scales)
        np.testing.assert_array_equal(rows, all_rows[numbers])
        np.testing.assert_array_equal(scales, all_scales[numbers])
