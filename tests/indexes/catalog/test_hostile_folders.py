"""The folder of an index from a stranger: no name, link or special file in it reaches anything outside."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from index_helpers import matrices
from index_tampering import IDS, KINDS, change, file_of, forge, make

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    IndexDamageWarning,
    InvalidArgumentError,
    LatelierError,
)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["{victim}", "../../victim", "..", ".", "", "../segments", "a" * 16 + "/../../../victim"]
)
def test_stored_names_reach_nothing_outside(tmp_path, kind, name):
    (tmp_path / "victim" / "photos").mkdir(parents=True)
    (tmp_path / "victim" / "ids.npy").write_bytes(b"x")
    folder = make(tmp_path / "index", kind)
    before = names(tmp_path / "victim")
    stored = name.format(victim=tmp_path / "victim")
    for removed, derived in ((0, False), (4, False), (0, True)):
        shutil.copytree(folder, tmp_path / "copy")
        values = {"name": stored, "removed": removed}
        if derived:
            change(tmp_path / "copy", "INSERT INTO setting VALUES ('derived', '[]', 0)")
            forge(tmp_path / "copy", "setting", name="derived", value=json.dumps([stored, {}]))
        else:
            forge(tmp_path / "copy", "segment", **values)
        for use in (
            lambda index: index.add("new", matrices([5])[0]),
            lambda index: index.update(["a"], matrices([5])),
            lambda index: index.remove(IDS),
            lambda index: index.search(matrices([1])),
            lambda index: index.verify(),
        ):
            try:
                with indexes.open(tmp_path / "copy") as index:
                    use(index)
            except LatelierError:
                pass
        assert names(tmp_path / "victim") == before
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
@pytest.mark.parametrize("place", ["segments", "segment", "file"])
def test_links_are_not_followed(tmp_path, place):
    folder = make(tmp_path / "index")
    file = file_of(folder, "a", "ids.npy")
    link = {"segments": folder / "segments", "segment": file.parent, "file": file}[place]
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    before = names(tmp_path / "elsewhere") if place != "file" else None
    with indexes.open(folder) as index:
        assert IDS[0] in index.verify().ids
        with pytest.raises(CorruptedIndexError, match="is a link, but an index must hold its own files"):
            index.search(matrices([1]))
        with pytest.warns(IndexDamageWarning, match="is a link"):
            index.compact()
    assert before is None or names(tmp_path / "elsewhere") == before


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
@pytest.mark.parametrize(
    "name", ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "catalog.sqlite-journal"]
)
def test_a_catalog_that_is_a_link_is_not_written(tmp_path, name):
    folder = make(tmp_path / "index")
    victim = tmp_path / "victim"
    victim.write_bytes((folder / name).read_bytes() if name == "catalog.sqlite" else b"theirs")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    before = victim.read_bytes()
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match="is a link, but an index must hold its own files"):
            use(folder)
    assert victim.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
@pytest.mark.parametrize(
    "make_file", [os.mkfifo if hasattr(os, "mkfifo") else None, Path.mkdir], ids=["pipe", "folder"]
)
@pytest.mark.parametrize("suffix", ["wal", "shm", "journal"])
def test_side_files_that_are_no_files_are_refused(tmp_path, suffix, make_file):
    """SQLite would wait for the other end of a pipe for ever."""
    folder = make(tmp_path / "index")
    make_file(folder / f"catalog.sqlite-{suffix}")
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match=f"catalog.sqlite-{suffix} is not a regular file"):
            use(folder)


def test_a_journal_that_names_another_file_deletes_nothing(tmp_path):
    """SQLite deletes the "super-journal" that a journal names, once it has rolled it back."""
    folder = make(tmp_path / "index")
    victim = str(tmp_path / "victim").encode()
    (tmp_path / "victim").write_bytes(b"theirs")
    page = 4096
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 1, 512, page)
    record = struct.pack(">I", 1 << 20) + victim + struct.pack(">II", len(victim), sum(victim))
    (folder / "catalog.sqlite-journal").write_bytes(header.ljust(512, b"\0") + record + header[:8])
    with pytest.raises(CorruptedIndexError, match="is not a journal that an index writes"):
        indexes.open(folder)
    assert (tmp_path / "victim").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs FIFOs")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    folder = make(tmp_path / "index")
    path = file_of(folder, "a", "ids.npy")
    path.unlink()
    os.mkfifo(path)
    with indexes.open(folder) as index, pytest.raises(CorruptedIndexError, match=r"ids\.npy is damaged: it is missing"):
        index.search(matrices([1]))


@pytest.mark.parametrize("path", [["x"], False, 5, "", "a\0b", b"a\0b"])
def test_a_path_that_is_none_is_refused(path):
    for use in (indexes.Flat, indexes.IVF, indexes.open):
        with pytest.raises(InvalidArgumentError, match="as a path; give the folder of the index"):
            use(path)
