"""The docstrings of Python's standard library as a collection of documents, and a session that searches them.

Modules written in Python are parsed, not run; those written in C, and a few that create public names when imported,
are imported. Each object is listed once, under the public module that defines it. Names that a public module imports
from a private one (``heapq`` from ``_heapq``) count as defined in the public module.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import platform
import shutil
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from latelier import indexes
from latelier.errors import LatelierError, StorageError
from latelier.models.location import DEFAULT_MODEL
from latelier.retrieve import Retriever
from latelier.retrieve.model import ModelIdentity, encoder_folder, is_exported
from latelier.utils.files import cache_folder

if TYPE_CHECKING:
    from types import TracebackType

    from latelier.retrieve import Explanation, Result

__all__ = ["standard_library_documents"]

# Tests, applications, jokes, character tables, readline (importing it changes the terminal) and distutils (removed in
# Python 3.12).
_SKIPPED = {
    "antigravity", "distutils", "encodings", "idlelib", "lib2to3", "pydoc_data", "readline", "test", "tests", "this",
    "turtledemo",
}  # fmt: skip
# Public by name, but users know their contents under another module: posix under os, genericpath under os.path.
_INTERNAL = {"genericpath", "nt", "ntpath", "posix", "posixpath", "pyexpat"}
# Written in Python and safe to import; some of their public names (sha256, Pattern, Lock, random) exist only then.
_IMPORTED = {"hashlib", "random", "re", "threading"}


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
    ids: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for module in _public_modules():
        for name, kind, doc in _definitions(module, frozenset()):
            prefix = "" if module == "builtins" and name else f"{module}." if name else module
            id_, key = f"{prefix}{name}", (name or module, doc)
            # One object in two modules has the same name inside each and the same docstring.
            if id_ in ids or key in seen:
                continue
            ids.add(id_)
            seen.add(key)
            # A query can match the words of a name. Parameters make texts longer without better results.
            words = id_.replace(".", " ").replace("_", " ")
            yield {"id": id_, "text": f"{words}\n{doc}", "kind": kind, "module": module}


def _public_modules() -> Iterator[str]:
    for name in sorted({*sys.stdlib_module_names, "os.path"} - _SKIPPED - _INTERNAL):
        if not name.startswith("_"):
            yield name
            path = _source_file(name)
            if path is not None and path.name == "__init__.py":
                yield from _submodules(name, path.parent)


def _submodules(package: str, folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("_") or path.stem in _SKIPPED:
            continue
        if path.suffix == ".py":
            yield f"{package}.{path.stem}"
        elif (path / "__init__.py").is_file():
            yield f"{package}.{path.name}"
            yield from _submodules(f"{package}.{path.name}", path)


def _source_file(module: str) -> Path | None:
    """Return the Python file of a module, or None for a module written in C."""
    if module == "os.path":
        return Path(importlib.import_module(module).__file__ or "")
    base = Path(sysconfig.get_paths()["stdlib"]).joinpath(*module.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def _definitions(module: str, visited: frozenset[str]) -> Iterator[Definition]:
    """Yield the definitions of a module, then those that it imports from private modules."""
    path = _source_file(module)
    if path is None:
        yield from _imported_definitions(module)
        return
    tree = ast.parse(path.read_bytes())
    yield from source_definitions(tree)
    exported = _exported_names(tree)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for source, names in source_reexports(tree, package):
        public = source not in _INTERNAL and not any(part.startswith("_") for part in source.split("."))
        if not public and source not in visited:
            if exported is not None:
                names = {name: alias for name, alias in names.items() if alias in exported | {"*", "__doc__"}}
            yield from _renamed(_definitions(source, visited | {module}), names)
    if module in _IMPORTED:
        yield from _imported_definitions(module)


def _renamed(definitions: Iterable[Definition], names: dict[str, str]) -> Iterator[Definition]:
    """Yield the definitions that ``names`` selects, under their new names."""
    for definition in definitions:
        top, dot, rest = definition.name.partition(".")
        alias = names.get(top or "__doc__") or (top if top and "*" in names else None)
        if alias == "__doc__":
            yield definition
        elif alias is not None and not alias.startswith("_"):
            yield definition._replace(name=f"{alias}{dot}{rest}")


def _imported_definitions(module: str) -> Iterator[Definition]:
    """Import a module and yield its definitions; none if this platform lacks the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules warn at import
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            return
    yield from builtin_definitions(loaded)


