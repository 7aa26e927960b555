"""The kernels on coded tokens, each against a naive loop, and where there are two versions against each other."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.inverted_lists import pack_centroids
from latelier.indexes.ivf.kernels.candidates import MOST_TOKENS, gather_best, sum_bits
from latelier.indexes.ivf.kernels.codes import BITS, byte_width, decode_documents, sign_words, unpack_documents
from latelier.indexes.ivf.kernels.dots import assign_rows, group_dots, rerank_scores
from latelier.indexes.ivf.kernels.hamming import hamming_scores
from latelier.indexes.ivf.kernels.inverted_lists import append_postings, group_rows, invert_cells
from latelier.indexes.ivf.kernels.kmeans import add_rows
from latelier.indexes.ivf.kernels.probing import NO_LANE, best_cells, best_groups, best_lanes
from latelier.indexes.ivf.kernels.selection import highest_places, near_highest, nth_highest, sort_falling
from latelier.indexes.ivf.query import prepare_query
from latelier.kernels.cpu import INSTRUCTION_SETS, supported

pytestmark = pytest.mark.processor

DIMS = [1, 3, 31, 32, 64, 100, 128, 130]
LENGTHS = np.array([1, 2, 7, 8, 9, 16, 33, 5])


@pytest.fixture(params=INSTRUCTION_SETS.values(), ids=INSTRUCTION_SETS)
def isa(request):
    if not request.param.is_supported:
        pytest.skip(f"this processor does not support {request.param.name}")
    return request.param


class Documents:
    """Coded documents, scattered: kernels are told to read them in another order than that in memory."""

    def __init__(self, dim, bits=8, seed=0):
        rng = np.random.default_rng(seed)
        self.vectors = [rng.standard_normal((n, dim)).astype("float32") for n in LENGTHS]
        self.codec = Codec(bits, dim)
        self.arrays = self.codec.encode(TokenEmbeddings.from_list(self.vectors))
        starts = np.concatenate([[0], np.cumsum(LENGTHS)])[:-1]
        self.starts = starts
        codes = self.arrays["codes"].ctypes.data if bits > 1 else 0
        bases = (self.arrays["signs"].ctypes.data, codes, self.arrays["scales"].ctypes.data)
        columns = [base + starts * stride for base, stride in zip(bases, self.codec.strides, strict=True)]
        self.addresses = (*columns, LENGTHS)
        self.chosen = np.array([6, 0, 3, 5, 1, 7, 2, 4])

    def decoded(self):
        """The vectors that the codes stand for, computed number by number from what is stored."""
        bits, dim, _ = self.codec.shape
        scales = (self.arrays["scales"].astype("uint32") << 15).view("float32").astype("float64")
        rows = []
        for t in range(int(LENGTHS.sum())):
            row = []
            for i in range(dim):
                if bits == 8:
                    number = int(self.arrays["codes"][t, i]) - 128
                else:
                    code = bit(self.arrays["signs"][t], i)
                    for plane in range(bits - 1):
                        code = 2 * code + bit(self.arrays["codes"][t, plane], i)
                    number = 2 * code - (2**bits - 1)
                row.append(number * scales[t])
            rows.append(row)
        return [np.array(rows[a : a + n]) for a, n in zip(self.starts, LENGTHS, strict=True)]


def bit(words, i):
    return int(words[i // 32]) >> (i % 32) & 1


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_codes_are_near_and_signs_are_those_of_the_codes(bits, dim):
    documents = Documents(dim, bits)
    for given_, decoded in zip(documents.vectors, documents.decoded(), strict=True):
        if bits == 8:
            # Half a step, where a step is the largest number over 127, rounded up by at most 1/256.
            assert (np.abs(given_ - decoded) <= np.abs(given_).max(axis=1, keepdims=True) / 127 * 0.503).all()
        else:
            norms = np.linalg.norm(given_, axis=1)
            np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), norms, rtol=1 / 512)
            assert ((given_ >= 0) == (decoded > 0)).all()
    signs = np.array([[bit(row, i) for i in range(dim)] for row in documents.arrays["signs"]])
    assert (signs == (np.concatenate(documents.decoded()) >= 0)).all()
    for row in documents.arrays["signs"]:  # beyond the dim nothing that could differ
        assert all(bit(row, i) == bit(documents.arrays["signs"][0], i) for i in range(dim, 32 * sign_words(dim)))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_a_codec_says_what_its_arrays_are_like(bits, dim):
    documents = Documents(dim, bits)
    assert documents.codec.layout == {name: (a.dtype, a.shape[1:]) for name, a in documents.arrays.items()}


@pytest.mark.parametrize(("bits", "most"), [(4, 0.12), (2, 0.37), (1, 0.64)])
def test_coarse_codes_lose_what_they_are_known_to_lose(bits, most):
    """The error of the best uniform quantiser of a normal distribution, as a part of the vector's length."""
    documents = Documents(128, bits)
    given_, decoded = np.concatenate(documents.vectors), np.concatenate(documents.decoded())
    lost = np.linalg.norm(given_ - decoded) / np.linalg.norm(given_)
    assert 0.7 * most < lost < most


