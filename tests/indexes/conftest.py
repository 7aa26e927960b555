"""The indexes that the contract suite runs over: a new one needs one line here."""

import pytest
from index_helpers import on_device

from latelier import indexes
from latelier.kernels.first_use import FirstUse

# One function per index, from the folder it may use.
KINDS = {
    "flat-memory": lambda folder: indexes.Flat(),
    "flat-memory-on-a-device": lambda folder: on_device(indexes.Flat()),
    "flat-disk": lambda folder: indexes.Flat(folder),
    "flat-disk-float16": lambda folder: indexes.Flat(folder, dtype="float16"),
    "ivf-memory": lambda folder: indexes.IVF(),
    "ivf-disk": lambda folder: indexes.IVF(folder),
    "ivf-disk-4-bit": lambda folder: indexes.IVF(folder, nbits=4),
}


@pytest.fixture(autouse=True)
def _kernels_at_once(monkeypatch):
    """Search by the kernels from the first search on; numpy's answers have tests of their own."""
    monkeypatch.setattr(indexes.Flat, "_first_use", FirstUse(most_work=0))
    monkeypatch.setattr(indexes.IVF, "_first_use", FirstUse(most_work=0))


@pytest.fixture(params=KINDS)
def index(request, tmp_path):
    """An empty index of each kind."""
    with KINDS[request.param](tmp_path / "index") as index:
        yield index


@pytest.fixture(params=[name for name in KINDS if "memory" not in name])
def disk_index(request, tmp_path):
    """An empty index of each kind that has a folder."""
    with KINDS[request.param](tmp_path / "index") as index:
        yield index
