"""The instruction sets of the library: which one is taken, how one is forced, and what is said without a library."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import latelier
from instructions import forced
from latelier.errors import InvalidArgumentError
from latelier.kernels.library import Kernel, instruction_set, supported


def test_the_library_is_there_and_every_set_can_be_forced_by_its_name(kernel):
    assert supported()[-1] == "numpy"
    assert {"generic", "neon"} & set(supported()), "run `make kernels`"
    assert instruction_set() == kernel


def test_a_set_that_the_processor_lacks_is_refused():
    with forced("sse2"), pytest.raises(InvalidArgumentError, match=r"LATELIER_KERNELS='sse2'.*numpy"):
        instruction_set()


def test_kernels_refuse_arrays_that_they_would_misread():
    one = np.zeros((4, 4), dtype="float32")
    kernel = Kernel("add_query_gradients", "float32*", "int64")
    with pytest.raises(TypeError, match="array of float32, received float64"):
        kernel(one.astype("float64"), 1)
    with pytest.raises(TypeError, match="C-contiguous"):
        kernel(one[:, ::2], 1)


WITHOUT = """
import numpy as np
from latelier import indexes
from latelier.kernels.library import instruction_set
index = indexes.Flat()
index.add(["a", "b"], [np.eye(4)[:2], np.eye(4)[2:]])
print(latelier.__file__, instruction_set(), index.search(np.eye(4)[2:], k=1)[0][0].id)
"""


def test_without_a_library_numpy_answers_and_one_line_says_so(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "compiled")
    source = shutil.copytree(Path(latelier.__file__).parent, tmp_path / "latelier", ignore=ignored)
    environment = {name: value for name, value in os.environ.items() if name != "LATELIER_KERNELS"}
    command = [sys.executable, "-c", f"import latelier{WITHOUT}"]
    settings = {**environment, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=settings)
    assert done.stdout == f"{source / '__init__.py'} numpy b\n", done.stderr
    assert done.stderr.count("the compiled kernels cannot be loaded, so numpy computes") == 1
