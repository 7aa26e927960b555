"""An index of shards from the command line: made, described, searched, and copied there and back."""

import json

import pytest

from latelier import indexes

pytestmark = pytest.mark.slow
RECORDS = [{"id": f"d{i}", "text": f"document number {i}", "year": 2000 + i} for i in range(12)]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, run, tiny, ray_session):
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    options = [folder / "index", "--model", tiny, "--device", "cpu", "--exact", "--json"]
    result = run("index", folder / "records.jsonl", *options, "--shards", 2)
    assert json.loads(result.stdout)["documents"] == len(RECORDS), result.output
    again = run("index", folder / "records.jsonl", *options, "--shards", 3)
    assert "has shards=2, not 3" in again.output
    return folder / "index"


def found(run, folder):
    query = ("document number 7", "-k", 5, "--filter", "year < 2010", "--device", "cpu", "--json")
    return json.loads(run("search", folder, *query).stdout)["results"]


def test_it_is_described_and_finds_what_one_index_finds(run, sharded, tmp_path):
    facts = json.loads(run("info", sharded, "--json").stdout)
    assert (facts["kind"], facts["documents"], facts["shards"]) == ("Sharded", 12, 2)
    assert "12 written to" in run("copy", sharded, tmp_path / "one").stdout
    hits, expected = found(run, sharded), found(run, tmp_path / "one")
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in expected]
    assert len(hits) == 5
    assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in expected], abs=1e-4)


def test_an_index_is_copied_into_shards_and_back(run, folder, tmp_path):
    sharding = ("--bits", 2, "--shards", 2)
    for written in (3, 0):  # the same command goes on
        result = run("copy", folder, tmp_path / "sharded", *sharding, "--json")
        assert json.loads(result.stdout)["written"] == written, result.output
    assert "has shards=2, not 3" in run("copy", folder, tmp_path / "sharded", "--shards", 3).stderr
    assert "3 written to" in run("copy", tmp_path / "sharded", tmp_path / "back").stdout
    with indexes.open(tmp_path / "back", read_only=True) as back:
        assert back.ids() == ["fruit", "moon", "berlin"]
        assert ", 2-bit, " in repr(back)
