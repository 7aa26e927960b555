"""What a file holds is read, once, or the report of the run names it."""

import gzip
import json
import os
import subprocess
import sys
import warnings
import zipfile

import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve import SkipReason, read_documents

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:mc="mc" xmlns:v="v"'
ODF = 'xmlns:o="urn:office" xmlns:t="urn:text" xmlns:b="urn:table" xmlns:d="urn:draw" xmlns:p="urn:presentation"'
ODF += ' xmlns:dc="urn:dc"'
SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PICTURE = b"\x89PNG\r\n\x1a\n"


def pack(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def relations(**targets):
    found = "".join(
        f'<Relationship Id="{id}" Type="{RELATION}/{kind}" Target="{target}"/>'
        for id, (kind, target) in targets.items()
    )
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{found}</Relationships>'
    )


def run(text):
    return f"<w:r><w:t>{text}</w:t></w:r>"


def paragraph(content):
    return f"<w:p>{content}</w:p>"


def row(*cells):
    return f"<w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in cells)}</w:tr>"


def word_file(path, body, **members):
    named = {name.replace("__", "/") + ".xml": f"<w:x {WORD}>{content}</w:x>" for name, content in members.items()}
    pack(path, {"word/document.xml": f"<w:document {WORD}><w:body>{body}</w:body></w:document>", **named})


def read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        documents = read_documents(path)
        [document] = documents
    return document, [each.message for each in documents.skipped]


def test_notes_comments_and_headers_of_word_stand_once_beside_what_they_belong_to(tmp_path):
    marked = run("Due in") + "".join(f'<w:{kind}Reference w:id="1"/>' for kind in ("footnote", "endnote", "comment"))
    notes = {
        f"word__{kind}s": f'<w:{kind} w:id="1" w:author="Ana">{paragraph(run(kind + " text"))}</w:{kind}>'
        for kind in ("footnote", "endnote", "comment")
    }
    header = {f"word__header{number}": paragraph(run("Mill and Sons")) for number in (1, 2)}
    word_file(tmp_path / "a.docx", paragraph(marked) + paragraph(run("Next.")), **notes, **header)
    document, unread = read(tmp_path / "a.docx")
    expected = "Due in\n\nfootnote text\n\nendnote text\n\nComment by Ana: comment text\n\nNext.\n\nMill and Sons"
    assert (document.text, unread) == (expected, [])


def test_what_is_deleted_moved_or_given_in_two_forms_in_word_is_read_once(tmp_path):
    def box(kind):
        return f"<{kind}><v:y><w:txbxContent>{paragraph(run('boxed'))}</w:txbxContent></v:y></{kind}>"

    forms = f"<w:r><mc:AlternateContent>{box('mc:Choice')}{box('mc:Fallback')}</mc:AlternateContent></w:r>"
    ruby = f"<w:r><w:ruby><w:rt>{run('toukyou')}</w:rt><w:rubyBase>{run('Tokyo')}</w:rubyBase></w:ruby></w:r>"
    body = [
        run("In ") + f"<w:del>{run('ninety')}</w:del><w:ins>{run('thirty')}</w:ins>" + run(" days"),
        f"<w:moveFrom>{run('clause')}</w:moveFrom>",
        f"<w:moveTo>{run('clause')}</w:moveTo>",
        run("before") + forms + run(" after"),
        ruby,
    ]
    word_file(tmp_path / "a.docx", "".join(map(paragraph, body)))
    document, _ = read(tmp_path / "a.docx")
    assert document.text == "In thirty days\n\nclause\n\nbefore after\n\nboxed\n\nTokyo"


def test_tables_of_word_keep_their_columns(tmp_path):
    span = '<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>'
    inner = f"<w:tbl>{row(paragraph(run('inner')))}</w:tbl>{paragraph('')}"
    rows = row(paragraph(run("Town")), paragraph(run("Manager")), paragraph(run("Heat")))
    rows += row(span + paragraph(run("Cork")), paragraph(run("3 C")))
    rows += row(paragraph(run("Turku")), inner, paragraph(run("8") + run(" C")) + paragraph(run("at night")))
    word_file(tmp_path / "a.docx", f"<w:tbl>{rows}</w:tbl>{paragraph(run('End.'))}")
    document, _ = read(tmp_path / "a.docx")
    table = "| Town | Manager | Heat |\n| --- | --- | --- |\n| Cork |  | 3 C |\n| Turku | inner | 8 C at night |"
    assert document.text == f"{table}\n\nEnd."
    assert [part.header for part in document.parts if document.text[part.start :].startswith("| Cork")] == [
        "| Town | Manager | Heat |"
    ]


