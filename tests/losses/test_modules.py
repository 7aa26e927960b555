"""What PyTorch promises of every `nn.Module` holds for those of the library, whoever handles them."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from latelier.losses import Contrastive, Distillation
from latelier.models import ColBERT

TEXTS = ["wings push air", "a pear"]


class Case(NamedTuple):
    """A module, and a call of it that gives one number."""

    module: nn.Module
    call: Callable


def call_model(model):
    out = model(model.tokenize(TEXTS, is_query=False))
    return (out["token_embeddings"].float() * out["attention_mask"].unsqueeze(-1)).sum(dim=1).square().sum()


def call_loss(loss):
    batch = [loss.model.tokenize(TEXTS), loss.model.tokenize([*TEXTS, *TEXTS, "one", "two"], is_query=False)]
    return loss(batch, torch.tensor([[1.0, 0.0, 0.5], [0.2, 0.4, 0.6]]))


@pytest.fixture(scope="module")
def originals(tiny):
    colbert = ColBERT(tiny, 16, "cpu", max_length_query=12)
    return {
        "ColBERT": Case(colbert, call_model),
        "from_dense": Case(ColBERT.from_dense(tiny, device="cpu"), call_model),
        "Distillation": Case(Distillation(colbert), call_loss),
        "Contrastive": Case(Contrastive(colbert, temperature=5.0), call_loss),
    }


@pytest.fixture(params=["ColBERT", "from_dense", "Distillation", "Contrastive"])
def case(request, originals):
    module, call = originals[request.param]
    return Case(copy.deepcopy(module).eval(), call)


def value(case, module=None):
    return case.call(case.module if module is None else module).item()


@pytest.mark.parametrize(
    ("dtype", "convert", "tolerance"),
    [
        (torch.float64, nn.Module.double, 1e-4),
        (torch.bfloat16, nn.Module.bfloat16, 0.1),
        (torch.float16, nn.Module.half, 0.05),
        (torch.float64, lambda module: module.to(torch.float64), 1e-4),
        (torch.float32, lambda module: module.half().float(), 0.05),
    ],
    ids=["double", "bfloat16", "half", "to", "half-float"],
)
def test_conversion_to_another_dtype(case, dtype, convert, tolerance):
    expected = value(case)
    assert convert(case.module) is case.module
    assert {parameter.dtype for parameter in case.module.parameters()} == {dtype}
    assert value(case) == pytest.approx(expected, rel=tolerance)
    assert case.call(case.module).dtype == torch.float32 or case.call is call_model


def test_gradients_reach_the_parameters_and_zero_grad_clears_them(case):
    case.call(case.module).backward()
    with_gradient = {name for name, p in case.module.named_parameters() if p.grad is not None and p.grad.any()}
    unused = {name for name, _ in case.module.named_parameters()} - with_gradient
    assert {name.split(".")[-3] for name in unused} <= {"pooler", "self"}  # no pooling; a key's bias has no effect
    case.module.zero_grad()
    assert all(parameter.grad is None for parameter in case.module.parameters())
