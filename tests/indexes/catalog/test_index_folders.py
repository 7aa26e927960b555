"""Indexes on disk: reopened, moved, read by other processes, read-only, foreign, damaged by no one."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from index_helpers import contents, in_child, matrices

from latelier import indexes
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError, ReadOnlyIndexError, StorageError
from latelier.indexes.store import connections
from latelier.indexes.store.catalog import write_setting

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork and POSIX permissions")


@pytest.fixture
def folder(tmp_path):
    """A folder with an index of three documents, closed."""
    folder = tmp_path / "path with spaces, ünïcode, 100% & #1?"
    with indexes.Flat(folder) as index:
        index.add(["a", 1, "ß"], matrices([2, 1, 3]), texts=["x", None, "y"], metadata=[{"n": 1}, {"n": 2}, None])
    return folder


def test_all_folders_that_are_made_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(connections, "sync_folder", synced.append)
    indexes.Flat(tmp_path / "a" / "b" / "c").close()
    assert synced == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_an_index_reopens_as_it_was(disk_index):
    disk_index.add(["a", 1], matrices([2, 3]), texts=["x", None], metadata=[{"n": 1}, None])
    disk_index.remove("a")
    disk_index.add("b", matrices([1]))
    disk_index.settings["model"] = "ours"
    before, found = contents(disk_index), disk_index.search(matrices([2]))
    disk_index.close()
    for reopen in (type(disk_index), indexes.open):
        with reopen(disk_index.path) as index:
            assert type(index) is type(disk_index)
            assert (contents(index), index.search(matrices([2])), index.dtype) == (before, found, disk_index.dtype)
            assert (index.path, index.settings["model"]) == (disk_index.path, "ours")


def test_a_closed_index_may_be_moved_and_leaves_no_side_files(folder, tmp_path):
    with indexes.open(folder) as index:
        before = contents(index)
    assert sorted(path.name for path in folder.iterdir()) == ["catalog.sqlite", "segments"]
    moved = tmp_path / "elsewhere" / "index"
    moved.parent.mkdir()
    folder.rename(moved)
    with indexes.open(str(moved)) as index:
        assert contents(index) == before
        index.add("new", matrices([1]))
        assert index.ids() == ["a", 1, "ß", "new"]
    assert not folder.exists()


def test_an_index_opened_by_a_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with indexes.Flat("index") as index:
        index.add("a", matrices([1]))
        monkeypatch.chdir("/")
        with index._storage._pool.reading():  # takes the idle connection, so that the next one is new
            index.add("b", matrices([1]))
        assert index.ids() == ["a", "b"]
        assert index.path == tmp_path / "index"
        assert index.verify().is_whole


def test_another_process_reads_and_writes_the_same_index(folder):
    """A fresh interpreter, while this one has the index open."""
    code = """
import json, sys
import numpy as np
from latelier import indexes
with indexes.open(sys.argv[1]) as index:
    found = index.search(np.ones((1, 4)), k=2, filter="n >= 1")
    print(json.dumps([index.ids(), found, index.get("ß").text]))
    index.update(1, np.full((1, 4), 50.0))
