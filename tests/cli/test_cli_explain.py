"""``latelier explain``: the table, the files that it writes, and ids as they are typed."""

import json

import pytest

from latelier.retrieve import Retriever


def test_prints_what_the_search_scored(run, folder):
    searched = run("search", folder, "unhealthy fruit", "-k", 1, "--mode", "vectors", "--device", "cpu", "--json")
    found = json.loads(searched.stdout)
    result = run("explain", folder, "unhealthy fruit", "fruit", "--device", "cpu")
    assert (result.exit_code, result.stderr) == (0, "")
    title, first, *_ = result.stdout.splitlines()
    assert title == f"'fruit' scores {found['results'][0]['score']:.3f} for 'unhealthy fruit':"
    assert first.split()[:2] == ["unhealthy", "healthy"]


def test_json_has_the_characters_that_matched(run, folder):
    told = json.loads(run("explain", folder, "unhealthy fruit", "fruit", "--device", "cpu", "--json").stdout)
    assert [told["text"][span["start"] : span["end"]] for span in told["spans"]] == ["Bananas", "healthy"]
    assert [told["query"][span["start"] : span["end"]] for span in told["query_spans"]] == ["unhealthy", "fruit"]
    assert sum(match["similarity"] for match in told["tokens"]) == pytest.approx(told["score"])
    assert sum(match["contribution"] for match in told["words"]) == pytest.approx(told["score"])


def test_ids_are_found_as_they_are_typed(run, tmp_path):
    folder = tmp_path / "index"
    lines = [{"id": 7, "text": "Bananas."}, {"id": "8", "text": "Apples."}, {"id": "1e3", "text": "Pears."}]
    records = "".join(json.dumps(line) + "\n" for line in lines)
    assert run("index", "-", folder, "--device", "cpu", input=records).exit_code == 0
    for line in lines:
        told = json.loads(run("explain", folder, "fruit", line["id"], "--device", "cpu", "--json").stdout)
        assert (told["id"], told["text"]) == (line["id"], line["text"])
    passages = tmp_path / "passages"
    with Retriever(index=passages, device="cpu") as retriever:
        retriever.add([(7, "Bananas are yellow. " * 20 + "Pears are green.")], passages=30)
    told = json.loads(run("explain", passages, "green", "7", "--device", "cpu", "--json").stdout)
    assert told["id"] == 7
    assert told["text"].endswith("Pears are green.")
    for given, said in (("9", "no document has the id '9'. latelier"), ("1E3", "the id '1E3'; did you mean '1e3'?")):
        result = run("explain", folder, "fruit", given, "--device", "cpu")
        assert (result.exit_code, said in result.stderr) == (1, True)
