"""Kernels compile where their cache cannot be written, from a file run by itself, and as two threads import them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import latelier

# A module of kernels that is compiled in no time.
MODULE = '''
"""
>>> double(21)
42
"""
from latelier.kernels.jit import kernel

@kernel()
def double(x):
    return 2 * x
'''
USE = """
import doctest, sys
import latelier
latelier.__path__.append(sys.argv[1])
from latelier import quick
assert doctest.testmod(quick) == (0, 1)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "quick.py").write_text(MODULE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_a_file_run_by_itself_leaves_nothing_in_the_cache_that_others_could_not_load(tmp_path, run):
    run("-m", "doctest", tmp_path / "quick.py")
    assert not list(tmp_path.rglob("*.nbi"))
    run("-c", USE, tmp_path)
    assert list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
def test_an_index_is_built_and_searched_where_no_cache_can_be_written(tmp_path):
    """As with a read-only installation and home; files are in the places of folders, so that it holds for root too."""
    source = shutil.copytree(
        Path(latelier.__file__).parent, tmp_path / "source" / "latelier", ignore=shutil.ignore_patterns("__pycache__")
    )
    home = tmp_path / "home"
    for file in (home, *(folder / "__pycache__" for folder in [source, *filter(Path.is_dir, list(source.rglob("*")))])):
        file.touch()
    places = {name: str(home / name) for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LATELIER_CACHE")}
    for given in ({}, {"NUMBA_CACHE_DIR": str(home / "numba")}):
        use = (
            "import latelier.kernels.jit, numpy as np; from latelier import indexes;"
            "documents = [np.eye(64, dtype='float32')[i : i + 3] for i in range(60)];"
            "index = indexes.IVF(); index.add(range(60), documents);"
            "print(latelier.__file__, [hits[0].id for hits in index.search(documents[:2], 1)])"
        )
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        environment |= {**places, **given, "PYTHONPATH": str(source.parent), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, timeout=600, env=environment)
        assert (done.returncode, done.stdout) == (0, f"{source / '__init__.py'} [0, 1]\n"), done.stderr
    assert home.read_bytes() == b""
    assert not list(tmp_path.rglob("*.nbi"))
