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
from latelier.models.cpu.forwards import patched_forwards
from latelier.models.cpu.prepacked import can_prepack

__all__ = ["COMPUTE_DTYPES", "check_compute_dtype", "inference", "prefers_bfloat16", "stays_close"]

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16")

# Fewer tokens take about a second in float32: too short to accept a difference in the fourth digit.
_LONG_WORK = 32_768
_LEAST_COSINE = 0.999

logger = logging.getLogger(__name__)


def check_compute_dtype(compute_dtype: Any) -> None:
    """Raise an error for anything but one of `COMPUTE_DTYPES`."""
    if not isinstance(compute_dtype, str) or compute_dtype not in COMPUTE_DTYPES:
        raise InvalidArgumentError(
            f"received compute_dtype={compute_dtype!r}; expected one of {', '.join(map(repr, COMPUTE_DTYPES))}."
        )


def prefers_bfloat16(tokens: int, device: torch.device, weights: torch.dtype | None) -> bool:
    """Whether ``"auto"`` should try bfloat16: many tokens, a float32 model, and hardware that multiplies bfloat16."""
    if weights != torch.float32 or tokens < _LONG_WORK:
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
def inference(model: nn.Module, device: torch.device, autocast: torch.dtype | None) -> Iterator[None]:
    """Compute without gradients, in autocast to a dtype unless it is None, with patched forwards on a CPU."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if autocast is not None:
            stack.enter_context(torch.autocast(device.type, autocast))
        if device.type == "cpu":
            stack.enter_context(patched_forwards(model))
        yield


def _cpu_multiplies_bfloat16() -> bool:
    # Without such instructions bfloat16 is emulated, and slower than float32. torch reports those of Intel and AMD;
    # ARM's are not asked for here. ONEDNN_MAX_CPU_ISA may keep oneDNN from using them: it cannot prepack then.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks) and can_prepack(torch.bfloat16)
