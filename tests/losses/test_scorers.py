"""Every loss with every scoring function, in every precision."""

import re
from functools import partial

import pytest
import torch
from naive_losses import Lexicon, features, naive_contrastive, naive_distillation, score_each
from sentence_transformers import SentenceTransformer
from sentence_transformers.multi_vector_encoder import scoring as theirs

from latelier import scores as ours
from latelier.errors import InvalidArgumentError
from latelier.losses import Contrastive, Distillation

pytestmark = pytest.mark.processor

LABELS = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.8, 0.5]])


def small_batch(model):
    """Two queries with three documents each, as features and as single texts."""
    # No token twice: XTR's choice among equal similarities would be arbitrary.
    queries = [[17, 18, 19], [20, 21]]
    documents = [[4, 5, 1, 6], [7], [8, 9, 2], [10, 11, 12, 13], [3, 14], [15, 16]]
    single = [model.one(q, "query") for q in queries], [model.one(d, "document") for d in documents]
    return [features(queries, "query"), features(documents, "document")], *single


def xtr(queries, documents, top_k):
    """XTR in loops (Lee et al., 2023): each query token retrieves `top_k` of all document tokens."""
    rows = []
    for query in queries:
        row, counts = [torch.zeros(()) for _ in documents], [0] * len(documents)
        for token in query:
            found = [(token @ t, j) for j, document in enumerate(documents) for t in document]
            retrieved = sorted(found, key=lambda pair: -pair[0].item())[:top_k]
            for j in {j for _, j in retrieved}:
                row[j] = row[j] + max((s for s, i in retrieved if i == j), key=torch.Tensor.item)
                counts[j] += 1
        rows.append([value / max(count, 1) for value, count in zip(row, counts, strict=True)])
    return rows


def maxsim(queries, documents):
    return [score_each(query, documents) for query in queries]


def mean_maxsim(queries, documents):
    return [[value / len(q) for value in row] for q, row in zip(queries, maxsim(queries, documents), strict=True)]


SCORERS = {
    "ours": (ours.colbert_scores, ours.colbert_kd_scores, maxsim),
    "ours-torch": (*(partial(f, backend="torch") for f in (ours.colbert_scores, ours.colbert_kd_scores)), maxsim),
    "theirs": (theirs.colbert_scores, theirs.colbert_kd_scores, maxsim),
    "theirs-mean": (theirs.mean_colbert_scores, theirs.mean_colbert_kd_scores, mean_maxsim),
    "ours-xtr": (*(partial(f, top_k=5) for f in (ours.xtr_scores, ours.xtr_kd_scores)), partial(xtr, top_k=5)),
    "xtr": (theirs.XTRScores(top_k=5), theirs.XTRKDScores(top_k=5), partial(xtr, top_k=5)),
}


@pytest.mark.parametrize(("all_pairs", "grouped", "loop"), SCORERS.values(), ids=SCORERS)
def test_value_and_gradient_with_every_scorer(all_pairs, grouped, loop):
    model = Lexicon()
    batch, queries, documents = small_batch(model)
    rows = loop(queries, documents)
    pairs = [
        (Contrastive(model, all_pairs, temperature=0.5)(batch), naive_contrastive(rows, 3, 0.5)),
        (Distillation(model, grouped)(batch, LABELS), naive_distillation([rows[0][:3], rows[1][3:]], LABELS)),
    ]
    for loss, expected in pairs:
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        gradient, wanted = (torch.autograd.grad(x, model.table.weight, retain_graph=True)[0] for x in (loss, expected))
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


def test_scorers_are_named_in_the_model_card():
    assert Contrastive(Lexicon(), SCORERS["xtr"][0]).get_config_dict()["score_metric"] == (
        "XTRScores(top_k=5, chunk_elements=None)"
    )
    assert Contrastive(Lexicon(), SCORERS["ours-torch"][0]).get_config_dict()["score_metric"] == (
        "colbert_scores(backend='torch')"
    )


