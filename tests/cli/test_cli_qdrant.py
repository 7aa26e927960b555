"""Commands that name a collection of Qdrant: there and back in the local mode, and places that cannot be opened."""

import json

import numpy as np
import pytest

from latelier import indexes

pytest.importorskip("qdrant_client", reason="needs the extra qdrant")


def moved(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["written"]


def records(index):
    return [(record.id, record.text, record.metadata) for record in index.get(index.ids())]


def hits(index, query, **options):
    return [(hit.id, pytest.approx(hit.score, abs=1e-4)) for hit in index.search(query, **options)[0]]


def test_to_qdrant_and_back(run, folder, tmp_path):
    def move(source, target, *options):
        return moved(run("copy", source, target, *options, "--json"))

    collection = f"qdrant:{tmp_path / 'collections'}#papers"
    assert move(folder, collection) == 3
    assert move(folder, collection) == 0  # the same command again
    # 8 bits: their rounding does not change the order of these three documents
    assert move(collection, tmp_path / "ivf", "--bits", 8) == 3
    query = np.asarray(indexes.open(folder, read_only=True).get_embeddings("moon")[0])
    with (
        indexes.open(folder, read_only=True) as flat,
        indexes.Qdrant(tmp_path / "collections", collection="papers") as there,
        indexes.open(tmp_path / "ivf", read_only=True) as back,
    ):
        assert flat.ids() == there.ids() == back.ids() == ["fruit", "moon", "berlin"]
        assert records(flat) == records(there) == records(back)
        assert dict(flat.settings) == dict(there.settings) == dict(back.settings)
        assert flat.tokenizer == there.tokenizer == back.tokenizer == "porter"
        vectors = there.get_embeddings("moon")[0]
        # decoded in other batches, whose sums have another order
        np.testing.assert_allclose(flat.get_embeddings("moon")[0], vectors, rtol=0, atol=1e-6)
        assert hits(there, query) == hits(flat, query)
        assert [hit.id for hit in back.search(query)[0]] == [hit.id for hit in flat.search(query)[0]]
        assert [hit.id for hit in there.search(mode="keywords", texts="earth")[0]] == ["moon"]


@pytest.fixture(scope="module")
def collection(run, folder, tmp_path_factory):
    location = f"qdrant:{tmp_path_factory.mktemp('qdrant') / 'collections'}#records"
    assert moved(run("copy", folder, location, "--json")) == 3
    return location


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "unhealthy fruit", "--explain", "--device", "cpu"),
        ("search", "the moon", "--mode", "rerank", "--filter", "year > ?", "--parameter", 2020, "--device", "cpu"),
        ("explain", "unhealthy fruit", "fruit", "--device", "cpu"),
    ],
)
def test_commands_search_a_collection_with_the_model_that_filled_it(run, folder, collection, arguments):
    command, *others = arguments
    expected, found = (json.loads(run(command, index, *others, "--json").stdout) for index in (folder, collection))
    if command == "explain":
        assert [word["matched"] for word in found["words"]] == [word["matched"] for word in expected["words"]]
        assert found["score"] == pytest.approx(expected["score"], abs=1e-3)
        return
    assert [hit["id"] for hit in found["results"]] == [hit["id"] for hit in expected["results"]]
    assert found["results"][0]["text"] == expected["results"][0]["text"]


def test_other_commands_read_a_collection(run, folder, collection, tmp_path):
    options = ("-k", 1, "--mode", "vectors", "--device", "cpu", "--json")
    report = json.loads(run("why-not", collection, "fruit", "moon", *options).stdout)
    assert report["causes"][0]["kind"] == "scored_lower"
    found, other = (json.loads(run("info", each, "--json").stdout) for each in (collection, folder))
    same = ("documents", "tokens", "removed", "texts", "metadata", "keywords", "searches", "model", "dim")
    assert {name: found[name] for name in same} == {name: other[name] for name in same}
    assert (found["kind"], found["bytes_per_token"]) == ("Qdrant", round(found["bytes"] / found["tokens"]))
    facts = json.loads(run("check", collection, "-k", 2, "--json").stdout)
    assert (facts["kind"], facts["recall"]["recall"], facts["integrity"]["files"]) == ("Qdrant", 1.0, 3)
    result = run("search", collection, "fruit", "--max-memory", "1GB")
    assert (result.exit_code, "a collection of Qdrant takes no --max-memory" in result.stderr) == (1, True)
    result = run("search", f"{collection}-absent", "fruit")
    assert (result.exit_code, "there is no collection 'records-absent' in" in result.stderr) == (1, True)
    result = run("index", tmp_path, collection)
    assert (result.exit_code, f"latelier copy FOLDER {collection}" in result.stderr) == (2, True)


def test_sources_that_are_not_there(run, folder, collection, tmp_path):
    before = sorted(folder.iterdir())
    directory = collection.partition("#")[0]
    for source, message in (
        (f"qdrant:{tmp_path / 'absent'}", "absent is not a folder of Qdrant"),
        (f"qdrant:{folder}", "leave out 'qdrant:'"),
        (f"{directory}#other", "there is no collection 'other'"),
        (directory.removeprefix("qdrant:"), "Give it as qdrant:FOLDER"),
    ):
        result = run("copy", source, tmp_path / "new")
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert "it holds" in run("copy", folder, f"qdrant:{folder}").stderr
    assert sorted(folder.iterdir()) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/index", "'s3' is not a scheme"),
        ("qdrant+https://user:secret@host/papers", "QDRANT_API_KEY"),
        ("qdrant+https://host/papers?key=secret", "QDRANT_API_KEY"),
    ],
)
def test_other_locations_are_refused_and_no_key_is_repeated(run, text, message):
    result = run("info", text)
    assert result.exit_code != 0
    assert message in " ".join(result.stderr.split())
    assert "secret" not in result.output
