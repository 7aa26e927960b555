"""The commands: what they print, where, and how they fail."""

import json
import re
import shutil

import pytest
import torch
from typer.main import get_command

from documents import write_beir
from latelier import indexes
from latelier.cli import app
from latelier.models import ColBERT
from latelier.retrieve import Retriever


def test_search_prints_what_matched(run, folder):
    result = run("search", folder, "unhealthy fruit", "-k", 2, "--device", "cpu")
    assert result.exit_code == 0
    first, text, second, _ = result.stdout.splitlines()
    assert (first.split()[0], first.split()[2:], text.strip()) == ("1", ["fruit"], "Bananas are healthy.")
    assert second.split()[0] == "2"
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_a_search_is_hybrid_unless_it_names_a_mode(run, folder):
    modes = ((), ("--mode", "hybrid"), ("--weights", 0.85, 0.15), ("--mode", "vectors"))
    options = ("search", folder, "healthy moon", "--device", "cpu", "--json")
    by_default, by_both, weighted, by_vectors = (json.loads(run(*options, *mode).stdout) for mode in modes)
    assert by_default == by_both == weighted
    assert (by_default["mode"], by_vectors["mode"]) == ("hybrid", "vectors")
    assert by_default["results"] != by_vectors["results"]
    refused = run(*options, "--min-score", 0.5)
    assert (refused.exit_code, "min_score=0.5" in refused.stderr) == (1, True)
    assert json.loads(run("info", folder, "--json").stdout)["searches"] == "words and vectors"


def test_a_word_that_no_document_has_is_asked_about(run, folder):
    result = run("search", folder, "banannas healthy", "--mode", "keywords")
    assert result.stdout.split()[2] == "fruit"
    assert result.stderr == "no document has the word banannas; did you mean bananas?\n"
    found = json.loads(run("search", folder, "banannas", "--mode", "keywords", "--json").stdout)
    assert found == {"query": "banannas", "mode": "keywords", "did_you_mean": {"banannas": "bananas"}, "results": []}
    with Retriever.open(folder, device="cpu") as retriever:
        results = retriever.search("banannas", mode="keywords")
        assert (results, results.did_you_mean) == ([], {"banannas": "bananas"})
        assert str(results).endswith("no document has the word banannas; did you mean bananas?")
        assert retriever.search("banannas", mode="vectors").did_you_mean == {}


