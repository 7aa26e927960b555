"""What losses share: mini-batches, several dimensions; and what distillation and contrast can be told besides."""

import warnings
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
from sentence_transformers.multi_vector_encoder.losses import MultiVectorDistillKLDivLoss

from latelier.errors import InvalidArgumentError
from latelier.losses import CachedContrastive, Contrastive, Distillation, MarginMSE
from latelier.scores import colbert_kd_scores

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


def test_dimensions_against_the_loop():
    model = Lexicon()
    queries, documents = texts()
    loss = Contrastive(model, dims=(6, 2))(batch_of(queries, documents))
    expected = sum(naive_contrastive(all_scores(model, queries, documents, dim), 3) for dim in (6, 2)) / 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient(loss, model), gradient(expected, model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [(), (0,), (2.0,), "128", 3, (True,)], ids=repr)
def test_dimensions_that_are_none_are_refused(dims):
    with pytest.raises(
        InvalidArgumentError, match=r"dims=.*; expected dimensions to train for, such as \(128, 64, 32\)"
    ):
        Contrastive(Lexicon(), dims=dims)


def test_more_dimensions_than_there_are_are_refused():
    with pytest.raises(InvalidArgumentError, match="dims holds 7, but the model's vectors have 6 dimensions"):
        Contrastive(Lexicon(), dims=(6, 7))(batch_of(*texts()))


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


@pytest.mark.parametrize("tokens", [0, -3, 1.5, True])
def test_budgets_that_are_none_are_refused(tokens):
    with pytest.raises(InvalidArgumentError, match=r"mini_batch_tokens=.*; expected an integer of at least 1"):
        Distillation(Lexicon(), mini_batch_tokens=tokens)


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


@pytest.mark.parametrize("name", ["size_average", "normalize_scores", "mask_duplicates", "gather_across_devices"])
@pytest.mark.parametrize("value", ["no", None, 2, [True]])
def test_flags_are_true_or_false(name, value):
    loss = Distillation if name == "normalize_scores" else Contrastive
    with pytest.raises(InvalidArgumentError, match=rf"received {name}=.*; expected True or False"):
        loss(Lexicon(), **{name: value})
    loss(Lexicon(), **{name: True})


def test_one_candidate_and_in_batch_negatives_are_something_to_learn():
    model = Lexicon()
    queries, documents = texts(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = Distillation(model, in_batch_weight=1.0, normalize_scores=False)(
            batch_of(queries, documents), [[1.0]] * 3
        )
    expected = naive_contrastive(all_scores(model, queries, documents), 1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature=0; expected a positive number"),
        ({"teacher_temperature": -1.0}, "teacher_temperature=-1.0; expected a positive number"),
        ({"in_batch_weight": -0.5}, "in_batch_weight=-0.5; expected a positive number"),
        ({"in_batch_metric": "maxsim"}, "in_batch_metric='maxsim' is not callable"),
    ],
)
def test_options_that_are_none_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Distillation(Lexicon(), **options)


def test_scores_of_a_wrong_in_batch_metric_are_named():
    loss = Distillation(Lexicon(), in_batch_weight=1.0, in_batch_metric=colbert_kd_scores)
    message = r"in_batch_metric returned shape \(3, 3\) for 3 queries .*; expected shape \(3, 9\)"
    with pytest.raises(InvalidArgumentError, match=message):
        loss(batch_of(*texts()), LABELS)


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


def test_texts_are_compared_whatever_their_padding():
    model = Lexicon()
    wide = [features([[5], [6]], "query"), features([[7], [8, 9, 10]], "document"), features([[11], [7]], "document")]
    assert Contrastive(model)(wide).item() < Contrastive(model, mask_duplicates=False)(wide).item()
