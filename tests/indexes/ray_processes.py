"""A local Ray for tests, and processes of shards that are used again by the next index: starting one takes a second."""

import contextlib

import pytest

from latelier.indexes import sharded
from latelier.utils.ray_session import connect_to_ray

START, STOP = sharded.start, sharded.stop


@contextlib.contextmanager
def local_ray():
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        yield ray
        return
    options = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
    ray.init("local", **options, log_to_driver=False, logging_level="ERROR")
    try:
        yield connect_to_ray("Testing")
    finally:
        ray.shutdown()


@contextlib.contextmanager
def reused_processes():
    """Within the context, give the processes of closed indexes to later ones."""
    idle = []

    def start_or_reuse(ray, opening, node):
        if not idle or node is not None:
            return START(ray, opening, node)
        actor = idle.pop()
        ray.get(actor.__ray_call__.remote(lambda self: self.__init__(opening)))
        return actor

    with pytest.MonkeyPatch.context() as patch, local_ray():
        patch.setattr(sharded, "start", start_or_reuse)
        patch.setattr(sharded, "stop", lambda ray, actor: idle.append(actor))
        yield


def use_new_processes(monkeypatch):
    monkeypatch.setattr(sharded, "start", START)
    monkeypatch.setattr(sharded, "stop", STOP)
