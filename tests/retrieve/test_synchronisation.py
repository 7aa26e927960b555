"""Synchronising an index with folders and files: nothing is removed unless it is known to be gone."""

import errno
import itertools
import json
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latelier import indexes, models
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.reading import folders
from latelier.reading.process import ReadingTimeoutError
from latelier.retrieve import Retriever, SkipReason, read_documents
from latelier.retrieve.synchronisation import skipped_files


@pytest.fixture(scope="module")
def encoder(tiny):
    return models.ColBERT(tiny, device="cpu")


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("pears", "moon", "stone"):
        (folder / f"{name}.md").write_text(f"About {name}.")
    return folder


def counts(report):
    return {name: count for name, count in report._asdict().items() if count}


def test_a_second_run_reads_and_encodes_what_has_changed(notes, tiny, monkeypatch):
    retriever = Retriever(tiny, device="cpu")
    assert counts(retriever.synchronise(notes)) == {"new": 3}
    past = (notes / "moon.md").stat().st_mtime_ns - 10**11
    for path in notes.iterdir():
        os.utime(path, ns=(past, past))  # touched: read again, but not encoded
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3}
    reads = []
    monkeypatch.setattr("latelier.reading.folders.read_file", lambda path, *_: reads.append(path) or [])
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3}
    assert reads == []
    monkeypatch.undo()
    (notes / "moon.md").write_text("About noon.")  # as long as before
    (notes / "stone.md").unlink()
    (notes / "new.md").write_text("About plums.")
    assert counts(retriever.synchronise(notes)) == {"new": 1, "changed": 1, "removed": 1, "unchanged": 1}
    status = (notes / "moon.md").stat()
    (notes / "moon.md").write_text("About doom.")
    os.utime(notes / "moon.md", ns=(status.st_mtime_ns, status.st_mtime_ns))  # in the same instant
    assert counts(retriever.synchronise(notes)) == {"changed": 1, "unchanged": 2}
    (notes / "new.md").unlink()
    assert counts(retriever.synchronise(notes, remove=False)) == {"unchanged": 2}
    retriever.add(notes)
    assert len(retriever) == 3
    assert counts(retriever.synchronise(notes)) == {"removed": 1, "unchanged": 2}


def test_a_copy_of_an_index_goes_on_following_the_folder(notes, tiny):
    first = Retriever(tiny, device="cpu")
    first.synchronise(notes)
    first.add([{"id": "mine", "text": "A text of my own."}])
    copy = indexes.IVF()
    indexes.copy_documents(first.index, copy)
    second = Retriever(tiny, copy, device="cpu")
    (notes / "moon.md").write_text("About noon.")
    (notes / "stone.md").unlink()
    assert counts(second.synchronise(notes)) == {"changed": 1, "removed": 1, "unchanged": 1}
    assert (second.index.ids(), second.index.get("moon.md").text[-5:]) == (["pears.md", "mine", "moon.md"], "noon.")
    third = Retriever(tiny, device="cpu")
    third.synchronise(notes)
    indexes.copy_documents(copy, third.index)  # whose documents of the folder are its own
    (notes / "pears.md").write_text("About peas.")
    assert counts(third.synchronise(notes)) == {"changed": 1, "unchanged": 1}
    assert sorted(third.index.ids()) == ["mine", "moon.md", "pears.md"]


@pytest.mark.filterwarnings("ignore:skipped")
def test_folders_that_are_away_and_others(notes, tiny, tmp_path):
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes, passages=False)
    moved = notes.rename(tmp_path / "moved")
    (moved / "moon.md").write_text("Another moon.")
    (moved / "sun.md").write_text("The sun.")
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        retriever.synchronise(notes)
    report = retriever.synchronise(moved)  # nobody knows that it was moved
    assert (report.new, report.changed, report.removed, len(retriever)) == (1, 0, 0, 4)
    assert [(each.path, each.reason) for each in report.skipped] == [
        (name, SkipReason.ID) for name in ("moon.md", "pears.md", "stone.md")
    ]
    assert "--moved-from" in report.skipped[0].message
    assert retriever.index.get("moon.md").text.endswith("About moon.")
    moved.rename(notes)
    assert counts(retriever.synchronise(notes))["changed"] == 1


