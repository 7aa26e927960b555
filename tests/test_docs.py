"""The documents tell the truth: their Python runs and prints what they show, and nothing public goes unmentioned."""

import html
import importlib
import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

import latelier
from documents import python_blocks, run_block, without_blocks

ROOT = Path(__file__).parent.parent
PACKAGE = Path(latelier.__file__).parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}

SLOW = ("docs/training.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name, text in PAGES.items()
        if python_blocks(text)
    ],
)
def test_python_blocks_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(PAGES[page]):
        run_block(block, page, names)
    assert "__builtins__" in names  # the blocks ran in here


def test_links_between_pages_lead_somewhere():
    links = [
        (name, link) for name, text in PAGES.items() for link in re.findall(r"\]\(([^)#\s]+)", without_blocks(text))
    ]
    own = [(name, link) for name, link in links if "://" not in link]
    assert [(name, link) for name, link in own if not (ROOT / name).parent.joinpath(link).exists()] == []
    assert own


def test_every_page_is_in_the_navigation():
    trees = re.findall(r"^```{toctree}\n(.*?)^```", PAGES["docs/index.md"], re.MULTILINE | re.DOTALL)
    entries = [
        line.rpartition("<")[2].rstrip(">") for tree in trees for line in tree.splitlines() if line[:1].isalpha()
    ]
    pages = [name.removeprefix("docs/").removesuffix(".md") for name in PAGES if name.startswith("docs/")]
    pages += [f"notebooks/{path.stem}" for path in (ROOT / "examples").glob("*.ipynb")]
    assert sorted("index" if entry == "self" else entry for entry in entries) == sorted(pages)


def test_the_reference_has_every_public_package():
    # The directive puts all names that the package has in __all__ on the page, and on those of its classes.
    shown = re.findall(r"^\.\. (?:package|automodule):: latelier\.(\w+)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert sorted(shown) == sorted(set(latelier.__all__) - {"cli", "ColBERT", "Retriever"})


def test_no_page_has_the_name_of_one_that_sphinx_writes():
    names = {name.removeprefix("docs/").removesuffix(".md") for name in PAGES}
    assert names & {"search", "genindex", "py-modindex", "modindex"} == set()


@pytest.mark.slow
def test_the_built_pages_have_their_titles_and_each_class_has_a_page():
    site = ROOT / "site"
    if not site.is_dir():
        pytest.skip("make docs builds the pages")
    titles = {name.removeprefix("docs/"): text for name, text in PAGES.items() if name.startswith("docs/")}
    expected = {
        name.removesuffix(".md"): re.search(r"^# (.*)$", text, re.MULTILINE)[1].replace("`", "")
        for name, text in titles.items()
    }
    packages = re.findall(r"^\.\. package:: latelier\.(\w+)$", "\n".join(titles.values()), re.MULTILINE)
    for package in packages:
        module = importlib.import_module(f"latelier.{package}")
        classes = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
        expected |= {f"api/latelier.{package}.{name}": name for name in classes}
    assert "api/latelier.retrieve.Retriever" in expected
    for name, title in expected.items():
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        heading = re.search(r"<h1>(.*?)<a class=\"headerlink\"", page, re.DOTALL)
        assert heading is not None, name
        assert html.unescape(re.sub(r"<[^>]+>", "", heading[1])) == title, name
    retriever = (site / "api" / "latelier.retrieve.Retriever.html").read_text(encoding="utf-8")
    assert 'id="latelier.retrieve.Retriever.search"' in retriever


def test_every_command_is_documented_with_all_its_options():
    from typer.main import get_command

    from latelier.cli import app

    sections = dict(
        re.findall(r"^## `?latelier (\S+?)`?\n(.*?)(?=^## |\Z)", PAGES["docs/cli.md"], re.MULTILINE | re.DOTALL)
    )
    commands = get_command(app).commands
    assert sorted(sections) == sorted(commands)
    for name, command in commands.items():
        assert command.help, f"latelier {name} has no help"
        options = [
            max(parameter.opts, key=len) for parameter in command.params if parameter.param_type_name == "option"
        ]
        assert [option for option in options if option not in sections[name]] == [], name


def test_extras_in_the_documents_exist():
    extras = set(metadata("latelier").get_all("Provides-Extra"))
    named = re.findall(r"latelier\[([\w,-]+)\]", "\n".join(PAGES.values()))
    assert {extra for names in named for extra in names.split(",")} <= extras


def test_changelog_tells_of_the_current_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", changelog, re.MULTILINE)
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    assert unreleased is not None
    # Before the first release, all there is to tell stands under Unreleased.
    assert released[:1] == [latelier.__version__] or (not released and "\n- " in unreleased[1])
