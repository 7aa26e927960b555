"""Options that cannot have an effect are refused before anything is opened: nobody takes them to have worked."""

import pytest

OF_MODES = [
    ("vectors", "--fusion", "rrf"),
    ("vectors", "--depth", 5),
    ("rerank", "--weights", 1, 2),
    ("keywords", "--effort", "fast"),
]


@pytest.mark.parametrize("command", [("search", "no-index", "fruit"), ("why-not", "no-index", "fruit", "moon")])
@pytest.mark.parametrize(("mode", "option", "values"), [(mode, option, values) for mode, option, *values in OF_MODES])
def test_an_option_of_another_search_mode_is_refused(run, command, mode, option, values):
    result = run(*command, "--mode", mode, option, *values)
    assert result.exit_code == 2
    assert f"Invalid value for {option}: it has no effect on --mode {mode}, only on " in result.stderr


@pytest.mark.parametrize("command", [("search", "no-index", "fruit"), ("why-not", "no-index", "fruit", "moon")])
@pytest.mark.parametrize("option", ["--parameter", "--filter-timeout"])
def test_options_of_a_filter_need_it(run, command, option):
    result = run(*command, option, 5)
    assert result.exit_code == 2
    assert f"Invalid value for {option}: it has no effect without --filter; leave it out" in result.stderr


@pytest.mark.parametrize("given", ["--model=foo", "--device=banana", "--backend=torch", "--explain"])
def test_a_search_by_keywords_refuses_what_encodes_the_query(run, given):
    result = run("search", "no-index", "fruit", "--mode", "keywords", given)
    assert result.exit_code == 2
    option = given.partition("=")[0]
    assert f"Invalid value for {option}: it has no effect on --mode keywords, as nothing" in result.stderr


@pytest.mark.parametrize("token", ["", "   ", "short"])
@pytest.mark.parametrize(
    ("command", "option", "variable"),
    [
        (["serve", "no-index"], "--read-token", "LATELIER_READ_TOKEN"),
        (["serve", "no-index"], "--write-token", "LATELIER_WRITE_TOKEN"),
        (["mcp", "no-index", "--http"], "--token", "LATELIER_MCP_TOKEN"),
    ],
)
def test_an_empty_token_of_a_server_is_refused(run, monkeypatch, command, option, variable, token):
    given = [run(*command, option, token)]
    monkeypatch.setenv(variable, token)  # empty if the command that makes it fails
    for result in [*given, run(*command)]:
        assert result.exit_code == 1
        assert f"token has {len(token)} characters; expected at least 16" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--overlap", 4, "--overlap: it has no effect without --passages; leave it out"),
        ("--glob", "*.x", "--glob: it has no effect on standard input, only on a folder; leave it out"),
    ],
)
def test_options_of_passages_and_folders_need_them(run, tmp_path, option, value, message):
    result = run("index", "-", tmp_path / "index", option, value, input="Pears.\n")
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "index").exists()