def test_a_folder_that_was_moved_is_taken_for_it_if_told_so(notes, tiny, tmp_path):
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    moved = tmp_path / "moved"
    with pytest.raises(InvalidArgumentError, match=r"its sources are: .*notes"):
        retriever.synchronise(notes, moved_from=moved)
    notes.rename(moved)
    (moved / "moon.md").unlink()
    with pytest.warns(UserWarning, match="moon.md: where it was is another place by now"):
        report = retriever.synchronise(moved, moved_from=notes)
    assert (report.unchanged, report.kept, report.removed) == (2, 1, 0)  # nothing confirms yet that it is gone
    assert counts(retriever.synchronise(moved)) == {"unchanged": 2, "removed": 1}
    moved.rename(notes)
    notes.mkdir(exist_ok=True)
    moved.mkdir()
    with pytest.raises(InvalidArgumentError, match="still there"):
        retriever.synchronise(notes, moved_from=moved)


def test_documents_of_the_user_stay_as_they_are_even_if_they_are_stored_alike(notes, tiny):
    retriever = Retriever(tiny, device="cpu")
    retriever.add(list(read_documents(notes)), passages=False)
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3}
    (notes / "moon.md").unlink()
    assert counts(retriever.synchronise(notes)) == {"unchanged": 2}
    assert "moon.md" in retriever.index
    (notes / "moon.md").write_text("About moon.")
    retriever.add([("plums.md", "by hand"), ("fig.md", "by hand")])
    (notes / "plums.md").write_text("About plums.")
    for _ in range(2):  # it is not forgotten
        with pytest.warns(UserWarning, match="plums.md: in the index are other documents"):
            report = retriever.synchronise(notes)
        assert (report.unchanged, report.skipped[0].path, report.skipped[0].reason) == (3, "plums.md", SkipReason.ID)
    (notes / "plums.md").unlink()
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3}
    assert retriever.index.get("plums.md").text == "by hand"
    retriever.remove("plums.md")
    (notes / "plums.md").write_text("About plums.")
    assert counts(retriever.synchronise(notes)) == {"new": 1, "unchanged": 3}