"""
    with indexes.open(folder) as index:
        found = index.search(np.ones((1, 4)), k=2, filter="n >= 1")
        command = [sys.executable, "-c", code, str(folder)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(printed) == [["a", 1, "ß"], [[list(hit) for hit in found[0]]], "y"]
        assert index.search(np.ones((1, 4)), k=1) == [[(1, 200.0)]]


@posix
def test_a_forked_child_opens_its_own_connections(folder):
    with indexes.open(folder) as index:
        index.search(matrices([1]))
        mine = index._storage._pool._idle

        def use_in_child():
            index.add("child", matrices([1]))
            theirs = index._storage._pool._idle
            return [index.ids(), len(theirs), any(connection in mine for connection in theirs)]

        assert in_child(use_in_child) == [["a", 1, "ß", "child"], 2, False]
        assert index.ids() == ["a", 1, "ß", "child"]
        index.add("parent", matrices([1]))
        assert index.verify().is_whole


def test_read_only_never_writes(folder):
    with indexes.open(folder, read_only=True) as index:
        before = contents(index)
        for write in (
            lambda: index.add("b", matrices([1])),
            lambda: index.update("a", matrices([1])),
            lambda: index.remove("a"),
            index.compact,
        ):
            with pytest.raises(ReadOnlyIndexError, match=r"open for reading only; .*without read_only=True"):
                write()
        assert contents(index) == before
        assert index.read_only
        with indexes.open(folder) as writer:
            writer.remove("a")
        assert index.ids() == [1, "ß"]
        assert index.check().recall == 1.0


@posix
def test_a_folder_that_cannot_be_written_opens_for_reading():
    """As another user, who may only read; and while the owner writes and closes in between."""
    folder = Path(tempfile.mkdtemp()) / "index"  # tmp_path cannot be entered by others
    folder.parent.chmod(0o755)
    with indexes.Flat(folder) as index:
        index.add(["a", "b"], matrices([2, 1]))
        before = contents(index)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def as_reader():
        if os.getuid() == 0:
            os.setuid(65534)
        with indexes.open(folder) as index:
            same = contents(index) == before and index.verify().is_whole
            try:
                index.add("c", matrices([1]))
            except ReadOnlyIndexError as error:
                return [same, index.read_only, str(error)]
        return [same, "was written"]

    try:
        same, read_only, message = in_child(as_reader)
        assert (same, read_only) == (True, True)
        assert "is open for reading only" in message
        assert sorted(path.name for path in folder.iterdir()) == ["catalog.sqlite", "segments"]
        if os.getuid() == 0:
            with indexes.open(folder) as owner:
                owner.add("c", matrices([1]))
                before = contents(owner)
                assert in_child(as_reader)[:2] == [True, True]
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder.parent)


@posix
@pytest.mark.parametrize("copied", [["-wal", "-shm"], ["-wal"]], ids=["killed-writer", "log-alone"])
def test_a_log_left_in_a_folder_that_cannot_be_written_is_read(copied):
    """Of a live index that was copied, or of a writer that was killed: what it had committed is in SQLite's log."""
    parent = Path(tempfile.mkdtemp())  # tmp_path cannot be entered by others
    parent.chmod(0o755)
    folder, ids = parent / "copy", list(range(20))
    with indexes.Flat(parent / "live") as live:
        live.add(ids, matrices([1] * 20), texts=["text"] * 20)
        live.remove(0)
        shutil.copytree(live.path, folder)
    for ending in {"-wal", "-shm"} - set(copied):
        (folder / f"catalog.sqlite{ending}").unlink()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    before = [path.read_bytes() for path in files]
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def as_reader():
        if os.getuid() == 0:
            os.setuid(65534)
        with indexes.open(folder) as index:
            found = [len(index.search(matrices([1]), k=100)[0]), index.verify().is_whole, index.get(3).text]
            return [index.read_only, index.ids(), found]

    try:
        assert in_child(as_reader) == [True, ids[1:], [19, True, "text"]]
        assert sorted(path for path in folder.rglob("*") if path.is_file()) == files
        assert [path.read_bytes() for path in files] == before
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
    with indexes.open(folder) as index:
        assert index.ids() == ids[1:]
    shutil.rmtree(parent)


@posix
def test_a_folder_that_cannot_be_made_is_a_storage_error():
    def as_nobody():
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            indexes.Flat("/latelier-index")
        except StorageError as error:
            return str(error)

    assert in_child(as_nobody) == "could not make the folder /latelier-index: Permission denied."


@posix
@pytest.mark.parametrize("closed", [".", "segments"])
def test_a_folder_that_may_not_be_read_is_a_storage_error(closed):
    parent = Path(tempfile.mkdtemp())  # tmp_path cannot be entered by others
    parent.chmod(0o755)
    with indexes.Flat(parent / "index") as index:
        index.add("a", matrices([2]))
    (parent / "index" / closed).chmod(0)

    def as_nobody():
        if os.getuid() == 0:
            os.setuid(65534)
        messages = []
        for use in (indexes.open, indexes.Flat):
            try:
                with use(parent / "index", read_only=True) as index:
                    index.search(matrices([1]))
            except StorageError as error:
                messages.append(str(error))
        return messages

    try:
        first, second = in_child(as_nobody)
        assert first.startswith(f"could not look into {parent / 'index'}: Permission denied for ")
        assert second.startswith(f"could not look into {parent / 'index'}: Permission denied for ")
    finally:
        (parent / "index" / closed).chmod(0o755)
        shutil.rmtree(parent)