def test_headings_of_word_by_their_level_or_the_style_that_theirs_is_based_on(tmp_path):
    def styled(style, text):
        return f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>{run(text)}</w:p>'

    styles = '<w:style w:styleId="own"><w:name w:val="Own"/><w:basedOn w:val="b2"/></w:style>'
    styles += '<w:style w:styleId="b2"><w:name w:val="heading 2"/></w:style>'
    styles += '<w:style w:styleId="big"><w:name w:val="Big"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style>'
    body = styled("big", "One") + styled("own", "Two") + styled("none", "text")
    word_file(tmp_path / "a.docx", body, word__styles=styles)
    assert read(tmp_path / "a.docx")[0].text == "# One\n\n## Two\n\ntext"


def slide(*shapes):
    found = "".join(
        f'<p:sp><p:nvPr><p:ph type="{kind}"/></p:nvPr><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:sp>'
        for kind, text in shapes
    )
    return f'<p:sld xmlns:p="p" xmlns:a="a">{found}</p:sld>'


def test_slides_come_in_the_order_of_the_presentation_with_their_notes(tmp_path):
    order = "".join(f'<p:sldId id="{number}" r:id="{id}"/>' for number, id in enumerate(("r2", "r1"), start=256))
    pack(
        tmp_path / "a.pptx",
        {
            "ppt/presentation.xml": f'<p:p xmlns:p="p" xmlns:r="{RELATION}"><p:sldIdLst>{order}</p:sldIdLst></p:p>',
            "ppt/_rels/presentation.xml.rels": relations(
                r1=("slide", "slides/slide1.xml"), r2=("slide", "slides/slide2.xml")
            ),
            "ppt/slides/slide1.xml": slide(("body", "second")),
            "ppt/slides/slide2.xml": slide(("title", "Pears"), ("body", "first")),
            "ppt/slides/_rels/slide2.xml.rels": relations(
                r1=("notesSlide", "../notesSlides/notesSlide1.xml"), r2=("comments", "../comments/c1.xml")
            ),
            "ppt/notesSlides/notesSlide1.xml": slide(("sldImg", "x"), ("body", "spoken"), ("sldNum", "1")),
            "ppt/comments/c1.xml": '<c xmlns:p="p"><p:cm/><p:cm/></c>',
            "ppt/media/image1.png": PICTURE,
            "ppt/charts/chart1.xml": "<c/>",
        },
    )
    document, unread = read(tmp_path / "a.pptx")
    assert (document.title, document.text) == ("Pears", "Pears\nfirst\nspoken\n\nsecond")
    assert unread == ["1 chart, 2 comments, 1 picture not read"]


