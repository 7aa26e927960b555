"""Names of a package that are imported on first use, so that importing the package imports none of its modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, **modules: tuple[str, ...]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that imports a module when one of its names is used.

    Parameters
    ----------
    package
        The package's ``__name__``.
    **modules
        Module of the package to the names that the package has from it.

    Returns
    -------
    tuple of callable
        Imports a name and keeps it in the package, so that it is called once for each name (PEP 562); lists all names.

    Examples
    --------
    >>> load, names = lazy_names("latelier.utils", checks=("is_count",))
    >>> load("is_count")(3), "is_count" in names()
    (True, True)
    """
    home = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return load, names