@pytest.mark.parametrize("bits", BITS)
def test_tokens_of_zeros_and_extremes_are_coded(bits):
    vectors = np.array([[0, 0, 0], [1e30, -1e30, 0], [1e-30, 1e-30, 2e-30], [3e38, 0, -3e38], [1e-42, 0, 0]], "float32")
    arrays = Codec(bits, 3).encode(TokenEmbeddings.from_list([vectors]))
    scales = (arrays["scales"].astype("uint32") << 15).view("float32")
    assert np.isfinite(scales).all()
    assert scales[0] == 0
    assert (scales[1:4] > 0).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_unpacking_and_decoding_equal_the_loop(bits, dim):
    documents = Documents(dim, bits)
    wanted = np.concatenate([documents.decoded()[d] for d in documents.chosen])
    vectors = np.empty((len(wanted), dim), dtype="float32")
    decode_documents(documents.addresses, documents.chosen, documents.codec.shape, vectors)
    np.testing.assert_allclose(vectors, wanted, rtol=1e-6)
    rows, scales = np.empty((len(wanted), byte_width(dim)), dtype="uint8"), np.empty(len(wanted), dtype="float32")
    unpack_documents(documents.addresses, documents.chosen, documents.codec.shape, rows, scales)
    np.testing.assert_allclose((rows[:, :dim].astype("float64") - 128) * scales[:, None], wanted, rtol=1e-6)
    assert (rows[:, dim:] == 128).all()


@pytest.mark.parametrize("tokens", [1, 9, 16, 17, 40])
@pytest.mark.parametrize("dim", [3, 32, 128, 130])
def test_hamming_scores_equal_the_loop(tokens, dim):
    documents = Documents(dim)
    query = prepare_query(np.random.default_rng(1).standard_normal((tokens, dim)).astype("float32"))
    scores = np.empty(len(documents.chosen), dtype="float32")
    hamming_scores((documents.addresses[0], LENGTHS), documents.chosen, (query.signs, query.lengths), scores)
    asked = query.codes[0, :, :dim] >= 0
    for d, score in zip(documents.chosen, scores, strict=True):
        signs = documents.decoded()[d] >= 0
        total = sum(float(query.lengths[q]) * min(int((asked[q] != row).sum()) for row in signs) for q in range(tokens))
        assert score == pytest.approx(-total, rel=1e-5)


@pytest.mark.parametrize("dim", [1, 3, 128, 130])
def test_a_query_is_its_codes_to_the_precision_of_a_float(dim):
    vectors = np.random.default_rng(2).standard_normal((19, dim)).astype("float32")
    vectors[3] = 0
    query = prepare_query(vectors)
    fine = sum(query.codes[plane].astype("float64") / 254**plane for plane in range(3))[:, :dim]
    np.testing.assert_allclose(fine * query.scales[:, None], vectors, atol=2e-7 * np.abs(vectors).max())
    assert (query.rows[:, :dim].astype(int) - 128 == query.codes[0, :, :dim]).all()
    for t in range(19):
        group, lane = divmod(t, 16)
        lanes = query.packed[:, group, :, lane].reshape(3, -1)
        assert (lanes == query.codes[:, t]).all()
        assert (query.start[:, group, lane] == -128 * query.codes[:, t].astype(int).sum(axis=1)).all()
    np.testing.assert_allclose(query.lengths, np.linalg.norm(vectors, axis=1), rtol=1e-6)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 64, 100, 128])
