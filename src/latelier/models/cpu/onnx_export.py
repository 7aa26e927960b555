"""Exporting a transformer to ONNX, in float32 or with int8 products.

torch's exporter writes what the transformer computes. Its attention is written as one operator of ONNX Runtime, where
transformers lets the attention be replaced: as torch's own attention it is a dozen operators, which take half of the
time of a short query.
"""

from __future__ import annotations

import copy
import inspect
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from latelier.errors import LatelierError, MissingExtraError
from latelier.models.cpu.onnx_session import GRAPH_FILE, INPUTS, WEIGHTS_FILE, OnnxEncoder

__all__ = ["EXPORT_VERSION", "export_float32", "quantize_int8"]

# Part of each export's fingerprint: raise it when the files of the same weights would be others.
EXPORT_VERSION = 2
_ATTENTION = "latelier_onnx"
_OUTPUT = "last_hidden_state"
# Of normalised token vectors, in any of their numbers.
_TOLERANCE = 1e-5
# (texts, tokens) that an export is compared with the transformer on. Tracing uses the second.
_SHAPES = ((1, 9), (3, 17), (2, 70))


def export_float32(encoder: nn.Module, folder: Path) -> None:
    """Write `GRAPH_FILE` and `WEIGHTS_FILE` of a transformer, and compare them with it.

    Parameters
    ----------
    encoder
        The transformer: its forward takes the inputs `INPUTS` or some of them, and returns a ``last_hidden_state``. It
        is copied, in float32, and not changed.
    folder
        Where to write; it must exist.

    Raises
    ------
    MissingExtraError
        If a package that exporting needs is missing.
    LatelierError
        If the transformer cannot be exported, or its export computes something else.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Exporting to ONNX", "onnx") from error
    plain = copy.deepcopy(encoder).to("cpu", torch.float32).eval()
    fused = _with_fused_attention(plain)
    failure: Exception | None = None
    for each in [plain] if fused is None else [fused, plain]:
        try:
            _trace(each, folder / GRAPH_FILE)
            _compare(plain, folder)
            return
        except Exception as error:  # noqa: BLE001 (torch's exporter raises errors of many classes)
            failure = error
    raise LatelierError(
        f"{type(encoder).__name__} cannot be exported to ONNX: {str(failure).strip() or type(failure).__name__:.300} "
        'Encode with backend="torch".'
    ) from failure


def quantize_int8(source: Path, folder: Path) -> None:
    """Write an export whose products with weights are of int8: one scale per column of weights, and one per input.

    Weights have 7 bits: without VNNI instructions, x86 adds two products in 16 bits, which 8 bits overflow.

    Parameters
    ----------
    source
        Folder of the float32 export.
    folder
        Where to write; it must exist.
    """
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingExtraError("Exporting to ONNX", "onnx") from error
    # onnx refuses files with several hard links, as the weights of an exported encoder have.
    copied = folder / "float32"
    copied.mkdir()
    for name in (GRAPH_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, copied / name)
    with _quietly():
        quantize_dynamic(
            str(copied / GRAPH_FILE),
            str(folder / GRAPH_FILE),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},  # products with weights, not those of attention
        )
    shutil.rmtree(copied)
    model = onnx.load(str(folder / GRAPH_FILE))
    (folder / GRAPH_FILE).unlink()
    onnx.save_model(model, str(folder / GRAPH_FILE), save_as_external_data=True, location=WEIGHTS_FILE)


class _LastHiddenState(nn.Module):
    """A transformer with `INPUTS` as its positional arguments and one output."""

    def __init__(self, encoder: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(**dict(zip(self.names, inputs, strict=True)), return_dict=True).last_hidden_state
        return hidden


def _trace(encoder: Any, path: Path) -> None:
    names = _input_names(encoder)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), _quietly():
        program: Any = torch.onnx.export(
            _LastHiddenState(encoder, names).eval(),
            _example(encoder, *_SHAPES[1]),
            dynamo=True,
            dynamic_shapes=(tuple(dynamic for _ in names),),
            input_names=list(names),
            output_names=[_OUTPUT],
            verbose=False,
        )
    for node in program.model.graph:
        node.metadata_props.clear()  # the lines of Python that each operator came from
    program.save(str(path), external_data=True)  # weights go to `WEIGHTS_FILE`


def _compare(encoder: Any, folder: Path) -> None:
    """Raise an error if normalised token vectors differ between an export and the transformer."""
    session = OnnxEncoder(folder)
    for shape in _SHAPES:
        inputs = _example(encoder, *shape)
        named = dict(zip(_input_names(encoder), inputs, strict=True))
        with torch.no_grad():
            expected = encoder(**named).last_hidden_state
        arrays = {name: each.numpy() for name, each in named.items()}
        computed = session.run(*(arrays.get(name) for name in INPUTS))  # type: ignore[arg-type]
        used = named["attention_mask"].bool()
        pair = (torch.from_numpy(computed)[used], expected[used])
        left, right = (nn.functional.normalize(each, dim=-1) for each in pair)
        difference = (left - right).abs().max().item()
        if not difference <= _TOLERANCE:
            raise LatelierError(f"the exported vectors differ by {difference:.1e}.")


def _example(encoder: Any, n: int, length: int) -> tuple[Tensor, ...]:
    """Return inputs of `n` texts of random tokens, all but the first of them padded."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, encoder.config.vocab_size, (n, length), generator=generator)
    mask = (torch.arange(length) < length - torch.arange(n)[:, None] * 3).long()
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return tuple(known[name] for name in _input_names(encoder))


def _input_names(encoder: nn.Module) -> tuple[str, ...]:
    parameters = inspect.signature(encoder.forward).parameters
    return tuple(name for name in INPUTS if name in parameters)


def _with_fused_attention(encoder: nn.Module) -> nn.Module | None:
    """Return a copy whose attention is traced as one operator; None if transformers cannot replace its attention."""
    if not isinstance(encoder, PreTrainedModel) or not encoder._can_set_attn_implementation():
        return None
    AttentionInterface.register(_ATTENTION, _fused_attention)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    fused = copy.deepcopy(encoder)
    fused.set_attn_implementation(_ATTENTION)
    return fused


def _fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention of `transformers.AttentionInterface`, for tracing only.

    Parameters
    ----------
    module
        The attention module.
    query, key, value
        ``(n, heads, length, dim of a head)``; keys and values may have fewer heads.
    attention_mask
        ``(n, 1, length, length)``, added to the scores.
    scaling
        Factor of the scores; default ``dim ** -0.5``.
    softcap, **unused
        A limit of the scores is not supported; other options change nothing without gradients.
    """
    if softcap is not None:
        raise LatelierError("its attention has a softcap.")
    n, heads, length, dim = query.shape
    if key.shape[1] != heads:  # repeating once would leave operators in the graph that move all keys and values
        key, value = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (key, value))
    rows = [each.transpose(1, 2).reshape(n, length, heads * dim) for each in (query, key, value)]
    attended = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (*rows, None, None, attention_mask),
        attrs={"num_heads": heads, "scale": float(dim**-0.5 if scaling is None else scaling)},
        dtype=query.dtype,
        shape=rows[0].shape,
        version=1,
    )
    return attended.reshape(n, length, heads, dim), None


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporters' warnings, which are about models in general."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
