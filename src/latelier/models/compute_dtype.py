"""The numbers that a model computes in: bfloat16 where the hardware multiplies it faster and the result stays close.

Half the bits are half the time in the matrix products that encoding consists of. Weights, residuals and norms stay in
float32 (torch's autocast), so that token vectors keep a cosine above 0.999 with those computed in float32; for
all-MiniLM-L6-v2 the lowest of a million tokens was 0.9998.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.models.cpu.forwards import faster_forwards
from latelier.models.cpu.prepacked import layouts_work

__all__ = ["COMPUTE_DTYPES", "Numbers", "check_compute_dtype", "computing", "prefers_bfloat16", "stays_close"]

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16")

# Fewer tokens take a second or so in float32: not worth embeddings that differ in the fourth digit.
_LONG_WORK = 32_768
_LEAST_COSINE = 0.999

logger = logging.getLogger(__name__)


class Numbers(NamedTuple):
    """Which numbers a vector consists of: those of `compute_dtype`, the first `truncate_dim` of them or all."""

    compute_dtype: str = "auto"
    truncate_dim: int | None = None


def check_compute_dtype(asked: Any) -> None:
    """Refuse what is not one of `COMPUTE_DTYPES`."""
    if not isinstance(asked, str) or asked not in COMPUTE_DTYPES:
        raise InvalidArgumentError(
            f"received compute_dtype={asked!r}; expected one of {', '.join(map(repr, COMPUTE_DTYPES))}."
        )


def prefers_bfloat16(tokens: int, device: torch.device, weights: torch.dtype | None) -> bool:
    """Whether ``"auto"`` should try bfloat16: long work of a float32 model, on hardware that multiplies it."""
    if weights != torch.float32 or tokens < _LONG_WORK:
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_multiplies_bfloat16()


def stays_close(computed: Tensor, exact: Tensor) -> bool:
    """Whether token vectors ``(tokens, dim)`` have a cosine of at least 0.999 with those computed in float32."""
    cosines = torch.cosine_similarity(computed, exact, dim=-1)[exact.any(dim=-1)]  # zeros have no direction
    least = cosines.min().item() if len(cosines) else 1.0
    if least >= _LEAST_COSINE:
        return True
    logger.warning(
        "bfloat16 would turn a token vector of this model to a cosine of %.4f, so it computes in float32; "
        'pass compute_dtype="bfloat16" or "float32" to decide yourself.',
        least,
    )
    return False


@contextmanager
def computing(model: Any, device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Compute without gradients, in autocast to `dtype` unless it is None, with faster forward passes on a CPU."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if dtype is not None:
            stack.enter_context(torch.autocast(device.type, dtype))
        if device.type == "cpu":
            stack.enter_context(faster_forwards(model))
        yield


def _cpu_multiplies_bfloat16() -> bool:
    # Elsewhere bfloat16 is emulated, and slower than float32. torch knows of Intel's and AMD's instructions; ARM's
    # (bf16) are not asked for here. oneDNN may be kept from using them (ONEDNN_MAX_CPU_ISA), and then has no layout.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks) and layouts_work(torch.bfloat16)
