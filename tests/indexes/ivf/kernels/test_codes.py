"""Codes of documents, with kernels and in numpy: against a naive loop, and what they lose."""

from dataclasses import replace

import numpy as np
import pytest
from coded_documents import DIMS, LENGTHS, CodedSample, bit, random_axis

from instructions import forced
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec, choose_axis
from latelier.indexes.ivf.kernels.codes import decode_documents, restore, unpack_documents, unpack_tokens
from latelier.indexes.ivf.layout import BITS, byte_width, sign_words

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("kernel")]


@pytest.mark.parametrize("dim", [*DIMS, 48, 1024])
def test_rotation_keeps_products_and_is_undone(dim):
    rng, axis = np.random.default_rng(1), random_axis(dim)
    vectors = rng.standard_normal((7, dim)).astype("float32")
    codec = Codec(8, dim, axis)
    rests, leads = codec.rotate(vectors)
    np.testing.assert_allclose(leads, vectors.astype("float64") @ axis, atol=1e-5)
    wanted = vectors.astype("float64") @ vectors.T - np.outer(leads, leads)
    np.testing.assert_allclose(rests.astype("float64") @ rests.T, wanted, atol=1e-5 * dim)
    np.testing.assert_allclose(restore(rests, leads, codec.rotation), vectors, atol=1e-5)


@pytest.mark.parametrize("tokens", [[[3.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]], [[0.0, 0.0]], [[np.nan, 1.0], [2.0, 0.0]]])
def test_the_axis_is_the_leading_direction_of_any_tokens(tokens):
    axis = choose_axis(np.array(tokens, dtype="float32"))
    np.testing.assert_allclose(np.abs(axis), [0 if not np.any(tokens) else 1, 0], atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_codes_are_near_the_rests_and_binary_codes_have_their_signs(bits, dim):
    sample = CodedSample(dim, bits)
    for rests, decoded in zip(sample.rests, sample.decoded(), strict=True):
        if bits == 8:
            # Half a step, where a step is the largest number over 127, rounded up by at most 1/256.
            assert (np.abs(rests - decoded) <= np.abs(rests).max(axis=1, keepdims=True) / 127 * 0.503 + 1e-6).all()
        else:
            squares = (rests.astype("float64") ** 2).sum(axis=1)  # the scale is rounded to 9 bits
            np.testing.assert_allclose((rests * decoded).sum(axis=1), squares, rtol=1 / 256, atol=1e-9)
            assert bits < 4 or ((rests >= 0) == (decoded > 0))[squares > 1e-9].all()
    for vectors, leads in zip(sample.vectors, sample.leads, strict=True):
        np.testing.assert_allclose(leads, vectors @ sample.codec.axis, rtol=2**-15, atol=1e-6)
    signs = np.array([[bit(row, i) for i in range(dim)] for row in sample.arrays["signs"]])
    rests = np.concatenate(sample.rests)
    left = np.concatenate(sample.decoded())
    if bits < 4:
        scales = (sample.arrays["scales"].astype("uint32") << 15).view("float32")
        left = left - sample.codec.codebook[sample.arrays["cells"] >> 4] * scales[:, None]
    assert (signs == (left >= 0))[(rests**2).sum(axis=1) > 1e-9].all()
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
        # The smallest numbers have fewer digits.
        assert np.mean(codes != usual[name]) < (0.02 if exponent < -100 else 1e-9)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_unpacking_and_decoding_equal_the_loop(bits, dim):
    sample = CodedSample(dim, bits)
    decoded = sample.decoded()
    wanted = np.concatenate([decoded[d] for d in sample.chosen])
    shape = sample.codec.shape
    vectors, leads = decode_documents(sample.documents, sample.chosen, shape)
    np.testing.assert_allclose(vectors, wanted, rtol=1e-6)
    np.testing.assert_allclose(leads, np.concatenate([sample.leads[d] for d in sample.chosen]), rtol=1e-6)
    rows, scales = np.empty((len(wanted), byte_width(dim)), dtype="uint8"), np.empty(len(wanted), dtype="float32")
    unpack_documents(sample.documents, sample.chosen, shape, rows, scales)
    np.testing.assert_allclose((rows[:, :dim].astype("float64") - 128) * scales[:, None], wanted, rtol=1e-6)
    assert (rows[:, dim:] == 128).all()
    owners = np.repeat(sample.chosen, LENGTHS[sample.chosen])
    tokens = np.concatenate([np.arange(LENGTHS[d]) for d in sample.chosen])
    some = np.random.default_rng(1).permutation(len(owners))[:30]
    few, few_scales = np.zeros((30, byte_width(dim)), dtype="uint8"), np.zeros(30, dtype="float32")
    unpack_tokens(sample.documents, owners[some], tokens[some], shape, few, few_scales)
    np.testing.assert_array_equal(few, rows[some])
    np.testing.assert_array_equal(few_scales, scales[some])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 33, 48, 384])
def test_codes_are_those_of_numpy_but_where_a_number_is_at_an_edge(bits, dim):
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((400, dim)).astype("float32") + np.float32(0.5)
    vectors[:5] *= np.float32([[0], [1e-20], [1e20], [-1e-3], [1]])
    codec = Codec(bits, dim, choose_axis(vectors))
    if codec.has_cells:
        codec = replace(codec, codebook=codec.choose_codebook(vectors))
    given = TokenEmbeddings(vectors, [0, 400])
    found = codec.encode(given)
    with forced("numpy"):
        wanted = codec.encode(given)
    for name, expected in wanted.items():
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        assert np.mean(found[name] != expected) < 0.01, name


@pytest.mark.parametrize("bits", BITS)
def test_tokens_that_hold_infinity_or_nan_have_scales_that_tell(bits):
    vectors = np.random.default_rng(7).standard_normal((4, 40)).astype("float32")
    vectors[1, 3], vectors[2, 4] = np.inf, np.nan
    scales = Codec(bits, 40, random_axis(40)).encode(TokenEmbeddings(vectors, [0, 4]))["scales"]
    assert (scales >= 0xFF00).tolist() == [False, True, True, False]
