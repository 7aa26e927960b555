"""`train`: the same as the command, as a function; see also the tests of the command."""

import copy
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from latelier.data import TrainingSet, load_training_set
from latelier.errors import InvalidArgumentError, StorageError
from latelier.models import ColBERT
from latelier.training import TrainingOptions, TrainingReport, train
from latelier.training.run import build_model
from latelier.training.validation import make_validation

PAIRS = TrainingSet([f"what is {i}?" for i in range(12)], [[f"{i} is a number."] for i in range(12)])
SCORED = TrainingSet(PAIRS.queries, PAIRS.documents, [[1.0]] * 12)


@pytest.fixture
def options():
    return TrainingOptions(batch_size=6, learning_rate=1e-3, validation_queries=0, epochs=1)


def test_a_model_is_trained_in_place_and_saved(model, options, tmp_path):
    lines = []
    report = train(
        PAIRS, tmp_path / "out", model, validation=PAIRS.select([0, 1]), options=options, on_progress=lines.append
    )
    assert (report.model, report.rows, report.steps, report.validation_queries) == (tmp_path / "out", 12, 2, 2)
    assert str(report).splitlines()[0] == f"{tmp_path / 'out'}: trained on 12 rows, 2 steps."
    assert set(report.before) == set(report.after) == {"success@1", "ndcg@10"}
    low, high = report.interval
    assert low <= report.after["ndcg@10"] - report.before["ndcg@10"] <= high
    assert (report.positives, report.shared_positives) == (2, 2)
    assert "2 of their 2 positives were trained on as well" in str(report)
    assert any(line.startswith("step 2/2: validation: success@1 ") for line in lines)
    saved = ColBERT(str(tmp_path / "out"), device="cpu").encode_query("what is 3?")
    torch.testing.assert_close(saved, model.encode_query("what is 3?"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Size: 12 training samples" in card
    assert '"queries": 2,' in card
    assert '"positives_in_training": 2' in card
    assert not any(text in card for text in (*PAIRS.queries, "is a number"))
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in (tmp_path / "out").rglob("*") if file.is_file()} == {
        (tmp_path / "new").stat().st_mode
    }


def test_rows_beyond_memory_are_trained_on_in_the_same_way(untrained, options, tmp_path):
    file = tmp_path / "triples.tsv"
    file.write_text("".join(f"what is {i % 20}?\t{i} is a number.\tNothing is {i}.\n" for i in range(40)))
    options = replace(options, validation_queries=2)
    vectors = []
    for name, most in (("whole", None), ("stored", 1000)):
        model = copy.deepcopy(untrained)
        report = train(load_training_set(file, max_memory=most), tmp_path / name, model, options=options)
        assert (report.rows, report.steps, report.validation_queries) == (36, 6, 2)
        vectors.append(model.encode_query("what is 3?"))
    torch.testing.assert_close(*vectors, rtol=0, atol=0)


def test_without_validation_and_progress_nothing_is_measured_or_printed(model, options, tmp_path, capfd):
    before = model.encode_query("what is 3?")
    report = train(PAIRS, tmp_path / "out", model, options=options)
    assert report.before == report.after == {}
    assert str(report).count("\n") == 0
    assert "loss" not in "".join(capfd.readouterr())
    assert (model.encode_query("what is 3?") - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.01, 0.02), "no change beyond chance: 95% interval of ndcg@10 [-0.010, +0.020]. Try more rows or epochs"),
        ((-0.02, -0.01), "a loss beyond chance: 95% interval of ndcg@10 [-0.020, -0.010]"),
        ((0.01, 0.02), "a gain beyond chance: 95% interval of ndcg@10 [+0.010, +0.020]"),
    ],
)
def test_a_report_says_whether_the_change_is_beyond_chance(interval, verdict):
    before, after = {"ndcg@10": 0.8}, {"ndcg@10": 0.8 + sum(interval) / 2}
    report = TrainingReport(Path("out"), 180, 102, 20, before, after, interval, 20)
    assert str(report).splitlines()[-1].strip().startswith(verdict)


def test_a_report_says_on_what_a_change_was_measured():
    measures = {"ndcg@10": 0.1}, {"ndcg@10": 0.9}
    unseen = TrainingReport(Path("out"), 270, 102, 30, *measures, (0.7, 0.9), 16, 0)
    assert "none of their 16 positives was trained on" in str(unseen)
    seen = TrainingReport(Path("out"), 270, 102, 30, *measures, (0.7, 0.9), 16, 5)
    assert "5 of their 16 positives were trained on as well" in str(seen)
    assert seen.verdict.startswith("a gain beyond chance, with 5 of 16 positives known from training: 95% interval")
    assert all(line in seen._repr_html_() for line in (seen.measured_on, seen.verdict))
    for queries, positives in ((9, 9), (30, 6)):
        few = TrainingReport(Path("out"), 27, 10, queries, *measures, (0.8, 0.8), positives, 0)
        assert few.verdict.startswith("too few validation queries, or positives of them, to tell a change from chance")


