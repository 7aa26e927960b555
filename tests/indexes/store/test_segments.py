"""How segments come, grow and go, and what a snapshot shows meanwhile."""

import shutil

import numpy as np
import pytest
from index_helpers import contents, matrices

from latelier import indexes
from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError


def folders(index):
    return sorted(path.name for path in (index.path / "segments").iterdir())


def test_many_single_documents_make_few_segments(tmp_path):
    index = indexes.Flat(tmp_path / "index")
    rng = np.random.default_rng(0)
    for i in range(80):
        index.add(i, np.full((rng.integers(1, 20), 2), i + 1.0))
        if i % 50 == 0:
            assert len(folders(index)) <= 10
    assert len(folders(index)) <= 10
    assert index.ids() == list(range(80))
    assert [hit.id for hit in index.search(np.ones((1, 2)), k=3)[0]] == [79, 78, 77]


def test_a_large_segment_is_left_as_it_is_by_small_writes(tmp_path):
    index = indexes.Flat(tmp_path / "index")
    index.add("large", np.ones((400, 2)))
    large = folders(index)
    for i in range(30):
        index.add(i, np.ones((3, 2)))
        assert set(large) <= set(folders(index))  # not written again
    assert len(folders(index)) <= 1 + 6  # the others are merged


def test_a_failed_write_deletes_no_file_of_a_folder_that_took_the_place_of_its_own(tmp_path):
    index = indexes.Flat(tmp_path / "index")
    index._segment_bytes = 64  # so that each document is written before the next one is asked for
    index.add("kept", np.ones((20, 4)))
    segments, old = tmp_path / "index" / "segments", tmp_path / "old"
    before = folders(index)

    def documents():
        for _ in range(3):
            yield np.ones((20, 4))
        segments.rename(old)
        shutil.copytree(old, segments)
        raise RuntimeError("the drive was changed")

    with pytest.raises(RuntimeError, match="the drive was changed"):
        index.add(["a", "b", "c"], documents())
    assert set(before) < set(folders(index)) == {path.name for path in old.iterdir()}


def test_files_of_merged_segments_are_deleted(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        for i in range(20):
            index.add(i, matrices([2])[0])
        index.remove(range(10))
        assert {hit.id for hit in index.search(matrices([1]), k=20)[0]} == set(range(10, 20))
        index.compact()
        assert len(folders(index)) == 1
        index.remove(range(10, 20))
        assert folders(index) == []


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


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_only_what_can_be_opened_again_is_written(tmp_path, kind):
    with kind(tmp_path / "index") as index:
        for dim in (0, 2**20 + 1):
            with pytest.raises(EmbeddingsError, match=rf"dim {dim:,}|{dim:,} dims"):
                index.add("wide", np.ones((1, dim), "float32"))
        with pytest.raises(InvalidArgumentError, match="nested 400 levels deep"):
            index.settings["deep"] = nested(450, list)
        index.add("a", matrices([1]))
    with indexes.open(tmp_path / "index") as index:
        assert index.ids() == ["a"]


def test_a_text_beyond_the_limit_of_sqlite_is_refused_with_its_id(monkeypatch):
    monkeypatch.setattr("latelier.utils.values._MOST_BYTES", 3000)
    index = indexes.Flat()
    index.add("fits", np.ones((1, 4)), texts="ä" * 1400, metadata={"n": 1})
    for text, metadata in (("ä" * 1600, None), (None, {"n": "a" * 3001}), (None, {"n": ["a" * 3000]})):
        with pytest.raises(InvalidArgumentError, match=r"document 'long'.* has 3,\d\d\d bytes.*up to 3,000"):
            index.add(["b", "long"], matrices([1, 1]), [None, text], [None, metadata])
    with pytest.raises(InvalidArgumentError, match=r"the setting 'long' has 3,\d\d\d bytes"):
        index.settings["long"] = "a" * 3000
    assert index.ids() == ["fits"]


def nested(levels, kind):
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
        with pytest.raises(LatelierError, match=r"nested 100 levels deep|recursion depth"):
            index.add("deep", np.ones((1, 4)), metadata=nested(levels, kind))
    assert index.ids() == ["fine"]
    index.settings["deep"] = nested(200, kind)
    assert index.settings["deep"] == nested(200, kind)


@pytest.mark.parametrize(("fields", "count"), [(1, 451), (4, 224), (498, 1), (600, 15)])
def test_any_number_of_rows_and_fields_is_stored_in_order(tmp_path, fields, count):
    """They are inserted many in one statement, of which old SQLite takes 999 values; 500 keys become fields."""
    metadata = [{f"k{j}": i * j for j in range(fields)} for i in range(count)]
    with indexes.Flat(tmp_path / "index") as index:
        index.add(range(len(metadata)), [np.ones((1, 2))] * len(metadata), metadata=metadata)
        assert [record.metadata for record in index.get(range(len(metadata)))] == metadata
        assert len(index.fields) == min(fields, 500)
        assert index.verify().is_whole
