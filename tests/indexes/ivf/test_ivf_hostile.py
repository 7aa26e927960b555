"""What a damaged or hostile file can make the kernels of `IVF` do: nothing but find other documents."""

import warnings

import numpy as np
import pytest
from index_helpers import in_child
from ivf_helpers import check_lists, collection, lists_of, recall

from latelier import indexes

NARROW = {"nprobe": 3, "candidates": 20}
FAR = 1 << 40


@pytest.fixture
def folder(early, tmp_path):
    with indexes.IVF(tmp_path / "index") as index:
        index.add(range(400), collection(400)[0])
        assert lists_of(index).documents.dtype == np.uint16
    return tmp_path / "index"


def change(folder, name, edit):
    """Change an array of the ANN data in its file; its size, shape and dtype stay those of the catalog."""
    [path] = [path / f"{name}.npy" for path in (folder / "segments").iterdir() if (path / "offsets.npy").exists()]
    array = np.load(path)
    before = array.copy()
    edit(array)
    assert not np.array_equal(before, array)
    np.save(path, array)


def put(*places_and_values):
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
    "ranges far": ("centroids_ranges", put((EVERYTHING, FAR)), "ranges of centroids"),
    "numbers fall": ("numbers", turn_round, "numbers of documents"),
    "statistics not a number": ("centroids_fit", put((1, np.nan)), "training statistics"),
    "dim of nothing": ("centroids_fit", put((3, -7)), "centroids"),
}
# Values that kernels only compute with, or check before they use them.
HARMLESS = {
    "entries just beyond the documents": ("documents", put((EVERYTHING, 400))),
    "entries of noise": (
        "documents",
        lambda a: put((EVERYTHING, np.random.default_rng(0).integers(0, 65_536, a.size)))(a),
    ),
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
        everything = results(index, {"candidates": 400})
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