def test_lines_of_a_text_file_are_not_added_twice(tmp_path, tiny):
    path = tmp_path / "lines.txt"
    path.write_text("pears\nmoon\n")
    retriever = Retriever(tiny, device="cpu")
    assert counts(retriever.synchronise(path)) == {"new": 2}
    assert counts(retriever.synchronise(path)) == {"unchanged": 2}
    path.write_text("moon\nplums\n")
    with pytest.warns(UserWarning, match="lines.txt: it does not hold all"):
        report = retriever.synchronise(path)
    assert (report.new, report.unchanged, report.kept, report.removed) == (1, 1, 1, 0)
    assert counts(retriever.synchronise(path)) == {"removed": 1, "unchanged": 2}
    assert sorted(record.text for record in retriever.index.get(retriever.index.ids())) == ["moon", "plums"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_run_interrupted_at_its_commit_goes_on_without_doubles(tiny, tmp_path, is_committed):
    class Interrupted(indexes.Flat):
        def write(self, given, *arguments, **options):
            if not given.ids:
                return super().write(given, *arguments, **options)
            if is_committed:
                super().write(given, *arguments, **options)
            else:
                super().update("first", np.ones((1, 48)), "another's")
            raise KeyboardInterrupt

    (tmp_path / "lines.txt").write_text("pears are sweet\nplums are blue\n")
    with Retriever(tiny, Interrupted(tmp_path / "index"), device="cpu") as retriever, pytest.raises(KeyboardInterrupt):
        retriever.synchronise(tmp_path / "lines.txt")
    with Retriever(tiny, tmp_path / "index", device="cpu") as retriever:
        report = retriever.synchronise(tmp_path / "lines.txt")
        assert counts(report) == ({"unchanged": 2} if is_committed else {"new": 2})
        assert len(retriever) == (2 if is_committed else 3)


def test_an_interrupted_run_goes_on(notes, tiny, monkeypatch):
    retriever = Retriever(tiny, device="cpu")
    encode = retriever.query_model.encode_documents

    def interrupted(texts, **options):
        if any("stone" in text for text in texts):
            raise KeyboardInterrupt
        return encode(texts, **options)

    monkeypatch.setattr(retriever.query_model, "encode_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retriever.synchronise(notes, chunk_size=1)
    assert len(retriever) == 2
    monkeypatch.undo()
    assert counts(retriever.synchronise(notes)) == {"new": 1, "unchanged": 2}


def failing(monkeypatch, function, *names):
    """Let a function of os or of pathlib fail for paths that end with some names."""
    owner = os if function == "scandir" else Path
    real = getattr(owner, function)

    def fail(path=".", *arguments, **options):
        if str(path).endswith(names):
            raise OSError(errno.EIO, "the drive says: it is empty", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(owner, function, fail)


def test_what_cannot_be_listed_or_read_keeps_its_documents(notes, tiny, monkeypatch):
    (notes / "sub" / "deep").mkdir(parents=True)
    for name in ("sub/a.md", "sub/deep/b.md"):
        (notes / name).write_text(f"About {name}.")
    retriever = Retriever(tiny, device="cpu")
    assert retriever.synchronise(notes).new == 5
    (notes / "sub" / "a.md").unlink()
    with monkeypatch.context() as patch:
        failing(patch, "scandir", "sub")
        with pytest.warns(UserWarning, match=r"sub: it cannot be listed: .*; its 2 documents are kept"):
            report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept, report.removed, len(retriever)) == (3, 2, 0, 5)
    assert (report.skipped[0].path, report.skipped[0].reason) == ("sub", SkipReason.UNREADABLE)
    (notes / "moon.md").write_text("Another one.")
    with monkeypatch.context() as patch:
        failing(patch, "open", "moon.md")
        with pytest.warns(
            UserWarning, match=r"it is empty.*; its document is kept"
        ):  # the words of an error say nothing
            report = retriever.synchronise(notes)
    assert (report.removed, report.skipped[0].reason, len(retriever)) == (1, SkipReason.UNREADABLE, 4)
    assert counts(retriever.synchronise(notes)) == {"changed": 1, "unchanged": 3}
    shutil.rmtree(notes / "sub")
    assert counts(retriever.synchronise(notes)) == {"removed": 1, "unchanged": 3}


@pytest.mark.filterwarnings("ignore:skipped")
def test_what_a_pattern_a_link_or_an_ignore_file_leaves_out_is_kept(notes, tiny, tmp_path):
    (notes / "sub").mkdir()
    (notes / "sub" / "a.md").write_text("About a.")
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    (notes / ".gitignore").write_text("sub/\nmoon.md\n")
    report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept, report.removed) == (2, 2, 0)
    assert [(each.path, each.reason) for each in report.skipped] == [("moon.md and 1 more", SkipReason.KEPT)]
    report = retriever.synchronise(read_documents(notes, glob="pears.*"))
    assert (report.unchanged, report.kept, report.removed) == (1, 3, 0)
    (notes / ".gitignore").unlink()
    (notes / "sub").rename(tmp_path / "elsewhere")
    (notes / "sub").symlink_to(tmp_path / "elsewhere")
    report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept) == (3, 1)
    assert report.skipped[0].message == "a link to a folder; its document is kept"


def begin_with(prefix, retriever):
    return [id for id in retriever.documents if str(id).startswith(prefix)]


