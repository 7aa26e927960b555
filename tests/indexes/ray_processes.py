"""A local Ray for tests, and processes of shards that are used again by the next index: starting one takes a second."""

import contextlib

import pytest

from latelier.indexes.sharded import replica
from latelier.utils.ray_session import require_ray


@contextlib.contextmanager
def local_ray():
    """Start a small local Ray, unless one is running, and stop it."""
    ray = require_ray("Testing")
    if ray.is_initialized():
        yield ray
        return
    options = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
    ray.init("local", **options, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def reused_processes():
    """Within the context, give the processes of closed indexes to later ones."""
    idle = []
    start = replica.start_process

    def start_or_reuse(resources):
        return idle.pop() if idle else start(resources)

    with pytest.MonkeyPatch.context() as patch, local_ray():
        patch.setattr(replica, "start_process", start_or_reuse)
        patch.setattr(replica, "stop_process", idle.append)
        yield
