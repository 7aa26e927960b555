"""The REST interface over a real retriever, without a network."""

import base64
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from PIL import Image

from image_models import pictures, save_image_model
from latelier.errors import InvalidArgumentError
from latelier.indexes import IVF, Flat, Hit
from latelier.reading.images import Picture
from latelier.retrieve import Retriever
from latelier.scores import colbert_scores
from latelier.serve import Access, Limits, create_app

INDEX = "/v1/indexes/records"
READ, WRITE = "r" * 20, "w" * 20


@pytest.fixture
def client(retriever):
    with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        yield client


def post(client, path, body, status=200):
    answer = client.post(INDEX + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def error(answer, status):
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    return answer.json()["error"]


def test_search_returns_what_the_retriever_finds(client, retriever):
    (found,) = post(client, "/search", {"query": "apples", "k": 2})["results"]
    expected = retriever.search("apples", 2)
    assert [result["id"] for result in found] == [result.id for result in expected]
    assert [result["text"] for result in found] == [result.text for result in expected]
    assert [result["metadata"] for result in found] == [result.metadata for result in expected]
    np.testing.assert_allclose([r["score"] for r in found], [r.score for r in expected], rtol=1e-5)


def test_several_queries_filters_and_fields(client):
    body = {"query": ["apples", "planets"], "filter": "year > ?", "parameters": [2020], "include": []}
    results = post(client, "/search", body)["results"]
    assert [{hit["id"] for hit in found} for found in results] == [{"moon", 7}, {"moon", 7}]
    assert all(hit["text"] is None and hit["metadata"] is None for found in results for hit in found)


def test_queries_as_vectors(client, retriever):
    vectors = [retriever.model.encode_query(["apples"])[0].tolist()]
    by_vectors = post(client, "/search", {"vectors": vectors, "k": 1})["results"][0][0]
    by_text = post(client, "/search", {"query": "apples", "k": 1, "mode": "vectors"})["results"][0][0]
    assert by_vectors["id"] == by_text["id"]
    assert by_vectors["score"] == pytest.approx(by_text["score"], rel=1e-5)


def test_the_default_is_hybrid_for_texts_and_vectors_for_vectors(client, retriever):
    by_default = post(client, "/search", {"query": "far apples"})
    by_both = post(client, "/search", {"query": "far apples", "mode": "hybrid"})
    by_vectors = post(client, "/search", {"query": "far apples", "mode": "vectors"})
    assert by_default["results"] == by_both["results"] != by_vectors["results"]
    assert [each["mode"] for each in (by_default, by_both, by_vectors)] == ["hybrid", "hybrid", "vectors"]
    vectors = [retriever.model.encode_query(["apples"])[0].tolist()]
    assert post(client, "/search", {"vectors": vectors})["mode"] == "vectors"
    assert post(client, "/search", {"query": "apples", "fusion": "rrf"})["mode"] == "hybrid"
    refused = error(client.post(f"{INDEX}/search", json={"query": "apples", "min_score": 0.5}), 422)
    assert "min_score=0.5" in refused["message"]
    assert client.get(INDEX).json()["has_words"] is True


def test_a_response_says_how_long_each_stage_took(client):
    answer = client.post(f"{INDEX}/search", json={"query": ["apples", "planets"], "k": 2})
    milliseconds = answer.json()["milliseconds"]
    assert list(milliseconds) == ["queue", "encode", "search", "read", "total"]
    assert 0 < sum(milliseconds[stage] for stage in ("encode", "search", "read")) < milliseconds["total"]
    timing = [entry.split(";dur=") for entry in answer.headers["server-timing"].split(", ")]
    assert {stage: float(time) for stage, time in timing} == milliseconds
    keywords = post(client, "/search", {"query": "apples", "mode": "keywords"})
    assert "encode" not in keywords["milliseconds"]
    assert post(client, "/search", {"query": []}) == {
        "mode": None,
        "results": [],
        "unread": [],
        "milliseconds": {},
    }
    metrics = client.get("/metrics").text
    assert 'latelier_stage_seconds_count{index="records",stage="read"} 2.0' in metrics
    assert 'latelier_stage_seconds_count{index="records",stage="encode"} 1.0' in metrics


def test_documents_that_are_stored_as_passages_are_documents(shallow):
    retriever = Retriever(shallow, device="cpu")
    text = "Pears ripen in September. " * 12 + "Kings ruled."
    retriever.add([{"id": "long", "text": text, "year": 2020}, {"id": 7, "text": "Seven."}], passages=40)
    with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        (found,) = post(client, "/search", {"query": "the republic and its kings", "k": 2})["results"]
        assert [hit["id"] for hit in found] == ["long", 7]
        assert text[found[0]["start"] : found[0]["end"]] == found[0]["text"]
        assert client.get(f"{INDEX}/documents/long").json() == {"id": "long", "text": text, "metadata": {"year": 2020}}
        assert [each["id"] for each in post(client, "/documents/get", {"ids": [7, "long"]})] == [7, "long"]
        assert client.get(f"{INDEX}/documents/7").json()["id"] == 7
        assert "is_found" in post(client, "/why-not", {"query": "kings", "id": "7"})
        assert client.delete(f"{INDEX}/documents/long").json()["documents"] == 1
        error(client.get(f"{INDEX}/documents/long"), 404)


def test_fields_and_ids_count_documents_whether_they_are_whole_or_passages(client, shallow):
    fields = client.get(f"{INDEX}/fields").json()
    values = [{"value": year, "documents": 1} for year in (2019, 2021, 2023)]
    year = {"field": "year", "values": values, "is_complete": True, "least": 2019, "greatest": 2023}
    assert fields == [{**year, "has_lists": False}]
    assert client.get(f"{INDEX}/ids?contains=OO&limit=2").json() == ["moon"]
    with Retriever(shallow, device="cpu") as retriever:
        long = {"text": "The moon is far away. " * 40, "lang": "en"}
        retriever.add([{"id": "a", **long}, {"id": "b", **long}, {"id": 3, "text": "x", "lang": 1}], passages=32)
        retriever.add([{"id": f"{i}", "text": "x", "sum": i / 2} for i in range(21)])
        assert retriever.index.statistics().passages > 12
        assert len(retriever.documents) == 24
        with TestClient(create_app({"records": retriever}), base_url="http://localhost") as parts:
            lang, total = parts.get(f"{INDEX}/fields").json()
            begun = parts.get(f"{INDEX}/fields", params={"field": "Sum", "prefix": "1."}).json()
            found = parts.get(f"{INDEX}/ids", params={"contains": ""}).json()
    values = [{"value": "en", "documents": 2}, {"value": 1, "documents": 1}]
    whole = {"is_complete": True, "has_lists": False}
    assert lang == {"field": "lang", "values": values, **whole, "least": None, "greatest": None}
    many = [{"value": i / 2, "documents": 1} for i in range(20)]
    assert total == {"field": "sum", "values": many, **whole, "is_complete": False, "least": 0.0, "greatest": 10.0}
    assert begun == [{**total, "values": many[2:4], "is_complete": True, "least": 1.0, "greatest": 1.5}]
    assert found == ["a", "b", "3", *map(str, range(17))]


def test_documents_are_added_replaced_read_and_removed(client):
    document = {"id": "pear", "text": "Pears are ripe in autumn.", "title": "Pears", "metadata": {"year": 2024}}
    assert post(client, "/documents", {"documents": [document]}, 201) == {
        "changed": 1,
        "documents": 4,
        "ids": ["pear"],
    }
    stored = client.get(f"{INDEX}/documents/pear").json()
    assert stored == {"id": "pear", "text": "Pears Pears are ripe in autumn.", "metadata": {"year": 2024}}
    named = {**document, "metadata": {"image": "/etc/secret.png", "checksum": "0"}}
    refused = client.put(f"{INDEX}/documents", json={"documents": [named]})
    assert (refused.status_code, "opens no path that a client names" in refused.text) == (422, True)
    document["text"] = "Pears are green."
    changed = client.put(f"{INDEX}/documents", json={"documents": [document]})
    assert changed.json() == {"changed": 1, "documents": 4, "ids": ["pear"]}
    assert post(client, "/documents/get", {"ids": ["pear", 7]})[0]["text"] == "Pears Pears are green."
    assert client.delete(f"{INDEX}/documents/pear").json()["documents"] == 3
    assert post(client, "/documents/delete", {"ids": [7]}) == {"changed": 1, "documents": 2, "ids": [7]}
    assert error(client.get(f"{INDEX}/documents/pear"), 404)["type"] == "UnknownIdError"


def test_other_keys_of_a_document_are_metadata_and_a_missing_id_is_made(client):
    documents = [{"text": "Pears.", "year": 2024, "metadata": {"lang": "en"}}, {"_id": "fig", "text": "Figs."}]
    documents += [{"text": "Plums."}]
    assert post(client, "/documents", {"documents": documents}, 201)["ids"] == [8, "fig", 9]  # 7 was the largest
    stored = post(client, "/documents/get", {"ids": [8, "fig", 9]})
    assert [each["metadata"] for each in stored] == [{"year": 2024, "lang": "en"}, {}, {}]
    named = client.post(f"{INDEX}/documents", json={"documents": [{"text": "x", "image": "/a.png", "checksum": "0"}]})
    assert "opens no path that a client names" in error(named, 422)["message"]
    without = client.put(f"{INDEX}/documents", json={"documents": [{"text": "Pears."}]})
    assert "id" in error(without, 422)["message"]


@pytest.mark.parametrize("passages", [None, 16])
def test_documents_are_listed_with_a_cursor(shallow, passages):
    with Retriever(shallow, device="cpu") as retriever:
        retriever.add([("a", "Bananas are healthy."), (1, "One."), ("1", "Text."), ("d", "Moon.")], passages=passages)
        with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
            listed, after, calls = [], None, 0
            while calls == 0 or after is not None:
                page = client.get(
                    f"{INDEX}/documents", params={"limit": 2, **({"after": after} if after else {})}
                ).json()
                listed += [(each["id"], each["text"]) for each in page["documents"]]
                after = page["after"]
                calls += 1
            assert (listed, calls) == ([("a", "Bananas are healthy."), (1, "One."), ("1", "Text."), ("d", "Moon.")], 2)
            for wrong in ('"gone"', "x", "true"):
                answer = client.get(f"{INDEX}/documents", params={"after": wrong})
                assert "after which no document stands" in error(answer, 422)["message"]


def test_results_say_that_they_are_weak(shallow):
    with Retriever(shallow, device="cpu") as retriever:
        retriever.add(f"Ship {number} came from port {number} with rice and tea." for number in range(20))
        retriever.learn_weak()
        with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
            queries = ["Ship 7 came from port 7", "love and jealousy"]
            found = post(client, "/search", {"query": queries})["results"]
            assert found[0][0]["mean_score"] is None
            assert [all(each["weak"] for each in results) for results in found] == [False, True]
            assert post(client, "/search", {"query": "rice", "mode": "keywords"})["results"][0][0]["weak"] is False
            assert post(client, "/search", {"vectors": [np.eye(2, 384).tolist()]})["results"][0][0]["weak"] is None


def test_an_index_is_made_filled_and_found_again(retriever, tmp_path):
    with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        assert "makes no indexes" in error(client.post("/v1/indexes", json={"name": "new"}), 403)["message"]
    app = create_app({"records": retriever}, new_indexes=tmp_path)
    with TestClient(app, base_url="http://localhost") as client:
        made = client.post("/v1/indexes", json={"name": "new"})
        assert (made.status_code, made.json()["documents"]) == (201, 0)
        for name, status in (("new", 409), ("records", 409), ("a/b", 422), ("..", 422)):
            error(client.post("/v1/indexes", json={"name": name}), status)
        added = client.post("/v1/indexes/new/documents", json={"documents": [{"text": "Pears."}, {"text": "The sea."}]})
        assert added.json()["ids"] == [0, 1]
        found = client.post("/v1/indexes/new/search", json={"query": "pears", "k": 1}).json()["results"]
        assert found[0][0]["text"] == "Pears."
        assert [each["name"] for each in client.get("/v1/indexes").json()] == ["records", "new"]
    with IVF(tmp_path / "new") as stored:
        assert len(stored) == 2


def test_an_id_in_an_address_is_the_string_and_else_the_integer(client):
    assert client.get(f"{INDEX}/documents/7").json()["id"] == 7
    post(client, "/documents", {"documents": [{"id": "7", "text": "Another seven."}]}, 201)
    assert client.get(f"{INDEX}/documents/7").json()["id"] == "7"
    for id in ("a/b?c#d", "end\n", "a/b\r\n/c"):
        post(client, "/documents", {"documents": [{"id": id, "text": "An odd id."}]}, 201)
        address = f"{INDEX}/documents/{quote(id, safe='')}"
        assert client.get(address).json()["id"] == id
        assert client.delete(address).json()["documents"] == 4


def nested(levels):
    value = 1
    for _ in range(levels - 1):  # the metadata is the outermost level
        value = [value]
    return {"deep": value}


def test_metadata_that_is_nested_too_deeply_is_not_stored(client):
    for levels in (101, 300):
        body = {"documents": [{"id": "deep", "text": "A deep one.", "metadata": nested(levels)}]}
        message = error(client.post(f"{INDEX}/documents", json=body), 422)["message"]
        assert "document 'deep' is nested too deeply: lists and dicts may be nested 100 levels deep; flatten" in message
    body["documents"][0]["metadata"] = nested(100)
    post(client, "/documents", body, 201)
    assert post(client, "/search", {"query": "a deep one", "k": 1})["results"][0][0]["metadata"] == nested(100)


def test_nothing_is_stored_of_a_request_with_a_faulty_document(client):
    body = {"documents": [{"id": "new", "text": "A new one."}, {"id": "moon", "text": "A second moon."}]}
    answer = error(client.post(f"{INDEX}/documents", json=body), 409)
    assert answer["type"] == "DuplicateIdError"
    assert answer["message"] == (
        "documents[1]: id 'moon' is in the index already. PUT replaces documents; leave out those that are to stay as "
        "they are stored."
    )
    assert client.get(INDEX).json()["documents"] == 3


def test_the_passage_that_a_search_found_is_explained_and_its_snippet_holds_what_matched(shallow):
    filler = "Kings ruled before the republic and nobody knows why. " * 12
    with Retriever(shallow, device="cpu") as retriever:
        retriever.add([("a", f"{filler}Bananas are healthy. {filler}")], passages=64)
        with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
            asked = {"query": "healthy fruit", "k": 1, "mode": "vectors", "include": ["text", "excerpt"]}
            (found,) = post(client, "/search", asked)["results"][0]
            body = {"query": "healthy fruit", "ids": ["a", "a"], "starts": [found["start"], 0]}
            best, first = post(client, "/explain", body)
            assert (best["text"], best["score"]) == (found["text"], pytest.approx(found["score"], abs=1e-4))
            assert first["text"].startswith("Kings")
            assert first["score"] < best["score"]
            assert found["excerpt"] == best["excerpt"]
            start, end = best["excerpt"]["start"], best["excerpt"]["end"]
            assert "Bananas are healthy." in best["text"][start:end]
            assert end - start <= 260
            answer = client.post(f"{INDEX}/explain", json=body | {"starts": [0]})
            assert "1 starts for 2 ids" in error(answer, 422)["message"]


def test_several_documents_are_explained_with_one_encoding_of_the_query(client, retriever, monkeypatch):
    encoded, encode = [], retriever.query_model.encode_queries

    def counted(texts, **options):
        encoded.append(texts)
        return encode(texts, **options)

    monkeypatch.setattr(retriever.query_model, "encode_queries", counted)
    explained = post(client, "/explain", {"query": "healthy apples", "ids": [7, "fruit", "moon"]})
    assert encoded == [["healthy apples"]]
    for explanation, id in zip(explained, (7, "fruit", "moon"), strict=True):
        expected = retriever.explain("healthy apples", id)
        assert (explanation["id"], explanation["text"]) == (id, expected.text)
        assert explanation["score"] == pytest.approx(expected.score)
    (spelled,) = post(client, "/explain", {"query": "healthy apples", "ids": ["7"]})
    assert spelled["id"] == 7
    unknown = client.post(f"{INDEX}/explain", json={"query": "apples", "ids": ["moon", "nothing"]})
    advice = "Search returns the ids of what it finds (1 is not '1')."
    assert error(unknown, 404)["message"] == f"no document has the id 'nothing'. {advice}"


def test_rerank_has_the_form_of_the_common_interfaces(client, retriever):
    documents = ["The moon is far away.", {"text": "Apples are fruit."}, "Seven kings."]
    body = {"query": "bananas", "documents": documents, "top_n": 2, "return_documents": True}
    answer = client.post("/v1/rerank", json=body).json()
    query = retriever.model.encode_query(["bananas"])[0]
    texts = ["The moon is far away.", "Apples are fruit.", "Seven kings."]
    scores = colbert_scores([query], retriever.model.encode_document(texts))[0]
    best = scores.argsort(descending=True)[:2].tolist()
    assert [result["index"] for result in answer["results"]] == best
    np.testing.assert_allclose([r["relevance_score"] for r in answer["results"]], scores[best].numpy(), rtol=1e-4)
    assert answer["results"][0]["document"] == {"text": texts[best[0]]}


def test_texts_that_are_longer_than_the_model_reads_are_told(client):
    """Each word is a token, and two more are special; queries are read up to 512 of them, documents up to 350."""
    assert post(client, "/search", {"query": ["pear " * 600, "pear"]})["unread"] == [90, 0]
    assert post(client, "/search", {"query": "pear " * 600, "mode": "keywords"})["unread"] == [0]
    longer = client.post(f"{INDEX}/search", json={"query": "pear " * 600, "whole_query": True})
    assert "90 tokens longer than the model can read at all" in error(longer, 422)["message"]
    body = {"query": "pear", "documents": ["pear " * 348, {"text": "pear " * 349}]}
    assert client.post("/v1/rerank", json=body).json()["cut"] == [1]


TEXTS = ["a pear", "Kings ruled before the republic. " * 5, "moon"]


@pytest.mark.parametrize("input_type", ["query", "document"])
def test_texts_are_encoded_as_the_model_encodes_them(client, retriever, input_type):
    expected = getattr(retriever.model, f"encode_{input_type}")(TEXTS)
    body = {"texts": TEXTS, "input_type": input_type}
    as_json = client.post("/v1/encode", json=body).json()
    assert (as_json["model"], as_json["dims"], as_json["dtype"]) == ("records", 384, "float32")
    encoded = client.post("/v1/encode", json={**body, "format": "base64"}).json()["embeddings"]
    packed = client.post("/v1/encode", json=body, headers={"accept": "application/octet-stream"})
    arrays = safetensors.numpy.load(packed.content)
    for i, matrix in enumerate(expected):
        from_base64 = np.frombuffer(base64.b64decode(encoded[i]), "<f4").reshape(-1, 384)
        start, end = arrays["offsets"][i : i + 2]
        for vectors in (as_json["embeddings"][i], from_base64, arrays["vectors"][start:end]):
            np.testing.assert_allclose(vectors, matrix.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected either query or vectors"),
        ({"query": "a", "vectors": [[[1.0]]]}, "expected either query or vectors"),
        ({"query": "a", "k": 0}, "body.k: "),
        ({"query": "a", "unknown": 1}, "received 'unknown', which is no name here. Accepted are k, mode"),
        ({"q": "a"}, "received 'q', which is no name here. Did you mean 'query'?"),
        ({"text": "a"}, "Did you mean 'query'?"),
        ({"query": "a", "top_k": 3}, "Did you mean 'k'?"),
        ({"query": "a", "filter": {"year": 2020}}, "as a filter; give an SQL expression such as"),
        ({"query": "a", "filter": "year = ?", "parameters": 2020}, "received int as the filter's parameters; give a"),
        ({"query": "a", "filter": "yera > 1"}, "unknown field 'yera'"),
        ({"query": "a", "filter": "1; DROP TABLE document"}, "rejected"),
        ({"vectors": [[[1.0, 2.0]]]}, "dim"),
        ({"vectors": [[[0.1] * 384], [[3e38] * 384]]}, "query 1 has a vector of length"),
    ],
)
def test_a_faulty_search_is_answered_with_what_is_wrong(client, body, message):
    assert message in error(client.post(f"{INDEX}/search", json=body), 422)["message"]


