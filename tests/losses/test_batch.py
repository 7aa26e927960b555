"""How a batch may be laid out: one dict per column, all documents in one dict, or both; and what is refused."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_losses import Lexicon, features, naive_contrastive, score_each, vocabulary_texts

from latelier.errors import InvalidArgumentError
from latelier.losses import Contrastive, Distillation

QUERIES = ["are fruits healthy?", "how do planes fly?"]
DOCUMENTS = [
    ["Fruits are good (very good!) for health.", "Fruits...", "Fruits are sold by weight, or by the piece."],
    ["Planes are made of metal, mostly.", "Wings push air down; the air pushes back.", "Birds fly."],
]
ALL_DOCUMENTS = [text for rows in DOCUMENTS for text in rows]
LABELS = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.8, 0.5]])


@given(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 100))
@settings(max_examples=25)
def test_documents_come_out_grouped_by_query_in_the_order_given(b, sizes, seed):
    model = Lexicon()
    queries, n = vocabulary_texts(b, seed), sum(sizes)
    documents = [vocabulary_texts(n, seed + 1 + i) for i in range(b)]
    batch, start = [features(queries, "query")], 0
    for size in sizes:
        batch.append(features([text for rows in documents for text in rows[start : start + size]], "document"))
        start += size
    every = [model.one(text, "document") for rows in documents for text in rows]
    scores = [score_each(model.one(query, "query"), every) for query in queries]
    found = Contrastive(model, mask_duplicates=False)(batch).item()
    assert found == pytest.approx(naive_contrastive(scores, n).item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("prompt_length", [2, 2, 3]),
        ("token_type_ids", [torch.zeros(2, 7).long(), None, None]),
        ("pixel_values", [torch.zeros(2, 3, 4)] * 3),
        ("prompt_length", [torch.tensor(2)] * 3),
        ("inputs_embeds", [torch.zeros(2, 7)] * 3),
    ],
    ids=["other-values", "other-keys", "images", "scalars", "floats"],
)
def test_columns_that_are_not_token_ids_alone_are_embedded_apart(key, values):
    model, passes = Lexicon(), []
    model.register_forward_hook(lambda *_: passes.append(1))
    texts = [[[5, 6, 7, 8, 9, 10, j + 11], [j + 14]] for j in range(3)]
    batch = [features([[4], [5]], "query"), *[features(column, "document") for column in texts]]
    expected = Contrastive(model)(batch).item()
    assert len(passes) == 2
    for column, value in zip(batch[1:], values, strict=True):
        column.update({} if value is None else {key: value})
    assert Contrastive(model)(batch).item() == pytest.approx(expected, abs=1e-6)
    assert len(passes) == 2 + 4


@pytest.mark.parametrize("length", [2, 3], ids=["joined", "apart"])
def test_the_given_features_are_not_written_into(length):
    model = Lexicon()
    batch = [features(vocabulary_texts(2, seed), "document" if seed else "query") for seed in range(4)]
    for column, prompt_length in zip(batch, [2, 2, 2, length], strict=True):
        column["prompt_length"] = prompt_length
    before = [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in column.items()} for column in batch]
    first = Distillation(model)(batch, LABELS).item()
    for column, old in zip(batch, before, strict=True):
        assert column.keys() == old.keys()
        assert all(torch.equal(column[k], v) for k, v in old.items() if isinstance(v, torch.Tensor))
    assert Distillation(model)(batch, LABELS).item() == first


@pytest.mark.parametrize("loss", [Distillation, Contrastive])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([3, 4], r"sentence_features\[1\] has 4 rows for 3 queries; expected .* a multiple of the queries' rows"),
        ([3], r"sentence_features holds 1 dicts; expected the queries' features, then the documents'"),
    ],
)
def test_rows_that_cannot_be_shared_out_are_refused(loss, rows, message):
    batch = [features(vocabulary_texts(n, i), "document" if i else "query") for i, n in enumerate(rows)]
    with pytest.raises(InvalidArgumentError, match=message):
        loss(Lexicon())(batch, torch.ones(3, 1))


def test_a_document_of_which_nothing_is_scored_is_named():
    batch = [features([[5], [6]], "query"), features([[7, 1], [8]], "document"), features([[4], [1, 2, 3]], "document")]
    with pytest.raises(InvalidArgumentError, match="document 1 of query 1 has no token that is scored"):
        Contrastive(Lexicon())(batch)


@pytest.mark.parametrize(
    ("sides", "position", "expected"), [((False, False), 0, "query"), ((True, True), 1, "document")]
)
def test_texts_tokenised_for_the_other_side_are_warned_of_once(colbert, sides, position, expected):
    batch = [colbert.tokenize(QUERIES, is_query=sides[0]), colbert.tokenize(QUERIES, is_query=sides[1])]
    loss = Contrastive(colbert)
    message = rf"sentence_features\[{position}\] was tokenised as .*, but a loss expects '{expected}'"
    with pytest.warns(UserWarning, match=message):
        first = loss(batch).item()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss(batch).item() == first


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_from_the_tokeniser_follow_the_model_to_its_device(colbert):
    batch = [colbert.tokenize(QUERIES), colbert.tokenize(ALL_DOCUMENTS, is_query=False)]
    expected = Distillation(colbert)(batch, LABELS).item()
    loss = Distillation(colbert.cuda())(batch, LABELS)
    assert loss.device.type == "cuda"
    assert loss.item() == pytest.approx(expected, rel=1e-2)
