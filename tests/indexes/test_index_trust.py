"""Nothing that is stored is believed before it was compared: rows, names, arrays, and what is copied on."""

import json
import os
import random
import re
import shutil
import sqlite3
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from index_helpers import contents, in_child, matrices

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    IndexDamageWarning,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    StorageError,
)
from latelier.indexes.catalog import forks
from latelier.indexes.catalog.rows import COLUMNS, row_checksum

KINDS = [indexes.Flat, indexes.IVF]
IDS = ["a", "b", "c", "d"]


def make(folder, kind=indexes.Flat, **options):
    with kind(folder, **options) as index:
        index.add(IDS, matrices([3, 3, 3, 3]), texts=IDS, metadata=[{"n": i, "who": f"w{i}"} for i in range(4)])
        index.add(["x"], matrices([1], seed=1), texts=["ex"], metadata=[{"n": 9}])
    return folder


def file_of(folder, id, name):
    for segment in (folder / "segments").iterdir():
        if f'"{id}"'.encode() in (segment / "ids.npy").read_bytes():
            return segment / name
    raise LookupError(id)


def flip(path, position, bit=6):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def change(folder, statement, *parameters):
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        rows = connection.execute(statement, parameters).fetchall()
    connection.close()
    return rows


def forge(folder, table, **values):
    """Change values of the first row of a table, and its checksum as an attacker would."""
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        columns = COLUMNS[table]
        row = dict(zip(columns, connection.execute(f"SELECT * FROM {table}").fetchone(), strict=False))
        key = row[columns[0]]
        row.update(values)
        assignments = ", ".join(f"{name} = ?" for name in (*columns, "checksum"))
        checked = [*row.values(), row_checksum(table, list(row.values()))]
        connection.execute(f"UPDATE {table} SET {assignments} WHERE {columns[0]} = ?", (*checked, key))
    connection.close()


# --- what is copied on -------------------------------------------------------------------------------------------


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
        with pytest.warns(IndexDamageWarning, match=r"is damaged: .*the rest is compacted"):
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
    assert all("the documents are written" in message and "verify() lists" in message for message in warned)


# --- the catalog -------------------------------------------------------------------------------------------------


def test_flipped_bits_of_the_catalog_are_found_or_change_nothing(tmp_path):
    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        index.add(
            range(60),
            matrices([1] * 60),
            [f"text of {i} " * 3 for i in range(60)],
            [{"year": 2000 + i} for i in range(60)],
        )
        index.remove([5, 6])
        index.settings["tool"] = {"a": 1}

    def everything():
        with indexes.open(folder, read_only=True) as index:
            is_whole = index.verify().is_whole
            found = index.search(matrices([2]), k=100, filter="year >= 2030")
            return is_whole, repr((contents(index), found, dict(index.settings), len(index), index.dim))

    expected = everything()
    assert expected[0]
    catalog = folder / "catalog.sqlite"
    content, rng = catalog.read_bytes(), random.Random(0)
    outcomes = {"found": 0, "refused": 0, "harmless": 0}
    for _ in range(400):
        flip(catalog, rng.randrange(len(content)), rng.randrange(8))
        try:
            is_whole, answer = everything()
            assert not is_whole or answer == expected[1]
            outcomes["harmless" if is_whole else "found"] += 1
        except LatelierError:
            outcomes["refused"] += 1
        catalog.write_bytes(content)
    assert min(outcomes.values()) > 0, outcomes


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("UPDATE content SET text = 'A' WHERE text = 'a'", lambda index: index.get("a")),
        ("UPDATE content SET metadata = '{\"n\":7}' WHERE text = 'a'", lambda index: index.get(["x", "a"])),
        ("UPDATE document SET id = 'e' WHERE id = 'a'", lambda index: index.get("e")),
        ("UPDATE user_setting SET value = '2'", lambda index: index.settings["tool"]),
        ("UPDATE setting SET value = '5' WHERE name = 'dim'", lambda index: index.search(matrices([1]))),
        ("UPDATE segment SET tokens = tokens + 1", lambda index: index.search(matrices([1]))),
        ("UPDATE tombstone SET number = number - 1", lambda index: index.search(matrices([1]))),
        ("DELETE FROM tombstone", lambda index: index.search(matrices([1]))),
        ("UPDATE field SET column = 'f7' WHERE name = 'n'", lambda index: index.search(matrices([1]), filter="n = 1")),
    ],
)
def test_a_changed_row_is_named_and_not_read(tmp_path, statement, reads):
    folder = make(tmp_path / "index")
    with indexes.open(folder) as index:
        index.remove("c")
        index.settings["tool"] = 1
    change(folder, statement)
    if "UPDATE setting" in statement:  # without the configuration there is no index
        with pytest.raises(CorruptedIndexError, match="the row 'dim' of its table 'setting' is not what was written"):
            indexes.open(folder)
        return
    with indexes.open(folder) as index:
        report = index.verify()
        assert {damage.file for damage in report.damages} == {"catalog.sqlite"}
        with pytest.raises(CorruptedIndexError, match="the catalog of this index is damaged"):
            reads(index)


