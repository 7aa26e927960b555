"""Weights of linear layers on a CPU, reordered once into the layout that oneDNN multiplies.

`torch.nn.Linear` reorders its weight in every call: negligible for a batch, half of the work for one query. oneDNN,
which torch ships, also multiplies by prepacked weights, with the same numbers. torch uses that in compiled models
only, which need a C++ compiler; here its operators are called directly, where they exist and pass a check.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from latelier.models.cpu.patching import PatchedForward

__all__ = ["PrepackedLinear", "can_prepack", "is_plain_linear"]

_ROWS_HINT = 32  # rows of a typical short input; the prepacked weight serves any number of rows


class PrepackedLinear:
    """Weights of one or several linear layers that read the same input, prepacked once per dtype.

    `linears`: the layers; all with a bias or all without. Their outputs are concatenated.
    """

    __slots__ = ("_by_dtype", "nbytes")

    def __init__(self, *linears: nn.Linear) -> None:
        self._by_dtype: dict[torch.dtype, tuple[Tensor, Tensor | None]] = {}
        self.nbytes = sum(linear.weight.nbytes for linear in linears)

    def multiply(self, input: Tensor, dtype: torch.dtype, linears: tuple[nn.Linear, ...], activation: str) -> Tensor:
        """Apply the layers to ``(..., n, dim)``, in `dtype`, with an activation (``"none"`` or ``"gelu"``)."""
        packed = self._by_dtype.get(dtype)
        if packed is None:
            packed = self._by_dtype[dtype] = _prepack(linears, dtype)
        weight, bias = packed
        algorithm = "none" if activation == "gelu" else ""  # of gelu: exact, rather than approximated by tanh
        input = input if input.dtype == dtype else input.to(dtype)  # a call that changes nothing takes a microsecond
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            input.contiguous(), weight, bias, activation, [], algorithm
        )
        return product


def _prepack(linears: tuple[nn.Linear, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        weight = torch.cat(tuple(linear.weight for linear in linears)).to(dtype)
        biases = tuple(linear.bias for linear in linears if linear.bias is not None)
        bias = torch.cat(biases).to(dtype) if biases else None
        return torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT), bias


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is torch's own linear layer in float32 on the CPU, not quantised, with its own forward."""
    if type(module) is not nn.Linear or not isinstance(module.__dict__.get("forward"), PatchedForward | None):
        return False
    weight = module._parameters.get("weight")  # None where another one is computed: pruned, weight-normed
    return (
        type(weight) is nn.Parameter
        and type(weight.data) is Tensor
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and not weight.is_inference()
    )


@cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Whether this build of torch has oneDNN's operators, and they multiply correctly in this dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    linear = nn.utils.skip_init(nn.Linear, 48, 24)  # draws no random numbers
    rows = torch.linspace(-1, 1, 3 * 48).reshape(1, 3, 48).to(dtype)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for tensor in (linear.weight, linear.bias):
                tensor.copy_(torch.linspace(-1, 1, tensor.numel()).view_as(tensor).sin())
            expected = nn.functional.gelu(nn.functional.linear(rows.float(), linear.weight, linear.bias))
            product = PrepackedLinear(linear).multiply(rows, dtype, (linear,), "gelu").float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    return torch.allclose(product, expected, rtol=tolerance, atol=tolerance)
