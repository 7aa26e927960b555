"""What goes wrong around the commands: a message and a status, no traceback, and nothing that acts on a terminal."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from latelier.cli.output import messages
from latelier.errors import InvalidArgumentError

ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b[2J\x1b]0;title\x07 red \x9b31m \u202egnp.exe \x00\x08\x7f"
COMMAND = "from latelier.cli import main; main()"


def start(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], **options)


def finish(process, input=None):
    out, err = process.communicate(input, timeout=120)
    assert b"Traceback" not in err, err
    return process.returncode, (out or b"").decode(), err.decode()


def test_documents_of_others_do_not_act_on_the_terminal(run, tmp_path):
    folder = tmp_path / "index"
    record = {"id": f"id{EVIL}\n", "text": f"Bananas {EVIL} are healthy.\r\n\u2028And more.", f"key{EVIL}": EVIL}
    result = run("index", "-", folder, "--device", "cpu", input=json.dumps(record))
    assert result.exit_code == 0, result.output
    table = run("search", folder, f"fruit {EVIL}", "--explain", "--device", "cpu")
    assert table.exit_code == 0, table.output
    assert table.stdout.splitlines()[0].split()[2].startswith(r"id\x1b[2J\x1b]0;title\x07")
    assert r"are healthy. And more." in table.stdout
    answer = run("search", folder, f"fruit {EVIL}", "--json", "--device", "cpu")
    assert json.loads(answer.stdout)["results"][0]["text"] == record["text"]
    again = run("index", "-", folder, "--device", "cpu", input=f"{json.dumps(record)}\n{json.dumps(record)}")
    assert again.exit_code == 1
    assert r"Error: documents[1]: id 'id\x1b[2J" in again.stderr
    for output in (table.output, answer.output, again.output):
        assert not ACTING.search(output)


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", EVIL, "fruit"],
        ["info", f"./{EVIL}"],
        ["index", EVIL, "x"],
        ["info", "a\0b"],
        ["index", "-", f"--{EVIL}", "x"],
        [EVIL],
        ["index", "-", "x", "--format", EVIL],
        ["search", "x", "y", "-k", "9" * 5000],
    ],
)
def test_arguments_that_act_or_lead_nowhere(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, input="one text\n")
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert "Error" in result.stderr
    assert "This is a bug" not in result.stderr
    assert not ACTING.search(result.output)


def test_every_exception_is_a_message(capsys):
    for error, message in [
        (InvalidArgumentError(f"received {EVIL}"), r"Error: received \\x1b\[2J"),
        (OSError(errno.ENOSPC, "No space left on device"), r"Error: \[Errno 28\] No space left on device\."),
        (MemoryError(), r"Error: there is not enough memory"),
        (ZeroDivisionError(f"by {EVIL}"), r"Error: ZeroDivisionError: by \\x1b.*\nThis is a bug.*--debug"),
        (RuntimeError("x" * 100_000), r"Error: RuntimeError: x{3000,4000} \.\.\.\n$"),
    ]:
        with pytest.raises(typer.Exit, match=r"^1$") as raised, messages(debug=False):
            raise error
        assert raised.value.exit_code == 1
        printed = capsys.readouterr().err
        assert re.match(message, printed)
        assert not ACTING.search(printed)
        with pytest.raises(type(error), match=re.escape(str(error))), messages(debug=True):
            raise error


def test_advice_is_for_the_command_line(run, folder):
    result = run("search", folder, "fruit", "--max-memory", "1KB", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr.endswith("Give it more, or leave --max-memory out.\n")
    items = "SELECT 1 FROM json_each(?1) AS"
    endless = f"EXISTS ({items} a WHERE EXISTS ({items} b WHERE EXISTS ({items} c WHERE a.value + c.value < 0)))"
    slow = "--filter", endless, "--parameter", json.dumps([0] * 1000), "--filter-timeout", 0.2
    result = run("search", folder, "fruit", *slow, "--device", "cpu")
    assert result.exit_code == 1
    assert "give it more time: --filter-timeout 60, or 0 for no limit" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals and pipes of POSIX")
def test_interrupting_ends_with_130_and_says_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    # As a process of a terminal: one in the background of a script ignores Ctrl-C.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {COMMAND}"
    command = [sys.executable, "-c", code, "index", str(tmp_path / "pipe.txt"), str(tmp_path / "index")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with (tmp_path / "pipe.txt").open("wb"):  # returns when the command has opened it for reading
        process.send_signal(signal.SIGINT)
    status, output, said = finish(process)
    assert (status, output, said.replace("Opening the index and its model ...\n", "")) == (130, "", "")
    assert not (tmp_path / "index").exists()


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_readers_that_leave_early():
    reading, writing = os.pipe()
    os.close(reading)
    process = start("--version", stdout=writing)
    os.close(writing)
    assert finish(process) == (1, "", "")


@pytest.mark.skipif(os.name == "nt", reason="descriptors and bytes of POSIX")
def test_closed_streams_and_arguments_that_are_no_text(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "index", "-", str(tmp_path / "x")],
        capture_output=True,
        check=False,
        preexec_fn=lambda: os.close(0),
    )
    assert (done.returncode, done.stderr) == (
        1,
        b"Error: standard input is closed; name a file, or pipe the documents in.\n",
    )
    status, out, err = finish(start(b"/nowhere/\xff\x1b[2J"))
    assert (status, out) == (2, "")
    assert r"No such command '/nowhere/\udcff\x1b[2J'" in err
    closed = subprocess.run(
        [sys.executable, "-c", COMMAND, "--version"],
        stderr=subprocess.PIPE,
        check=False,
        preexec_fn=lambda: os.close(1),
    )
    assert b"Traceback" not in closed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full")
def test_output_that_cannot_be_written():
    with Path("/dev/full").open("wb") as full:
        status, _, err = finish(start("--version", stdout=full))
    assert status == 1
    assert err == "Error: [Errno 28] No space left on device.\n"


def test_the_real_command_keeps_its_streams_apart_in_a_locale_that_has_few_characters(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "café")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    status, out, err = finish(start("info", str(tmp_path / "café"), "--json", env=environment))
    assert (status, json.loads(out)["index"], err) == (0, str(tmp_path / "café"), "")
