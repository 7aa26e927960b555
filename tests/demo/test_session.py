"""The demo's index: made as a whole or not at all, in the cache folder."""

import sys

import pytest

from latelier import indexes
from latelier.demo.session import build, demo_folder
from latelier.errors import InvalidArgumentError, StorageError


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
        assert repr(index).startswith("Flat(1 documents")
        assert index.dtype == "float16"


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write the cache .*Set LATELIER_CACHE"):
        build(tmp_path / "file" / "demo", [])


def test_the_folder_is_of_one_python_model_and_version():
    name = demo_folder().name
    assert name.startswith(f"demo-python{sys.version_info.major}.{sys.version_info.minor}.")
    assert "-all-MiniLM-L6-v2-64-latelier" in name
