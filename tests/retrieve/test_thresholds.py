"""Thresholds and mean scores: what is below them is left out, in every mode, on every surface."""

import numpy as np
import pytest
import torch

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.retrieve import Retriever
from latelier.retrieve.weak import WeakBar, WeakBars

TEXTS = ["Bananas are healthy fruit.", "The moon is far away.", "Fruit grows on trees.", "Ships cross the sea."]


@pytest.fixture(scope="module")
def retriever(minilm):
    retriever = Retriever(minilm, device="cpu")
    retriever.add(list(zip("abcd", TEXTS, strict=True)))
    return retriever


def naive_mean(model, query, text):
    """The mean over the tokens of the text itself: not [CLS] and [SEP], which this model has beside them."""
    own = model.encode_query(query)[1:-1]
    return float((own @ model.encode_document(text).T).max(dim=1).values.mean())


@pytest.mark.parametrize("mode", ["vectors", "rerank", "hybrid"])
def test_the_mean_is_that_of_the_own_tokens_in_every_mode(retriever, mode):
    for result in retriever.search("healthy fruit", mode=mode, min_mean_score=-1):
        assert result.mean_score == pytest.approx(naive_mean(retriever.model, "healthy fruit", result.text), abs=1e-5)
    assert retriever.search("healthy fruit", mode=mode)[0].mean_score is None


def test_a_mean_score_needs_no_mode_and_a_score_does(retriever):
    every = retriever.search("healthy fruit", min_mean_score=-1)
    least = sorted(result.mean_score for result in every)[2]
    found = retriever.search("healthy fruit", min_mean_score=least - 1e-6)
    assert found == [result for result in every if result.mean_score >= least]
    assert (found.mode, len(found)) == ("hybrid", 2)
    for search in (retriever.search, lambda query, **options: retriever.run({"q": query}, **options)):
        with pytest.raises(InvalidArgumentError, match=r"min_score=0\.5.*mode"):
            search("healthy fruit", min_score=0.5)


@pytest.mark.parametrize("name", ["score", "mean_score"])
@pytest.mark.parametrize("passages", [None, 16])
def test_what_is_below_a_threshold_is_left_out(retriever, name, passages):
    retriever = Retriever(retriever.model)
    retriever.add(list(zip("abcd", TEXTS, strict=True)), passages=passages)
    mode = {"mode": "vectors"}
    every = retriever.search("healthy fruit", min_mean_score=-1, **mode)
    least = sorted(getattr(result, name) for result in every)[2]
    option = {f"min_{name}": least - 1e-6, **mode}
    wanted = [result.id for result in every if getattr(result, name) >= least]
    assert len(wanted) == 2
    assert [result.id for result in retriever.search("healthy fruit", **option)] == wanted
    assert list(retriever.run({"q": "healthy fruit"}, **option)["q"]) == wanted
    assert retriever.search("healthy fruit", **{f"min_{name}": 99.0}, **mode) == []
    missed = retriever.why_not("healthy fruit", "d", **option)
    assert [cause.kind for cause in missed.causes] == ["below_threshold"]
    assert missed.changes[0].arguments == {f"min_{name}": None}
    assert retriever.why_not("healthy fruit", wanted[0], **option).is_found


def test_a_model_of_means_has_them_everywhere():
    model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu", similarity_fn_name="meanmaxsim")
    retriever = Retriever(model)
    retriever.add(list(zip("abcd", TEXTS, strict=True)))
    query = "healthy fruit"
    wanted = model.similarity([model.encode_query(query)], list(model.encode_document(TEXTS)))[0]
    order = torch.argsort(wanted, descending=True).tolist()
    results = retriever.search(query, mode="vectors", min_mean_score=-1)
    assert [result.id for result in results] == ["abcd"[i] for i in order]
    np.testing.assert_allclose([result.score for result in results], wanted[order], atol=1e-6)
    assert [hit.id for hit in retriever.rerank(query, TEXTS)] == order
    np.testing.assert_allclose([hit.score for hit in retriever.rerank(query, TEXTS)], wanted[order], atol=1e-6)
    assert retriever.explain(query, "b").score == pytest.approx(float(wanted[1]), abs=1e-6)
    assert results[0].mean_score == pytest.approx(naive_mean(model, query, results[0].text), abs=1e-5)


