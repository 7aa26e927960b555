"""The indexes that the contract suite runs over: a new one needs one line here."""

import pytest
from ray_processes import reused_processes

from latelier import indexes

# One function per index, from the folder it may use.
KINDS = {
    "flat-memory": lambda folder: indexes.Flat(dtype="float16"),
    "flat-disk": lambda folder: indexes.Flat(folder),
    "ivf-disk": lambda folder: indexes.IVF(folder),
    "sharded-ivf": lambda folder: indexes.Sharded(folder, shards=3, kind="ivf"),
    "qdrant-memory": lambda folder: indexes.Qdrant(),
}
# What Qdrant does not promise: parts of the names of tests, and why.
NOT_IN_QDRANT = {
    "lang LIKE 'en'": "no condition ignores the case of letters",
    "json_extract": "no condition has functions",
    "metadata ->>": "no condition has operators",
    "lower(lang)": "no condition has functions",
    "test_names_ignore_case": "no condition has operators; see test_filters_of_fields_that_differ_in_case",
    "test_repr_says": "counting tokens would read every payload; statistics() does",
}
# What cannot be seen of shards, likewise.
NOT_IN_SHARDED = dict.fromkeys(
    ["test_store_forks.py", "test_processes_see_whole_commits"],
    "no connection to Ray survives a fork, see test_shard_deaths.py",
) | dict.fromkeys(
    ["test_keywords_equal_bm25_by_loops", "test_hybrid_is_the_fusion_of_both"],
    "each shard scores words by its own statistics, see test_sharded.py",
)
NOT_IN_SHARDED["test_searching_threads_see_whole_commits"] = "each shard commits by itself"
# These start processes, which takes long beside what they test.
SHARDED = [name for name in KINDS if name.startswith("sharded")]


def kinds(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SHARDED else name for name in names]


@pytest.fixture(scope="session")
def shard_processes():
    with reused_processes():
        yield


def make(request, folder):
    kind = request.param.split("-")[0]
    for part, reason in {"qdrant": NOT_IN_QDRANT, "sharded": NOT_IN_SHARDED}.get(kind, {}).items():
        if part in request.node.nodeid:
            pytest.skip(f"{kind}: {reason}")
    if kind == "sharded":
        pytest.importorskip("ray")
        request.getfixturevalue("shard_processes")
    return KINDS[request.param](folder)


@pytest.fixture(params=kinds(KINDS))
def index(request, tmp_path):
    with make(request, tmp_path / "index") as index:
        yield index


@pytest.fixture(params=kinds(name for name in KINDS if "memory" not in name))
def disk_index(request, tmp_path):
    with make(request, tmp_path / "index") as index:
        yield index
