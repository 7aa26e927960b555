"""The docstrings of Python's standard library as a collection of documents, and a session that searches them.

Each object is listed once, under the public module that defines it. What a public module has from a private one
(``heapq`` from ``_heapq``) counts as defined in the public module.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import pkgutil
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import GetSetDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from latelier.errors import LatelierError, StorageError
from latelier.models.location import DEFAULT_MODEL
from latelier.retrieve import Retriever
from latelier.retrieve.choice import Asked
from latelier.retrieve.identity import ModelIdentity
from latelier.retrieve.query_model import encoder_folder, is_exported, open_model
from latelier.utils.files import cache_folder
from latelier.utils.misc import Closing

if TYPE_CHECKING:
    from latelier.retrieve import Results

__all__ = ["standard_library_documents"]

# Tests, applications, jokes, character tables, copies of other modules (multiprocessing.dummy), readline (importing it
# changes the terminal), rlcompleter (imports it) and distutils (removed in Python 3.12).
_SKIPPED = {
    "antigravity", "distutils", "dummy", "encodings", "idlelib", "lib2to3", "pydoc_data", "readline", "rlcompleter",
    "test", "tests", "this", "turtledemo",
}  # fmt: skip
# Public by name, but users know their contents under another module: posix under os, genericpath under os.path.
_INTERNAL = {"genericpath", "nt", "ntpath", "posix", "posixpath", "pyexpat"}


class LibraryDocument(TypedDict):
    """One docstring, in the form that `Retriever.add` takes: id and text, with ``kind`` and ``module`` as metadata."""

    id: str
    text: str
    kind: str
    module: str


class Definition(NamedTuple):
    """A documented object: its name inside its module (empty for the module itself), its kind and its docstring."""

    name: str
    kind: str
    doc: str


def standard_library_documents() -> Iterator[LibraryDocument]:
    """Yield the docstrings of the running Python's standard library, in a fixed order.

    Yields
    ------
    LibraryDocument
        ``id``, the dotted name, such as ``"argparse.ArgumentParser.add_argument"`` (builtins without their module:
        ``"str.split"``); ``text``, a line with the words of the name, then the docstring; ``kind``: ``"module"``,
        ``"class"``, ``"function"``, ``"method"`` or ``"property"``; ``module``.

    Examples
    --------
    >>> from latelier.demo import standard_library_documents
    >>> documents = {d["id"]: d for d in standard_library_documents()}
    >>> len(documents) > 5000
    True
    >>> documents["threading.Thread.join"]["text"].splitlines()[:2]
    ['threading Thread join', 'Wait until the thread terminates.']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated modules and classes
        found = [(module, *each) for module, loaded in _public_modules() for each in module_definitions(loaded)]
    ids: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for module, name, kind, doc in found:
        if module == "builtins" and name:
            prefix = ""
        elif name:
            prefix = f"{module}."
        else:
            prefix = module
        id_ = f"{prefix}{name}"
        key = (name or module, doc)
        # One object in two modules has the same name inside each and the same docstring.
        if id_ in ids or key in seen:
            continue
        ids.add(id_)
        seen.add(key)
        # A query can match the words of a name. Parameters make texts longer without better results.
        words = id_.replace(".", " ").replace("_", " ")
        yield {"id": id_, "text": f"{words}\n{doc}", "kind": kind, "module": module}


def _public_modules() -> Iterator[tuple[str, ModuleType]]:
    for name in sorted({*sys.stdlib_module_names, "os.path"} - _SKIPPED - _INTERNAL):
        if not name.startswith("_"):
            yield from _with_submodules(name)