def test_open_document(tmp_path):
    deleted = "<t:tracked-changes><t:p>gone</t:p></t:tracked-changes>"
    note = "<t:note><t:note-citation>1</t:note-citation><t:note-body><t:p>footnoted</t:p></t:note-body></t:note>"
    comment = "<o:annotation><dc:creator>Ana</dc:creator><dc:date>2026</dc:date><t:p>why</t:p></o:annotation>"
    box = "<d:frame><d:text-box><t:p>boxed</t:p></d:text-box></d:frame>"
    cells = "<b:table-cell><t:p>{}</t:p></b:table-cell>" * 2
    rows = f"<b:table-row>{cells.format('Town', 'Heat')}</b:table-row>"
    rows += '<b:table-row><b:table-cell b:number-columns-repeated="2"><t:p/></b:table-cell></b:table-row>'
    rows += f"<b:table-row>{cells.format('Cork', '3 C')}</b:table-row>"
    body = f'{deleted}<t:h t:outline-level="2">Care</t:h><t:p>One{note} two{comment}{box}<t:s t:c="2"/>x</t:p>'
    body += f"<b:table>{rows}</b:table>"
    styles = f"<o:s {ODF}><o:master><o:footer><t:p>Mill and Sons</t:p></o:footer></o:master></o:s>"
    content = f"<o:c {ODF}><o:body>{body}</o:body></o:c>"
    pack(tmp_path / "a.odt", {"content.xml": content, "styles.xml": styles, "Pictures/1.png": PICTURE})
    document, unread = read(tmp_path / "a.odt")
    assert document.text == (
        "## Care\n\nOne two  x\n\nfootnoted\n\nComment by Ana: why\n\nboxed\n\n"
        "| Town | Heat |\n| --- | --- |\n| Cork | 3 C |\n\nMill and Sons"
    )
    assert unread == ["1 picture not read"]
    pages = "<d:page><t:p>{}</t:p><p:notes><t:p>{}</t:p></p:notes></d:page>"
    pages = pages.format("one", "spoken") + pages.format("two", "")
    pack(tmp_path / "a.odp", {"content.xml": f"<o:c {ODF}>{pages}</o:c>"})
    document, _ = read(tmp_path / "a.odp")
    assert (document.text, [part.page for part in document.parts]) == ("one\nspoken\n\ntwo", [1, 2])