@pytest.mark.parametrize("tokens", [1, 16, 21])
def test_reranking_equals_the_loop(isa, bits, dim, tokens):
    documents = Documents(dim, bits)
    vectors = np.random.default_rng(3).standard_normal((tokens, dim)).astype("float32")
    query = prepare_query(vectors)
    coded = (query.packed, query.start, query.scales)
    rough = query.codes[0, :, :dim].astype("float64") * query.scales[:, None]
    for fine, asked in ((False, rough), (True, vectors.astype("float64"))):
        scores = np.empty(len(documents.chosen), dtype="float32")
        rerank_scores(isa, documents.addresses, documents.chosen, documents.codec.shape, coded, fine, scores)
        wanted = [sum((asked @ documents.decoded()[d].T).max(axis=1)) for d in documents.chosen]
        np.testing.assert_allclose(scores, wanted, rtol=3e-6, atol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_instruction_sets_rerank_alike_to_the_last_bit(bits):
    documents = Documents(100, bits)
    query = prepare_query(np.random.default_rng(4).standard_normal((21, 100)).astype("float32"))
    for fine in (False, True):
        found = []
        for isa in supported():
            scores = np.empty(len(documents.chosen), dtype="float32")
            coded = (query.packed, query.start, query.scales)
            rerank_scores(isa, documents.addresses, documents.chosen, documents.codec.shape, coded, fine, scores)
            found.append(scores)
            assert np.array_equal(scores, found[0])


def lanes_and_rows(count, dim, rows=13, seed=5):
    """Centroids in lanes, rows of bytes, and all dot products as integers ``(rows, lanes)``."""
    rng = np.random.default_rng(seed)
    width = byte_width(dim)
    centroids = rng.integers(-3, 4, size=(count, dim))  # few values, so that some products are equal
    packed, start = pack_centroids(centroids, width, 1.0)
    tokens = np.full((rows, width), 128, dtype="uint8")
    tokens[:, :dim] = rng.integers(126, 131, size=(rows, dim))
    products = np.full((rows, packed.shape[0] * 16), NO_LANE, dtype="int64")
    products[:, :count] = (tokens[:, :dim].astype("int64") - 128) @ centroids.T
    return packed, start, tokens, products


@pytest.mark.parametrize("count", [1, 15, 16, 100, 200])
@pytest.mark.parametrize("dim", [3, 128])
def test_dot_products_with_lanes_equal_the_loop(isa, count, dim):
    packed, start, rows, products = lanes_and_rows(count, dim)
    groups = len(packed)
    ranges = np.array([[[0, groups], [groups // 2, groups]]] * len(rows))
    out = np.empty((len(rows), 2 * groups - groups // 2, 16), dtype="int32")
    group_dots(isa, rows, ranges, packed, start, out)
    # Lanes without a centroid hold what nobody takes for one.
    held = np.arange(groups * 16) < count
    for row, found in zip(products, out.reshape(len(rows), -1), strict=True):
        assert (found[: groups * 16][held] == row[held]).all()
        assert (found[: groups * 16][~held] < NO_LANE // 2).all()
        assert (found[groups * 16 :] == found[groups // 2 * 16 : groups * 16]).all()


@pytest.mark.parametrize("count", [1, 15, 16, 100])
def test_assignment_takes_the_first_of_the_best(isa, count):
    packed, start, rows, products = lanes_and_rows(count, 7)
    lanes, values = (np.full(len(rows), -5, dtype="int32") for _ in range(2))
    order = np.array([12, 3, 4, 0, 1, 2, 7, 8, 9, 10, 11])
    assign_rows(isa, rows, order, packed, start, lanes, values)
    for row in order:
        assert lanes[row] == products[row].argmax()
        assert values[row] == products[row].max()
    assert (lanes[[5, 6]] == -5).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_the_best_lanes_equal_a_stable_sort(most, seed):
    rng = np.random.default_rng(seed)
    ranges = np.array([[[0, 2], [4, 5]], [[1, 2], [2, 4]]])
    dots_ = rng.integers(-20, 20, size=(2, 3, 16)).astype("int32")
    dots_[:, :, rng.integers(16)] = NO_LANE
    lanes, values = (np.empty((2, most), dtype="int32") for _ in range(2))
    best_lanes(dots_, ranges, lanes, values)
    for row, own in enumerate(ranges):
        numbers = [group * 16 + lane for first, last in own for group in range(first, last) for lane in range(16)]
        pairs = [(int(value), number) for value, number in zip(dots_[row].reshape(-1), numbers, strict=True)]
        wanted = sorted((p for p in pairs if p[0] > NO_LANE), key=lambda pair: -pair[0])[:most]
        assert lanes[row].tolist() == [number for _, number in wanted] + [-1] * (most - len(wanted))
        assert values[row, : len(wanted)].tolist() == [value for value, _ in wanted]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(0, 10**6))
def test_the_best_groups_equal_a_stable_sort(most, seed):
    """Twenty groups of cells, in lanes of which the last twelve hold none."""
    rng = np.random.default_rng(seed)
    dots_ = rng.integers(-20, 20, size=(3, 2, 16)).astype("int32")
    dots_[:, 1, 4:] = NO_LANE
    rows = np.cumsum([0, *rng.integers(1, 9, 20)])
    ranges = np.full((3, most, 2), -9, dtype="int64")
    longest = best_groups(dots_, most, rows, ranges)
    for values, own in zip(dots_.reshape(3, 32), ranges, strict=True):
        best = np.argsort(-values, kind="stable")[:most]
        assert own.tolist() == [[rows[group], rows[group + 1]] for group in best]
    assert longest == (ranges[:, :, 1] - ranges[:, :, 0]).sum(axis=1).max()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_gains_are_what_lies_above_the_last_cell_and_one(most, seed):
    rng = np.random.default_rng(seed)
    ranges = np.array([[[0, 1]], [[2, 4]]])
    dots_ = rng.integers(-20, 20, size=(2, 2, 16)).astype("int32")
    scales = rng.random(2, dtype="float32") + np.float32(0.1)
    lanes, values, cells, gains = (np.empty((2, most), dtype="int32") for _ in range(4))
    best_lanes(dots_, ranges, lanes, values)
    best_cells(dots_, ranges, scales, 1000, cells, gains)
    assert cells.tolist() == lanes.tolist()
    counts = (lanes >= 0).sum(axis=1)
    above = [(row[:n] - row[n - 1]) * float(scale) for row, n, scale in zip(values, counts, scales, strict=True)]
    total = sum(row[0] for row in above)
    for row, own, n in zip(gains, above, counts, strict=True):
        wanted = own * (1000 / total) if total else own
        assert ((row[:n] - 1 <= wanted + 1e-6) & (row[:n] > wanted - 1e-6)).all()
        assert row[n - 1] == 1
        assert not row[n:].any()


def gather(cells, gains, lists, allowed, documents, block, most, dtype="int32"):
    """The documents that `gather_best` finds, with memory that was used before."""
    offsets = np.cumsum([0, *map(len, lists)])
    postings = np.concatenate([*lists, np.zeros(0)]).astype(dtype)
    best, sums = np.full(most, -7, dtype="int64"), np.full(block, 2**32 - 1, dtype="uint32")
    rows = np.asarray(cells, dtype="int32"), np.asarray(gains, dtype="int32")
    lists = offsets, postings.view("uint8"), postings.itemsize
    count = gather_best(*rows, lists, sum_bits(len(cells)), allowed, documents, sums, best)
    assert (best[count:] == -7).all()
    return best[:count].tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([64, 128, 1024]), st.sampled_from([3, 40, 300]))
def test_gathering_equals_a_dict(seed, masked, block, most):
    """Gains are whole bins, so that the best are told apart; of equal ones the first are taken."""
    rng = np.random.default_rng(seed)
    dtype, step = rng.choice(["uint16", "int32"]), 2**12
    lists = [np.sort(rng.choice(400, rng.integers(0, 150), replace=False)) for _ in range(6)]
    allowed = rng.integers(0, 2, 400).astype("uint8") if masked else np.zeros(0, "uint8")
    cells = np.array([rng.permutation(6)[:4] for _ in range(3)])
    cells[1, 3] = -1
    gains = -np.sort(-rng.integers(1, 50, size=(3, 4)), axis=1) * step
    wanted = {}
    for row, own in zip(cells, gains, strict=True):
        first = {}
        for cell, gain in zip(row, own, strict=True):
            for d in lists[cell] if cell >= 0 else ():
                if not masked or allowed[d]:
                    first.setdefault(int(d), int(gain))
        for d, gain in first.items():
            wanted[d] = wanted.get(d, 0) + gain
    best = sorted(wanted, key=lambda d: (-wanted[d], d))[:most]
    assert gather(cells, gains, lists, allowed, 400, block, most, dtype) == sorted(best)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3_000), st.booleans(), st.sampled_from(["even", "steep", "rising", "falling"])
)
def test_of_very_many_documents_the_best_are_found_to_within_a_bin(seed, most, masked, shape):
    """Whatever the order in which they come: where sums rise, each one is better than those before."""
    rng = np.random.default_rng(seed)
    n, levels = 20_000, 400
    shares = {"even": rng.random(n), "steep": rng.random(n) ** 20, "rising": np.arange(n) / n}
    shares["falling"] = 1 - shares["rising"]
    level = (shares[shape] * levels).astype("int64")
    lists = [np.flatnonzero(level == levels - 1 - i) for i in range(levels - 50)]
    gains = (2**24 - 1) * np.arange(levels, 50, -1) // levels
    sums = np.zeros(n, dtype="int64")
    for own, gain in zip(lists, gains, strict=True):
        sums[own] = gain
    allowed = rng.integers(0, 2, n).astype("uint8") if masked else np.zeros(0, "uint8")
    counts = sums > 0
    counts &= allowed > 0 if masked else True
    found = gather([range(len(lists))], [gains], lists, allowed, n, 4096, most)
    assert len(found) == min(most, counts.sum())
    assert found == sorted(set(found))
    assert counts[found].all()
    left = np.setdiff1d(np.flatnonzero(counts), found)
    assert not len(left) or sums[left].max() < sums[found].min() + 2**12


@pytest.mark.parametrize("tokens", [1, 2, 255, 256, 5000, MOST_TOKENS])
def test_gathering_tells_all_tokens_of_a_long_query_apart(tokens):
    """Document 0 is in the one cell that all tokens visit, and once more in that of the last token."""
    last = [[0, 1]] * (tokens - 1) + [[0, -1]]
    gains = np.ones((tokens, 2))
    gains[-1] = 2 ** sum_bits(tokens) - tokens
    assert gather(last, gains, [[0], [1]], np.zeros(0, "uint8"), 2, 64, 1) == [0]
    assert gather(last, gains, [[0], [1]], np.zeros(0, "uint8"), 2, 64, 2) == ([0] if tokens == 1 else [0, 1])
    assert int(gains[:, 0].sum()) == 2 ** sum_bits(tokens) - 1


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=50), st.data())
def test_the_highest_places_equal_a_stable_sort(scores, data):
    most = data.draw(st.integers(1, len(scores)))
    places = np.empty(most, dtype="int64")
    highest_places(np.array(scores, dtype="float32"), places)
    order = np.argsort(-np.array(scores, dtype="float32"), kind="stable")[:most]
    assert places.tolist() == sorted(order.tolist())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=50), st.floats(0, 4, width=16), st.data())
def test_scores_near_the_kth_highest_equal_a_comprehension(scores, slack, data):
    k = data.draw(st.integers(1, len(scores)))
    places = np.full(len(scores), -1, dtype="int64")
    count = near_highest(np.array(scores, dtype="float32"), k, slack, places)
    edge = sorted(scores, reverse=True)[k - 1] - slack
    assert places[:count].tolist() == [i for i, score in enumerate(scores) if score >= edge]
    assert (places[count:] == -1).all()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=900), st.data())
