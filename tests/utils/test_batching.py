"""Cutting by offsets, compared with naive loops over the documents."""

import io
import re
import sys
import threading
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from latelier import indexes
from latelier.models import ColBERT
from latelier.retrieve import Retriever
from latelier.utils import batch_by_tokens
from latelier.utils.misc import bar, escape, fragment, progress_bar, table


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


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_that_nobody_asked_for_appears_on_a_terminal_if_it_takes_long(monkeypatch):
    def printed(shown, stream, delay=2.0):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("latelier.utils.misc._PATIENCE", delay)
        with progress_bar(shown=shown, total=3, desc="Encoding", mininterval=0) as bar:
            for _ in range(3):
                bar.update(1)
        return stream.getvalue()

    assert printed(None, Terminal()) == ""
    assert "Encoding: 100%" in printed(None, Terminal(), delay=1e-9)
    assert "Encoding: 100%" in printed(True, Terminal())
    assert printed(None, io.StringIO(), delay=1e-9) == ""
    assert printed(False, Terminal(), delay=1e-9) == ""


def test_the_bar_of_the_weights_is_hidden_and_no_other(monkeypatch, tiny):
    monkeypatch.setattr("sys.stderr", Terminal())
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", True)
    ColBERT(tiny, device="cpu")
    assert "Loading weights" not in sys.stderr.getvalue()
    list(logging.tqdm([1, 2], desc="Downloading", file=sys.stderr))
    assert "Downloading: 100%" in sys.stderr.getvalue()


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