def test_verify_names_the_documents_whose_texts_or_fields_have_changed(tmp_path):
    folder = make(tmp_path / "index")
    change(folder, "UPDATE content SET text = 'A' WHERE text = 'a'")
    change(folder, "UPDATE document SET f0 = 17 WHERE id = 'b'")
    with indexes.open(folder) as index:
        report = index.verify()
        assert sorted(report.ids) == ["a", "b"]
        assert index.get("d").text == "d"
        index.update(report.ids, matrices([1, 1]), texts=["a", "b"], metadata=[{"n": 0}, {"n": 1}])
        assert index.verify().is_whole


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON document BEGIN DELETE FROM content; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE INDEX i ON content (text)",
        "ALTER TABLE content ADD COLUMN more",
        "DROP TABLE tombstone",
    ],
)
def test_a_catalog_with_other_tables_than_ours_is_refused(tmp_path, statement):
    folder = make(tmp_path / "index")
    change(folder, statement)
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match="the catalog of this index is damaged: it"):
            use(folder)


# --- an index from a stranger --------------------------------------------------------------------------------------


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["{victim}", "../../victim", "..", ".", "", "../segments", "a" * 16 + "/../../../victim"]
)
def test_stored_names_reach_nothing_outside(tmp_path, kind, name):
    (tmp_path / "victim" / "photos").mkdir(parents=True)
    (tmp_path / "victim" / "ids.npy").write_bytes(b"x")
    folder = make(tmp_path / "index", kind)
    before = names(tmp_path / "victim")
    stored = name.format(victim=tmp_path / "victim")
    for removed, derived in ((0, False), (4, False), (0, True)):
        shutil.copytree(folder, tmp_path / "copy")
        values = {"name": stored, "removed": removed}
        if derived:
            change(tmp_path / "copy", "INSERT INTO setting VALUES ('derived', '[]', 0)")
            forge(tmp_path / "copy", "setting", name="derived", value=json.dumps([stored, {}]))
        else:
            forge(tmp_path / "copy", "segment", **values)
        for use in (
            lambda index: index.add("new", matrices([5])[0]),
            lambda index: index.update(["a"], matrices([5])),
            lambda index: index.remove(IDS),
            lambda index: index.search(matrices([1])),
            lambda index: index.verify(),
        ):
            try:
                with indexes.open(tmp_path / "copy") as index:
                    use(index)
            except LatelierError:
                pass
        assert names(tmp_path / "victim") == before
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
@pytest.mark.parametrize("place", ["segments", "segment", "file"])
def test_links_are_not_followed(tmp_path, place):
    folder = make(tmp_path / "index")
    file = file_of(folder, "a", "ids.npy")
    link = {"segments": folder / "segments", "segment": file.parent, "file": file}[place]
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    before = names(tmp_path / "elsewhere") if place != "file" else None
    with indexes.open(folder) as index:
        assert IDS[0] in index.verify().ids
        with pytest.raises(CorruptedIndexError, match="is a link, which is not followed"):
            index.search(matrices([1]))
        with pytest.warns(IndexDamageWarning, match="is a link"):
            index.compact()
    assert before is None or names(tmp_path / "elsewhere") == before


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
@pytest.mark.parametrize(
    "name", ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "catalog.sqlite-journal"]
)
def test_a_catalog_that_is_a_link_is_not_written(tmp_path, name):
    folder = make(tmp_path / "index")
    victim = tmp_path / "victim"
    victim.write_bytes((folder / name).read_bytes() if name == "catalog.sqlite" else b"theirs")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    before = victim.read_bytes()
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match="is a link, which is not followed"):
            use(folder)
    assert victim.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
@pytest.mark.parametrize(
    "make_file", [os.mkfifo if hasattr(os, "mkfifo") else None, Path.mkdir], ids=["pipe", "folder"]
)
@pytest.mark.parametrize("suffix", ["wal", "shm", "journal"])
def test_side_files_that_are_no_files_are_refused(tmp_path, suffix, make_file):
    """SQLite would wait for the other end of a pipe for ever."""
    folder = make(tmp_path / "index")
    make_file(folder / f"catalog.sqlite-{suffix}")
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match=f"catalog.sqlite-{suffix} is no plain file"):
            use(folder)


