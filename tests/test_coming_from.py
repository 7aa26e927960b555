"""Every line on the right of the tables in docs/pylate.md and docs/ragatouille.md runs, in the order of the page."""

import json
import re
from pathlib import Path

import pytest

from documents import python_blocks, run_block
from latelier.retrieve import Retriever

DOCS = Path(__file__).parent.parent / "docs"
ROWS = {"pylate": 53, "ragatouille": 29}
# Names that a row mentions in passing, and that are no code of their own.
WORDS = {"recipe=", "device=", "layout=", "latelier.indexes"}


def run_page(name, names):
    """Run a page's blocks and rows; return its number of rows."""
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for block in python_blocks(page):
        run_block(block, f"docs/{name}.md", names)
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    rows = [re.findall(r"`([^`]+)`", re.split(r" \| ", line)[-1].rstrip(" |")) for line in lines]
    failed = {}
    for row, line in zip(rows, lines, strict=True):
        if line.endswith(" | Latelier |"):
            continue
        codes = [code for code in row if code not in WORDS]
        assert codes, f"a row without code: {line}"
        for code in codes:
            try:
                exec(code, names)
            except Exception as error:  # noqa: BLE001 (every row is to be told of)
                failed[code] = repr(error)
    assert failed == {}
    assert len(lines) - sum(line.endswith(" | Latelier |") for line in lines) == ROWS[name]


def test_pylate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    run_page("pylate", names)
    assert [[hit["id"] for hit in hits] for hits in names["ranked"]] == [["a", "b"], ["c"]]
    assert names["index"].ids() == ["1", "2"]
    encoded = names["model"].encode(names["candidates"], is_query=False)
    assert [len(group) for group in encoded] == [2, 1]


def test_ragatouille(tmp_path, monkeypatch, tiny):
    pytest.importorskip("langchain_core", reason="needs the extra langchain")
    pytest.importorskip("accelerate", reason="needs the extra train")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    run_page("ragatouille", names)
    assert [result.id for result in names["results"]] == ["pear", "rome"]
    assert names["results"][0].metadata == {"year": 2025}
    assert [hit.id for hit in names["hits"]] == [1]
    assert (names["report"].rows, len(names["memory"])) == (4, 0)
    files = {
        "collection": ["Pears are good", "for you.", "Rome is very old."],
        "pid_docid_map": {"0": "pear", "1": "pear", "2": "rome"},
        "docid_metadata_map": {"pear": {"year": 2025}},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with Retriever(tiny, device="cpu") as retriever:
        retriever.add(names["read_old"](tmp_path))
        (rome, *others), pears = (retriever.search("Rome", filter=f"document = '{name}'") for name in ("rome", "pear"))
    assert (rome.id, rome.text, others) == (2, "Rome is very old.", [])
    assert {each.id: each.metadata["year"] for each in pears} == {0: 2025, 1: 2025}