def test_selecting_and_sorting_numbers_equal_those_of_python(numbers, data):
    n = data.draw(st.integers(1, len(numbers)))
    array, falling = np.array(numbers), sorted(numbers, reverse=True)
    assert nth_highest(array, n) == falling[n - 1]
    assert sorted(array[:n].tolist(), reverse=True) == falling[:n]
    sort_falling(array)
    assert array.tolist() == falling


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(0, 12))
def test_inverted_and_appended_cells_equal_a_dict(cells_of, cut):
    """Cells of documents, the first `cut` of which are inverted by themselves, and the rest appended."""

    def invert(part, first):
        cells = np.array([cell for cells in part for cell in cells], dtype="int32")
        lengths = np.array([len(cells) for cells in part], dtype="int64")
        places = np.zeros(9, dtype="int64")
        invert_cells(cells, lengths, first, np.full(8, -1, "int32"), places[1:], np.empty(0, "int32"))
        offsets = np.cumsum(places)
        documents = np.full(offsets[-1], -9, dtype="int32")
        invert_cells(cells, lengths, first, np.full(8, -1, "int32"), offsets[:-1].copy(), documents)
        return offsets, documents

    before, more = invert(cells_of[:cut], 0), invert(cells_of[cut:], len(cells_of[:cut]))
    merged = np.empty(len(before[1]) + len(more[1]), dtype="int32")
    append_postings(before, more, merged)
    offsets = before[0] + more[0]
    for cell in range(8):
        wanted = [d for d, cells in enumerate(cells_of) if cell in cells]
        assert merged[offsets[cell] : offsets[cell + 1]].tolist() == wanted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=40))
