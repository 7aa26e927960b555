"""Cutting by offsets, compared with naive loops over the documents."""

import re
import threading
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from latelier import indexes
from latelier.models import ColBERT
from latelier.retrieve import Retriever
from latelier.utils import batch_by_tokens
from latelier.utils.batching import (
    lengths_to_offsets,
    positions_within,
    rows_of,
    rows_or_slice,
    select_rows,
    split_by_rows,
    used_positions,
)
from latelier.utils.misc import bar, escape, fragment, table


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


LENGTHS = st.lists(st.integers(0, 5), max_size=12)


@given(LENGTHS, st.data())
def test_rows_of_documents(lengths, data):
    offsets = lengths_to_offsets(lengths)
    rows = [list(range(sum(lengths[:i]), sum(lengths[: i + 1]))) for i in range(len(lengths))]
    assert offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert offsets.dtype == "int64"
    assert positions_within(offsets).tolist() == [place for each in rows for place in range(len(each))]

    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8) if lengths else st.just([]))
    picked = rows_of(offsets, np.array(chosen, dtype="int64"))
    assert picked.tolist() == [row for document in chosen for row in rows[document]]
    assert picked.dtype == "int64"

    ascending = sorted(set(chosen))
    if ascending:
        found = rows_or_slice(offsets, np.array(ascending))
        everything = np.arange(offsets[-1])
        assert everything[found].tolist() == [row for document in ascending for row in rows[document]]
        assert isinstance(found, slice) == (ascending == list(range(ascending[0], ascending[-1] + 1)))


@given(LENGTHS, st.integers(1, 12), st.none() | st.integers(1, 4), st.integers(0, 9))
def test_blocks(lengths, max_rows, max_documents, begin):
    naive, block, rows = [], [], 0
    for document, length in enumerate(lengths):
        if block and (rows + length > max_rows or len(block) == max_documents):
            naive, block, rows = [*naive, (block[0], block[-1] + 1)], [], 0
        block, rows = [*block, document], rows + length
    if block:
        naive.append((block[0], block[-1] + 1))
    assert list(split_by_rows(begin + lengths_to_offsets(lengths), max_rows, max_documents)) == naive


IDS = torch.tensor([[5, 6, 0, 0], [5, 7, 8, 6], [0, 9, 6, 0]])


def test_columns_are_cut_on_both_sides_and_other_values_kept():
    features = {"input_ids": IDS, "attention_mask": (IDS > 0).long(), "task": "query", "n": torch.arange(3)}
    used = used_positions(features)
    assert used.dtype == torch.bool
    chosen = select_rows(features, used, np.array([2]))
    assert chosen["input_ids"].tolist() == [[9, 6]]
    assert chosen["attention_mask"].tolist() == [[1, 1]]
    assert (chosen["task"], chosen["n"].tolist()) == ("query", [0, 1, 2])
    assert select_rows(features, used, np.array([2, 0]))["input_ids"].tolist() == [[0, 9, 6], [5, 6, 0]]


def test_query_expansion_is_used():
    expansion = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    features = {"input_ids": IDS, "attention_mask": IDS > 0, "query_expansion_positions": expansion}
    assert select_rows(features, used_positions(features), np.array([0]))["input_ids"].tolist() == [[5, 6, 0]]


def test_nothing_waits_for_the_lock_of_bars_that_are_not_shown(tiny):
    model = ColBERT(tiny, device="cpu")
    done = []

    def work():
        index = indexes.Flat()
        index.add(["a", "b"], [np.ones((2, 4))] * 2)
        index.compact()
        retriever = Retriever(model, indexes.Flat())
        retriever.add(["fruit", "moon"], show_progress=False)
        done.append(len(retriever.search("fruit")))
        done.append(sum(1 for _ in model.encode_stream(["x"])))

    with tqdm.get_lock():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
    assert done == [2, 1]


HOSTILE = '</td><script>alert(1)</script><img src=x onerror="a()">\u202egnp\u2066\x00\x1b[31m\ud800'


def test_hostile_texts_are_shown_and_not_run():
    shown = fragment(HOSTILE, table([HOSTILE], [[HOSTILE, HOSTILE]], caption=HOSTILE), bar(HOSTILE, 0.5))
    tags = set(re.findall(r"</?([a-z]+)", shown))
    assert tags == {"style", "div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
    assert shown.count("&lt;script&gt;") == 6
    assert not re.search("[\u202e\u2066\x00\x1b\ud800]", shown)
    assert shown.count(r"\u202egnp\u2066\x00\x1b[31m\ud800") == 6


def test_what_people_write_stays():
    for text in ("naïve 日本語 🙂", "two\nlines", "a‍b"):  # the last holds a joiner
        assert escape(text) == text
    assert escape("a\tb\r\nc") == "a    b\nc"
