"""How segments come, grow and go, and what readers see and files hold before, in and after a transaction."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import contents, matrices

from latelier import indexes
from latelier.errors import LatelierError
from latelier.indexes.store import segments


def sizes(index):
    """Tokens of each segment, in order."""
    return [int(part.segment.offsets[-1]) for part in index._storage.snapshot().parts()]


def folders(index):
    return sorted(path.name for path in (index.path / "segments").iterdir())


def test_a_thousand_single_documents_make_few_segments():
    index = indexes.Flat()
    rng = np.random.default_rng(0)
    for i in range(1000):
        index.add(i, np.full((rng.integers(1, 20), 2), float(i)))
        if i % 50 == 0:
            found = sizes(index)
            assert all(left > 2 * right for left, right in itertools.pairwise(found))
    assert len(sizes(index)) <= 10
    assert index.ids() == list(range(1000))
    assert [hit.id for hit in index.search(np.ones((1, 2)), k=3)[0]] == [999, 998, 997]


def test_segments_are_not_merged_beyond_their_size(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index._segment_bytes = 100 * 2 * 4  # 100 tokens
        for i in range(30):
            index.add(i, np.full((20, 2), float(i)))
        assert max(sizes(index)) <= 100
        assert len(sizes(index)) <= 12
        index.compact()
        assert sizes(index) == [100] * 6
        assert len(folders(index)) == 6
        kept = folders(index)
        index.add("new", np.ones((1, 2)))
        index.compact()
        assert set(kept) < set(folders(index))  # full and clean segments are not written again
        index.remove(7)
        index.compact()
        assert sizes(index) == [100, 80, 100, 100, 100, 100, 1]


def test_files_of_merged_segments_are_deleted(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        for i in range(20):
            index.add(i, matrices([2])[0])
            assert len(folders(index)) == len(sizes(index))
        index.remove(range(10))
        assert {hit.id for hit in index.search(matrices([1]), k=20)[0]} == set(range(10, 20))
        index.compact()
        assert len(folders(index)) == len(sizes(index)) == 1
        index.remove(range(10, 20))
        assert folders(index) == []


def test_compact_deletes_the_leftovers_of_killed_writers(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(["a", "b"], matrices([1, 2]))
        before = contents(index)
        for name in (".0123456789abcdef", "0123456789abcdef"):
            (tmp_path / "index" / "segments" / name).mkdir()
            (tmp_path / "index" / "segments" / name / "vectors.npy").write_bytes(b"half")
        index.compact()
        assert len(folders(index)) == 1
        assert contents(index) == before


def test_compact_gives_back_the_space_of_removed_documents(tmp_path):
    def size():
        return sum(path.stat().st_size for path in (tmp_path / "index").rglob("*") if path.is_file())

    with indexes.Flat(tmp_path / "index") as index:
        index.add(range(500), [np.ones((40, 8))] * 500, texts=["some text " * 100] * 500)
    full = size()
    with indexes.open(tmp_path / "index") as index:
        index.remove(range(50, 500))
        index.compact()
    assert size() < full / 5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_merged_parts_hold_the_documents_in_order(lengths, data):
    """Any ascending selection of two segments: numbers, ids, lengths and rows."""
    total = sum(lengths)
    rows = np.arange(total)[:, None]
    ids = [f"é{i}" if i % 2 else i for i in range(len(lengths))]
    one = segments.Segment.build(range(len(ids)), ids, lengths, {"rows": rows})
    two = segments.Segment.build(range(50, 50 + len(ids)), ids, lengths, {"rows": rows + 1000})
    parts = []
    for segment in (one, two):
        chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), unique=True, min_size=1).map(sorted))
        parts.append(segments.Part(segment, np.array(chosen)))
    merged = segments.Segment.merge(parts)
    starts = np.cumsum([0, *lengths])
    place = 0
    for segment, part in zip((one, two), parts, strict=True):
        for position in part.positions:
            assert merged.numbers[place] == segment.numbers[position]
            assert merged.ids([place]) == [ids[position]]
            found = merged.arrays["rows"][merged.offsets[place] : merged.offsets[place + 1]]
            assert found.tolist() == segment.arrays["rows"][starts[position] : starts[position + 1]].tolist()
            place += 1
    assert place == len(merged)


# Transactions and snapshots.

KINDS = {"memory": lambda folder: indexes.Flat(), "disk": indexes.Flat}


def test_changes_are_seen_when_the_block_ends(tmp_path):
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as reader:
        index.add(["a", "b"], matrices([2, 1]))
        before = contents(reader)
        with index.storage.transaction() as transaction:
            transaction.remove(["a"])
            transaction.set_ann_data({"numbers": np.arange(3)})
            assert contents(reader) == before
            assert reader.storage.snapshot().ann_data is None
        assert reader.ids() == ["b"]
        assert reader.storage.snapshot().ann_data["numbers"].tolist() == [0, 1, 2]


def test_an_error_undoes_all_changes_and_deletes_what_was_written(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(["a", "b"], matrices([2, 1]))
        index.storage.write_ann_data({"numbers": np.arange(4)})
        kept = folders(index)

        def change():
            with index.storage.transaction() as transaction:
                transaction.remove(["a", "b"])  # and with them their segment
                transaction.set_ann_data({"numbers": np.arange(3)})
                assert len(folders(index)) == 3
                raise KeyError("an error of the caller")

        with pytest.raises(KeyError, match="an error of the caller"):
            change()
        assert index.ids() == ["a", "b"]
        assert len(index.storage.snapshot().ann_data["numbers"]) == 4
        assert folders(index) == kept
        before = index.storage.snapshot()
        index.remove([])
        index.compact()
        assert index.storage.snapshot() is before  # what changes nothing is no commit


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_long_is_done_before_readers_of_an_index_in_memory_wait(kind, tmp_path):
    made = []

    def slow():
        for i in range(3):
            made.append(i)
            yield i

    with KINDS[kind](tmp_path / "index") as index, index.storage.transaction() as transaction:
        prepared = transaction.prepare(slow())
        assert next(prepared) == 0
        assert made == ([0, 1, 2] if kind == "memory" else [0])
        assert [*prepared] == [1, 2]


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_a_snapshot_shows_one_commit(tmp_path, kind):
    with kind(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:
        index.add(["a", "b"], matrices([3, 3]), metadata=[{"n": 1}, {"n": 2}])
        index.settings["model"] = "first"
        with index.snapshot():
            before = contents(index)
            other.remove(["a", "b"])
            other.add("new", np.ones((1, 4)))
            other.settings.update(model="second", more=1)
            other.compact()
            assert contents(index) == before
            assert (len(index), "a" in index, index.dim, dict(index.settings)) == (2, True, 4, {"model": "first"})
            with index.snapshot():
                assert {hit.id for hit in index.search(matrices([2]), filter="n < 9")[0]} == {"a", "b"}
            assert index.check(k=3).documents == 2
            for write in (lambda: index.add("no", matrices([1])[0]), lambda: index.settings.pop("model")):
                with pytest.raises(LatelierError, match="cannot write within snapshot"):
                    write()
        assert index.ids() == ["new"]
        assert dict(index.settings) == {"model": "second", "more": 1}


def test_large_arrays_are_mapped_and_stay_readable_after_compaction(tmp_path):
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:
        index.add(["a", "b", "c"], [np.full((300_000, 1), i) for i in (1.0, 2.0, 3.0)])
        with index.snapshot():
            assert [hit.id for hit in index.search(np.ones((1, 1)))[0]] == ["c", "b", "a"]
            other.remove("b")
            other.compact()
            assert [hit.id for hit in index.search(np.ones((1, 1)))[0]] == ["c", "b", "a"]
        assert [hit.id for hit in index.search(np.ones((1, 1)))[0]] == ["c", "a"]


# Metadata and settings as they are stored.


def nested(levels, kind):
    """Metadata of so many levels, itself included."""
    value = 1
    for _ in range(levels - 1):
        value = [value] if kind is list else {"inner": value}
    return {"outer": value}


@pytest.mark.parametrize("kind", [list, dict])
def test_metadata_has_at_most_100_levels(kind):
    index = indexes.Flat()
    index.add("fine", np.ones((1, 4)), metadata=nested(100, kind))
    assert index.get("fine").metadata == nested(100, kind)
    for levels in (101, 100_000):
        with pytest.raises(LatelierError, match="nested 100 levels deep"):
            index.add("deep", np.ones((1, 4)), metadata=nested(levels, kind))
    assert index.ids() == ["fine"]
    index.settings["deep"] = nested(200, kind)
    assert index.settings["deep"] == nested(200, kind)


def test_settings_have_no_names_that_cannot_be_stored():
    stored = indexes.Flat().settings
    for name in ("\ud800", 5, None, "other"):
        assert name not in stored
        for use in (stored.__getitem__, stored.__delitem__):
            with pytest.raises(KeyError):
                use(name)


@pytest.mark.parametrize("fields", [1, 4, 498, 600])
@pytest.mark.parametrize("count", [1, 224, 451])
def test_any_number_of_rows_and_fields_is_stored_in_order(tmp_path, fields, count):
    """They are inserted many in one statement, of which old SQLite takes 999 values; 500 keys become fields."""
    metadata = [{f"k{j}": i * j for j in range(fields)} for i in range(min(count, 9000 // fields))]
    with indexes.Flat(tmp_path / "index") as index:
        index.add(range(len(metadata)), [np.ones((1, 2))] * len(metadata), metadata=metadata)
        assert [record.metadata for record in index.get(range(len(metadata)))] == metadata
        assert len(index.fields) == min(fields, 500)
        assert index.verify().is_whole
