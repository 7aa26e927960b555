"""Latency of searches on 8 to 256 nodes, simulated from measured times of one shard: where p99 breaks, and why.

    python benchmarks/simulation.py MEASURED [--nodes 8 16 32 64 128 256] [--load 0.3] [--figure p99.svg]

MEASURED is the file that ``benchmarks/cluster.py --json`` writes: how long a shard takes for each query, how much that
varies from call to call, and what a call costs the coordinator. Each query goes to every shard and is answered when the
slowest shard has answered; queries arrive at random (Poisson), every core of a node searches for one query at a time
and the others wait in order. The coordinator sends one request after the other, through a network of 10 Gb/s.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

# Draws the seconds of work of one query on some shards, given the query's number and the number of draws.
Work = Callable[[np.random.Generator, int, int], np.ndarray]


@dataclass(frozen=True)
class Cluster:
    """Machines and how they are used; times in seconds, sizes in bytes.

    Parameters
    ----------
    shards
        Number of shards, each on a node of its own; its replicas are on further nodes.
    cores
        Searches that a node runs at the same time.
    replicas
        Copies of each shard.
    policy
        Which copy is asked: a ``"random"`` one, the one with the ``"shortest"`` queue, or ``"hedged"``: a random one,
        and another one if there is no answer after `hedge_after`. The first answer counts, and no work is cancelled.
    hedge_after
        When ``"hedged"`` asks again.
    call
        Time of the coordinator for each shard, half to send the request and half to read the answer.
    coordinators
        Processes that take turns to send the queries.
    request, answer
        Size of a request, and of an answer.
    bandwidth
        Bytes per second of the coordinator's network.
    round_trip
        Time of a message to a node and back.
    """

    shards: int
    cores: int = 1
    replicas: int = 1
    policy: Literal["random", "shortest", "hedged"] = "random"
    hedge_after: float = 0.0
    call: float = 0.0
    coordinators: int = 1
    request: int = 0
    answer: int = 0
    bandwidth: float = 10e9 / 8
    round_trip: float = 0.0


def simulate(cluster: Cluster, work: Work, rate: float, queries: int, seed: int = 0) -> np.ndarray:
    """Return the latency of each query, ``(queries,)`` in seconds.

    Parameters
    ----------
    cluster
        The machines.
    work
        How long a shard searches.
    rate
        Queries per second.
    queries
        Number of queries; the first tenth, which finds empty queues, is left out.
    seed
        Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, queries))
    coordinator_free = np.zeros(cluster.coordinators)
    free = np.zeros((cluster.shards, cluster.replicas, cluster.cores))  # when each core has done its work so far
    hedges: list[tuple[float, int, int, int]] = []  # time, query, shard, copy
    answered = np.zeros((queries, cluster.shards))
    sending = max(cluster.call / 2, cluster.request / cluster.bandwidth)
    shards = np.arange(cluster.shards)

    def hedge(until: float) -> None:
        """Ask the other copies, as far as their time has come."""
        while hedges and hedges[0][0] <= until:
            time, query, shard, copy = heapq.heappop(hedges)
            core = free[shard, copy].argmin()
            done = max(time, free[shard, copy, core]) + work(rng, query, 1)[0]
            free[shard, copy, core] = done
            answered[query, shard] = min(answered[query, shard], done)

    for query, arrival in enumerate(arrivals):
        process = coordinator_free.argmin()
        begin = max(arrival, coordinator_free[process])
        coordinator_free[process] = begin + cluster.shards * max(sending, cluster.call)
        sent = begin + sending * (shards + 1) + cluster.round_trip / 2
        hedge(sent[0])
        if cluster.policy == "shortest":
            copies = np.maximum(free.min(axis=2), sent[:, None]).argmin(axis=1)
        else:
            copies = rng.integers(0, cluster.replicas, cluster.shards)
        cores = free[shards, copies].argmin(axis=1)
        done = np.maximum(sent, free[shards, copies, cores]) + work(rng, query, cluster.shards)
        free[shards, copies, cores] = answered[query] = done
        if cluster.policy == "hedged" and cluster.replicas > 1:
            for shard in np.flatnonzero(done - sent > cluster.hedge_after):
                other = int((copies[shard] + rng.integers(1, cluster.replicas)) % cluster.replicas)
                heapq.heappush(hedges, (float(sent[shard]) + cluster.hedge_after, query, int(shard), other))
    hedge(np.inf)
    reading = cluster.call / 2 + cluster.shards * cluster.answer / cluster.bandwidth
    latencies = answered.max(axis=1) + cluster.round_trip / 2 + reading - arrivals
    return latencies[queries // 10 :]
