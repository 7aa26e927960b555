"""Qdrant: folders, foreign collections, candidates, ties, keywords, checksums, and errors of the connection."""

import http.server
import threading

import numpy as np
import pytest
from index_helpers import check_hits, contents, expected_hits, matrices
from qdrant_client import QdrantClient, models

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import (
    CorruptedIndexError,
    EmbeddingsError,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    StorageError,
)
from latelier.indexes import FixedDimensionalEncodings, MeanVectors


def test_a_folder_reopens_as_it_was(tmp_path):
    metadata = [{"year": 2020, "big": 2**80}, {"nested": [1, {"x": None}]}, None]
    options = {"dtype": "float16", "first_stage": FixedDimensionalEncodings(r_reps=2), "tokenizer": "standard"}
    with indexes.Qdrant(tmp_path / "index", collection="mine", **options) as index:
        index.settings["model"] = {"name": "m"}
        index.add(["a", 1, "1"], matrices([2, 3, 1]), ["wings", None, "cone"], metadata)
        before, fields = contents(index), index.fields
        hits = index.search(matrices([2], seed=1), mode="hybrid", texts="wings")
    with indexes.Qdrant(tmp_path / "index", collection="mine") as index:
        assert (contents(index), index.fields, dict(index.settings)) == (before, fields, {"model": {"name": "m"}})
        assert (index.dtype, index.first_stage, index.tokenizer) == tuple(options.values())
        assert index.search(matrices([2], seed=1), mode="hybrid", texts="wings") == hits
        index.add("d", matrices([1]))
        assert index.ids() == ["a", 1, "1", "d"]
        with pytest.raises(StorageError, match="is open already"):
            indexes.Qdrant(tmp_path / "index")
    for wrong in ({"dtype": "float32"}, {"first_stage": MeanVectors()}, {"keywords": False}):
        with pytest.raises(InvalidArgumentError, match="the collection 'mine' has"):
            indexes.Qdrant(tmp_path / "index", collection="mine", **wrong)
    with pytest.raises(IndexFormatError, match=r"indexes\.Qdrant\(path\)"):
        indexes.open(tmp_path / "index")


def test_collections_of_others_stay_as_they_are(tmp_path):
    client = QdrantClient(path=str(tmp_path / "index"))
    client.create_collection("latelier", models.VectorParams(size=2, distance=models.Distance.COSINE))
    client.upsert("latelier", [models.PointStruct(id=1, vector=[1.0, 0.0])])
    client.close()
    with pytest.raises(IndexFormatError, match=r"'latelier' in .* is not an index of latelier"):
        indexes.Qdrant(tmp_path / "index")
    with indexes.Qdrant(tmp_path / "index", collection="other") as index:
        index.add("a", np.eye(2))
    client = QdrantClient(path=str(tmp_path / "index"))
    assert client.count("latelier").count == 1
    client.update_collection("other", metadata={"latelier": '{"format": 2}'})
    client.close()
    with pytest.raises(IndexFormatError, match=r"its format is 2, .* knows up to 1"):
        indexes.Qdrant(tmp_path / "index", collection="other")


@pytest.mark.parametrize("first_stage", [MeanVectors(), FixedDimensionalEncodings(k_sim=2, d_proj=4, seed=3)])
def test_candidates_are_those_of_the_single_vectors(first_stage):
    """With few more candidates than hits, MaxSim orders the best of the single vectors; "exact" all documents."""
    index = indexes.Qdrant(first_stage=first_stage)
    documents = matrices([6] * 50, dim=8)
    index.add(range(50), documents, metadata=[{"n": i} for i in range(50)])
    queries = matrices([4, 4], dim=8, seed=1)
    scores = first_stage.encode_queries(queries) @ first_stage.encode_documents(documents).T
    for query, hits, row in zip(queries, index.search(queries, 3, candidates=7), scores, strict=True):
        best = set(np.argsort(-row)[:7].tolist())
        check_hits([hits], expected_hits(index, [query], 3, keep=lambda id, best=best: id in best))
    check_hits(index.search(queries, 3, effort="exact"), expected_hits(index, queries, 3))
    assert index.search(queries, 50, effort="exact") == index.search(queries, 50)
    assert index.check(5).recall == 1.0
    filtered = index.search(queries, 3, candidates=3, filter="n >= 45")
    assert all(hit.id >= 45 for hits in filtered for hit in hits)
    assert [len(hits) for hits in filtered] == [3, 3]
    for wrong in ({"effort": "best"}, {"candidates": 0}):
        with pytest.raises(InvalidArgumentError, match=r"received (effort|candidates)="):
            index.search(queries, **wrong)


def test_why_a_document_is_no_candidate():
    """Its mean vector is far from the query, and one of its tokens equals it."""
    index = indexes.Qdrant()
    far = np.array([[1.0, 0.0], [-9.0, 0.0]])
    index.add(range(21), [*([np.array([[0.5, 0.1]])] * 20), far])
    query = np.array([[1.0, 0.0]])
    report = index.why_not(query, 20, k=1, candidates=5)
    assert [cause.kind for cause in report.causes] == ["not_candidate"]
    assert report.causes[0].details == {"candidates": 5}
    assert "candidates" in report.changes[0].arguments
    for change in report.changes:
        assert index.search(query, **{"k": 1, "candidates": 5, **change.arguments})[0][0].id == 20
    assert index.why_not(query, 20, k=1, effort="exact").rank == 1


def test_ties_beyond_one_request_come_in_the_order_of_insertion():
    index = indexes.Qdrant()
    index.add(range(60), [np.ones((1, 2))] * 60)
    index.update(range(0, 60, 2), [np.ones((1, 2))] * 30)
    order = [*range(1, 60, 2), *range(0, 60, 2)]
    for effort in ("balanced", "exact"):
        assert [hit.id for hit in index.search(np.ones((2, 2)), 7, effort=effort)[0]] == order[:7]


