"""The training examples run, and print a measure before and after."""

import importlib.util
import re
from pathlib import Path

import pytest

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
