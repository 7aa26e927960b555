"""The dtype that a model computes in: bfloat16 where the hardware multiplies it faster and the result stays close.

Encoding consists of matrix products, which take about half the time in bfloat16. Weights, residuals and norms stay in
float32 (torch's autocast), so that token vectors keep a cosine above 0.999 with those computed in float32; for
all-MiniLM-L6-v2 the lowest of a million tokens was 0.9998.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.models.cpu.backends import cpu_forwards
from latelier.models.cpu.prepacked import can_prepack
from latelier.utils.checks import check_choice

__all__ = [
    "COMPUTE_DTYPES",
    "check_compute_dtype",
    "check_weights",
    "inference",
    "is_long_work",
    "prefers_bfloat16",
    "stays_close",
]

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")

# Fewer tokens take about a second in float32: too short to accept a difference in the fourth digit.
_LONG_WORK = 32_768
_LEAST_COSINE = 0.999

logger = logging.getLogger(__name__)


def check_compute_dtype(compute_dtype: Any) -> None:
    """Raise an error for anything but one of `COMPUTE_DTYPES`."""
    check_choice("compute_dtype", compute_dtype, COMPUTE_DTYPES)


def check_weights(model: Any, compute_dtype: str | None) -> None:
    """Raise an error for a dtype that a model's weights rule out: autocast starts from float32.

    Parameters
    ----------
    model
        The model.
    compute_dtype
        One of `COMPUTE_DTYPES`, or None. ``"auto"`` follows the weights.
    """
    if compute_dtype in (None, "auto", "int8"):
        return
    weights = str(model.dtype).removeprefix("torch.")
    if weights not in ("None", "float32", compute_dtype):
        raise InvalidArgumentError(
            f"received compute_dtype={compute_dtype!r}, but the model's weights are {weights}; give 'auto', which "
            "computes in their dtype, or convert them first: model.float()."
        )


def is_long_work(tokens: int) -> bool:
    """Whether there are so many tokens that ``"auto"`` looks at other dtypes at all."""
    return tokens >= _LONG_WORK


def prefers_bfloat16(tokens: int, device: torch.device, weights: torch.dtype | None) -> bool:
    """Whether ``"auto"`` should try bfloat16: many tokens, a float32 model, and hardware that multiplies bfloat16."""
    if weights != torch.float32 or not is_long_work(tokens):
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_multiplies_bfloat16()


def stays_close(computed: Tensor, exact: Tensor) -> bool:
    """Whether token vectors ``(tokens, dim)`` have a cosine of at least 0.999 with those computed in float32."""
    cosines = torch.cosine_similarity(computed, exact, dim=-1)[exact.any(dim=-1)]  # a zero vector has no cosine
    least = cosines.min().item() if len(cosines) else 1.0
    if least >= _LEAST_COSINE:
        return True
    logger.warning(
        "a token vector of this model in bfloat16 has a cosine of %.4f with the same vector in float32, "
        'so it computes in float32; pass compute_dtype="bfloat16" or "float32" to decide yourself.',
        least,
    )
    return False


@contextmanager
def inference(
    model: nn.Module, device: torch.device, dtype: str | None, *, reads_attention: bool = False
) -> Iterator[None]:
    """Compute without gradients, on a CPU with the model's backend.

    Parameters
    ----------
    model
        The model.
    device
        Where it computes.
    dtype
        The dtype to compute in: one of `COMPUTE_DTYPES` but ``"auto"``; None for that of the weights.
    reads_attention
        Whether the encoder's attention is recorded, which takes torch whatever the backend is.

    Raises
    ------
    InvalidArgumentError
        For ``"int8"`` on another device, or with another backend than ONNX Runtime; for another dtype that the weights
        rule out.
    """
    check_weights(model, dtype)
    if dtype == "int8" and device.type != "cpu":
        raise InvalidArgumentError(
            f"received compute_dtype='int8' on {device}, but int8 is computed on the CPU only; give device='cpu', or "
            "another compute_dtype."
        )
    autocast = getattr(torch, dtype) if dtype in ("bfloat16", "float16") else None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if autocast is not None:
            stack.enter_context(torch.autocast(device.type, autocast))
        if device.type == "cpu":
            stack.enter_context(cpu_forwards(model, "autocast" if autocast else dtype or "float32", reads_attention))
        yield


def _cpu_multiplies_bfloat16() -> bool:
    # Without such instructions bfloat16 is emulated, and slower than float32. torch reports those of Intel and AMD;
    # ARM's are not asked for here. ONEDNN_MAX_CPU_ISA may keep oneDNN from using them: it cannot prepack then.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks) and can_prepack(torch.bfloat16)
