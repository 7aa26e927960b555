"""What other people's clients send: rerank interfaces, pages of results, proxies, names of indexes, wrong bodies."""

import asyncio
import socket
import threading
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from latelier.errors import InvalidArgumentError
from latelier.indexes import Flat
from latelier.retrieve import Retriever, read_documents
from latelier.serve import Limits, create_app
from latelier.serve.queues import Metrics, Service

DOCUMENTS = ["Kings ruled before the republic.", "Bananas are a healthy fruit."]
# As litellm sends a request, langchain-community one to Jina, and Cohere's own client one of its second version.
LITELLM = {
    "model": "rerank-english-v3.0",
    "top_n": 2,
    "return_documents": True,
    "rank_fields": None,
    "max_chunks_per_doc": None,
}
JINA = {"model": "jina-reranker-v2-base-multilingual", "top_n": 2}
COHERE = {"model": "rerank-v3.5", "top_n": None, "max_tokens_per_doc": 4096}


@pytest.fixture
def client(retriever):
    with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("body", [LITELLM, JINA, COHERE], ids=["litellm", "jina", "cohere"])
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_bodies_of_common_rerank_clients_are_answered(client, path, body):
    answer = client.post(path, json={"query": "healthy fruit", "documents": DOCUMENTS, **body})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [each["index"] for each in told["results"]] == [1, 0]
    assert told["model"] == "records"
    if body.get("return_documents"):
        assert told["results"][0]["document"]["text"] == DOCUMENTS[1]


def test_documents_of_rerank_may_have_other_fields_and_a_smaller_limit_of_tokens_is_refused(client):
    asked = {"query": "healthy fruit", "documents": [{"text": text, "url": "x"} for text in DOCUMENTS]}
    assert client.post("/v1/rerank", json=asked).json()["results"][0]["index"] == 1
    refused = client.post("/v1/rerank", json={**asked, "max_tokens_per_doc": 10})
    assert refused.status_code == 422
    assert "max_tokens_per_doc=10" in refused.json()["error"]["message"]


def test_mean_scores_are_between_0_and_1(retriever):
    asked = {"query": "healthy fruit", "documents": DOCUMENTS}
    with TestClient(create_app({"records": retriever}, mean_scores=True), base_url="http://localhost") as client:
        means = client.post("/v1/rerank", json=asked).json()["results"]
        sums = client.post("/v1/rerank", json={**asked, "mean_scores": False}).json()["results"]
    tokens = len(retriever.query_model.encode_queries(["healthy fruit"])[0])
    for mean, total in zip(means, sums, strict=True):
        assert mean["relevance_score"] == pytest.approx(total["relevance_score"] / tokens)
        assert 0 <= mean["relevance_score"] <= 1
    assert sums[0]["relevance_score"] > 1


def test_offset_gives_the_results_after_those_that_were_shown(client):
    def ids(**options):
        body = {"query": "healthy fruit", "include": ["text", "excerpt"], **options}
        (found,) = client.post("/v1/indexes/records/search", json=body).json()["results"]
        assert all(each["excerpt"]["text"] in each["text"] for each in found)
        return [each["id"] for each in found]

    every = ids(k=3)
    assert len(every) == 3
    assert ids(k=1) + ids(k=2, offset=1) == every
    assert ids(k=2, offset=3) == []


@pytest.mark.parametrize("prefix", ["", "/search"], ids=["taken off", "left"])
def test_below_the_path_of_a_proxy(retriever, prefix):
    with TestClient(create_app({"records": retriever}, root_path="/search/"), base_url="http://localhost") as client:
        assert client.get(f"{prefix}/v1/indexes").json()[0]["name"] == "records"
        page = client.get(f"{prefix}/").text
        assert 'src="page/app.js"' in page
        assert client.get(f"{prefix}/page/app.js").status_code == 200
        missing = client.get(f"{prefix}/nothing/here", headers={"accept": "text/html"})
        assert missing.status_code == 404
        assert 'href="/search/page/style.css"' in missing.text
    with pytest.raises(InvalidArgumentError, match="root_path='search'"):
        create_app({"records": retriever}, root_path="search")