def test_unknown_addresses_and_methods_have_the_same_form_of_error(client):
    assert "records" in error(client.post("/v1/indexes/nothing/search", json={"query": "a"}), 404)["message"]
    error(client.get("/v1/nothing"), 404)
    error(client.patch(INDEX), 405)


def test_head_is_answered_like_get_without_the_body(client):
    for address in ("/health/live", "/", INDEX, "/metrics", "/page/style.css"):
        got, head = client.get(address), client.head(address)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert client.head(f"{INDEX}/search").status_code == client.get(f"{INDEX}/search").status_code == 405


def test_limits(retriever):
    limits = Limits(body_bytes=2000, batch=2, characters=50, hits=5)
    with TestClient(create_app({"records": retriever}, limits=limits), base_url="http://localhost") as client:
        for body in ({"query": ["a", "b", "c"]}, {"query": "x" * 51}, {"query": "a", "k": 6}):
            assert error(client.post(f"{INDEX}/search", json=body), 413)["type"] == "TooLargeError"
        large = json.dumps({"query": "a", "filter": "x" * 3000})
        assert "2,000 bytes" in error(client.post(f"{INDEX}/search", content=large), 413)["message"]
        streamed = client.post(f"{INDEX}/search", content=iter([large.encode()]))  # without a length
        assert "2,000 bytes" in error(streamed, 413)["message"]


