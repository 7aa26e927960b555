"""The simulation of a cluster, against cases that have a formula."""

import importlib
from pathlib import Path

import numpy as np
import pytest

# Seldom enough that no query waits for another one.
SELDOM = 1e-4


@pytest.fixture(scope="module")
def simulation():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
        return importlib.import_module("simulation")


def exponential(rng, query, count):
    return rng.exponential(1.0, count)


@pytest.mark.parametrize("shards", [1, 8, 64])
def test_slowest_of_many_exponentials(simulation, shards):
    found = simulation.simulate(simulation.Cluster(shards), exponential, SELDOM, 20_000)
    # The expectation of the maximum of n is 1 + 1/2 + ... + 1/n; its quantile q is -ln(1 - q ** (1/n)).
    assert found.mean() == pytest.approx((1 / np.arange(1, shards + 1)).sum(), rel=0.03)
    assert np.quantile(found, 0.99) == pytest.approx(-np.log(1 - 0.99 ** (1 / shards)), rel=0.06)


@pytest.mark.parametrize(("cores", "waiting"), [(1, 4.0), (2, 1.7778)])
def test_queue_of_one_node(simulation, cores, waiting):
    # M/M/c with a load of 0.8: Erlang's formula gives the mean time in the queue.
    found = simulation.simulate(simulation.Cluster(1, cores), exponential, 0.8 * cores, 200_000)
    assert found.mean() == pytest.approx(waiting + 1, rel=0.06)


def test_hedging_at_once_takes_the_faster_of_two(simulation):
    cluster = simulation.Cluster(8, replicas=2, policy="hedged")
    found = simulation.simulate(cluster, exponential, SELDOM, 20_000)
    assert found.mean() == pytest.approx((1 / np.arange(1, 9)).sum() / 2, rel=0.03)


def test_hedging_later_cuts_the_tail_and_costs_few_calls(simulation):
    calls = 0

    def straggling(rng, query, count):
        nonlocal calls
        calls += count
        return np.where(rng.random(count) < 0.01, 100.0, 1.0)

    one = simulation.simulate(simulation.Cluster(100, replicas=2), straggling, SELDOM, 2000)
    calls = 0
    cluster = simulation.Cluster(100, replicas=2, policy="hedged", hedge_after=1.5)
    hedged = simulation.simulate(cluster, straggling, SELDOM, 2000)
    assert np.mean(one > 99) == pytest.approx(1 - 0.99**100, abs=0.04)
    assert np.mean(hedged > 99) == pytest.approx(1 - 0.9999**100, abs=0.01)
    assert np.median(hedged) == pytest.approx(2.5)
    assert calls == pytest.approx(1.01 * 2000 * 100, rel=0.01)


def test_shortest_queue_is_at_least_as_good_as_a_random_one(simulation):
    found = {
        policy: simulation.simulate(simulation.Cluster(4, replicas=2, policy=policy), exponential, 1.4, 50_000).mean()
        for policy in ("random", "shortest")
    }
    assert found["shortest"] < 0.7 * found["random"]


def test_coordinator_and_network(simulation):
    cluster = simulation.Cluster(100, call=0.002, request=1_000_000, answer=10_000, bandwidth=1e9, round_trip=0.5)
    found = simulation.simulate(cluster, lambda rng, query, count: np.ones(count), SELDOM, 100)
    # The last request leaves after 100 ms, is on the wire for 0.5 s both ways, searched for 1 s, read after 1 + 1 ms.
    np.testing.assert_allclose(found, 0.1 + 0.5 + 1 + 0.001 + 0.001)
    # Each query occupies the coordinator for 0.2 s: above 5 queries per second, the queue grows without end.
    rising = simulation.simulate(cluster, lambda rng, query, count: np.zeros(count), 10.0, 1000)
    assert rising[-1] > 40
    two = simulation.Cluster(100, call=0.002, coordinators=4)
    assert simulation.simulate(two, lambda rng, query, count: np.zeros(count), 10.0, 1000)[-1] < 2