def source_definitions(tree: ast.Module) -> Iterator[Definition]:
    """Yield a parsed module and its public classes, functions, methods and properties with a docstring, in order."""
    doc = ast.get_docstring(tree)
    if doc:
        yield Definition("", "module", doc)
    classes = (node for node in _statements(tree.body) if isinstance(node, ast.ClassDef))
    private = {node.name: node for node in classes if node.name.startswith("_")}
    yield from _scope_definitions(tree.body, "", private)


def _scope_definitions(body: list[ast.stmt], prefix: str, private: dict[str, ast.ClassDef]) -> Iterator[Definition]:
    """Yield the definitions of a block; members of a private base class are listed under its first public subclass."""
    for node in _statements(body):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        name, doc = prefix + node.name, ast.get_docstring(node)
        if doc:
            yield Definition(name, _kind(node, prefix), doc)
        if isinstance(node, ast.ClassDef):
            yield from _scope_definitions(node.body, f"{name}.", private)
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            for base in filter(None, [private.pop(name, None) for name in bases]):
                yield from _scope_definitions(base.body, f"{name}.", private)


def _kind(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return "property"
    return "method" if prefix else "function"


def source_reexports(tree: ast.Module, package: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the module and ``{name: alias}`` of each ``from ... import ...``, in order, conditional ones included.

    Relative imports start from ``package``. The name ``*`` stands for all public names.
    """
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield source, {alias.name: alias.asname or alias.name for alias in node.names}


def _exported_names(tree: ast.Module) -> set[str] | None:
    """Return ``__all__`` if it is written as one literal, else None."""
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return set(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk a block and the blocks of its ``if`` and ``try`` statements, but not the bodies of functions or classes."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements(node.body)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
            yield from _statements(node.orelse)


def builtin_definitions(module: ModuleType) -> Iterator[Definition]:
    """Yield an imported module and its public classes, functions and methods written in C, by name."""
    if module.__doc__:
        yield Definition("", "module", inspect.cleandoc(module.__doc__))
    for name, value in sorted(vars(module).items()):
        # Many modules have an alias of a builtin: socket.error is OSError.
        alias = getattr(value, "__module__", None) == "builtins" != module.__name__
        if name.startswith("_") or alias:
            continue
        if isinstance(value, BuiltinFunctionType):
            yield from _builtin_definition(name, "function", value)
        elif isinstance(value, type):
            yield from _builtin_class(name, value)


def _builtin_class(name: str, cls: type) -> Iterator[Definition]:
    # vars: the class's own docstring and members, not inherited ones.
    if vars(cls).get("__doc__"):
        yield from _builtin_definition(name, "class", cls)
    for member, value in sorted(vars(cls).items()):
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if member.startswith("_"):
            continue
        if isinstance(value, (MethodDescriptorType, BuiltinFunctionType)) or inspect.ismethoddescriptor(value):
            yield from _builtin_definition(f"{name}.{member}", "method", value)
        elif isinstance(value, GetSetDescriptorType):
            yield from _builtin_definition(f"{name}.{member}", "property", value)


def _builtin_definition(name: str, kind: str, value: Any) -> Iterator[Definition]:
    doc = inspect.cleandoc(value.__doc__ or "")
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
    "wait for several threads",
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
    """Make the index in a temporary folder beside ``folder`` and rename it when it is complete.

    `device`: where the model runs; None takes the best available device. `show_progress`: show a progress bar on
    standard error. Raises `StorageError` if the cache folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    except OSError as error:
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    try:
        index = indexes.Flat(unfinished, dtype="float16")
        with Retriever(DEFAULT_MODEL, index, device=device, model_options=MODEL_OPTIONS) as retriever:
            retriever.add(documents, show_progress=show_progress)
        unfinished.rename(folder)
    except OSError as error:
        # The folder exists if another process finished the same index first.
        if isinstance(error, LatelierError) or not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class Session:
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

    def answer(self, question: str, k: int) -> tuple[list[Result], dict[Any, Explanation]]:
        """Return the ``k`` best results for a question, and a dict of the best one's id to its explanation."""
        with self._timed("answering"):
            results = self._retriever.search(question, k)
            return results, {result.id: self._retriever.explain(question, result.id) for result in results[:1]}

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

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._retriever.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
