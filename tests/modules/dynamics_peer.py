"""`DynamicsNetwork` and the class of LightZero, made alike from one case."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dynamics_cases import Case, cases, fill, run

from latelier.modules import DynamicsNetwork


def import_peer() -> type:
    """The class of LightZero; raises ImportError where it is not installed."""
    from lzero.model.efficientzero_model import DynamicsNetwork as Peer

    return Peer


def ours(case: Case) -> DynamicsNetwork:
    return DynamicsNetwork(**case.arguments)


def theirs(peer: type, case: Case) -> Any:
    """Their network; the arguments have our order in each release, and our names up to 0.1."""
    names = dict(zip(inspect.signature(DynamicsNetwork).parameters, inspect.signature(peer).parameters, strict=True))
    return peer(**{names[name]: value for name, value in case.arguments.items()})


def stored_numbers(make: Callable[[Case], Any]) -> dict[str, np.ndarray]:
    """What is stored of the networks of a few cases: outputs, statistics, and each twentieth gradient.

    Computed in float64, as a batch norm over a small batch multiplies rounding errors, and stored as float32.
    """
    results = [run(fill(make(case)), case, torch.float64) for case in list(cases())[::61]]
    numbers = {
        kind: np.concatenate([tensor.flatten().numpy() for result in results for tensor in result[kind]]).astype("f")
        for kind in results[0]
    }
    return numbers | {"gradients": numbers["gradients"][::20]}
