"""What losses share: mini-batches, several dimensions; and what distillation and contrast can be told besides."""

import re
from functools import partial

import pytest
import torch
from naive_losses import (
    Lexicon,
    features,
    log_softmax,
    naive_contrastive,
    naive_distillation,
    score_each,
    vocabulary_texts,
)
from sentence_transformers.multi_vector_encoder import scoring as theirs
from sentence_transformers.multi_vector_encoder.losses import MultiVectorDistillKLDivLoss

from latelier import scores as ours
from latelier.errors import InvalidArgumentError
from latelier.losses import CachedContrastive, Contrastive, Distillation, MarginMSE

pytestmark = pytest.mark.processor

LABELS = [[0.9, 0.1, 0.4], [0.2, 0.8, 0.5], [0.3, 0.6, 0.2]]

LOSSES = {
    "contrastive": Contrastive,
    "cached": CachedContrastive,
    "distillation": Distillation,
    "in-batch": partial(Distillation, in_batch_weight=0.5),
    "margin": MarginMSE,
}


def texts(b=3, n=3):
    return vocabulary_texts(b, 0, lowest=4), [vocabulary_texts(n, 10 + i) for i in range(b)]


def batch_of(queries, documents):
    columns = [features(list(column), "document") for column in zip(*documents, strict=True)]
    return [features(queries, "query"), *columns]


def all_scores(model, queries, documents, dim=None):
    def cut(matrix):
        return torch.nn.functional.normalize(matrix[:, :dim], dim=1)

    every = [cut(model.one(text, "document")) for group in documents for text in group]
    return [score_each(cut(model.one(query, "query")), every) for query in queries]


def gradient(loss, model):
    return torch.autograd.grad(loss, model.table.weight, retain_graph=True)[0]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dims", [(6,), (6, 3), [2]], ids=str)
def test_several_dimensions_are_the_mean_of_their_losses(name, dims):
    model = Lexicon()
    queries, documents = texts()
    loss = LOSSES[name](model, dims=dims)(batch_of(queries, documents), torch.tensor(LABELS))
    singles = []
    for dim in dims:
        small = Lexicon(dim=dim)
        cut = torch.nn.functional.normalize(model.table.weight.detach(), dim=1)[:, :dim]
        small.table.weight.data.copy_(cut)
        singles.append(LOSSES[name](small)(batch_of(queries, documents), torch.tensor(LABELS)).item())
    assert loss.item() == pytest.approx(sum(singles) / len(singles), rel=1e-5)
    assert gradient(loss, model).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["contrastive", "distillation", "margin"])
@pytest.mark.parametrize("tokens", [1, 5, 17, 100000])
def test_mini_batches_change_nothing(name, tokens):
    model = Lexicon()
    queries, documents = texts(3, 3)
    found = LOSSES[name](model, mini_batch_tokens=tokens)(batch_of(queries, documents), torch.tensor(LABELS))
    expected = LOSSES[name](model)(batch_of(queries, documents), torch.tensor(LABELS))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient(found, model), gradient(expected, model), rtol=1e-4, atol=1e-6)


def test_mini_batches_hold_texts_of_one_length_within_the_budget(colbert):
    shapes = []
    colbert.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(args[0]["input_ids"].shape)), with_kwargs=True
    )
    long, short = "Wings push air down, " * 4, "Birds fly."
    documents = colbert.tokenize([short, long, short, long, short, short], is_query=False)
    Contrastive(colbert, mini_batch_tokens=50)([colbert.tokenize(["what flies?"] * 2), documents])
    lengths = documents["attention_mask"].sum(dim=1).tolist()
    assert shapes[1:] == [(2, lengths[1]), (4, lengths[0])]
    assert lengths[0] * 6 < 50 < lengths[1] * 3


