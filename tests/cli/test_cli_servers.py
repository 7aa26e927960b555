"""`latelier serve` and `latelier mcp`: what can fail without a model fails before one is loaded."""

import socket

import pytest

ABSENT = "could not load the model './absent'"
TOKEN = "t" * 20


@pytest.fixture
def used_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "{folder}", "none"), "there is no index in"),
        (("serve", "{folder}", "{folder}"), "received two indexes named 'records'"),
        (("serve", "{folder}", "--port", "{port}"), "cannot listen on 127.0.0.1, port {port}"),
        (("serve", "{folder}", "--read-only", "--write-token", TOKEN), "received a write token, but every index is"),
        (("serve", "{folder}", "--serve-files", "./gone"), "'./gone' is no folder"),
        (
            ("serve", "{folder}", "b={folder}", "--serve-files", "."),
            "whose it is: NAME=., where NAME is one of 'records', 'b'",
        ),
        (
            ("serve", "{folder}", "--serve-files", ".", "--serve-files", "records=."),
            "two folders of files for 'records'",
        ),
        (("serve", "{folder}", "b={folder}", "--serve-files", "b=."), ABSENT),
        (("serve", "{folder}"), ABSENT),
        (("mcp", "{folder}", "--http", "--port", "{port}"), "cannot listen on 127.0.0.1, port {port}"),
        (("mcp", "{folder}"), ABSENT),
    ],
)
def test_the_model_is_the_last_thing_that_can_fail(run, folder, used_port, monkeypatch, tmp_path, arguments, message):
    pytest.importorskip("uvicorn", reason="needs the extra serve or mcp")
    pytest.importorskip("mcp" if arguments[0] == "mcp" else "fastapi", reason="needs the extra serve or mcp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))
    given = [argument.format(folder=folder, port=used_port) for argument in arguments]
    result = run(*given, "--model", "./absent")
    assert result.exit_code == 1, result.output
    assert message.format(port=used_port) in result.stderr
    assert not (tmp_path / "cache").exists()  # the demo's index was not made
