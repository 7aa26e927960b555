"""Exports and imports killed at any moment: the same call goes on, and ends with what it would have had."""

import os
import random
import signal
import time

import pytest
from index_helpers import contents
from kill_rounds import EARLY
from transfer_helpers import files, random_documents

from latelier import indexes
from latelier.indexes.ivf.index import compile_kernels

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")


def killed(work, delay):
    """Run a function in a forked process, and kill the process after a while; return whether it was killed in time."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def kill_until_done(work, seed, seconds):
    """Kill a function again and again, at once and then later and later; return how often it was killed.

    `seconds` is how long the function takes on this machine, so that most kills are in the middle of it.
    """
    rng, kills = random.Random(seed), 0
    while killed(work, rng.uniform(0, seconds) * kills / 4):
        kills += 1
    return kills


@pytest.fixture
def source(tmp_path):
    with indexes.Flat(tmp_path / "source") as index:
        index.add(*random_documents(300))
        index.settings["model"] = "one"
    return tmp_path / "source"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_killed_export_goes_on(source, seed, tmp_path):
    def work(name="out"):
        with indexes.open(source, read_only=True) as index:
            indexes.export_documents(index, tmp_path / name, chunk_size=2000)

    began = time.perf_counter()
    work("whole")
    assert kill_until_done(work, seed, time.perf_counter() - began) > 0
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_a_killed_import_goes_on(kind, source, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(indexes.IVF, "_thresholds", EARLY)
    compile_kernels()  # in the parent: children would be killed while they load them
    with indexes.open(source) as index:
        indexes.export_documents(index, tmp_path / "out", chunk_size=5000)

    def work(name="index"):
        with kind(tmp_path / name) as index:
            indexes.import_documents(tmp_path / "out", index, batch_size=3000)

    began = time.perf_counter()
    work("expected")
    assert kill_until_done(work, seed, time.perf_counter() - began) > 0
    with indexes.open(tmp_path / "index") as index, indexes.open(tmp_path / "expected") as expected:
        assert contents(index) == contents(expected)
        assert dict(index.settings) == {"model": "one"}
        assert index.verify().is_whole
