"""One search on every surface: the command line, a notebook, REST, agents and the page show the same excerpts."""

import json
import re
import shutil
from html import unescape

import pytest
from anyio import run as run_async
from fastapi.testclient import TestClient
from mcp import Client
from typer.testing import CliRunner

from latelier.cli import app
from latelier.retrieve import Retriever
from latelier.serve import create_app, create_mcp_server
from serve.conftest import Process

QUESTION = "what did the ship bring to the market?"
HARBOUR = """---
title: The harbour
tags: [goods]
---

# The harbour

The harbour was quiet.

## Trade

- Rice was brought by the third ship, which went to the market.
- Tea was not.
"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def notes(minilm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("surfaces")
    (folder / "files").mkdir()
    (folder / "files" / "harbour.md").write_text(HARBOUR)
    moon = "The moon is far away, and nobody has been there since.\nIt is made of rock.\n"
    (folder / "files" / "moon.txt").write_text(moon)
    (folder / "files" / "prices.csv").write_text("goods,price\nrice of the market,3\ntea,4\n")
    with Retriever(minilm, folder / "index", device="cpu") as retriever:
        retriever.synchronise(folder / "files")
    return folder / "index"


@pytest.fixture(scope="module")
def expected(minilm, notes):
    with Retriever(minilm, notes, device="cpu") as retriever:
        results = retriever.search(QUESTION, k=3)
        excerpts = [(result, results.excerpt(result)) for result in results]
        return [(result.id, result.text, excerpt.as_json()) for result, excerpt in excerpts]


def words(text, excerpt):
    """The words that are marked within the excerpt."""
    return [
        text[mark["start"] : mark["end"]]
        for mark in excerpt["marks"]
        if excerpt["start"] <= mark["start"] and mark["end"] <= excerpt["end"]
    ]


def test_what_is_marked_are_words_that_say_something(expected):
    (_, text, excerpt) = next(each for each in expected if each[0] == "harbour.md")
    assert words(text, excerpt) == ["brought", "ship", "market"]
    assert excerpt["text"] == (
        "The harbour was quiet. · Trade · Rice was brought by the third ship, which went to the market. · Tea was not."
    )
    assert (excerpt["title"], excerpt["place"]) == ("The harbour", "line 12")


def test_the_command_line_shows_them(notes, minilm, expected):
    arguments = ["search", str(notes), QUESTION, "-k", "3", "--model", str(minilm), "--device", "cpu"]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [(each["id"], each["text"], each["excerpt"]) for each in told["results"]] == expected
    printed = CliRunner().invoke(app, arguments).stdout
    for _, _, excerpt in expected:
        assert re.sub(r"\s+", " ", excerpt["text"]) in re.sub(r"\s+", " ", printed)


def test_a_notebook_shows_them(notes, minilm, expected):
    with Retriever(minilm, notes, device="cpu") as retriever:
        shown = retriever.search(QUESTION, k=3)._repr_html_()
    marked = [word for _, text, excerpt in expected for word in words(text, excerpt)]
    assert re.findall("<mark>(.*?)</mark>", shown) == marked
    plain = unescape(re.sub("<[^>]*>", "", shown))
    assert all(excerpt["text"] in plain for _, _, excerpt in expected)


def test_rest_and_agents_get_them(notes, minilm, expected):
    with Retriever(minilm, notes, device="cpu") as retriever:
        with TestClient(create_app({"notes": retriever}), base_url="http://localhost") as client:
            body = {"query": QUESTION, "k": 3, "include": ["text", "excerpt"]}
            (found,) = client.post("/v1/indexes/notes/search", json=body).json()["results"]
        assert [(each["id"], each["text"], each["excerpt"]) for each in found] == expected

        async def ask():
            async with Client(create_mcp_server({"notes": retriever})) as client:
                answer = await client.call_tool("search", {"query": QUESTION, "k": 3})
                return answer.structured_content["result"]

        told = run_async(ask)
        assert [(each["id"], each["text"], each["excerpt"]) for each in told] == expected


@pytest.mark.slow
def test_the_page_shows_them(notes, minilm, expected):
    from playwright.sync_api import expect, sync_playwright

    server = Process(str(notes), "--model", str(minilm), "--device", "cpu", "--no-log")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"{server.url}/?q={QUESTION.replace(' ', '+')}")
            items = page.locator("#results > li")
            expect(items).to_have_count(3, timeout=60_000)
            for item, (_, text, excerpt) in zip(items.all(), expected, strict=True):
                assert item.locator(".text mark").all_inner_texts() == words(text, excerpt)
                shown = re.findall(r"\w+", item.locator(".text").inner_text())
                assert shown == re.findall(r"\w+", excerpt["text"])
                assert item.locator("h2").inner_text() == (excerpt["title"] or item.locator("h2").inner_text())
                assert excerpt["place"] in item.locator(".where").inner_text()
            browser.close()
    finally:
        server.stop()
