"""Encoding in worker processes: the same index as in one process, whatever happens to the workers."""

import itertools
import os
import signal
import sys

import pytest
import torch

from latelier.errors import DuplicateIdError, InvalidArgumentError, LatelierError, MissingExtraError
from latelier.models import ColBERT
from latelier.retrieve import EncodingWorkers, Retriever

TEXTS = [f"{'many pears and ' * (i % 5)}document number {i}" for i in range(40)]


@pytest.fixture(scope="module")
def model(tiny):
    return ColBERT.from_dense(tiny, device="cpu")


@pytest.fixture(scope="module")
def workers(model, ray_session):
    with EncodingWorkers(model, 2) as started:
        yield started


def contents(retriever):
    index = retriever.index
    return index.ids(), [record.text for record in index.get(index.ids())], index.get_embeddings(index.ids())


def process_ids(workers):
    return workers._ray.get([worker.process_id.remote() for worker in workers._workers])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"passages": 16}, {"pool_factor": 2, "precision": "float16"}], ids=str)
def test_same_index_as_without_workers(workers, model, options):
    alone, many = Retriever(model), Retriever(model)
    alone.add(TEXTS, chunk_size=7, **options)
    many.add(TEXTS, chunk_size=7, workers=workers, **options)
    assert contents(many) == contents(alone)  # the vectors to the last bit
    assert len(many) == len(TEXTS)


@pytest.mark.slow
def test_killed_workers_start_again_and_nothing_is_lost(workers, model):
    alone, many = Retriever(model), Retriever(model)
    alone.add(TEXTS, chunk_size=4)
    killed = process_ids(workers)

    def documents():
        for i, text in enumerate(TEXTS):
            if i in (9, 26):  # chunks before this one are under way
                os.kill(process_ids(workers)[i % 2], signal.SIGKILL)
            yield text

    many.add(documents(), chunk_size=4, workers=workers)
    assert contents(many) == contents(alone)  # the vectors to the last bit
    assert set(process_ids(workers)).isdisjoint(killed)


@pytest.mark.slow
def test_at_most_two_chunks_per_worker_are_under_way(workers):
    read = itertools.count()
    encoded = workers.encode([f"text {next(read)}"] for _ in itertools.repeat(None))
    for taken in range(1, 6):
        assert len(next(encoded)) == 1
        assert next(read) - taken < 2 * len(workers) + taken  # each look at the counter counts too
    encoded.close()


@pytest.mark.slow
def test_ids_of_chunks_under_way_count_as_stored(workers, model):
    numbered = Retriever(model)
    numbered.add(["one", "two", "three"], chunk_size=1, workers=workers)
    assert numbered.index.ids() == [0, 1, 2]
    with pytest.raises(DuplicateIdError, match=r"id 0 is (given twice|in the index already)"):
        Retriever(model).add(["one", "two", (0, "three")], chunk_size=1, workers=workers)
    again = [("a", "one"), ("b", "two"), ("c", "three"), ("a", "four")]
    with pytest.raises(DuplicateIdError, match=r"id 'a' is (given twice|in the index already)"):
        Retriever(model).add(again, chunk_size=1, workers=workers)


@pytest.mark.slow
def test_what_was_read_before_an_invalid_document_is_stored(workers, model):
    retriever = Retriever(model)
    with pytest.raises(InvalidArgumentError, match=r"documents\[6\]"):
        retriever.add([*TEXTS[:6], "", *TEXTS[6:]], chunk_size=2, workers=workers)
    assert contents(retriever)[1] == TEXTS[:6]


@pytest.mark.slow
def test_chunk_that_raises_and_chunk_that_ends_every_process(tiny, ray_session, monkeypatch):
    monkeypatch.setattr("latelier.retrieve.workers._RETRIES", 1)  # each takes seconds

    class Fatal(torch.nn.Module):
        """Fails in a text of 30 tokens, and ends the process, as for lack of memory, in one of 60."""

        def forward(self, features, **_):
            if features["token_embeddings"].shape[1] >= 60:
                os.kill(os.getpid(), signal.SIGKILL)
            if features["token_embeddings"].shape[1] >= 30:
                raise ZeroDivisionError("too long")
            return features

    model = ColBERT.from_dense(tiny, device="cpu")
    model.append(Fatal())
    with EncodingWorkers(model, 1) as workers:
        encoded = workers.encode([["short"], ["long " * 40], ["short"]])
        assert len(next(encoded)) == 1
        with pytest.raises(LatelierError, match="an encoding worker raised ZeroDivisionError") as raised:
            next(encoded)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        with pytest.raises(LatelierError, match="its process ended 2 times in one chunk"):
            list(workers.encode([["long " * 80]]))
        assert [len(vectors) for vectors in workers.encode([["short", "short"]])] == [2]


@pytest.mark.slow
def test_workers_that_do_not_fit(workers, model, minilm):
    with pytest.raises(InvalidArgumentError, match="have another model than the retriever"):
        Retriever(minilm, device="cpu").add(["a"], workers=workers)
    with pytest.raises(LatelierError, match="64 workers did not start within 2 s"):
        EncodingWorkers(model, 64, timeout=2)


def test_ray_is_missing(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    retriever = Retriever(model)
    with pytest.raises(MissingExtraError, match=r"latelier\[ray\]"):
        retriever.add(["a"], workers=2)
    assert len(retriever) == 0
