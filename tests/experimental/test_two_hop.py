"""The example on two-hop questions runs on real docstrings, and its questions are what it says."""

import importlib.util
import re
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples" / "two_hop.py"


@pytest.fixture
def example(docstrings, monkeypatch):
    spec = importlib.util.spec_from_file_location("two_hop", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "standard_library_documents", lambda: docstrings)
    return module


def test_questions_name_no_target_and_splits_share_no_document(example):
    documents, questions = example.standard_library()
    assert len(questions) > 200
    for question in questions:
        assert question.text in " ".join(documents[question.source].split())
        for target in question.targets:
            name = target.rpartition(".")[2]
            assert name in documents[question.source]
            assert name.lower() not in question.text.lower()
    train, test = example.split(questions, seed=0)
    assert sorted(train + test) == list(range(len(questions)))
    sides = [{id_ for i in side for id_ in (questions[i].source, *questions[i].targets)} for side in (train, test)]
    assert not sides[0] & sides[1]
    assert 0.4 <= len(test) / len(questions) < 0.45


def test_example_runs(example, monkeypatch, capsys):
    options = ["--documents", "60", "--questions", "14", "--steps", "2", "--batch-size", "4", "--tuning-questions", "2"]
    monkeypatch.setattr("sys.argv", ["two_hop", *options, "--seeds", "1"])
    example.main()
    printed = capsys.readouterr().out
    rows = dict(re.findall(r"^(\S.*?|  \S.*?) {2,}((?:[01]\.\d{3} ± 0\.000 +){3}\d+)$", printed, re.MULTILINE))
    assert len(rows) == 12
    once, untrained, trained = (rows[name] for name in ("one search", "multi-step, untrained", "multi-step, trained"))
    assert once.split()[:9] == untrained.split()[:9]
    assert float(trained.split()[0]) > 0.1