@pytest.mark.parametrize(("student", "teacher"), [(2.0, None), (0.5, 3.0)])
def test_temperatures_against_the_loop_and_sentence_transformers(colbert, student, teacher):
    model = Lexicon()
    queries, documents = texts()
    options = {"normalize_scores": False, "temperature": student, "teacher_temperature": teacher}
    loss = Distillation(model, **options)(batch_of(queries, documents), torch.tensor(LABELS))
    rows = all_scores(model, queries, documents)
    scores = [[value / student for value in row[3 * i : 3 * i + 3]] for i, row in enumerate(rows)]
    labels = [[value / (teacher or student) for value in row] for row in LABELS]
    expected = naive_distillation(scores, labels, normalize=False) * student**2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(gradient(loss, model), gradient(expected, model), rtol=1e-3, atol=1e-5)
    columns = [["what flies?", "what is red?"], ["a bird", "blood"], ["a rock", "a tree"], ["iron", "water"]]
    batch = [colbert.tokenize(column, is_query=column is columns[0]) for column in columns]
    theirs = MultiVectorDistillKLDivLoss(colbert, student_temperature=student, teacher_temperature=teacher or student)
    wanted = theirs(batch, torch.tensor(LABELS[:2]))
    assert Distillation(colbert, **options)(batch, LABELS[:2]).item() == pytest.approx(wanted.item(), abs=1e-4)


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_in_batch_negatives_against_the_loop(mean):
    model = Lexicon()
    queries, documents = texts()
    options = {"normalize_scores": False, "size_average": mean, "temperature": 0.5}
    loss = Distillation(model, in_batch_weight=0.7, **options)(batch_of(queries, documents), torch.tensor(LABELS))
    plain = Distillation(model, **options)(batch_of(queries, documents), torch.tensor(LABELS))
    total = 0.0
    for i, row in enumerate(all_scores(model, queries, documents)):
        best = 3 * i + max(range(3), key=LABELS[i].__getitem__)
        flat = [text for group in documents for text in group]
        others = [row[j] for j in range(9) if j // 3 != i and flat[j] != flat[best]]
        total = total - log_softmax([value / 0.5 for value in [row[best], *others]])[0]
    expected = plain + 0.7 * (total / 3 if mean else total)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient(loss, model), gradient(expected, model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_the_best_candidate_of_another_row_with_the_same_query_is_no_negative(mean):
    """The best by the teacher's scores, at whatever place among the candidates."""
    model = Lexicon()
    queries, documents = texts()
    queries[1] = queries[0]
    documents = [[[*text, 4 + 3 * i + j] for j, text in enumerate(group)] for i, group in enumerate(documents)]
    options = {"normalize_scores": False, "size_average": mean}
    loss = Distillation(model, in_batch_weight=1.0, **options)(batch_of(queries, documents), torch.tensor(LABELS))
    plain = Distillation(model, **options)(batch_of(queries, documents), torch.tensor(LABELS))
    best = [3 * i + max(range(3), key=LABELS[i].__getitem__) for i in range(3)]
    assert best[0] % 3 != best[1] % 3
    total = 0.0
    for i, row in enumerate(all_scores(model, queries, documents)):
        same = {best[j] for j in range(3) if queries[j] == queries[i]}
        others = [row[j] for j in range(9) if j // 3 != i and j not in same]
        total = total - log_softmax([row[best[i]], *others])[0]
    assert loss.item() == pytest.approx((plain + (total / 3 if mean else total)).item(), rel=1e-5)


def test_a_text_is_not_its_own_negative_wherever_it_stands():
    model = Lexicon()
    queries = [[5, 6], [7], [5, 6]]
    documents = [[[8, 9], [10, 11]], [[12, 13], [8, 9]], [[14], [15, 16]]]
    # Query 0: its positive stands again as query 1's negative, and row 2 has the same query with another positive.
    left_out = {0: {3, 4}, 1: set(), 2: {0}}
    rows = all_scores(model, queries, documents)
    total = sum(
        -log_softmax([row[2 * i], *[row[j] for j in range(6) if j != 2 * i and j not in left_out[i]]])[0]
        for i, row in enumerate(rows)
    )
    for kind in (Contrastive, CachedContrastive):
        loss = kind(model)(batch_of(queries, documents))
        assert loss.item() == pytest.approx(total.item() / 3, rel=1e-5)
        torch.testing.assert_close(gradient(loss, model), gradient(total / 3, model), rtol=1e-4, atol=1e-5)
    plain = Contrastive(model, mask_duplicates=False)(batch_of(queries, documents))
    assert plain.item() == pytest.approx(naive_contrastive(rows, 2).item(), rel=1e-5)


LABELS_SCORERS = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.8, 0.5]])


def small_batch(model):
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


SCORERS = {
    "ours": (ours.colbert_scores, ours.colbert_kd_scores, maxsim),
    "theirs": (theirs.colbert_scores, theirs.colbert_kd_scores, maxsim),
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
        (
            Distillation(model, grouped)(batch, LABELS_SCORERS),
            naive_distillation([rows[0][:3], rows[1][3:]], LABELS_SCORERS),
        ),
    ]
    for loss, expected in pairs:
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        gradient, wanted = (torch.autograd.grad(x, model.table.weight, retain_graph=True)[0] for x in (loss, expected))
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


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


def test_scores_of_another_shape_are_refused():
    model = Lexicon()
    message = "score_metric returned shape (2, 3) for 2 queries with 3 documents each; expected shape (2, 6)"
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        Contrastive(model, ours.colbert_kd_scores)(small_batch(model)[0], LABELS_SCORERS)
