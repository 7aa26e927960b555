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
