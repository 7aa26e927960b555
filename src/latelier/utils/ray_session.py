"""Ray (extra ``ray``): joined where a cluster runs, else started on this machine."""

from __future__ import annotations

import os
import sys
from typing import Any

from latelier.errors import StorageError
from latelier.utils.misc import needs_extra

# The process that has connected to Ray, -1 in its forks: there every call of Ray would wait forever.
_process: int | None = None


def connect_to_ray(feature: str, num_cpus: int = 0) -> Any:
    """Return the module ``ray``, connected to a cluster.

    That is the one that this process is connected to; else the one that ``RAY_ADDRESS`` names or that ``ray start`` has
    started on this machine; else one of this machine alone, with at least `num_cpus` CPUs, which ends with this
    process. `feature` is what needs Ray, as the start of a sentence: ``"Encoding on many workers"``.
    """
    # Read when ray is imported: no report of its use to its makers, and no warning about actors without a GPU.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needs_extra(feature, "ray"):
        import ray
    check_not_forked()
    global _process
    _process = os.getpid()
    if not ray.is_initialized():
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(num_cpus=max(num_cpus, os.cpu_count() or 1), include_dashboard=False, **options)
        except ValueError:  # a running cluster has its own number of CPUs
            ray.init(**options)
    return ray


def connection_of(ray: Any) -> str | None:
    """Return what identifies the present connection of this process to Ray; None without one."""
    check_not_forked()
    if ray.is_initialized():
        return str(ray.get_runtime_context().get_node_id())
    return None


def is_forked() -> bool:
    """Return whether this process was forked from one that was connected to Ray."""
    return _process not in (None, os.getpid())


def check_not_forked() -> None:
    """Raise `StorageError` if this process was forked from one that was connected to Ray."""
    if is_forked():
        raise StorageError(
            "this process was forked from one that is connected to Ray, and no connection to Ray survives a fork. "
            'Start such processes by multiprocessing.get_context("spawn"), or fork before anything connects to Ray.'
        )


def _after_fork_in_child() -> None:
    global _process
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _process = -1
    else:
        _process = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
