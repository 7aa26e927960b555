"""Shards whose disk is full or cannot be written: the error says so, and what is stored stays."""

import shutil
import subprocess

import numpy as np
import pytest
from kill_rounds import apply, carry_out, stored

from latelier import indexes
from latelier.errors import StorageError
from latelier.indexes.sharded.staging import Manifest, StagedTransaction

pytest.importorskip("ray")
IDS = [str(i) for i in range(12)]


def mount(folder, *options):
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own, of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        is_mounted = mount(folder, "-o", "size=1m")
    except FileNotFoundError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("only root can mount a small file system, and only on Linux")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def large(count):
    """Return vectors of about 60 KB each."""
    return [np.full((1900, 8), i, "float32") for i in range(count)]


@pytest.mark.usefixtures("shard_processes")
def test_a_write_that_does_not_fit_changes_nothing(small_disk, tmp_path):
    folder = tmp_path / "index"
    with indexes.Sharded(folder, shards=2, index="flat") as index:
        carry_out(index, "add", IDS, 1)
    shutil.copytree(folder / "shards", small_disk, dirs_exist_ok=True)
    shutil.rmtree(folder / "shards")
    (folder / "shards").symlink_to(small_disk)
    state = apply({}, "add", IDS, 1)
    with indexes.open(folder) as index:
        with pytest.raises(StorageError, match=r"could not stage this write in .*: No space left on device\."):
            index.add(range(30), large(30))
        assert stored(index) == state
        assert not list(small_disk.rglob("staged/*"))
        carry_out(index, "update", IDS[:3], 2)
        state = apply(state, "update", IDS[:3], 2)
        assert stored(index) == state
        # Staged, but too large to be written a second time.
        with pytest.raises(StorageError, match="this write is committed and will not be lost, but it is not visible"):
            index.add(range(9), large(9))
        assert stored(index) == state
    assert mount(small_disk, "-o", "remount,size=8m")
    with indexes.open(folder) as index:
        assert len(index) == len(IDS) + 9
        index.remove(range(9))
        assert stored(index) == state
        assert index.verify().is_whole


@pytest.mark.parametrize("blocked", ["staged", "staged/1/.manifest.json", "staged/1/manifest.json"])
def test_a_folder_that_cannot_be_written(tmp_path, blocked):
    path = tmp_path / blocked
    if blocked == "staged":
        path.write_text("a file")
    else:
        (path / "folder").mkdir(parents=True)
    transaction = StagedTransaction(tmp_path, "1")
    with pytest.raises(StorageError, match=r"could not stage this write in .*\. Nothing was changed"):
        transaction.finish(Manifest([], [], [], False, 0))
    assert not transaction.is_complete
