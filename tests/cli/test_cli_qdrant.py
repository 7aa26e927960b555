"""Commands that name a collection of Qdrant: there and back in the local mode, and locations that cannot be opened."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest

from latelier import indexes
from latelier.cli.locations import QdrantLocation, named_locations, open_named, parse_location
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT

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
    assert move(collection, tmp_path / "ivf", "--kind", "ivf", "--nbits", 8) == 3
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
        np.testing.assert_array_equal(flat.get_embeddings("moon")[0], there.get_embeddings("moon")[0])
        assert hits(there, query) == hits(flat, query)
        assert [hit.id for hit in back.search(query)[0]] == [hit.id for hit in flat.search(query)[0]]
        assert [hit.id for hit in there.search(mode="keywords", texts="earth")[0]] == ["moon"]


@pytest.fixture(scope="module")
def collection(run, folder, tmp_path_factory):
    """A copy of the index in Qdrant, whose settings name its model; tests only read it."""
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
    report = json.loads(run("why-not", collection, "fruit", "moon", "-k", 1, "--device", "cpu", "--json").stdout)
    assert report["causes"][0]["kind"] == "scored_lower"
    found, other = (json.loads(run("info", each, "--json").stdout) for each in (collection, folder))
    same = ("documents", "tokens", "removed", "texts", "metadata", "keywords", "model", "dim")
    assert {name: found[name] for name in same} == {name: other[name] for name in same}
    assert (found["kind"], found["bytes_per_token"]) == ("Qdrant", round(found["bytes"] / found["tokens"]))
    facts = json.loads(run("check", collection, "-k", 2, "--json").stdout)
    assert (facts["kind"], facts["recall"]["recall"], facts["integrity"]["files"]) == ("Qdrant", 1.0, 3)
    result = run("search", collection, "fruit", "--max-memory", "1GB")
    assert (result.exit_code, "a collection of Qdrant, which takes no budget" in result.stderr) == (1, True)
    result = run("search", f"{collection}-absent", "fruit")
    assert (result.exit_code, "there is no collection 'records-absent' in" in result.stderr) == (1, True)
    result = run("index", tmp_path, "--index", collection)
    assert (result.exit_code, f"latelier copy FOLDER {collection}" in result.stderr) == (2, True)


def test_a_collection_that_does_not_name_its_model_needs_one(run, tmp_path, minilm):
    with indexes.Qdrant(tmp_path / "plain") as index:
        model = ColBERT.from_dense(minilm, device="cpu")
        texts = ["Bananas are healthy.", "The moon is far away."]
        index.add(["fruit", "moon"], model.encode_document(texts), texts)
    command = ("search", f"qdrant:{tmp_path / 'plain'}", "unhealthy fruit", "--device", "cpu", "--json")
    result = run(*command)
    assert (result.exit_code, "does not name its model" in result.stderr, ": --model." in result.stderr) == (
        1,
        True,
        True,
    )
    found = json.loads(run(*command, "--model", minilm).stdout)["results"]
    assert [hit["id"] for hit in found] == ["fruit", "moon"]


def test_indexes_of_a_server_have_the_names_of_their_collections(run, collection):
    testclient = pytest.importorskip("fastapi.testclient")
    from latelier.serve import create_app

    with ExitStack() as stack:
        named = open_named(named_locations([collection]), stack, device="cpu", read_only=False)
        assert list(named) == ["records"]
        with testclient.TestClient(create_app(named), base_url="http://localhost") as client:
            body = {"query": "unhealthy fruit", "k": 1}
            answer = client.post("/v1/indexes/records/search", json=body).json()
            assert answer["results"][0][0]["id"] == "fruit"
            assert client.get("/v1/indexes").json()[0]["kind"] == "Qdrant"
    with pytest.raises(InvalidArgumentError, match="two indexes named 'records'"):
        named_locations(["a/records", "qdrant:b#records"])
    assert named_locations(["papers=qdrant:b#records", "qdrant:a=b"]) == {
        "papers": parse_location("qdrant:b#records"),
        "latelier": parse_location("qdrant:a=b"),
    }
    result = run("serve", collection, "--read-only")
    assert (result.exit_code, "--read-token without --write-token" in result.stderr) == (1, True)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_copy_goes_on(run, tmp_path):
    count = 120
    with indexes.Flat(tmp_path / "flat") as flat:
        flat.add([f"doc {i}" for i in range(count)], [np.eye(4) + i for i in range(count)], metadata=[{"n": 1}] * count)
        flat.settings["model"] = "one"
    arguments = ["copy", str(tmp_path / "flat"), f"qdrant:{tmp_path / 'qdrant'}"]
    process = subprocess.Popen([sys.executable, "-c", "from latelier.cli import main; main()", *arguments])
    # An empty database has 12 KiB, and one with all documents 104 KiB.
    while process.poll() is None and sum(file.stat().st_size for file in tmp_path.rglob("storage.sqlite")) < 30_000:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    with indexes.Qdrant(tmp_path / "qdrant") as index:
        left = count - len(index)
    assert 0 < left < count
    assert moved(run(*arguments, "--json")) == left
    with indexes.open(tmp_path / "flat", read_only=True) as flat, indexes.Qdrant(tmp_path / "qdrant") as index:
        assert records(index) == records(flat)
        assert dict(index.settings) == {"model": "one"}


def test_a_new_collection_is_as_the_source(run, tmp_path):
    with indexes.Flat(tmp_path / "half", dtype="float16", tokenizer="trigram") as index:
        index.add("a", np.eye(4), "text")
    with indexes.IVF(tmp_path / "two", nbits=2, keywords=False) as index:
        index.add("a", np.eye(4))
    for name, expected in {"half": ("float16", "trigram"), "two": ("float32", None)}.items():
        assert moved(run("copy", tmp_path / name, f"qdrant:{tmp_path / 'q'}#{name}", "--json")) == 1
        with indexes.Qdrant(tmp_path / "q", collection=name) as index:
            assert (index.dtype, index.tokenizer) == expected
        # An existing collection stays as it is, and a folder gets an index like the collection.
        assert moved(run("copy", tmp_path / name, f"qdrant:{tmp_path / 'q'}#{name}", "--json")) == 0
        assert moved(run("copy", f"qdrant:{tmp_path / 'q'}#{name}", tmp_path / f"{name}-back", "--json")) == 1
        assert f", {expected[0]}, " in repr(indexes.open(tmp_path / f"{name}-back", read_only=True))


@pytest.mark.parametrize("option", [("--kind", "flat"), ("--nbits", 4), ("--shards", 2)])
def test_options_of_other_targets(option, run, folder, tmp_path):
    result = run("copy", folder, f"qdrant:{tmp_path / 'new'}", *option)
    assert result.exit_code == 2
    assert f"{option[0]}: a collection of Qdrant has no such option; leave it out" in " ".join(result.stderr.split())
    assert not (tmp_path / "new").exists()


def test_sources_that_are_not_there(run, folder, tmp_path):
    result = run("copy", f"qdrant:{tmp_path / 'absent'}", tmp_path / "new")
    assert (result.exit_code, (tmp_path / "absent").exists()) == (1, False)
    assert "absent is not a folder of Qdrant's local mode" in result.stderr
    before = sorted(folder.iterdir())
    assert "leave out 'qdrant:'" in run("copy", f"qdrant:{folder}", tmp_path / "new").stderr
    assert "is not a folder of Qdrant's local mode: it holds" in run("copy", folder, f"qdrant:{folder}").stderr
    assert sorted(folder.iterdir()) == before
    run("copy", folder, f"qdrant:{tmp_path / 'qdrant'}")
    result = run("copy", f"qdrant:{tmp_path / 'qdrant'}#other", tmp_path / "new")
    assert "there is no collection 'other' in " in result.stderr
    result = run("copy", tmp_path / "qdrant", tmp_path / "new")
    assert f"or give qdrant:{tmp_path / 'qdrant'} to latelier search, copy, ..., if you trust it" in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_server_that_does_not_answer(run, folder, tmp_path):
    with socket.socket() as bound:  # not listening
        bound.bind(("127.0.0.1", 0))
        server = f"qdrant+http://127.0.0.1:{bound.getsockname()[1]}/papers"
        for arguments in ((folder, server), (server, tmp_path / "new")):
            result = run("copy", *arguments)
            assert result.exit_code == 1
            assert f"no Qdrant server answers at {server[len('qdrant+') : -len('/papers')]} " in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_parts_of_a_location():
    url = "qdrant+https://host.example/behind/a/proxy/my%20papers"
    assert parse_location(url) == QdrantLocation(None, "https://host.example/behind/a/proxy", "my papers")
    assert parse_location("qdrant:some/folder").collection == "latelier"
    for plain in ("C:\\indexes", "./qdrant:x", "a:b", "notes:2024"):
        assert str(parse_location(plain)).endswith(plain.removeprefix("./"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/index", "'s3' is not a scheme"),
        ("qdrant+ftp://localhost/papers", r"'qdrant\+ftp' is not a scheme"),
        ("qdrant://localhost:6333/papers", r"give qdrant:FOLDER, qdrant\+http"),
        ("qdrant+http://localhost:6333", "without a collection or a host"),
        ("qdrant+http://localhost:port/papers", "Port could not be cast to integer"),
    ],
)
def test_other_locations_are_refused(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        parse_location(text)


@pytest.mark.parametrize("text", ["qdrant+https://user:secret@host/papers", "qdrant+https://host/papers?key=secret"])
def test_a_key_in_a_location_is_refused_and_not_repeated(text):
    with pytest.raises(InvalidArgumentError, match="QDRANT_API_KEY") as raised:
        parse_location(text)
    assert "secret" not in str(raised.value)