def test_a_write_of_several_batches_says_what_it_has_stored():
    index = indexes.Qdrant(keywords=False)
    large = "x" * (40 << 20)  # two fill a batch
    pieces = [TokenEmbeddings.from_list(matrices(lengths, dim=2)) for lengths in ([1, 2], [3, 1])]
    with pytest.raises(StorageError, match=r"repeat it with update\(\)"):
        index.add([0, 1, 2, 0], iter(pieces), [large, large, "", ""], [{"huge": 10**400}] * 4)
    assert 0 < len(index) < 4
    index.update([0, 1, 2], matrices([1, 2, 3], dim=2), metadata=[{"n": i} for i in range(3)])
    assert index.ids() == [0, 1, 2]
    assert [record.metadata for record in index.get([0, 1, 2])] == [{"n": i} for i in range(3)]


def test_documents_beyond_the_limit_of_qdrant_are_refused():
    index = indexes.Qdrant()
    with pytest.raises(EmbeddingsError, match="'b' has 1,024 tokens of dim 1024"):
        index.add(["a", "b"], [np.ones((1, 1024)), np.ones((1024, 1024))])
    assert len(index) == 0


def test_keywords_are_made_dropped_and_made_again():
    index = indexes.Qdrant(keywords=False)
    index.add(["a", "b", "c"], matrices([1, 1, 1]), ["myWing", "winged Ängste of three", None])
    with pytest.raises(LatelierError, match=r"compact\(keywords=True\) makes them"):
        index.search(mode="keywords", texts="wing")
    index.compact(keywords=True)
    assert [hit.id for hit in index.search(mode="keywords", texts="wings")[0]] == ["a", "b"]
    index.compact(keywords=True, tokenizer="standard")
    assert [hit.id for hit in index.search(mode="keywords", texts="wing angste")[0]] == ["a", "b"]
    index.compact(keywords=True, tokenizer="porter")
    assert [hit.id for hit in index.search(mode="keywords", texts="wings angst")[0]] == ["b", "a"]
    index.compact(keywords=False)
    assert index.tokenizer is None
    index = indexes.Qdrant()
    index.add("a", np.eye(4))
    with pytest.raises(LatelierError, match="no document of this index has a text"):
        index.search(mode="keywords", texts="wing")


def test_statistics(tmp_path):
    with indexes.Qdrant(tmp_path / "index") as index:
        index.add(["a", "b", "c"], matrices([2, 2, 2]), ["x", "y", "z"])
        assert str(index.verify()) == "all 3 files are whole"
        found = index.statistics()
        assert (found.documents, found.tokens, found.has_texts, found.has_metadata) == (3, 6, True, False)
        size = (tmp_path / "index/collection/latelier/storage.sqlite").stat().st_size
        assert found.bytes == size > 1000
    with indexes.Qdrant(tmp_path / "index", collection="other") as other:
        other.add("d", np.eye(300))
        assert found.bytes_per_token == size / 6 < other.statistics().bytes / 6


def test_points_of_other_programs_are_named(tmp_path):
    folder = tmp_path / "index"
    with indexes.Qdrant(folder) as index:
        index.add(["a", "b"], [np.eye(2), np.ones((1, 2))])
    point = models.PointStruct(id=7, payload={"x": 1}, vector={"tokens": [[2.0, 2.0]], "first_stage": [1.0, 1.0]})
    client = QdrantClient(path=str(folder))
    client.upsert("latelier", [point])
    client.close()
    with indexes.Qdrant(folder) as index:
        for call in (index.ids, index.statistics, lambda: index.search(np.eye(2))):
            with pytest.raises(CorruptedIndexError, match=r"the point 7 .* no payload key"):
                call()
        assert [damage.file for damage in index.verify().damages] == ["point 7"]
    client = QdrantClient(path=str(folder))
    client.delete("latelier", [7])
    [own] = [found.id for found in client.scroll("latelier")[0] if found.payload["id"] == "b"]
    client.delete_vectors("latelier", ["tokens"], [own])
    client.close()
    with indexes.Qdrant(folder) as index:
        assert index.ids() == ["a", "b"]
        with pytest.raises(CorruptedIndexError, match="has no vectors 'tokens'"):
            index.get_embeddings(["a", "b"])


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status that its path begins with."""

    def do_GET(self):
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()
        self.wfile.write(b'{"status":{"error":"Must provide an API key"}}')

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "Must provide an API key.*Give an api_key"),
        (504, "in time .*; raise timeout="),
        (500, "reports an error: UnexpectedResponse"),
    ],
)
def test_errors_of_a_server_say_what_to_do(server, status, message):
    with pytest.raises(StorageError, match=message):
        indexes.Qdrant(url=f"{server}/{status}", api_key="wrong")


def test_no_server():
    with pytest.raises(StorageError, match=r"answers at http://127.0.0.1:9 .*check the url"):
        indexes.Qdrant(url="http://127.0.0.1:9")


def test_folders_that_hold_something_else_stay_as_they_are(tmp_path):
    indexes.Flat(tmp_path / "flat").close()
    before = sorted((tmp_path / "flat").iterdir())
    with pytest.raises(IndexFormatError, match=r"local mode: it holds catalog\.sqlite"):
        indexes.Qdrant(tmp_path / "flat")
    assert sorted((tmp_path / "flat").iterdir()) == before
    with pytest.raises(StorageError, match=r"catalog\.sqlite"):
        indexes.Qdrant(tmp_path / "flat/catalog.sqlite")