def test_the_words_that_matched_are_bold_on_a_terminal_and_explained(run, folder, monkeypatch):
    monkeypatch.setattr("latelier.cli.output.is_terminal", lambda stream: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = run("search", folder, "the unhealthy fruit", "-k", 1, "--device", "cpu", "--explain", color=True).stdout
    head, text, why = shown.splitlines()
    assert "\x1b[1mfruit\x1b[0m" in head
    assert text.strip() == "\x1b[1mBananas\x1b[0m are \x1b[1mhealthy\x1b[0m."
    assert re.fullmatch(r" +unhealthy ~ healthy \d\.\d\d, fruit ~ bananas \d\.\d\d", why)  # no "the", no [SEP]


def test_search_as_json_with_filter_and_explanation(run, folder):
    arguments = ("--filter", "year >= ? AND lang = ?", "--parameter", 2020, "--parameter", "en", "--explain", "--json")
    result = run("search", folder, "a fruit", *arguments, "--device", "cpu")
    answer = json.loads(result.stdout)
    assert (answer["query"], answer["mode"]) == ("a fruit", "hybrid")
    (found,) = answer["results"]
    assert found["id"] == "moon"
    assert found["rank"] == 1
    assert found["metadata"] == {"year": 2021, "lang": "en"}
    assert found["text"] == "The moon is far away from the earth."
    assert {word["word"] for word in found["words"]} <= {"fruit"}
    assert (found["excerpt"]["text"], found["excerpt"]["start"]) == (found["text"], 0)


def test_a_parameter_in_double_quotes_is_a_text(run, tmp_path, tiny):
    (tmp_path / "rows.csv").write_text('id,text,year,open\n1,Bananas.,2020,"""yes"\n')  # ids are texts
    assert run("index", tmp_path / "rows.csv", tmp_path / "index", "--model", tiny).exit_code == 0
    for filter, value, count in [
        ("id = ?", "1", 0),
        ("id = ?", '"1"', 1),
        ("year = ?", "2020", 1),
        ("year = ?", '"2020"', 0),
        ("open = ?", '"yes', 1),
        ("open = ?", '"\\"yes"', 1),
    ]:
        options = ("--filter", filter, "--parameter", value, "--json")
        result = run("search", tmp_path / "index", "bananas", *options, "--mode", "keywords")
        assert len(json.loads(result.stdout)["results"]) == count
    told = json.loads(run("why-not", tmp_path / "index", "bananas", "1", *options, "--device", "cpu").stdout)
    assert "filtered" not in [cause["kind"] for cause in told["causes"]]


def test_info(run, folder, tmp_path):
    facts = json.loads(run("info", folder, "--json").stdout)
    assert facts["documents"] == 3
    assert facts["dim"] == 384
    assert (facts["kind"], facts["bits"]) == ("IVF", 2)
    assert facts["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert facts["bytes"] > 3 * 4 * 384 * 4
    lines = run("info", folder).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(facts)
    assert lines[2].split() == ["documents", "3"]
    assert re.search(r"\nbytes +[\d.]+ KB\n", "\n".join(lines))
    texts = sum(
        len(record.text.encode()) for record in indexes.open(folder, read_only=True).get(["fruit", "moon", "berlin"])
    )
    assert facts["bytes_per_text_byte"] == round(facts["bytes"] / texts, 1)
    assert {name: facts[name] for name in ("tokens", "removed", "texts", "metadata")} == {
        "tokens": len(indexes.open(folder, read_only=True).get_embeddings(["fruit", "moon", "berlin"]).vectors),
        "removed": 0,
        "texts": True,
        "metadata": True,
    }
    assert facts["bytes_per_document"] == round(facts["bytes"] / 3)


def test_an_index_keeps_its_bits(run, records_file, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    for bits in ((), ("--bits", 2), ()):
        result = run("index", records_file, folder, *bits, "--device", "cpu")
        assert result.exit_code == 0, result.output
        facts = json.loads(run("info", folder, "--json").stdout)
        assert (facts["kind"], facts["bits"]) == ("IVF", 2)
    monkeypatch.setattr("latelier.cli.index._LARGE", 0)
    said = run("index", records_file, folder, "--device", "cpu").stdout
    assert re.search(r"copy \S+ NEW --bits N: 1 bit [\d.]+ KB\. A new index with --pool-factor 2: [\d.]+ KB", said), (
        said
    )
    for other, message in (("--exact", "has exact=False, not True"), ("--bits=4", "has bits=2, not 4")):
        result = run("index", records_file, folder, other, "--device", "cpu")
        assert (result.exit_code, message in " ".join(result.stderr.split())) == (1, True), result.output
    assert "exact index has no codes" in run("index", records_file, tmp_path / "new", "--exact", "--bits", 4).stderr
    assert "received 3; expected 8, 4, 2, 1" in run("index", records_file, tmp_path / "new", "--bits", 3).stderr
    found = json.loads(run("search", folder, "a fruit", "--explain", "--json", "--device", "cpu").stdout)["results"]
    assert found[0]["id"] == "fruit"
    assert [(word["word"], word["matched"]) for word in found[0]["words"]] == [("fruit", "bananas")]


def test_index_adds_and_updates(run, tmp_path):
    folder, texts = tmp_path / "index", "Bananas are healthy.\nThe moon is far away.\n"
    result = run("index", "-", folder, "--device", "cpu", input=texts)
    read = "all of their text is searchable"
    assert (result.exit_code, result.stdout.partition(";")[0]) == (0, f"{folder}: 2 documents (2 new), {read}")
    result = run("index", "-", folder, "--device", "cpu", input='{"id": 1, "text": "Apples."}')
    assert (result.exit_code, result.stdout.partition(";")[0]) == (0, f"{folder}: 2 documents (1 changed), {read}")
    found = json.loads(run("search", folder, "apple", "-k", 1, "--json", "--device", "cpu").stdout)["results"]
    assert [(result["id"], result["text"]) for result in found] == [(1, "Apples.")]
    more = '{"id": 1, "text": "Apples."}\n{"id": 2, "text": "Plums."}'
    result = run("index", "-", folder, "--device", "cpu", input=more)
    assert (result.exit_code, result.stdout.partition(";")[0]) == (
        0,
        f"{folder}: 3 documents (1 new, 1 unchanged), {read}",
    )


def test_a_model_given_by_hand_goes_with_the_options_of_the_index(run, tmp_path, tiny):
    folder = tmp_path / "index"
    options = {"max_length_document": 8, "local_files_only": True}
    with Retriever(tiny, folder, device="cpu", model_options=options) as retriever:
        retriever.add([("a", "word " * 50)])
    for command in (["search", folder, "word"], ["index", "-", folder]):
        result = run(*command, "--device", "cpu", input="word " * 50)
        assert result.exit_code == 1
        assert "options that are not stored: 'local_files_only'. Give the model" in result.stderr
        result = run(*command, "--model", tiny, "--device", "cpu", input="word " * 50)
        assert result.exit_code == 0, result.output
    with indexes.open(folder) as index:
        assert [len(matrix) for matrix in index.get_embeddings(index.ids())] == [8, 8]


def test_an_index_of_a_stranger_is_described_and_searched_with_a_model_given_by_hand(run, tmp_path, folder, minilm):
    copy = shutil.copytree(folder, tmp_path / "index")
    with indexes.open(copy) as index:
        index.settings["retriever"] = {**index.settings["retriever"], "options": {"trust_remote_code": True}}
    result = run("info", copy, "--json")
    assert json.loads(result.stdout)["documents"] == 3
    assert result.stderr.startswith("Warning: the index describes its model in a form that this library does not write")
    result = run("search", copy, "fruit", "--device", "cpu")
    assert result.exit_code == 1
    assert "'trust_remote_code' is not one of" in result.stderr
    assert run("search", copy, "fruit", "--model", minilm, "--device", "cpu").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["search", "./absent", "fruit"], 1, "absent. Create one with latelier index SOURCE FOLDER."),
        (["info", "./absent"], 1, "Error: there is no index in"),
        (["index", "./absent.txt", "x"], 2, "there is no file './absent.txt'."),
        (["index", "-"], 2, "Missing argument 'INDEX'"),
        (["search", "x", "y", "-k", "0"], 2, "Invalid value for '-k': received 0; expected a whole number from 1 on"),
        (["search", "x", "y", "--kk", "3"], 2, "No such option: --kk"),
        (["serch", "x", "y"], 2, "No such command 'serch'"),
        (["search", "x", "y", "--mode", "keyword"], 2, "Did you mean 'keywords'?"),
    ],
)
def test_failures_have_a_message_and_a_status(run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(run, tmp_path):
    result = run("--debug", "info", tmp_path / "absent")
    assert type(result.exception).__name__ == "IndexFormatError"


def test_every_command_has_an_example(run):
    for command in app.registered_commands:
        assert "Example:\n    " in run(command.callback.__name__.strip("_").replace("_", "-"), "--help").stdout


@pytest.mark.parametrize("command", [each.callback.__name__.replace("_", "-") for each in app.registered_commands])
def test_help_names_the_options_that_people_use_first_and_no_type_of_the_program(run, command):
    text = run(command, "--help").stdout
    assert not re.search(r"<(int|float|str|path|list)\b", text)
    sections = dict(re.findall(r"^(\w[^\n]*):\n(.*?)(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL))
    options = {title: re.findall(r"^  -", section, re.MULTILINE) for title, section in sections.items()}
    assert 1 < len(options["Options"]) <= 13
    count = sum(map(len, options.values()))
    assert count == sum(each.param_type_name == "option" for each in get_command(app).commands[command].params) + 1


def test_a_search_has_ten_options_first_and_the_others_in_groups(run):
    text = run("search", "--help").stdout
    first, others = text.split("\nHybrid and rerank:\n")
    assert len(re.findall(r"^  -", first, re.MULTILINE)) == 11  # with --help
    assert "\nInverted lists:\n  --nprobe N " in others


def test_another_model_of_the_same_space_searches_where_it_is_said_to_be_one(run, tiny, tmp_path):
    with Retriever(tiny, tmp_path / "index", device="cpu") as retriever:
        retriever.add([("a", "Pears ripen."), ("b", "The moon.")])
    similar = ColBERT.from_dense(tiny, device="cpu")
    with torch.no_grad():
        for weights in similar.parameters():
            weights.add_(0.1 * weights.std() * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    similar.save(tmp_path / "similar")
    write_beir(tmp_path / "beir", {"a": "Pears ripen.", "b": "The moon."}, {"q": "pears"}, {"q": {"a": 1}})
    model = ("--model", tmp_path / "similar", "--device", "cpu")
    index = tmp_path / "index"
    commands = {
        "search": ("search", index, "pears"),
        "explain": ("explain", index, "pears", "a"),
        "why-not": ("why-not", index, "pears", "b", "-k", 1),
        "evaluate": ("evaluate", tmp_path / "beir", "--index", index, "--measure", "RR", "--json"),
    }
    refused = run(*commands["search"], *model)
    assert refused.exit_code == 1
    assert "with other weights than this model has" in refused.stderr
    assert "Or give --same-space for a model that was made for the vectors of that one." in refused.stderr
    unnamed = run(*commands["search"], "--same-space")
    assert unnamed.exit_code == 2
    assert "--same-space: it is about the model of --model" in unnamed.stderr
    outputs = {}
    for name, command in commands.items():
        result = run(*command, *model, "--same-space")
        assert result.exit_code == 0, result.output
        outputs[name] = result.stdout
    settings = json.loads(outputs["evaluate"])["settings"]
    assert settings["model"] == str(tmp_path / "similar")
    assert settings["document_model"] == str(tiny)
