"""Damaged and forged rows and tables of the catalog are named, and never read as if they were whole."""

import random

import pytest
from index_helpers import contents, matrices
from index_tampering import IDS, change, flip, forge, make

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    LatelierError,
)
from latelier.indexes.store.checks import row_checksum


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


def test_a_schema_that_is_no_text_is_damage(tmp_path):
    folder = tmp_path / "index"
    with indexes.Flat(folder) as index:
        index.add("a", matrices([1])[0], "text", {"year": 2000})
    catalog = folder / "catalog.sqlite"
    content, refused = catalog.read_bytes(), 0
    begin = content.index(b"CREATE TABLE")
    for place in range(begin, begin + 120):
        catalog.write_bytes(content[:place] + b"\xe0" + content[place + 1 :])
        try:
            with indexes.open(folder) as index:
                assert index.get("a").text == "text"
        except CorruptedIndexError:
            refused += 1
    assert refused > 60


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
        with pytest.raises(
            CorruptedIndexError, match="the row 'dim' of its table 'setting' does not match its checksum"
        ):
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
