"""Another index moved into the place of an open one: nothing is written there, and nothing of either is deleted."""

import os
import shutil

import numpy as np
import pytest
from index_helpers import contents

from latelier import indexes
from latelier.errors import StorageError
from latelier.indexes.store import connections

ONE = np.ones((1, 4))
MOVED = r"was replaced or moved since it was opened; nothing was changed. Open it again with indexes.open\(path\)"
posix = pytest.mark.skipif(os.name == "nt", reason="Windows moves no folder with open files")


def make(folder, *ids):
    with indexes.Flat(folder) as index:
        for id in ids:
            index.add(id, ONE)
        return contents(index)


CALLS = {
    "search": lambda index: index.search(ONE),
    "filter": lambda index: index.search(ONE, filter="id = 'a'"),
    "ids": lambda index: index.ids(),
    "get": lambda index: index.get("a"),
    "add": lambda index: index.add("late", ONE),
    "remove": lambda index: index.remove("a"),
    "compact": lambda index: index.compact(),
    "verify": lambda index: index.verify(),
    "setting": lambda index: index.settings.update(model="ours"),
}


def check_intact(folder, expected):
    with indexes.open(folder) as index:
        assert contents(index) == expected
        assert index.verify().is_whole


@posix
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("warm", [True, False])
def test_an_index_that_was_swapped_is_left_alone(warm, name, tmp_path):
    """Deploying a rebuilt index by renaming, with connections to the old one in the pool or without."""
    live, new, old = (tmp_path / part for part in ("live", "live.new", "live.old"))
    before, rebuilt = make(live, "a", "b"), make(new, "a", "c", "d")
    server = indexes.open(live)
    if not warm:
        server._storage._pool.close_idle()
    live.rename(old)
    for _ in range(2):  # nothing there, then another one
        with pytest.raises(StorageError, match=MOVED):
            CALLS[name](server)
        if new.exists():
            new.rename(live)
    with pytest.raises(StorageError, match=MOVED):
        CALLS[name](server)
    server.close()
    check_intact(live, rebuilt)
    check_intact(old, before)
    with indexes.open(live) as again:
        assert again.ids() == ["a", "c", "d"]


@posix
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


def test_an_index_deleted_and_made_anew_is_another_one(tmp_path):
    """The file system may give the new file the old one's number, so its own name is compared as well."""
    make(tmp_path / "index", "a")
    server = indexes.open(tmp_path / "index")
    server._storage._pool.close_idle()
    shutil.rmtree(tmp_path / "index")
    new = make(tmp_path / "index", "b")
    pool = server._storage._pool
    pool._catalog_id = connections._file_id(pool._catalog)  # as it may happen
    for call in CALLS.values():
        with pytest.raises(StorageError, match=MOVED):
            call(server)
    check_intact(tmp_path / "index", new)


@posix
def test_a_folder_of_segments_put_there_by_others_is_not_cleaned_up(tmp_path):
    make(tmp_path / "index", "a", "b")
    theirs = make(tmp_path / "theirs", "c")
    with indexes.open(tmp_path / "index") as index:
        index.add("d", ONE)
        (tmp_path / "index" / "segments").rename(tmp_path / "mine")
        (tmp_path / "theirs" / "segments").rename(tmp_path / "index" / "segments")
        for write in (index.compact, lambda: index.add("e", ONE)):
            with pytest.raises(StorageError, match=MOVED):
                write()
    (tmp_path / "index" / "segments").rename(tmp_path / "theirs" / "segments")
    check_intact(tmp_path / "theirs", theirs)


@posix
def test_a_link_that_leads_to_another_index_now(tmp_path):
    before, after = make(tmp_path / "one", "a"), make(tmp_path / "two", "b")
    (tmp_path / "live").symlink_to("one")
    with indexes.open(tmp_path / "live") as server:
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").replace(tmp_path / "live")
        with pytest.raises(StorageError, match=MOVED):
            server.compact()
        with pytest.raises(StorageError, match=MOVED):
            server.search(ONE)
    check_intact(tmp_path / "one", before)
    check_intact(tmp_path / "two", after)


def test_an_index_that_came_back_goes_on(tmp_path):
    make(tmp_path / "index", "a")
    with indexes.open(tmp_path / "index") as index:
        index._storage._pool.close_idle()
        (tmp_path / "index").rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match=MOVED):
            index.ids()
        (tmp_path / "elsewhere").rename(tmp_path / "index")
        assert index.ids() == ["a"]


@posix
@pytest.mark.parametrize("warm", [True, False])
def test_files_copied_over_those_of_an_open_index_are_not_written_to(warm, tmp_path):
    """The catalog keeps its place on the disk, but not its name inside."""
    make(tmp_path / "index", "a")
    other = make(tmp_path / "other", "b", "c", "d")
    with indexes.open(tmp_path / "index") as server:
        server.search(ONE)
        if not warm:
            server._storage._pool.close_idle()
        shutil.copytree(tmp_path / "other", tmp_path / "index", dirs_exist_ok=True)
        for name in ("add", "compact"):
            with pytest.raises(StorageError, match=MOVED):
                CALLS[name](server)
    check_intact(tmp_path / "index", other)
