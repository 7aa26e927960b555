"""A forked child scores too, although it has none of its parent's threads."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, torch
from latelier.scores import colbert_scores
torch.set_num_threads(2)
queries, documents = torch.ones(1, 64, 128), torch.ones(300, 200, 128)
expected = colbert_scores(queries, documents)  # starts the threads
child = os.fork()
if child == 0:
    signal.alarm(60)
    assert torch.equal(colbert_scores(queries, documents), expected)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks are for Linux: elsewhere system libraries forbid it"
)
@pytest.mark.parametrize("kernels", ["generic", None])
def test_a_forked_child_does_not_wait_for_threads_that_it_lacks(kernels):
    environment = {**os.environ, **({"LATELIER_KERNELS": kernels} if kernels else {})}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout.strip() == "0", done.stderr