def test_tokens(retriever):
    access = Access(READ, WRITE)
    document = {"documents": [{"id": "new", "text": "New."}]}
    with TestClient(create_app({"records": retriever}, access=access), base_url="http://localhost") as client:
        for path in ("/v1/indexes", "/metrics", f"{INDEX}/documents/moon"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"authorization": f"Bearer {READ}"}).status_code == 200
        for path in ("/health/live", "/health/ready", "/"):
            assert client.get(path).status_code == 200
        reader = client.post(f"{INDEX}/documents", json=document, headers={"authorization": f"Bearer {READ}"})
        assert "the one that was sent may only read" in error(reader, 401)["message"]
        for sent, said in ((None, "none was sent"), ("Bearer wrong", "is another"), ("Basic x", "another kind")):
            headers = {"authorization": sent} if sent else {}
            assert said in error(client.get("/v1/indexes", headers=headers), 401)["message"]
        writer = client.post(f"{INDEX}/documents", json=document, headers={"authorization": f"Bearer {WRITE}"})
        assert writer.status_code == 201


def test_a_name_that_cannot_stand_in_an_address_is_refused(retriever):
    with pytest.raises(InvalidArgumentError, match=r"received .my index. as the name"):
        create_app({"my index": retriever})


@pytest.mark.parametrize(
    "prefix", ["javascript:x/", " javascript:", "data:,", "vscode://file/", "//other/", "https://", "\\\\a"]
)
def test_titles_lead_to_addresses_of_http_and_paths_only(retriever, prefix):
    for known in ("", "/notes/", "notes/", "../a:b/", "?at=", "http://example.org", "HTTPS://example.org/?me=1&at="):
        create_app({"records": retriever}, link_prefix=known)
    with pytest.raises(InvalidArgumentError, match="http:// or https://"):
        create_app({"records": retriever}, link_prefix=prefix)


