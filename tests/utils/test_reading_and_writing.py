"""Faults of files are found where they are: the line of a wrong byte, and the column of malformed JSON."""

import io
import os
import re
import stat
import sys
import threading

import pytest

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.files import cache_folder, parse_json, text_lines, write_bytes


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("number", [0, 51, 2000])  # files are decoded in blocks of some thousands of bytes
def test_a_byte_that_is_not_utf8_is_named_with_its_line(end, mark, number):
    lines = [f"líne {i}".encode() for i in range(3000)]
    lines[number] += b" caf\xe9"
    message = f"a.txt is not UTF-8 text (byte 0xe9 after line {number}); convert it to UTF-8."
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        list(text_lines(io.BytesIO(mark + end.join(lines)), "a.txt"))


def test_a_text_that_ends_within_a_character():
    with pytest.raises(InvalidArgumentError, match=r"\(byte 0xc3 after line 1\)"):
        list(text_lines(io.BytesIO(b"one\ncaf\xc3"), "a.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id":"a","text":"x"\n', "Expecting ',' delimiter: column 21."),
        ('{"id":\n"a"\n"text": 1}', "Expecting ',' delimiter: line 3, column 1."),
        ("", "Expecting value: column 1."),
    ],
)
def test_malformed_json_of_a_record_has_a_column_and_no_line(text, message):
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(f'malformed JSON: {message}')}$"):
        parse_json(text)


posix = pytest.mark.skipif(os.name != "posix", reason="needs links, permissions and pipes of POSIX")


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    for contents in (b"one", b"two"):
        write_bytes(tmp_path / "file", contents)
        assert (tmp_path / "file").read_bytes() == contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_an_existing_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    write_bytes(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


@posix
def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "target"
    (tmp_path / "link").symlink_to("other/target")
    for contents in (b"the target is missing", b"and there"):
        write_bytes(tmp_path / "link", contents)
        assert (tmp_path / "link").is_symlink()
        assert target.read_bytes() == contents
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["target"]


@posix
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_gets_the_contents_and_stays_a_pipe(tmp_path, linked):
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_bytes(path, b"through the pipe")
    reader.join(timeout=10)
    assert received == [b"through the pipe"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"could not write .*; an existing file is unchanged"):
        write_bytes(tmp_path / "none" / "file", b"new")
    with pytest.raises(StorageError, match="could not write"):
        write_bytes(tmp_path, b"new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"LATELIER_CACHE": "/chosen"}, "/chosen"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/latelier"),
        ("linux", {}, "/home/ada/.cache/latelier"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/ada/Library/Caches/latelier"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/latelier"),
        ("win32", {}, "/home/ada/AppData/Local/latelier"),
    ],
)
def test_cache_folder_of_each_platform(monkeypatch, platform, variables, expected):
    for name in ("LATELIER_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/ada", "USERPROFILE": "/home/ada", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == expected