def test_an_index_of_the_folder_for_new_ones_is_deleted_and_no_other(retriever, tmp_path, minilm):
    new = tmp_path / "new"
    kept = Retriever(minilm, Flat(tmp_path / "kept"), device="cpu")
    app = create_app({"records": retriever, "kept": kept}, new_indexes=new)
    with kept, TestClient(app, base_url="http://localhost") as client:
        assert client.post("/v1/indexes", json={"name": "mine"}).status_code == 201
        body = {"documents": [{"id": "a", "text": "Bananas."}]}
        assert client.post("/v1/indexes/mine/documents", json=body).status_code == 201
        assert client.delete("/v1/indexes/mine").json() == {"name": "mine", "documents": 1}
        assert list(new.iterdir()) == []
        assert client.delete("/v1/indexes/mine").status_code == 404
        for name in ("records", "kept"):
            refused = client.delete(f"/v1/indexes/{name}")
            assert refused.status_code == 403
            assert name in refused.json()["error"]["message"]
        assert (tmp_path / "kept").is_dir()
        assert [each["name"] for each in client.get("/v1/indexes").json()] == ["records", "kept"]
        assert client.get("/metrics").status_code == 200
        assert client.post("/v1/indexes", json={"name": "mine"}).status_code == 201


@pytest.mark.parametrize("name", ["con", "NUL.txt", "com1", "LPT9.a.b", "x" * 101, "a.", ".a", "..", "", "a b", "é"])
def test_names_that_no_folder_may_have_everywhere_are_refused(retriever, name):
    with pytest.raises(InvalidArgumentError, match="as the name of an index"):
        create_app({name: retriever})


@pytest.mark.parametrize("name", ["x" * 100, "console", "my-index_2.v1"])
def test_names_of_100_letters_are_taken(retriever, name):
    with TestClient(create_app({name: retriever}), base_url="http://localhost") as client:
        assert [each["name"] for each in client.get("/v1/indexes").json()] == [name]


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ([1, 2], ["a list of 2", "an object", "query"]),
        ({"query": "a", "mode": "keyword"}, ["'keyword'", "'vectors'", "Did you mean 'keywords'?"]),
        ({"query": 5}, ["received 5", "a text or a list"]),
        ({"query": "a", "k": "many"}, ["body.k", "'many'", "an integer"]),
        ({"query": "a", "k": 0}, ["received 0", "at least 1"]),
        ({"query": "a", "offset": -1}, ["received -1", "at least 0"]),
        ({"query": "a", "top_k": 3}, ["'top_k'", "Did you mean 'k'?"]),
        ({"query": "a", "min_score": "high"}, ["'high'", "a number"]),
        ({"query": "a", "whole_query": 7.5}, ["7.5", "true or false"]),
    ],
)
def test_a_wrong_body_is_told_in_words(client, body, facts):
    answer = client.post("/v1/indexes/records/search", json=body)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 422
    assert all(fact in message for fact in facts), message
    assert "nput should" not in message


def test_an_address_without_anything_says_where_the_addresses_are(client):
    answer = client.post("/v1/embeddings", json={"input": ["a"]})
    assert answer.status_code == 404
    assert "'/v1/embeddings'" in answer.json()["error"]["message"]
    assert "POST" in client.get("/v1/rerank").json()["error"]["message"]


def test_looking_at_an_index_does_not_wait_for_its_searches(retriever):
    async def main():
        done = threading.Event()
        async with Service("records", retriever, Limits(), Metrics()) as service:
            busy = [asyncio.create_task(service.ask(lambda own: done.wait(60))) for _ in range(20)]
            await asyncio.sleep(0.1)
            assert await service.look(len) == 3
            assert not any(task.done() for task in busy)
            done.set()
            await asyncio.gather(*busy)

    asyncio.run(main())


def test_the_answer_to_a_body_that_is_too_large_arrives(start, folder, shallow):
    server = start(folder, "--model", shallow, "--device", "cpu", "--no-log")
    address = urlsplit(server.url)
    size = 40 << 20
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        head = f"POST /v1/indexes/records/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(40):
            connection.sendall(b"x" * (1 << 20))
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"larger than 16,777,216 bytes" in answer


def test_options_of_add_are_never_ignored(retriever, tmp_path):
    (tmp_path / "a.md").write_text("The first text.")
    with pytest.raises(InvalidArgumentError, match=r"'batchsize'.*'batch_size'"):
        retriever.add(["x"], batchsize=3)
    with pytest.raises(InvalidArgumentError, match="skip_existing=True"):
        retriever.add(tmp_path, skip_existing=True)
    retriever.add(tmp_path / "a.md")
    (tmp_path / "a.md").write_text("The second text.")
    retriever.add(read_documents(tmp_path / "a.md"), skip_existing=True)
    assert "The first text." in retriever.documents["a.md"].text