def test_a_read_only_index_takes_no_changes(folder, shallow):
    opened = Retriever.open(folder, model=shallow, device="cpu", read_only=True)
    with opened as retriever, TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        answer = client.delete(f"{INDEX}/documents/moon")
        assert error(answer, 403)["type"] == "ReadOnlyIndexError"
        assert client.get(INDEX).json()["documents"] == 3


def test_a_foreign_host_name_is_rejected_unless_other_machines_are_let_in(retriever):
    with TestClient(create_app({"records": retriever}), base_url="http://rebound.example") as client:
        assert "rebound.example" in error(client.get("/v1/indexes"), 400)["message"]
    app = create_app({"records": retriever}, access=Access(READ), loopback_only=False)
    with TestClient(app, base_url="http://search.example") as client:
        assert client.get("/health/live").status_code == 200


def test_cross_origin_requests_need_a_listed_origin(retriever):
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (("https://a.example",), "https://a.example")):
        app = create_app({"records": retriever}, access=Access(origins=origins))
        with TestClient(app, base_url="http://localhost") as client:
            answer = client.options(f"{INDEX}/search", headers=asked)
            assert answer.headers.get("access-control-allow-origin") == allowed


def test_every_answer_forbids_what_is_not_the_page_s_own(client):
    for answer in (client.get("/"), client.get("/v1/indexes"), client.get("/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_metrics_count_requests_and_batches(client):
    for _ in range(3):
        post(client, "/search", {"query": ["a", "b"]})
    client.request("MADE-UP", INDEX)
    lines = client.get("/metrics").text.splitlines()
    route = 'route="/v1/indexes/{index}/search"'
    assert f'latelier_requests_total{{method="POST",{route},status="200"}} 3.0' in lines
    assert 'latelier_batch_queries_sum{index="records"} 6.0' in lines
    assert 'latelier_documents{index="records"} 3.0' in lines
    assert any('method="other"' in line for line in lines)


def test_the_access_log_holds_neither_texts_nor_tokens(client, caplog):
    with caplog.at_level("INFO", logger="latelier.access"):
        client.get("/?q=secret-words", headers={"authorization": "Bearer secret-token"})
        post(client, "/search", {"query": "secret-words"})
    written = [json.loads(record.message) for record in caplog.records]
    assert [line["status"] for line in written] == [200, 200]
    assert "secret" not in caplog.text


def test_looking_up_and_explaining_do_not_wait_for_a_ranking(client, retriever, monkeypatch):
    at_work, release = threading.Event(), threading.Event()

    def rerank(*_):
        at_work.set()
        release.wait(30)
        return [Hit(0, 1.0)]

    monkeypatch.setattr(retriever, "rerank", rerank)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/v1/rerank", json={"query": "a", "documents": ["b"]})
        assert at_work.wait(30)
        try:
            assert client.get("/v1/indexes").json()[0]["documents"] == 3
            assert client.get(INDEX).json()["documents"] == 3
            assert client.get(f"{INDEX}/documents/moon").json()["id"] == "moon"
            assert post(client, "/documents/get", {"ids": [7]})[0]["id"] == 7
            assert client.get("/health/ready").status_code == 200
            assert post(client, "/explain", {"query": "a", "ids": [7]})[0]["id"] == 7
            assert post(client, "/why-not", {"query": "a", "id": 7})["is_found"]
            assert not slow.done()
        finally:
            release.set()
        assert slow.result().status_code == 200


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 422, "the body is no JSON: Expecting property name enclosed in double quotes at line 1, column 2."),
        (b'{"query": "\xff"}', 400, "the body is no text in UTF-8: invalid start byte at byte 11."),
        (b"[" * 5000 + b"]" * 5000, 400, "the body has too many lists and objects in one another; flatten it."),
        (b'{"query": ' + b"9" * 10_000 + b"}", 400, "the body has an integer of more than 4,300 digits; "),
    ],
)
def test_a_body_that_is_no_json_is_answered_with_the_reason_and_the_place(client, content, status, message):
    answer = client.post(f"{INDEX}/search", content=content, headers={"content-type": "application/json"})
    assert message in error(answer, status)["message"]


