"""Damaged, forged and hostile folders: named, never read as if they were whole, and nothing outside of them touched."""

import json
import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from index_helpers import contents, in_child, matrices
from index_tampering import IDS, KINDS, change, file_of, flip, forge, make, row_checksum

from latelier import indexes
from latelier.errors import CorruptedIndexError, IndexDamageWarning, LatelierError, StorageError

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork, links and resource limits")
ALL = [*IDS, "x"]
ONE = np.ones((1, 4))


def replace(path):
    array = np.load(path)
    np.save(path, array.reshape(array.shape[::-1]))


DAMAGES = {
    "missing": (os.unlink, "it is missing"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 5), "bytes, but"),
    "lengthened": (lambda path: path.write_bytes(path.read_bytes() + b"more"), "bytes, but"),
    "emptied": (lambda path: os.truncate(path, 0), "it has 0 bytes"),
    "replaced": (replace, "was written"),
    "header": (lambda path: path.write_bytes(b"garbage!" + path.read_bytes()[8:]), "was written"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_segment_is_named_and_the_rest_stays_readable(tmp_path, damage, reason):
    damage(file_of(make(tmp_path / "index"), "a", "vectors.npy"))
    with indexes.open(tmp_path / "index") as index:
        for use in (
            lambda: index.search(matrices([2])),
            lambda: index.search(matrices([2]), filter="n = 0"),
            lambda: index.get_embeddings(["x", "b"]),
            index.check,
        ):
            with pytest.raises(CorruptedIndexError, match=f"vectors.npy is damaged: .*{reason}") as error:
                use()
        assert "Its 4 documents still have their texts and metadata" in str(error.value)
        with pytest.warns(IndexDamageWarning, match=reason):
            index.compact()
        assert index.ids() == ALL
        assert [record.text for record in index.get(ALL)] == [*IDS, "ex"]
        assert index.get_embeddings("x").vectors.tolist() == matrices([1], seed=1)[0].tolist()
        assert [hit.id for hit in index.search(matrices([2]), filter="n = 9")[0]] == ["x"]


@pytest.mark.parametrize("mend", ["update", "remove", "restore"])
def test_verify_lists_the_documents_that_update_or_remove_mends(tmp_path, mend):
    path = file_of(make(tmp_path / "index"), "a", "vectors.npy")
    path.rename(tmp_path / "kept")
    with indexes.open(tmp_path / "index") as index:
        report = index.verify()
        assert (report.is_whole, report.ids, report.files) == (False, IDS, 17)
        assert report.damages[0].file.endswith("/vectors.npy")
        if mend == "update":
            kept = index.get(report.ids)
            index.update(report.ids, matrices([1] * 4), [r.text for r in kept], [r.metadata for r in kept])
            assert index.get("b") == ("b", "b", {"n": 1, "who": "w1"})
        elif mend == "remove":
            index.remove(report.ids)
        else:
            (tmp_path / "kept").rename(path)
        assert len(index.search(matrices([2]))[0]) == len(index) == (1 if mend == "remove" else 5)
        index.compact()
        assert index.verify().is_whole
        assert index.check().recall == 1.0


@pytest.mark.parametrize(
    ("kind", "name"),
    [(indexes.Flat, "documents.npy"), (indexes.IVF, "ids.npy"), (indexes.Flat, "numbers"), (indexes.IVF, "numbers")],
)
def test_no_write_gives_damaged_bytes_a_new_checksum(tmp_path, kind, name):
    folder = make(tmp_path / "index", kind)
    own = {indexes.Flat: "vectors.npy", indexes.IVF: "codes.npy"}[kind]
    # The last byte of documents.npy is not used: an end that is known otherwise.
    flip(file_of(folder, "a", own if name == "numbers" else name), -1 if name == "documents.npy" else -3, bit=0)
    with indexes.open(folder) as index:
        before = index.verify()
        assert before.ids == IDS
        index.add("y", matrices([20], seed=2)[0])  # so large that it takes in all that come before it
        with pytest.warns(IndexDamageWarning, match="all others are compacted"):
            index.compact()
        assert index.verify() == before
        assert index.ids() == [*ALL, "y"]
        assert len(list((folder / "segments").glob("*/ids.npy"))) == 2
        index.update(IDS, matrices([1] * 4))
        assert index.verify().is_whole


def test_a_copy_without_the_log_is_no_new_index(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(IDS, matrices([3, 3, 3, 3]))
        shutil.copytree(tmp_path / "index", tmp_path / "copy")
        shutil.copytree(tmp_path / "index", tmp_path / "bare", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    with indexes.Flat(tmp_path / "copy") as copy:
        assert copy.ids() == IDS
    for use in (indexes.Flat, indexes.open):
        for read_only in (False, True):
            with pytest.raises(CorruptedIndexError, match="is empty, but there are segments"):
                use(tmp_path / "bare", read_only=read_only)


@pytest.mark.filterwarnings("ignore:the documents are stored, but the inverted lists")
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_a_part_of_the_log_is_told_so_and_keeps_its_segments(tmp_path, kind):
    copy, sizes = tmp_path / "copy", []
    with kind(tmp_path / "index") as index:
        for i in range(4):
            index.add([f"{i} {j}" for j in range(50)], matrices([2] * 50, seed=i))
            sizes.append((tmp_path / "index" / "catalog.sqlite-wal").stat().st_size)
        assert index.verify().is_whole
        shutil.copytree(tmp_path / "index", copy, ignore=shutil.ignore_patterns("*-shm"))
    os.truncate(copy / "catalog.sqlite-wal", sizes[1])
    spared = {path.name for path in (copy / "segments").iterdir()}
    with indexes.open(copy) as index:
        assert len(index) == 100
        for _round in range(2):
            named = {damage.file for damage in index.verify().damages if "earlier commit" in damage.reason}
            assert named == {f"segments/{name}" for name in spared}
            with pytest.warns(IndexDamageWarning, match=r"catalog\.sqlite-wal, is missing or incomplete"):
                index.compact()
            assert spared <= {path.name for path in (copy / "segments").iterdir()}
            for _ in range(5):  # more commits than were lost
                index.add(f"new {len(index)}", ONE)


def test_flipped_bits_of_the_catalog_are_found_or_change_nothing(tmp_path):
    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        texts, metadata = [f"text of {i} " * 3 for i in range(60)], [{"year": 2000 + i} for i in range(60)]
        index.add(range(60), matrices([1] * 60), texts, metadata)
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
    for _ in range(160):
        flip(catalog, rng.randrange(len(content)), rng.randrange(8))
        try:
            is_whole, answer = everything()
            assert not is_whole or answer == expected[1]
            outcomes["harmless" if is_whole else "found"] += 1
        except LatelierError:
            outcomes["refused"] += 1
        catalog.write_bytes(content)
    assert min(outcomes.values()) > 0, outcomes


def test_a_catalog_that_is_no_database_or_scrambled_is_named(tmp_path):
    catalog = make(tmp_path / "index") / "catalog.sqlite"
    content = catalog.read_bytes()
    begin = content.index(b"CREATE TABLE")
    for damaged in (b"not a database at all" * 100, content[:begin] + b"\xe0" + content[begin + 1 :]):
        catalog.write_bytes(damaged)
        for use in (indexes.open, indexes.Flat):
            with pytest.raises(CorruptedIndexError, match="the catalog of the index"):
                use(tmp_path / "index")


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("UPDATE content SET text = 'A' WHERE text = 'a'", lambda index: index.get("a")),
        ("UPDATE document SET id = 'e' WHERE id = 'a'", lambda index: index.get("e")),
        ("UPDATE user_setting SET value = '2'", lambda index: index.settings["tool"]),
        ("UPDATE segment SET tokens = tokens + 1", lambda index: index.search(matrices([1]))),
        ("DELETE FROM tombstone", lambda index: index.search(matrices([1]))),
        ("UPDATE field SET column = 'f7' WHERE name = 'n'", lambda index: index.search(matrices([1]), filter="n = 1")),
        ("UPDATE setting SET value = '2', checksum = {} WHERE name = 'next_number'", lambda index: index.add("y", ONE)),
    ],
)
def test_a_changed_row_is_named_and_not_read(tmp_path, statement, reads):
    folder = make(tmp_path / "index")
    with indexes.open(folder) as index:
        index.remove("c")
        index.settings["tool"] = 1
    change(folder, statement.replace("{}", str(row_checksum("setting", ("next_number", "2")))))
    with indexes.open(folder) as index:
        if "next_number" not in statement:
            assert {damage.file for damage in index.verify().damages} == {"catalog.sqlite"}
        with pytest.raises(CorruptedIndexError, match="the catalog of this index is damaged"):
            reads(index)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON document BEGIN DELETE FROM content; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE content ADD COLUMN more",
        "DROP TABLE tombstone",
        "UPDATE setting SET value = '5' WHERE name = 'dim'",
        *(f"UPDATE setting SET value = '{value}', checksum = 0 WHERE name = 'generation'" for value in ("null", "1.5")),
    ],
)
def test_a_catalog_with_other_tables_or_counters_than_ours_is_refused(tmp_path, statement):
    folder = make(tmp_path / "index")
    value = statement.split("'")[1] if "checksum" in statement else ""
    change(folder, statement.replace("= 0", f"= {row_checksum('setting', ('generation', value))}"))
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(CorruptedIndexError, match="the catalog of this index is damaged"):
            use(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"documents": 0},
        {"documents": 10**15, "tokens": 10**15, "last": 10**15},
        {"tokens": 13},
        {"removed": 2},
        {"files": '{"../../x.npy": {}}'},
        {"files": '{"vectors.npy": {"bytes": 176, "crc32": 0, "dtype": "|O", "shape": [12, 4]}}'},
        {"files": "[" * 100_000},
        {"name": "../up"},
    ],
    ids=str,
)
def test_a_row_that_lies_is_refused(tmp_path, values):
    folder = make(tmp_path / "index")
    forge(folder, "segment", **values)
    with indexes.open(folder) as index:
        assert not index.verify().is_whole
        with pytest.raises(CorruptedIndexError, match="damaged"):
            index.search(matrices([1]))


