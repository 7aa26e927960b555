"""The tools, called by the package's own client."""

import pytest
from anyio import run
from mcp import Client

from latelier.retrieve import Retriever
from latelier.serve import create_mcp_server

READING = {"list_indexes", "search", "get", "explain", "why_not"}
WRITING = {"add", "update", "remove"}


def with_client(server, session):
    async def main():
        async with Client(server) as client:
            return await session(client)

    return run(main)


def value(result):
    assert not result.is_error, result.content
    return result.structured_content["result"]


def test_the_tools_find_read_and_explain_documents(retriever):
    async def session(client):
        (index,) = value(await client.call_tool("list_indexes", {}))
        names = {"name": "records", "model": retriever.model_name, "document_model": None}
        assert index == {**names, "documents": 3, "fields": ["year"]}
        found = value(await client.call_tool("search", {"query": "healthy fruit", "k": 2}))
        by_both = retriever.search("healthy fruit", 2, mode="hybrid")
        assert [(hit["id"], hit["score"]) for hit in found] == [(hit.id, hit.score) for hit in by_both]
        assert found[0]["text"] == "Bananas are healthy."
        excerpt = found[0]["excerpt"]
        assert excerpt["text"] == "Bananas are healthy."
        assert "healthy" in [found[0]["text"][mark["start"] : mark["end"]] for mark in excerpt["marks"]]
        later = value(await client.call_tool("search", {"query": "fruit", "filter": "year > 2020"}))
        assert {hit["id"] for hit in later} == {"moon", 7}
        (seven,) = value(await client.call_tool("get", {"ids": [7]}))
        assert seven == {"id": 7, "text": "Seven kings ruled before the republic.", "metadata": {"year": 2023}}
        explained = value(await client.call_tool("explain", {"query": "healthy fruit", "id": "fruit"}))
        assert explained == repr(retriever.explain("healthy fruit", "fruit"))

    with_client(create_mcp_server({"records": retriever}), session)


def test_agents_are_told_that_nothing_matches_well(shallow):
    retriever = Retriever(shallow, device="cpu")
    retriever.add(f"Ship {number} came from port {number} with rice and tea." for number in range(20))
    retriever.learn_weak()

    async def session(client):
        for query, expected in (("Ship 7 came from port 7", {False}), ("love and jealousy", {True})):
            found = value(await client.call_tool("search", {"query": query, "k": 2}))
            assert {hit["weak"] for hit in found} == expected

    with_client(create_mcp_server({"ships": retriever}), session)


def test_writing_tools_exist_only_where_they_are_asked_for(retriever):
    async def names(client):
        listed = await client.list_tools()
        return {tool.name: tool.annotations.read_only_hint for tool in listed.tools}

    assert with_client(create_mcp_server({"records": retriever}), names) == dict.fromkeys(READING, True)
    both = with_client(create_mcp_server({"records": retriever}, writable=True), names)
    assert both == dict.fromkeys(READING, True) | dict.fromkeys(WRITING, False)


def test_documents_are_added_replaced_and_removed(retriever):
    pear = {"id": "pear", "text": "Pears are ripe.", "metadata": {"year": 2024}}

    async def session(client):
        added = await client.call_tool("add", {"documents": [pear]})
        assert value(added) == "done; the index has 4 documents now"
        await client.call_tool("update", {"documents": [{**pear, "text": "Pears are green."}]})
        assert value(await client.call_tool("get", {"ids": ["pear"]}))[0]["text"] == "Pears are green."
        assert value(await client.call_tool("remove", {"ids": ["pear", 7]})) == "done; the index has 2 documents now"

    with_client(create_mcp_server({"records": retriever}, writable=True), session)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": "a", "filter": "yera > 1"}, "unknown field 'yera'. Did you mean 'year'?"),
        ("search", {"query": "a", "index": "other"}, "there are: 'records'"),
        ("get", {"ids": ["nothing"]}, "no document has the id 'nothing'. search returns the ids of what it finds"),
        ("add", {"documents": [{"id": "moon", "text": "A moon."}]}, "'moon' is in the index already. update replaces"),
        ("remove", {"ids": ["moon", "nothing"]}, "'nothing'"),
        (
            "search",
            {"query": "a", "limit": 3, "filters": "year > 1"},
            "received 'limit', 'filters'; expected no other names than 'query', 'index', 'k', 'offset', 'filter', ",
        ),
        (
            "add",
            {"documents": [{"id": "d", "text": "dog", "metadata": {}, "title": "x", "year": 2024}]},
            "received 'title', 'year'; expected no other names than 'id', 'text', 'metadata'",
        ),
        ("add", {"documents": [{"id": True, "text": "dog"}]}, "a text or an integer"),
        ("remove", {"ids": [True]}, "a text or an integer"),
        ("explain", {"query": "dog", "id": True}, "a text or an integer"),
    ],
)
def test_errors_come_back_with_the_cure_and_the_server_goes_on(retriever, tool, arguments, message):
    retriever.add([{"id": 1, "text": "One."}])  # True is 1, but no id

    async def session(client):
        failed = await client.call_tool(tool, arguments)
        assert failed.is_error
        assert message in failed.content[0].text
        assert value(await client.call_tool("list_indexes", {}))[0]["documents"] == 4

    with_client(create_mcp_server({"records": retriever}, writable=True), session)


@pytest.mark.parametrize("mode", ["vectors", "keywords", "hybrid", "rerank"])
def test_documents_that_cannot_be_explained_are_marked_by_the_words_of_the_query(shallow, mode):
    with Retriever(shallow, device="cpu") as pooled:
        pooled.add([("moon", "The moon is far away from the earth."), ("fruit", "Ripe bananas.")], pool_factor=2)

        async def session(client):
            found = value(await client.call_tool("search", {"query": "the moon", "k": 1, "mode": mode}))
            (hit,) = found
            marked = [hit["text"][mark["start"] : mark["end"]] for mark in hit["excerpt"]["marks"]]
            assert (hit["id"], "moon" in marked) == ("moon", True)

        with_client(create_mcp_server({"records": pooled}), session)


def test_a_document_without_a_text_takes_no_marks_from_the_others(retriever):
    vectors = retriever.model.encode_document(["The moon and the earth."])[0]
    retriever.index.add("bare", vectors)

    async def session(client):
        found = value(await client.call_tool("search", {"query": "the moon and the earth", "k": 2}))
        excerpts = {hit["id"]: hit["excerpt"] for hit in found}
        assert (excerpts["bare"]["text"], excerpts["bare"]["marks"]) == ("", [])
        assert "moon" in excerpts["moon"]["text"]

    with_client(create_mcp_server({"records": retriever}), session)