def test_a_journal_that_names_another_file_deletes_nothing(tmp_path):
    """SQLite deletes the "super-journal" that a journal names, once it has rolled it back."""
    folder = make(tmp_path / "index")
    victim = str(tmp_path / "victim").encode()
    (tmp_path / "victim").write_bytes(b"theirs")
    page = 4096
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 1, 512, page)
    record = struct.pack(">I", 1 << 20) + victim + struct.pack(">II", len(victim), sum(victim))
    (folder / "catalog.sqlite-journal").write_bytes(header.ljust(512, b"\0") + record + header[:8])
    with pytest.raises(CorruptedIndexError, match="is not a journal that an index makes"):
        indexes.open(folder)
    assert (tmp_path / "victim").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs FIFOs")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    folder = make(tmp_path / "index")
    path = file_of(folder, "a", "ids.npy")
    path.unlink()
    os.mkfifo(path)
    with indexes.open(folder) as index, pytest.raises(CorruptedIndexError, match=r"ids\.npy is damaged: it is missing"):
        index.search(matrices([1]))


def first(path):
    return np.load(path)


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


def test_an_id_that_is_not_valid_unicode_is_refused(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add("sixsix", matrices([1])[0])
    path = next((tmp_path / "index" / "segments").rglob("ids.npy"))
    path.write_bytes(path.read_bytes().replace(b'"sixsix"', b'"\\ud800"'))
    with indexes.open(tmp_path / "index") as index, pytest.raises(CorruptedIndexError, match="the ids of a segment"):
        index.search(matrices([1]))


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("segment", {"documents": 0}),
        ("segment", {"documents": 3}),
        ("segment", {"documents": 10**15, "tokens": 10**15, "last": 10**15}),
        ("segment", {"first": -1}),
        ("segment", {"first": "x"}),
        ("segment", {"last": 2**62}),
        ("segment", {"tokens": 13}),
        ("segment", {"removed": 4}),
        ("segment", {"removed": 2}),
        ("segment", {"files": "[]"}),
        ("segment", {"files": "{}"}),
        ("segment", {"files": '{"../../x.npy": {}}'}),
        ("segment", {"files": '{"vectors.npy": {"bytes": 176, "crc32": 0, "dtype": "|O", "shape": [12, 4]}}'}),
        ("segment", {"files": "[" * 100_000}),
        ("segment", {"name": "../up"}),
    ],
)
def test_a_row_that_lies_is_refused(tmp_path, table, values):
    folder = make(tmp_path / "index")
    forge(folder, table, **values)
    with indexes.open(folder) as index:
        assert not index.verify().is_whole
        with pytest.raises(CorruptedIndexError, match="damaged"):
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("dim", "0"), ("dim", "1.5"), ("dim", '"4"'), ("dim", str(2**40)), ("generation", "null"), ("next_number", "-1")],
)
def test_a_setting_that_no_index_has_is_refused(tmp_path, name, value):
    folder = make(tmp_path / "index")
    change(
        folder,
        "UPDATE setting SET value = ?, checksum = ? WHERE name = ?",
        value,
        row_checksum("setting", (name, value)),
        name,
    )
    with pytest.raises(CorruptedIndexError, match=f"its {name} is"):
        indexes.open(folder)


def test_a_next_number_that_a_document_has_is_refused(tmp_path):
    folder = make(tmp_path / "index")
    change(
        folder,
        "UPDATE setting SET value = '2', checksum = ? WHERE name = 'next_number'",
        row_checksum("setting", ("next_number", "2")),
    )
    with indexes.open(folder) as index:
        with pytest.raises(CorruptedIndexError, match="its next number is 2"):
            index.add("new", matrices([1])[0])
        assert index.ids() == [*IDS, "x"]


# --- one commit at a time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_shows_one_commit(tmp_path, kind):
    folder = make(tmp_path / "index", kind)
    with indexes.open(folder) as index, indexes.open(folder) as other:
        with index.snapshot():
            before = contents(index)
            other.remove(IDS)
            other.add("new", np.ones((1, 4)))
            other.compact()
            assert contents(index) == before
            assert len(index) == 5
            assert "a" in index
            assert "new" not in index
            assert index.dim == 4
            with index.snapshot():
                assert [hit.id for hit in index.search(matrices([2]), filter="n < 9")[0] if hit.id not in IDS] == []
            assert index.check(k=3).documents == 5
            with pytest.raises(LatelierError, match=r"nothing is written within snapshot\(\)"):
                index.add("no", matrices([1])[0])
        assert index.ids() == ["x", "new"]