def _with_submodules(name: str) -> Iterator[tuple[str, ModuleType]]:
    """Import a module and yield it and those in it; none that this platform lacks."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    yield name, module
    for inner in sorted(each.name for each in pkgutil.iter_modules(getattr(module, "__path__", []))):
        if not inner.startswith("_") and inner not in _SKIPPED:
            yield from _with_submodules(f"{name}.{inner}")


def _is_public(module: str) -> bool:
    return module not in _INTERNAL and not any(part.startswith("_") for part in module.split("."))


def module_definitions(module: ModuleType) -> Iterator[Definition]:
    """Yield a module and its public classes, functions, methods and properties with a docstring, by name."""
    yield from _definition("", "module", module)
    exported = getattr(module, "__all__", vars(module))
    for name, value in sorted(vars(module).items()):
        home = getattr(value, "__module__", None) or module.__name__
        # Aliases are left out: socket.error is the builtin OSError, bisect.insort is insort_right.
        own = str(getattr(value, "__name__", name))
        alias = own != name and (home == "builtins" or vars(module).get(own) is value)
        is_own = module is builtins or home == module.__name__ or (name in exported and not _is_public(home))
        if name.startswith("_") or alias or not is_own:
            continue
        if isinstance(value, type):
            yield from _class_definitions(name, value)
        elif inspect.isroutine(value):
            yield from _definition(name, "function", value)


def _class_definitions(name: str, cls: type) -> Iterator[Definition]:
    """Yield a class and its members, those of its private bases included."""
    if vars(cls).get("__doc__"):  # not an inherited one
        yield from _definition(name, "class", cls)
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is cls or base.__name__.startswith("_") or not _is_public(base.__module__):
            members |= vars(base)
    for member, value in sorted(members.items()):
        value = getattr(value, "__func__", value)
        if member.startswith("_"):
            continue
        if isinstance(value, type) and value.__qualname__ == f"{cls.__qualname__}.{member}":
            yield from _class_definitions(f"{name}.{member}", value)
        elif inspect.isroutine(value) and not isinstance(value, GetSetDescriptorType):
            yield from _definition(f"{name}.{member}", "method", value)
        elif isinstance(value, (property, functools.cached_property, GetSetDescriptorType)):
            yield from _definition(f"{name}.{member}", "property", value)


def _definition(name: str, kind: str, value: Any) -> Iterator[Definition]:
    if isinstance(value.__doc__, str):
        doc = inspect.cleandoc(value.__doc__)
    else:
        doc = ""
    leaf = name.rpartition(".")[2]
    # Older C docstrings begin with call forms: "max(iterable, *[, default=obj, key=func]) -> value".
    calls = (f"{leaf}(", f"{name}(", f"{getattr(value, '__name__', leaf)}(")
    while doc.startswith(calls) and "\n" in doc:
        doc = doc.partition("\n")[2].strip()
    if doc and doc != leaf:  # the docstrings of ast's classes repeat their name
        yield Definition(name, kind, doc)


QUESTIONS = (
    "parse command line arguments",
    "compute a sha256 digest",
    "make a temporary folder",
    "read a csv file with a header",
    "match text against a pattern",
)
# A docstring begins with its subject: 64 tokens give the same answers in two thirds of the time.
MODEL_OPTIONS: dict[str, Any] = {"max_length_document": 64}


def demo_folder() -> Path:
    """Return the folder of the demo's index: one for each Python, model, its length and version of this library."""
    model = f"{DEFAULT_MODEL.rpartition('/')[2]}-{MODEL_OPTIONS['max_length_document']}"
    return cache_folder() / f"demo-python{platform.python_version()}-{model}-latelier{version('latelier')}"


def build(folder: Path, documents: Iterable[Any], *, device: str | None = None, show_progress: bool = False) -> None:
    """Make the index in a temporary folder beside ``folder`` and rename it when it is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    except OSError as error:
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    try:
        model: Any = open_model(Asked(DEFAULT_MODEL, MODEL_OPTIONS, device, purpose="fill"))
        with Retriever(model, unfinished) as retriever:
            retriever.add(documents, passages=False, show_progress=show_progress)
        unfinished.rename(folder)
    except OSError as error:
        # The folder exists if another process finished the same index first.
        if isinstance(error, LatelierError) or not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class Session(Closing):
    """The demo's model and index; makes the index if it does not exist, and records the seconds of each phase.

    With the extra ``onnx`` it exports the encoder, with which later sessions answer without torch. `on_first_run` is
    called with the number of documents and the folder before the index is made.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        on_first_run: Callable[[int, Path], None] | None = None,
        show_progress: bool = False,
    ) -> None:
        self.folder = demo_folder()
        self.seconds: dict[str, float] = {}
        if not self.folder.is_dir():
            with self._timed("reading docstrings"):
                documents = list(standard_library_documents())
            if on_first_run is not None:
                on_first_run(len(documents), self.folder)
            with self._timed("indexing"):
                build(self.folder, documents, device=device, show_progress=show_progress)
        with self._timed("loading the model"):
            self._retriever = Retriever.open(self.folder, device=device, read_only=True)
        if not self._has_encoder():
            with self._timed("exporting the encoder"), suppress(LatelierError):  # the model answers without it
                self._retriever.export_encoder()

    def answer(self, question: str, k: int) -> Results:
        """Return the ``k`` best results for a question."""
        with self._timed("answering"):
            return self._retriever.search(question, k)

    def _has_encoder(self) -> bool:
        """Whether the encoder is exported, or cannot be because the extra ``onnx`` is missing."""
        stored = ModelIdentity.stored_in(self._retriever.index)
        missing = any(find_spec(package) is None for package in ("onnxruntime", "onnxscript"))
        return missing or stored is None or is_exported(encoder_folder(stored))

    @property
    def retriever(self) -> Retriever:
        """The retriever over the documentation, for reading only."""
        return self._retriever

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._retriever)

    def close(self) -> None:
        """Close the index."""
        self._retriever.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
