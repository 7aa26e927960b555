"""The files of exports: whole or not there, of this user alone, and nothing left behind by killed processes."""

import os
import stat
import time

import pytest

from latelier.errors import ModelLoadError
from latelier.models.exported import is_own, is_whole, read_description, write_folder

DAY = 24 * 3600


def write(folder, content=b"weights"):
    write_folder(folder, lambda target: (target / "encoder.onnx").write_bytes(content) and {"dim": 3})
    return folder


def test_what_was_written_is_whole_and_is_replaced_as_a_whole(tmp_path):
    folder = write(tmp_path / "export")
    assert (is_whole(folder), read_description(folder)["dim"]) == (True, 3)
    write(folder, b"others")
    assert (folder / "encoder.onnx").read_bytes() == b"others"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_that_changed_needs_its_checksum(tmp_path):
    folder = write(tmp_path / "export")
    os.utime(folder / "encoder.onnx", (0, 0))  # as a copy has another time
    assert read_description(folder)["dim"] == 3
    (folder / "encoder.onnx").write_bytes(b"weightS")
    with pytest.raises(ModelLoadError, match=r"'encoder\.onnx' is damaged: its checksum differs from"):
        read_description(folder)
    (folder / "encoder.onnx").write_bytes(b"weight")
    with pytest.raises(ModelLoadError, match=r"'encoder\.onnx' is damaged: its size differs from"):
        read_description(folder)


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path):
    old, recent, active = (tmp_path / f"latelier-unfinished-{name}" for name in ("old", "recent", "active"))
    kept = tmp_path / "unfinished-work-of-the-user"
    for path in (old, recent, active, kept):
        (path / "new").mkdir(parents=True)
        (path / "new" / "file").write_text("text")
    link = tmp_path / "latelier-unfinished-link"
    link.symlink_to(kept)
    before = time.time() - 2 * DAY
    for path in (old, active, kept):
        for each in (path / "new" / "file", path / "new", path):
            os.utime(each, (before, before))
    os.utime(active / "new" / "file")
    folder = write(tmp_path / "export")
    assert set(tmp_path.iterdir()) == {folder, recent, active, kept, link}
    assert (kept / "new" / "file").read_text() == "text"


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_folders_that_others_can_write_and_links_are_not_ones_own(tmp_path):
    mask = os.umask(0)
    try:
        folder = write(tmp_path / "export")
    finally:
        os.umask(mask)
    assert is_own(folder)
    for path in (folder, folder / "encoder.onnx"):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | stat.S_IWGRP)
        assert not is_own(folder)
        path.chmod(mode)
    assert is_own(folder)
    (folder / "encoder.onnx").rename(tmp_path / "elsewhere")
    (folder / "encoder.onnx").symlink_to(tmp_path / "elsewhere")
    assert is_whole(folder)
    assert not is_own(folder)
    (tmp_path / "link").symlink_to(write(tmp_path / "other"))
    assert not is_own(tmp_path / "link")
    assert not is_own(tmp_path / "missing")
