"""Changes of weights through ``.data``, which leave no trace but the numbers, are seen in tensors of every kind."""

import pytest
import torch
from torch import nn

from latelier.models.cpu.fingerprint import Fingerprint


def module_with(tensor):
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(tensor, requires_grad=False))
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(33, 7),
        lambda: torch.ones(40, 64).t(),
        lambda: torch.ones(6, 10)[:, ::2],
        lambda: torch.ones(3),
        lambda: torch.tensor(1.0),
    ],
    ids=["odd size", "transposed", "with gaps", "few numbers", "one number"],
)
def test_a_change_through_data_is_seen(make, dtype):
    others, module = nn.Linear(8, 8), module_with(make().to(dtype))
    fingerprint = Fingerprint([others, module])
    assert fingerprint.matches()
    module.weight.data.add_(1)
    assert not fingerprint.matches()
    module.weight.data.sub_(1)
    assert fingerprint.matches()


def test_the_last_word_and_the_first_are_compared():
    module = module_with(torch.zeros(16))
    for position in (0, 15):
        fingerprint = Fingerprint([module])
        module.weight.data[position] = 1
        assert not fingerprint.matches()


def test_weights_in_other_memory_are_others():
    module = module_with(torch.ones(4, 4))
    fingerprint = Fingerprint([module])
    module.weight.data = torch.ones(4, 4)
    assert not fingerprint.matches()


def test_nothing_to_compare():
    assert Fingerprint([]).matches()
    assert Fingerprint([module_with(torch.zeros(0, 3))]).matches()
