from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latelier.errors import InvalidArgumentError
from latelier.utils import batch_by_tokens, resolve_device


@given(
    st.lists(st.integers(0, 60), max_size=40),
    st.integers(1, 100),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_every_text_comes_once_within_the_budget(lengths, max_tokens, max_rows, max_padding):
    given_batches = batch_by_tokens(lengths, max_tokens, max_rows, max_padding=max_padding)
    batches = [batch.tolist() for batch in given_batches]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert padded <= max_tokens or len(batch) == 1
        assert max_rows is None or len(batch) <= max_rows
        assert max_padding is None or padded - sum(lengths[i] for i in batch) <= max_padding
    costs = [max(lengths[i] for i in batch) for batch in batches]
    assert costs == sorted(costs, reverse=True)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(0, 40))
def test_a_batch_ends_only_where_one_text_more_would_exceed_a_limit(lengths, max_padding):
    batches = [batch.tolist() for batch in batch_by_tokens(lengths, 200, max_padding=max_padding)]
    for batch, following in pairwise(batches):
        rows = [lengths[i] for i in [*batch, following[0]]]
        padded = len(rows) * rows[0]
        assert padded > 200 or padded - sum(rows) > max_padding


def test_little_padding_on_ragged_texts():
    lengths = np.random.default_rng(0).lognormal(4.5, 0.7, size=5000).astype(int).clip(3, 350)
    padded = sum(len(batch) * lengths[batch].max() for batch in batch_by_tokens(lengths, 8192))
    assert 1 - lengths.sum() / padded < 0.03


def test_impossible_budgets_are_refused():
    with pytest.raises(InvalidArgumentError, match="max_tokens=0"):
        list(batch_by_tokens([1, 2], 0))
    with pytest.raises(InvalidArgumentError, match="max_rows='3'; expected an integer"):
        list(batch_by_tokens([1, 2], 9, "3"))
    with pytest.raises(InvalidArgumentError, match="max_padding=-1"):
        list(batch_by_tokens([1, 2], 9, max_padding=-1))
    with pytest.raises(InvalidArgumentError, match="lengths that are not integers"):
        list(batch_by_tokens(["long"], 9))
    with pytest.raises(InvalidArgumentError, match=r"lengths of shape \(\); expected one per text"):
        list(batch_by_tokens(5, 9))


@pytest.mark.parametrize("device", ["gpu", 1j, object()])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(InvalidArgumentError, match="unknown device"):
        resolve_device(device)


def test_the_best_device_is_one_that_is_there():
    assert resolve_device().type in {"cpu", "cuda", "mps"}
    assert str(resolve_device("cpu")) == "cpu"
