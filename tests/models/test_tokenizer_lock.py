"""Threads that tokenise with one model at the same time: each text is truncated at the limit of its own call."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from latelier.models import ColBERT
from latelier.models.exported import token_starts, tokenizer_lock, tokenizer_offsets


@pytest.fixture(scope="module")
def model(tiny):
    return ColBERT(tiny, device="cpu", max_length_query=32, max_length_document=200)


def test_queries_and_documents_keep_their_lengths(model):
    long = "alpha beta gamma " * 100

    def tokens(call):
        if call % 3 == 2:
            return len(token_starts(tokenizer_offsets(model.tokenizer), [long] * 8)[0])
        return model.tokenize([long] * 8, is_query=call % 3 == 0)["input_ids"].shape[1]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(tokens, range(300)))
    assert [set(found[first::3]) for first in range(3)] == [{32}, {200}, {300}]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(model):
    with tokenizer_lock(model.tokenizer), ThreadPoolExecutor(1) as thread:

        def forked():
            child = os.fork()
            if not child:
                with tokenizer_lock(model.tokenizer):
                    os._exit(7)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        assert thread.submit(forked).result(timeout=60) == 7
