"""The workflows and the Makefile agree with each other and with what the package says of itself."""

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob(".github/workflows/*.yml")
}
TARGETS = set(re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_read_only_and_end(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert "concurrency" in WORKFLOWS[name]
    endless = [job for job, body in WORKFLOWS[name]["jobs"].items() if not {"timeout-minutes", "uses"} & body.keys()]
    assert endless == []


def test_every_supported_python_is_tested():
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata("latelier").get_all("Classifier")))
    assert WORKFLOWS["ci.yml"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == promised


def test_commands_exist():
    checks = WORKFLOWS["ci.yml"]["jobs"]["checks"]["strategy"]["matrix"]["command"]
    local = re.search(r"^make ([\w ]+?) *<", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    written = re.findall(r"`make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert {*checks, *local, *written} <= TARGETS
    assert local[-1] == "test"  # its closing line comes last
