"""``latelier index`` on folders and tables: what is stored, what is skipped, and how fields are named."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from image_models import pictures, save_image_model
from latelier import indexes
from latelier.cli.locations import discarded_if_unused
from latelier.errors import LatelierError
from latelier.indexes import Flat
from latelier.models import load
from latelier.retrieve import Retriever
from latelier.utils import misc


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    (folder / "garden").mkdir(parents=True)
    (folder / "garden" / "pears.md").write_text("# Pears\n\nThey ripen in September.")
    (folder / "moon.txt").write_text("The moon is far away from the earth.")
    (folder / "empty.txt").write_text(" ")
    return folder


def test_a_folder(run, notes, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(misc, "INTERVAL", 0.0)  # in seconds
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))
    index, model = tmp_path / "index", shutil.copytree(tiny, tmp_path / "model")
    command = ["index", notes, index, "--model", model, "--device", "cpu"]
    with pytest.warns(UserWarning, match="empty.txt: it is empty"):
        result = run(*command, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("Opening the index and its model ...\n")
    assert "\nIndexing: 2 of 2 documents so far.\n" in result.stderr
    report = json.loads(result.stdout)
    assert (report["new"], [each["path"] for each in report["skipped"]]) == (2, ["empty.txt"])
    found = json.loads(run("search", index, "ripen", "in", "September", "--json", "--device", "cpu").stdout)["results"]
    pears, moon = sorted(found, key=lambda each: each["id"])
    assert pears["text"] == "# Pears\n\nThey ripen in September."  # its heading is not put before itself
    assert (pears["metadata"]["title"], moon["text"]) == ("Pears", "moon The moon is far away from the earth.")
    (notes / "empty.txt").unlink()
    (notes / "garden" / "plums.rst").write_text("Plums")
    (notes / "moon.txt").unlink()
    assert "2 documents (1 new, 1 removed, 1 unchanged), in 2 passages" in run(*command).stdout
    (notes / "moon.txt").write_text("The moon.")
    (notes / "garden" / "pears.md").unlink()
    assert "3 documents (1 new, 1 unchanged)" in run(*command, "--no-remove").stdout
    assert json.loads(run("remove", index, "moon.txt", "--prefix", "garden/pl", "--json").stdout)["removed"] == 2
    with Retriever.open(index) as retriever:
        assert len(retriever) == 1
    assert run("remove", index, "moon.txt").exit_code == 1
    assert run("remove", index).exit_code == 2
    (notes / "moon.txt").unlink()
    with pytest.warns(UserWarning, match="plums.rst: documents of it were removed by hand; they are stored again"):
        assert "2 documents (1 unchanged)" in run(*command, "--no-remove").stdout
    shutil.rmtree(model)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert "2 documents (1 unchanged)" in run("index", notes, index, "--no-remove").stdout  # without a model
    (notes / "moon.txt").write_text("The moon rises.")
    assert run("index", notes, index).exit_code == 1


def test_a_folder_without_a_document_is_an_error_and_makes_no_index(run, notes, tmp_path):
    command = ["index", notes, tmp_path / "index", "--device", "cpu"]
    result = run(*command, "--glob", "*.rst", "--glob", "*.org")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "looked for files *.rst, *.org in it and its sub-folders" in result.stderr
    for path in notes.rglob("*.*"):
        path.unlink()
    (notes / "a.xyz").write_bytes(b"x\0")
    with pytest.warns(UserWarning, match="a.xyz: a binary file has no text"):
        result = run(*command)
    assert (result.exit_code, "and all 1 found were skipped." in result.stderr) == (1, True)
    assert not (tmp_path / "index").exists()


TWICE = '{"id": 1, "text": "Pears."}\n{"id": 1, "text": "Plums."}\n'


@pytest.mark.parametrize("was_folder", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.jsonl", TWICE, (), "documents[1]: id 1 is given twice"),
        ("a.jsonl", "", (), "nothing to index in "),
        ("a.csv", "id,text\n", (), "a.csv: it holds no document"),
        ("a.jsonl", TWICE, ("--exact", "--model", "no-such-folder/model"), "no-such-folder/model"),
    ],
)
def test_a_first_run_without_a_document_leaves_no_index(
    run, tmp_path, tiny, was_folder, name, content, options, message
):
    (tmp_path / name).write_text(content)
    (tmp_path / "good.jsonl").write_text('{"id": 1, "text": "Pears."}\n')
    index, model = tmp_path / "index", ("--model", tiny, "--device", "cpu")
    if was_folder:
        index.mkdir()
    result = run("index", tmp_path / name, index, *model, *options)
    assert (result.exit_code, message in result.stderr) == (1, True), result.output
    assert (index.exists(), was_folder and [*index.iterdir()]) == (was_folder, was_folder and [])
    assert run("index", tmp_path / "good.jsonl", index, *model, "--exact").exit_code == 0
    with indexes.open(index) as made:
        assert (type(made), made.dtype) == (Flat, "float16")


def test_an_index_that_holds_a_document_or_was_there_before_stays(run, tmp_path, tiny):
    (tmp_path / "empty.txt").write_text("\n")
    Flat(tmp_path / "empty").close()
    command = ["--model", tiny, "--device", "cpu"]
    result = run("index", tmp_path / "empty.txt", tmp_path / "empty", *command)
    assert (result.exit_code, "nothing to index in" in result.stderr) == (1, True), result.output
    (tmp_path / "bad.jsonl").write_text('{"text": "Pears."}\n' * 2048 + "{}\n")
    result = run("index", tmp_path / "bad.jsonl", tmp_path / "index", *command)
    assert (result.exit_code, "bad.jsonl:2049: it has no 'text'" in result.stderr) == (1, True), result.output
    for name, documents in (("empty", 0), ("index", 2048)):
        assert json.loads(run("info", tmp_path / name, "--json").stdout)["documents"] == documents
    result = run("index", tmp_path / "empty.txt", tmp_path / "index", "--exact", *command)
    assert (result.exit_code, "has exact=False, not True; leave --exact out" in result.stderr) == (1, True), (
        result.output
    )
    result = run("index", tmp_path / "empty.txt", tmp_path / "index", "--bits", 2, *command)
    assert "2,048 documents (nothing to do), all of their text" in result.stdout, result.output


def test_a_new_index_that_another_process_has_filled_meanwhile_stays(tmp_path):
    folder = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt), discarded_if_unused(folder, lambda: _Emptied(folder)):
        raise KeyboardInterrupt
    with indexes.open(folder) as index:
        assert index.ids() == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


class _Emptied:
    """An index that is empty while this process looks, and that another one fills before it is removed."""

    def __init__(self, folder):
        Flat(folder).close()
        self._folder = folder

    def __len__(self):
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with Flat(self._folder) as index:
            index.add("theirs", np.eye(4))


def test_passages_of_files(run, notes, tmp_path, tiny):
    index = tmp_path / "index"
    (notes / "empty.txt").unlink()
    (notes / "long.txt").write_text("Plums fall in August. " * 30)
    command = ["index", notes, index, "--model", tiny, "--device", "cpu", "--json"]
    result = run(*command, "--passages", 40, "--overlap", 5, "--pool-factor", 2, "--precision", "float16")
    assert (result.exit_code, json.loads(result.stdout)["documents"]) == (0, 3), result.output
    facts = json.loads(run("info", index, "--json").stdout)
    assert (facts["documents"], facts["passages"] > 5) == (3, True)
    assert f"3 documents (3 unchanged), in {facts['passages']} passages" in run(*command[:-1]).stdout
    assert facts["bytes_per_document"] == round(facts["bytes"] / 3)
    found = json.loads(run("search", index, "plums", "-k", 3, "--json", "--device", "cpu").stdout)["results"]
    assert len({each["id"] for each in found}) == 3
    [plums] = [each for each in found if each["id"] == "long.txt"]
    assert "long " + (notes / "long.txt").read_text()[plums["start"] : plums["end"]] == plums["text"]
    with Retriever.open(index) as retriever:
        before = retriever.documents.ids()
    (notes / "moon.txt").write_text("The moon is near.")
    assert json.loads(run(*command).stdout)["changed"] == 1
    with Retriever.open(index) as retriever:  # the others stay where they are
        assert retriever.documents.ids() == [id for id in before if "moon" not in id] + ["moon.txt"]
    no_number = "expected a number of tokens from 16 on, auto, late, late:N or none"
    for wrong, message in (("few", no_number), ("9" * 5000, no_number), ("5", no_number)):
        result = run(*command, "--passages", wrong)
        assert (result.exit_code, message in result.stderr) == (2, True)
    assert "the index holds passages of 40 tokens" in run(*command, "--passages", 50).stderr


def test_pages_and_pictures(run, tmp_path, tiny):
    first, second = pictures()
    (tmp_path / "scans").mkdir()
    first.save(tmp_path / "scans" / "a.pdf", save_all=True, append_images=[second])
    second.save(tmp_path / "scans" / "b.webp")
    (tmp_path / "scans" / "c.png").write_bytes(b"no picture")
    folder, model = tmp_path / "index", save_image_model("colqwen2", tmp_path / "model")
    command = ["index", tmp_path / "scans", folder, "--pages", "images", "--model", model, "--device", "cpu"]
    with pytest.warns(UserWarning, match=r"c\.png: it is no picture in PNG"):
        assert "3 documents (3 new), whole" in run(*command).stdout
    (tmp_path / "scans" / "b.webp").unlink()
    assert "2 documents (1 removed, 2 unchanged)" in run(*command).stdout
    lines = run("search", folder, "profits", "--model", model, "--device", "cpu").stdout.splitlines()
    assert sorted(line.split("  ", 3)[-1] for line in lines) == [f"a.pdf#{page}, page {page}" for page in (1, 2)]
    single = run("index", tmp_path / "scans" / "a.pdf", tmp_path / "b", *command[3:], "--json")
    assert json.loads(single.stdout)["new"] == 2
    records = [{"id": "x", "image": str(tmp_path / "scans" / "a.pdf"), "page": 2}, {"id": "y", "text": "words"}]
    (tmp_path / "pages.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert "2 documents (2 new)" in run("index", tmp_path / "pages.jsonl", tmp_path / "d", *command[3:]).stdout
    refused = run("index", tmp_path / "pages.jsonl", tmp_path / "e", "--model", tiny)
    assert "pages.jsonl:1: it has no 'text'" in refused.stderr  # without the option, its image is metadata
    refused = run("index", tmp_path / "scans" / "a.pdf", tmp_path / "c", "--pages", "images", "--model", tiny)
    assert (refused.exit_code, "this model reads texts only" in refused.stderr) == (1, True)
    refused = run("index", __file__, tmp_path / "c", "--pages", "images", "--model", model)
    assert (refused.exit_code, "is no PDF, no picture, and no file of records" in refused.stderr) == (1, True)


def test_int8_is_kept_for_searches_and_a_backend_is_not(run, tmp_path, tiny, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))
    texts = ["pears grow on trees", "the moon is far"]
    (tmp_path / "two.txt").write_text("\n".join(texts))
    (tmp_path / "more.txt").write_text("a pear")
    model = load(str(tiny), device="cpu", backend="onnx")
    in_int8, in_float32 = (model.encode_document(texts, compute_dtype=dtype) for dtype in ("int8", "float32"))
    assert not np.array_equal(in_int8[0], in_float32[0])
    for name, options, expected in (
        ("int8", ("--compute-dtype", "int8"), in_int8),
        ("float32", ("--backend", "onnx"), in_float32),
    ):
        index = tmp_path / name
        command = ["index", tmp_path / "two.txt", index, "--model", tiny, "--device", "cpu", *options]
        assert run(*command).exit_code == 0
        with Retriever.open(index) as retriever:
            assert retriever.model_options == ({"compute_dtype": "int8"} if name == "int8" else {})
            stored = retriever.index.get_embeddings([0])[0]
            np.testing.assert_allclose(stored, expected[0], rtol=0, atol=0.05)  # in 4 bits
            queries = [vectors.numpy() for vectors in model.encode_query(texts, compute_dtype=name)]
            np.testing.assert_allclose(retriever.query_model.encode_queries(texts)[0], queries[0], rtol=0, atol=1e-5)
        result = run("search", index, "pears", "--json")
        assert (result.exit_code, json.loads(result.stdout)["results"][0]["id"]) == (0, 0), result.output
        assert run("index", tmp_path / "more.txt", index, "--backend", "onnx").exit_code == 0
        wrong = "float32" if name == "int8" else "int8"
        refused = run("index", tmp_path / "more.txt", index, "--compute-dtype", wrong)
        assert refused.exit_code != 0
        assert f"compute_dtype='{wrong}', but the index was filled in " in refused.stderr


@pytest.fixture
def start(tmp_path, tiny):
    started = []

    def begin(*arguments):
        command = [sys.executable, "-c", "from latelier.cli import main; main()", *map(str, arguments)]
        command += ["--model", str(tiny), "--device", "cpu"]
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def wait_until(fact, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(LatelierError, OSError):
            if fact():
                return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def count(index):
    with indexes.open(index, read_only=True) as opened:
        return len(opened)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_what_is_stored_and_goes_on(run, start, tmp_path, tiny, number, status):
    (tmp_path / "lines.txt").write_text("".join(f"pear {i} grows on tree {i * i}\n" for i in range(200_000)))
    command = tmp_path / "lines.txt", tmp_path / "index"
    process = start("index", *command)
    wait_until(lambda: count(tmp_path / "index"))
    process.send_signal(number)
    assert process.wait(60) == status
    stored = count(tmp_path / "index")
    assert 0 < stored < 200_000
    assert f"{stored:,} of the documents are stored; the same command goes on." in (tmp_path / "err").read_text()
    (tmp_path / "lines.txt").write_text("".join(f"pear {i} grows on tree {i * i}\n" for i in range(stored + 5)))
    result = run("index", *command, "--model", tiny, "--device", "cpu", "--json")
    report = json.loads(result.stdout)
    assert [report[name] for name in ("documents", "new", "unchanged")] == [stored + 5, 5, stored]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_a_watched_folder_is_kept_current(start, tmp_path):
    pytest.importorskip("watchfiles", reason="needs the extra files")
    folder, index = tmp_path / "notes", tmp_path / "notes" / "index"
    folder.mkdir()
    (folder / "pears.md").write_text("They ripen.")
    process = start("index", folder, index, "--watch")
    wait_until(lambda: count(index) == 1)
    (folder / "moon.md").write_text("It is far away.")
    wait_until(lambda: count(index) == 2)
    (folder / "moon.md").rename(tmp_path / "moon.md")
    (folder / "pears.md").rename(tmp_path / "pears.md")  # nothing is left: kept, with a warning
    wait_until(lambda: "so nothing is removed" in (tmp_path / "err").read_text())
    (tmp_path / "moon.md").rename(folder / "moon.md")
    wait_until(lambda: count(index) == 1)
    (folder / "letter.docx").write_bytes(b"PK damaged")
    if sys.platform == "linux":
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")).write_text("Its name is no text.")
    (folder / "sun.md").write_text("It is near.")  # what cannot be read stops nobody
    wait_until(lambda: count(index) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


@pytest.mark.slow
def test_a_folder_that_an_mcp_server_watches_is_kept_current(start, tmp_path, tiny):
    pytest.importorskip("watchfiles", reason="needs the extra files")
    pytest.importorskip("mcp", reason="needs the extra mcp")
    folder, index = tmp_path / "notes", tmp_path / "index"
    folder.mkdir()
    (folder / "pears.md").write_text("They ripen.")
    with Retriever(tiny, index=index, device="cpu") as retriever:
        retriever.add(folder)
    start("mcp", index, "--watch", folder)
    (folder / "letter.docx").write_bytes(b"PK damaged")
    (folder / "moon.md").write_text("It is far away.")
    wait_until(lambda: count(index) == 2)
    folder.rename(tmp_path / "away")
    wait_until(lambda: "Warning: " in (tmp_path / "err").read_text())
    (tmp_path / "away").rename(folder)
    (folder / "sun.md").write_text("It is near.")
    wait_until(lambda: count(index) == 3)
    with indexes.open(index, read_only=True) as opened:
        assert {record.metadata["path"] for record in opened.get(opened.ids())} == {"pears.md", "moon.md", "sun.md"}


def test_what_is_skipped_is_told_once_and_an_object_is_read_whole(run, tmp_path, tiny):
    folder, index = tmp_path / "files", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_text("Bananas are healthy.")
    (folder / "card.json").write_text('{"name": "penguins", "licence": "MIT"}')
    (folder / "old.tar.gz").write_bytes(b"\x1f\x8b")
    (folder / "tool.exe").write_bytes(b"MZ\0\0")
    (folder / "notes.xyz").write_bytes("Größe".encode("latin-1"))

    def skipped():
        with pytest.warns(UserWarning, match="skipped") as caught:
            assert run("index", folder, index, "--model", tiny, "--device", "cpu").exit_code == 0
        (message,) = [str(each.message) for each in caught if "skipped" in str(each.message)]
        return message

    first = skipped()
    assert "old.tar.gz: an archive; unpack it" in first
    assert "tool.exe: a binary file has no text" in first
    assert "notes.xyz: no text in UTF-8; --encoding names that of a text" in first
    assert skipped().endswith("skipped 3 files of " + str(folder) + ", as before")
    (folder / "new.zip").write_bytes(b"PK")
    third = skipped()
    assert "new.zip: an archive" in third
    assert "3 as before" in third
    found = json.loads(run("search", index, "penguins", "--mode", "keywords", "--json").stdout)["results"]
    assert [result["id"] for result in found] == ["card.json"]


def test_every_file_that_was_skipped_is_listed_until_it_is_read_or_gone(run, tmp_path, tiny):
    folder, index = tmp_path / "files", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_text("Bananas are healthy.")
    (folder / "b.jsonl").write_text('{"id": 1, "text": "The moon."}\n{"id": 2, "tex": "?"}\nno record\n')
    (folder / "page.html").write_text("<p>A pear.</p><iframe src='x'></iframe>")
    for number in range(15):
        (folder / f"tool.{number}x").write_bytes(b"MZ\0\0")
    (folder / "broken.docx").write_bytes(b"PK damaged")

    def skipped():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert run("index", folder, index, "--model", tiny, "--device", "cpu").exit_code == 0
        (told, listed) = (run("info", index, "--skipped", *options) for options in ([], ["--json"]))
        found = json.loads(listed.stdout)["skipped"]
        assert {each["source"] for each in found} == {str(folder)}
        assert all(f"  {each['path']}: {each['message']}\n" in told.stdout for each in found)
        assert told.stdout.startswith(f"{folder}: ")
        return {each["path"]: (each["reason"], each["message"]) for each in found}

    first = skipped()
    tools = [f"tool.{number}x" for number in range(15)]
    assert sorted(first) == sorted(["b.jsonl", "broken.docx", *tools])
    assert first["tool.7x"] == ("excluded", "a binary file has no text")
    assert first["broken.docx"][0] == "unreadable"
    assert first["b.jsonl"][0] == "records"
    assert first["b.jsonl"][1].startswith("2 of its records: ")
    assert skipped() == first
    (folder / "tool.0x").unlink()
    (folder / "tool.1x").write_text("A text by now.")
    (folder / "b.jsonl").rename(folder / "c.jsonl")
    (folder / ".latelierignore").write_text("a.md")
    third = skipped()
    assert sorted(third) == sorted(["a.md", "c.jsonl", "broken.docx", *tools[2:]])
    assert third["a.md"][0] == "kept"
    assert third["c.jsonl"] == first["b.jsonl"]
    (folder / ".latelierignore").unlink()
    assert sorted(skipped()) == sorted(["c.jsonl", "broken.docx", *tools[2:]])


def test_what_was_skipped_of_one_file_and_of_none_is_listed(run, tmp_path, tiny, folder):
    table, index = tmp_path / "table.csv", tmp_path / "index"
    table.write_text("id,text\n1,Pears\n2,\n3,\n")
    with pytest.warns(UserWarning, match="skipped"):
        assert run("index", table, index, "--model", tiny, "--device", "cpu").exit_code == 0
    (only,) = json.loads(run("info", index, "--skipped", "--json").stdout)["skipped"]
    assert (only["source"], only["path"]) == (str(table), "table.csv")
    assert only["message"].startswith("2 of its records: ")
    none = run("info", folder, "--skipped")
    assert none.stdout.endswith(": 0 left out, 0 read in part\n")
    assert json.loads(run("info", folder, "--skipped", "--json").stdout)["skipped"] == []


def test_standard_input_is_one_text(run, tmp_path, tiny):
    index = tmp_path / "index"
    arguments = ("index", "-", index, "--format", "whole", "--model", tiny, "--device", "cpu")
    assert run(*arguments, input="# Fruit\n\nBananas are\nhealthy.\n").exit_code == 0
    with indexes.open(index) as opened:
        assert [record.text for record in opened.get(opened.ids())] == ["# Fruit\n\nBananas are\nhealthy.\n"]


def test_an_index_of_an_interrupted_first_run_says_what_goes_on(run, tmp_path):
    indexes.IVF(tmp_path / "index", nbits=2).close()
    for command in (("search", "fruit"), ("explain", "fruit", "a"), ("why-not", "fruit", "a")):
        result = run(command[0], tmp_path / "index", *command[1:])
        assert result.exit_code == 1
        assert f"first run was interrupted before it stored one. This goes on: latelier index SOURCE {tmp_path}" in (
            result.stderr
        )


def test_documents_in_another_language_than_the_model_reads_are_told(run, tmp_path):
    german = "Die Bananen sind gesund und der Mond ist weit von der Erde entfernt."
    lines = [{"id": "de", "text": german}, {"id": "en", "text": "The moon is far away from the earth, and it is cold."}]
    records = "".join(json.dumps(line) + "\n" for line in lines)
    said = run("index", "-", tmp_path / "index", "--device", "cpu", input=records)
    assert "1 of 2 documents seem to be German; all-MiniLM-L6-v2 reads English" in said.stderr
    english = json.dumps({"id": "one", "text": "The sea is near to us, and it is warm."})
    assert "seem to be" not in run("index", "-", tmp_path / "other", "--device", "cpu", input=english).stderr


def test_an_index_knows_what_is_weak_and_learns_it_again_when_it_has_doubled(run, tmp_path):
    def add(first, last):
        texts = "".join(f"Ship {number} came from port {number} with rice and tea.\n" for number in range(first, last))
        result = run("index", "-", tmp_path / "index", "--device", "cpu", input=texts)
        assert result.exit_code == 0
        if "Learning" in result.output:  # the summary comes when all is done
            assert result.output.index("Learning") < result.output.index(" documents (")
        return result.stderr

    assert "Learning which results are weak ..." in add(0, 20)
    found = run("search", tmp_path / "index", "love and jealousy", "--device", "cpu").stdout.splitlines()
    assert found[0] == "nothing matches well; the nearest:"
    assert [line.split()[0] for line in found[1:7:2]] == ["1", "2", "3"]
    assert found[7].startswith("7 more match weakly: ")
    shown = run("search", tmp_path / "index", "a ship with rice", "--device", "cpu").stdout
    assert "weak" not in shown
    assert "Learning" not in add(20, 30)
    assert "again, as the index has grown from 20 documents" in add(30, 41)
