"""What `IVF` does beyond the contract: recall, effort, numbers of bits, any dim, memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from ivf_helpers import check_lists, collection, lists_of, recall

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.kernels.multiply import supported

pytestmark = pytest.mark.processor

# The documents that `check(queries=10)` takes of 1,500.
SPREAD = [0, 166, 333, 499, 666, 832, 999, 1165, 1332, 1499]


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_recall(early, nbits):
    documents, queries = collection(1500)
    index = indexes.IVF(nbits=nbits)
    index.add(range(1500), documents)
    check_lists(index)
    assert recall(index, queries) > 0.96
    assert recall(index, queries, k=1) > 0.96
    narrow = recall(index, queries, nprobe=1, candidates=10, rerank=10)
    assert narrow < recall(index, queries, effort=4.0)
    assert recall(index, queries, effort=20.0) == 1.0


def test_scores_of_exact_searches_are_those_of_the_stored_vectors(early):
    documents, queries = collection(400)
    index, truth = indexes.IVF(), indexes.Flat()
    index.add(range(400), documents)
    truth.add(range(400), index.get_embeddings(range(400)))
    for hits, wanted in zip(index.search(queries, 20, effort="exact"), truth.search(queries, 20), strict=True):
        np.testing.assert_allclose([h.score for h in hits], [h.score for h in wanted], rtol=1e-6)
        assert [hit.id for hit in hits] == [hit.id for hit in wanted]


def test_instruction_sets_make_the_same_lists_and_find_the_same(early, monkeypatch):
    documents, queries = collection(600)
    found, stored = [], []
    for isa in supported():
        monkeypatch.setenv("LATELIER_KERNELS", isa.name)
        index = indexes.IVF()
        index.add(range(600), documents)
        found.append(index.search(queries, 10))
        stored.append(lists_of(index).arrays())
        assert found[-1] == found[0]
        for name, array in stored[0].items():
            assert np.array_equal(array, stored[-1][name]), name


def test_check_recommends_an_effort(early, monkeypatch):
    documents, _ = collection(1500)
    index = indexes.IVF()
    index.add(range(1500), documents)
    report = index.check(queries=10)
    assert report.recall == pytest.approx(recall(index, [m[:32] for m in index.get_embeddings(SPREAD)]), abs=0.011)
    assert report.advice == "" or "effort" in report.advice
    assert str(report).endswith(f"1,500 searched{'; ' if report.advice else ''}{report.advice}")


@pytest.mark.parametrize("dim", [1, 2, 33, 130])
def test_lists_of_any_dim(early, dim):
    documents, queries = collection(200, dim=dim)
    index = indexes.IVF(nbits=4)
    index.add(range(200), documents)
    check_lists(index)
    assert recall(index, queries, effort=20.0) == 1.0


def test_bits_are_fixed_when_the_index_is_made(tmp_path):
    with indexes.IVF(tmp_path / "index", nbits=2):
        pass
    with indexes.IVF(tmp_path / "index") as index:
        assert index.nbits == 2
    with pytest.raises(
        InvalidArgumentError, match=r"received nbits=8, but the index in .* has 2, which cannot be changed"
    ):
        indexes.IVF(tmp_path / "index", nbits=8)
    with pytest.raises(InvalidArgumentError, match="received nbits=3; expected 8, 4, 2, 1 or None"):
        indexes.IVF(nbits=3)
    with pytest.raises(InvalidArgumentError, match=r"received nbits='4'; expected 8, 4, 2, 1 or None\.$"):
        indexes.IVF(nbits="4")
    with pytest.raises(InvalidArgumentError, match="received max_memory='0MB'; expected a number of bytes, or a text"):
        indexes.IVF(max_memory="0MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "best"}, "received effort='best'; expected 'fast', 'balanced', 'exact' or a number above 0"),
        ({"effort": 0}, "received effort=0"),
        ({"effort": float("nan")}, "received effort=nan"),
        ({"effort": True}, "received effort=True"),
        ({"nprobe": 0}, "received nprobe=0; expected an integer of at least 1, or None"),
        ({"candidates": 1.5}, "received candidates=1.5"),
        ({"rerank": True}, "received rerank=True"),
    ],
)
def test_unknown_search_parameters_raise(options, message):
    index = indexes.IVF()
    with pytest.raises(InvalidArgumentError, match=message):
        index.search(np.ones((1, 2)), **options)


@pytest.mark.parametrize(("nbits", "most"), [(8, 150), (4, 75), (2, 45), (1, 30)])
def test_bytes_per_token(early, tmp_path, nbits, most):
    """All files but the catalog, which holds texts and metadata."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 100, 128)).astype("float32")
    with indexes.IVF(tmp_path / "index", nbits=nbits) as index:
        index.add(range(300), list(vectors))
        # Centroids cost as many bytes as so few tokens; they are counted where they matter.
        size = sum(path.stat().st_size for path in index.path.rglob("*.npy") if "centroids" not in path.name)
    assert size / vectors[..., 0].size < most + 2


NOT_COMPILED = """
import importlib, pkgutil
from numba.core.registry import CPUDispatcher
from latelier.indexes.ivf import kernels
from latelier.indexes.ivf.index import compile_kernels
compile_kernels()
names = [f"{kernels.__name__}.{found.name}" for found in pkgutil.iter_modules(kernels.__path__)]
modules = [importlib.import_module(name) for name in names]
found = {value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)}
print(len(found) > 20, sorted(kernel.__name__ for kernel in found if not kernel.signatures))
"""


@pytest.mark.slow  # compiles all of them, in a new process
def test_every_kernel_is_compiled(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", NOT_COMPILED], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("True []\n", 0), done.stderr
