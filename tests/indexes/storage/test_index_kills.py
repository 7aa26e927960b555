"""Writers killed at any moment: what was committed is whole, what was not has never been."""

import os

import pytest
from kill_rounds import EARLY, KINDS, kill_rounds

from latelier import indexes
from latelier.indexes.ivf.index import compile_kernels

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")


# `make soak` kills hundreds.
@pytest.mark.parametrize("kills", [10, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_killed_writers_leave_the_last_commit(kind, kills, tmp_path, monkeypatch):
    monkeypatch.setattr(indexes.IVF, "_thresholds", EARLY)
    compile_kernels()  # in the parent: children would be killed while they load them
    folder = tmp_path / "index"
    kind(folder).close()
    outcomes = kill_rounds(folder, seed=0, rounds=kills)
    assert outcomes["committed"] + outcomes["rolled back"] > kills // 4  # most kills came in the middle of a change
