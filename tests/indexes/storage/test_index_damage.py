"""Damaged files and full disks: named, kept apart from what is whole, and mended by what the message says."""

import os
import shutil

import numpy as np
import pytest
from index_helpers import contents, in_child, matrices

from latelier import indexes
from latelier.errors import CorruptedIndexError, IndexDamageWarning, StorageError

OLD, NEW = ["a", "b", "c", "d"], ["x"]


@pytest.fixture
def folder(tmp_path):
    """A closed index of two segments: four documents, too large to be merged with the next one."""
    with indexes.Flat(tmp_path / "index") as index:
        index.add(OLD, matrices([3, 3, 3, 3]), texts=OLD, metadata=[{"n": i} for i in range(4)])
        index.add(NEW, matrices([1]), texts=NEW, metadata=[{"n": 9}])
    return tmp_path / "index"


def file_of(folder, id, name):
    """Path of a file in the segment that holds a document."""
    for segment in (folder / "segments").iterdir():
        if f'"{id}"'.encode() in (segment / "ids.npy").read_bytes():
            return segment / name
    raise LookupError(id)


def truncate(path):
    os.truncate(path, path.stat().st_size - 5)


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"more")


def empty(path):
    os.truncate(path, 0)


def replace(path):
    """Put a valid file of the same size but another shape in its place."""
    array = np.load(path)
    np.save(path, array.reshape(array.shape[::-1]))


def scramble_header(path):
    content = bytearray(path.read_bytes())
    content[:8] = b"garbage!"
    path.write_bytes(content)


