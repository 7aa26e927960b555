"""An index of shards from the command line: made, described, searched, and served by a real server."""

import json
import subprocess
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.slow
RECORDS = [{"id": f"d{i}", "text": f"document number {i}", "year": 2000 + i} for i in range(12)]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, run, tiny, ray_session):
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    options = ["--index", folder / "index", "--model", tiny, "--device", "cpu", "--kind", "flat", "--json"]
    result = run("index", folder / "records.jsonl", *options, "--shards", 2)
    assert json.loads(result.stdout)["documents"] == len(RECORDS), result.output
    again = run("index", folder / "records.jsonl", *options, "--resume", "--shards", 3)
    assert "has shards=2, not 3" in again.output
    return folder / "index"


def test_info_counts_shards(run, sharded):
    facts = json.loads(run("info", sharded, "--json").stdout)
    assert (facts["kind"], facts["documents"], facts["shards"]) == ("Sharded", 12, 2)


def test_search_finds_what_one_index_finds(run, sharded, tiny, tmp_path):
    options = ["--index", tmp_path / "one", "--model", tiny, "--device", "cpu", "--json"]
    run("index", sharded.parent / "records.jsonl", *options)
    query = ("document number 7", "-k", 5, "--filter", "year < 2010", "--device", "cpu", "--json")
    found, expected = (
        json.loads(run("search", folder, *query).stdout)["results"] for folder in (sharded, tmp_path / "one")
    )
    assert [result["id"] for result in found] == [result["id"] for result in expected]
    assert [result["score"] for result in found] == pytest.approx([result["score"] for result in expected], abs=1e-4)


def test_server_searches_it(sharded):
    command = [sys.executable, "-c", "from latelier.cli import main; main()", "serve", sharded, "--port", "0"]
    with subprocess.Popen([*map(str, command), "--device", "cpu"], stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[1]  # Open http://127.0.0.1:PORT ...
            body = json.dumps({"query": "document number 3", "k": 3}).encode()
            request = urllib.request.Request(
                f"{address}/v1/indexes/index/search", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as response:
                [results] = json.loads(response.read())["results"]
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert results[0]["id"] == "d3"
    assert len(results) == 3
