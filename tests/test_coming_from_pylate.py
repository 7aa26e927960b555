"""Every line on the right of the tables in docs/pylate.md runs, in the order in which it stands there."""

import re
from pathlib import Path

from documents import python_blocks, run_block

PAGE = (Path(__file__).parent.parent / "docs" / "pylate.md").read_text(encoding="utf-8")
ROWS = [
    re.findall(r"`([^`]+)`", re.split(r" \| ", line)[-1].rstrip(" |"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| PyLate |"))
]
# Names that a row mentions in passing, and that are no code of their own.
WORDS = {"recipe=", "device=", "layout="}


def test_every_row_runs_and_gives_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    run_block(python_blocks(PAGE)[0], "docs/pylate.md", names)
    failed = {}
    for row in ROWS:
        codes = [code for code in row if code not in WORDS]
        assert codes, f"a row without code: {row}"
        for code in codes:
            try:
                exec(code, names)
            except Exception as error:  # noqa: BLE001 (every row is to be told of)
                failed[code] = repr(error)
    assert failed == {}
    assert [[hit["id"] for hit in hits] for hits in names["ranked"]] == [["a", "b"], ["c"]]
    assert names["index"].ids() == ["1", "2"]
    encoded = names["model"].encode(names["candidates"], is_query=False)
    assert [len(group) for group in encoded] == [2, 1]


def test_all_tables_were_found():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(lines) - 2 * PAGE.count("| PyLate |") == 53
