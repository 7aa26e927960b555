"""Exports: what is in the folder, when it is written again, and what stands in its way."""

import json

import numpy as np
import pytest
from index_helpers import matrices
from index_tampering import file_of, flip, make
from safetensors.numpy import load_file
from transfer_helpers import IDS, LENGTHS, TEXTS, check_contents, files, fill, random_documents

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, EmbeddingsError, IndexFormatError, InvalidArgumentError, StorageError
from latelier.indexes.transfer.batches import TransferBatch, batches_of_bytes


def test_an_export_of_each_kind_holds_its_documents(index, tmp_path):
    fill(index)
    report = indexes.export_documents(index, tmp_path / "out", chunk_size=200)
    assert (report.documents, report.tokens, report.written, report.kept) == (9, sum(LENGTHS), 9, 0)
    assert str(report).startswith(f"9 documents with 26 tokens: 9 written to {tmp_path / 'out'} (")
    export = indexes.Export(tmp_path / "out")
    assert export.settings == {"language": {"name": "de", "weights": [0.1, 2**60]}, "none": None}
    assert (len(export), export.manifest.dim, export.manifest.tokens) == (9, 8, 26)
    batch = TransferBatch.concatenate(list(export))
    check_contents(index, batch.ids, batch.texts, batch.metadata)
    check_contents(index)
    assert batch.embeddings == index.get_embeddings(IDS)
    assert export.verify() is None


def test_the_files_can_be_read_without_this_library(tmp_path):
    index = fill(indexes.Flat(dtype="float16"))
    indexes.export_documents(index, tmp_path, chunk_size=1)  # a document per chunk
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["documents"], manifest["tokens"], manifest["dim"], manifest["dtype"]) == (9, 26, 8, "float16")
    assert (manifest["kind"], manifest["tokenizer"], manifest["complete"]) == ("flat", "porter", True)
    assert len(manifest["chunks"]) == 9
    tensors = load_file(tmp_path / "chunk-000003.safetensors")
    np.testing.assert_array_equal(tensors["vectors"], matrices(LENGTHS, 8)[3])
    assert tensors["vectors"].dtype == "float16"
    assert tensors["offsets"].tolist() == [0, 5]
    [line] = (tmp_path / "chunk-000003.jsonl").read_bytes().splitlines()
    assert json.loads(line) == {"id": -(2**63), "text": TEXTS[3], "metadata": {"n": 0}}


def test_batches_end_with_the_document_that_reaches_the_size():
    ids, vectors, texts, metadata = random_documents(200)
    whole = TransferBatch(ids, TokenEmbeddings.from_list(vectors), texts, metadata)
    sizes = [
        matrix.nbytes + len(text) + len(json.dumps(more)) - 1 for matrix, text, more in zip(*whole[1:], strict=True)
    ]
    assert whole.nbytes.tolist() == sizes
    for size in (1, 300, 4000, 10**9):
        expected, batch, held = [], [], 0
        for id, nbytes in zip(ids, sizes, strict=True):
            batch, held = [*batch, id], held + nbytes
            if held >= size:
                expected, batch, held = [*expected, batch], [], 0
        expected += [batch] if batch else []
        for step in (1, 7, 200):
            parts = [whole.between(first, first + step) for first in range(0, 200, step)]
            batches = list(batches_of_bytes(parts, size))
            assert [batch.ids for batch in batches] == expected
            joined = TransferBatch.concatenate(batches)
            assert joined.embeddings == whole.embeddings
            assert (joined.texts, joined.metadata) == (texts, metadata)


def test_an_interrupted_export_goes_on_and_ends_the_same(tmp_path):
    index = indexes.Flat()
    index.add(*random_documents(100))
    indexes.export_documents(index, tmp_path / "whole", chunk_size=4000)
    whole = files(tmp_path / "whole")
    indexes.export_documents(index, tmp_path / "out", chunk_size=4000)
    chunks = len(indexes.Export(tmp_path / "out").manifest.chunks)
    assert chunks > 4
    # Lost by a crash of the machine: the third chunk, and the end of the last.
    (tmp_path / "out/chunk-000002.jsonl").unlink()
    (tmp_path / "out/chunk-000004.safetensors").write_bytes(b"short")
    (tmp_path / "out" / f".{'0' * 32}.tmp").write_bytes(b"unfinished")
    report = indexes.export_documents(index, tmp_path / "out", chunk_size=4000)
    documents = sum(chunk.documents for chunk in indexes.Export(tmp_path / "out").manifest.chunks[:2])
    assert (report.kept, report.written) == (documents, 100 - documents)
    assert files(tmp_path / "out") == whole
    assert f"{documents} were there already" in str(report)
    assert indexes.export_documents(index, tmp_path / "out").written == 0
    assert files(tmp_path / "out") == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(99, np.ones((1, 16)), "other"),
        lambda index: index.update(*[column[:1] for column in random_documents(1)]),  # moves to the end
        lambda index: index.remove("doc 98"),
        lambda index: index.add("new", np.ones((1, 16))),
        lambda index: index.settings.update(model="other"),
        # All ids stay where they are.
        lambda index: index.update(*random_documents(100, seed=1)),
    ],
)
def test_an_export_of_an_index_that_has_changed_is_refused(change, tmp_path):
    index = indexes.Flat()
    index.add(*random_documents(100))
    indexes.export_documents(index, tmp_path / "out", chunk_size=4000)
    before = files(tmp_path / "out")
    change(index)
    with pytest.raises(InvalidArgumentError, match="of this index before it changed"):
        indexes.export_documents(index, tmp_path / "out", chunk_size=4000)
    assert files(tmp_path / "out") == before


