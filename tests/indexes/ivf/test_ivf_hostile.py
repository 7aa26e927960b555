"""What a damaged or hostile file can make the kernels of `IVF` do: nothing but find other documents.

Each hostile value is used in a process of its own, so that a wild read or write fails its test and ends no other.
"""

import shutil
import warnings

import numpy as np
import pytest
from index_helpers import in_child
from ivf_helpers import EARLY, check_lists, collection, lists_of, recall

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.candidates import ListEntries, select_candidates
from latelier.indexes.ivf.lists import InvertedLists
from latelier.indexes.ivf.search import sum_bits
from latelier.indexes.store.segments import Part, Segment

NARROW = {"nprobe": 3, "candidates": 20, "rerank": 15}
FAR = 1 << 40


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A closed index of 400 documents, all of them in inverted lists."""
    folder = tmp_path_factory.mktemp("healthy") / "index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexes.IVF, "_thresholds", EARLY)
        with indexes.IVF(folder) as index:
            index.add(range(400), collection(400)[0])
            assert lists_of(index).documents.dtype == np.uint16
    return folder


@pytest.fixture
def folder(healthy, early, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(healthy, tmp_path / "index")


def change(folder, name, edit):
    """Change an array of the ANN data in its file; its size, shape and dtype stay those of the catalog."""
    [path] = [path / f"{name}.npy" for path in (folder / "segments").iterdir() if (path / "offsets.npy").exists()]
    array = np.load(path)
    before = array.copy()
    edit(array)
    assert not np.array_equal(before, array)
    np.save(path, array)


def put(*places_and_values):
    """Return a function that sets some places of an array."""

    def edit(array):
        for place, value in places_and_values:
            array.reshape(-1)[place] = value

    return edit


def turn_round(array):
    array[:] = array[::-1].copy()


EVERYTHING = slice(None)
# Values that would lead a kernel out of its arrays, and what the warning calls them.
OUT_OF_RANGE = {
    "offsets far": ("offsets", put((slice(1, None), FAR)), "offsets of inverted lists"),
    "offsets fall": ("offsets", put((5, 10**6)), "offsets of inverted lists"),
    "offsets beyond the end": ("offsets", put((-1, FAR)), "offsets of inverted lists"),
    "ranges far": ("centroids_ranges", put((EVERYTHING, FAR)), "ranges of centroids"),
    "ranges empty": ("centroids_ranges", lambda a: put((1, a[2]))(a), "ranges of centroids"),
    "numbers fall": ("numbers", turn_round, "numbers of documents"),
    "statistics not a number": ("centroids_fit", put((1, np.nan)), "training statistics"),
    "dim of nothing": ("centroids_fit", put((3, -7)), "centroids"),
}
# Values that kernels only compute with, or check before they use them.
HARMLESS = {
    "entries all the same": ("documents", put((EVERYTHING, 3))),
    "entries just beyond the documents": ("documents", put((EVERYTHING, 400))),
    "entries fall": ("documents", turn_round),
    "entries of noise": (
        "documents",
        lambda a: put((EVERYTHING, np.random.default_rng(0).integers(0, 65_536, a.size)))(a),
    ),
    "no lane has a coarse centroid": ("centroids_top_start", put((EVERYTHING, -(2**31)))),
    "lanes without a coarse centroid win": (
        "centroids_top_start",
        put((EVERYTHING, -(2**31)), (slice(8, None), 2**31 - 1)),
    ),
    "all lanes have a centroid": ("centroids_cell_start", put((EVERYTHING, 2**31 - 1))),
    "centroids of noise": ("centroids_cells", put((EVERYTHING, 127))),
}


def results(index, options=NARROW):
    queries = collection(400)[1]
    return [[[hit.id, round(hit.score, 3)] for hit in row] for row in index.search(queries, 5, **options)]


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_ann_data_with_addresses_out_of_range_is_not_used_and_made_anew(folder, name):
    with indexes.open(folder, read_only=True) as index:
        everything = results(index, {"rerank": 15, "candidates": 400})
    array, edit, problem = OUT_OF_RANGE[name]
    change(folder, array, edit)

    def use():
        with warnings.catch_warnings(record=True) as caught, indexes.open(folder) as index:
            warnings.simplefilter("always")
            found = [results(index), results(index)]
            index.verify()
            index.add("one more", collection(401)[0][400])
            return [found, [[w.category.__name__, str(w.message)] for w in caught], len(lists_of(index).numbers)]

    found, caught, known = in_child(use)
    assert found == [everything, everything]
    [[category, message]] = caught
    assert category == "IndexDamageWarning"
    assert f"is damaged: its {problem} are invalid. Searches compare all" in message
    assert known == 401
    with indexes.open(folder) as index:
        assert index.verify().is_whole
        check_lists(index)
        assert recall(index, collection(400)[1]) > 0.97


@pytest.mark.parametrize("name", HARMLESS)
def test_other_damage_to_ann_data_finds_other_documents_at_worst(folder, name):
    change(folder, *HARMLESS[name])

    def use():
        with indexes.open(folder) as index:
            found = [hits for options in (NARROW, {}) for hits in results(index, options)]
            exact = results(index, {"effort": "exact"})
            assert not index.verify().is_whole
            # Tokens of new documents are assigned to these centroids, and appended to these lists.
            index.add(range(400, 420), collection(420)[0][400:])
            results(index)
            return [found, exact, len(index)]

    found, exact, documents = in_child(use)
    assert documents == 420
    for row in found:
        assert len(row) == 5
        assert all(0 <= id < 400 and np.isfinite(score) for id, score in row)
    with indexes.open(folder, read_only=True) as index:
        assert index.search(collection(400)[0][3], k=1, effort="exact")[0][0].id == 3
        assert len(exact) == len(found) / 2


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("documents", np.zeros(4, "uint32"), r"documents.npy is uint32 \(4,\), not uint16 or int32 of shape \(None,\)"),
        ("documents", None, "documents.npy is missing"),
        ("offsets", np.zeros((4, 1), "int64"), r"offsets.npy is int64 \(4, 1\)"),
        ("numbers", np.arange(8)[::2], "numbers.npy is int64"),
        ("centroids_fit", np.zeros(3), r"centroids_fit.npy is float64 \(3,\), not float64 of shape \(4,\)"),
        ("centroids_ranges", np.zeros(1, "int64"), "ranges of centroids"),
        ("centroids_top_start", np.zeros((0, 16), "int32"), "its centroids are invalid"),
        ("centroids_cells", np.zeros((4, 16, 8, 2), "int8").T, r"centroids_cells.npy is int8 \(2, 8, 16, 4\)"),
    ],
)
def test_ann_data_of_another_shape_or_dtype_raises(early, name, array, message):
    index = indexes.IVF()
    index.add(range(200), collection(200)[0])
    arrays = lists_of(index).arrays()
    assert InvertedLists.from_arrays(arrays).arrays().keys() == arrays.keys()
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    with pytest.raises(CorruptedIndexError, match=message):
        InvertedLists.from_arrays(arrays)


def test_what_was_checked_does_not_follow_its_file(tmp_path):
    """Large files are mapped, but not what kernels use as addresses: here it changes while the index is open."""
    count = 50_000
    vectors = np.random.default_rng(0).standard_normal((count, 1, 8)).astype("float32")
    with indexes.IVF(tmp_path / "index") as index:
        index.add(range(count), list(vectors))

    def use():
        with indexes.open(tmp_path / "index") as index:
            before = index.search(vectors[7], k=3)
            [path] = (tmp_path / "index" / "segments").glob("*/documents.npy")
            assert path.stat().st_size > 1 << 20
            with path.open("r+b") as file:
                file.seek(128)
                file.write(b"\x55" * (path.stat().st_size - 128))
            index._loaded = None
            assert index.search(vectors[7], k=3) == before
            return index.get_embeddings([7, 40_000]).lengths.tolist()

    assert in_child(use) == [1, 1]


def count_candidates(entries, offsets, seed, documents, block):
    """How many candidates `select_candidates` finds with any entries; memory around its arrays must stay as it is."""
    rng = np.random.default_rng(seed)
    tokens, lists = 5, len(offsets) - 1
    probed = np.array([rng.permutation(lists)[:4] for _ in range(tokens)], dtype="int32")
    excess = -np.sort(-rng.integers(1, 1000, size=(tokens, 4)), axis=1).astype("int32")
    guard = 4096
    sums = np.full(block + 2 * guard, 0xABABABAB, dtype="uint32")
    memory = np.full(60 + 2 * guard, -77, dtype="int64")
    best = memory[guard : guard + 60].reshape(2, 30)
    allowed = np.ones(documents + 2 * guard, dtype="uint8")  # beyond the end everything is allowed
    own = allowed[guard : guard + documents]
    own[:] = rng.integers(0, 2, documents)
    count = select_candidates(
        probed,
        excess,
        tuple(ListEntries(offsets, entries.view("uint8"), entries.itemsize)),
        sum_bits(tokens),
        own,
        documents,
        sums[guard : guard + block],
        best,
    )
    assert (np.delete(sums, slice(guard, guard + block)) == 0xABABABAB).all()
    assert (np.delete(memory, slice(guard, guard + 60)) == -77).all()
    assert (allowed[:guard] == 1).all()
    assert (allowed[guard + documents :] == 1).all()
    found = best[0, :count]
    assert ((found >= 0) & (found < documents)).all()
    assert own[found].all()
    assert (np.diff(found) > 0).all()
    return count


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_no_entries_make_the_selection_of_candidates_leave_its_memory(dtype):
    """Numbers of every size and in any order: near the edges of blocks and of the documents, negative and random."""

    def use():
        total = 0
        for seed in range(400):
            rng = np.random.default_rng(seed)
            documents, block = int(rng.choice([1, 63, 64, 65, 300, 5000])), int(rng.choice([64, 128, 1024]))
            edges = np.array([0, 1, 63, 64, documents - 1, documents, documents + 1, documents + 70, block - 1, block])
            extremes = np.array([65_535, 32_768, 2**31 - 1, -1, -2, -64, -(2**20), -(2**31), 2**20])
            near, far = rng.choice(edges, 600), rng.choice(np.concatenate([edges, extremes]), 600)
            noise = rng.integers(-(2**31), 2**31, 600)
            valid = rng.integers(0, documents, 600)
            entries = np.choose(rng.integers(0, 4, 600), [near, far, noise, valid]).astype(dtype)
            offsets = np.sort(np.concatenate([[0, 600], rng.integers(0, 601, 8)]))
            if seed % 3 == 0:
                entries = np.sort(entries)
            total += count_candidates(entries, offsets, seed, documents, block)
        return total

    assert in_child(use) > 400


def segment_of(codec, lengths, first=0, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((sum(lengths), codec.dim)).astype("float32")
    embeddings = TokenEmbeddings(vectors, np.cumsum([0, *lengths]))
    numbers = np.arange(first, first + len(lengths))
    return Segment.build(numbers, numbers.tolist(), lengths, codec.encode(embeddings))


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_arrays_other_than_those_of_the_segment_raise(bits):
    codec = Codec(bits, 40)
    segment = segment_of(codec, [3, 2])
    for name in codec.layout:
        array = segment.arrays[name]
        others = [
            array[:-1],
            np.concatenate([array, array]),
            array.astype("int64"),
            array.byteswap().view(array.dtype.newbyteorder()),
        ]
        others += [np.repeat(array, 2, axis=0)[::2], np.zeros(0), array[None]]
        for other in others:
            if other.dtype == array.dtype and other.shape == array.shape and other.flags.c_contiguous:
                continue  # bytes have no order
            with pytest.raises(CorruptedIndexError, match=f"a segment's {name} are"):
                codec.decode(Part(Segment({**segment.arrays, name: other}), np.arange(2)))
        with pytest.raises(CorruptedIndexError, match=f"a segment's {name} are"):
            codec.locate(Segment({key: value for key, value in segment.arrays.items() if key != name}))


@pytest.mark.parametrize("bits", [0x7F80, 0xFF00, 0xFF01, 0xFFFF])
def test_scales_that_no_encoder_writes_count_as_zero(bits):
    """Infinity and NaN would leave a search without an order; the first is a scale that only seems to be one."""
    documents, queries = collection(200)
    index = indexes.IVF()
    index.add(range(200), documents)
    segment = index._storage.snapshot().parts()[0].segment
    segment.arrays["scales"][: segment.offsets[100]] = bits

    def use():
        for options in ({"effort": "exact"}, {"rerank": 20}, {}):
            for k in (3, 150):
                for hits in index.search(queries, k=k, **options):
                    assert len(hits) == k
                    assert np.isfinite([hit.score for hit in hits]).all()
                    assert bits < 0xFF00 or all(hit.score == 0 for hit in hits if hit.id < 100)
        return index.get_embeddings(range(100)).vectors.any(), np.isfinite(
            index.get_embeddings(range(200)).vectors
        ).all()

    damaged, finite = in_child(lambda: [bool(value) for value in use()])
    assert (damaged, finite) == (bits < 0xFF00, True)
