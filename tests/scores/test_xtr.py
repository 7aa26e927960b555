"""XTR's scores beside those of sentence-transformers, which follow the paper, and what is refused."""

import numpy as np
import pytest
import torch
from sentence_transformers.multi_vector_encoder import scoring as theirs

from latelier import scores as ours
from latelier.embeddings import TokenEmbeddings

pytestmark = pytest.mark.processor


def padded(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.nn.functional.normalize(torch.randn(*shape, 8, generator=generator), dim=-1).to(dtype)
    mask = torch.rand(*shape, generator=generator) > 0.3
    mask[..., 0] = True
    return vectors.requires_grad_(), mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("top_k", [1, 5, 30, 1000])
def test_values_and_gradients_are_those_of_sentence_transformers(top_k, dtype):
    (queries, queries_mask), (documents, documents_mask) = (
        padded(3, 4, dtype=dtype),
        padded(3, 2, 6, dtype=dtype, seed=1),
    )
    weights = torch.rand(3, 6, generator=torch.Generator().manual_seed(2))
    results = []
    for library in (ours, theirs):
        # Similarities of bfloat16 vectors in float32: rounding must not choose which tokens are retrieved.
        inputs = [
            x if library is ours else x.to(torch.promote_types(dtype, torch.float32)) for x in (queries, documents)
        ]
        scores = library.xtr_scores(*inputs, queries_mask, documents_mask, top_k=top_k)
        gradients = torch.autograd.grad((scores.float() * weights).sum(), [queries, documents])
        results.append((scores.float(), *(g.float() for g in gradients)))
    assert results[0][0].dtype == torch.float32
    assert results[1][1].abs().max() > 0.01
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_own_documents_and_pairs_are_columns_of_all():
    (queries, queries_mask), (documents, documents_mask) = padded(3, 4), padded(3, 2, 6, seed=1)
    every = ours.xtr_scores(queries, documents, queries_mask, documents_mask, top_k=7)
    own = ours.xtr_kd_scores(queries, documents, queries_mask, documents_mask, top_k=7)
    torch.testing.assert_close(own, torch.stack([every[i, 2 * i : 2 * i + 2] for i in range(3)]))
    first, mask = documents[:, 0], documents_mask[:, 0]
    pairs = ours.xtr_scores_pairwise(queries, first, queries_mask, mask, top_k=7)
    torch.testing.assert_close(pairs, ours.xtr_scores(queries, first, queries_mask, mask, top_k=7).diagonal())


def test_all_forms_give_the_same_scores(monkeypatch):
    (queries, queries_mask), (documents, documents_mask) = padded(3, 4), padded(5, 6, seed=1)
    expected = ours.xtr_scores(queries, documents, queries_mask, documents_mask, top_k=4).detach()
    packed = [
        TokenEmbeddings.from_padded(v.detach(), m) for v, m in ((queries, queries_mask), (documents, documents_mask))
    ]
    torch.testing.assert_close(ours.xtr_scores(*packed, top_k=4), expected)
    torch.testing.assert_close(ours.xtr_scores(*(list(p.to("numpy")) for p in packed), top_k=4), expected)
    monkeypatch.setattr("latelier.scores.colbert._BLOCK_ELEMENTS", 40)  # one or two query tokens at a time
    torch.testing.assert_close(ours.xtr_scores(*packed, top_k=4), expected)


def test_sides_of_two_dtypes_and_no_documents_at_all():
    query, document = np.array([[1.0, 0.0]]), np.array([[0.5, 0.0]], dtype="float32")
    assert ours.xtr_scores([query], [document]).tolist() == [[0.5]]
    assert ours.xtr_scores([query], []).shape == (1, 0)
    assert ours.xtr_kd_scores([query], []).shape == (1, 0)
    assert ours.xtr_scores([], [document]).shape == (0, 1)
    assert ours.xtr_scores([query], TokenEmbeddings(document[:0], [0, 0])).tolist() == [[-torch.inf]]
