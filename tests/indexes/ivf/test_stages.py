"""The stages of a search lose next to nothing of what scoring all documents finds, and more work finds no less."""

import pydoc_data.topics
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ivf_helpers import collection, recall

from latelier import indexes
from latelier.indexes.ivf import search as search_module
from latelier.indexes.ivf.search import RotatedQuery, Scored, lowest_promising, score_promising
from latelier.models import ColBERT

pytestmark = pytest.mark.processor


@pytest.fixture(scope="module")
def short_texts(shallow):
    """Vectors of 2,000 sentences of about 20 tokens, from Python's manual, and of 50 of them with words left out."""
    text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    sentences = re.split(r"(?<=[.:])\s+", re.sub(r"[\s*+|\-=^~]+", " ", text))
    sentences = list(dict.fromkeys(each for each in sentences if 6 <= len(each.split()) <= 20))[:2000]
    rng = np.random.default_rng(0)
    questions = []
    for sentence in sentences[:: len(sentences) // 50]:
        words = sentence.split()
        kept = np.sort(rng.choice(len(words), 2 * len(words) // 3, replace=False))
        questions.append(" ".join(words[i] for i in kept))
    model = ColBERT.from_dense(shallow, device="cpu")
    encoded = model.encode_document(sentences, packed=True), model.encode_query(questions, packed=True)
    return tuple(each.to("float32") for each in encoded)


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_short_texts_are_found_as_by_scoring_all_documents(early, short_texts, nbits):
    documents, queries = short_texts
    index = indexes.IVF(nbits=nbits)
    index.add(range(len(documents)), documents)
    assert index.statistics().tokens < 30 * len(index)
    default = recall(index, queries)
    assert default >= 0.97
    for more in ({"candidates": 500}, {"candidates": 2000}, {"nprobe": 200}, {"effort": 2.0}):
        assert recall(index, queries, **more) > default - 0.01, more
    assert index.check(queries=50).recall == pytest.approx(default, abs=0.02)
    assert recall(index, queries, k=1) >= 0.98
    assert recall(index, queries, k=40) >= 0.97


numbers = st.floats(-100, 100, width=16)


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=30), numbers, st.floats(0, 4, width=16))
def test_the_lowest_promising_sign_score_lies_on_the_line_of_least_squares(pairs, kth, slack):
    signs, scores = np.array(pairs).T
    lowest = lowest_promising(signs, scores, kth, slack)
    covariance = np.cov(signs, scores)
    if covariance[0, 1] <= 0 or covariance[0, 0] == 0:
        assert lowest == -np.inf
    elif covariance[0, 1] > 1e-3 and covariance[0, 0] > 1e-3:
        slope, intercept = np.polyfit(signs, scores, 1)
        residuals = scores - slope * signs - intercept
        deviation = np.sqrt(residuals @ residuals / (len(signs) - 2)) if len(signs) > 2 else 0
        assert intercept + slope * lowest + slack * deviation == pytest.approx(kth, abs=1e-3)


def test_documents_whose_sign_scores_say_nothing_are_all_promising():
    signs, scores = np.array([3.0, 2.0, 1.0, -np.inf]), np.array([1.0, 2.0, 3.0, 4.0])
    assert lowest_promising(signs, scores, 2.0, 2.0) == -np.inf
    assert lowest_promising(np.ones(4), scores, 2.0, 2.0) == -np.inf
    assert lowest_promising(signs, -scores, -np.inf, 2.0) == -np.inf
    assert np.isfinite(lowest_promising(signs, -scores, -2.0, 2.0))


def naive_choice(signs, scores, k, slack):
    """Return which documents are scored, by falling sign scores, given the scores that they would get."""
    chosen = set(range(min(len(signs), k + search_module._FIRST)))
    if len(chosen) < len(signs):
        chosen |= {int(n) for n in np.linspace(len(chosen), len(signs) - 1, search_module._SPREAD)}
    for _ in range(search_module._ROUNDS):
        some = sorted(chosen)
        slope, intercept = np.polyfit(signs[some], scores[some], 1)
        deviation = np.sqrt(((scores[some] - slope * signs[some] - intercept) ** 2).sum() / (len(some) - 2))
        kth = sorted(scores[some])[-k]
        more = {n for n, sign in enumerate(signs) if intercept + slope * sign + slack * deviation >= kth}
        if more <= chosen:
            break
        chosen |= more
    return chosen


@pytest.mark.parametrize("nbits", [8, 1])
@pytest.mark.parametrize("slack", [0.5, 2.0])
def test_the_documents_that_are_scored_equal_a_loop(nbits, slack):
    documents, queries = collection(250)
    index = indexes.IVF(nbits=nbits)
    index.add(range(250), documents)
    table, _ = index._load(index._storage.snapshot())
    seen = set()
    for query in queries:
        rotated = RotatedQuery(*table.codec.rotate(query))
        everything = Scored(table, rotated, 5)
        everything.add(table.live)
        ordered, signs = search_module.compare_signs(table, table.live, rotated.rests)
        rough = dict(zip(everything.documents.tolist(), everything.scores[:, 0].tolist(), strict=True))
        wanted = naive_choice(signs.astype("float64"), np.array([rough[d] for d in ordered.tolist()]), 5, slack)
        scored = Scored(table, rotated, 5)
        score_promising(scored, table.live, slack)
        assert sorted(scored.documents.tolist()) == sorted(ordered[sorted(wanted)].tolist())
        assert len(set(scored.documents.tolist())) == len(scored.documents)
        seen.add(len(scored.documents))
    assert len(seen) > 3
    assert max(seen) < 250