HOSTILE = {
    "numbers fall": lambda a: a[0].__setitem__(slice(0, 2), a[0][[1, 0]]),
    "offsets beyond the tokens": lambda a: a[1].__setitem__(2, 1 << 44),
    "offsets that overflow": lambda a: a[1].__setitem__(slice(1, 3), [2**63 - 1, -2]),
    "an empty document": lambda a: a[1].__setitem__(1, 0),
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
    with indexes.open(folder) as index:
        for read in (lambda: index.search(matrices([1])), lambda: index.get_embeddings(["a", "b"])):
            with pytest.raises(CorruptedIndexError, match="is damaged: "):
                read()
        assert index.get_embeddings("x").lengths.tolist() == [1]


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["{victim}", "../../victim", "..", ""])
def test_stored_names_reach_nothing_outside(tmp_path, name):
    (tmp_path / "victim" / "photos").mkdir(parents=True)
    (tmp_path / "victim" / "ids.npy").write_bytes(b"x")
    folder = make(tmp_path / "index")
    before = names(tmp_path / "victim")
    stored = name.format(victim=tmp_path / "victim")
    for removed, derived in ((0, False), (4, False), (0, True)):
        shutil.copytree(folder, tmp_path / "copy")
        if derived:
            row = ("derived", json.dumps([stored, {}]))
            change(tmp_path / "copy", "INSERT INTO setting VALUES (?, ?, ?)", *row, row_checksum("setting", row))
        else:
            forge(tmp_path / "copy", "segment", name=stored, removed=removed)
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


