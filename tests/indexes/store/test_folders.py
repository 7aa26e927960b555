"""Indexes on disk: reopened, moved, replaced, read by other processes, read-only, foreign."""

import errno
import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from index_helpers import contents, in_child, matrices
from index_tampering import change, forge

from latelier import indexes
from latelier.errors import IndexFormatError, LatelierError, ReadOnlyIndexError, StorageError

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork and POSIX permissions")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "path with spaces, ünïcode, 100% & #1?"
    with indexes.Flat(folder) as index:
        index.add(["a", 1, "ß"], matrices([2, 1, 3]), texts=["x", None, "y"], metadata=[{"n": 1}, {"n": 2}, None])
    return folder


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
        with index.snapshot(), indexes.open(tmp_path / "index") as other:  # takes a connection, so that the next is new
            other.add("b", matrices([1]))
        assert index.ids() == ["a", "b"]
        assert index.path == tmp_path / "index"
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
            with pytest.raises(ReadOnlyIndexError, match="open for reading only"):
                write()
        assert contents(index) == before
        assert index.read_only
        with indexes.open(folder) as writer:
            writer.remove("a")
        assert index.ids() == [1, "ß"]
        assert index.check().recall == 1.0


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


def test_threads_that_make_one_index_at_once_all_add_to_it(tmp_path):
    for round in range(2):
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


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for use in (indexes.Flat, indexes.open):
        with pytest.raises(IndexFormatError, match=r"is not an index: it holds notes\.txt"):
            use(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(IndexFormatError, match="is a file; an index is a folder"):
        indexes.Flat(tmp_path / "notes.txt")


def test_an_empty_folder_becomes_an_index_only_by_its_class(tmp_path):
    for use in (lambda: indexes.open(tmp_path), lambda: indexes.Flat(tmp_path, read_only=True)):
        with pytest.raises(IndexFormatError, match="there is no index in"):
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
        with pytest.raises(IndexFormatError, match="is not the catalog of an index"):
            use(tmp_path)


def test_a_newer_format_asks_for_an_upgrade(folder):
    change(folder, "PRAGMA user_version = 2")
    for use in (indexes.Flat, indexes.open):
        with pytest.raises(IndexFormatError, match=r"has format version 2.*pip install --upgrade"):
            use(folder)


def test_another_kind_of_index_is_told_apart(folder):
    forge(folder, "setting", "kind", value='"ivf2"')
    with pytest.raises(IndexFormatError, match="is of kind 'ivf2', not 'flat'"):
        indexes.Flat(folder)
    with pytest.raises(IndexFormatError, match="of kind 'ivf2', but"):
        indexes.open(folder)


@posix
@pytest.mark.parametrize("call", ["open", "fsync", "stat", "mkdir", "scandir"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_a_system_call_that_fails_while_an_index_is_made_or_opened_is_named(tmp_path, monkeypatch, call, code):
    real, folder = getattr(os, call), tmp_path / "new" / "index"

    def failing(path=".", *arguments, **options):
        if call == "fsync" or str(path).startswith(str(tmp_path)):
            raise OSError(code, os.strerror(code))
        return real(path, *arguments, **options)

    told = []
    for make in (indexes.Flat, indexes.open):
        monkeypatch.setattr(os, call, failing)
        try:
            make(folder).close()
        except LatelierError as error:
            told.append(str(error))
        monkeypatch.setattr(os, call, real)
        with indexes.Flat(folder) as index:
            assert len(index) == 0
    assert all(str(folder) in text for text in told)
    assert any(os.strerror(code) in text for text in told) or call == "scandir"


def test_creation_that_was_killed_is_begun_again(tmp_path):
    (tmp_path / "catalog.sqlite").touch()
    with indexes.Flat(tmp_path) as index:
        index.add("a", matrices([1]))
    assert indexes.open(tmp_path).ids() == ["a"]


ONE = np.ones((1, 4))
MOVED = "was replaced or moved since it was opened"
renames = pytest.mark.skipif(os.name == "nt", reason="Windows moves no folder with open files")
CALLS = {
    "search": lambda index: index.search(ONE),
    "get": lambda index: index.get("a"),
    "add": lambda index: index.add("late", ONE),
    "remove": lambda index: index.remove("a"),
    "compact": lambda index: index.compact(),
    "verify": lambda index: index.verify(),
}


def make(folder, *ids):
    with indexes.Flat(folder) as index:
        for id in ids:
            index.add(id, ONE)
        return contents(index)


def check_intact(folder, expected):
    with indexes.open(folder) as index:
        assert contents(index) == expected
        assert index.verify().is_whole


def forget_connections():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@renames
@pytest.mark.parametrize("warm", [True, False])
def test_an_index_that_was_swapped_is_left_alone(warm, tmp_path):
    """Deploying a rebuilt index by renaming, with connections to the old one in the pool or without."""
    live, new, old = (tmp_path / part for part in ("live", "live.new", "live.old"))
    before, rebuilt = make(live, "a", "b"), make(new, "a", "c", "d")
    server = indexes.open(live)
    if not warm:
        forget_connections()
    live.rename(old)
    for place in ("nothing", "another index"):
        for call in CALLS.values():
            with pytest.raises(StorageError, match=MOVED):
                call(server)
        if place == "nothing":
            new.rename(live)
    server.close()
    check_intact(live, rebuilt)
    check_intact(old, before)


@renames
def test_an_index_swapped_within_a_write_takes_nothing_in(tmp_path):
    """The new index is a copy of the old one, so that it has segments of the same names."""
    live, new, old = (tmp_path / part for part in ("live", "live.new", "live.old"))
    before = make(live, "a", "b")
    shutil.copytree(live, new)
    server = indexes.open(live)

    def stream():
        yield ONE
        live.rename(old)
        new.rename(live)
        yield ONE

    with pytest.raises(StorageError, match=MOVED):
        server.add(["c", "d"], stream())
    server.close()
    check_intact(live, before)
    check_intact(old, before)


@posix
@pytest.mark.parametrize("warm", [True, False])
def test_files_copied_over_those_of_an_open_index_are_not_written_to(warm, tmp_path):
    """The catalog keeps its place on the disk, but not its name inside."""
    make(tmp_path / "index", "a")
    other = make(tmp_path / "other", "b", "c", "d")
    with indexes.open(tmp_path / "index") as server:
        server.search(ONE)
        if not warm:
            forget_connections()
        shutil.copytree(tmp_path / "other", tmp_path / "index", dirs_exist_ok=True)
        for name in ("add", "compact"):
            with pytest.raises(StorageError, match=MOVED):
                CALLS[name](server)
    check_intact(tmp_path / "index", other)
