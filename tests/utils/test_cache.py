"""The folder for files that can be made again."""

import sys

import pytest

from latelier.utils.files import cache_folder


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
