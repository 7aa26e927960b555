"""Engines of encoding: what can compute the vectors of a window's texts, and in what numbers; the first that fits does.

A new engine is a subclass of `Engine`, and a place in `ENGINES`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.models.frozen import can_lay_out
from latelier.models.gpu import check_unpadded
from latelier.models.onnx_export import Unfit, check_onnx
from latelier.utils.batching import move_features

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
# Fewer tokens take about a second in float32: too short to accept a difference in the fourth digit.
LONG_WORK = 32_768
_LEAST_COSINE = 0.999  # of a token vector in bfloat16 with the one in float32

logger = logging.getLogger(__name__)


class Work(NamedTuple):
    """What is to be computed.

    `dtype`: what to compute in, one of `COMPUTE_DTYPES` but ``"auto"``; None: the dtype of the weights.
    `reads_attention`: whether the encoder's attention is recorded, which takes the modules of the model.
    """

    model: Any
    task: str
    device: torch.device
    dtype: str | None
    reads_attention: bool


class Engine(ABC):
    """A way to compute token vectors; `is_packed`: by `encode_unpadded` of `latelier.models.gpu`."""

    name: str
    is_packed = False

    @abstractmethod
    def prepare(self, work: Work, features: Mapping[str, Any]) -> Any:
        """Return what computes padded batches, the model or a copy with which several threads may compute.

        `features`: of the window that is encoded next. Raises `Unfit`, whose text says why the engine does not fit.
        """


class OnnxEngine(Engine):
    """ONNX Runtime computes the transformer, on a CPU, in float32 or int8."""

    name = "onnx"

    def prepare(self, work: Work, features: Mapping[str, Any]) -> Any:
        """Return a copy of the model whose transformer is a session of ONNX Runtime."""
        if work.device.type != "cpu":
            raise Unfit("it computes on a CPU; give device='cpu'")
        if work.reads_attention:
            raise Unfit("it returns no attention; pool with pool_method='ward'")
        dtype = work.dtype or "float32"
        check_onnx(work.model, dtype)
        return work.model._frozen.with_onnx(work.model, dtype)


class UnpaddedEngine(Engine):
    """torch computes texts in one row, on a GPU, in half precision."""

    name = "unpadded"
    is_packed = True

    def prepare(self, work: Work, features: Mapping[str, Any]) -> Any:
        """Return the model."""
        if work.reads_attention:
            raise Unfit("it returns no attention")
        encode_padded = partial(run_padded, work.model, task=work.task, device=work.device)
        with inference(work.device, work.dtype):
            check_unpadded(work.model, features, work.task, work.device, work.dtype, encode_padded)
        return work.model


class TorchEngine(Engine):
    """torch computes padded batches: on a CPU with a frozen copy, where a model has one."""

    name = "torch"

    def prepare(self, work: Work, features: Mapping[str, Any]) -> Any:
        """Return a frozen copy of the model, or the model itself."""
        if work.dtype == "int8":
            raise Unfit("it computes no int8")
        if work.device.type != "cpu" or work.reads_attention:
            return work.model
        return work.model._frozen.with_torch(work.model, work.dtype or "float32")


ENGINES: tuple[Engine, ...] = (OnnxEngine(), UnpaddedEngine(), TorchEngine())
"""What is tried, in order."""


def choose_engine(work: Work, features: Mapping[str, Any]) -> tuple[Engine, Any]:
    """Return the first engine that fits, and what computes with it."""
    reasons = []
    for engine in ENGINES:
        try:
            return engine, engine.prepare(work, features)
        except Unfit as unfit:
            reasons.append(f"{engine.name}: {unfit}")
    raise InvalidArgumentError(f"received compute_dtype={work.dtype!r}, but {'; '.join(reasons)}.")


@contextmanager
def inference(device: torch.device, dtype: str | None, *, frozen: bool = False) -> Iterator[None]:
    """Compute without gradients, in half precision by autocast; with a frozen copy, without counting changes."""
    half = dtype in ("bfloat16", "float16")
    autocast = torch.autocast(device.type, getattr(torch, str(dtype))) if half else nullcontext()
    with torch.inference_mode() if frozen else torch.no_grad(), autocast:
        yield


def run_padded(forward: Any, features: dict[str, Any], *, task: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Run a padded batch: return the vectors of its scored tokens, ``(tokens, dim)``, and which those are."""
    if "_original_forward" in vars(forward):  # a trainer of mixed precision leaves accelerate's autocast around it
        forward = type(forward).forward.__get__(forward)
    out = forward(move_features(features, device), task=task)
    vectors = out["token_embeddings"]
    mask = out["attention_mask"].bool()
    # Vectors of texts without padding, such as one query, are not copied.
    return (vectors.flatten(0, 1) if mask.all() else vectors[mask]), mask


def prefers_bfloat16(tokens: int, device: torch.device, weights: torch.dtype | None) -> bool:
    """Whether ``"auto"`` should try bfloat16: many tokens, a float32 model, and hardware that multiplies bfloat16."""
    if weights != torch.float32 or tokens < LONG_WORK:
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # Without such instructions bfloat16 is emulated, and slower than float32. torch reports those of Intel and AMD;
    # ARM's are not asked for here. ONEDNN_MAX_CPU_ISA may keep oneDNN from using them: it lays out no weights then.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    has_instructions = device.type == "cpu" and any(getattr(torch.cpu, name, bool)() for name in checks)
    return has_instructions and can_lay_out(torch.bfloat16)


def stays_close(computed: Tensor, exact: Tensor) -> bool:
    """Whether token vectors ``(tokens, dim)`` have a cosine of at least 0.999 with those computed in float32."""
    cosines = torch.cosine_similarity(computed, exact, dim=-1)[exact.any(dim=-1)]  # a zero vector has no cosine
    least = cosines.min().item() if len(cosines) else 1.0
    if least >= _LEAST_COSINE:
        return True
    message = "computing in float32, since a token vector has a cosine of %.4f in bfloat16; compute_dtype= decides."
    logger.warning(message, least)
    return False


def check_weights(model: Any, compute_dtype: str | None) -> None:
    """Raise an error for a dtype that a model's weights rule out: autocast starts from float32."""
    if compute_dtype in (None, "auto", "int8"):
        return
    weights = str(model.dtype).removeprefix("torch.")
    if weights not in ("None", "float32", compute_dtype):
        raise InvalidArgumentError(
            f"received compute_dtype={compute_dtype!r}, but the model's weights are {weights}; give 'auto', which "
            "computes in their dtype, or convert them first: model.float()."
        )
