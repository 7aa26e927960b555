"""``latelier demo`` on an index of a few docstrings: its answers, and its prompt on a real terminal."""

import importlib.util
import json

import pytest

from latelier.demo import QUESTIONS, Session, build, demo_folder

BEST = [
    "argparse.ArgumentParser",
    "hashlib.sha256",
    "tempfile.TemporaryDirectory",
    "csv.reader",
    "re.Pattern.fullmatch",
]
SOME = {*BEST, "math.sqrt", "str.split", "json.dumps", "os.listdir", "threading.Barrier.wait", "calendar.isleap"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory, docstrings):
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
    assert blocks[1][2].lower().endswith("returns a sha256 hash object; optionally initialized with a string")
    assert "sha256 ~ sha256" in blocks[1][3]
    assert result.stderr.strip().startswith(f"{len(SOME)} docstrings; loading the model ")


def test_answers_a_question_of_ones_own_as_json(run, cached):
    answer = json.loads(run("demo", "is this a leap year", "-k", 1, "--json", "--device", "cpu").stdout)
    assert answer["documents"] == len(SOME)
    assert set(answer["seconds"]) == {"loading the model", "answering"}  # nothing was indexed again
    (found,) = answer["answers"]
    assert found["query"] == "is this a leap year"
    assert found["results"][0]["id"] == "calendar.isleap"
    assert ("leap", "leap") in [(each["word"], each["matched"]) for each in found["results"][0]["words"]]
