"""What kernels generate code with: the parts of numba and llvmlite, for all modules of kernels to import from here.

Two threads may be the first to import kernels, such as a search and the thread that prepares them for later ones.
Python lets a thread import a part of a package, such as ``numba.core``, while another thread is still importing the
package itself; then both fail, and numba stays broken for the whole process. It does wait for a module that is imported
by its own name: for this one, which imports all of numba before its parts.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

__all__ = ["cgutils", "intrinsic", "ir", "llvm", "numba", "register_jitable", "types"]
