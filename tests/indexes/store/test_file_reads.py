"""Rows that are read from files: as through the map, also when the system returns fewer bytes; and damaged files."""

import os

import numpy as np
import pytest

from latelier.errors import CorruptedIndexError
from latelier.indexes.store.files import FileReads, read_file, write_file


@pytest.fixture
def mapped(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, 1 << 21, dtype="uint8")
    return tmp_path / "a.npy", read_file(tmp_path / "a.npy", write_file(tmp_path / "a.npy", array)), array


@pytest.mark.parametrize("system", ["whole reads", "short reads", "no preadv"])
def test_runs_in_any_order_are_those_of_the_array(mapped, monkeypatch, system):
    _, stored, array = mapped
    if system == "no preadv":
        monkeypatch.delattr(os, "preadv", raising=False)
    elif hasattr(os, "preadv") and system == "short reads":
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda file, targets, place: whole(file, [targets[0][:1000]], place))
    starts, sizes = np.array([2_000_000, 7, 100_000, 107]), np.array([50_000, 100, 3, 5000])
    buffer, places = FileReads([stored]).read(stored.ctypes.data + starts, sizes)
    for start, size, place in zip(starts, sizes, places, strict=True):
        assert np.array_equal(buffer[place : place + size], array[start : start + size])


@pytest.mark.skipif(os.name == "nt", reason="Windows neither shortens nor deletes a mapped file")
def test_a_shorter_file_is_damage_and_a_deleted_one_is_still_read(mapped):
    path, stored, array = mapped
    before = FileReads([stored])
    address, size = stored.ctypes.data + np.array([1_000_000]), np.array([9])
    path.rename(path.with_name("b.npy"))
    for files in (before, FileReads([stored])):
        assert np.array_equal(files.read(address, size)[0], array[1_000_000:1_000_009])
    os.truncate(path.with_name("b.npy"), 1_000_132)  # within the run: 4 of its bytes are left
    with pytest.raises(
        CorruptedIndexError, match=r"a.npy is damaged: it ends at byte 1000132\. verify\(\) lists damage"
    ):
        before.read(address, size)
