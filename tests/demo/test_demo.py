"""The corpus of docstrings: what it holds, and what it leaves out."""

import itertools
import subprocess
import sys
import threading
import types

import pytest

from latelier import indexes
from latelier.demo import build, demo_folder, module_definitions
from latelier.errors import InvalidArgumentError, StorageError


@pytest.fixture(scope="module")
def by_id(docstrings):
    return {document["id"]: document for document in docstrings}


@pytest.mark.parametrize(
    ("id_", "kind", "module"),
    [
        ("argparse", "module", "argparse"),
        ("argparse.ArgumentParser.add_argument", "method", "argparse"),  # from a private base class
        ("threading.Lock", None, "threading"),  # a function up to Python 3.12, then a class
        ("hashlib.sha256", "function", "hashlib"),  # made while hashlib is imported
        ("os.listdir", "function", "os"),  # from posix import *
        ("os.path.exists", "function", "os.path"),  # from genericpath import *
        ("csv.reader", "function", "csv"),  # from _csv import reader
        ("struct", "module", "struct"),  # from _struct import __doc__
        ("open", "function", "builtins"),  # and not io.open as well
    ],
)
def test_well_known_names(by_id, id_, kind, module):
    assert id_ in by_id
    assert by_id[id_]["kind"] == (kind or by_id[id_]["kind"])
    assert module is None or by_id[id_]["module"] == module
    assert by_id[id_]["text"].splitlines()[0] == id_.replace(".", " ").replace("_", " ")


def test_text_is_the_words_of_the_name_then_the_docstring(by_id):
    summary = threading.Thread.join.__doc__.splitlines()[0]
    assert by_id["threading.Thread.join"]["text"].splitlines()[:2] == ["threading Thread join", summary]
    assert by_id["collections.abc.Mapping"]["text"].startswith("collections abc Mapping\n")


def test_thousands_of_documents_without_private_names_tests_or_duplicates(docstrings, by_id):
    assert len(docstrings) > 5_000
    assert len(by_id) == len(docstrings)
    assert {document["kind"] for document in docstrings} == {"module", "class", "function", "method", "property"}
    parts = set(itertools.chain.from_iterable(document["id"].split(".") for document in docstrings))
    assert not [part for part in parts if part.startswith("_")]
    modules = {document["module"].split(".")[0] for document in docstrings}
    assert modules <= set(sys.stdlib_module_names)
    assert not modules & {"test", "idlelib", "lib2to3", "turtledemo", "distutils", "this", "antigravity"}
    contents = [(document["id"].removeprefix(document["module"]), document["text"]) for document in docstrings]
    assert len(set(contents)) == len(contents)
    assert all(document["text"].count("\n") and document["text"].split("\n", 1)[1].strip() for document in docstrings)


def test_what_is_left_out(by_id):
    assert "io.open" not in by_id  # the builtin open
    assert "socket.error" not in by_id  # OSError
    assert "functools.RLock" not in by_id  # imported there for use, not in __all__
    assert "asyncio.gather" not in by_id  # defined in, and listed under, asyncio.tasks
    assert "asyncio.tasks.gather" in by_id


def test_collecting_runs_no_application_and_warns_of_nothing():
    code = (
        "import sys; from latelier.demo import standard_library_documents; list(standard_library_documents());"
        "print([n for n in ('this', 'idlelib', 'readline', 'torch') if n in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (printed.stdout, printed.stderr) == ("[]\n", "")


SOURCE = '''
"""The module."""
import os
from _thread import allocate_lock
from shutil import which
def function(a, *, b: int = 2):
    """A function."""
class _Base:
    def inherited(self, n=1, /):
        """From the base."""
class Public(_Base):
    """A class."""
    def __init__(self, size, name="x"):
        """Not listed."""
    @property
    def area(self):
        """An area."""
    @classmethod
    def make(cls, source):
        """Make one."""
    def undocumented(self): ...
    def _private(self):
        """Not listed."""
    class Inner:
        """Nested."""
    other = dict
'''


def test_definitions_of_a_module():
    module = types.ModuleType("module")
    exec(SOURCE, vars(module))
    module.__doc__, module.__all__ = "The module.", ["allocate_lock", "which", "Public"]
    assert [tuple(definition)[:2] for definition in module_definitions(module)] == [
        ("", "module"),
        ("Public", "class"),
        ("Public.Inner", "class"),
        ("Public.area", "property"),
        ("Public.inherited", "method"),
        ("Public.make", "method"),
        ("allocate_lock", "function"),
        ("function", "function"),
    ]


def test_call_forms_at_the_head_of_a_builtin_docstring_are_left_out():
    import builtins

    (definition,) = [d for d in module_definitions(builtins) if d.name == "max"]
    assert definition.doc.startswith("With a single iterable argument, return its biggest item.")


def test_an_interrupted_build_leaves_nothing_and_a_second_one_is_complete(tmp_path):
    def interrupted():
        yield {"id": "a", "text": "text"}
        raise KeyboardInterrupt("Ctrl-C")

    folder = tmp_path / "cache" / "demo"
    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
        build(folder, interrupted(), device="cpu")
    assert list(folder.parent.iterdir()) == []
    with pytest.raises(InvalidArgumentError, match="the text is empty"):
        build(folder, [""], device="cpu")
    assert list(folder.parent.iterdir()) == []
    build(folder, [("a", "text")], device="cpu")
    build(folder, [("b", "another process was faster")], device="cpu")
    assert list(folder.parent.iterdir()) == [folder]
    with indexes.open(folder) as index:
        assert index.ids() == ["a"]
        assert repr(index).startswith("Flat(1 documents")
        assert index.dtype == "float16"


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write the cache .*Set LATELIER_CACHE"):
        build(tmp_path / "file" / "demo", [])


def test_the_folder_is_of_one_python_model_and_version():
    name = demo_folder().name
    assert name.startswith(f"demo-python{sys.version_info.major}.{sys.version_info.minor}.")
    assert "-all-MiniLM-L6-v2-64-latelier" in name
