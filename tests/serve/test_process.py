"""Servers in processes of their own: started, stopped, killed, and asked by many at once."""

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from latelier import indexes
from latelier.retrieve import Retriever
from serve.conftest import Process

SEARCH = "/v1/indexes/records/search"
DOCUMENTS = "/v1/indexes/records/documents"
TOKEN = "t" * 20


@pytest.fixture
def own_folder(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "records")


@pytest.fixture(scope="module")
def asked(folder):
    server = Process(str(folder), "--device", "cpu", "--no-log")
    yield server.url
    server.stop()


def metric(url, name):
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_server_answers_and_when_it_is_stopped_closes_its_indexes(own_folder, start, number, status):
    server = start(own_folder, "--device", "cpu")
    assert httpx.get(f"{server.url}/health/ready").json() == {"status": "ready", "indexes": ["records"]}
    answer = httpx.post(server.url + SEARCH, json={"query": "bananas", "k": 1}).json()
    assert answer["results"][0][0]["id"] == "fruit"
    assert httpx.delete(f"{server.url}{DOCUMENTS}/moon", timeout=60).status_code == 200
    assert (own_folder / "catalog.sqlite-wal").exists()
    server.process.send_signal(number)
    logged = [json.loads(line) for line in server.process.communicate(timeout=60)[1].splitlines() if "{" in line]
    assert [line["request"]["status"] for line in logged] == [200, 200, 200]
    assert server.process.returncode == status
    assert not (own_folder / "catalog.sqlite-wal").exists()


def test_other_machines_use_a_server_with_a_token_only(own_folder, start, monkeypatch):
    with pytest.raises(AssertionError, match="without a read token"):
        start(own_folder, "--host", "0.0.0.0")
    monkeypatch.setenv("LATELIER_READ_TOKEN", TOKEN)
    server = start(own_folder, "--host", "0.0.0.0", "--read-token", TOKEN, "--device", "cpu")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    with upload_and_stall(url) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")  # before the body is read
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.delete(f"{url}{DOCUMENTS}/moon", headers=headers).status_code == 403
    body = {"texts": ["apples"], "input_type": "query", "model": "records"}
    assert httpx.post(f"{url}/v1/encode", json=body, headers=headers).json()["model"] == "records"
    assert httpx.post(f"{url}/v1/encode", json=body).status_code == 401


def test_64_clients_at_once_get_their_own_answers(folder, shallow, asked):
    with Retriever.open(folder, model=shallow, device="cpu", read_only=True) as retriever:
        texts = [f"{word} {number}" for number in range(16) for word in ("moon", "bananas", "kings", "earth")]
        expected = [[result.id for result in found] for found in retriever.search(texts)]

    def ask(text):
        with httpx.Client(timeout=60) as client:
            return [client.post(asked + SEARCH, json={"query": text}).json()["results"][0] for _ in range(3)]

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, texts))
    for found, ids in zip(answers, expected, strict=True):
        assert [[hit["id"] for hit in each] for each in found] == [ids] * 3
    assert metric(asked, "latelier_batch_queries_count") < 64 * 3  # many were searched together


def test_after_kill_9_every_acknowledged_document_is_there(own_folder, start):
    server = start(own_folder, "--device", "cpu", "--no-log")
    acknowledged, enough = [], threading.Event()

    def write(writer):
        with httpx.Client(timeout=60) as client:
            for number in range(1000):
                name = f"{writer}-{number}"
                body = {"documents": [{"id": name, "text": f"Text number {number} of writer {writer}."}]}
                try:
                    answer = client.post(server.url + DOCUMENTS, json=body)
                except httpx.TransportError:
                    return  # killed
                assert answer.status_code == 201, answer.text
                acknowledged.append(name)
                if len(acknowledged) >= 20:
                    enough.set()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, i) for i in range(4)]
        assert enough.wait(60)
        os.kill(server.process.pid, signal.SIGKILL)
        for writer in writers:
            writer.result()
    with indexes.open(own_folder) as index:
        assert set(acknowledged) <= set(index.ids())
        assert index.verify().is_whole
    again = start(own_folder, "--device", "cpu", "--no-log")
    body = {"ids": acknowledged[-1:]}
    assert httpx.post(f"{again.url}{DOCUMENTS}/get", json=body).status_code == 200


def test_a_stopping_server_finishes_what_it_has_accepted(own_folder, start):
    server = start(own_folder, "--device", "cpu", "--no-log")

    def write(number):
        documents = [{"id": f"{number}-{i}", "text": "many words " * 60} for i in range(40)]
        return httpx.post(server.url + DOCUMENTS, json={"documents": documents}, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(write, number) for number in range(3)]
        while not metric(server.url, 'latelier_waiting{index="records",kind="writes"}'):  # one is written, others wait
            time.sleep(0.01)
        server.process.terminate()
        assert [answer.result().status_code for answer in answers] == [201] * 3
    with indexes.open(own_folder, read_only=True) as index:
        assert len(index) == 3 + 3 * 40


STALLED = (
    b"POST /v1/indexes/records/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100000\r\n\r\n{"
)


def upload_and_stall(url):
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.sendall(STALLED)
    return connection


def test_an_upload_that_stalls_is_answered_in_time_also_while_the_server_stops(folder):
    code = f"""
from latelier.retrieve import Retriever
from latelier.serve import Limits, serve
with Retriever.open({str(folder)!r}, device="cpu", read_only=True) as retriever:
    serve({{"records": retriever}}, port=0, limits=Limits(seconds=2), on_start=lambda url: print(url, flush=True))
"""
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        with upload_and_stall(url) as first:
            answer = b"".join(iter(lambda: first.recv(4096), b""))  # until it is closed
        assert answer.startswith(b"HTTP/1.1 408 ")
        message = "the body did not arrive within 2 seconds; send less at once, or faster."
        assert json.dumps({"error": {"type": "RequestTimeoutError", "message": message}}).encode() in answer
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30) as half:
            half.sendall(b"GET / HTTP/1.1\r\nHost: local")
            assert half.recv(4096) == b""  # closed, as its head did not arrive
        with upload_and_stall(url) as second:
            httpx.get(f"{url}/health/live")  # the upload has begun
            process.terminate()
            assert second.recv(4096).startswith(b"HTTP/1.1 408 ")
        log = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 143
    assert [json.loads(line)["request"]["status"] for line in log.splitlines()] == [408, 200, 408]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_server_at_once_while_a_request_runs(own_folder, shallow, start):
    server = start(own_folder, "--model", shallow, "--device", "cpu", "--no-log")
    documents = [{"id": f"{i}", "text": "many words " * 1000} for i in range(500)]

    def write():
        with pytest.raises(httpx.TransportError, match=r"disconnected|reset|closed"):
            httpx.post(server.url + DOCUMENTS, json={"documents": documents}, timeout=60)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        time.sleep(3)  # the documents are being encoded
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(1) == -signal.SIGINT
        writing.result()
    with indexes.open(own_folder) as index:
        assert 3 <= len(index) < 503  # whole transactions of it
        assert index.verify().is_whole
