"""The configurations that the documentation shows: their commands, run as a client runs them, and HTTP with a token."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from anyio import run
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from documents import FENCE

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
CONFIGURATIONS = [json.loads(fence["body"]) for fence in FENCE.finditer(PAGE) if fence["language"] == "json"]
SERVERS = [server for each in CONFIGURATIONS for server in (each.get("mcpServers") or each["servers"]).values()]
COMMAND = ["-c", "from latelier.cli import main; main()"]
TOKEN = "a-secret-of-agents"


async def found(server):
    async with Client(server) as client:
        answer = await client.call_tool("search", {"query": "planets in the sky", "k": 1})
        return [hit["id"] for hit in answer.structured_content["result"]]


def test_the_command_serves_over_standard_input_and_output_and_logs_nothing(folder, tmp_path):
    [server] = {json.dumps(server["args"]) for server in SERVERS if "command" in server}
    arguments = [str(folder) if part == "/path/to/my-index" else part for part in json.loads(server)]
    parameters = StdioServerParameters(command=sys.executable, args=[*COMMAND, *arguments], env=dict(os.environ))
    with (tmp_path / "log").open("w") as log:
        assert run(found, stdio_client(parameters, errlog=log)) == ["moon"]
    assert (tmp_path / "log").read_text() == ""


@pytest.fixture
def served(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *COMMAND, "mcp", str(folder), "--device", "cpu", "--http", "--port", str(port)]
    with subprocess.Popen(
        command, env={**os.environ, "LATELIER_MCP_TOKEN": TOKEN}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            address = f"http://127.0.0.1:{port}/mcp"
            for _ in range(600):
                try:
                    httpx2.get(address)
                    break
                except httpx2.ConnectError:
                    assert process.poll() is None
                    time.sleep(0.1)
            yield process, address
        finally:
            process.terminate()


def test_over_http_only_clients_with_the_token_are_served(served):
    process, url = served
    for headers in ({}, {"Authorization": "Bearer something-else-here"}, {"Authorization": f"Basic {TOKEN}"}):
        refused = httpx2.post(url, json={}, headers=headers)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer TOKEN" in refused.json()["error"]

    async def main():
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            return await found(streamable_http_client(url, http_client=http))

    assert run(main) == ["moon"]
    process.terminate()
    assert process.wait(60) == 143
    assert process.stdout.read() == b""  # the log is on standard error


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_stops_a_server_that_waits_for_standard_input(folder, tmp_path):
    own = shutil.copytree(folder, tmp_path / "own")
    # As a process of a terminal: one in the background of a script ignores Ctrl-C.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND[1]}"
    command = [sys.executable, "-c", code, "mcp", str(own), "--device", "cpu", "--writable"]
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    removal = {"name": "remove", "arguments": {"ids": ["moon"]}}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **streams) as process:
        for message in (
            hello,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": removal},
        ):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[1]["result"]["content"][0]["text"] == "done; the index has 2 documents now"
        assert (own / "catalog.sqlite-wal").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"Traceback" not in process.stderr.read()
    assert not (own / "catalog.sqlite-wal").exists()  # the index was closed
