"""Cases of `DynamicsNetwork`; run as a program where LightZero is installed, it stores the numbers of its network."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from latelier.modules import DynamicsNetwork

CHANNELS, REWARD_CHANNELS, HEIGHT, WIDTH, HIDDEN, BATCH, STEPS = 6, 3, 2, 3, 4, 5, 2


class Case(NamedTuple):
    norm_type: str
    downsample: bool
    num_res_blocks: int
    action_encoding_dim: int
    fc_reward_layers: tuple[int, ...]
    last_linear_layer_init_zero: bool
    activation: str | None  # a class of torch.nn; None: the default
    training: bool
    hidden_state: bool  # whether the first step is given one

    @property
    def arguments(self) -> dict[str, Any]:
        options = self._asdict()
        del options["training"], options["hidden_state"], options["activation"]
        if self.activation is not None:
            options["activation"] = getattr(nn, self.activation)()
        return options | {
            # rounded up to 2 x 3 when downsampled
            "observation_shape": (3, 16 * HEIGHT - 7, 16 * WIDTH - 1) if self.downsample else (3, HEIGHT, WIDTH),
            "num_channels": CHANNELS,
            "reward_head_channels": REWARD_CHANNELS,
            "output_support_size": 5,
            "flatten_output_size_for_reward_head": REWARD_CHANNELS * HEIGHT * WIDTH,
            "lstm_hidden_size": HIDDEN,
        }


def cases() -> Iterator[Case]:
    boolean = (False, True)
    return itertools.starmap(
        Case,
        itertools.product(
            ("BN", "LN"), boolean, (0, 1, 2), (1, 2), ((7,), (7, 7)), boolean, (None, "PReLU", "GELU"), boolean, boolean
        ),
    )


def fill(network: nn.Module) -> nn.Module:
    """Set weights and running statistics, in the order of their names, to numbers that depend on nothing else."""
    random = np.random.RandomState(7)
    for name, tensor in sorted(network.state_dict().items()):
        if tensor.is_floating_point():
            values = random.standard_normal(tuple(tensor.shape)) * 0.4
            tensor.copy_(torch.from_numpy(np.abs(values) + 0.5 if name.endswith("running_var") else values))
    return network


def run(network: nn.Module, case: Case, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """Outputs of several steps, gradients of parameters and inputs, and the running statistics after the steps."""
    random = np.random.RandomState(3)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape)).to(dtype).requires_grad_()

    inputs = [state := draw(BATCH, CHANNELS - case.action_encoding_dim, HEIGHT, WIDTH)]
    hidden = (draw(1, BATCH, HIDDEN), draw(1, BATCH, HIDDEN)) if case.hidden_state else None
    inputs += hidden or ()
    outputs = []
    network.to(dtype).train(case.training)
    for _ in range(STEPS):
        inputs.append(action := draw(BATCH, case.action_encoding_dim, HEIGHT, WIDTH))
        state, hidden, value_prefix = network(torch.cat([state, action], dim=1), hidden)
        outputs += [state, *hidden, value_prefix]
    sum(tensor.square().sum() for tensor in outputs).backward()
    return {
        "outputs": [tensor.detach() for tensor in outputs],
        "gradients": [tensor.grad for tensor in (*inputs, *network.parameters())],
        "statistics": [tensor for tensor in network.buffers() if tensor.is_floating_point()],
    }


def import_peer() -> type:
    from lzero.model.efficientzero_model import DynamicsNetwork as Peer

    return Peer


def ours(case: Case) -> DynamicsNetwork:
    return DynamicsNetwork(**case.arguments)


def theirs(peer: type, case: Case) -> Any:
    """Their network; the arguments have our order in each release, and our names up to 0.1."""
    names = dict(zip(inspect.signature(DynamicsNetwork).parameters, inspect.signature(peer).parameters, strict=True))
    return peer(**{names[name]: value for name, value in case.arguments.items()})


def stored_numbers(make: Callable[[Case], Any]) -> dict[str, np.ndarray]:
    results = [run(fill(make(case)), case, torch.float64) for case in list(cases())[::61]]
    numbers = {
        kind: np.concatenate([tensor.flatten().numpy() for result in results for tensor in result[kind]]).astype("f")
        for kind in results[0]
    }
    return numbers | {"gradients": numbers["gradients"][::20]}


if __name__ == "__main__":
    numbers = stored_numbers(partial(theirs, import_peer()))
    np.savez_compressed(Path(__file__).with_name("dynamics_references.npz"), **numbers)
