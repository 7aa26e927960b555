"""Codes of documents: against a naive loop, and what they lose."""

import numpy as np
import pytest
from coded_documents import DIMS, CodedSample, bit

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
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
