"""Files of many formats as texts: what is read of each, with its title, its headings and its pages."""

import io
import json
import os
import re
import warnings
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern
from test_page_images import pdf_of

from latelier.errors import InvalidArgumentError
from latelier.reading.folders import linear_regex
from latelier.retrieve import Passages, Retriever, read_documents
from latelier.retrieve.preparation import whole_text

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pack(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def read_one(path):
    [document] = read_documents(path)
    return document


def sections(document):
    ends = [part.start for part in document.parts[1:]] + [len(document.text)]
    pairs = zip(document.parts, ends, strict=True)
    return {
        text.split("\n")[0]: part.headings for part, end in pairs if (text := document.text[part.start : end].strip())
    }


def test_html(tmp_path):
    (tmp_path / "a.html").write_text(
        """<html><head><title>Pears - Site</title><style>p {}</style><script>var a = "<p>";</script></head><body>
        <nav><ul><li>Home</li></ul></nav><div role="main"><h1>Pears<a class="headerlink">¶</a></h1><p>They <b>ripen</b>
        in&nbsp;autumn.<p>Unclosed.<h2>Storage</h2><ul><li>cold<li>dry</ul><table><tr><td>a</td><td>1</td></tr></table>
        <pre>x = 1
  y</pre><h2>Uses</h2>Perry, cider, and some more words, so that this is the main part of it.</div>
        <footer>Imprint</footer></body></html>"""
    )
    document = read_one(tmp_path / "a.html")
    assert (document.title, document.metadata["title"]) == ("Pears - Site", "Pears - Site")
    assert document.text.startswith("# Pears\n\nThey ripen in autumn.\n\nUnclosed.\n\n## Storage\n\n- cold\n- dry\n")
    assert "```\nx = 1\n  y\n```" in document.text
    assert [word for word in ("Home", "Imprint", "var a", "p {}", "¶") if word in document.text] == []
    assert sections(document)["- cold"] == "Storage"
    (tmp_path / "b.htm").write_text("<title>Moon</title><p>far away", encoding="utf-16")
    document = read_one(tmp_path / "b.htm")
    assert (document.text, document.title) == ("far away", "Moon")


def test_markdown_with_front_matter(tmp_path):
    (tmp_path / "a.md").write_text(
        '---\ntitle: "Pear trees"\ntags: [fruit, "trees"]\naliases:\n  - perry\nrating: 7\n---\nIntro\n\n# One\n\na\n\n'
        "## Two\n\nb\n\nThree\n=====\n\nc\n"
    )
    document = read_one(tmp_path / "a.md")
    expected = {"title": "Pear trees", "tags": ["fruit", "trees"], "aliases": ["perry"], "rating": 7, "path": "a.md"}
    assert {name: document.metadata[name] for name in expected} == expected
    assert document.title == "Pear trees"
    assert whole_text(document).startswith("Pear trees\nfruit, trees\nperry\nIntro")  # of it, what people search for
    assert sections(document) == {
        "Intro": "", "# One": "", "a": "One", "## Two": "One", "b": "One > Two", "Three": "", "c": "Three",
    }  # fmt: skip


def test_office_files_and_books(tmp_path):
    def paragraph(text, style=""):
        style = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
        return f"<w:p>{style}<w:r><w:t>{text}</w:t></w:r></w:p>"

    body = (
        paragraph("Pears", "berschrift1") + paragraph("They ripen.") + paragraph("Storage", "h2") + paragraph("Cold.")
    )
    styles = '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    styles += '<w:style w:styleId="h2"><w:name w:val="Heading 2"/></w:style>'
    pack(
        tmp_path / "a.docx",
        **{
            "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>',
            "word/styles.xml": f'<w:styles xmlns:w="{WORD}">{styles}</w:styles>',
        },
    )
    document = read_one(tmp_path / "a.docx")
    assert (document.text, document.title) == ("# Pears\n\nThey ripen.\n\n## Storage\n\nCold.", "Pears")
    slide = '<sld xmlns:a="x"><a:p><a:r><a:t>{}</a:t></a:r></a:p></sld>'
    pack(tmp_path / "a.pptx", **{f"ppt/slides/slide{i}.xml": slide.format(f"slide {i}") for i in (10, 2, 1)})
    document = read_one(tmp_path / "a.pptx")
    assert document.text == "slide 1\n\nslide 2\n\nslide 10"
    assert [(part.start, part.page) for part in document.parts] == [(0, 1), (9, 2), (18, 3)]
    pack(
        tmp_path / "a.epub",
        **{
            "META-INF/container.xml": '<c><rootfile full-path="in/a.opf"/></c>',
            "in/a.opf": '<p><title>Book</title><creator>Ann</creator><item id="b" href="b.xhtml"/>'
            '<itemref idref="b"/></p>',
            "in/b.xhtml": "<h1>One</h1><p>Pears.</p>",
        },
    )
    document = read_one(tmp_path / "a.epub")
    assert (document.title, document.text, document.metadata["author"]) == ("Book", "# One\n\nPears.", "Ann")
    for name in ("b.docx", "b.epub", "b.odt"):
        (tmp_path / name).write_bytes(b"PK no archive")
        with pytest.raises(InvalidArgumentError, match=rf"{name}: it is damaged"):
            read_documents(tmp_path / name)


def test_notebooks_subtitles_and_mail(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Pears\n", "text"]},
        {"cell_type": "code", "source": "# no heading"},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    document = read_one(tmp_path / "a.ipynb")
    assert (document.text, document.title) == ("# Pears\ntext\n\n```\n# no heading\n```", "Pears")
    (tmp_path / "a.srt").write_text(
        "1\n00:00:01,000 --> 00:00:02,000\n<i>Pears</i> ripen.\n\n2\n00:00 --> 00:01\nNow.\n"
    )
    assert read_one(tmp_path / "a.srt").text == "Pears ripen.\n\nNow."
    mail = "From: ann@example.org\nSubject: {}\nMessage-ID: <{}@x>\nDate: Thu, 1 Feb 2024 10:00:00 +0000\n"
    coded = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\nVGhlIGludm9pY2U=\n\n"
    (tmp_path / "a.eml").write_text(mail.format("=?utf-8?q?R=C3=A9union?=", "a") + coded)
    document = read_one(tmp_path / "a.eml")
    assert (document.text.strip(), document.title, document.metadata["from"]) == (
        "The invoice",
        "Réunion",
        "ann@example.org",
    )
    assert document.metadata["date"] == "2024-02-01T10:00:00+00:00"
    one = "From ann Thu Feb  1\n" + mail
    (tmp_path / "a.mbox").write_text(one.format("One", "a") + coded + one.format("Two", "b") + "\nThe moon.\n")
    found = [(each.id, each.title, each.text.strip()) for each in read_documents(tmp_path / "a.mbox")]
    assert found == [("a.mbox#a@x", "One", "The invoice"), ("a.mbox#b@x", "Two", "The moon.")]


@pytest.mark.parametrize(
    ("name", "mail", "expected"),
    [
        ("Inbox", b"From - now\nFrom: a@x\nSubject: Box\n\n>From Rome.\n\nFrom here on, all is new.", ("Box", "new.")),
        ("17.M1P2.host:2,S", b"Received: from x\nSubject: Gr\xc3\xbc\xc3\x9fe\n\nThe moon.", ("Grüße", "moon.")),
        ("a.eml", "Subject: S\nContent-Type: text/plain; charset=us-ascii\n\nDie Größe".encode(), ("S", "Größe")),
        ("a.eml", b"Subject: The lease ends\n\n", ("The lease ends", "ends")),
        (
            "a.eml",
            b"Subject: F\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: message/rfc822\n\n"
            b"Subject: I\n\nForwarded.\n--x--\n",
            ("F", "Forwarded."),
        ),
    ],
)
def test_mails_as_programs_keep_them(tmp_path, name, mail, expected):
    (tmp_path / name).write_bytes(mail)
    [document] = read_documents(tmp_path)
    assert (document.title, whole_text(document).split()[-1]) == (expected[0], expected[1].split()[-1])


@pytest.mark.parametrize(
    ("name", "code", "headings"),
    [
        ("a.py", "import a\n\n# Sums.\n@cache\nasync def add():\n    if x:\n        pass\nx = 1", "add"),
        ("a.py", "class Pear(Tree):\n    def ripen(self):\n        def inner(): pass", "Pear; Pear > ripen"),
        ("a.js", "export class Pear extends Tree {\n  eat(a) {\n    if (a) {\n    }\n  }\n}", "Pear; Pear > eat"),
        (
            "a.c",
            "/* Sums. */\nstatic int add(int a,\n  int b)\n{\n  while (a) {\n  }\n}\nstruct pear {\n};",
            "add; pear",
        ),
        ("a.go", "type Pear struct {\n}\nfunc (p *Pear) Eat() int {\n}", "Pear; Eat"),
        ("A.java", "public class A {\n    @Override\n    public String b(int c) throws D {\n    }\n}", "A; A > b"),
        ("a.sql", "CREATE TABLE IF NOT EXISTS pear (a int);\nselect 1;", "pear"),
        ("a.sh", "# class of pears\nparse() {\n  echo\n}\nparse", "parse"),
    ],
)
def test_parts_of_source_code_are_its_functions_and_classes(tmp_path, name, code, headings):
    (tmp_path / name).write_text(code)
    document = read_one(tmp_path / name)
    assert (document.title, "; ".join(filter(None, (part.headings for part in document.parts)))) == (name, headings)


def test_passages_of_source_code_begin_at_functions(tmp_path, tiny):
    body = "    return parse(split(value), strict=True)\n"
    code = f"{20 * 'ABCDEFGH = 1 '}\n\n\n# Sums.\ndef add():\n{9 * body}\n\ndef small(): pass\n\n\ndef other():\n{body}"
    (tmp_path / "a.py").write_text(code)
    retriever = Retriever(tiny, device="cpu")
    retriever.add(tmp_path, passages=200)
    record = retriever.documents["a.py"]
    texts = [f"{each.title} {record.text[each.start : each.end]}" for each in record.passages]
    assert [text.split("\n")[0][:30] for text in texts] == [
        "a.py ABCDEFGH = 1 ABCDEFGH = 1", "a.py > add # Sums.", "a.py > small def small(): pass"
    ]  # fmt: skip


def test_pages_of_a_pdf_are_named_in_results(tmp_path, tiny):
    pdfium = pytest.importorskip("pypdfium2", reason="needs the extra files")
    (tmp_path / "a.pdf").write_bytes(pdf_of(texts=["# Pears ripen.", "The moon is far."]))
    document = read_one(tmp_path / "a.pdf")
    assert document.text == "# Pears ripen.\n\nThe moon is far."
    assert document.title == "a"  # what begins with # on a page is no heading
    retriever = Retriever(tiny, device="cpu")
    retriever.add(tmp_path / "a.pdf")
    found = {result.text: result.metadata["page"] for result in retriever.search("moon", mode="keywords")}
    assert found == {"a The moon is far.": 2}
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 damaged")
    with pytest.raises(InvalidArgumentError, match="damaged, encrypted, or no PDF"):
        read_documents(tmp_path / "b.pdf")
    assert pdfium.PdfDocument is not None


def test_the_headings_above_a_passage_stand_before_it(tmp_path, tiny):
    text = "# Pears\n\n" + "They ripen in autumn. " * 20 + "\n\n## Storage\n\n" + "Keep them cold and dry. " * 20
    (tmp_path / "a.md").write_text(text)
    retriever = Retriever(tiny, device="cpu")
    retriever.add(tmp_path / "a.md", passages=Passages(60, 0))
    results = retriever.search("storage", k=1, mode="keywords")
    headings = {each.title for each in retriever.documents["a.md"].passages}
    assert headings == {"", "Pears", "Pears > Storage"}
    assert "Storage" in results[0].text


def test_ignored_files(tmp_path):
    names = "a.py build/b.py src/build/c.py src/d.log src/keep.log node_modules/e.js env/pyvenv.cfg env/lib/f.py"
    for name in f"{names} .git/f.md x/y/z.md".split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / ".gitignore").write_text("# comment\n/build/\n*.log\n!keep.log\n")
    (tmp_path / "x" / ".latelierignore").write_text("y/**\n")
    (tmp_path / "page.js").write_text("f(1);" * 100)
    with pytest.warns(UserWarning, match="page.js: it is minified or generated"):
        assert [document.id for document in read_documents(tmp_path)] == ["a.py", "src/build/c.py", "src/keep.log"]


def test_records_in_a_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "part=1").mkdir(exist_ok=True)
        (tmp_path / "part=1" / f"{name}.jsonl").write_text(json.dumps({"id": name, "text": f"text {name}"}))
    found = [(document.id, document.metadata) for document in read_documents(tmp_path)]
    assert found == [("a", {"part": "1"}), ("b", {"part": "1"})]  # a data set in parts
    (tmp_path / "note.md").write_text("note")
    (tmp_path / "table.csv").write_text("fruit;price\npears;3\n")
    found = {document.id: document.text for document in read_documents(tmp_path)}
    assert [*found] == ["note.md", "part=1/a.jsonl#a", "part=1/b.jsonl#b", "table.csv"]
    assert found["table.csv"] == "fruit;price\npears;3\n"  # without a column of texts, it is one text
    (tmp_path / "package.json").write_text('{"name": "x"}')  # one object, and no record
    (tmp_path / "lock.json").write_text(json.dumps({"name": "x" * 200_000}))
    with pytest.warns(UserWarning, match="lock.json: none of its records has a field 'text'"):
        found = {document.id: document.text for document in read_documents(tmp_path)}
    assert (len(found), found["package.json"]) == (5, '{"name": "x"}')
    (document,) = read_documents(tmp_path / "package.json")
    assert (document.id, document.text) == ("package.json", '{"name": "x"}')


