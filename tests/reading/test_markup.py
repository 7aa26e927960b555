"""Headings, tables and front matter of light markup: what stands before passages, and the metadata of a document."""

import json
import warnings

import pytest

from latelier.reading.records import Part
from latelier.retrieve import read_documents

TABLE = "| Town | Heat |\n| --- | --- |\n| Cork | 3 C |\n| Turku | 8 C |"


def read(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    documents = read_documents(path.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        [document] = documents
    return document, [each.message for each in documents.skipped]


def headings(document):
    """Return the headings and the header before each line that a part begins with."""
    found = {}
    for part, following in zip(document.parts, [*document.parts[1:], Part(len(document.text))], strict=True):
        text = document.text[part.start : following.start].strip()
        if text:
            found[text.split("\n")[0]] = part.headings + part.header
    return found


@pytest.mark.parametrize(
    ("name", "text", "title", "expected"),
    [
        (
            "a.org",
            "#+TITLE: Bees\n\nHives.\n* TODO [#A] Frames  :buy:\nTwelve.\n"
            "#+begin_src c\n* no\n#+end_src\n** Shop\nMill.",
            "Bees",
            {
                "Hives.": "",
                "* TODO [#A] Frames  :buy:": "",
                "Twelve.": "Frames",
                "** Shop": "Frames",
                "Mill.": "Frames > Shop",
            },
        ),
        (
            "a.adoc",
            "= Bees\n\nHives.\n\n== Frames\nTwelve.\n\n----\n== no\n----\n\n=== Shop\nMill.",
            "Bees",
            {
                "= Bees": "",
                "Hives.": "",
                "== Frames": "",
                "Twelve.": "Frames",
                "=== Shop": "Frames",
                "Mill.": "Frames > Shop",
            },
        ),
        (
            "a.textile",
            "h1(#x). Bees\n\nHives.\n\nh2. Frames\n\nTwelve.",
            "Bees",
            {"h1(#x). Bees": "", "Hives.": "", "h2. Frames": "", "Twelve.": "Frames"},
        ),
        (
            "a.tex",
            "\\title{On \\emph{Bees}~now}\n% \\section{no}\n\\section[x]{Frames \\& {more}\\label{f}}\nTwelve.\n"
            "\\begin{verbatim}\n\\section{no}\n\\end{verbatim}\n\\subsection*{Shop}\nMill.",
            "On Bees now",
            {
                "\\title{On \\emph{Bees}~now}": "",
                "\\section[x]{Frames \\& {more}\\label{f}}": "",
                "Twelve.": "Frames & more",
                "\\subsection*{Shop}": "Frames & more",
                "Mill.": "Frames & more > Shop",
            },
        ),
        (
            "a.rst",
            "****\nBees\n****\n\nHives.\n\nFrames\n++++++\n\nTwelve.\n\n"
            'Shop\n""""\n\nMill.\n\n# no\n\nEnd\n+++\n\nLast.',
            "Bees",
            {
                "****": "",
                "Hives.": "",
                "Frames": "",
                "Twelve.": "Frames",
                "Shop": "Frames",
                "Mill.": "Frames > Shop",
                "End": "",
                "Last.": "End",
            },
        ),
    ],
)
def test_titles_and_headings(tmp_path, name, text, title, expected):
    document, _ = read(tmp_path / name, text)
    assert (document.title, headings(document)) == (title, expected)


@pytest.mark.parametrize(
    ("name", "text", "header", "row"),
    [
        ("a.md", f"# Stock\n\n{TABLE}\n\nText.", "| Town | Heat |", "| Cork | 3 C |"),
        ("a.md", "# Stock\n\nTown | Heat\n:--- | ---:\nCork | 3 C\n\nText.", "Town | Heat", "Cork | 3 C"),
        (
            "a.org",
            "* Stock\n|------+------|\n| Town | Heat |\n|------+------|\n"
            "| Cork | 3 C |\n|------+------|\n| b | c |\n\nText.",
            "| Town | Heat |",
            "| Cork | 3 C |",
        ),
        (
            "a.html",
            "<h1>Stock</h1><table><tr><th>Town<th>Heat<tr><td>Cork<td>3 C</table>Text.",
            "| Town | Heat |",
            "| Cork | 3 C |",
        ),
        (
            "b.html",
            "<h1>Stock</h1><table><tr><td>Town</td><td>Heat</td></tr>"
            "<tr><td>Cork</td><td>3 C</td></tr><tr><td>a</td>"
            "<td></td></tr></table>Text.",
            "| Town | Heat |",
            "| Cork | 3 C |",
        ),
        ("a.csv", 'Town;"Storage\nheat"\nCork;3 C\n', 'Town;"Storage\nheat"', "Cork;3 C"),
        ("a.tsv", "Town\tHeat\nCork\t3 C\n", "Town\tHeat", "Cork\t3 C"),
    ],
)
def test_the_rows_of_a_table_are_below_its_header(tmp_path, name, text, header, row):
    document, _ = read(tmp_path / name, text)
    below = [part for part in document.parts if part.header]
    assert [part.header for part in below] == [header]
    assert document.text[below[0].start :].startswith(row)
    following = document.parts[document.parts.index(below[0]) + 1 :]
    assert [document.text[part.start :].strip() for part in following[:1]] == ["Text."] * (name[-1] not in "v")


@pytest.mark.parametrize(
    "text",
    [
        "2023;2024;2025\n1;2;3\n",  # numbers are no names of columns
        "one\ntwo\n",
        '"never ends\n' * 50,
    ],
)
def test_tables_without_a_header(tmp_path, text):
    assert [part.header for part in read(tmp_path / "a.csv", text)[0].parts] == [""]


def test_tables_that_lay_out_a_page_are_texts(tmp_path):
    page = "<table><tr><td><p>One.<p>Two.</td><td><table><tr><th>a<th>b<tr><td>1<td>2</table></td></tr></table>"
    document, _ = read(tmp_path / "a.html", page)
    assert document.text == "One.\n\nTwo.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"


YAML = """rating: 4
draft: true
date: 2026-03-01
when: 2026-03-01T10:00:00Z
no: 2026-02-31
price: 3.50
time: 12:30
zip: 00501
version: 1.10.2
author:
  name: Ana
tags: [garden, "well"]
aliases:
- Pyrus
summary: >
  A long
  summary
made: !r Sys.Date()
nan: .nan
empty:
"""


@pytest.mark.parametrize("ends", ["---", "..."])
def test_values_of_yaml(tmp_path, ends):
    document, unread = read(tmp_path / "a.md", f"---\n{YAML}{ends}\n# Pears\n\nText.", "utf-8-sig")
    values = {name: value for name, value in document.metadata.items() if name not in ("path", "modified")}
    assert values == {
        "rating": 4,
        "draft": True,
        "date": "2026-03-01",
        "when": "2026-03-01T10:00:00+00:00",
        "no": "2026-02-31",
        "price": 3.5,
        "time": "12:30",
        "zip": "00501",
        "version": "1.10.2",
        "author": {"name": "Ana"},
        "tags": ["garden", "well"],
        "aliases": ["Pyrus"],
        "summary": "A long summary\n",
        "made": "Sys.Date()",
        "title": "Pears",
    }
    assert unread == []
    leads = {part.header for part in document.parts if document.text[part.start :].lstrip().startswith("# Pears")}
    assert leads == {"garden, well\nPyrus\nA long summary"}
    assert document.parts[-1].header == ""


@pytest.mark.parametrize(
    ("text", "values", "unread"),
    [
        (
            '+++\ntitle = "T"\nweight = 3\nday = 2026-03-01\n[params]\nx = [1]\n+++\nText.',
            {"title": "T", "weight": 3, "day": "2026-03-01", "params": {"x": [1]}},
            [],
        ),
        ('{"title": "T", "weight": 3}\n\nText.', {"title": "T", "weight": 3}, []),
        ('{"title": "T"} is JSON.', {}, []),
        ("---\n\nA rule, then text.\n\n---\n\nText.", {}, []),
        (
            "---\nrating: 5\nplain: a: b\n---\nText.",
            {"rating": 5, "plain": "a: b"},
            ["'plain' of the front matter as YAML (line 3: mapping values are not allowed in this context) not read"],
        ),
        (
            "---\ntitle: [unclosed\n---\nText.",
            {},
            ["front matter as YAML (line 3: did not find expected ',' or ']') not read"],
        ),
        ("+++\ntitle = \n+++\nText.", {}, ["front matter as TOML (Invalid value (at line 1, column 9)) not read"]),
        (
            "---\na: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [" + "*c, " * 3000 + "]\n---\nText.",
            {},
            ["front matter as YAML (it has more than 10,000 values, or is nested more than 20 deep) not read"],
        ),
    ],
)
def test_front_matter_that_is_not_yaml_or_no_front_matter(tmp_path, text, values, unread):
    document, messages = read(tmp_path / "a.md", text)
    found = {name: value for name, value in document.metadata.items() if name not in ("path", "modified")}
    assert (found, messages) == (values, unread)
    shown = document.text[document.parts[0].start :].strip()
    assert shown == ("Text." if values else text.strip())


def test_keywords_and_aliases_of_org(tmp_path):
    text = ':PROPERTIES:\n:ID: 1\n:ROAM_ALIASES: "honey bees" apis\n:END:\n#+title: Bees\n#+filetags: :a:b:\n\nHives.'
    document, _ = read(tmp_path / "a.org", text)
    assert (document.title, document.metadata["tags"], document.metadata["aliases"]) == (
        "Bees",
        ["a", "b"],
        ["honey bees", "apis"],
    )
    assert document.parts[0].header == "honey bees, apis\na, b"
    assert json.dumps(document.metadata)


def test_a_table_that_is_cut_keeps_its_columns(tmp_path, tiny):
    from latelier.retrieve import Retriever

    rows = "".join(f"| Cork {number} | {number} C |\n" for number in range(40))
    (tmp_path / "a.md").write_text(f"# Stock\n\n| Town | Heat |\n| --- | --- |\n{rows}\nThe end.\n")
    (tmp_path / "b.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nPears ripen.\n")
    (tmp_path / "c.md").write_text("---\naliases: [Pyrus]\n---\nText of c.")
    retriever = Retriever(tiny, device="cpu")
    retriever.add(tmp_path, passages=64)
    [result] = retriever.search("39", k=1, mode="keywords")
    assert result.text.startswith("Stock\n| Town | Heat |\n| Cork")
    assert result.text[-(result.end - result.start) :] in (tmp_path / "a.md").read_text()
    [said] = retriever.search("ripen", k=1, mode="keywords")
    assert (said.metadata["time"], next(iter(_places(retriever, "ripen")))) == ("00:00:01", "at 00:00:01")
    assert [result.id for result in retriever.search("Pyrus", mode="keywords")] == ["c.md"]
    assert _places(retriever, "39") == ["line 44"]


def _places(retriever, query):
    results = retriever.search(query, k=1, mode="keywords")
    return [results.excerpt(result).place for result in results]
