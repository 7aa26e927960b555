"""`train`: the same as the command, as a function; see also the tests of the command."""

import copy
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from latelier.data import TrainingSet, load_training_set
from latelier.errors import InvalidArgumentError, StorageError
from latelier.models import ColBERT
from latelier.training import TrainingOptions, TrainingReport, train
from latelier.training.run import build_model

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
    assert any(line.startswith("step 2/2: validation: success@1 ") for line in lines)
    saved = ColBERT(str(tmp_path / "out"), device="cpu").encode_query("what is 3?")
    torch.testing.assert_close(saved, model.encode_query("what is 3?"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Size: 12 training samples" in card
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
        ((0.01, 0.02), "a change beyond chance: 95% interval of ndcg@10 [+0.010, +0.020]"),
    ],
)
def test_a_report_says_whether_the_change_is_beyond_chance(interval, verdict):
    before, after = {"ndcg@10": 0.8}, {"ndcg@10": 0.8 + sum(interval) / 2}
    report = TrainingReport(Path("out"), 180, 102, 20, before, after, interval)
    assert str(report).splitlines()[-1].strip().startswith(verdict)


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
    measured = [float(value) for value in re.findall(r"nDCG@10 .*?(\d\.\d{3})", capsys.readouterr().out)]
    assert len(measured) == measures
    assert all(0.2 < value <= 1 for value in measured)
