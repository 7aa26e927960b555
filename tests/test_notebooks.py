"""The notebooks of examples/: kept without outputs, shown in the documentation, and they run."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# What outputs of each notebook have to show, as regular expressions: tables, heat maps and bars, not only their text.
SHOWN = {
    "look_into_a_result": [r'<mark class="t\d+">directory<sub>', '<table class="heat">', "image/png", "recall@10</th>"],
    "search_your_documents": ["shutil.disk_usage", "shutil.copyfile", r"id='note'", "trains.md"],
    "train_and_compare": ["Training Loss", "95% interval", r"</span>", r"<caption>mean of 150 queries"],
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_without_outputs(path):
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.cells[0].source.startswith("# ")


def test_every_notebook_is_known():
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


def executed_for_the_documentation(path):
    """Return a notebook as `make docs` has executed it, and its folder; None if anything has changed since."""
    file, folder = ROOT / "jupyter_execute" / "notebooks" / path.name, ROOT / "docs" / "notebooks"
    sources = [path, ROOT / "pyproject.toml", ROOT / "constraints.txt", *(ROOT / "src").rglob("*.py")]
    newest = max(source.stat().st_mtime for source in sources)
    if not file.exists() or file.stat().st_mtime < newest:
        return None
    notebook = nbformat.read(file, as_version=4)
    kept = nbformat.read(path, as_version=4)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in kept.cells]
    return notebook, [found for found in folder.iterdir() if found.suffix != ".ipynb"]


def execute(path, folder):
    client = pytest.importorskip("nbclient", reason="needs the extra dev")
    pytest.importorskip("ipykernel", reason="needs the extra dev")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return notebook, list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_shows(path, tmp_path):
    notebook, left = executed_for_the_documentation(path) or execute(path, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output.text for output in outputs if output.get("name") == "stderr" and "Warning" in output.text]
    shown = str([{**output.get("data", {}), "text": output.get("text", "")} for output in outputs])
    assert [pattern for pattern in SHOWN[path.stem] if not re.search(pattern, shown)] == []
    assert left == []  # examples leave nothing behind where they run
