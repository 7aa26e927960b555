"""Searches in several steps over real docstrings: when they stop, what they read, and that training teaches them."""

import random

import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.experimental import MultiStepRetriever, QueryDynamics, ReadingExample, merge_hits, train_query_dynamics
from latelier.indexes import Hit
from latelier.retrieve import Retriever

QUERIES = ["insert an item and keep the list sorted", "a dictionary that is stored in a file", "the smallest element"]
# Each query describes the first document; the second is related to it, but is not what the query asks for.
EXAMPLES = [
    ReadingExample("Insert item x in list a, and keep it sorted.", ["bisect.insort_right", "bisect.bisect_right"]),
    ReadingExample(
        "Insert item x in list a on the left, keep it sorted.", ["bisect.insort_left", "bisect.bisect_left"]
    ),
    ReadingExample("Pop the smallest item off the heap.", ["heapq.heappop", "heapq.heapify"]),
    ReadingExample("Put an item into the queue without blocking.", ["queue.Queue.put_nowait", "queue.Full"]),
]


def predicting(value_logits, retriever):
    dynamics = QueryDynamics(dim=retriever.index.dim)
    with torch.no_grad():
        dynamics.dynamics.fc_reward_head[-1].bias.copy_(value_logits)
    return MultiStepRetriever(retriever, dynamics)


def peak(position):
    """Logits with almost all probability at one of the 21 integers from -10 to 10."""
    return 30.0 * torch.nn.functional.one_hot(torch.tensor(position + 10), 21)


def assert_same_hits(found, expected):
    """Equal ids, and scores but for rounding: searches before and after the kernels are loaded sum in another order."""
    for hits, others in zip(found, expected, strict=True):
        assert [hit.id for hit in hits] == [hit.id for hit in others]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in others], rel=1e-5)


@pytest.fixture(scope="module")
def trained(retriever):
    torch.manual_seed(0)
    multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=retriever.index.dim))
    losses = train_query_dynamics(multi_step, EXAMPLES, steps=60, batch_size=4, negatives=15, learning_rate=5e-3)
    return losses, multi_step


@pytest.mark.parametrize("merge", ["last", "best_score"])
def test_untrained_it_is_one_search(retriever, merge):
    multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=retriever.index.dim))
    expected = retriever.search(QUERIES, k=5, plain_query=True)
    for steps, min_gain in ((0, 0.0), (1, 0.0), (2, None)):
        results = multi_step.search(QUERIES, 5, steps, min_gain=min_gain, merge=merge)
        assert_same_hits([result.hits for result in results], expected)
        assert [[step.gain for step in result.steps] for result in results] == [[0.0] * steps] * 3


def test_reading_stops_when_nothing_more_is_gained(retriever):
    gaining = predicting(peak(5), retriever).search(QUERIES[0], k=3, max_steps=4)
    # h(x) = 5 at 34.7 hundredths. After the second document the prefix is the same, so that one gains nothing.
    assert [step.gain for step in gaining.steps] == pytest.approx([0.347, 0.0], abs=2e-3)
    assert [step.searched for step in gaining.steps] == [True, False]
    assert [step.id for step in gaining.steps] == [hit.id for hit in gaining.hits[:2]]

    losing = predicting(peak(-5), retriever)
    result = losing.search(QUERIES[0], k=3, max_steps=4)
    assert [step.searched for step in result.steps] == [False]
    assert result.steps[0].gain == pytest.approx(-0.347, abs=2e-3)
    eager = losing.search(QUERIES[0], k=3, max_steps=2, min_gain=-0.5)
    assert [step.searched for step in eager.steps] == [True, True]


def test_documents_stored_as_passages_are_found_once_by_their_own_ids(retriever, docstrings):
    passages = Retriever(retriever.model)
    kept = [record for record in docstrings if record["module"] in ("bisect", "heapq")]
    passages.add(kept, passages=24)
    assert passages.index.statistics().passages > len(passages)
    multi_step = predicting(peak(5), passages)
    for steps, merge in ((0, "last"), (3, "last"), (3, "best_score")):
        results = multi_step.search(QUERIES, 5, steps, min_gain=None, merge=merge)
        for query, result in zip(QUERIES, results, strict=True):
            assert [hit.id for hit in result.hits] == [hit.id for hit in passages.search(query, 5, plain_query=True)]
            assert [step.id for step in result.steps] == [hit.id for hit in result.hits[:steps]]
    with pytest.raises(InvalidArgumentError, match="passages cannot be learned from; train with an index of whole"):
        train_query_dynamics(multi_step, EXAMPLES, steps=1, batch_size=2)


def test_training_finds_the_targets_and_predicts_that(trained, retriever):
    losses, multi_step = trained
    assert losses[-1] < losses[0] / 2
    texts, targets = [example.query for example in EXAMPLES], [example.documents[-1] for example in EXAMPLES]

    def ranks(found):
        return [[hit.id for hit in hits].index(target) for hits, target in zip(found, targets, strict=True)]

    before = ranks(retriever.search(texts, k=len(retriever), plain_query=True))
    results = multi_step.search(texts, k=len(retriever))
    after = ranks([result.hits for result in results])
    assert sum(after) < sum(before) / 2
    assert [result.steps[0].id for result in results] == [example.documents[0] for example in EXAMPLES]
    assert all(result.steps[0].gain > 0 for result in results)


def searches(seed):
    draw = random.Random(seed)
    found = [[Hit(id_, draw.randrange(9) / 2) for id_ in draw.sample(range(12), 8)] for _ in range(3)]
    return [sorted(hits, key=lambda hit: -hit.score) for hits in found]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_loops(seed):
    found = searches(seed)
    known = {hit.id for hits in found for hit in hits}
    best = {id_: max(hit.score for hits in found for hit in hits if hit.id == id_) for id_ in known}
    ranks = {id_: [[hit.id for hit in hits].index(id_) + 1 for hits in found if id_ in dict(hits)] for id_ in known}
    fused = {id_: sum(1 / (60 + rank) for rank in ranks[id_]) for id_ in known}
    for merge, expected in (("best_score", best), ("reciprocal_rank", fused)):
        merged = merge_hits(found, 12, merge)
        assert {hit.id: hit.score for hit in merged} == pytest.approx(expected)
        assert [hit.score for hit in merged] == sorted((hit.score for hit in merged), reverse=True)
        assert merge_hits(found, 4, merge) == merged[:4]


def test_the_last_search_comes_first_and_the_earlier_ones_fill_up():
    found = searches(0)
    merged = merge_hits(found, 12)
    assert merged[:8] == found[-1]
    missing = [hit for hit in found[1] if hit.id not in dict(found[2])]
    assert merged[8 : 8 + len(missing)] == missing
    assert len({hit.id for hit in merged}) == len(merged)
