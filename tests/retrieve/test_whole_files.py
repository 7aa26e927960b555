"""Folders of text and Markdown files: which files are read, what their documents are, and what is skipped."""

import gzip
import os

import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve import read_documents
from latelier.retrieve.readers import markdown_title


def read(folder, **options):
    """Return the documents by id, and the reasons of skipped files by path."""
    documents = read_documents(folder, **options)
    found = {document.id: document for document in documents}
    return found, dict(documents.skipped)


def test_a_folder_of_notes(tmp_path):
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfPears\r\nripen.\r\n")
    (tmp_path / "work" / "a.MD").write_text("intro\n\n# On figs #\nThey dry.")
    (tmp_path / "work" / "deep" / "c.markdown").write_text("no heading")
    (tmp_path / "ignored.csv").write_text("text\n1")
    (tmp_path / ".git" / "d.txt").write_text("hidden")
    (tmp_path / ".hidden.txt").write_text("hidden")
    os.utime(tmp_path / "b.txt", (0, 0))
    found, skipped = read(tmp_path)
    assert (list(found), skipped) == (["b.txt", "work/a.MD", "work/deep/c.markdown"], {})
    assert found["b.txt"].text == "Pears\r\nripen.\r\n"  # as in the file, so that offsets are those of the file
    assert found["b.txt"].metadata == {"path": "b.txt", "modified": "1970-01-01T00:00:00Z"}
    assert (found["work/a.MD"].title, found["work/a.MD"].metadata["title"]) == ("On figs", "On figs")
    assert found["work/deep/c.markdown"].title == ""


def test_patterns(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.rst", "sub/b.rst", "sub/c.txt.gz", "d.txt"):
        content = b"some text"
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [*read(tmp_path, glob="*.rst")[0]] == ["a.rst", "sub/b.rst"]
    assert [*read(tmp_path, glob=["sub/*.rst", "d.*"])[0]] == ["d.txt", "sub/b.rst"]
    assert read(tmp_path, glob="*.gz")[0]["sub/c.txt.gz"].text == "some text"
    for glob in (5, [""], [b"*"]):
        with pytest.raises(InvalidArgumentError, match="as glob; expected patterns"):
            read_documents(tmp_path, glob=glob)


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("**/*.md", ["a.md", "docs/a.md", "docs/deep/er/x.md", "docs/x.md"]),
        ("**/**/a.*", ["a.md", "a.rst", "docs/a.md"]),
        ("docs/**/x.md", ["docs/deep/er/x.md", "docs/x.md"]),
        ("docs/**", ["docs/a.md", "docs/deep/er/x.md", "docs/x.md"]),
        ("do**/x.md", ["docs/deep/er/x.md", "docs/x.md"]),
        ("d*/**/d*/er/x.md", ["docs/deep/er/x.md"]),
        ("*s/**/d*/**/x*", ["docs/deep/er/x.md"]),
        ("d*/*.md", ["docs/a.md", "docs/deep/er/x.md", "docs/x.md"]),
    ],
)
def test_two_asterisks_and_a_slash_match_folders_of_any_depth(tmp_path, glob, expected):
    (tmp_path / "docs" / "deep" / "er").mkdir(parents=True)
    for name in ("a.md", "a.rst", "docs/a.md", "docs/x.md", "docs/deep/er/x.md"):
        (tmp_path / name).write_text("text")
    assert [*read(tmp_path, glob=glob)[0]] == expected


def test_a_folder_without_the_wanted_files_is_a_warning(tmp_path):
    (tmp_path / "a.org").write_text("text")
    for glob, wanted in (
        (["*.rst", "b/**/*.org"], r"'\*\.rst', 'b/\*\*/\*\.org'"),
        ((), r"\.txt, \.md and \.markdown"),
    ):
        with pytest.warns(UserWarning, match=rf"no file of .* is read: looked for {wanted} in it") as caught:
            assert read(tmp_path, glob=glob) == ({}, {})
        assert [each.filename for each in caught] == [__file__]