def test_an_export_is_that_of_one_moment(tmp_path):
    index = indexes.Flat(tmp_path / "index")
    index.add(*random_documents(100))

    class Changing(indexes.Flat):
        """Another connection removes and adds documents while the first are read."""

        def get_embeddings(self, ids):
            with indexes.open(tmp_path / "index") as other:
                if "doc 98" in other:
                    other.remove(["doc 98", 0])
                    other.add("new", np.ones((1, 16)))
            return super().get_embeddings(ids)

    with Changing(tmp_path / "index") as changing:
        assert indexes.export_documents(changing, tmp_path / "out").written == 100
    export = TransferBatch.concatenate(list(indexes.Export(tmp_path / "out")))
    assert export.ids == random_documents(100)[0]
    assert len(index) == 99

    class WithoutSnapshots(Changing):
        def snapshot(self):
            return indexes.Index.snapshot(self)

    index.add(["doc 98", 0], [np.ones((1, 16))] * 2)
    index.remove("new")
    with (
        WithoutSnapshots(tmp_path / "index") as changing,
        pytest.raises(StorageError, match="removed from the index while it was read"),
    ):
        indexes.export_documents(changing, tmp_path / "other")


def test_folders_that_hold_something_else_are_refused(tmp_path):
    index = fill(indexes.Flat())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/todo.txt").write_text("mine")
    (tmp_path / f"notes/.{'0' * 32}.tmp").write_text("being written by another process")
    with pytest.raises(IndexFormatError, match=r"is not an export: it holds todo\.txt"):
        indexes.export_documents(index, tmp_path / "notes")
    assert files(tmp_path / "notes").keys() == {"todo.txt", f".{'0' * 32}.tmp"}
    with pytest.raises(IndexFormatError, match=r"todo\.txt is a file; an export is a folder"):
        indexes.export_documents(index, tmp_path / "notes/todo.txt")
    with pytest.raises(InvalidArgumentError, match="received dtype='int8'"):
        indexes.export_documents(index, tmp_path / "out", dtype="int8")
    with pytest.raises(InvalidArgumentError, match="received chunk_size=-1"):
        indexes.export_documents(index, tmp_path / "out", chunk_size=-1)
    assert not (tmp_path / "out").exists()


def test_float16_halves_the_vectors(tmp_path):
    index = fill(indexes.Flat())
    indexes.export_documents(index, tmp_path, dtype="float16")
    [batch] = indexes.Export(tmp_path)
    assert batch.embeddings.dtype == "float16"
    assert batch.embeddings == index.get_embeddings(IDS).to("float16")
    with pytest.raises(InvalidArgumentError, match="with other options"):
        indexes.export_documents(index, tmp_path)


def test_numbers_beyond_float16_are_not_exported_as_infinity(tmp_path):
    index = indexes.Flat()
    index.add(["a", "b"], [np.ones((2, 2)), np.array([[1.0, 1.0], [70_000.0, 1.0]])])
    with pytest.raises(EmbeddingsError, match=r"document 'b' holds numbers outside of the range of float16"):
        indexes.export_documents(index, tmp_path / "half", dtype="float16")
    indexes.export_documents(index, tmp_path / "single")
    assert next(iter(indexes.Export(tmp_path / "single"))).embeddings.vectors.max() == 70_000


def test_an_empty_index(tmp_path):
    index = indexes.Flat()
    index.settings["model"] = "one"
    assert indexes.export_documents(index, tmp_path).documents == 0
    target = indexes.IVF()
    assert indexes.import_documents(tmp_path, target).written == 0
    assert (len(target), target.dim, dict(target.settings)) == (0, None, {"model": "one"})
    assert repr(indexes.Export(tmp_path)) == (
        f"Export(0 documents, 0 tokens, dim=None, float32, of an index of kind flat, in {tmp_path})"
    )


def copy(index, folder):
    with indexes.Flat(folder) as target:
        indexes.copy_documents(index, target)


@pytest.mark.parametrize("move", [indexes.export_documents, copy])
def test_damaged_documents_are_neither_exported_nor_copied(move, tmp_path):
    """Their copies would have checksums of the damaged bytes."""
    damaged = make(tmp_path / "index")
    flip(file_of(damaged, "a", "vectors.npy"), -1, bit=3)
    with indexes.open(damaged) as index:
        with pytest.raises(CorruptedIndexError, match=r"4 documents of .*, such as 'a'; verify\(\) lists them"):
            move(index, tmp_path / "moved")
        index.update(["a", "b", "c", "d"], matrices([3, 3, 3, 3]))
        move(index, tmp_path / "moved")