def test_threads_that_make_one_index_at_once_all_add_to_it(tmp_path):
    for round in range(15):
        ready, failed = threading.Barrier(6), []

        def add(number, folder=tmp_path / str(round), ready=ready, failed=failed):
            ready.wait()
            try:
                with indexes.Flat(folder) as index:
                    index.add(number, matrices([1]))
            except LatelierError as error:
                failed.append(error)

        threads = [threading.Thread(target=add, args=[number]) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        with indexes.open(tmp_path / str(round)) as index:
            assert sorted(index.ids()) == list(range(6))


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["a name", "names"])
def test_a_path_that_is_too_long_is_a_storage_error(tmp_path, name):
    for use in (indexes.Flat, indexes.IVF, indexes.open):
        with pytest.raises(StorageError, match=r"could not look for an index in .*xxx"):
            use(tmp_path / name)


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for use, cure in (indexes.Flat, "Choose a new or an empty folder"), (indexes.open, "Give the folder of an index"):
        with pytest.raises(IndexFormatError, match=rf"is not an index: it holds notes\.txt\. {cure}\.$"):
            use(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(IndexFormatError, match=r"notes.txt is a file; an index is a folder"):
        indexes.Flat(tmp_path / "notes.txt")


def test_an_empty_folder_becomes_an_index_only_by_its_class(tmp_path):
    for use in (lambda: indexes.open(tmp_path), lambda: indexes.Flat(tmp_path, read_only=True)):
        with pytest.raises(IndexFormatError, match=r"there is no index in .*; create one"):
            use()
    assert list(tmp_path.iterdir()) == []
    with indexes.Flat(tmp_path) as index:
        assert len(index) == 0
    assert len(indexes.open(tmp_path)) == 0


def test_another_program_s_catalog_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "catalog.sqlite")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    for use in (indexes.Flat, indexes.open):
        with pytest.raises(IndexFormatError, match=r"catalog.sqlite in .* is not the catalog of an index"):
            use(tmp_path)


def change(folder, statement):
    connection = sqlite3.connect(folder / "catalog.sqlite", isolation_level=None)
    connection.execute(statement)
    connection.close()


def change_setting(folder, name, value):
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        write_setting(connection, name, value)
    connection.close()


def test_a_newer_format_asks_for_an_upgrade(folder):
    change(folder, "PRAGMA user_version = 2")
    for use in (indexes.Flat, indexes.open):
        with pytest.raises(
            IndexFormatError,
            match="format version 2, but this version of latelier reads formats up to 1; upgrade with: pip",
        ):
            use(folder)
    change(folder, "PRAGMA user_version = 1")
    assert indexes.open(folder).ids() == ["a", 1, "ß"]


def test_another_kind_of_index_is_told_apart(folder):
    change_setting(folder, "kind", "ivf2")
    with pytest.raises(IndexFormatError, match=r"is of kind 'ivf2', not 'flat'; indexes.open"):
        indexes.Flat(folder)
    with pytest.raises(
        IndexFormatError, match=r"is of kind 'ivf2', but this version of latelier knows flat.*; upgrade"
    ):
        indexes.open(folder)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(indexes.Flat, "dtype", "object"), (indexes.IVF, "nbits", [8]), (indexes.IVF, "nbits", 3)],
)
def test_a_configuration_that_no_version_knows_is_refused(tmp_path, kind, name, value):
    kind(tmp_path / "index").close()
    change_setting(tmp_path / "index", name, value)
    with pytest.raises(IndexFormatError, match=re.escape(f"has {name}={value!r}; this version knows")):
        kind(tmp_path / "index")


def test_the_dtype_is_fixed_when_the_index_is_made(tmp_path):
    with indexes.Flat(tmp_path / "half", dtype="float16") as index:
        index.add("a", np.full((1, 2), 1 / 3))
        assert index.get_embeddings("a").dtype == "float16"
    with pytest.raises(InvalidArgumentError, match=r"dtype='float32', but the index in .*half has float16"):
        indexes.Flat(tmp_path / "half", dtype="float32")
    with indexes.Flat(tmp_path / "half") as index:
        index.add("b", np.full((1, 2), 1 / 3, dtype="float64"))
        assert index.get_embeddings(["a", "b"]).vectors.tolist() == [[0.333251953125] * 2] * 2
        assert "float16" in repr(index)


def test_creation_that_was_killed_is_begun_again(tmp_path):
    (tmp_path / "catalog.sqlite").touch()
    with indexes.Flat(tmp_path) as index:
        index.add("a", matrices([1]))
    assert indexes.open(tmp_path).ids() == ["a"]


def test_two_openings_make_one_index(tmp_path):
    with indexes.Flat(tmp_path / "index") as one, indexes.Flat(tmp_path / "index") as two:
        one.add("a", matrices([1]))
        two.add("b", matrices([1]))
        assert one.ids() == two.ids() == ["a", "b"]
