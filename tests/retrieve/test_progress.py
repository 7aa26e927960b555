"""A bar moves while a chunk is encoded, and knows its end wherever the size of the source is known."""

import io
import json
import re

import pytest

from latelier.reading.folders import read_document_file, read_documents
from latelier.retrieve import Retriever
from latelier.utils import misc
from latelier.utils.misc import Share


@pytest.fixture
def told(monkeypatch, capsys):
    monkeypatch.setattr(misc, "INTERVAL", 0.0)  # in seconds

    def lines():
        pattern = re.compile(r"Indexing: ([\d,]+)(?: of ([\d,]+))? documents so far(?:, about [^,]+ left)?\.")
        found = [pattern.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
        return [tuple(int((each or "0").replace(",", "")) for each in one.groups()) for one in found if one]

    return lines


def test_documents_of_a_list_are_counted_while_they_are_encoded(tiny, told):
    texts = [f"Pear {number} hangs on the tree." for number in range(400)]
    with Retriever(tiny, device="cpu") as retriever:
        retriever.add(texts, passages=False, show_progress=True)
    lines = told()
    counts = [count for count, _ in lines]
    assert {total for _, total in lines} == {400}
    assert counts == sorted(counts)
    assert counts[-1] == 400
    assert len(set(counts)) > 5  # there are two or three transactions


def test_the_number_of_records_is_estimated_by_the_bytes_that_were_read(tiny, told, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": f"Pear {i:05}."}) + "\n" for i in range(3000)))
    with Retriever(tiny, device="cpu") as retriever:
        retriever.synchronise(path, passages=False, show_progress=True)
        assert len(retriever) == 3000
    lines = told()
    assert 2900 <= lines[0][1] <= 3000
    assert lines[-1] == (3000, 3000)


def test_how_far_a_folder_is_read_is_counted_in_files(tiny, told, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.md").write_text(f"Pear {number}.")
    with Retriever(tiny, device="cpu") as retriever:
        retriever.synchronise(folder, show_progress=True)
    assert told()[-1] == (30, 30)


def test_a_file_has_an_end_that_is_known_and_a_stream_none(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,Pears\n2,Plums\n")
    documents = read_documents(tmp_path / "a.csv")
    assert (len(list(documents)), documents.share()) == (2, 1.0)
    documents = read_document_file(io.BytesIO(b'{"text": "Pears"}'), "jsonl", name="standard input")
    assert (len(list(documents)), documents.share()) == (1, None)


@pytest.mark.parametrize(("count", "steps"), [(3, 7), (7, 3), (5, 5), (1, 0)])
def test_parts_of_a_bar_add_up(count, steps):
    class Bar:
        moved = 0

        def update(self, by):
            assert by > 0
            self.moved += by

    bar = Bar()
    share = Share(bar, count, steps)
    for step in range(1, steps + 1):
        share.update()
        assert bar.moved == count * step // steps
    share.finish()
    share.finish()
    assert bar.moved == count