def test_files_with_other_names_keep_their_vectors(notes, tiny, monkeypatch):
    (notes / "sub").mkdir()
    records = [{"id": "x", "text": "pears"}, {"id": "y", "text": "plums"}]
    (notes / "sub" / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    (notes / "long.md").write_text("word " * 3000)
    for passages in (None, False):
        retriever = Retriever(tiny, device="cpu", model_options={"max_length_document": 64})
        retriever.synchronise(notes, passages=passages)
        (notes / "sub").rename(notes / "other")
        (notes / "long.md").rename(notes / "other" / "longer.md")
        (notes / "moon.md").rename(notes / "moon.txt")  # read in another way
        before = retriever.index.get_embeddings(begin_with("sub/", retriever))
        report = retriever.synchronise(notes)
        assert (report.new, report.renamed, report.removed, report.unchanged) == (1, 3, 1, 2)
        after = retriever.index.get_embeddings(begin_with("other/records", retriever))
        if passages is False:
            np.testing.assert_array_equal(before.vectors, after.vectors)
        [found] = retriever.search("pears", k=1, mode="keywords")
        assert found.metadata["path"] == "pears.md" or found.id == "other/records.jsonl#x"
        ids = {"other/longer.md", "other/records.jsonl#x", "other/records.jsonl#y", "moon.txt", "pears.md", "stone.md"}
        assert {hit.id for hit in retriever.search("word", k=10)} == ids
        assert retriever.search("word", k=10, filter="path = 'other/longer.md'")[0].id == "other/longer.md"
        assert counts(retriever.synchronise(notes)) == {"unchanged": 6}
        (notes / "moon.txt").rename(notes / "moon.md")
        (notes / "other" / "longer.md").rename(notes / "long.md")
        (notes / "other").rename(notes / "sub")


@pytest.mark.parametrize(
    "content", ["", '{"id": "x", "te', "[]", '{"id": "x", "text": "pears"}'], ids=["empty", "half", "none", "less"]
)
def test_what_a_file_does_not_hold_any_more_is_removed_at_the_second_run(notes, tiny, content):
    (notes / "records.jsonl").write_text('{"id": "x", "text": "pears"}\n{"id": "y", "text": "plums"}\n')
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    full = (notes / "records.jsonl").read_text()
    held = content.count("}")
    for _ in range(2):
        (notes / "records.jsonl").write_text(content)
        with pytest.warns(UserWarning, match="kept until the next run"):
            report = retriever.synchronise(notes)
        assert (report.kept, report.removed, len(retriever)) == (2 - held, 0, 5)
        (notes / "records.jsonl").write_text(full)
        assert counts(retriever.synchronise(notes)) == {"unchanged": 5}
    (notes / "records.jsonl").write_text(content)
    with pytest.warns(UserWarning, match="kept until the next run"):
        retriever.synchronise(notes)
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3 + held, "removed": 2 - held}


@pytest.mark.filterwarnings("ignore")
def test_an_id_of_two_files_is_that_of_the_first(tmp_path, tiny):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"id": 1, "text": "pears"}\n{"id": 1, "text": "figs"}\n')
    (tmp_path / "data" / "b.jsonl").write_text('{"id": 1, "text": "moon"}\n{"id": 2, "text": "sun"}\n')
    (tmp_path / "c.jsonl").write_text('{"id": 1, "text": "stone"}\n{"id": 3, "text": "sand"}\n')
    retriever = Retriever(tiny, device="cpu")
    report = retriever.synchronise(tmp_path / "data")
    assert (report.new, [(each.path, each.reason) for each in report.skipped]) == (
        2,
        [("a.jsonl", SkipReason.ID), ("b.jsonl", SkipReason.ID)],
    )
    report = retriever.synchronise(tmp_path / "c.jsonl")
    assert (report.new, report.changed, report.skipped[0].reason) == (1, 0, SkipReason.ID)
    assert [retriever.index.get(id).text for id in (1, 2, 3)] == ["pears", "sun", "sand"]
    (tmp_path / "data" / "a.jsonl").write_text('{"id": 4, "text": "figs"}\n')
    report = retriever.synchronise(tmp_path / "data")  # b.jsonl was not forgotten
    assert (report.new, report.changed, retriever.index.get(1).text) == (1, 1, "moon")


