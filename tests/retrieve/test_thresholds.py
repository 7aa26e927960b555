"""Thresholds and mean scores: what is below them is left out, in every mode, on every surface."""

import numpy as np
import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.retrieve import Retriever

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


@pytest.mark.parametrize("name", ["score", "mean_score"])
@pytest.mark.parametrize("passages", [None, 16])
def test_what_is_below_a_threshold_is_left_out(retriever, name, passages):
    retriever = Retriever(retriever.model)
    retriever.add(list(zip("abcd", TEXTS, strict=True)), passages=passages)
    every = retriever.search("healthy fruit", min_mean_score=-1)
    least = sorted(getattr(result, name) for result in every)[2]
    option = {f"min_{name}": least - 1e-6}
    wanted = [result.id for result in every if getattr(result, name) >= least]
    assert len(wanted) == 2
    assert [result.id for result in retriever.search("healthy fruit", **option)] == wanted
    assert list(retriever.run({"q": "healthy fruit"}, **option)["q"]) == wanted
    assert retriever.search("healthy fruit", **{f"min_{name}": 99.0}) == []
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
    results = retriever.search(query, mode="vectors", min_mean_score=-1, plain_query=True)
    assert [result.id for result in results] == ["abcd"[i] for i in order]
    np.testing.assert_allclose([result.score for result in results], wanted[order], atol=1e-6)
    assert [hit.id for hit in retriever.rerank(query, TEXTS)] == order
    np.testing.assert_allclose([hit.score for hit in retriever.rerank(query, TEXTS)], wanted[order], atol=1e-6)
    assert retriever.explain(query, "b", plain_query=True).score == pytest.approx(float(wanted[1]), abs=1e-6)
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
                for hits in retriever.search(each, k=2, min_mean_score=-1)
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


@pytest.mark.parametrize("mode", ["vectors", "hybrid", "rerank"])
def test_results_are_weak_where_nothing_matches(ships, mode):
    assert ships.search("rice from a ship", mode=mode)[0].weak is None
    least = ships.learn_weak().min_mean_score
    for query, expected in (("rice from a ship", False), ("a ship of love and jealousy, the symphony of rice", True)):
        for result in ships.search(query, mode=mode):
            assert result.weak == (result.mean_score < least)
            assert result.mean_score == pytest.approx(naive_mean(ships.model, query, result.text), abs=1e-5)
        assert result.weak is expected
    assert "nothing matches well" in str(ships.search("a symphony of love", mode="vectors"))
    assert ships.search("rice", mode="keywords")[0].weak is None
    del ships.index.settings["weak_results"]


def test_what_is_weak_is_not_estimated_from_a_few_words(retriever):
    with pytest.raises(InvalidArgumentError, match="needs 20"):
        retriever.learn_weak()
