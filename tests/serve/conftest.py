"""Retrievers to serve, in this process and in one of their own."""

import subprocess
import sys

import pytest

from latelier.retrieve import Retriever

RECORDS = [
    {"id": "fruit", "text": "Bananas are healthy.", "year": 2019},
    {"id": "moon", "text": "The moon is far away from the earth.", "year": 2021},
    {"id": 7, "text": "Seven kings ruled before the republic.", "year": 2023},
]


@pytest.fixture
def retriever(shallow):
    with Retriever(shallow, device="cpu") as retriever:
        retriever.add(RECORDS)
        yield retriever


@pytest.fixture(scope="module")
def folder(shallow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "records"
    with Retriever(shallow, folder, device="cpu") as retriever:
        retriever.add(RECORDS)
        retriever.export_encoder()
    return folder


class Process:
    def __init__(self, *arguments):
        command = [sys.executable, "-c", "from latelier.cli import main; main()", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("Open http"):
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.url = line.split()[1]

    def stop(self):
        """Stop it as an operator does; return its standard error."""
        self.process.terminate()
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def start():
    started = []

    def start(*arguments):
        started.append(Process(*map(str, arguments)))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.communicate()
