"""The house rules, read from the source: size, what library code may not do, and which way imports go."""

import ast
import collections
import importlib
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import latelier

PACKAGE = Path(latelier.__file__).parent
# From the ground up: a module imports from its own row and the rows above it, never from those below; imports under
# TYPE_CHECKING and inside functions count. Inside `indexes`, each of its modules and packages has a place of its own.
LAYERS = [
    ["errors"],
    ["utils"],
    ["reading"],
    ["arrays", "embeddings"],
    ["kernels"],
    ["scores"],
    ["modules"],
    ["models", "indexes"],
    ["losses", "rank", "retrieve"],
    ["evaluation"],
    ["data"],
    ["training"],
    ["demo", "integrations", "serve"],
    ["cli"],
]
LAYERS_OF_INDEXES = [
    ["fields", "options", "results", "words"],
    ["spelling"],
    ["filters", "ranking", "single_vectors"],
    ["filter_sql"],
    ["store"],
    ["packing"],
    ["gpu", "why_not"],
    ["base"],
    ["stored_index"],
    ["flat", "ivf"],
    ["opening", "sharded"],
    ["copy", "qdrant"],
]
PUBLIC_MODULES = {"latelier.errors", "latelier.embeddings", "latelier.arrays", "latelier.demo", "latelier.rank"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}
FACES = {name for name, path in SOURCES.items() if path.name == "__init__.py"}


def code_lines(name: str) -> set[int]:
    """Numbers of the lines that are not blank, comment or docstring."""
    prose = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node, clean=False):
            prose.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(SOURCES[name].read_text(encoding="utf-8").splitlines(), start=1)
    return {i for i, line in lines if line.strip() and not line.strip().startswith("#")} - prose


def imported(name: str) -> set[str]:
    """Modules of this package that a module imports, wherever the import stands."""
    package = name if name in FACES else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            each = {f"{base}.{alias.name}" for alias in node.names}
            found.update(module if module in SOURCES else base for module in each)
    return found & SOURCES.keys() - {name}


IMPORTS = {name: imported(name) for name in SOURCES}


def against_the_layers(layers: list[list[str]], inside: str) -> list[str]:
    row = {name: number for number, names in enumerate(layers) for name in names}
    within = {name.removeprefix(inside).split(".")[0] for name in SOURCES if name.startswith(inside)}
    assert row.keys() == within, "a layer for each module, and a module for each name"

    def place(module: str) -> int | None:
        part = module.removeprefix(inside).split(".")[0] if module.startswith(inside) else ""
        return row[part] if part else None

    return [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if place(name) is not None and place(other) is not None and place(other) > place(name)
    ]


def test_imports_go_one_way():
    assert against_the_layers(LAYERS, "latelier.") == []
    assert against_the_layers(LAYERS_OF_INDEXES, "latelier.indexes.") == []


def test_no_import_circles():
    left = {name: set(others) for name, others in IMPORTS.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}  # what is left is in a circle, or imports one


def test_a_file_holds_one_subject_whole():
    sizes = {name: len(code_lines(name)) for name in SOURCES}
    assert {name: size for name, size in sizes.items() if size > 700} == {}
    users = collections.defaultdict(set)
    for name in SOURCES.keys() - FACES:
        for other in IMPORTS[name]:
            users[other].add(name)
    serving_one_neighbour = [
        name
        for name in SOURCES.keys() - FACES
        if sizes[name] < 80
        and len(users[name]) == 1
        and name.rpartition(".")[0] == next(iter(users[name])).rpartition(".")[0]
    ]
    assert len(serving_one_neighbour) <= 5, sorted(serving_one_neighbour)


def test_functions_fit_80_lines_of_code():
    too_long = []
    for name, tree in TREES.items():
        code = code_lines(name)
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and len(code & set(range(node.lineno, node.end_lineno + 1))) > 80:
                too_long.append(f"{name}.{node.name}")
    assert too_long == []


def test_code_is_written_out():
    """One value a line: no conditional expression within another, and tuples assigned only to true pairs."""
    nested = []
    tuples = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            place = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.IfExp) and sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1:
                nested.append(place)
            pair = isinstance(node, ast.Assign) and [node.targets[0], node.value]
            if pair and all(isinstance(side, ast.Tuple) for side in pair):
                left, right = (sorted(map(ast.unparse, side.elts)) for side in pair)
                if left != right:  # else an exchange
                    tuples.append(place)
    assert len(tuples) < 100
    assert nested == []


def internals(tree: ast.Module, public: set[str]) -> Iterator[ast.AST]:
    """Functions and classes that no package offers, and private ones inside those that it does."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            if node.name not in public:
                yield node
            for inner in ast.walk(node):
                is_inside = inner is not node and isinstance(inner, (ast.ClassDef, *FUNCTIONS))
                if is_inside and (node.name not in public or inner.name.startswith("_")):
                    yield inner


def test_internals_are_described_in_a_few_lines():
    public = set()
    for name in [*FACES, *PUBLIC_MODULES]:
        for node in ast.walk(TREES[name]):
            public.update({node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set())
    # What public classes inherit is documented where it stands.
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in public:
                public.update(base.id for base in node.bases if isinstance(base, ast.Name))
    wordy = []
    for name, tree in TREES.items():
        for node in internals(tree, public):
            text = ast.get_docstring(node) or ""
            is_help = name.startswith("latelier.cli.")  # the docstring of a command is what --help shows
            if "\n---" in text or (text.count("\n") + 1 > 10 and not is_help):
                wordy.append(f"{name}.{node.name}")
    assert wordy == []


def test_only_public_modules_list_their_names():
    listing = {
        name
        for name, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    assert listing - FACES - PUBLIC_MODULES == set()


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


def names_defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def test_names_that_packages_import_on_first_use_are_those_that_type_checkers_see():
    lazy = [name for name in FACES if "lazy_names" in ast.unparse(TREES[name])]
    assert lazy
    for name in lazy:
        [block] = [node for node in TREES[name].body if isinstance(node, ast.If)]
        seen = {alias.name: node.module for node in block.body for alias in node.names}
        calls = [node for node in TREES[name].body if "lazy_names(" in ast.unparse(node)]
        [call] = [node.value for node in calls if isinstance(node, ast.Assign)]
        package = importlib.import_module(name)
        modules = {each.arg: eval(ast.unparse(each.value), vars(package)) for each in call.keywords}
        assert seen == {each: f"{name}.{module}" for module, names in modules.items() for each in names}
        assert [each for each in seen if each not in names_defined(TREES[seen[each]])] == []
        at_once = [node for node in TREES[name].body if isinstance(node, ast.ImportFrom) and node.module]
        eager = {alias.name for node in at_once if node.module.startswith("latelier.") for alias in node.names}
        assert sorted({*seen, *eager} - {"lazy_names"}) == sorted(package.__all__)
        assert set(seen) <= set(dir(package))
