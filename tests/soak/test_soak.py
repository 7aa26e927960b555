"""A small dose of every part, each in a process of its own as `make soak` runs them; and that the soak can fail."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soak.cases import Part, Wrong
from soak.workers import run_part

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")

TESTS = Path(__file__).parents[1]
PARTS = ("flips", "disks", "filters")  # a dose of kills and forks is in tests/indexes/store


def run_soak(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "soak", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_small_dose_finds_nothing():
    """All parts in one process, which imports the library once."""
    names = [word for part in PARTS for word in ("--only", part)]
    result = run_soak("--workers", "1", "--scale", "0.002", *names)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-1000:]
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == list(PARTS)
    for name, tried, refused, accepted, wrong, _ in rows:
        assert int(tried) == int(refused) + int(accepted) > 0, name
        assert wrong == "0"


def test_one_seed_runs_alone():
    result = run_soak("--only", "filters", "--seed", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^seed 1: \{'(accepted|refused)': 1\}$", result.stdout, re.MULTILINE)


def prepare(source):
    (source / "word").write_text("here")


def case(source, scratch, seed):
    assert (source / "word").read_text() == "here"
    (scratch / "file").touch()
    if seed == 3:
        raise Wrong("it is wrong")
    if seed == 4:
        raise KeyError("raw")
    if seed == 5:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 6:
        time.sleep(60)
    return "refused" if seed % 2 else "accepted"


@pytest.mark.slow
def test_what_goes_wrong_is_put_down_to_its_seed(tmp_path):
    # The watchdog of pytest is a thread: forked processes would wait for it when they start their own.
    faulthandler.cancel_dump_traceback_later()
    reports = run_part(Part("trial", 10, prepare, case, seconds=1.0), range(10), tmp_path, workers=2)
    assert [report.seed for report in reports] == list(range(10))
    wrong = {report.seed: report.wrong for report in reports if report.wrong}
    assert list(wrong) == [3, 4, 5, 6]
    assert wrong[3] == "it is wrong"
    assert wrong[4].startswith("raw KeyError: 'raw'")
    assert "SIGSEGV" in wrong[5]
    assert wrong[6].startswith("no end after 1 seconds")
    assert "test_soak.py" in wrong[6]
    assert sum(report.counts["refused"] for report in reports) == 3
    assert sum(report.counts["accepted"] for report in reports) == 3