DAMAGES = {
    "missing": (os.unlink, "it is missing"),
    "truncated": (truncate, r"it has \d+ bytes, but \d+ were written"),
    "lengthened": (lengthen, r"it has \d+ bytes, but \d+ were written"),
    "emptied": (empty, "it has 0 bytes"),
    "replaced": (replace, r"it begins with .*\(4, 12\).* but .*\(12, 4\).* was written"),
    "header": (scramble_header, "it begins with .* but .* was written"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_segment_is_named_and_the_rest_stays_readable(folder, damage, reason):
    damage(file_of(folder, "a", "vectors.npy"))
    with indexes.open(folder) as index:
        for use in (
            lambda: index.search(matrices([2])),
            lambda: index.search(matrices([2]), filter="n = 0"),
            lambda: index.get_embeddings(["x", "b"]),
            index.check,
        ):
            with pytest.raises(CorruptedIndexError, match=f"vectors.npy is damaged: {reason}") as error:
                use()
        assert "Its 4 documents still have their texts and metadata" in str(error.value)
        assert "update() or remove() them" in str(error.value)
        with pytest.warns(IndexDamageWarning, match=f"vectors.npy is damaged: {reason}.*left as they are"):
            index.compact()
        assert index.ids() == [*OLD, *NEW]
        assert [record.text for record in index.get([*OLD, *NEW])] == [*OLD, *NEW]
        assert index.get_embeddings("x").vectors.tolist() == matrices([1])[0].tolist()
        assert [hit.id for hit in index.search(matrices([2]), filter="n = 9")[0]] == NEW
        assert "5 documents" in repr(index)


def test_a_damaged_index_still_takes_writes(folder):
    file_of(folder, "x", "vectors.npy").unlink()
    with indexes.open(folder) as index:
        index.add(["y", "z"], matrices([1, 2]))
        index.remove("a")
        assert index.ids() == ["b", "c", "d", "x", "y", "z"]
        index.update("x", matrices([2]))
        assert index.check().recall == 1.0
        assert index.verify().is_whole


@pytest.mark.parametrize("mend", ["update", "remove"])
def test_verify_lists_the_documents_that_update_or_remove_mends(folder, mend):
    truncate(file_of(folder, "a", "vectors.npy"))
    with indexes.open(folder) as index:
        report = index.verify()
        assert (report.is_whole, report.ids, report.files) == (False, OLD, 7)
        assert str(report).splitlines()[0] == "1 of 7 files damaged:"
        assert report.damages[0].file.endswith("/vectors.npy")
        if mend == "update":
            kept = index.get(report.ids)
            index.update(report.ids, matrices([1] * 4), [r.text for r in kept], [r.metadata for r in kept])
            assert index.get("b") == ("b", "b", {"n": 1})
        else:
            index.remove(report.ids)
        assert len(index.search(matrices([2]))[0]) == len(index) == (5 if mend == "update" else 1)
        index.compact()
        assert index.verify().is_whole


@pytest.mark.parametrize("name", ["vectors.npy", "documents.npy", "ids.npy"])
def test_flipped_bits_are_found_by_verify(folder, name):
    path = file_of(folder, "a", name)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with indexes.open(folder) as index:
        report = index.verify()
        assert [(damage.file, damage.ids) for damage in report.damages] == [
            (path.relative_to(folder).as_posix(), tuple(OLD))
        ]
        assert "its bytes do not match their checksum (4 documents)" in str(report)


def test_a_file_put_back_makes_the_index_whole(folder):
    path = file_of(folder, "a", "documents.npy")
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    with indexes.open(folder) as index:
        assert not index.verify().is_whole
    path.write_bytes(kept)
    with indexes.open(folder) as index:
        assert index.verify().is_whole
        assert index.check().recall == 1.0


def test_a_copy_without_the_log_is_no_new_index(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(OLD, matrices([3, 3, 3, 3]))
        shutil.copytree(tmp_path / "index", tmp_path / "copy")
        shutil.copytree(tmp_path / "index", tmp_path / "bare", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    with indexes.Flat(tmp_path / "copy") as copy:
        assert copy.ids() == OLD
    with pytest.raises(CorruptedIndexError, match=r"bare is empty, but there are segments: .*catalog\.sqlite-wal is"):
        indexes.Flat(tmp_path / "bare")
    for read_only in (False, True):
        with pytest.raises(CorruptedIndexError, match="bare is empty, but there are segments"):
            indexes.open(tmp_path / "bare", read_only=read_only)
    with pytest.raises(CorruptedIndexError, match="bare is empty, but there are segments"):
        indexes.Flat(tmp_path / "bare", read_only=True)


def test_a_catalog_that_is_no_database_is_named(folder):
    catalog = folder / "catalog.sqlite"
    catalog.write_bytes(b"not a database at all" * 100)
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(
            CorruptedIndexError, match=r"the catalog of the index .* is damaged: file is not a database"
        ):
            use(folder)


def test_a_scrambled_catalog_is_found_by_verify(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(range(2000), [np.ones((1, 1))] * 2000, texts=["a long text " * 20] * 2000)
    catalog = tmp_path / "index" / "catalog.sqlite"
    content = bytearray(catalog.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = b"\xff" * 8192
    catalog.write_bytes(content)
    with indexes.open(tmp_path / "index") as index:
        report = index.verify()
        assert [damage.file for damage in report.damages] == ["catalog.sqlite"]
        assert len(index.search(np.ones((1, 1)))[0]) == 10


@pytest.mark.skipif(os.name == "nt", reason="needs fork and resource limits")
@pytest.mark.parametrize("size", [2**14, 2**20], ids=["catalog", "segment"])
def test_a_full_disk_leaves_the_index_as_it_was(tmp_path, size):
    """A limit on the size of files stands for the end of the disk; the segments or the catalog reach it first."""
    import resource

    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        index.add(["a", "b"], matrices([2, 1]), texts=["x", None])
        before = contents(index)

    def write_much():
        given = (["c"], [np.ones((2**18, 4))])
        if size < 2**20:
            given = ([f"d{i}" for i in range(100)], [np.ones((1, 4))] * 100, ["text" * 100] * 100)
        with indexes.open(folder) as index:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            refused = []
            for write in (index.add, index.update):
                try:
                    write(*given)
                except StorageError as error:
                    refused.append(str(error))
            return [refused, [list(record) for record in index.get(index.ids())]]

    refused, records = in_child(write_much)
    assert len(refused) == 2
    expected = "could not write a segment" if size == 2**20 else "unknown whether the write took effect"
    assert all(expected in reason for reason in refused)
    assert records == [["a", "x", {}], ["b", None, {}]]
    with indexes.open(folder) as index:
        assert contents(index) == before
        assert index.verify().is_whole
        index.compact()  # deletes what a failed commit has left
        assert len(list((folder / "segments").iterdir())) == 1
        index.add("c", np.ones((2**18, 4)))
        assert len(index) == 3


@pytest.mark.skipif(os.name == "nt", reason="needs fork and resource limits")
def test_a_full_disk_while_the_keyword_index_is_made_is_not_called_damage(folder):
    import resource

    def make_keywords():
        with indexes.open(folder) as index:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14))
            with pytest.raises(StorageError, match="SQLite failed on the catalog of the index"):
                index.compact(keywords=True)
            return len(index.search(texts="a", mode="keywords")[0])

    assert in_child(make_keywords) == 1
    with indexes.open(folder) as index:
        assert index.verify().is_whole
