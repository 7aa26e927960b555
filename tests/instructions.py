"""Kernels of another instruction set than the best one of this processor."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from latelier.kernels.library import instruction_set


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Use the kernels of an instruction set; ``"numpy"``: none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATELIER_KERNELS", name)
        instruction_set.cache_clear()
        try:
            yield
        finally:
            instruction_set.cache_clear()
