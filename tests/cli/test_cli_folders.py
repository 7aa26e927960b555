"""A folder of files is searched by its name: its index is in the cache, and each search brings it up to date."""

import json
import shutil

import pytest

from latelier import indexes
from latelier.utils.files import cache_folder


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "pears.md").write_text("Pears ripen in September.")
    (folder / "moon.md").write_text("The moon is far away from the earth.")
    (folder / "tool.exe").write_bytes(b"MZ\0\0")
    return folder


def search(run, *arguments):
    result = run("search", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [found["id"] for found in json.loads(result.stdout)["results"]], result.stderr


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_folder_is_indexed_in_the_cache_and_kept_current(run, notes, tiny, recwarn):
    ids, told = search(run, notes, "ripe fruit", "--model", tiny)
    (place,) = (cache_folder() / "indexes").iterdir()
    assert sorted(ids) == ["moon.md", "pears.md"]
    assert f"is a folder without an index: indexing its 2 files in {place}" in told
    assert "2 documents (2 new), in 2 passages; all of their text is searchable; " in told
    assert search(run, notes / ".." / notes.name, "ripe fruit", "--model", tiny) == (ids, "")
    (notes / "plums.txt").write_text("Plums.")
    (notes / "moon.md").unlink()
    ids, told = search(run, notes, "ripe fruit", "--model", tiny)
    assert sorted(ids) == ["pears.md", "plums.txt"]
    assert "2 documents (1 new, 1 removed, 1 unchanged)" in told
    assert [*(cache_folder() / "indexes").iterdir()] == [place]
    assert search(run, notes, "plums", "--mode", "keywords") == (["plums.txt"], "")


@pytest.mark.filterwarnings("ignore:skipped")
def test_indexes_of_folders_are_listed_and_deleted(run, notes, tiny, tmp_path):
    other = shutil.copytree(notes, tmp_path / "other")
    nothing = run("info")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    for folder in (notes, other):
        search(run, folder, "pears", "--model", tiny)
    listed = json.loads(run("info", "--json").stdout)["indexes"]
    assert sorted((each["folder"], each["documents"]) for each in listed) == [(str(notes), 2), (str(other), 2)]
    assert all(f"{each['folder']}: 2 documents, " in run("info").stdout for each in listed)
    facts = json.loads(run("info", notes, "--json").stdout)
    assert (facts["index"] in [each["place"] for each in listed], facts["documents"]) == (True, 2)
    assert "tool.exe: a binary file has no text" in run("info", notes, "--skipped").stdout
    (cache_folder() / "indexes" / "mine").mkdir()
    assert run("remove", "--cache", "pears.md").exit_code == 1
    assert run("remove", "--cache", notes, "pears.md").exit_code == 2
    assert len(json.loads(run("info", "--json").stdout)["indexes"]) == 2
    assert run("remove", "--cache", notes).stdout.startswith(f"{notes}: ")
    assert [each["folder"] for each in json.loads(run("info", "--json").stdout)["indexes"]] == [str(other)]
    assert [each["folder"] for each in json.loads(run("remove", "--cache", "--json").stdout)["removed"]] == [str(other)]
    assert [each.name for each in (cache_folder() / "indexes").iterdir()] == ["mine"]
    assert (notes / "pears.md").exists()


@pytest.mark.filterwarnings("ignore:skipped")
def test_another_place_is_that_of_this_folder_only(run, notes, tiny, tmp_path):
    place = tmp_path / "place"
    assert len(search(run, notes, "pears", "--model", tiny, "--index", place)[0]) == 2
    assert not (cache_folder() / "indexes").exists()
    other = shutil.copytree(notes, tmp_path / "other")
    result = run("search", other, "pears", "--index", place)
    assert (result.exit_code, f"was not filled from the folder '{other}'" in result.stderr) == (1, True)
    with indexes.open(place, read_only=True) as index:
        assert len(index) == 2
    result = run("search", place, "pears", "--index", other)
    assert (result.exit_code, "--index: it is where the index of a folder of files is" in result.stderr) == (2, True)


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_cached_index_that_cannot_be_opened_is_named_with_its_cure(run, notes, tiny):
    search(run, notes, "pears", "--model", tiny)
    (place,) = (cache_folder() / "indexes").iterdir()
    for file in place.glob("catalog.sqlite*"):
        file.unlink()
    (place / "catalog.sqlite").write_bytes(b"no catalog" * 1000)
    result = run("search", notes, "pears")
    assert (result.exit_code, f"latelier remove --cache {notes} deletes it" in result.stderr) == (1, True)
    assert run("remove", "--cache", notes).exit_code == 0
    assert len(search(run, notes, "pears", "--model", tiny)[0]) == 2


def test_what_is_no_folder_of_files_is_told(run, notes, tiny, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    damaged = tmp_path / "damaged"
    indexes.IVF(damaged).close()
    (damaged / "catalog.sqlite").rename(tmp_path / "lost.sqlite")
    (damaged / "segments" / "0123456789abcdef").mkdir(parents=True, exist_ok=True)
    for place, message in {
        empty: "nothing to index in the folder",
        notes / "pears.md": "is a file",
        tmp_path / "absent": "there is no index in",
        damaged: "is not an index: it holds ",
    }.items():
        result = run("search", place, "pears")
        assert (result.exit_code, message in result.stderr) == (1, True), result.output
    result = run("explain", notes, "pears", "pears.md")
    assert "is not an index: it holds moon.md, pears.md, tool.exe. Give the folder of an index" in result.stderr
    assert "latelier search" in result.stderr
    assert not (cache_folder() / "indexes").exists()
