"""Features from token ids alone: those of `ColBERT.preprocess`."""

import pytest
import torch

from latelier.models import ColBERT, tokenization
from latelier.models.tokenization import tokenize_window

TEXTS = ["", "a pear.", *(f"number {i}, " * i for i in range(1, 60))]


def check_features(model, texts, task, prompt=None):
    expected = model.preprocess(texts, prompt=prompt, task=task)
    found = tokenize_window(model, texts, prompt, task)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


@pytest.fixture
def joins(monkeypatch):
    """The calls of `numpy.full`, which only features of joined ids make."""
    calls = []
    full = tokenization.np.full
    monkeypatch.setattr(tokenization.np, "full", lambda *args, **options: calls.append(args) or full(*args, **options))
    return calls


@pytest.mark.parametrize("task", ["query", "document"])
@pytest.mark.parametrize("prompt", [None, "", "search: "])
def test_equal_those_of_preprocess(fresh, dense, task, prompt, joins):
    for model in (fresh, dense):
        check_features(model, TEXTS, task, prompt)
    assert len(joins) == (2 if task == "document" else 1)  # expanded queries are padded by sentence-transformers


def test_few_texts_and_other_padding(tiny, joins):
    model = ColBERT(tiny, 16, "cpu")
    check_features(model, TEXTS[:5], "document")
    model.tokenizer.padding_side = "left"
    check_features(model, TEXTS, "document")
    model.tokenizer.padding_side = "right"
    model[0].processing_kwargs = {"text": {"pad_to_multiple_of": 7}}
    check_features(model, TEXTS, "document")
    assert not joins
    model[0].processing_kwargs = {}
    check_features(model, TEXTS, "document")
    assert joins


ONE = ["", "a pear.", "[SEP] and [MASK] in a text", "x " * 400, "naïve Ünïcode ☃"]


@pytest.mark.parametrize("task", ["query", "document"])
@pytest.mark.parametrize("prompt", [None, "", "search: "])
def test_one_text(fresh, dense, task, prompt):
    for model in (fresh, dense):
        for text in ONE:
            check_features(model, [text], task, prompt)


def test_one_text_after_calls_that_leave_other_settings(dense):
    tokenizer = dense.tokenizer
    calls = [
        {"truncation": True, "max_length": 4},
        {"padding": "max_length", "max_length": 50, "truncation": True},
        {"padding": True, "pad_to_multiple_of": 8},
        {"split_special_tokens": True},
        {"add_special_tokens": False},
    ]
    tokenize_window(dense, ["a pear."], None, "query")
    for options in calls:
        for text in ONE:
            expected = dense.preprocess([text], task="query")
            tokenizer([text], **options)
            found = tokenize_window(dense, [text], None, "query")
            assert found.keys() == expected.keys()
            assert torch.equal(found["input_ids"], expected["input_ids"]), (options, text)
            assert found["attention_mask"].all()


def test_one_text_of_a_tokenizer_that_changes_the_tokens(tiny, monkeypatch):
    """What transformers adds to the tokens of its own tokenizer is not lost."""
    model = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu")
    own = type(model.tokenizer)

    class Marked(own):
        def __call__(self, texts, **options):
            return super().__call__([f"marked {text}" for text in texts], **options)

    model.tokenizer.__class__ = Marked
    for text in ("a pear.", "two pears"):
        check_features(model, [text], "query")
