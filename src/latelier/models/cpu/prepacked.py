"""Weights of linear layers on a CPU, laid out once as the processor reads them.

torch rearranges the weights of a linear layer each time it multiplies. For a batch that is nothing; for one query it
is half of the work. oneDNN, which torch brings along, multiplies by weights that were rearranged beforehand, with the
same numbers. torch reaches for it only in compiled models, which need a C++ compiler; here its operators are called
directly, where they exist and have passed a check.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

__all__ = ["Layout", "is_plain_linear", "layouts_work", "walk"]

_ROWS_HINT = 32  # rows of a typical short input; the layout serves any number
_PROBES = 16


class Layout:
    """The weights of one or several linear layers that read the same input, laid out per dtype.

    Parameters
    ----------
    linears
        The layers; all with a bias or all without. Their outputs are put side by side.
    """

    __slots__ = ("_by_dtype", "_probes", "_sampled", "_tensors", "nbytes")

    def __init__(self, *linears: nn.Linear) -> None:
        self._by_dtype: dict[torch.dtype, tuple[Tensor, Tensor | None]] = {}
        # In-place changes through `.data` leave no trace in the version counter; they do in the numbers.
        numbers = [linear.weight.detach().reshape(-1).numpy() for linear in linears]
        self._probes = [each[:: max(1, len(each) // _PROBES)] for each in numbers]
        self._tensors = _identify(linears)
        self._sampled = self._sample()
        self.nbytes = sum(each.nbytes for each in numbers)

    def describes(self, *linears: nn.Linear) -> bool:
        """Whether the weights of the layers are still those that were laid out."""
        # In this order: where a weight has moved (`share_memory` does that), the memory of the probes may be gone.
        return self._tensors == _identify(linears) and self._sampled == self._sample()

    def multiply(self, input: Tensor, dtype: torch.dtype, linears: tuple[nn.Linear, ...], activation: str) -> Tensor:
        """Apply the layers to ``(..., n, dim)``, in `dtype`, with an activation (``"none"`` or ``"gelu"``)."""
        found = self._by_dtype.get(dtype)
        if found is None:
            found = self._by_dtype[dtype] = _lay_out(linears, dtype)
        weight, bias = found
        algorithm = "none" if activation == "gelu" else ""  # of gelu: exact, not by tanh
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            input.to(dtype).contiguous(), weight, bias, activation, [], algorithm
        )
        return product

    def _sample(self) -> list[bytes]:
        return [probe.tobytes() for probe in self._probes]


def _identify(linears: tuple[nn.Linear, ...]) -> list[tuple[int, int] | None]:
    # Not by attribute: torch searches three dictionaries in Python for it, once per layer of a short query.
    tensors = (tensor for linear in linears for tensor in linear._parameters.values())
    return [None if tensor is None else (tensor.data_ptr(), tensor._version) for tensor in tensors]


def _lay_out(linears: tuple[nn.Linear, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        weight = torch.cat(tuple(linear.weight for linear in linears)).to(dtype)
        biases = tuple(linear.bias for linear in linears if linear.bias is not None)
        bias = torch.cat(biases).to(dtype) if biases else None
        return torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT), bias


def walk(module: nn.Module) -> list[nn.Module]:
    """Return a module and all inside it; ``module.modules()`` costs a short query ten times as much."""
    found = [module]
    for each in found:  # grows as it goes
        found += [child for child in each._modules.values() if child is not None]
    return found


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer as torch makes it, in float32, on the CPU, and not quantised or patched."""
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return False
    weight = module._parameters["weight"]
    return (
        type(weight) is nn.Parameter
        and type(weight.data) is Tensor
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and not weight.is_inference()
    )


@cache
def layouts_work(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, and they multiply correctly in this dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    linear = nn.utils.skip_init(nn.Linear, 48, 24)  # leaves the random number generator alone
    rows = torch.linspace(-1, 1, 3 * 48).reshape(1, 3, 48).to(dtype)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for tensor in (linear.weight, linear.bias):
                tensor.copy_(torch.linspace(-1, 1, tensor.numel()).view_as(tensor).sin())
            expected = nn.functional.gelu(nn.functional.linear(rows.float(), linear.weight, linear.bias))
            product = Layout(linear).multiply(rows, dtype, (linear,), "gelu").float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    return torch.allclose(product, expected, rtol=tolerance, atol=tolerance)