def test_numbers_are_given_when_documents_are_stored(tmp_path, tiny):
    retriever = Retriever(tiny, device="cpu")
    retriever.add([{"id": "own", "text": "Own."}])
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i}\n" for i in range(6)))
    with meanwhile(retriever.index, lambda: retriever.synchronise(tmp_path / "beta.txt"), at=2):
        assert retriever.synchronise(tmp_path / "alpha.txt", chunk_size=3).new == 6
    texts = [record.text.split()[0] for record in retriever.index.get(retriever.index.ids())]
    assert (texts.count("alpha"), texts.count("beta")) == (6, 6)


@contextmanager
def meanwhile(index, act, at=1):
    """Do something before the commit of documents with a number, counted from 1."""
    write = index.write
    count = 0

    def written(given, *arguments, **options):
        nonlocal count
        count += bool(given.ids)
        if given.ids and count == at:
            index.write = write
            act()
            index.write = written
        return write(given, *arguments, **options)

    index.write = written
    try:
        yield
    finally:
        index.write = write


@pytest.mark.filterwarnings("ignore:skipped")
def test_what_others_have_stored_meanwhile_stays_and_is_said(notes, tiny):
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes, passages=False)
    (notes / "moon.md").write_text("Another moon.")
    (notes / "new.md").write_text("About plums.")
    mine = [("moon.md", "my moon"), ("new.md", "my plums")]
    with meanwhile(retriever.index, lambda: retriever.update(mine)):
        report = retriever.synchronise(notes)
    assert (report.new, report.changed, report.unchanged) == (0, 0, 2)
    assert {(each.path, each.reason) for each in report.skipped} == {
        ("moon.md", SkipReason.ID),
        ("new.md", SkipReason.ID),
    }
    assert [retriever.index.get(id).text for id, _ in mine] == ["my moon", "my plums"]
    (notes / "moon.md").unlink()
    assert retriever.synchronise(notes).removed == 0
    assert retriever.index.get("moon.md").text == "my moon"
    retriever.remove("new.md")  # so that the folder may have its own
    assert retriever.synchronise(notes).new == 1


def test_two_runs_of_one_folder_at_once(notes, tiny):
    retriever = Retriever(tiny, device="cpu")
    with meanwhile(retriever.index, lambda: retriever.synchronise(notes)):
        report = retriever.synchronise(notes)
    assert counts(report) == {"unchanged": 3}
    assert counts(retriever.synchronise(notes)) == {"unchanged": 3}


def test_a_killed_run_claims_nothing_that_it_has_not_stored(notes, tiny):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    retriever = Retriever(tiny, device="cpu")
    lines = notes.parent / "lines.txt"
    lines.write_text("".join(f"line {i}\n" for i in range(3)))
    for source in (notes, lines):
        with pytest.raises(Killed), meanwhile(retriever.index, kill, at=2):
            retriever.synchronise(source, chunk_size=2, passages=False)
    assert len(retriever) == 4
    retriever.add(["mine without an id"])
    retriever.add([{"id": "stone.md", "text": "mine with an id"}])
    with pytest.warns(UserWarning, match="stone.md: in the index are other documents"):
        assert counts(retriever.synchronise(notes))["unchanged"] == 2
    assert counts(retriever.synchronise(lines)) == {"new": 1, "unchanged": 2}
    (notes / "stone.md").unlink()
    lines.write_text("line 1\n")
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            retriever.synchronise(notes)
            retriever.synchronise(lines)
    texts = {record.text for record in retriever.index.get(retriever.index.ids())}
    assert {"mine without an id", "mine with an id", "line 1"} < texts
    assert "line 0" not in texts


