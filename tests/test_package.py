"""What the installed package promises as a whole: its version, its names, and what importing it costs."""

import ast
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def needed_distributions(name: str, extras: frozenset[str], found: set[str]) -> None:
    """Add a distribution and what it needs, without extras that nobody asks for."""
    found.add(canonicalize_name(name))
    for line in requires(name) or []:
        needed = Requirement(line)
        asked = [{"extra": extra} for extra in extras or {""}]
        if needed.marker is not None and not any(map(needed.marker.evaluate, asked)):
            continue
        if canonicalize_name(needed.name) not in found:
            with suppress(PackageNotFoundError):
                needed_distributions(needed.name, frozenset(needed.extras), found)


def test_modules_can_be_imported_or_name_the_extra_that_they_need():
    """As after ``pip install latelier``: no other package can be imported, whatever is installed here."""
    needed: set[str] = set()
    needed_distributions("latelier", frozenset(), needed)
    others = {
        package
        for package, owners in packages_distributions().items()
        if not needed.intersection(map(canonicalize_name, owners))
    }
    code = f"""
import importlib, pkgutil, re, sys
from importlib.machinery import PathFinder
class Needed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {others!r}:
            return PathFinder.find_spec(name, path, target)
    @classmethod
    def find_distributions(cls, *context):
        for found in PathFinder.find_distributions(*context):
            if re.sub(r"[-_.]+", "-", found.name).lower() in {needed!r}:
                yield found
sys.meta_path[sys.meta_path.index(PathFinder)] = Needed
import latelier
from latelier.errors import MissingExtraError
for found in pkgutil.walk_packages(latelier.__path__, "latelier."):
    try:
        importlib.import_module(found.name)
    except MissingExtraError as error:
        print(found.name, error.extra)
    except ImportError as error:
        print(found.name, error)
"""
    extras = {
        "indexes.ivf.kernels.triton": "gpu",
        "indexes.qdrant.filters": "qdrant",
        "integrations.haystack": "haystack",
        "integrations.langchain": "langchain",
        "integrations.llamaindex": "llamaindex",
        "integrations.mteb": "mteb",
        "integrations.pyterrier": "pyterrier",
        "scores.triton_kernels": "gpu",
    }
    printed = dict(line.split(" ", 1) for line in run_python(code).splitlines())
    served = {name: extra for name, extra in printed.items() if name.startswith("latelier.serve.")}
    assert {*served.values()} <= {"serve", "mcp"}
    assert printed == served | {f"latelier.{name}": extra for name, extra in extras.items()}


def test_errors_name_extras_that_exist():
    extras = set(metadata("latelier").get_all("Provides-Extra"))
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("MissingExtraError", "needs_extra"):
                extra = node.args[1]
                assert isinstance(extra, ast.Name) or ast.literal_eval(extra) in extras, f"{path.name}:{node.lineno}"
    assert "eval" in extras
