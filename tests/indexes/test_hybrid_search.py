"""Keywords, hybrid and rerank on every index, against BM25 and MaxSim computed by loops."""

import math
import re

import numpy as np
import pytest
from index_helpers import expected_hits, matrices

from latelier import indexes

WORDS = ["wing", "shock", "layer", "heat", "flow", "jet", "plate", "cone", "drag", "lift", "wave", "pressure"]
K1, B = 1.2, 0.75


def texts(count=40):
    rng = np.random.default_rng(7)
    made = [" ".join(rng.choice(WORDS, size=rng.integers(1, 12))) for _ in range(count)]
    return [None if i % 9 == 4 else text for i, text in enumerate(made)]


@pytest.fixture
def filled(index):
    index.add(list(range(40)), matrices([i % 5 + 1 for i in range(40)]), ["old words"] * 40)
    index.update(list(range(40)), matrices([i % 5 + 1 for i in range(40)]), texts(), [{"n": i} for i in range(40)])
    index.remove([3, 17])
    if isinstance(index, indexes.Qdrant):
        index.compact(keywords=True)  # takes the average length of the present texts
    return index


def bm25(index, query):
    documents = {r.id: re.findall(r"\w+", r.text) for r in index.get(index.ids()) if r.text is not None}
    average = sum(map(len, documents.values())) / len(documents)
    found = {}
    for word in query.split():
        n = sum(word in words for words in documents.values())
        ratio = (len(documents) - n + 0.5) / (n + 0.5)
        idf = math.log(1 + ratio) if isinstance(index, indexes.Qdrant) else max(1e-6, math.log(ratio))
        for id, words in documents.items():
            if tf := words.count(word):
                norm = K1 * (1 - B + B * len(words) / average)
                found[id] = found.get(id, 0) + idf * (K1 + 1) * tf / (tf + norm)
    return found


def ranked(scores, index, k):
    order = {id: place for place, id in enumerate(index.ids())}
    best = sorted(scores, key=lambda id: (-round(scores[id], 7), order[id]))[:k]
    return [(id, pytest.approx(scores[id], rel=1e-4, abs=1e-5)) for id in best]


@pytest.mark.parametrize("query", ["wing", "shock cone drag", "wing wing lift absent", " ".join(WORDS)])
@pytest.mark.parametrize("k", [1, 5, 99])
def test_keywords_equal_bm25_by_loops(filled, query, k):
    assert filled.search(None, k, mode="keywords", texts=query)[0] == ranked(bm25(filled, query), filled, k)
    even = {id: score for id, score in bm25(filled, query).items() if id % 2 == 0}
    hits = filled.search(None, k, mode="keywords", texts=[query], filter=multiples_of(2))[0]
    assert hits == ranked(even, filled, k)


def multiples_of(number):
    return f"n IN ({', '.join(str(n) for n in range(0, 40, number))})"


def maxsim(index, query, keep=lambda id: True):
    return dict(expected_hits(index, [query], 99, keep)[0])


def test_rerank_orders_what_keywords_find_by_maxsim(filled):
    query = matrices([3], seed=5)[0]
    for text, depth in [("wing lift", 99), ("wing lift", 4)]:
        words = [hit.id for hit in filled.search(None, depth, mode="keywords", texts=text)[0]]
        scores = {id: score for id, score in maxsim(filled, query).items() if id in words}
        [hits] = filled.search([query], 4, mode="rerank", texts=text, depth=depth)
        assert hits == ranked(scores, filled, 4)


@pytest.mark.parametrize("keep", [None, 2])
def test_hybrid_is_the_fusion_of_both(filled, keep):
    query, text = matrices([3], seed=5)[0], "wing lift"
    allowed = (lambda id: True) if keep is None else (lambda id: id % keep == 0)
    filter = None if keep is None else multiples_of(keep)
    words = {id: score for id, score in bm25(filled, text).items() if allowed(id)}
    vectors = maxsim(filled, query, allowed)
    scaled = []
    for side in (vectors, words):
        low, high = min(side.values()), max(side.values())
        scaled.append({id: (score - low) / (high - low) for id, score in side.items()})
    relative = {id: 0.7 * scaled[0][id] + 0.3 * scaled[1].get(id, 0.0) for id in vectors}
    hits = filled.search([query], 5, mode="hybrid", texts=[text], weights=(0.7, 0.3), filter=filter)[0]
    assert hits == ranked(relative, filled, 5)
    assert [hit.vector_score for hit in hits] == pytest.approx([vectors[hit.id] for hit in hits], abs=1e-4)
    ranks = {id: 0.0 for id in vectors}
    order = {id: place for place, id in enumerate(filled.ids())}
    for side, weight in ((vectors, 0.85), (words, 0.15)):
        for rank, id in enumerate(sorted(side, key=lambda id: (-round(side[id], 7), order[id])), 1):
            ranks[id] += weight / (60 + rank)
    hits = filled.search([query], 5, mode="hybrid", fusion="rrf", texts=[text], filter=filter)[0]
    assert hits == ranked(ranks, filled, 5)


def test_a_document_that_only_keywords_find_is_scored_by_maxsim(filled):
    """With a depth of k, the last of the ids is no candidate of the vectors, and the fusion still knows its score."""
    query = matrices([3], seed=5)[0]
    everything = maxsim(filled, query)
    [word] = filled.search(None, 1, mode="keywords", texts="cone")
    hits = filled.search([query], 2, mode="hybrid", texts="cone", weights=(1, 0), depth=2)[0]
    assert [hit.id for hit in hits] == sorted(everything, key=lambda id: -everything[id])[:2]
    assert word[0].id not in {hit.id for hit in hits}


def test_queries_of_several_texts_and_of_none(filled):
    found = filled.search(None, 3, mode="keywords", texts=["wing", "!?", "absent", "cone"])
    assert [len(hits) for hits in found] == [3, 0, 0, 3]
    assert filled.search([], mode="hybrid", texts=[]) == []


def test_no_score_by_keywords_exceeds_the_highest(filled):
    queries = ["wing", "shock cone drag", "wing lift absent", "absent"]
    highest = filled.highest_scores(queries)
    if isinstance(filled, indexes.Qdrant):  # the words' weights are the server's
        assert highest is None
        return
    for query, most in zip(queries, highest, strict=True):
        assert all(score <= most for score in bm25(filled, query).values())
    assert highest[3] > highest[0]  # a word that no document has counts as a rare one
    assert highest[2] > highest[0]


def test_words_that_no_document_has_are_told_from_those_that_one_has(filled):
    filled.add("spelled", matrices([1])[0], "Garlic Databases, and the \ufb01refly")
    near = filled.near_words("the galric of a databse: wing, fierfly, xylophone")
    if isinstance(filled, indexes.Qdrant):
        assert near == {}
    else:
        assert near == {"galric": "garlic", "databse": "databases", "fierfly": "\ufb01refly"}
        assert filled.near_words("wing garlic wnig") == {}
