"""How segments come, grow and go: few after many writes, merged by compaction, no leftovers."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import contents, matrices

from latelier import indexes
from latelier.indexes.base import SearchOptions
from latelier.indexes.store import segments
from latelier.scores.topk import TopK


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


def test_a_snapshot_answers_after_its_segments_were_compacted_away(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index.add(["a", "b", "c"], [np.full((300_000, 1), i) for i in (1.0, 2.0, 3.0)])  # large enough to be mapped
        snapshot = index._storage.snapshot()
        index.remove("b")
        index.compact()
        assert len(folders(index)) == 1
        best = TopK(1, 3)
        index._search(
            snapshot, snapshot.parts(), indexes.inputs.prepare_queries(np.ones((1, 1)), 1), best, SearchOptions()
        )
        assert snapshot.ids(best.numbers[0]) == ["c", "b", "a"]
        assert [hit.id for hit in index.search(np.ones((1, 1)))[0]] == ["c", "a"]


@settings(max_examples=60, deadline=None)
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


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads what is in memory from /proc")
@pytest.mark.parametrize("step", [1, 3])
def test_blocks_of_a_mapped_file_are_in_memory_one_at_a_time(tmp_path, step):
    """Contiguous ones are views, others copies: of both, the pages of the file are given back."""
    np.save(tmp_path / "rows.npy", np.arange(200_000, dtype="float32")[:, None].repeat(64, axis=1))
    rows = np.asarray(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    segment = segments.Segment.build(range(1000), list(range(1000)), [200] * 1000, {"rows": rows})
    firsts, most = [], 0
    for block in segments.Part(segment, np.arange(0, 1000, step)).blocks("rows"):
        firsts += block[::200, 0].tolist()
        most = max(most, resident(tmp_path / "rows.npy"))
    assert firsts == [200.0 * document for document in range(0, 1000, step)]
    assert 0 < most < rows.nbytes / 2


def resident(path):
    """Return how many bytes of a mapped file are in the memory of this process."""
    _, mapping = Path("/proc/self/smaps").read_text().split(f"{path}\n", 1)
    return 1024 * int(mapping.split("Rss:", 1)[1].split()[0])