@pytest.mark.parametrize(
    ("header", "message"),
    [({}, "received no Content-Type; "), ({"content-type": "text/plain"}, "received Content-Type: text/plain; ")],
)
def test_a_body_of_another_type_is_answered_with_the_type_that_is_accepted(client, header, message):
    answer = client.post(f"{INDEX}/search", content=b'{"query": "a"}', headers=header)
    assert error(answer, 415)["message"] == f"{message}send Content-Type: application/json, and a body of JSON."


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/search", {"vectors": [[[{}] * 100_000]]}, "body.vectors.0.0.0: received an object; expected a number."),
        ("/documents/get", {"ids": [{}] * 100_000}, "body.ids.0: received an object; expected a text or an integer."),
        ("/documents/get", {"ids": [1] * 100_001}, "at most 100,000 items"),
        (
            "/search",
            {"query": "a", **{f"{i}": 0 for i in range(100_000)}},
            "body: received '0', which is no name here. Accepted are k,",
        ),
    ],
    ids=["vectors", "ids", "too many", "names"],
)
def test_of_many_wrong_parts_only_the_first_is_an_error(client, path, body, message):
    answer = error(client.post(INDEX + path, json=body), 422)["message"]
    assert message in answer
    assert answer.count("body") == 1  # the place of one error