def test_long_texts_of_files_are_searchable_to_their_end(tmp_path, tiny):
    (tmp_path / "long.md").write_text("word " * 3000 + "\n\nquince")
    (tmp_path / "records.jsonl").write_text(json.dumps({"id": "a", "text": "word " * 3000 + "quince"}))
    (tmp_path / "short.jsonl").write_text(json.dumps({"id": "a", "text": "quince"}))
    for name, is_cut in (("long.md", True), ("records.jsonl", True), ("short.jsonl", False)):
        retriever = Retriever(tiny, device="cpu", model_options={"max_length_document": 64})
        retriever.add(tmp_path / name)
        assert (retriever.index.statistics().passages > 1) is is_cut
        [result] = retriever.search("quince", mode="keywords")
        assert (result.start is not None) is is_cut


def test_long_records_of_python_are_cut_into_passages(tiny):
    def filled(*texts, **options):
        retriever = Retriever(tiny, device="cpu", model_options={"max_length_document": 16})
        retriever.add(texts, **options)
        return retriever

    retriever = filled("word " * 100 + "quince", "word")
    assert len(retriever) == 2
    assert retriever.index.statistics().passages > 2
    [result] = retriever.search("quince", mode="keywords")
    assert result.text.endswith("quince")
    assert filled("word", "quince").index.ids() == [0, 1]  # texts that fit stay one
    with pytest.warns(UserWarning, match=r"1 document is longer than the model reads \(16 tokens\)"):
        filled("word").add(["word " * 100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert filled("word " * 100, passages=False).index.statistics().passages == 0


def test_tables_and_documents_of_frameworks(tiny):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    rows = {"id": ["a", "b"], "text": ["pears", "moon"], "n": [1.5, None]}
    duckdb = pytest.importorskip("duckdb")
    frame, table = pandas.DataFrame(rows), pyarrow.table(rows)
    dataset = pytest.importorskip("pyarrow.dataset").dataset(table)
    for each in (frame, frame.set_index("id"), table, table.to_reader(), dataset, duckdb.from_arrow(table)):
        retriever = Retriever(tiny, device="cpu")
        retriever.add(each)
        assert [tuple(record) for record in retriever.index.get(["a", "b"])] == [
            ("a", "pears", {"n": 1.5}),
            ("b", "moon", {}),
        ]
    with pytest.raises(InvalidArgumentError, match=r"expected a text or a list of texts, .* df\[.text.\]"):
        retriever.rerank("pears", table)
    langchain, haystack = pytest.importorskip("langchain_core.documents"), pytest.importorskip("haystack")
    schema = pytest.importorskip("llama_index.core.schema")
    documents = [
        langchain.Document("pears", id="a", metadata={"n": 1}),
        haystack.Document(id="b", content="moon", meta={"n": 2}),
        schema.TextNode(text="stone", id_="c", metadata={"n": 3}),
    ]
    retriever = Retriever(tiny, device="cpu")
    retriever.add(documents)
    found = [tuple(record) for record in retriever.index.get(["a", "b", "c"])]
    assert found == [("a", "pears", {"n": 1}), ("b", "moon", {"n": 2}), ("c", "stone", {"n": 3})]


@settings(max_examples=300, deadline=None)
@given(
    rule=st.one_of(
        st.text("ab*?/[!]", min_size=1, max_size=12),
        st.lists(st.sampled_from(("**", "a*b", "*a*a", "a")), max_size=6).map("/".join),
    ),
    paths=st.lists(st.text("ab/", min_size=1, max_size=16), min_size=1),
)
def test_linear_rules_match_what_those_of_pathspec_do(rule, paths):
    try:
        regex, _ = GitIgnoreSpecPattern.pattern_to_regex(rule)
    except ValueError:
        return
    if regex is not None:
        plain, linear = re.compile(regex), re.compile(linear_regex(regex))
        for path in paths:
            assert bool(plain.match(path)) == bool(linear.match(path))


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices")
def test_ignore_files_cannot_stop_anybody(tmp_path):
    (tmp_path / ("a" * 200 + ".md")).write_text("one")
    deep = tmp_path.joinpath(*["a"] * 60)
    deep.mkdir(parents=True)
    (deep / "b.md").write_text("two")
    file = tmp_path / ".gitignore"
    for rules, message in (
        ("*a" * 20 + "b\n", None),  # a regular expression of the 20th power
        ("a*/**/" * 15 + "c\n", None),
        ("[z-a]\nb.md\n!b.md\n", "'[z-a]'"),
        ("x" * 2000, "not valid, or too long"),
        ("x\n" * 20_000, "more than"),
        ("x" * (1 << 20) + "\n", "more than"),
    ):
        file.write_text(rules)
        documents = read_documents(tmp_path)
        assert len(documents) == 2
        assert [message in each.message for each in documents.skipped] == ([] if message is None else [True])
    file.unlink()
    os.mkfifo(file)
    assert read_documents(tmp_path).skipped[0].message == "its rules are not applied: it is not a regular file."
    file.unlink()
    file.symlink_to("/dev/zero")
    assert len(read_documents(tmp_path)) == 2


def packed(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), content)
    return file.getvalue()


# Each would take minutes, or gigabytes, in a reader whose time grows with the square of the size of its file.
LARGE = {
    "a.md": "# a" + " " * 50_000 + "b\n\nfruit",
    "b.md": "---\nlist:\n" + "- a\n" * 50_000 + "---\nfruit",
    "c.md": "# " + "a" * 500_000 + "\n" + "## b\n" * 20_000 + "fruit",
    "a.c": "*f(){\n" * 50_000 + "fruit",
    "a.html": "fruit" + "<div>" * 50_000 + "<a " * 50_000 + "<!--" * 50_000,
    "b.html": "fruit" + "<p a='" * 50_000,
    "a.srt": "fruit" + "<" * 100_000 + "{\\" * 100_000,
    "a.docx": packed(word__document_xml="<d>" + "<p>" * 20_000 + "<t>fruit</t>" + "</p>" * 20_000 + "</d>"),
    "a.tex": "fruit" + "\\section{" * 50_000,
    "b.tex": "fruit" * 50_000 + "\\section{a}" * 20_000 + "\\begin{verbatim}" * 20_000,
    "a.org": "#+a: b\n" * 20_000 + "* a\n" * 20_000 + "|" * 50_000 + "\n|--\nfruit",
    "a.rst": "a\n=\n" * 20_000 + "=" * 50_000 + "\nfruit",
    "d.md": "| a | b |\n|---|---|\n" * 50_000 + "fruit",
    "e.md": "---\n" + "a: " * 20_000 + "\n---\nfruit",
    "c.html": "fruit" + "<table><tr><td>" * 20_000,
    "a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": "`" * 50_000 + "fruit"}]}),
    "a.odt": packed(content_xml="<d>" + "<p>" * 20_000 + "fruit" + "</p>" * 20_000 + "</d>"),
    "a.eml": "From: a\nTo: " + '"a@b.c,' * 20_000 + "\nSubject: " + "=?utf-8?q?a?= " * 20_000 + "\n\nfruit",
    "b.eml": 'From: a\nContent-Type: text/plain; a="' + ";" * 100_000 + "\n\nfruit",
}


