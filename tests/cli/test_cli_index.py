"""``latelier index`` on folders and tables: what is stored, what is skipped, and how fields are named."""

import json

import pytest

from latelier.retrieve import Retriever


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    (folder / "garden").mkdir(parents=True)
    (folder / "garden" / "pears.md").write_text("# Pears\n\nThey ripen in September.")
    (folder / "moon.txt").write_text("The moon is far away from the earth.")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    return folder


def test_a_folder(run, notes, tmp_path, tiny):
    index = tmp_path / "index"
    command = ["index", notes, "--index", index, "--model", tiny, "--device", "cpu"]
    with pytest.warns(UserWarning, match=r"skipped 1 files of .*\n  latin.txt: is not UTF-8 text"):
        result = run(*command, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["documents"], [each["path"] for each in report["skipped"]]) == (2, ["latin.txt"])
    with Retriever.open(index) as retriever:
        pears, moon = retriever.index.get(["garden/pears.md", "moon.txt"])
        assert pears.text == "# Pears\n\nThey ripen in September."  # its heading is not put before itself
        assert (pears.metadata["title"], moon.metadata["path"]) == ("Pears", "moon.txt")
    (notes / "new.rst").write_text("Plums")
    assert run(*command, "--resume", "--glob", "*.rst").stdout.endswith("3 documents, 2 before.\n")


def test_columns_of_a_table(run, tmp_path, tiny):
    (tmp_path / "papers.csv").write_text("doi,abstract,body,year,pages\n7,On pears.,They ripen.,1975,3\n")
    command = ["index", tmp_path / "papers.csv", "--index", tmp_path / "index", "--model", tiny, "--device", "cpu"]
    result = run(*command, "--id", "doi", "--text", "abstract, body", "--metadata", "year")
    assert result.exit_code == 0, result.output
    with Retriever.open(tmp_path / "index") as retriever:
        assert tuple(retriever.index.get("7")) == ("7", "On pears.\nThey ripen.", {"year": 1975})
    result = run(*command, "--text", "content")
    assert result.exit_code == 1
    assert "papers.csv:1: it has no field 'content'; the fields are: doi, abstract, body, year, pages" in result.stderr
    for wrong, message in ((("--glob", "*.md"), "not a folder"), (("--id", "body", "--text", "body"), "for two of id")):
        result = run(*command, *wrong)
        assert (result.exit_code, message in result.stderr) == (2, True)
