"""An index on disk that the commands search, made once, and a way to run them in this process."""

import json
import sys
from contextlib import contextmanager

import pytest
import typer
from typer.testing import CliRunner

from latelier.cli import app

RECORDS = [
    {"id": "fruit", "text": "Bananas are healthy.", "year": 2019, "lang": "en"},
    {"id": "moon", "text": "The moon is far away from the earth.", "year": 2021, "lang": "en"},
    {"id": "berlin", "title": "Berlin", "text": "It is the capital of Germany.", "year": 2023, "lang": "de"},
]


class Runner(CliRunner):
    """Prints to its own streams, also while a thread of an earlier test replaces sys.stdout for a moment.

    They are held here, since they are closed once nothing does.
    """

    @contextmanager
    def isolation(self, *arguments, **options):
        streams = typer.echo.__globals__
        with super().isolation(*arguments, **options) as captured, pytest.MonkeyPatch.context() as patch:
            held = sys.stdin, sys.stdout, sys.stderr
            patch.setitem(streams, "_default_text_stdout", lambda: held[1])
            patch.setitem(streams, "_default_text_stderr", lambda: held[2])
            yield captured


@pytest.fixture(scope="session")
def run():
    def run(*arguments, input=None, color=False):
        texts = [str(argument) for argument in arguments]
        return Runner().invoke(app, texts, input=input, prog_name="latelier", color=color)

    return run


@pytest.fixture(scope="session")
def records_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory, run, records_file):
    folder = tmp_path_factory.mktemp("indexes") / "records"
    result = run("index", records_file, folder, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    counts = {"new": 3, "changed": 0, "renamed": 0, "removed": 0, "unchanged": 0, "kept": 0, "skipped": []}
    size = json.loads(result.stdout)["bytes"]
    assert size > 3 * 384 * 2
    assert json.loads(result.stdout) == {"index": str(folder), "documents": 3, "bytes": size, **counts}
    return folder