@pytest.mark.parametrize("name", LARGE)
def test_the_time_of_a_reader_grows_with_the_size_of_the_file(tmp_path, name):
    content = LARGE[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    document = read_one(tmp_path / name)
    assert "fruit" in document.text
    assert max(len(part.headings) for part in document.parts) <= 1010
    assert len(document.title) <= 1010


def test_what_is_within_a_paragraph_or_a_mail_is_read_once(tmp_path):
    box = "<p><r><t>One</t></r><r><txbx><p><t>two</t></p><p><t>three</t></p></txbx></r><t>four</t></p>"
    (tmp_path / "a.docx").write_bytes(packed(word__document_xml=f"<d>{box}<p><t>five</t></p></d>"))
    assert read_one(tmp_path / "a.docx").text.split() == ["Onefour", "two", "three", "five"]
    (tmp_path / "a.odt").write_bytes(packed(content_xml="<d><p>One<n><p>two</p></n> three</p><p>four</p></d>"))
    assert read_one(tmp_path / "a.odt").text == "One three\n\ntwo\n\nfour"
    nested = "".join(f"Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n" for i in range(40))
    (tmp_path / "a.eml").write_text(f"From: a\n{nested}\nfruit")
    with pytest.raises(InvalidArgumentError, match="nested more than 30 deep"):
        read_one(tmp_path / "a.eml")


def test_headers_of_mails_are_decoded(tmp_path):
    header = (
        "From: =?iso-8859-1?Q?J=F6rg_A?= =?utf-8?B?w7Y=?= <j@x>\r\nTo: a@x,\r\n b@x\r\n"
        "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= an\r\n alle =?no-such?q?x?=\r\nDate: Fri, 1 Mar 2024 10:00:00 +0100\r\n"
        "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n"
        "Content-Type: text/html; charset=latin1\r\n\r\n<p>Gr\xfc\xdfe\r\n--b\r\n"
        "Content-Type: text/plain; name*=utf-8''%C3%A4.txt\r\nContent-Disposition: attachment\r\n\r\nno\r\n--b--"
    )
    (tmp_path / "a.eml").write_bytes(header.encode("latin1"))
    document = read_one(tmp_path / "a.eml")
    assert document.title == "Grüße an alle x"
    assert document.metadata["from"] == "Jörg Aö <j@x>"
    assert (document.metadata["to"], document.metadata["date"]) == ("a@x, b@x", "2024-03-01T10:00:00+01:00")
    assert document.text == "Grüße\n\n# ä.txt\n\nno"


def test_html_that_does_not_end(tmp_path):
    texts = {
        "a<!-- b": "a",
        "a<p title='x>b": "a",
        "a<p title=x >b": "a\n\nb",
        "1 < 2 &amp; 3 </ x>4<?x ?>5<![CDATA[6]]>": "1 < 2 & 3 456",
        "<script>x</scripty></SCRIPT >a<br/>b": "a\nb",
        "<P CLASS=nav>x</P>a<a href=x/>b</a>": "ab",
    }
    for markup, text in texts.items():
        (tmp_path / "a.html").write_text(markup)
        assert read_one(tmp_path / "a.html").text == text