@pytest.mark.filterwarnings("ignore:skipped")
def test_another_place_confirms_nothing_at_first(notes, tiny, tmp_path):
    (notes / "sub").mkdir()
    (notes / "sub" / "a.md").write_text("About a.")
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    (notes / "sub").rename(tmp_path / "sub")
    (notes / "sub").mkdir()  # such as a mount point without its drive
    report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept, report.removed) == (3, 1, 0)
    assert "another place" in report.skipped[0].message
    (notes / "sub").rmdir()
    (tmp_path / "sub").rename(notes / "sub")
    assert counts(retriever.synchronise(notes)) == {"unchanged": 4}
    notes.rename(tmp_path / "drive")
    notes.mkdir()  # another drive
    (notes / "photos.md").write_text("About photos.")
    report = retriever.synchronise(notes)
    assert (report.new, report.kept, report.removed) == (1, 4, 0)
    (notes / "photos.md").unlink()
    notes.rmdir()
    (tmp_path / "drive").rename(notes)
    report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept) == (4, 1)
    shutil.rmtree(notes / "sub")
    assert retriever.synchronise(notes).removed == 2  # photos.md has been missed by two runs at this place


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_drive_that_is_not_mounted_removes_nothing(notes, tiny, monkeypatch):
    (notes / "sub").mkdir()
    (notes / "sub" / "a.md").write_text("About a.")
    real = Path.stat

    def stat(path, **options):
        status = real(path, **options)
        if "sub" in path.parts:  # as on a drive of its own
            (values, others) = status.__reduce__()[1]
            status = os.stat_result((*values[:2], status.st_dev + 1, *values[3:]), others)
        return status

    retriever = Retriever(tiny, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        retriever.synchronise(notes)
    shutil.rmtree(notes / "sub")
    for _ in range(3):
        report = retriever.synchronise(notes)
        assert (report.unchanged, report.kept, report.removed) == (3, 1, 0)
        assert report.skipped[0].message.startswith("its drive is not mounted")


def test_more_than_half_of_a_source_is_kept_for_one_run(notes, tiny):
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    for name in ("moon", "pears"):
        (notes / f"{name}.md").unlink()
    with pytest.warns(UserWarning, match="more than half of all files are missing at once; its 2 documents are kept"):
        report = retriever.synchronise(notes)
    assert (report.unchanged, report.kept, report.removed) == (1, 2, 0)
    assert counts(retriever.synchronise(notes)) == {"unchanged": 1, "removed": 2}


def test_other_options_of_reading_are_a_change(notes, tiny, tmp_path):
    (notes / "old.txt").write_bytes("\u00dcbung".encode("cp850"))
    table = tmp_path / "table.csv"
    table.write_text("id,text,body\n1,Bananas,The moon\n")
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes, passages=False)
    report = retriever.synchronise(read_documents(notes, encoding="cp850"))
    assert (report.changed, report.unchanged) == (1, 3)
    assert "\u00dcbung" in retriever.index.get("old.txt").text
    retriever.synchronise(read_documents(table, text="text"))
    assert counts(retriever.synchronise(read_documents(table, text="body"))) == {"changed": 1}
    assert retriever.index.get("1").text == "The moon"


