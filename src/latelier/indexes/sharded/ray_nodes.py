"""The nodes of a Ray cluster: what processes ask for to be started on one, and how many threads they compute with."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from latelier.errors import InvalidArgumentError

__all__ = ["node_resources", "threads_of_node"]

# The share of a node's resource that a process asks for, only to be started on that node.
_SHARE = 0.0001


def node_resources(ray: ModuleType, node: str | None) -> dict[str, float]:
    """Return the resources to ask for, so that a process is started on a node.

    `node`: the IP address of a node, or the name of a custom resource that a node was started with; None: this node.
    """
    known = ray.cluster_resources()
    name = f"node:{ray.util.get_node_ip_address()}" if node is None else node
    for each in (name, f"node:{name}"):
        if each in known:
            return {each: _SHARE}
    if node is None:
        return {}
    nodes = ", ".join(sorted(each.removeprefix("node:") for each in known if each.startswith("node:")))
    raise InvalidArgumentError(
        f"received {node!r} as a node; the Ray cluster has the nodes {nodes}, and no resource of this name."
    )


def threads_of_node(ray: ModuleType, node: str | None, processes: int) -> int:
    """Return the number of threads of each of some processes that share the processors of a node.

    `node`: as for `node_resources`.
    """
    wanted = node_resources(ray, node)
    alive: Sequence[dict[str, Any]] = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    cpus = max((each.get("CPU", 1) for each in alive if wanted.keys() <= each.keys()), default=1)
    return max(1, int(cpus) // max(1, processes))
