"""`Attention` and the class of diffusers, made alike from one case: used by the tests and by the stored references."""

import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from attention_cases import FAMILIES, Case, fill

from latelier import modules


def import_peer() -> ModuleType:
    """The module of diffusers that holds its attention; raises ImportError where it is not installed."""
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    from diffusers.models import attention_processor

    return attention_processor


def build(library: Any, case: Case, processor: str | None) -> Any:
    """The `Attention` of a library, with the case's arguments and processor, and initial weights of a fixed seed."""
    torch.manual_seed(0)
    module = library.Attention(**case.arguments)
    if processor is not None:
        module.set_processor(getattr(library, processor)(*([2] if "Sliced" in processor else [])))
    return module


def ready(module: Any, processor: str | None) -> Any:
    """Fill the weights, and fuse them where the processor needs that."""
    fill(module)
    if processor is not None and "Fused" in processor:
        module.fuse_projections()
    return module


def ours(case: Case) -> Any:
    return ready(build(modules, case, case.ours), case.ours)


def theirs(peer: ModuleType, case: Case) -> Any:
    return ready(build(peer, case, case.theirs), case.theirs)


def stored_cases(family: str) -> Iterator[Case]:
    """A dozen cases of a family, evenly spaced, whose outputs are stored."""
    cases = list(FAMILIES[family]())
    step = max(1, len(cases) // 12)
    return iter(cases[step // 2 :: step][:12])
