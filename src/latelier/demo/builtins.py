"""Docstrings of what has no Python source: modules written in C, and names that a module makes while imported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType, ModuleType
from typing import Any

from latelier.demo.source import Definition

__all__ = ["builtin_definitions"]


def builtin_definitions(module: ModuleType) -> Iterator[Definition]:
    """Yield the module and its public classes, functions and methods written in C, by name.

    Aliases of builtins are left out, and so is what is written in Python.

    Parameters
    ----------
    module
        The imported module.

    Examples
    --------
    >>> import math
    >>> next(d for d in builtin_definitions(math) if d.name == "gcd")
    Definition(name='gcd', kind='function', doc='Greatest Common Divisor.')
    """
    if module.__doc__:
        yield Definition("", "module", inspect.cleandoc(module.__doc__))
    for name, value in sorted(vars(module).items()):
        # Many modules have an alias of a builtin: socket.error is OSError.
        alias = getattr(value, "__module__", None) == "builtins" != module.__name__
        if name.startswith("_") or alias:
            continue
        if isinstance(value, BuiltinFunctionType):
            yield from _definition(name, "function", value)
        elif isinstance(value, type):
            yield from _class(name, value)


def _class(name: str, cls: type) -> Iterator[Definition]:
    # vars: the class's own docstring and members, not inherited ones.
    if vars(cls).get("__doc__"):
        yield from _definition(name, "class", cls)
    for member, value in sorted(vars(cls).items()):
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if member.startswith("_"):
            continue
        if isinstance(value, (MethodDescriptorType, BuiltinFunctionType)) or inspect.ismethoddescriptor(value):
            yield from _definition(f"{name}.{member}", "method", value)
        elif isinstance(value, GetSetDescriptorType):
            yield from _definition(f"{name}.{member}", "property", value)


def _definition(name: str, kind: str, value: Any) -> Iterator[Definition]:
    doc = inspect.cleandoc(value.__doc__ or "")
    leaf = name.rpartition(".")[2]
    # Older C docstrings begin with call forms: "max(iterable, *[, default=obj, key=func]) -> value".
    calls = (f"{leaf}(", f"{name}(", f"{getattr(value, '__name__', leaf)}(")
    while doc.startswith(calls) and "\n" in doc:
        doc = doc.partition("\n")[2].strip()
    if doc and doc != leaf:  # the classes of ast say nothing but their name
        yield Definition(name, kind, doc)
