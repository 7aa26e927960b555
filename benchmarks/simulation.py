"""Latency of searches on 8 to 256 nodes, simulated from measured times of one shard: where p99 breaks, and why.

    python benchmarks/simulation.py MEASURED [--nodes 8 16 32 64 128 256] [--shard-ms 17] [--load 0.3] [--docs PAGE]
        [--figure FILE.svg]

MEASURED is the file that ``benchmarks/cluster.py --json`` writes: how long a shard takes for each query, how much that
varies from call to call, and what a call costs the coordinator. Each query goes to every shard and is answered when the
slowest shard has answered; queries arrive at random (Poisson), every core of a node searches for one query at a time
and the others wait in order. The coordinator sends one request after the other, through a network of 10 Gb/s. There
are as many coordinators as keep each of them busy for half of the time. With two copies of each shard, there are twice
as many queries, so that all nodes have the same load.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from cost_tables import insert, markdown

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


# A query of 32 tokens of 128 float32 numbers, and ten hits with their ids, each with a kilobyte around it.
REQUEST, ANSWER = 32 * 128 * 4 + 1000, 2000
ROUND_TRIP = 0.0002  # seconds, within a data centre
CORES = 16
# Part of the time that a coordinator is busy.
BUSY = 0.5


def measured_work(measured: dict[str, Any], shard_ms: float) -> Work:
    """Return the work of a shard: a query's own time, times the variation of each call, both as measured."""
    base, spread = np.array(measured["work ms"]), np.array(measured["spread"])
    base = base / base.mean() * shard_ms / 1e3
    return lambda rng, query, count: base[query % len(base)] * rng.choice(spread, count)


def table(measured: dict[str, Any], nodes: list[int], shard_ms: float, load: float, queries: int) -> list[list[Any]]:
    """Return, for each number of nodes, latencies in milliseconds and the number of coordinators."""
    work = measured_work(measured, shard_ms)
    single = np.concatenate([work(np.random.default_rng(1), query, 100) for query in range(200)])
    hedge_after = float(np.quantile(single, 0.95))
    rate = load * CORES / float(single.mean())
    ideal = Cluster(1, CORES, round_trip=ROUND_TRIP)
    rows = []
    for shards in nodes:
        coordinators = max(1, math.ceil(rate * shards * measured["call ms"] / 1e3 / BUSY))
        one = replace(
            ideal,
            shards=shards,
            call=measured["call ms"] / 1e3,
            coordinators=coordinators,
            request=REQUEST,
            answer=ANSWER,
        )
        two = replace(one, replicas=2, coordinators=2 * coordinators)
        cases = [replace(ideal, shards=shards), one, replace(two, policy="shortest")]
        cases.append(replace(two, policy="hedged", hedge_after=hedge_after))
        found = [1e3 * simulate(case, work, rate * case.replicas, queries) for case in cases]
        p99 = [float(np.quantile(each, 0.99)) for each in found]
        rows.append([shards, float(np.median(found[0])), p99[0], float(np.median(found[1])), *p99[1:], coordinators])
    return rows


def conclusion(rows: list[list[Any]]) -> str:
    """Return in words where p99 breaks, and why."""
    first, last = rows[0], rows[-1]
    broken = next((row[0] for row in rows if row[4] > 2 * first[4]), None)
    where = f"is more than twice that of {_nodes(first[0])} from {_nodes(broken)} on" if broken else "nowhere doubles"
    stragglers, coordinator = last[2] - first[2], last[4] - last[2]
    return (
        f"p99 {where}. Of the {last[4]:.0f} ms on {_nodes(last[0])}, {first[2]:.0f} ms are those of one node; "
        f"waiting for the slowest of {last[0]} shards adds {stragglers:.0f} ms, and the coordinator, which sends "
        f"{last[0]} requests one after the other, {coordinator:.0f} ms. The median goes from {first[1]:.0f} to "
        f"{last[3]:.0f} ms: on many nodes, most queries meet a slow shard. With two copies of each shard, p99 is "
        f"{last[6]:.0f} ms with hedged requests (ask the other copy after the 95th percentile of one shard), and "
        f"{last[5]:.0f} ms if the copy with the shorter queue is asked."
    )


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def draw(rows: list[list[Any]], file: Path) -> None:
    """Draw the 99th percentiles by the number of nodes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "latelier", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    curves = {"one copy": (4, "#3f7fbf"), "one copy, no coordinator": (2, "#999999")}
    curves |= {"two copies, shorter queue": (5, "#d9822b"), "two copies, hedged": (6, "#4c9f50")}
    for name, (column, colour) in curves.items():
        axes.plot([row[0] for row in rows], [row[column] for row in rows], "o-", color=colour, markersize=4, label=name)
    axes.set(xscale="log", xlabel="nodes", ylabel="99th percentile, ms", ylim=(0, None))
    axes.set_xticks([row[0] for row in rows], [str(row[0]) for row in rows], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="?", help="What benchmarks/cluster.py has written.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--shard-ms", type=float, default=17.0, help="Mean time of a query in one shard.")
    parser.add_argument("--load", type=float, default=0.3, help="Part of the time that the cores of the nodes search.")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--docs", type=Path, help="Page with the comment <!-- simulated latency -->, to put the table.")
    parser.add_argument("--figure", type=Path, help="Draw the 99th percentiles into this file (.svg).")
    options = parser.parse_args()
    if options.measured is None:
        print("skipped: give the file that benchmarks/cluster.py --json has written", file=sys.stderr)
        return
    measured = json.loads(options.measured.read_text(encoding="ascii"))
    rows = table(measured, options.nodes, options.shard_ms, options.load, options.queries)
    header = ["nodes", "p50, no coordinator", "p99, no coordinator", "p50", "p99", "p99, two copies, shorter queue"]
    cells = [[str(row[0]), *(f"{each:.0f} ms" for each in row[1:-1]), str(row[-1])] for row in rows]
    lines = textwrap.fill(conclusion(rows), 120)
    text = markdown([[*header, "p99, two copies, hedged", "coordinators"], *cells]) + "\n\n" + lines
    print(text)
    if options.docs:
        page = options.docs.read_text(encoding="utf-8")
        options.docs.write_text(insert(page, "simulated latency", text), encoding="utf-8")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
