"""A corpus that every Python brings along: the docstrings of the installed standard library.

Real documents, thousands of them, with nothing to download: for demos, tests and first experiments. Modules are read,
not run: their source is parsed, and only those written in C (and a few that make public names while imported) are
imported. A thing is listed once, under the public module that defines it; a public module that takes names from a
private one (``heapq`` from ``_heapq``, ``csv`` from ``_csv``) counts as defining them.
"""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from latelier.demo.builtins import builtin_definitions
from latelier.demo.source import Definition, exported_names, source_definitions, source_reexports

__all__ = ["LibraryDocument", "standard_library_documents"]

# Tests, applications, jokes, tables of characters, readline, whose import changes the terminal, and distutils, which
# Python 3.12 gave up.
_SKIPPED = {
    "antigravity", "distutils", "encodings", "idlelib", "lib2to3", "pydoc_data", "readline", "test", "tests", "this",
    "turtledemo",
}  # fmt: skip
# Public by name, but known to users under the name of the module that takes everything from them.
_INTERNAL = {"genericpath", "nt", "ntpath", "posix", "posixpath", "pyexpat"}
# Written in Python, safe to import, and with public names that exist only then: sha256, Pattern, Lock, random.
_MADE_AT_IMPORT = {"hashlib", "random", "re", "threading"}


class LibraryDocument(TypedDict):
    """One docstring, in the form that `Retriever.add` takes: id and text, and ``kind`` and ``module`` as metadata."""

    id: str
    text: str
    kind: str
    module: str


def standard_library_documents() -> Iterator[LibraryDocument]:
    """Yield the docstrings of the standard library of the running Python, in a fixed order.

    Yields
    ------
    LibraryDocument
        ``id``, the dotted name, such as ``"argparse.ArgumentParser.add_argument"`` (builtins without their module's
        name: ``"str.split"``); ``text``, a line with the words of the name, then the docstring; ``kind``:
        ``"module"``, ``"class"``, ``"function"``, ``"method"`` or ``"property"``; ``module``.

    Examples
    --------
    >>> documents = {document["id"]: document for document in standard_library_documents()}
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
            # One object under two names has the same name inside its module and the same docstring.
            if id_ in ids or key in seen:
                continue
            ids.add(id_)
            seen.add(key)
            # As words, names are found by what they say; with parameters, texts got longer and answers no better.
            words = id_.replace(".", " ").replace("_", " ")
            yield {"id": id_, "text": f"{words}\n{doc}", "kind": kind, "module": module}


def _public_modules() -> Iterator[str]:
    for name in sorted({*sys.stdlib_module_names, "os.path"} - _SKIPPED - _INTERNAL):
        if not name.startswith("_"):
            yield name
            path = _source(name)
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


def _source(module: str) -> Path | None:
    """Return the module's file below the library's folder, or None for one written in C."""
    if module == "os.path":
        return Path(importlib.import_module(module).__file__ or "")
    base = Path(sysconfig.get_paths()["stdlib"]).joinpath(*module.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def _definitions(module: str, visited: frozenset[str]) -> Iterator[Definition]:
    """Yield what a module defines, then what it takes from modules that are not public."""
    path = _source(module)
    if path is None:
        yield from _imported(module)
        return
    tree = ast.parse(path.read_bytes())
    yield from source_definitions(tree)
    exported = exported_names(tree)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for source, names in source_reexports(tree, package):
        if not _is_public(source) and source not in visited:
            if exported is not None:
                names = {name: alias for name, alias in names.items() if alias in exported | {"*", "__doc__"}}
            yield from _taken(source, names, visited | {module})
    if module in _MADE_AT_IMPORT:
        yield from _imported(module)


def _taken(source: str, names: dict[str, str], visited: frozenset[str]) -> Iterator[Definition]:
    """Yield the definitions of ``source`` that ``names`` asks for, under their new names."""
    for definition in _definitions(source, visited):
        top, dot, rest = definition.name.partition(".")
        alias = names.get(top or "__doc__") or (top if top and "*" in names else None)
        if alias == "__doc__":
            yield definition
        elif alias is not None and not alias.startswith("_"):
            yield definition._replace(name=f"{alias}{dot}{rest}")


def _is_public(module: str) -> bool:
    return module not in _INTERNAL and not any(part.startswith("_") for part in module.split("."))


def _imported(module: str) -> Iterator[Definition]:
    """Yield what an imported module defines; nothing if this platform does not have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules say so when imported
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            return
    yield from builtin_definitions(loaded)