def test_a_scorer_with_parameters_is_trained_along():
    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, queries, documents, *, queries_mask, documents_mask):
            return self.weight * ours.colbert_scores(queries, documents, queries_mask, documents_mask)

    loss = Contrastive(Lexicon(), Weighted())
    loss(small_batch(loss.model)[0]).backward()
    assert loss.score_metric.weight.grad.abs() > 1e-4
    assert [name for name, _ in loss.named_parameters()] == ["model.table.weight", "score_metric.weight"]


def test_gradients_are_exact_in_double_precision():
    def scorer(queries, documents, queries_mask, documents_mask):
        similarities = torch.einsum("bqh,cndh->bqcnd", queries, documents)
        similarities = similarities.masked_fill(~documents_mask[None, None], -torch.inf)
        return (similarities.amax(4) * queries_mask[:, :, None, None]).sum(1).flatten(1)

    model = Lexicon(vocabulary=12, dtype=torch.float64)
    batch = [features([[4, 5], [6]], "query"), features([[7], [8, 1, 9], [4, 10], [11]], "document")]
    loss = Contrastive(model, scorer)
    assert loss(batch).dtype == torch.float64

    def run(weight):
        return torch.func.functional_call(loss, {"model.table.weight": weight}, (batch,))

    assert torch.autograd.gradcheck(run, model.table.weight, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["autocast", "model"])
@pytest.mark.parametrize("scorer", ["ours", "theirs", "ours-xtr", "xtr"])
def test_half_precision_embeddings_are_scored_in_float32(colbert, kind, scorer):
    if kind == "model":
        colbert.bfloat16()
    outputs = []
    colbert.register_forward_hook(lambda _, args, out: outputs.append(out))
    documents = colbert.tokenize(["a bird", "a rock", "blood", "a tree"], is_query=False)
    batch = [colbert.tokenize(["what flies?", "what is red?"]), documents]
    all_pairs, _, loop = SCORERS[scorer]
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        loss = Contrastive(colbert, all_pairs, temperature=0.02)(batch)
    assert loss.dtype == torch.float32
    sides = [zip(out["token_embeddings"], out["attention_mask"].bool(), strict=True) for out in outputs]
    single = [[vectors[mask].float() for vectors, mask in side] for side in sides]
    expected = naive_contrastive(loop(*single), 2, 0.02)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-3)
    loss.backward()
    assert colbert[1].linear.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("loss", "scorer", "received", "expected"),
    [
        (
            Contrastive,
            ours.colbert_kd_scores,
            "shape (2, 3)",
            "expected shape (2, 6), as latelier.scores.colbert_scor",
        ),
        (Distillation, ours.colbert_scores, "shape (2, 6)", "expected shape (2, 3), as latelier.scores.colbert_kd_"),
        (Distillation, lambda q, d, **masks: 3.0, "a float", "expected shape (2, 3), as latelier.scores.colbert_kd_"),
    ],
)
def test_scores_of_another_shape_are_refused(loss, scorer, received, expected):
    model = Lexicon()
    message = re.escape(f"score_metric returned {received} for 2 queries with 3 documents each; {expected}")
    with pytest.raises(InvalidArgumentError, match=message):
        loss(model, scorer)(small_batch(model)[0], LABELS)


@pytest.mark.parametrize("loss", [Contrastive, Distillation])
def test_what_cannot_be_trained_with_is_refused(loss, shallow):
    with pytest.raises(InvalidArgumentError, match="score_metric='maxsim' is not callable"):
        loss(Lexicon(), "maxsim")
    with pytest.raises(InvalidArgumentError, match="received a model of type str; expected a late-interaction model"):
        loss("all-MiniLM-L6-v2")
    with pytest.raises(InvalidArgumentError, match="received a model of type SentenceTransformer; expected a late"):
        loss(SentenceTransformer(shallow, device="cpu"))