def workbook(path, sheets, **members):
    """Write a workbook; `sheets`: by title, rows of cells as text, number, bool or None; the last one is hidden."""
    titles = "".join(
        f'<sheet name="{title}" sheetId="{n}" r:id="r{n}"{" state=" + chr(34) + "hidden" + chr(34) if n > 2 else ""}/>'
        for n, title in enumerate(sheets, start=1)
    )
    kinds = {f"r{n}": ("worksheet", f"worksheets/sheet{9 - n}.xml") for n in range(1, len(sheets) + 1)}
    kinds["r8"] = ("styles", "styles.xml")
    kinds["r9"] = ("sharedStrings", "sharedStrings.xml")
    xml = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
        "_rels/.rels": relations(r1=("officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'<workbook {SHEET} xmlns:r="{RELATION}"><sheets>{titles}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(**kinds),
        "xl/styles.xml": f'<styleSheet {SHEET}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
        "xl/sharedStrings.xml": f"<sst {SHEET}><si><t>東京</t><rPh><t>トウキョウ</t></rPh></si></sst>",
    }
    for n, rows in enumerate(sheets.values(), start=1):
        lines = []
        for number, cells in enumerate(rows, start=1):
            made = "".join(cell_of(f"{'ABCDEFG'[i]}{number}", cell) for i, cell in enumerate(cells) if cell is not None)
            lines.append(f'<row r="{number}">{made}</row>')
        xml[f"xl/worksheets/sheet{9 - n}.xml"] = (
            f"<worksheet {SHEET}><sheetData>{''.join(lines)}</sheetData></worksheet>"
        )
    pack(path, {**xml, **members})


def cell_of(place, value):
    if value == "東京":
        return f'<c r="{place}" t="s"><v>0</v></c>'
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{place}" s="{int(value > 40_000)}"><v>{value}</v></c>'


def test_sheets_keep_columns_titles_and_dates(tmp_path):
    pytest.importorskip("python_calamine", reason="needs the extra files")
    stock = [
        ["Stock of 2026"],
        [],
        [None, "Town", "Manager", "Heat", "Open"],
        [None, "Turku", None, 8.0, True],
        [],
        [None, "東京", None, 45413, None],
    ]
    comments = {"xl/comments1.xml": f"<comments {SHEET}><commentList><comment/></commentList></comments>"}
    workbook(tmp_path / "a.xlsx", {"Current": stock, "Empty": [], "Hidden": [["a remark"]]}, **comments)
    document, unread = read(tmp_path / "a.xlsx")
    header = "| Town | Manager | Heat | Open |\n| --- | --- | --- | --- |"
    assert document.text == (
        f"## Current\n\nStock of 2026\n\n{header}\n| Turku |  | 8 | TRUE |\n\n"
        f"{header}\n| 東京 |  | 2024-05-01 |  |\n\n## Hidden\n\na remark"
    )
    headers = {part.header for part in document.parts}
    assert headers == {"", "| Town | Manager | Heat | Open |"}
    assert unread == ["1 comment not read"]
    (tmp_path / "b.xls").write_bytes(b"\xd0\xcf\x11\xe0 no workbook")
    with pytest.raises(InvalidArgumentError, match=r"b.xls: it is damaged, encrypted, or no workbook"):
        read_documents(tmp_path / "b.xls")


def test_books_name_their_pictures_and_say_that_they_are_encrypted(tmp_path):
    items = '<item id="b" href="my%20b.xhtml"/><item id="p" href="p.png" media-type="image/png"/>'
    members = {
        "META-INF/container.xml": '<c><rootfile full-path="in/a.opf"/></c>',
        "in/a.opf": f'<p><title>Book</title><creator>Ann</creator><creator>Bo</creator>{items}<itemref idref="b"/></p>',
        "in/my b.xhtml": "<h1>One</h1><p>Pears<aside>a footnote</aside></p>",
    }
    pack(tmp_path / "a.epub", members)
    document, unread = read(tmp_path / "a.epub")
    assert (document.text, document.metadata["author"]) == ("# One\n\nPears\n\na footnote", "Ann, Bo")
    assert unread == ["1 picture not read"]
    encrypted = '<e><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></e>'
    pack(tmp_path / "b.epub", {**members, "META-INF/encryption.xml": encrypted})
    with pytest.raises(InvalidArgumentError, match="it is encrypted"):
        read_documents(tmp_path / "b.epub")


def test_outputs_of_notebooks_of_both_versions(tmp_path):
    outputs = [
        {"output_type": "stream", "text": ["# printed\n", "more\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["42"], "image/png": "x"}},
        {"output_type": "error", "ename": "KeyError", "evalue": "'pear'", "traceback": ["\x1b[31mx"]},
    ]
    cells = [{"cell_type": "code", "source": "1 ```", "outputs": outputs}, {"cell_type": "markdown", "source": ["# T"]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    document, unread = read(tmp_path / "a.ipynb")
    assert document.text == (
        "````\n1 ```\n````\n\n```\n# printed\nmore\n```\n\n```\n42\n```\n\n```\nKeyError: 'pear'\n```\n\n# T"
    )
    assert (document.title, unread) == ("T", ["1 picture not read"])
    old = [
        {"cell_type": "heading", "level": 2, "source": "Pears"},
        {"cell_type": "code", "input": "1", "outputs": [{"output_type": "pyout", "text": ["42"], "png": "x"}]},
    ]
    (tmp_path / "b.ipynb").write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": old}]}))
    document, unread = read(tmp_path / "b.ipynb")
    assert (document.text, unread) == ("## Pears\n\n```\n1\n```\n\n```\n42\n```", ["1 picture not read"])
    (tmp_path / "c.ipynb").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="it is no notebook"):
        read_documents(tmp_path / "c.ipynb")


def test_subtitles_say_their_time(tmp_path):
    (tmp_path / "a.vtt").write_text(
        "WEBVTT - Film\n\nSTYLE\n::cue { color: red }\n\nNOTE checked\n\nfirst\n01:02.000 --> 01:04.000 line:0\n"
        "<v Ana>Pears <i>ripen</i>.\n42\n\n1:00:05.000 --> 1:00:06.000\n# la la\n",
        encoding="utf-8-sig",
    )
    document, unread = read(tmp_path / "a.vtt")
    assert document.text == "Ana: Pears ripen.\n42\n\n# la la"
    times = [(document.text[part.start :][:4], part.time) for part in document.parts[1:]]
    assert times == [("Ana:", "00:01:02"), ("# la", "01:00:05")]
    assert unread == ["1 remark not read"]


def pdf(*pages, notes=""):
    """Return a PDF with drawings as pages, which has no table of its objects."""
    font = "/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>"]
    for number, drawn in enumerate(pages):
        at = f"/Parent 2 0 R/MediaBox[0 0 300 200]/Contents {4 + 2 * number} 0 R"
        objects += [f"<</Type/Page{at}{font}{notes}>>", f"<</Length {len(drawn)}>>stream\n{drawn}\nendstream"]
        notes = ""
    body = "".join(f"{number} 0 obj\n{content}\nendobj\n" for number, content in enumerate(objects, start=1))
    return f"%PDF-1.4\n{body}trailer<</Size {len(objects) + 1}/Root 1 0 R>>\n%%EOF".encode()


def test_pages_of_a_pdf_that_are_pictures_are_named(tmp_path):
    pytest.importorskip("pypdfium2", reason="needs the extra files")
    drawing = "0 0 50 50 re f"
    note = "/Annots[<</Type/Annot/Subtype/Text/Rect[0 0 9 9]/Contents(why)>>]"
    (tmp_path / "a.pdf").write_bytes(pdf("BT /F1 12 Tf 20 100 Td (Pears.) Tj ET", drawing, "", notes=note))
    document, unread = read(tmp_path / "a.pdf")
    assert (document.text.strip(), unread) == ("Pears.", ["1 of 3 pages without text (2), 1 comment not read"])
    (tmp_path / "b.pdf").write_bytes(pdf(drawing))
    with pytest.raises(InvalidArgumentError, match="it holds pictures of pages, and no text; recognise it first"):
        read_documents(tmp_path / "b.pdf")


def test_the_report_of_a_folder_names_what_was_not_read(tmp_path):
    word_file(tmp_path / "minutes.docx", paragraph(run("Pears.")), word__charts__chart1="")
    (tmp_path / "page.html").write_text('<p>Text<img src="data:image/png;base64,x" alt="a pear tree">')
    (tmp_path / "note.md").write_text("---\nrating: 4\nplain: a: b\n---\nPears.")
    (tmp_path / "Dockerfile").write_text("FROM debian")
    (tmp_path / "letter.doc").write_bytes(b"\xd0\xcf\x11\xe0\0")
    (tmp_path / "poetry.lock").write_text("x")
    (tmp_path / "notes.latin").write_bytes("Größe".encode("latin-1"))
    pack(tmp_path / "pictures.pptx", {"ppt/slides/slide1.xml": slide(), "ppt/media/a.png": PICTURE})
    documents = read_documents(tmp_path)
    with pytest.warns(UserWarning, match="minutes.docx: 1 chart not read"):
        found = {document.id: document for document in documents}
    assert sorted(found) == ["Dockerfile", "minutes.docx", "note.md", "page.html"]
    assert found["page.html"].text == "Text a pear tree"
    assert {each.path: (each.message, each.reason) for each in documents.skipped} == {
        "minutes.docx": ("1 chart not read", SkipReason.UNREAD),
        "page.html": ("1 picture not read", SkipReason.UNREAD),
        "note.md": (
            "'plain' of the front matter as YAML (line 3: mapping values are not allowed in this context) not read",
            SkipReason.UNREAD,
        ),
        "letter.doc": (".doc is not read; save it as .docx", SkipReason.EXCLUDED),
        "poetry.lock": ("a lock file, which programs write; --glob reads it all the same", SkipReason.EXCLUDED),
        "notes.latin": ("no text in UTF-8; --encoding names that of a text", SkipReason.EXCLUDED),
        "pictures.pptx": ("it holds no text, only 1 picture.", SkipReason.EMPTY),
    }


@pytest.mark.parametrize(
    "name", ["Dockerfile", "LIESMICH", "login.defs", "chmod.1", "refs.bib", "a.css", "b.xml", "c.1.gz"]
)
def test_what_is_text_is_read_whatever_its_name(tmp_path, name):
    data = "Über Birnen\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    [document] = read_documents(tmp_path)
    assert (document.id, document.text) == (name, "Über Birnen\n")
    title = {"c.1.gz": "c.1"}.get(name, name)
    assert document.title == title


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin", b"\x7fELF\0\0", "a binary file has no text"),
        ("a.data", b"MZ\xff\xfe\xfd", "no text in UTF-8; --encoding names that of a text"),
        ("a.gz", gzip.compress(b"\0\1\2\0", mtime=0), "an archive; unpack it"),
        ("a.tar.gz", gzip.compress(b"name\0\0", mtime=0), "an archive; unpack it"),
        ("b.gz", b"\x1f\x8b damaged", "an archive; unpack it"),
        ("key", b"-----BEGIN RSA PRIVATE KEY-----\nx", "a key, or an encrypted text"),
        ("a.css", b"a{b:c}" * 1000, "it is minified or generated; --glob reads it all the same"),
        ("yarn.lock", b"x", "a lock file, which programs write; --glob reads it all the same"),
        ("a.svg", b"<svg/>", "image has no text"),
        ("a.rtf", b"{\\rtf1}", ".rtf is not read; save it as .docx"),
    ],
)
def test_what_nobody_wants_is_left_out_and_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    documents = read_documents(tmp_path)
    with pytest.warns(UserWarning, match="skipped 1 file|no file of"):
        assert list(documents) == []
    assert [each.message for each in documents.skipped] == [message]


def test_texts_of_other_names_in_another_encoding(tmp_path):
    (tmp_path / "LIESMICH").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "UTF16").write_bytes("Größe".encode("utf-16"))
    found = {document.id: document.text for document in read_documents(tmp_path, encoding="latin-1")}
    assert found == {"LIESMICH": "Größe", "UTF16": "Größe"}
    (tmp_path / "a.html").write_bytes('<?xml version="1.0" encoding="iso-8859-1"?><p>Größe'.encode("latin-1"))
    (tmp_path / "b.html").write_bytes("<meta charset='utf-16'><p>Größe".encode())  # not what it says to be
    assert [read(tmp_path / name)[0].text for name in ("a.html", "b.html")] == ["Größe", "Größe"]