def test_the_title_counts_as_part_of_the_text(retriever):
    with TestClient(
        create_app({"records": retriever}, limits=Limits(characters=50)), base_url="http://localhost"
    ) as client:
        for title, text in (("x" * 60, "a"), ("x" * 25, "y" * 25)):
            body = {"documents": [{"id": "new", "title": title, "text": text}]}
            assert error(client.post(f"{INDEX}/documents", json=body), 413)["type"] == "TooLargeError"
        body["documents"][0]["text"] = "y" * 24
        post(client, "/documents", body, 201)


def test_new_ids_are_of_at_most_1000_characters(client, retriever):
    body = {"documents": [{"id": "x" * 1001, "text": "A long id."}]}
    assert (
        "expected a text of at most 1,000 characters"
        in error(client.post(f"{INDEX}/documents", json=body), 422)["message"]
    )
    body["documents"][0]["id"] = "x" * 1000
    post(client, "/documents", body, 201)
    retriever.add([("y" * 1001, "A longer one.")])
    assert client.delete(f"{INDEX}/documents/{'y' * 1001}").status_code == 200


def test_a_picture_is_returned_by_id_while_its_file_is_the_same(tmp_path):
    path = tmp_path / "secret page.png"
    pictures()[0].save(path)
    stored = Picture.of(path).metadata
    other = tmp_path / "other.png"
    pictures()[1].save(other)
    retriever = Retriever(save_image_model("colqwen2", tmp_path / "model"), Flat(), device="cpu")
    vectors = retriever.query_model.model.loaded.encode_document(pictures()[:1], packed=True)
    for id, metadata in ((5, stored), ("guessed", {**stored, "image": str(other)}), ("text", {"image": str(other)})):
        retriever.index.add([id], vectors, ["A caption."], [metadata])
    with retriever, TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        answer = client.get(f"{INDEX}/pictures/5?size=64")
        assert (answer.headers["content-type"], Image.open(io.BytesIO(answer.content)).size) == ("image/jpeg", (64, 45))
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert error(client.get(f"{INDEX}/pictures/5?size=5000"), 422)
        (explained,) = post(client, "/explain", {"query": "a table", "ids": [5]})
        page = explained["page"]
        assert [each["word"] for each in page["maps"]] == ["(whole query)", "a", "table"]
        assert np.shape(page["maps"][1]["values"]) == (4, 5)
        path.write_bytes(other.read_bytes())
        for id in ("5", "guessed", "text", quote(str(other), safe="")):
            assert "secret" not in error(client.get(f"{INDEX}/pictures/{id}"), 404)["message"]
