"""The commands that move documents: what they print, what a search finds afterwards, and wrong usage."""

import json

import numpy as np
import pytest

from latelier import indexes
from latelier.retrieve import Retriever


def found(run, folder):
    result = run("search", folder, "far away", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    return [(row["id"], row["text"], row["metadata"]) for row in json.loads(result.stdout)["results"]]


def test_a_copied_index_is_searched_with_the_same_model(run, folder, tmp_path):
    file = tmp_path / "moved.parquet"
    facts = json.loads(run("copy", folder, file, "--json").stdout)
    assert (facts["documents"], facts["written"], facts["kept"], facts["destination"]) == (3, 3, 0, str(file))
    for name, options in {"same": (), "ivf": ("--bits", 4)}.items():
        result = run("copy", file, tmp_path / name, *options)
        assert result.exit_code == 0, result.output
        assert ": 3 written to " in result.stdout
        assert found(run, tmp_path / name) == found(run, folder)
        with Retriever.open(tmp_path / name, device="cpu") as copied, Retriever.open(folder, device="cpu") as original:
            assert (copied.model_name, copied.index.tokenizer) == (original.model_name, "porter")
            assert dict(copied.index.settings) == dict(original.index.settings)
    assert "4-bit" in repr(indexes.open(tmp_path / "ivf", read_only=True))
    assert ": 0 written to " in run("copy", file, tmp_path / "ivf").stdout
    assert "exists already" in run("copy", folder, file).stderr


def test_a_new_index_is_as_the_source(run, tmp_path):
    with indexes.Flat(tmp_path / "half", dtype="float16", tokenizer="standard") as index:
        index.add("a", np.eye(4), "text")
    with indexes.IVF(tmp_path / "two", nbits=2, keywords=False) as index:
        index.add("a", np.eye(4))
    for name, expected in {"half": ("standard", "float16"), "two": (None, "2-bit")}.items():
        run("copy", tmp_path / name, tmp_path / f"{name}.parquet")
        run("copy", tmp_path / f"{name}.parquet", tmp_path / f"{name}-again")
        run("copy", tmp_path / name, tmp_path / f"{name}-copy")
        for folder in ("again", "copy"):
            with indexes.open(tmp_path / f"{name}-{folder}") as index:
                assert index.tokenizer == expected[0]
                assert f", {expected[1]}, " in repr(index)


@pytest.mark.parametrize("was_folder", [False, True])
def test_a_failed_copy_leaves_no_new_index(run, tmp_path, was_folder):
    (tmp_path / "damaged.parquet").write_bytes(b"damaged")
    new = tmp_path / "new"
    if was_folder:
        new.mkdir()
    assert run("copy", tmp_path / "damaged.parquet", new).exit_code == 1
    assert (new.exists(), was_folder and [*new.iterdir()]) == (was_folder, was_folder and [])


def test_an_index_that_another_process_begins_to_make_is_taken_for_a_new_one(run, folder, records_file, tmp_path):
    for name in ("copied", "indexed", "foreign"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "catalog.sqlite").touch()
    result = run("copy", folder, tmp_path / "copied", "--json")
    assert (result.exit_code, json.loads(result.stdout)["written"]) == (0, 3), result.output
    result = run("index", records_file, tmp_path / "indexed", "--device", "cpu", "--json")
    assert (result.exit_code, json.loads(result.stdout)["documents"]) == (0, 3), result.output
    (tmp_path / "foreign" / "notes.txt").touch()
    result = run("copy", folder, tmp_path / "foreign")
    assert (result.exit_code, "there is no index in" in result.stderr) == (1, True), result.output
