"""Docstrings out of Python source, without running it: what a module defines, and what it takes from another one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Definition", "Reexport", "exported_names", "source_definitions", "source_reexports"]

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """One documented thing: its name inside its module (empty for the module itself), its kind and its docstring."""

    name: str
    kind: str
    doc: str


class Reexport(NamedTuple):
    """``from module import name as alias, ...``: ``names[name] == alias``; the name ``*`` means all public ones."""

    module: str
    names: dict[str, str]


def source_definitions(tree: ast.Module) -> Iterator[Definition]:
    r"""Yield the module and its public classes, functions, methods and properties that have a docstring, in order.

    Parameters
    ----------
    tree
        The parsed source.

    Examples
    --------
    >>> for definition in source_definitions(ast.parse('class A:\n  def f(self, x=1):\n    "Do f."')):
    ...     print(definition)
    Definition(name='A.f', kind='method', doc='Do f.')
    """
    doc = ast.get_docstring(tree)
    if doc:
        yield Definition("", "module", doc)
    yield from _scope(tree.body, "", _private_classes(tree))


def source_reexports(tree: ast.Module, package: str) -> Iterator[Reexport]:
    """Yield the ``from ... import ...`` statements of a module, in order, conditional ones included.

    Parameters
    ----------
    tree
        The parsed source.
    package
        The package that relative imports start from.
    """
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield Reexport(source, {alias.name: alias.asname or alias.name for alias in node.names})


def exported_names(tree: ast.Module) -> set[str] | None:
    """Return ``__all__`` where it is written out as one literal, else None."""
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return set(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk a block and the blocks of its ``if`` and ``try``: what may be executed at this level."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _statements(node.body)
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
            yield from _statements(node.orelse)


def _private_classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    classes = (node for node in _statements(tree.body) if isinstance(node, ast.ClassDef))
    return {node.name: node for node in classes if node.name.startswith("_")}


def _scope(body: list[ast.stmt], prefix: str, private: dict[str, ast.ClassDef]) -> Iterator[Definition]:
    """Yield the definitions of a block; those of a private base class count for the first public class that has it."""
    for node in _statements(body):
        if not isinstance(node, (*_Function, ast.ClassDef)) or node.name.startswith("_"):
            continue
        name, doc = prefix + node.name, ast.get_docstring(node)
        if doc:
            yield Definition(name, _kind(node, prefix), doc)
        if isinstance(node, ast.ClassDef):
            yield from _scope(node.body, f"{name}.", private)
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            for base in filter(None, [private.pop(name, None) for name in bases]):
                yield from _scope(base.body, f"{name}.", private)


def _kind(node: ast.stmt, prefix: str) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
    if any(name.split(".")[-1] in ("property", "cached_property") for name in decorators):
        return "property"
    return "method" if prefix else "function"
