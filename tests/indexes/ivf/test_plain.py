"""Codes without kernels are those of the kernels, and searches without them find the same."""

from dataclasses import replace

import numpy as np
import pytest
from ivf_helpers import collection

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec, choose_axis
from latelier.indexes.store.segments import Part, Segment

pytestmark = pytest.mark.processor


def coded(bits, dim):
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((400, dim)).astype("float32") + np.float32(0.5)
    vectors[:5] *= np.float32([[0], [1e-20], [1e20], [-1e-3], [np.inf]])
    vectors = np.nan_to_num(vectors, nan=0, posinf=0, neginf=0)
    codec = Codec(bits, dim, choose_axis(vectors))
    if codec.has_cells:
        codec = replace(codec, codebook=codec.choose_codebook(vectors))
    return codec, TokenEmbeddings(vectors, np.arange(0, 401, 4))


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("dim", [1, 33, 48, 384])
def test_decoded_vectors_are_those_of_the_kernels(bits, dim):
    codec, given = coded(bits, dim)
    numbers = np.arange(100)
    part = Part(Segment.build(numbers, numbers.tolist(), given.lengths, codec.encode(given)), numbers[1::3])
    sizes = np.linalg.norm(given[1::3].vectors, axis=1, keepdims=True).clip(1e-30)
    found, expected = (each.vectors / sizes for each in (codec.decode_plainly(part), codec.decode(part)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)
    for mine, kernels in zip(codec.rotate(given.vectors, plainly=True), codec.rotate(given.vectors), strict=True):
        scale = np.linalg.norm(given.vectors, axis=1).clip(1e-30)
        np.testing.assert_allclose((mine.T / scale).T, (kernels.T / scale).T, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dim", [1, 33, 48, 384])
def test_codes_are_those_of_the_kernels_but_where_a_number_is_at_an_edge(dim):
    codec, given = coded(4, dim)
    plain, kernels = codec.encode_plainly(given), codec.encode(given)
    for name, expected in kernels.items():
        assert (plain[name].dtype, plain[name].shape) == (expected.dtype, expected.shape)
        usual = np.linalg.norm(given.vectors, axis=1) > 1e-10  # the kernels keep more of the digits of smaller ones
        assert np.mean(plain[name][usual] != expected[usual]) < 0.01, name


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_a_search_without_kernels_finds_what_one_with_them_finds(monkeypatch, nbits):
    warm_up = type(indexes.IVF._warm_up)
    documents, queries = collection(2100, dim=48)
    index = indexes.IVF(nbits=nbits)
    index.add(range(2100), documents, metadata=[{"even": i % 2 == 0} for i in range(2100)])
    for options in ({}, {"filter": "even"}):
        expected = index.search(queries, 5, effort="exact", **options)
        monkeypatch.setattr(indexes.IVF, "_warm_up", warm_up(most_work=1 << 60))
        hits = index.search(queries, 5, **options)
        monkeypatch.undo()
        assert [[hit.id for hit in each] for each in hits] == [[hit.id for hit in each] for each in expected]
        scores = [[hit.score for hit in each] for each in expected]
        np.testing.assert_allclose([[hit.score for hit in each] for each in hits], scores, rtol=0, atol=1e-5)