def test_the_interval_resamples_queries_of_one_passage_together():
    questions = [f"{ask} on thing {i}?" for i in range(12) for ask in ("what is known", "who wrote", "why")]
    data = TrainingSet(questions, [[f"Passage {i}."] for i in range(12) for _ in range(3)])
    validation = make_validation(data, data, data, 0)
    change = np.random.default_rng(1).normal(size=12)
    validation.per_query = np.repeat(change, 3)
    low, high = validation.interval(np.zeros(36))
    error = change.std() / 12**0.5  # of the mean of twelve independent numbers
    assert 3 * error < high - low < 5 * error
    assert low < change.mean() < high


def test_five_questions_for_each_passage_are_validated_on_unseen_passages(model, options, tmp_path):
    passages = [[f"{i} is the number of thing {i % 7}."] for i in range(20) for _ in range(5)]
    data = TrainingSet([f"what {ask} is it about {i}?" for i in range(20) for ask in "abcde"], passages)
    report = train(data, tmp_path / "out", model, options=replace(options, validation_queries=200, batch_size=32))
    assert (report.rows, report.validation_queries, report.positives, report.shared_positives) == (90, 10, 2, 0)


LONG = " ".join(f"word{i} is a word here" for i in range(60))


def test_texts_that_are_longer_than_the_model_reads_are_told(model, options, tmp_path):
    documents = [[f"{i} and {LONG}" if i % 3 == 0 else f"{i} is short."] for i in range(12)]
    data = TrainingSet([f"what is {LONG} {i}" if i == 1 else f"what is {i}" for i in range(12)], documents)
    model[0].document_length = 40
    lines = []
    train(data, tmp_path / "out", model, options=options, on_progress=lines.append)
    assert lines[0] == (
        "1 of 12 queries (8%) are longer than the 32 tokens, and 4 of 12 documents (33%) are longer than the 40 tokens "
        "that the model reads; the rest of them is not trained on."
    )
    with pytest.warns(UserWarning, match=r"4 of 12 documents \(33%\) are longer than the 40 tokens"):
        train(data, tmp_path / "other", model, options=options)


def test_positives_that_are_equal_once_cut_are_named(model, options, tmp_path):
    documents = [[f"{LONG} number {i}" if i in (3, 7) else f"{i} is short."] for i in range(12)]
    data = TrainingSet([f"what is {i}" for i in range(12)], documents, rows=[f"pairs.jsonl:{i}" for i in range(12)])
    model[0].document_length = 40
    with pytest.raises(InvalidArgumentError, match=r"2 different positives .* 40 tokens .*jsonl:3, pairs.jsonl:7 "):
        train(data, tmp_path / "out", model, options=options)
    candidates = [[f"{LONG} {i} {name}" for name in "abc"] for i in range(12)]
    alike = TrainingSet(data.queries, candidates, [[1.0, 0.5, 0.0]] * 12)
    with pytest.raises(InvalidArgumentError, match=r"36 different candidates .* row 3, row 4, \.\.\. "):
        train(alike, tmp_path / "out", model, options=options)


def test_dense_models_start_as_they_are_or_with_a_new_head(shallow):
    assert build_model(shallow, TrainingOptions(device="cpu")).embedding_size == 384
    assert build_model(shallow, TrainingOptions(dims=32, device="cpu")).embedding_size == 32
    full = build_model(shallow, TrainingOptions(start="colbert", dims=32, device="cpu"))
    assert (full.embedding_size, full.prompts["query"]) == (32, "[Q] ")


@pytest.mark.parametrize("option", [{"start": "colbert"}, {"dims": 32}, {"device": "cpu"}])
def test_options_of_named_models_do_not_go_with_a_model(model, tmp_path, option):
    with pytest.raises(InvalidArgumentError, match="dims or device together with a ColBERT"):
        train(PAIRS, tmp_path / "out", model, options=TrainingOptions(**option))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "option", "message"),
    [
        (SCORED, {"mine": 1}, "the rows have a teacher's scores, which mined negatives would lack; leave out mine and"),
        (PAIRS.select([0]), {}, "the data leave 1 row to train on; expected at least 2"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused_before_the_model_is_loaded(tmp_path, rows, option, message):
    with pytest.raises(InvalidArgumentError, match=message):
        train(rows, tmp_path / "out", str(tmp_path / "no-model"), options=TrainingOptions(**option))
    assert not (tmp_path / "out").exists()


def test_an_output_with_an_impossible_name_is_refused(model, tmp_path):
    with pytest.raises(StorageError, match=r"cannot write '.*o\\ud800': "):
        train(PAIRS, tmp_path / "o\ud800", model)
    with pytest.raises(InvalidArgumentError, match="received '' as output"):
        train(PAIRS, "", model)


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "measures"), [("train_contrastive", 3), ("train_distillation", 3), ("train_from_scratch", 2)]
)
def test_example_runs(name, measures, docstrings, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "standard_library_documents", lambda: docstrings)
    monkeypatch.setattr("sys.argv", [name, "--steps", "1", "--batch-size", "4", "--validation-queries", "6"])
    example.main()
    shown = re.findall(r"^(?:nDCG@10.*? | *\d+  \S+ +)(\d\.\d{3})\b", capsys.readouterr().out, re.MULTILINE)
    measured = [float(value) for value in shown]
    assert len(measured) == measures
    assert all(0.2 < value <= 1 for value in measured)