def test_settings_are_of_the_snapshot(tmp_path):
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:
        index.settings["model"] = "first"
        with index.snapshot():
            assert len(index.settings) == 1
            other.settings.update(model="second", more=1)
            assert dict(index.settings) == {"model": "first"}
            for change in (lambda: index.settings.update(more=2), lambda: index.settings.pop("model")):
                with pytest.raises(LatelierError, match=r"nothing is written within snapshot\(\)"):
                    change()
        assert dict(index.settings) == {"model": "second", "more": 1}


def test_a_snapshot_ends_also_where_another_thread_closes_its_generator(tmp_path):
    """As web servers do that take what a generator yields in threads of a pool."""
    with indexes.Flat(tmp_path / "index") as index:

        def lengths():
            with index.snapshot():
                yield len(index)

        generator = lengths()
        assert next(generator) == 0
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join()
        index.add("a", np.eye(4))
        assert index.ids() == ["a"]
        assert forks._state.used == {}


@pytest.mark.parametrize("dim", [1, 16, 4096])
def test_vectors_are_decoded_with_the_dim_they_were_coded_with(tmp_path, dim):
    with indexes.IVF(tmp_path / "index", nbits=4) as index, indexes.open(tmp_path / "index") as other:
        index.add("a", matrices([40], dim=8)[0])
        expected = index.get_embeddings("a").vectors.copy()
        find = index._storage.find

        def between(ids):
            found = find(ids)
            other.remove("a")
            other.add("b", np.ones((1, dim)))
            return found

        index._storage.find = between
        np.testing.assert_array_equal(index.get_embeddings("a").vectors, expected)


# --- what passes ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_too_many_open_files_are_no_damage(tmp_path):
    folder = tmp_path / "index"
    with indexes.Flat(folder, segment_bytes=3 << 20) as index:
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


# --- the first format ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["flat", "ivf"])
def first_format(request, tmp_path):
    """An index made by the first version of the format, with a removed document."""
    with tarfile.open(Path(__file__).with_name("first_format.tar.gz")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / request.param


def test_the_first_format_is_read_and_written_and_brought_up_to_date_by_compact(first_format):
    with indexes.open(first_format, read_only=True) as index:
        before = contents(index)
        assert index.ids() == ["a", "b", 3, "ß", "late"]
        assert index.get("a") == ("a", "one", {"year": 2001, "tags": ["x"]})
        assert [hit.id for hit in index.search(matrices([2]), filter="year = 2002")[0]] == ["b"]
        assert index.settings["model"] == {"name": "m"}
        assert index.verify().is_whole
    with indexes.open(first_format) as index:
        index.add("new", matrices([2])[0], texts="seven", metadata={"lang": "en", "year": 3})
        index.update("b", matrices([2])[0], texts="two again")
        index.remove("ß")
        index.settings["other"] = 2
        changed = contents(index)
        assert index.verify().is_whole
        version = "PRAGMA user_version"
        assert sqlite3.connect(first_format / "catalog.sqlite").execute(version).fetchone() == (1,)
        index.compact()
        assert contents(index) == changed != before
        assert sqlite3.connect(first_format / "catalog.sqlite").execute(version).fetchone() == (2,)
        assert index.verify().is_whole
        assert [hit.id for hit in index.search(matrices([2]), filter="lang IS NOT NULL", k=9)[0]] != []
        assert dict(index.settings) == {"model": {"name": "m"}, "other": 2}
    with indexes.open(first_format) as index:
        assert contents(index) == changed
        index.add("last", matrices([1])[0], metadata={"fresh": 1})
        index.compact()
        assert index.verify().is_whole
    change(first_format, "UPDATE content SET text = 'ONE' WHERE text = 'one'")
    with indexes.open(first_format) as index:
        assert index.verify().ids == ["a"]


def test_compacting_what_is_compact_commits_nothing(tmp_path):
    with indexes.open(make(tmp_path / "index")) as index:
        index.compact()
        before = index._storage.snapshot()
        index.compact()
        assert index._storage.snapshot() is before


def test_a_first_format_of_version_zero_is_none(first_format):
    change(first_format, "PRAGMA user_version = 0")
    with pytest.raises((CorruptedIndexError, IndexFormatError), match="its format version is 0"):
        indexes.open(first_format)


@pytest.mark.parametrize("path", [["x"], False, 5, "a\0b", b"a\0b"])
def test_a_path_that_is_none_is_refused(path):
    for use in (indexes.Flat, indexes.IVF, indexes.open):
        with pytest.raises(InvalidArgumentError, match="as a path; give the folder of the index"):
            use(path)


def test_settings_have_no_names_that_cannot_be_stored():
    settings = indexes.Flat().settings
    for name in ("\ud800", 5, None, "other"):
        assert name not in settings
        for use in (settings.__getitem__, settings.__delitem__):
            with pytest.raises(KeyError, match=re.escape(repr(name))):
                use(name)
