"""Engines of encoding: what can compute the vectors of a window's texts; the first of the list that fits does.

A new engine is a subclass of `Engine`, and a place in `ENGINES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.models.gpu import check_unpadded
from latelier.models.onnx_export import Unfit, check_onnx
from latelier.utils.batching import move_features


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
