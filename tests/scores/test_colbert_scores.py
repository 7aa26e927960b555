"""Every engine against the naive double loop, in every form of input."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.scores import colbert_kd_scores, colbert_scores, colbert_scores_pairwise
from naive import naive_matrix, naive_maxsim, naive_tensor_maxsim, ragged

pytestmark = pytest.mark.processor

BACKENDS = ["packed", "torch"]
# Half-precision inputs are rounded before either side sees them; only the accumulation may differ.
TOLERANCE = 2e-5
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def check_scores(scores, expected):
    assert scores.dtype == torch.float32
    np.testing.assert_allclose(scores.numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def padded(matrices):
    return TokenEmbeddings.from_list(matrices).pad()


@pytest.mark.parametrize("score", [colbert_scores, colbert_kd_scores, colbert_scores_pairwise])
@pytest.mark.parametrize("broken", ["query", "document", "whole document", None])
def test_nan_shows_where_a_gradient_is_needed(score, broken):
    generator = torch.Generator().manual_seed(0)
    queries, documents = (torch.randn(3, tokens, 8, generator=generator) for tokens in (2, 4))
    if broken == "query":
        queries[1, 1, 3] = torch.nan
    elif broken is not None:
        documents[1, 1 if broken == "document" else slice(None)] = torch.nan
    expected = score(queries, documents, backend="torch")
    assert bool(expected.isnan().any()) == (broken is not None)
    for sides in ((queries.clone().requires_grad_(), documents), (queries, documents.clone().requires_grad_())):
        found = score(*sides, backend="packed")
        torch.testing.assert_close(found.detach(), expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_pairs_equal_the_double_loop(backend, dtype):
    queries = ragged([5, 1, 3], seed=1, dtype=dtype)
    documents = ragged([7, 1, 4, 2], seed=2, dtype=dtype)
    check_scores(colbert_scores(queries, documents, backend=backend), naive_matrix(queries, documents))


@pytest.mark.parametrize("form", ["list", "packed", "padded", "numpy-list", "numpy-padded", "single"])
def test_all_forms_of_input_give_the_same_scores(backend, form):
    queries, documents = ragged([4, 2], seed=3), ragged([3, 6, 1], seed=4)
    expected = naive_matrix(queries, documents)
    masks = {}
    if form == "packed":
        queries, documents = TokenEmbeddings.from_list(queries), TokenEmbeddings.from_list(documents)
    elif form == "padded":
        (queries, masks["queries_mask"]), (documents, masks["documents_mask"]) = padded(queries), padded(documents)
    elif form == "numpy-list":
        queries, documents = [q.numpy() for q in queries], [d.numpy() for d in documents]
    elif form == "numpy-padded":
        (q, qm), (d, dm) = padded(queries), padded(documents)
        queries, documents = q.numpy(), d.numpy()
        masks = {"queries_mask": qm.long().numpy(), "documents_mask": dm.float().numpy()}
    else:
        queries, expected = queries[0], expected[:1]
    check_scores(colbert_scores(queries, documents, backend=backend, **masks), expected)


def test_masks_with_holes_drop_exactly_the_masked_tokens(backend):
    queries, documents = torch.randn(3, 6, 8), torch.randn(4, 9, 8)
    queries_mask, documents_mask = torch.rand(3, 6) > 0.4, torch.rand(4, 9) > 0.4
    documents_mask[:, 4] = True
    kept_queries = [q[m] for q, m in zip(queries, queries_mask, strict=True)]
    kept_documents = [d[m] for d, m in zip(documents, documents_mask, strict=True)]
    scores = colbert_scores(queries, documents, queries_mask, documents_mask, backend=backend)
    check_scores(scores, naive_matrix(kept_queries, kept_documents))


def test_negative_similarities_are_not_beaten_by_padding(backend):
    queries, documents = ragged([3, 2], shift=3.0), ragged([2, 5], seed=9, shift=-3.0)
    expected = naive_matrix(queries, documents)
    assert (expected < 0).all()
    (q, qm), (d, dm) = padded(queries), padded(documents)
    check_scores(colbert_scores(q, d, qm, dm, backend=backend), expected)
    # Without masks, the rows of zeros that padding left are known for what they are.
    check_scores(colbert_scores(q, d, backend=backend), expected)


def test_a_token_without_a_mask_may_begin_with_zero(backend):
    queries = torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    documents = torch.tensor([[[0.0, -3.0], [0.0, 0.0]], [[0.0, 0.5], [1.0, 0.0]]])
    assert colbert_scores(queries, documents, backend=backend).tolist() == [[-6.0, 1.0]]


def test_empty_documents_score_minus_infinity_and_empty_queries_zero(backend):
    queries, documents = ragged([2, 0]), ragged([0, 3], seed=1)
    scores = colbert_scores(queries, documents, backend=backend)
    assert scores[:, 0].tolist() == [-np.inf, -np.inf]
    assert scores[1, 1] == 0
    assert scores[0, 1] == pytest.approx(naive_maxsim(queries[0], documents[1]), abs=TOLERANCE)
    (q, qm), (d, dm) = padded(queries), padded(documents)
    assert colbert_scores(q, d, qm, dm, backend=backend).tolist() == scores.tolist()


def test_no_texts_at_all(backend):
    documents = ragged([2, 3])
    assert colbert_scores(TokenEmbeddings.from_list([], dim=8), documents, backend=backend).shape == (0, 2)
    assert colbert_scores(documents, TokenEmbeddings.from_list([], dim=8), backend=backend).shape == (2, 0)


def test_many_queries_are_scored_in_several_passes():
    queries, documents = ragged([32] * 70, dim=4), ragged([3, 2], dim=4, seed=1)
    check_scores(colbert_scores(queries, documents), naive_matrix(queries, documents))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_negated_when_they_are_read(backend, dtype):
    """Views with the negative bit, whose memory holds the numbers without the sign."""
    matrices = [ragged([n], seed=n, dtype=dtype)[0] for n in (5, 3, 1)]
    views = [torch._neg_view(-matrix) for matrix in matrices]
    expected = naive_matrix(matrices, matrices)
    for queries, documents in ((views, matrices), (matrices, views), (matrices, [matrices[0], *views[1:]])):
        check_scores(colbert_scores(queries, documents, backend=backend), expected)
    pair = torch.stack([matrices[0], matrices[0].flip(0) / 2])
    padded_view = torch._neg_view(-pair)
    check_scores(colbert_scores(padded_view, padded_view, backend=backend), naive_matrix(pair, pair))


def test_reversed_and_read_only_numpy(backend):
    documents = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")[:, ::-1]
    queries = np.ones((1, 2, 8), dtype="float32")
    queries.setflags(write=False)
    check_scores(colbert_scores(queries, documents, backend=backend), naive_matrix(queries, documents))


def test_groups_come_out_query_major(backend):
    queries, documents = torch.randn(2, 3, 8), torch.randn(2, 4, 5, 8)
    scores = colbert_scores(queries, documents, backend=backend)
    assert scores.shape == (2, 8)
    for i in range(2):
        for j in range(2):
            for m in range(4):
                assert scores[i, j * 4 + m] == pytest.approx(naive_maxsim(queries[i], documents[j, m]), abs=TOLERANCE)


def test_kd_takes_nested_lists_and_packed_documents(backend):
    queries, documents = ragged([3, 2]), ragged([2, 5, 1, 4], seed=7)
    expected = [[naive_maxsim(queries[i], documents[2 * i + m]) for m in range(2)] for i in range(2)]
    check_scores(colbert_kd_scores(queries, [documents[:2], documents[2:]], backend=backend), expected)
    check_scores(colbert_kd_scores(queries, TokenEmbeddings.from_list(documents), backend=backend), expected)


def test_pairwise_is_the_diagonal(backend):
    queries, documents = ragged([3, 2, 4]), ragged([5, 1, 2], seed=6)
    expected = np.diag(naive_matrix(queries, documents))
    check_scores(colbert_scores_pairwise(queries, documents, backend=backend), expected)


@pytest.mark.parametrize("function", [colbert_scores, colbert_kd_scores, colbert_scores_pairwise])
def test_gradients_equal_those_of_the_double_loop(function, backend, kernel):
    def inputs():
        generator = torch.Generator().manual_seed(0)
        queries = torch.randn(2, 3, 4, generator=generator).requires_grad_()
        shape = (2, 5, 4) if function is not colbert_kd_scores else (2, 3, 5, 4)
        documents = torch.randn(*shape, generator=generator).requires_grad_()
        mask = torch.rand(shape[:-1], generator=generator) > 0.3
        mask[..., 1] = True
        return queries, documents, mask

    queries, documents, mask = inputs()
    scores = function(queries, documents, documents_mask=mask, backend=backend)
    weights = torch.arange(1, scores.numel() + 1).view(scores.shape).float()
    (scores * weights).sum().backward()

    naive_queries, naive_documents, _ = inputs()
    kept = [d[m] for d, m in zip(naive_documents.flatten(0, -3), mask.flatten(0, -2), strict=True)]
    if function is colbert_scores:
        pairs = [(q, d) for q in naive_queries for d in kept]
    elif function is colbert_kd_scores:
        pairs = [(naive_queries[i // 3], d) for i, d in enumerate(kept)]
    else:
        pairs = list(zip(naive_queries, kept, strict=True))
    naive = torch.stack([naive_tensor_maxsim(q, d) for q, d in pairs]).view(scores.shape)
    (naive * weights).sum().backward()

    torch.testing.assert_close(scores, naive)
    torch.testing.assert_close(queries.grad, naive_queries.grad)
    torch.testing.assert_close(documents.grad, naive_documents.grad)
    assert (documents.grad[~mask] == 0).all()


def test_gradient_is_finite_next_to_an_empty_document(backend):
    queries, documents = torch.randn(1, 3, 4, requires_grad=True), torch.randn(2, 5, 4, requires_grad=True)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1] = False
    scores = colbert_scores(queries, documents, documents_mask=mask, backend=backend)
    assert scores[0, 1] == -np.inf
    scores[0, 0].backward()
    assert torch.isfinite(queries.grad).all()
    assert (documents.grad[1] == 0).all()


def test_gradients_of_ragged_lists_and_half_precision(backend, kernel):
    def inputs():
        sides = ragged([3, 0, 5], seed=1, dtype=torch.bfloat16), ragged([2, 7, 1, 9], seed=2, dtype=torch.bfloat16)
        return [[m.requires_grad_() for m in side] for side in sides]

    (queries, documents), (naive_queries, naive_documents) = inputs(), inputs()
    colbert_scores(queries, documents, backend=backend).square().sum().backward()
    naive = torch.stack([naive_tensor_maxsim(q.float(), d.float()) for q in naive_queries for d in naive_documents])
    naive.square().sum().backward()
    for ours, theirs in zip([*queries, *documents], [*naive_queries, *naive_documents], strict=True):
        assert ours.grad.dtype == torch.bfloat16
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=3e-2, atol=3e-2)  # bfloat16 has 3 digits


def test_gradients_of_a_training_batch_equal_those_of_plain_torch():
    generator = torch.Generator().manual_seed(0)
    # More query tokens than one pass takes; unit vectors, so that the softmax does not magnify rounding.
    queries = normalize(torch.randn(24, 48, 16, generator=generator), dim=-1).requires_grad_()
    documents = normalize(torch.randn(24, 2, 30, 16, generator=generator), dim=-1).requires_grad_()
    mask = torch.rand(24, 2, 30, generator=generator) > 0.2
    grads = {}
    for backend in BACKENDS:
        loss = colbert_scores(queries, documents, documents_mask=mask, backend=backend).log_softmax(1)[:, ::3].sum()
        grads[backend] = torch.autograd.grad(loss, [queries, documents])
    for ours, theirs in zip(grads["packed"], grads["torch"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


REFUSED = {
    "queries have dim 4, the documents 5": lambda: colbert_scores(torch.ones(1, 2, 4), torch.ones(1, 2, 5)),
    "received queries of type str": lambda: colbert_scores("text", torch.ones(1, 2, 5)),
    r"mask of shape \(2, 4": lambda: colbert_scores(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(2, 4)),
    "2 queries and 3 documents": lambda: colbert_scores_pairwise(torch.ones(2, 3, 4), torch.ones(3, 3, 4)),
    "in groups of 2": lambda: colbert_kd_scores(torch.ones(2, 3, 4), torch.ones(3, 2, 3, 4)),
    r"text 1 .*shape \(4,\)": lambda: colbert_scores([torch.ones(2, 4), torch.ones(4)], torch.ones(1, 2, 4)),
    r"groups of \[0, 1\]": lambda: colbert_kd_scores([torch.ones(2, 4)] * 2, [[torch.ones(1, 4)], []]),
    "documents of dtype torch.int8": lambda: colbert_scores(torch.ones(1, 2, 4), torch.ones(1, 2, 4).char()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_inputs_say_what_was_received(message):
    with pytest.raises(EmbeddingsError, match=message):
        REFUSED[message]()


def test_unknown_or_unfit_backends_are_named():
    with pytest.raises(InvalidArgumentError, match="backend='cuda'; expected 'auto', 'packed', 'int8'"):
        colbert_scores(torch.ones(1, 2, 4), torch.ones(1, 2, 4), backend="cuda")
    with pytest.raises(InvalidArgumentError, match="backend 'int8' has no gradients"):
        colbert_scores(torch.ones(1, 2, 4, requires_grad=True), torch.ones(1, 2, 4), backend="int8")
    with pytest.raises(InvalidArgumentError, match="'fused' runs on CUDA, but the documents are on cpu"):
        colbert_scores(torch.ones(1, 2, 4), torch.ones(1, 2, 4), backend="fused")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="system libraries elsewhere forbid forks")
def test_a_forked_child_does_not_wait_for_threads_that_it_lacks():
    program = """
import os, signal, torch
from latelier.scores import colbert_scores
torch.set_num_threads(2)
queries, documents = torch.ones(1, 64, 128), torch.ones(300, 200, 128)
expected = colbert_scores(queries, documents)  # starts the threads
child = os.fork()
if child == 0:
    signal.alarm(60)
    assert torch.equal(colbert_scores(queries, documents), expected)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "0", done.stderr


def test_documents_of_each_query_may_be_arrays_of_three_dimensions():
    torch.manual_seed(0)
    queries, documents = torch.randn(2, 3, 4), torch.randn(2, 5, 6, 4)
    expected = colbert_kd_scores(queries, documents)
    for given in (list(documents), [each.numpy() for each in documents]):
        torch.testing.assert_close(colbert_kd_scores(queries, given), expected)