@posix
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
        with pytest.raises(CorruptedIndexError, match="is a link"):
            index.search(matrices([1]))
        with pytest.warns(IndexDamageWarning, match="is a link"):
            index.compact()
    assert before is None or names(tmp_path / "elsewhere") == before


@posix
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("catalog.sqlite", "link"),
        ("catalog.sqlite", "pipe"),
        ("catalog.sqlite-wal", "link"),
        ("catalog.sqlite-shm", "pipe"),
        ("catalog.sqlite-journal", "folder"),
    ],
)
def test_a_catalog_of_links_pipes_and_folders_is_refused(tmp_path, name, kind):
    """SQLite would write through a link, and wait for the other end of a pipe for ever."""
    folder, victim = make(tmp_path / "index"), tmp_path / "victim"
    victim.write_bytes((folder / name).read_bytes() if name == "catalog.sqlite" else b"theirs")
    before = victim.read_bytes()
    (folder / name).unlink(missing_ok=True)
    {"link": lambda path: path.symlink_to(victim), "pipe": os.mkfifo, "folder": Path.mkdir}[kind](folder / name)
    for use in (indexes.open, indexes.Flat):
        with pytest.raises(LatelierError, match=r"is a link|not a regular file|is not an index"):
            use(folder)
    assert victim.read_bytes() == before


def test_a_journal_that_names_another_file_deletes_nothing(tmp_path):
    """SQLite deletes the "super-journal" that a journal names, once it has rolled it back."""
    folder = make(tmp_path / "index")
    victim = str(tmp_path / "victim").encode()
    (tmp_path / "victim").write_bytes(b"theirs")
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 1, 512, 4096)
    record = struct.pack(">I", 1 << 20) + victim + struct.pack(">II", len(victim), sum(victim))
    (folder / "catalog.sqlite-journal").write_bytes(header.ljust(512, b"\0") + record + header[:8])
    with pytest.raises(CorruptedIndexError, match="is not a journal that an index writes"):
        indexes.open(folder)
    assert (tmp_path / "victim").exists()


@posix
@pytest.mark.parametrize("tokens", [2**18, 1], ids=["segment", "catalog"])
def test_a_full_disk_leaves_the_index_as_it_was(tmp_path, tokens):
    """A limit on the size of files stands for the end of the disk; the segments or the catalog reach it first."""
    import resource

    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        index.add(["a", "b"], matrices([2, 1]), texts=["x", None])
        before = contents(index)

    def write_much():
        count, limit = (1, 2**20) if tokens > 1 else (100, 2**14)
        with indexes.open(folder) as index:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            refused = []
            for write in (index.add, index.update):
                try:
                    write([f"d{i}" for i in range(count)], [np.ones((tokens, 4))] * count, ["text" * 100] * count)
                except StorageError as error:
                    refused.append(str(error))
            return [refused, [list(record) for record in index.get(index.ids())]]

    refused, records = in_child(write_much)
    assert len(refused) == 2
    expected = "could not write a segment" if tokens > 1 else "unknown whether the write took effect"
    assert all(expected in reason for reason in refused)
    assert records == [["a", "x", {}], ["b", None, {}]]
    with indexes.open(folder) as index:
        assert contents(index) == before
        assert index.verify().is_whole
        index.compact()  # deletes what a failed commit has left
        assert len(list((folder / "segments").glob("*/ids.npy"))) == 1
        index.add("c", np.ones((2**18, 4)))
        assert len(index) == 3
