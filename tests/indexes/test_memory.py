"""Memory budgets: resident memory of real processes, equal results, and errors before anything is lost."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError

MB = 1_000_000
# What the allocator keeps of freed memory, and SQLite's caches.
MARGIN = 14 * MB
PROCESS = Path(__file__).with_name("memory_process.py")


def least():
    with pytest.raises(InvalidArgumentError, match="needs at least") as refused:
        indexes.Flat(max_memory=1)
    return round(MB * float(re.search(r"at least ([\d.]+) MB", str(refused.value))[1]))


BOTH = pytest.mark.parametrize("make", [indexes.Flat, indexes.IVF])


def run(step, kind, folder, budget=0):
    command = [sys.executable, str(PROCESS), step, kind, str(folder), str(budget)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert not ran.returncode, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's counters of resident memory")
@pytest.mark.parametrize(("kind", "budget", "least"), [("flat", 40 * MB, 160 * MB), ("ivf", 32 * MB, 50 * MB)])
def test_building_and_searching_stay_within_the_budget(tmp_path, kind, budget, least):
    """The index is larger than the budget with its margin, so keeping it in memory would fail."""
    plain, bounded = tmp_path / "plain", tmp_path / "bounded"
    run("build", kind, plain)
    built = run("build", kind, bounded, budget)
    assert sum(path.stat().st_size for path in bounded.rglob("*.npy")) > least > budget + MARGIN
    assert built["peak"] < budget + MARGIN
    expected = run("queries", kind, plain)
    (tmp_path / "bounded.npy").write_bytes((tmp_path / "plain.npy").read_bytes())
    searched = run("search", kind, bounded, budget)
    assert searched["peak"] < budget + MARGIN
    assert searched["found"] == expected["found"]
    assert "read from files for each search" in searched["report"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's counters of resident memory")
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_texts_and_metadata_count_towards_the_budget(tmp_path, kind):
    budget = 40 * MB
    assert run("texts", kind, tmp_path / "index", budget)["peak"] < budget + MARGIN


@pytest.fixture
def early(monkeypatch):
    few = replace(indexes.IVF._thresholds, train_tokens=1000, train_documents=1, append_tokens=500)
    monkeypatch.setattr(indexes.IVF, "_thresholds", few)


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_a_budget_does_not_change_the_hits(tmp_path, early, nbits):
    rng = np.random.default_rng(0)
    topics = rng.standard_normal((50, 128), dtype="float32")
    matrices = [topics[rng.integers(0, 50, 20)] + rng.standard_normal((20, 128), dtype="float32") for _ in range(3000)]
    index = indexes.IVF(tmp_path / "index", nbits=nbits)
    index.add(range(3000), matrices)
    queries = [matrix[:7] for matrix in matrices[::300]]
    options = [{}, {"effort": 4.0}, {"effort": "exact"}, {"filter": "id % 7 = 3"}, {"candidates": 200, "nprobe": 500}]
    index.remove(range(40, 60))
    index.add("last", matrices[50])
    expected = [index.search(queries, 10, **given) for given in options]
    with indexes.open(tmp_path / "index", max_memory=least() + (2 if nbits > 2 else 4) * MB) as bounded:
        assert [bounded.search(queries, 10, **given) for given in options] == expected
        assert bounded.get_embeddings([5, 70])[1].tolist() == index.get_embeddings(70)[0].tolist()


@pytest.mark.parametrize(("make", "options"), [(indexes.Flat, {}), (indexes.IVF, {"nbits": 8})])
def test_an_index_in_memory_refuses_documents_beyond_its_budget(make, options):
    index, matrix = make(max_memory=least() + 5 * MB, **options), np.eye(20, 128)
    index.add(range(100), [matrix] * 100)
    with pytest.raises(InvalidArgumentError, match=r"an index in memory .* needs at least .* path="):
        index.add(range(1000, 21_000), (matrix for _ in range(20_000)))
    assert len(index) == 100
    assert index.search(matrix, k=1)[0][0].id == 0


@BOTH
def test_the_least_budget_that_an_error_names_is_enough(tmp_path, make):
    with make(tmp_path / "index") as index:
        index.add(range(5000), [np.eye(3, 16)] * 5000)
    for open_it in (make, indexes.open):
        with pytest.raises(InvalidArgumentError, match=r"max_memory=1.0 MB, but .* needs at least") as refused:
            open_it(tmp_path / "index", max_memory="1MB")
    least = re.search(r"at least ([\d.]+ MB)", str(refused.value))[1]
    with indexes.open(tmp_path / "index", max_memory=least) as index:
        assert len(index) == 5000
        assert index.search(np.eye(3, 16), k=1)[0][0].score > 2.9
    with pytest.raises(InvalidArgumentError, match="max_memory='little'; expected a number of bytes"):
        make(tmp_path / "index", max_memory="little")


@BOTH
def test_a_write_that_would_outgrow_the_budget_changes_nothing(tmp_path, make):
    with make(tmp_path / "index", max_memory=least() + 60_000) as index:
        index.add("a", np.eye(4))
        with pytest.raises(InvalidArgumentError, match="needs at least"):
            index.add(range(20_000), [np.eye(4)] * 20_000)
        assert index.ids() == ["a"]
        assert len(list((tmp_path / "index" / "segments").glob("*/ids.npy"))) == 1
        assert index.verify().is_whole