def test_an_edit_with_its_time_put_back_and_documents_that_were_removed_by_hand_are_seen(notes, tiny, monkeypatch):
    monkeypatch.setattr("latelier.retrieve.synchronisation._COARSEST", -(10**12))
    retriever = Retriever(tiny, device="cpu")
    retriever.synchronise(notes)
    status = (notes / "moon.md").stat()
    (notes / "moon.md").write_text("About noon.")  # as long as before
    os.utime(notes / "moon.md", ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert counts(retriever.synchronise(notes)) == {"changed": 1, "unchanged": 2}
    retriever.remove("pears.md")
    with pytest.warns(UserWarning, match="pears.md: documents of it were removed by hand; they are stored again"):
        assert retriever.synchronise(notes).unchanged == len(retriever) == 3
    retriever.remove(["moon.md", "pears.md", "stone.md"])
    with pytest.warns(UserWarning, match="stored again"):
        assert retriever.synchronise(notes).unchanged == len(retriever) == 3


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_file_that_took_all_its_time_is_not_tried_again_until_it_changes(notes, tiny, monkeypatch):
    real = folders.read_file
    reads = []

    def read_file(path, *arguments):
        reads.append(path.name)
        if path.name == "moon.md":
            raise ReadingTimeoutError("reading it took longer than 60 seconds.")
        return real(path, *arguments)

    monkeypatch.setattr(folders, "read_file", read_file)
    retriever = Retriever(tiny, device="cpu")
    report = retriever.synchronise(notes)
    assert (report.new, report.skipped[0].reason) == (2, SkipReason.TIME)
    report = retriever.synchronise(notes)
    assert (report.unchanged, report.skipped[0].reason, reads.count("moon.md")) == (2, SkipReason.TIME, 1)
    (notes / "moon.md").write_text("About noon.")
    retriever.synchronise(notes)
    assert reads.count("moon.md") == 2


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="all names are Unicode")
def test_names_that_are_no_unicode_are_kept_apart_from_their_spelling(tiny, tmp_path):
    retriever = Retriever(tiny, device="cpu")
    for number, name in enumerate((b"caf\xe9", rb"caf\xe9", rb"caf\udce9")):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        (folder / f"{number}.md").write_text(f"About {number}.")
        assert counts(retriever.synchronise(folder)) == {"new": 1}
    assert len(retriever) == len(retriever.index.origins.sources()) == 3


# What follows draws any sequence of changes of two folders, of faults, and of runs. Names differ between the folders.
SOURCES = st.sampled_from(("one", "two"))
NAMES = ("a-{}.md", "sub/b-{}.md", "sub/deep/c-{}.md", "sub/r-{}.jsonl")
FILES = st.sampled_from(NAMES)
OTHERS = st.sampled_from((*NAMES, "d-{}.md", "moved/b-{}.md", "r-{}.jsonl"))
TEXTS = st.sampled_from(("pears are sweet", "plums are blue", "figs", ""))
FAULTS = st.frozensets(st.sampled_from(("", "sub", "sub/deep", *NAMES)), max_size=2)
STEPS = st.one_of(
    st.tuples(st.just("write"), SOURCES, FILES, TEXTS),
    st.tuples(st.just("delete"), SOURCES, FILES),
    st.tuples(st.just("rename"), SOURCES, OTHERS, OTHERS),
    st.tuples(st.just("rename"), SOURCES, st.sampled_from(("sub", "moved")), st.sampled_from(("sub", "moved", "new"))),
    st.tuples(st.just("unplug"), SOURCES),
    st.tuples(st.just("synchronise"), SOURCES, FAULTS | st.just(frozenset())),
)


class Disk:
    """Two folders of files, either of which may be away."""

    def __init__(self, root):
        self.root = root
        for source, name in itertools.product(("one", "two"), NAMES):
            (root / source).mkdir(exist_ok=True)
            self.write(source, name, "pears are sweet")

    def path(self, source, name):
        return self.root / source / name.format(source)

    def write(self, source, name, text):
        """Write a text, and in a file of records a record for each of its words."""
        path = self.path(source, name)
        if (self.root / source).is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps({"id": i, "text": word}) for i, word in enumerate(text.split())]
            path.write_text("\n".join(lines) if path.suffix == ".jsonl" else text)

    def delete(self, source, name):
        self.path(source, name).unlink(missing_ok=True)

    def rename(self, source, old, new):
        old, new = self.path(source, old), self.path(source, new)
        if old.exists() and old.suffix == new.suffix and (old.is_file() or not new.exists()):
            new.parent.mkdir(parents=True, exist_ok=True)
            old.replace(new)

    def unplug(self, source):
        """Take a folder away, or bring it back."""
        folder, away = self.root / source, self.root / f"{source} (away)"
        if folder.exists():
            folder.rename(away)
        else:
            away.rename(folder)

    def held(self, source):
        """Return the texts of the documents that the files of a folder hold now, by file and id."""
        found = {}
        for path in (self.root / source).rglob("*.*"):
            name, text = path.relative_to(self.root / source).as_posix(), path.read_text()
            records = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else []
            whole = {name: f"{path.stem} {text}"} if text and path.suffix == ".md" else {}
            found[name] = whole | {f"{name}#{record['id']}": record["text"] for record in records}
        return found


