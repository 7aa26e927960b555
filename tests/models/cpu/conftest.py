import platform
import sys

import pytest
import torch

from latelier.models.cpu.held_threads import held_threads


@pytest.fixture
def two_threads():
    """Two threads of torch; skips where single threads cannot be held to fewer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with held_threads(1) as is_held:
        pass
    if not is_held and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("this build of torch takes its threads from elsewhere than OpenMP and MKL")
    assert is_held
    yield
    torch.set_num_threads(threads)