def test_grouped_rows_equal_a_stable_sort(groups):
    offsets, order = np.zeros(6, dtype="int64"), np.empty(len(groups), dtype="int64")
    group_rows(np.array(groups, dtype="int32"), offsets, order)
    assert order.tolist() == np.argsort(groups, kind="stable").tolist()
    assert np.diff(offsets).tolist() == [groups.count(g) for g in range(5)]


def test_sums_of_clusters_equal_the_loop():
    rng = np.random.default_rng(6)
    rows, scales = rng.integers(1, 256, size=(9, 32)).astype("uint8"), rng.random(9).astype("float32")
    lanes, order = rng.integers(0, 3, 9).astype("int32"), np.array([0, 2, 3, 8, 5])
    sums, counts = np.zeros((3, 5), dtype="float32"), np.zeros(3, dtype="int64")
    add_rows(rows, scales, order, lanes, sums, counts)
    for cluster in range(3):
        mine = [n for n in order if lanes[n] == cluster]
        wanted = sum(((rows[n, :5].astype("float64") - 128) * scales[n] for n in mine), np.zeros(5))
        np.testing.assert_allclose(sums[cluster], wanted, rtol=1e-5)
        assert counts[cluster] == len(mine)


def test_kernels_in_threads_do_not_disturb_each_other(isa):
    """Memory that a kernel reads by address must be its own for as long as it reads it."""
    packed, start, rows, products = lanes_and_rows(500, 100, rows=400)
    wanted = products.argmax(axis=1)
    wrong = []

    def work():
        for _ in range(40):
            lanes, values = (np.empty(len(rows), dtype="int32") for _ in range(2))
            assign_rows(isa, rows, np.arange(len(rows)), packed, start, lanes, values)
            if not np.array_equal(lanes, wanted):
                wrong.append(lanes)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
