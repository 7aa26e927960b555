"""Memory budgets: resident memory of real processes, equal results, and errors before anything is lost."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.indexes.stored import least_working_memory, plan_memory

MB = 1_000_000
# What the allocator keeps of freed memory, and SQLite's caches.
MARGIN = 12 * MB
PROCESS = Path(__file__).with_name("memory_process.py")
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


@pytest.fixture
def early(monkeypatch):
    """Inverted lists of a thousand tokens, and of one document."""
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
    options = [{}, {"effort": 4.0}, {"effort": "exact"}, {"filter": "id % 7 = 3"}, {"rerank": 30, "nprobe": 500}]
    index.remove(range(40, 60))
    index.add("last", matrices[50])
    expected = [index.search(queries, 10, **given) for given in options]
    with indexes.open(tmp_path / "index", max_memory=least_working_memory() + 2 * MB) as bounded:
        bounded.search(queries[0])
        assert {"signs", "scales"} <= bounded.memory.read.keys()
        table, lists = bounded._load(bounded._storage.snapshot())
        # Blocks of a few documents, and lists that are copied although they fit.
        table._window, bounded._loaded = 1 << 17, bounded._loaded._replace(lists=replace(lists, is_released=True))
        assert [bounded.search(queries, 10, **given) for given in options] == expected
        assert bounded.get_embeddings([5, 70])[1].tolist() == index.get_embeddings(70)[0].tolist()


@pytest.mark.parametrize(("make", "options"), [(indexes.Flat, {}), (indexes.IVF, {"nbits": 8})])
def test_an_index_in_memory_refuses_documents_beyond_its_budget(make, options):
    index, matrix = make(max_memory=least_working_memory() + 5 * MB, **options), np.eye(20, 128)
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
    with make(tmp_path / "index", max_memory=least_working_memory() + 60_000) as index:
        index.add("a", np.eye(4))
        with pytest.raises(InvalidArgumentError, match="needs at least"):
            index.add(range(2000), [np.eye(4)] * 2000)
        assert index.ids() == ["a"]
        assert len(list((tmp_path / "index" / "segments").iterdir())) == 1
        assert index.verify().is_whole


def can_add(index, ids, matrices):
    before = len(index)
    with suppress(InvalidArgumentError):
        index.add(ids, matrices)
        return True
    assert len(index) == before
    return False


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize(("make", "options"), [(indexes.Flat, {}), (indexes.IVF, {"nbits": 1})])
def test_a_budget_that_is_enough_for_a_write_is_enough_to_open_and_search(tmp_path, early, make, options, is_stored):
    """Inverted lists are trained, appended to and trained anew."""
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((10, 64), dtype="float32") for _ in range(90)]
    counts = []
    for step in range(0, 8, 2):
        budget = least_working_memory() + (30_000 if is_stored else 90_000) * step + 15_000
        path = tmp_path / f"{step}" if is_stored else None
        with make(path, max_memory=budget, **options) as index:
            while can_add(index, [len(index) + i for i in range(90)], matrices):
                assert index.search(matrices[0], k=1)[0][0].score > 0
                assert index.memory.most <= budget
            counts.append(len(index))
        if is_stored:
            with make(path, max_memory=budget) as index:
                assert len(index) == counts[-1]
                assert not counts[-1] or index.search(matrices[0], k=1)[0][0].score > 0
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("topics", [1, 40, 3000])
def test_a_budget_counts_at_least_what_trained_lists_take(tmp_path, early, topics):
    """Few topics leave most coarse centroids with few tokens or none."""
    rng, dim = np.random.default_rng(0), 32
    centers = rng.standard_normal((topics, dim), dtype="float32")
    noise = 0.01 * rng.standard_normal((20_000, dim), dtype="float32")
    tokens = centers[rng.integers(0, topics, 20_000) ** 2 % topics] + noise
    for count in (100, 600, 2000):
        with indexes.IVF(tmp_path / f"{count}", max_memory="1GB") as index:
            index.add(range(count), np.split(tokens[: 10 * count], count))
            stored = {path.stem: path.stat().st_size for path in (tmp_path / f"{count}").rglob("*.npy")}
            taken = stored["offsets"] + sum(size for name, size in stored.items() if name.startswith("centroids"))
            assert 0.5 * (index.memory.tables - 128 * count) < taken <= index.memory.tables - 128 * count
            assert index.memory.read == {}


def test_arrays_are_kept_in_order_until_one_does_not_fit():
    least = least_working_memory()
    sizes = {"lists": 20 * MB, "signs": 500 * MB, "codes": 5 * MB}
    plan = plan_memory(3 * least + 40 * MB, 12 * MB, sizes, in_memory=False)
    assert (list(plan.kept), list(plan.read)) == (["lists"], ["signs", "codes"])
    assert plan.most <= plan.budget
    everything = plan_memory(None, 2 * MB, sizes, in_memory=False)
    assert everything.read == {}
    assert re.search(r"^  signs +500\.0 MB  in memory once read$", str(everything), re.MULTILINE)
