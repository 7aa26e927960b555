"""The workflows and the Makefile agree with each other and with what the package says of itself."""

import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob(".github/workflows/*.yml")
}
TARGETS = set(re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_read_only_and_end(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert "concurrency" in WORKFLOWS[name]
    endless = [job for job, body in WORKFLOWS[name]["jobs"].items() if not {"timeout-minutes", "uses"} & body.keys()]
    assert endless == []


def test_commands_exist():
    checks = WORKFLOWS["ci.yml"]["jobs"]["checks"]["strategy"]["matrix"]["command"]
    calls = re.findall(r"\bmake (.+?) *</dev/null", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    words = [word for call in calls for word in shlex.split(call)]
    local = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)]
    written = re.findall(r"`make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert {*checks, *local, *written} <= TARGETS
    assert {*checks} <= {*local}
    assert local[:2] == ["demo", "test"]  # README's two commands, before anything else is installed
    assert local[-1] == "test-all"  # its closing line comes last


def test_the_suite_runs_once_with_each_set_of_instructions():
    job = WORKFLOWS["ci.yml"]["jobs"]["instructions"]
    script = (ROOT / ".ci/isa").read_text(encoding="utf-8")
    sets = re.findall(r"^(\w+)\)$", script, re.MULTILINE)
    assert job["strategy"]["matrix"]["isa"] == sets
    assert job["steps"][-1]["run"] == "make test-all ISA=${{ matrix.isa }}"
    for settings in re.findall(r"settings=\((.*?)\)", script, re.DOTALL):
        names = re.findall(r"(\w+)=", settings)
        assert {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "LATELIER_KERNELS"} <= {*names}


@pytest.mark.slow
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="reads /proc/cpuinfo, for instructions of x86"
)
def test_forced_instructions_are_those_that_libraries_use():
    program = """
import torch
from latelier.kernels.library import instruction_set
multiplies = torch.ops.mkldnn._is_mkldnn_bf16_supported()
print(torch.backends.cpu.get_cpu_capability(), instruction_set(), multiplies)
"""
    found = {}
    for isa in ("avx512vnni", "avx2", "generic"):
        command = [ROOT / ".ci/isa", isa, sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        found[isa] = done.stdout.strip() or done.stderr.strip()
    assert found["generic"] == "DEFAULT generic False"
    assert found["avx2"] in ("AVX2 avx2 False", refused("avx2", "avx2"))
    assert found["avx512vnni"] in ("AVX512 avx512vnni True", refused("avx512vnni", "avx512_vnni"))


def refused(isa, needs):
    return f"this processor has no {needs} (by /proc/cpuinfo), so nothing can run as on one with {isa}"


@pytest.mark.skipif(sys.platform == "win32", reason="a script for bash")
def test_a_set_of_instructions_that_does_not_exist_is_refused():
    done = subprocess.run(["bash", ROOT / ".ci/isa", "avx3", "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == "usage: .ci/isa avx512vnni|avx2|generic COMMAND ..., received 'avx3'"


def test_the_lowest_versions_are_those_that_the_package_asks_for():
    lowest = {}
    for text in requires("latelier"):
        requirement = Requirement(text)
        bounds = [each.version for each in requirement.specifier if each.operator == ">="]
        lowest.setdefault(canonicalize_name(requirement.name), set()).update(map(Version, bounds))
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    base = [Requirement(text) for text in requires("latelier") if "extra" not in text]
    assert {requirement.name for requirement in base} <= pins.keys()
    wrong = {name: version for name, version in pins.items() if Version(version) not in lowest[canonicalize_name(name)]}
    assert wrong == {}
