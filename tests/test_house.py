"""The house rules, read from the source: size, what library code may not do, and which way imports go."""

import ast
import collections
import graphlib
import importlib
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import latelier

PACKAGE = Path(latelier.__file__).parent
# From the ground up: a module imports from its own row and the rows above it, never from those below.
LAYERS = [
    {"errors"},
    {"utils"},
    {"arrays", "embeddings"},
    {"kernels"},
    {"scores"},
    {"modules"},
    {"models", "indexes"},
    {"experimental", "losses", "rank", "retrieve"},
    {"evaluation"},
    {"data"},
    {"training"},
    {"demo", "integrations", "serve"},
    {"cli"},
]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def layer(module: str) -> int:
    """Row of a module in the table; ``latelier`` itself stands below all of them, so nothing may import from it."""
    top = module.partition(".")[2].partition(".")[0]
    return next((row for row, names in enumerate(LAYERS) if top in names), len(LAYERS))


def imports_of_module(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports outside of functions, those under TYPE_CHECKING included: a type is known where it is named."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from imports_of_module(getattr(node, field, []))


def own_imports(module: str) -> set[str]:
    """Modules of this package that ``module`` names in its imports, outside of functions."""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in imports_of_module(TREES[module].body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = {f"{base}.{alias.name}" for alias in node.names}
            found.update(name if name in SOURCES else base for name in names)
    return found & SOURCES.keys() - {module}


def test_every_layer_is_known():
    packages = {name.split(".")[1] for name in SOURCES if name.count(".") >= 1}
    assert packages <= set().union(*LAYERS)


def test_files_fit_500_lines_and_functions_100():
    too_long = [name for name, path in SOURCES.items() if path.read_text(encoding="utf-8").count("\n") > 500]
    for name, tree in TREES.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        too_long += [f"{name}.{node.name}" for node in functions if node.end_lineno - node.lineno >= 100]
    assert too_long == []


def test_every_module_says_what_it_holds():
    assert [name for name, tree in TREES.items() if tree.body and not ast.get_docstring(tree)] == []


def test_library_code_has_no_print_assert_bare_except_or_star_import():
    found = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            printing = isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
            bare = isinstance(node, ast.ExceptHandler) and node.type is None
            star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            if printing or bare or star or isinstance(node, ast.Assert):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node).splitlines()[0]}")
    assert found == []


def test_imports_go_one_way():
    pairs = [(name, other) for name in SOURCES for other in own_imports(name)]
    assert [f"{name} imports {other}" for name, other in pairs if layer(other) > layer(name)] == []


def test_parts_of_numba_are_imported_in_one_place():
    """`latelier.kernels.jit` says why."""
    found = [
        f"{name} imports {node.module}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("numba.") and node.module != "numba"
    ]
    assert found == ["latelier.kernels.jit imports numba.core", "latelier.kernels.jit imports numba.extending"]


def test_contributing_shows_these_layers():
    rows = " <- ".join(", ".join(sorted(row)) for row in LAYERS)
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert rows in " ".join(text.split())


def test_no_import_cycles():
    order = graphlib.TopologicalSorter({name: own_imports(name) for name in SOURCES})
    assert set(order.static_order()) == SOURCES.keys()  # a cycle raises graphlib.CycleError, which names it


def test_no_two_modules_give_one_name_two_meanings():
    """Engines, and kernels of one kind, are named alike on purpose, as a command and the function that it calls."""
    alike = ("latelier.kernels.", "latelier.scores.")
    homes = collections.defaultdict(set)
    for name, tree in TREES.items():
        for node in [] if name.startswith("latelier.cli.") else tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                homes[node.name].add(next((one for one in alike if name.startswith(one)), name))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_init_files_only_re_export():
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    found = [
        f"{name}: {ast.unparse(node).splitlines()[0]}"
        for name, tree in TREES.items()
        if SOURCES[name].name == "__init__.py" and name != "latelier"  # which loads its sub-packages on first use
        for node in tree.body
        if not isinstance(node, allowed) and ast.unparse(node).splitlines()[0] != "if TYPE_CHECKING:"
    ]
    assert found == []


def test_names_that_packages_import_on_first_use_are_those_that_type_checkers_see():
    lazy = [name for name, tree in TREES.items() if "lazy_names" in ast.unparse(tree) and name != "latelier.utils.misc"]
    assert lazy
    for name in lazy:
        [block] = [node for node in TREES[name].body if isinstance(node, ast.If)]
        seen = {alias.name: node.module for node in block.body for alias in node.names}
        package = importlib.import_module(name)
        at_once = [node for node in TREES[name].body if isinstance(node, ast.ImportFrom) and node.module]
        eager = {alias.name for node in at_once if node.module.startswith(f"{name}.") for alias in node.names}
        assert sorted({*seen, *eager}) == sorted(package.__all__)
        assert set(seen) <= set(dir(package))
        assert all(getattr(package, each) is getattr(importlib.import_module(seen[each]), each) for each in seen)


def test_test_files_have_names_of_their_own():
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]  # pytest imports them by name alone
    assert sorted(names) == sorted(set(names))