@contextmanager
def faults(folder, names):
    """Let folders and files with some names fail while they are listed or opened."""
    failing = {str(folder / name.format(folder.name)) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "scandir"), (Path, "open")):
            real = getattr(owner, name)

            def fail(path=".", *arguments, real=real, **options):
                if str(path) in failing:
                    raise OSError(errno.EIO, "the file is empty", str(path))
                return real(path, *arguments, **options)

            patch.setattr(owner, name, fail)
        yield


def may_be_gone(disk, source, names, id, absent):
    """Whether a document is known to be gone: its file, or twice its part of a file that could be read."""
    file = id.partition("#")[0]
    failing = {name.format(source) for name in names}
    above = [parent.as_posix() for parent in Path(file).parents]
    if not disk.root.joinpath(source).exists() or failing & {*above, file} or "" in failing:
        return False
    return not disk.path(source, file).exists() or id in absent


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=2, max_size=14))
def test_no_document_is_missing_unless_it_is_known_to_be_gone(encoder, steps):
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disk = Disk(Path(name))
        retriever = Retriever(encoder, index=indexes.Flat())
        retriever.add([("by hand", "stone")], passages=False)
        absent = {"one": set(), "two": set()}  # what files that were read at the last run of a folder did not hold
        ends = [("synchronise", source, frozenset()) for source in ("one", "two") for _ in range(2)]
        for what, source, *arguments in [*ends, *steps, *ends]:
            if what != "synchronise":
                getattr(disk, what)(source, *arguments)
                continue
            [names] = arguments
            before = set(retriever.index.ids())
            try:
                with faults(disk.root / source, names):
                    retriever.synchronise(disk.root / source)
            except LatelierError:  # it is away, or none of its files can be read
                assert set(retriever.index.ids()) == before
                continue
            after = set(retriever.index.ids())
            held = {id: text for documents in disk.held(source).values() for id, text in documents.items()}
            for id in before - after:
                assert id not in held
                assert f"-{source}." in id
                assert may_be_gone(disk, source, names, id, absent[source])
            failing = {name.format(source) for name in names}
            for file, documents in disk.held(source).items():
                if not failing & {file, *(parent.as_posix() for parent in Path(file).parents), ""}:
                    absent[source] -= documents.keys()
                    own = {id for id in before | after if id.partition("#")[0] == file}
                    absent[source] |= own - documents.keys()
                    assert documents.keys() <= after
        texts = {record.id: record.text for record in retriever.index.get(retriever.index.ids())}
        assert texts.pop("by hand") == "stone"
        for source in ("one", "two"):
            own = {id: text for id, text in texts.items() if f"-{source}." in id}
            held = {id: text for documents in disk.held(source).values() for id, text in documents.items()}
            if held and (disk.root / source).exists():
                assert {id: text.split()[-1] for id, text in own.items()} == {
                    id: text.split()[-1] for id, text in held.items()
                }


def test_what_was_skipped_of_a_file_is_stored_with_it_and_survives_an_interruption(notes, tiny, monkeypatch):
    (notes / "a.jsonl").write_text('{"id": 1, "text": "Pears"}\n{"id": 2}\n')
    read = folders.DocumentFolder.read

    def interrupted(self, path):
        if path.name == "pears.md":
            raise KeyboardInterrupt
        return read(self, path)

    retriever = Retriever(tiny, device="cpu")
    monkeypatch.setattr(folders.DocumentFolder, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retriever.synchronise(notes, chunk_size=1, passages=False)
    monkeypatch.undo()
    assert len(retriever) == 2
    (only,) = skipped_files(retriever.index)[str(notes)]
    assert (only.path, only.reason) == ("a.jsonl", SkipReason.RECORDS)
    assert counts(retriever.synchronise(notes)) == {"new": 2, "unchanged": 2}  # a.jsonl is not read again
    assert skipped_files(retriever.index)[str(notes)] == [only]