def test_files_that_cannot_be_read_are_skipped_and_named(tmp_path):
    (tmp_path / "good.txt").write_text("a good one")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "long.txt").write_text("x" * (2**24 + 1))
    (tmp_path / "zip.txt.gz").write_bytes(gzip.compress(b"text" * 1000)[:20])
    with pytest.warns(UserWarning, match=r"skipped 4 files of .*\n  empty.txt: is empty: nothing to index") as caught:
        found, skipped = read(tmp_path, glob=["*.txt", "*.gz"])
    assert [each.filename for each in caught] == [__file__]
    assert [*found] == ["good.txt"]
    assert {name: reason.split("(")[0].strip() for name, reason in skipped.items()} == {
        "latin.txt": "is not UTF-8 text",
        "empty.txt": "is empty: nothing to index.",
        "long.txt": "is longer than 16,777,216 characters; split it.",
        "zip.txt.gz": skipped["zip.txt.gz"],
    }
    assert "damaged gzip" in skipped["zip.txt.gz"]


@pytest.mark.skipif(os.name == "nt", reason="links, pipes and names of bytes")
def test_links_pipes_and_odd_names(tmp_path):
    folder, outside = tmp_path / "notes", tmp_path / "secret.txt"
    (folder / "sub").mkdir(parents=True)
    outside.write_text("not in the folder")
    (folder / "sub" / "real.txt").write_text("here")
    (folder / "inside.txt").symlink_to(folder / "sub" / "real.txt")
    (folder / "outside.txt").symlink_to(outside)
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "sub" / "up").symlink_to(folder)
    os.mkfifo(folder / "pipe.txt")
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "w") as file:  # noqa: PTH123 (a name that is not Unicode)
        file.write("text")
    (folder / "two\nlines.txt").write_text(" ")
    with pytest.warns(UserWarning, match=r"(?s)skipped 6 files.*\n  'two\\nlines.txt': is empty"):
        found, skipped = read(folder)
    assert [*found] == ["inside.txt", "sub/real.txt"]
    assert skipped.pop("two\nlines.txt") == "is empty: nothing to index."
    assert skipped.pop("loop.txt").startswith("a link that leads nowhere")
    assert "is not valid Unicode" in skipped.pop("caf\udce9.txt")
    assert skipped == {
        "outside.txt": "a link to a file outside of the folder",
        "sub/up": "a link to a folder",
        "pipe.txt": "not a regular file",
    }
    assert [*read(folder / "sub" / "up" / "sub", glob="*.txt")[0]] == ["real.txt"]  # a link that is named is followed


def test_it_can_be_read_twice_and_knows_its_length(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    documents = read_documents(tmp_path)
    assert (len(documents), [d.id for d in documents], [d.id for d in documents]) == (
        2,
        ["a.txt", "b.txt"],
        ["a.txt", "b.txt"],
    )
    (tmp_path / "a.txt").unlink()
    with pytest.warns(UserWarning, match="skipped 1 files .*\n  a.txt: there is no file"):
        assert [d.id for d in documents] == ["b.txt"]
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        read_documents(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One", "One"),
        ("text\r\n## Two ##\r\n# One", "Two"),
        ("#hashtag\n####### seven\n    # code\n#\n", ""),
        ("```\n# comment\n```\n~~~~\n# in\n~~~\n# in\n~~~~\n### Three", "Three"),
        ("", ""),
        ("---\n# a yaml comment\ntags: x\n---\n\n# One", "One"),
        ("---\r\n# a yaml comment\r\n...\r\nOne\r\n===", "One"),
        ("---\n\n# not closed", "not closed"),
        ("text\n---\n# One", "text"),
        ("One\n  =====  \n# Two", "One"),
        ("a paragraph\nof two lines\n---\n## Two", "Two"),
        ("- item\n---\n> quote\n---\n| cell |\n---\n\n---\n***\n---\n# Two", "Two"),
        ("```\nOne\n===\n```\n===\n\n===\n# Two", "Two"),
    ],
)
def test_the_title_is_the_first_heading(text, title):
    assert markdown_title(text) == title
