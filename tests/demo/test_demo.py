"""The corpus of docstrings: what it holds, and what it leaves out."""

import itertools
import sys

import pytest

from latelier import indexes
from latelier.demo import build, demo_folder
from latelier.errors import InvalidArgumentError, StorageError


@pytest.fixture(scope="module")
def by_id(docstrings):
    return {document["id"]: document for document in docstrings}


@pytest.mark.parametrize(
    ("id_", "kind", "module"),
    [
        ("argparse", "module", "argparse"),
        ("argparse.ArgumentParser.add_argument", "method", "argparse"),  # from a private base class
        ("hashlib.sha256", "function", "hashlib"),  # made while hashlib is imported
        ("os.path.exists", "function", "os.path"),  # from genericpath import *
        ("open", "function", "builtins"),  # and not io.open as well
    ],
)
def test_well_known_names(by_id, id_, kind, module):
    assert id_ in by_id
    assert by_id[id_]["kind"] == (kind or by_id[id_]["kind"])
    assert module is None or by_id[id_]["module"] == module
    assert by_id[id_]["text"].splitlines()[0] == id_.replace(".", " ").replace("_", " ")


def test_thousands_of_documents_without_private_names_tests_or_duplicates(docstrings, by_id):
    assert len(docstrings) > 5_000
    assert len(by_id) == len(docstrings)
    assert {document["kind"] for document in docstrings} == {"module", "class", "function", "method", "property"}
    parts = set(itertools.chain.from_iterable(document["id"].split(".") for document in docstrings))
    assert not [part for part in parts if part.startswith("_")]
    modules = {document["module"].split(".")[0] for document in docstrings}
    assert modules <= set(sys.stdlib_module_names)
    assert not modules & {"test", "idlelib", "lib2to3", "turtledemo", "distutils", "this", "antigravity"}
    contents = [(document["id"].removeprefix(document["module"]), document["text"]) for document in docstrings]
    assert len(set(contents)) == len(contents)
    assert all(document["text"].count("\n") and document["text"].split("\n", 1)[1].strip() for document in docstrings)


def test_what_is_left_out(by_id):
    assert "io.open" not in by_id  # the builtin open
    assert "socket.error" not in by_id  # OSError
    assert "functools.RLock" not in by_id  # imported there for use, not in __all__
    assert "asyncio.gather" not in by_id  # defined in, and listed under, asyncio.tasks
    assert "asyncio.tasks.gather" in by_id


def test_an_interrupted_build_leaves_nothing_and_a_second_one_is_complete(tmp_path):
    def interrupted():
        yield {"id": "a", "text": "text"}
        raise KeyboardInterrupt("Ctrl-C")

    folder = tmp_path / "cache" / "demo"
    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
        build(folder, interrupted(), device="cpu")
    assert list(folder.parent.iterdir()) == []
    with pytest.raises(InvalidArgumentError, match="the text is empty"):
        build(folder, [""], device="cpu")
    assert list(folder.parent.iterdir()) == []
    build(folder, [("a", "text")], device="cpu")
    build(folder, [("b", "another process was faster")], device="cpu")
    assert list(folder.parent.iterdir()) == [folder]
    with indexes.open(folder) as index:
        assert index.ids() == ["a"]
        assert "2-bit" in repr(index)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write the cache .*Set LATELIER_CACHE"):
        build(tmp_path / "file" / "demo", [])


def test_the_folder_is_of_one_python_model_and_version():
    name = demo_folder().name
    assert name.startswith(f"demo-python{sys.version_info.major}.{sys.version_info.minor}.")
    assert "-all-MiniLM-L6-v2-64-latelier" in name