def mail(content, kind="text/plain", name="", **headers):
    lines = [f"Content-Type: {kind}; charset=utf-8", *(f"{key}: {value}" for key, value in headers.items())]
    if name:
        lines.append(f"Content-Disposition: attachment; filename={name}")
    return "\n".join(lines) + f"\n\n{content}\n"


def parts_of(*parts, kind="mixed"):
    boundary = f"b{abs(hash(parts))}"
    inner = "".join(f"--{boundary}\n{part}" for part in parts)
    return f"Content-Type: multipart/{kind}; boundary={boundary}\n\n{inner}--{boundary}--\n"


def test_mails_with_mails_and_attachments(tmp_path):
    forwarded = "Content-Type: message/rfc822\n\nSubject: Quote\nFrom: ana@x\n" + mail("It costs 340.")
    page = mail("<p>" + "A long page. " * 20, "text/html")
    event = mail("BEGIN:VEVENT\nSUMMARY:Lunch\nEND:VEVENT", "text/calendar")
    alternatives = parts_of(mail("See the page."), page, event, kind="alternative")
    whole = parts_of(
        mail("First."),
        forwarded,
        mail("Town,Heat\nCork,3", "text/csv", "stock.csv"),
        mail("x", "image/png", "photo.png"),
        mail("x", "application/zip", "a.zip"),
        mail("x", "application/pgp-signature", "sign.asc"),
        alternatives,
        mail("Last."),
    )
    (tmp_path / "a.eml").write_text(f"From: bo@x\nSubject: Fwd\n{whole}")
    document, unread = read(tmp_path / "a.eml")
    assert document.text.startswith(
        "First.\n\n# Quote\n\nFrom: ana@x\n\nIt costs 340.\n\n# stock.csv\n\nTown,Heat\nCork,3\n\nA long page. A long"
    )
    assert document.text.endswith("Summary: Lunch\n\nLast.\n\nAttachments: photo.png, a.zip")
    assert unread == ["1 picture, attachment a.zip (an archive; unpack it) not read"]


def test_mails_of_which_the_plain_form_says_as_much(tmp_path):
    both = parts_of(mail("The pump leaks."), mail("<p>The pump leaks.", "text/html"), kind="alternative")
    (tmp_path / "a.eml").write_text("From: bo@x\n" + both)
    assert read(tmp_path / "a.eml")[0].text == "The pump leaks."


def test_a_format_whose_extra_is_not_installed_is_named_with_it(tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "python_calamine.py").write_text("raise ImportError")
    (tmp_path / "files").mkdir()
    workbook(tmp_path / "files" / "a.xlsx", {"Stock": [["Town"]]})
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from latelier.retrieve import read_documents\n"
        "documents = read_documents('files')\n"
        "print([*documents], documents.skipped[0].message)"
    )
    paths = [str(tmp_path / "without"), *filter(None, sys.path)]
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith("[] Reading sheets needs the extra 'files'. Install it with: pip install")
