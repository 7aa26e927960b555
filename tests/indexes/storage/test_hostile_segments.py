"""Files of segments that are damaged or forged: nothing in them is believed before it was compared."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from index_helpers import in_child, matrices
from index_tampering import IDS, KINDS, change, file_of, flip, forge, make

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    IndexDamageWarning,
    StorageError,
)
from latelier.indexes.store.checks import row_checksum

HOSTILE = {
    "numbers fall": lambda a: a[0].__setitem__(slice(0, 2), a[0][[1, 0]]),
    "numbers beyond the row": lambda a: a[0].__setitem__(3, 10**9),
    "offsets beyond the tokens": lambda a: a[1].__setitem__(2, 1 << 44),
    "offsets below": lambda a: a[1].__setitem__(1, -5),
    "offsets that overflow": lambda a: a[1].__setitem__(slice(1, 3), [2**63 - 1, -2]),
    "an empty document": lambda a: a[1].__setitem__(1, 0),
    "the end is not the end": lambda a: a[1].__setitem__(4, 11),
    "ids beyond": lambda a: a[2].__setitem__(1, 1 << 40),
    "ids overlap": lambda a: a[2].__setitem__(2, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["documents.npy", "ids.npy", "numbers"])
def test_no_write_gives_damaged_bytes_a_new_checksum(tmp_path, kind, name):
    folder = make(tmp_path / "index", kind)
    own = {indexes.Flat: "vectors.npy", indexes.IVF: "codes.npy"}[kind]
    # The last byte of documents.npy is not used: an end that is known otherwise.
    flip(file_of(folder, "a", own if name == "numbers" else name), -1 if name == "documents.npy" else -3, bit=0)
    with indexes.open(folder) as index:
        before = index.verify()
        assert before.ids == IDS
        index.add("y", matrices([20], seed=2)[0])  # so large that it takes in all that come before it
        with pytest.warns(IndexDamageWarning, match=r"is damaged: .*all others are compacted"):
            index.compact()
        assert index.verify() == before
        assert index.ids() == [*IDS, "x", "y"]
        assert len(list((folder / "segments").iterdir())) == 2
        index.update(IDS, matrices([1] * 4))
        assert index.verify().is_whole


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_is_no_error_where_another_segment_is_damaged(tmp_path, kind, recwarn):
    folder = make(tmp_path / "index", kind)
    path = file_of(folder, "a", "documents.npy")
    os.truncate(path, path.stat().st_size - 8)
    with indexes.open(folder) as index:
        for id in ("y", "z"):
            index.add(id, matrices([1])[0])
            index.update([id], matrices([2]))
        index.remove("x")
        assert index.ids() == [*IDS, "y", "z"]
    warned = [str(warning.message) for warning in recwarn if warning.category is IndexDamageWarning]
    assert bool(warned) == (kind is indexes.IVF)
    assert all("the documents are stored" in message and "verify() lists" in message for message in warned)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", HOSTILE.values(), ids=HOSTILE)
def test_documents_that_do_not_fit_their_arrays_are_refused(tmp_path, kind, edit):
    folder = make(tmp_path / "index", kind)
    path = file_of(folder, "a", "documents.npy")
    array = np.load(path)
    edit(array)
    np.save(path, array)

    def use():
        refused = 0
        with indexes.open(folder) as index:
            for read in (index.search, index.get_embeddings):
                try:
                    read(matrices([1]) if read == index.search else ["a", "b"])
                except CorruptedIndexError as error:
                    assert "is damaged: " in str(error)  # noqa: PT017 (in a child)
                    refused += 1
            return [refused, index.get_embeddings("x").lengths.tolist()]

    assert in_child(use) == [2, [1]]


@pytest.mark.parametrize("content", [b'"a"]', b"[[[[[[[[", b'1.5"xyz', b"\xff" * 8])
def test_ids_that_are_none_are_refused(tmp_path, content):
    folder = make(tmp_path / "index")
    path = file_of(folder, "a", "ids.npy")
    array = np.load(path)
    array[: min(len(content), len(array))] = np.frombuffer(content, "uint8")[: len(array)]
    np.save(path, array)
    with indexes.open(folder) as index:
        with pytest.raises(CorruptedIndexError, match="the ids of a segment are damaged"):
            index.search(matrices([1]))
        assert not index.verify().is_whole


@pytest.mark.parametrize("surrogate", [rb"\ud800", b"abc\xed\xa0\x80"], ids=["escape", "bytes"])
def test_an_id_that_is_not_valid_unicode_is_refused(tmp_path, surrogate):
    with indexes.Flat(tmp_path / "index") as index:
        index.add("sixsix", matrices([1])[0])
    path = next((tmp_path / "index" / "segments").rglob("ids.npy"))
    path.write_bytes(path.read_bytes().replace(b"sixsix", surrogate))
    with indexes.open(tmp_path / "index") as index, pytest.raises(CorruptedIndexError, match="the ids of a segment"):
        index.search(matrices([1]))


@pytest.mark.parametrize(
    "written",
    [
        {},  # whose bytes are a float
        {"shape": [12, 4, *[1] * 63]},  # numpy has 64 dimensions
        {"shape": [0, 10**30]},
        {"shape": [0, 2**40, 2**40]},
        {"shape": [0, *[10**4000] * 1000]},
        {"shape": [True, 48]},
    ],
    ids=lambda written: str(written)[:30],
)
def test_arrays_that_numpy_cannot_make_are_refused(tmp_path, written):
    """Of a file that says the same as the catalog."""
    folder = make(tmp_path / "index")
    name, files = change(folder, "SELECT name, files FROM segment ORDER BY first")[0]
    files = json.loads(files)
    shape = tuple(written.get("shape", [12, 4]))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) % 2**16) + header + b"\0" * 192 * bool(shape[0])
    (folder / "segments" / name / "vectors.npy").write_bytes(content)
    files["vectors.npy"].update({"bytes": len(content) if written else float(len(content)), **written})
    forge(folder, "segment", files=json.dumps(files))
    with indexes.open(folder) as index:
        for use in (index.search, index.get_embeddings):
            with pytest.raises(CorruptedIndexError, match=r"vectors\.npy is damaged"):
                use(matrices([1]) if use == index.search else "a")
        assert not index.verify().is_whole
        assert index.get_embeddings("x").lengths.tolist() == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_a_stranger_s_catalog_names_twice_are_not_deleted(tmp_path, kind):
    """As ANN data, too: the next commit makes that anew, and deletes what it was."""
    folder = make(tmp_path / "index", kind)
    name, files = change(folder, "SELECT name, files FROM segment ORDER BY first")[0]
    derived = ("derived", json.dumps([name, json.loads(files)]))
    change(folder, "INSERT INTO setting VALUES (?, ?, ?)", *derived, row_checksum("setting", derived))
    with indexes.open(folder) as index:
        index._storage.write_ann_data(None)
        assert (folder / "segments" / name).is_dir()
        assert index.verify().is_whole
        assert len(index.get_embeddings(index.ids())) == 5


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_too_many_open_files_are_no_damage(tmp_path):
    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        index._segment_bytes = 3 << 20
        for i in range(6):  # segments that are mapped, each with a file descriptor
            index.add(range(10 * i, 10 * i + 10), matrices([1000] * 10, dim=64, seed=i))

    def use():
        import resource

        with indexes.open(folder) as index:
            len(index)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 1, hard))
            try:
                index.search(matrices([3], dim=64))
                refused = None
            except StorageError as error:
                refused = str(error)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return [refused, len(index.search(matrices([3], dim=64))[0])]

    refused, found = in_child(use)
    assert refused is not None
    assert "damaged" not in refused
    assert found == 10


def test_a_file_that_was_put_back_is_read_without_opening_anew(tmp_path):
    folder = make(tmp_path / "index")
    path = file_of(folder, "a", "vectors.npy")
    path.rename(tmp_path / "kept")
    with indexes.open(folder) as index:
        with pytest.raises(CorruptedIndexError, match="it is missing"):
            index.search(matrices([1]))
        (tmp_path / "kept").rename(path)
        assert len(index.search(matrices([1]))[0]) == 5


def test_compacting_what_is_compact_commits_nothing(tmp_path):
    with indexes.open(make(tmp_path / "index")) as index:
        index.compact()
        before = index._storage.snapshot()
        index.compact()
        assert index._storage.snapshot() is before
