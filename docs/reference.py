"""Sphinx: the directive ``package``, the reference of a public package: its classes on pages of their own.

``.. package:: latelier.retrieve`` shows the docstring of the package, a list of its classes, and all else that its
``__all__`` names. The pages of the classes are written into ``api/`` when the build begins.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.util.docutils import SphinxDirective

_PACKAGE = re.compile(r"^\.\. package:: ([\w.]+)$", re.MULTILINE)


def classes_of(package: str) -> list[str]:
    """Return the public classes of a package, in the order of ``__all__``."""
    module = import_module(package)
    return [name for name in module.__all__ if isinstance(getattr(module, name), type)]


def write_pages(folder: Path) -> None:
    """Write a page for each class of the packages that the pages of a folder describe; those of other ones go."""
    for old in folder.glob("latelier.*.rst"):
        old.unlink()
    for page in sorted(folder.glob("*.md")):
        for package in _PACKAGE.findall(page.read_text(encoding="utf-8")):
            for name in classes_of(package):
                text = f"{name}\n{'=' * len(name)}\n\n.. autoclass:: {package}.{name}\n"
                (folder / f"{package}.{name}.rst").write_text(text, encoding="utf-8")


class Package(SphinxDirective):
    """The reference of a package."""

    required_arguments = 1

    def run(self) -> list[Any]:
        """Return what the page shows."""
        (package,) = self.arguments
        module = import_module(package)
        classes = classes_of(package)
        lines = [f".. automodule:: {package}", "   :no-members:", ""]
        if classes:
            lines += [".. rubric:: Classes", ""]
            for name in classes:
                summary = (getattr(module, name).__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
                lines += [f"* :doc:`{name} <{package}.{name}>`: {re.sub(' +', ' ', summary)}"]
            lines += ["", ".. toctree::", "   :hidden:", ""]
            lines += [f"   {package}.{name}" for name in classes]
        others = [name for name in module.__all__ if name not in classes]
        if others:
            lines += ["", ".. rubric:: Functions and values", ""]
        for name in others:
            kind = "autofunction" if inspect.isroutine(getattr(module, name)) else "autodata"
            lines += [f".. {kind}:: {package}.{name}", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Any) -> dict[str, bool]:
    """Register the directive, and write the pages."""
    write_pages(Path(app.srcdir) / "api")
    app.add_directive("package", Package)
    return {"parallel_read_safe": True}
