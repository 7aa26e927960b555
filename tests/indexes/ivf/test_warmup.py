"""`latelier warmup` leaves no kernel of an index to be compiled by the first search."""

import os
import subprocess
import sys

import pytest

NOT_COMPILED = """
import importlib, pkgutil
from numba.core.registry import CPUDispatcher
from latelier.indexes.ivf import kernels
from latelier.indexes.ivf.index import compile_kernels
compile_kernels()
names = [f"{kernels.__name__}.{found.name}" for found in pkgutil.iter_modules(kernels.__path__)]
modules = [importlib.import_module(name) for name in names]
found = {value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)}
print(len(found) > 20, sorted(kernel.__name__ for kernel in found if not kernel.signatures))
"""


@pytest.mark.slow  # compiles all of them, in a new process
def test_every_kernel_is_compiled(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", NOT_COMPILED], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("True []\n", 0), done.stderr
