"""A commit whose log cannot be synced may take effect after a crash: both states stay whole, and the error says so."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from latelier import indexes

# Fails the next calls of fsync on SQLite's log, as a disk with an error or without space does.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int left = 0;
void fail_syncs(int n) { left = n; }
static int is_log(int fd) {
    char link[64], path[4096];
    snprintf(link, 64, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    return n > 4 && !strncmp(path + n - 4, "-wal", 4);
}
#define WRAP(name) int name(int fd) { \
    if (left > 0 && is_log(fd)) { left--; errno = EIO; return -1; } \
    return ((int (*)(int)) dlsym(RTLD_NEXT, #name))(fd); }
WRAP(fsync) WRAP(fdatasync)
"""
WRITER = """
import ctypes, os, sys
import numpy as np
from latelier import indexes
from latelier.errors import CommitError
folder, kind, write, end, shim = sys.argv[1:]
vectors = np.random.default_rng(0).standard_normal((6, 4, 16)).astype("float32")
index = getattr(indexes, kind)(folder)
index.add(["a", "b", "c"], list(vectors[:3]))
ctypes.CDLL(shim).fail_syncs(1 if end != "close" else 1000)
try:
    {"add": lambda: index.add(["d"], [vectors[3]]), "remove": lambda: index.remove(["a"])}[write]()
except CommitError as error:
    print(error)
if end == "compact":
    index.compact()
if end == "close":
    index.close()
os._exit(9)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    if sys.platform != "linux" or not shutil.which("cc"):
        pytest.skip("needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return str(folder / "shim.so")


@pytest.mark.parametrize(
    ("kind", "write", "end"),
    [
        ("Flat", "add", "killed"),
        ("IVF", "remove", "killed"),
        ("Flat", "remove", "close"),
        ("IVF", "add", "compact"),
    ],
)
def test_a_commit_that_the_disk_fails_loses_nothing(tmp_path, shim, kind, write, end):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "index"), kind, write, end, shim]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": shim}, capture_output=True, text=True, check=False)
    assert "unknown whether the write took effect" in done.stdout, done.stderr
    with getattr(indexes, kind)(tmp_path / "index") as index:
        assert index.verify().damages == ()
        assert index.ids() in [["a", "b", "c"], {"add": ["a", "b", "c", "d"], "remove": ["b", "c"]}[write]]
        query = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")
        assert len(index.search(query, k=9)[0]) == len(index)
        index.compact()
        assert index.verify().damages == ()
