"""Bars that are not shown take no lock: a process that was killed with it would stop all that share it."""

import threading

import numpy as np
from tqdm import tqdm

from latelier import indexes
from latelier.models import ColBERT
from latelier.retrieve import Retriever


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
