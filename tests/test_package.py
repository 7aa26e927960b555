"""What the installed package promises as a whole: its version, its names, and what importing it costs."""

import ast
import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import latelier

ROOT = Path(__file__).parent.parent
PACKAGE = Path(latelier.__file__).parent


def run_python(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_version_is_the_same_everywhere():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert latelier.__version__ == version("latelier") == declared[1]


def test_annotations_are_for_everyone():
    assert (PACKAGE / "py.typed").is_file()


def test_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'indices'; it has "):
        _ = latelier.indices


def test_what_is_used_most_stands_at_the_top():
    code = "import latelier; before = dir(latelier); from latelier import ColBERT, Retriever; print(before)"
    assert run_python(code) == str(sorted([*latelier.__all__, "__version__"]))
    assert latelier.Retriever is latelier.retrieve.Retriever
    assert latelier.ColBERT is latelier.models.ColBERT


@pytest.mark.parametrize("name", sorted({*latelier.__all__} - {"ColBERT", "Retriever"}))
def test_sub_packages_load_on_first_use(name):
    assert getattr(latelier, name).__name__ == f"latelier.{name}"
    assert getattr(latelier, name).__all__
    assert name in dir(latelier)


def test_importing_is_silent_and_loads_no_torch():
    code = "import sys, latelier; print(sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    assert run_python(code, "-W", "error") == "[]"


def test_a_missing_extra_is_named_with_the_command_that_installs_it():
    """In one process, which takes seconds to import torch."""
    uses = {
        "eval": "from latelier.evaluation import evaluate; evaluate({'q': {'d': 1.0}}, {'q': {'d': 1}})",
        "mteb": "from latelier.integrations import MTEBSearch",
        "haystack": "from latelier.integrations import HaystackRetriever",
        "langchain": "from latelier.integrations import LangChainRetriever",
        "llamaindex": "from latelier.integrations import LlamaIndexRetriever",
        "pyterrier": "from latelier.integrations import PyTerrierRetriever",
    }
    code = f"""
import sys
for module in ("ir_measures", "mteb", "haystack", "langchain_core", "llama_index.core", "pyterrier"):
    sys.modules[module] = None
for use in {list(uses.values())!r}:
    try:
        exec(use)
    except ImportError as error:
        print(error)
"""
    wanted = [f"needs the extra '{each}'. Install it with: pip install \"latelier[{each}]\"" for each in uses]
    for printed, end in zip(run_python(code).splitlines(), wanted, strict=True):
        assert printed.endswith(end)


def test_errors_name_extras_that_exist():
    extras = set(metadata("latelier").get_all("Provides-Extra"))
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("MissingExtraError", "needs_extra"):
                extra = node.args[1]
                assert isinstance(extra, ast.Name) or ast.literal_eval(extra) in extras, f"{path.name}:{node.lineno}"
    assert "eval" in extras
