"""Ray, which the extra ``ray`` installs: joined where a cluster runs, else started on this machine."""

from __future__ import annotations

import os
from typing import Any

from latelier.errors import MissingExtraError

__all__ = ["connect_to_ray", "require_ray"]


def require_ray(feature: str) -> Any:
    """Return the module ``ray``.

    Parameters
    ----------
    feature
        What needs it, as the start of a sentence: ``"Encoding on many workers"``.

    Raises
    ------
    MissingExtraError
        If it is not installed.
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
    has started on this machine; else one of this machine alone, which ends with this process.

    Parameters
    ----------
    feature
        As in `require_ray`.
    num_cpus
        Number of CPUs that a cluster of this machine alone offers at least, however few it has.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    """
    ray = require_ray(feature)
    if ray.is_initialized():
        return ray
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(num_cpus=max(num_cpus, os.cpu_count() or 1), include_dashboard=False, **options)
    except ValueError:  # of a running cluster, it must not be given
        ray.init(**options)
    return ray
