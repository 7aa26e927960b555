"""Ray, which the extra ``ray`` installs: joined where a cluster runs, else started on this machine."""

from __future__ import annotations

import os
import sys
from typing import Any

from latelier.errors import MissingExtraError, StorageError

__all__ = ["RaySession", "check_not_forked", "connect_to_ray", "is_forked", "require_ray"]

# The process that has connected to Ray. In its forks every call of Ray would wait forever.
_process: int | None = None


def require_ray(feature: str) -> Any:
    """Return the module ``ray``.

    `feature`: what needs it, as the start of a sentence: ``"Encoding on many workers"``.
    """
    # Read when ray is imported: no report of its use to its makers, and no warning about actors without a GPU.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(feature, "ray") from error
    return ray


def connect_to_ray(feature: str, num_cpus: int = 0) -> Any:
    """Return the module ``ray``, connected to a cluster.

    That is the one that this process is connected to; else the one that ``RAY_ADDRESS`` names, or that ``ray start``
    has started on this machine; else one of this machine alone, which ends with this process. `feature`: as in
    `require_ray`; `num_cpus`: number of CPUs that a cluster of this machine alone offers at least, however few it has;
    raises `StorageError` if this process was forked from one that was connected.
    """
    ray = require_ray(feature)
    check_not_forked()
    _remember_process()
    if ray.is_initialized():
        return ray
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(num_cpus=max(num_cpus, os.cpu_count() or 1), include_dashboard=False, **options)
    except ValueError:  # of a running cluster, it must not be given
        ray.init(**options)
    return ray


class RaySession:
    """The connection of this process to Ray at one moment, to see whether it is still there.

    `feature`: as in `require_ray`.
    """

    def __init__(self, feature: str) -> None:
        self.ray = require_ray(feature)
        self._feature, self._connection = feature, self._current_connection()

    def check(self) -> None:
        """Check that this is still the connection of this process.

        Raises
        ------
        StorageError
            If Ray was shut down since, or this process was forked from the one that is connected.
        """
        check_not_forked()
        if not self.ray.is_initialized() or self._current_connection() != self._connection:
            raise StorageError(
                f"{self._feature} has lost its processes: this process has disconnected from Ray, as ray.shutdown() "
                "does. What was stored is kept; open it again."
            )

    def _current_connection(self) -> str:
        return str(self.ray.get_runtime_context().get_node_id())  # of a local Ray, it is another one each time


def is_forked() -> bool:
    """Return whether this process was forked from one that was connected to Ray."""
    return _process not in (None, os.getpid())


def check_not_forked() -> None:
    """Check that calls of Ray can end.

    Raises `StorageError` if this process was forked from one that was connected to Ray.
    """
    if is_forked():
        raise StorageError(
            "this process was forked from one that is connected to Ray, and no connection to Ray survives a fork. "
            'Start such processes by multiprocessing.get_context("spawn"), or fork before anything connects to Ray.'
        )


def _remember_process() -> None:
    global _process
    _process = os.getpid()


def _after_fork_in_child() -> None:
    global _process
    ray = sys.modules.get("ray")
    is_connected = ray is not None and ray.is_initialized()
    _process = os.getppid() if is_connected else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
