"""Cases of `Attention` and of diffusers' class; run as a program where that is installed, it stores its numbers."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from latelier import modules

FOLDER = Path(__file__).parent


class Case(NamedTuple):
    """Arguments of both classes, inputs, and the processors that compute the same in each; None: the default."""

    arguments: dict[str, Any]
    image: bool = False
    context: int | None = None
    mask: str | None = None
    theirs: str | None = None
    ours: str | None = None


CASES = [Case(**json.loads(line)) for line in (FOLDER / "attention_cases.jsonl").read_text().splitlines()]


def inputs(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    random = np.random.RandomState(3)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    dim = case.arguments["query_dim"]
    hidden_states = draw(2, dim, 2, 2) if case.image else draw(2, 4, dim)
    more = {}
    if case.context is not None:
        more["encoder_hidden_states"] = draw(2, 3, case.context)
    keys = 4 if case.context is None else 3
    if case.mask is not None:
        mask = draw(2, 4 if case.mask == "pairs" else 1, keys)
        mask[0, :, 1] = -10000.0  # as good as excluded; another key remains
        more["attention_mask"] = mask > -0.5 if case.mask == "boolean" else mask
    if "spatial_norm_dim" in case.arguments:
        more["temb"] = draw(2, case.arguments["spatial_norm_dim"], 1, 1)
    return hidden_states, more


@torch.no_grad()
def outputs(library: Any, case: Case, processor: str | None) -> np.ndarray:
    torch.manual_seed(0)
    module = library.Attention(**case.arguments)
    if processor is not None:
        module.set_processor(getattr(library, processor)(*([2] if "Sliced" in processor else [])))
    random = np.random.RandomState(7)
    for _, parameter in sorted(module.named_parameters()):
        parameter.copy_(torch.from_numpy(random.standard_normal(tuple(parameter.shape)) * 0.4))
    if processor is not None and "Fused" in processor:
        module.fuse_projections()
    hidden_states, more = inputs(case)
    result = module.eval()(hidden_states, **more)
    parts = result if isinstance(result, tuple) else [result]
    return np.concatenate([part.flatten().numpy() for part in parts])


def ours(case: Case) -> np.ndarray:
    return outputs(modules, case, case.ours)


if __name__ == "__main__":
    from diffusers.models import attention_processor as peer

    numbers = np.concatenate([outputs(peer, case, case.theirs) for case in CASES])
    np.savez_compressed(FOLDER / "attention_references.npz", numbers=numbers)