@pytest.mark.parametrize("passages", [None, 16])
def test_an_estimated_threshold_lets_the_wanted_share_of_unanswered_pieces_through(minilm, passages):
    """Counted again from searches: the piece of a document finds another one at or above the estimate."""
    subjects, places = ["Ships", "Bananas", "Moons", "Doctors", "Violins"], ["in Rome", "at sea", "near Mars", "in May"]
    texts = [f"{subject} {place} were counted by hand." for subject in subjects for place in places]
    retriever = Retriever(minilm, device="cpu")
    retriever.add(texts, passages=passages)
    found = retriever.estimate_threshold(0.25)
    assert (found.share, found.queries) == (0.25, 20)
    assert found.low <= found.min_mean_score <= found.high <= 1
    stricter = retriever.estimate_threshold(0.1)
    assert stricter.min_mean_score >= found.min_mean_score
    # Each piece is five of the words of its text, from one of two places: the estimate is of one of the two.
    pieces = [[" ".join(text.split()[start : start + 5]) for start in range(3)] for text in texts]
    shares = []
    for chosen in (min, max):
        best = [
            chosen(
                max(hit.mean_score for hit in hits if hit.id != i)
                for hits in retriever.search(each, k=2, mode="vectors", min_mean_score=-1)
            )
            for i, each in enumerate(pieces)
        ]
        shares.append(sum(score > found.min_mean_score for score in best) / len(best))
    assert shares[0] <= 0.25 <= shares[1]
    with pytest.raises(InvalidArgumentError, match=r"share=0\.6"):
        retriever.estimate_threshold(0.6)


@pytest.fixture(scope="module")
def ships(minilm):
    retriever = Retriever(minilm, device="cpu")
    retriever.add(f"Ship {number} came from port {number} with rice and tea." for number in range(20))
    return retriever


@pytest.mark.parametrize("mode", ["vectors", "hybrid", "rerank", "keywords"])
def test_results_are_weak_where_nothing_matches(ships, mode):
    assert ships.search("rice from a ship", mode=mode)[0].weak is None
    bars = ships.learn_weak()
    assert bars == WeakBars.stored_in(ships.index)
    assert bars.documents == 20
    for query, expected in (("rice from ship", False), ("a symphony of love and jealousy with rice", True)):
        terms = len(set(query.split()))
        results = ships.search(query, mode=mode)
        for result in results:
            if mode == "keywords":
                [most] = ships.index.highest_scores([query])
                least, value = bars.words.at(terms), result.score / most
            else:
                vectors = ships.model.encode_query(query)
                document = ships.model.encode_document(result.text)
                least, value = bars.vectors.at(terms), float((vectors @ document.T).max(dim=1).values.mean())
            assert result.weak == (value < least)
        assert all(result.weak is expected for result in results)
        assert str(results).startswith("nothing matches well") == expected
    del ships.index.settings["weak_results"]


def test_bars_fall_with_the_length_of_a_question_and_are_read_back_or_left_out(ships):
    bars = ships.learn_weak()
    assert bars.vectors.at(20) < bars.vectors.at(3)
    assert bars.words.at(20) <= bars.words.at(3)
    bar = WeakBar.through([4, 16, 64], [0.8, 0.4, 0.2])
    assert [bar.at(terms) for terms in (4, 16, 64, 256)] == pytest.approx([0.8, 0.4, 0.2, 0.1])
    assert bar.at(1) == bar.at(3) > bar.at(4)
    assert WeakBar.through([5], [0.25]).at(50) == pytest.approx(0.25)
    assert WeakBar.through([2, 8], [0.4, 0.8]).at(50) == pytest.approx(0.32**0.5)  # never rises
    for stranger in ([["x", 1.0], 3], [[1.0], 3], [[0.5, -0.1], "many"], [0.5, 3]):
        ships.index.settings["weak_results"] = dict(zip(("vectors", "documents"), stranger, strict=True))
        assert WeakBars.stored_in(ships.index) is None
        assert ships.search("rice")[0].weak is None
    del ships.index.settings["weak_results"]


class WithoutVectors(indexes.Flat):
    """An index of which nobody may read vectors."""

    def get_embeddings(self, ids, ranges=None):
        raise AssertionError(ids)


def test_weak_results_take_no_further_look_at_the_vectors(ships):
    retriever = Retriever(ships.model, WithoutVectors())
    retriever.add(ships.documents[id].text for id in ships.documents)
    retriever.learn_weak()
    found = [retriever.search("rice from ship", mode=mode)[0] for mode in ("vectors", "hybrid")]
    assert [result.weak for result in found] == [False, False]


def test_what_is_weak_is_not_estimated_from_a_few_words(retriever):
    with pytest.raises(InvalidArgumentError, match="needs 20"):
        retriever.learn_weak()
