"""Kernels compile where their cache cannot be written, and from a file run by itself."""

import os
import pickle
import subprocess
import sys

from latelier.kernels import jit, ward


def test_what_cannot_be_cached_is_compiled_all_the_same():
    # Code without a file is the case in which numba finds no place for its cache, as in an unwritable installation.
    names = {"kernel": jit.kernel, "__name__": "latelier.elsewhere"}
    exec("@kernel()\ndef double(x):\n    return 2 * x", names)
    assert names["double"](21) == 42


def test_a_file_run_by_itself_leaves_nothing_in_the_cache_that_others_could_not_load(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    use = "import doctest; from latelier.kernels import ward; assert doctest.testmod(ward).failed == 0"
    for command in (["-m", "doctest", ward.__file__], ["-c", use]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_cache_that_names_a_class_of_an_older_version_is_compiled_anew(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    use = "import doctest; from latelier.kernels import ward; assert doctest.testmod(ward).failed == 0"

    def run():
        done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr

    run()
    indexes = list(tmp_path.rglob("*.nbi"))
    for path in indexes:
        with path.open("rb") as file:
            version = pickle.load(file)
        gone = b"clatelier.kernels.ward\nNoSuchClass\n."  # what pickle writes for a class, by name
        path.write_bytes(pickle.dumps(version) + gone)
    assert indexes
    run()
    assert all(b"NoSuchClass" not in path.read_bytes() for path in indexes)
