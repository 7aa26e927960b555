"""An index whose files are gone does not take the others with it, and clients learn nothing of the server's folders."""

import errno
import shutil
import sqlite3

import pytest
from fastapi.testclient import TestClient

from latelier.errors import CorruptedIndexError, StorageError
from latelier.retrieve import Retriever
from latelier.serve import create_app


@pytest.fixture
def moved(shallow, tmp_path):
    with Retriever(shallow, tmp_path / "moved", device="cpu") as retriever:
        retriever.add([("a", "Bananas are healthy.")])
        yield retriever, lambda: shutil.move(tmp_path / "moved", tmp_path / "elsewhere")


def test_the_others_are_listed_counted_and_ready(retriever, moved, tmp_path, caplog):
    other, move = moved
    with TestClient(create_app({"other": other, "records": retriever}), base_url="http://localhost") as client:
        whole = client.get("/v1/indexes").json()
        assert client.get("/health/ready").json() == {"status": "ready", "indexes": ["other", "records"]}
        assert 'latelier_documents{index="other"} 1.0' in client.get("/metrics").text
        move()
        broken, healthy = client.get("/v1/indexes").json()
        assert healthy == whole[1]
        assert healthy["error"] is None
        assert (broken["name"], broken["kind"], broken["documents"]) == ("other", whole[0]["kind"], None)
        assert "cannot use the files" in broken["error"]
        assert "was replaced or moved" in caplog.text  # who runs the server learns more
        metrics = client.get("/metrics").text
        assert 'latelier_documents{index="records"} 3.0' in metrics
        assert 'latelier_documents{index="other"}' not in metrics
        ready = client.get("/health/ready")
        assert ready.json() == {"status": "ready", "indexes": ["records"], "unreadable": ["other"]}
        for answer in (
            client.get("/v1/indexes/other"),
            client.post("/v1/indexes/other/search", json={"query": "fruit"}),
            client.post("/v1/indexes/other/documents", json={"documents": [{"id": "b", "text": "The moon."}]}),
        ):
            assert answer.status_code == 503
            assert str(tmp_path) not in answer.text
            assert "indexes.open" not in answer.text


def test_a_server_that_can_read_no_index_is_not_ready(moved):
    other, move = moved
    with TestClient(create_app({"other": other}), base_url="http://localhost") as client:
        move()
        answer = client.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["error"] == {"type": "UnreadableError", "message": "the server cannot read: 'other'."}


@pytest.mark.parametrize(
    ("cause", "error", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError("/secret"), 507),
        (sqlite3.OperationalError("database or disk is full"), StorageError("/secret"), 507),
        (OSError(errno.EIO, "Input/output error"), StorageError("/secret"), 503),
        (sqlite3.OperationalError("database is locked"), StorageError("/secret"), 503),
        (None, CorruptedIndexError("/secret"), 500),
    ],
)
def test_the_status_says_what_is_wrong_with_the_files(retriever, monkeypatch, cause, error, status):
    error.__cause__ = cause

    def fail(*_):
        raise error

    with TestClient(create_app({"records": retriever}), base_url="http://localhost") as client:
        monkeypatch.setattr(retriever, "remove", fail)
        answer = client.delete("/v1/indexes/records/documents/moon")
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == type(error).__name__
        assert "/secret" not in answer.text
