"""Run as a program: a Ray cluster of two nodes on this machine, of which one dies and comes back."""

import json
import os
import sys

# A node that has died is found within a second: a live one has ten seconds for each answer.
os.environ |= {"RAY_health_check_period_ms": "300", "RAY_health_check_initial_delay_ms": "0"}
os.environ |= {"RAY_health_check_failure_threshold": "3"}

import numpy as np
import ray
from index_helpers import matrices
from ray.cluster_utils import Cluster

from latelier import indexes
from latelier.indexes.sharded.replicas import persist

QUERY = np.ones((1, 4), dtype="float32")


def lose_a_node(folder):
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "resources": {"first": 1}})
    second = cluster.add_node(num_cpus=1, resources={"second": 1})
    with indexes.Sharded(folder, shards=2, replicas=2, index="flat", nodes=["first", "second"]) as index:
        index.add(list(range(30)), matrices([3] * 30))
        before = index.search(QUERY)
        nodes = persist(list(index._generations.latest), lambda replica: replica.call("node"))
        assert nodes[0] == nodes[3] != nodes[1] == nodes[2]
        cluster.remove_node(second, allow_graceful=False)
        for _ in range(5):
            assert index.search(QUERY) == before
        cluster.add_node(num_cpus=1, resources={"second": 1})
        index.update([3, "new"], matrices([2, 2], seed=1))
        sys.stdout.write(json.dumps(index.ids()) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    lose_a_node(sys.argv[1])
