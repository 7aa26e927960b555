"""A small dose of every part, each in a process of its own as `make soak` runs them; and that the soak can fail."""

import os
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
# Share of the full size that takes a few seconds; the part "large" is that of flips on another index.
SCALES = {
    "kills": 0.02,
    "forks": 0.01,
    "flips": 0.006,
    "catalogs": 0.01,
    "filters": 0.02,
    "commands": 0.02,
    "calls": 0.03,
}


def run_soak(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "soak", "--workers", "2", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("part", SCALES)
def test_a_small_dose_finds_nothing(part):
    result = run_soak("--only", part, "--scale", str(SCALES[part]))
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-1000:]
    name, tried, refused, accepted, wrong, _ = result.stdout.splitlines()[1].split()
    assert name == part
    assert int(tried) == int(refused) + int(accepted) > 0
    assert wrong == "0"


def test_one_seed_runs_alone():
    result = run_soak("--only", "kills", "--seed", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "seed 1: {'accepted': 10}" in result.stdout


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


def test_what_goes_wrong_is_put_down_to_its_seed(tmp_path):
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
