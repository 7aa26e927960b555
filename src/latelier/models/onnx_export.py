"""Exports a model to ONNX, and chooses what computes on a CPU.

torch's exporter writes what the transformer computes. Its attention is written as one operator of ONNX Runtime, where
transformers lets the attention be replaced: as torch's own attention it is a dozen operators, which take half of the
time of a short query.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.modeling_outputs import BaseModelOutput

from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError
from latelier.models.construction import longest_query
from latelier.models.exported_encoder import (
    ACTIVATIONS,
    DESCRIPTION_FILE,
    GRAPH_FILE,
    HEADS_FILE,
    INPUTS,
    RESIDUAL,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    OnnxEncoder,
    is_installed,
    is_own,
    is_whole,
    link_or_copy,
    quantize_int8,
    quietly,
    write_folder,
)
from latelier.models.foreign_layouts import token_layer
from latelier.utils import encoder_limit
from latelier.utils.checks import check_choice
from latelier.utils.files import as_path, cache_folder

# Part of each export's fingerprint: raise it when the files of the same weights would be others.
EXPORT_VERSION = 3
_ATTENTION = "latelier_onnx"
_OUTPUT = "last_hidden_state"
# Of normalised token vectors, in any of their numbers.
_TOLERANCE = 1e-5
# (texts, tokens) that an export is compared with the transformer on. Tracing uses the second.
_SHAPES = ((1, 9), (3, 17), (2, 70))


def export_float32(encoder: nn.Module, folder: Path) -> None:
    """Write `GRAPH_FILE` and `WEIGHTS_FILE` of a transformer, and compare them with it.

    `encoder`: the transformer: its forward takes the inputs `INPUTS` or some of them, and returns a
    ``last_hidden_state``. It is copied, in float32, and not changed. `folder`: where to write; it must exist. Raises
    `LatelierError` if the transformer cannot be exported, or its export computes something else.
    """
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
    reason = f"{str(failure).strip() or type(failure).__name__:.300}"
    raise LatelierError(f'{type(encoder).__name__} is not exported to ONNX, use backend="torch": {reason}') from failure


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
    with torch.no_grad(), quietly():
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
    length = min(length, encoder_limit(encoder.config) or length)
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

    `query`, `key`, `value`: ``(n, heads, length, dim of a head)``; keys and values may have fewer heads.
    `attention_mask`: ``(n, 1, length, length)``, added to the scores. `scaling`: factor of the scores; default
    ``dim ** -0.5``. `softcap`, `**unused`: a limit of the scores is not supported; other options change nothing without
    gradients.
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
    if unused.get("sliding_window") is not None and attention_mask is not None:
        # Mask tokens of an expanded query may see no token that is attended: torch gives them zeros.
        attended = attended * (attention_mask == 0).any(dim=-1).reshape(n, length, 1)
    return attended.reshape(n, length, heads, dim), None


logger = logging.getLogger(__name__)


def encoder_fingerprint(encoder: Any) -> str:
    """Return a hash of a transformer's weights and configuration, and of what exports them."""
    names = {"_name_or_path": None, "architectures": None, "transformers_version": transformers.__version__}
    config = {**encoder.config.to_dict(), **names}
    kind = (type(encoder).__module__, type(encoder).__qualname__)
    digest = hashlib.sha256(repr((EXPORT_VERSION, torch.__version__, kind)).encode())
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def has_adapters(encoder: nn.Module) -> bool:
    """Whether a transformer has adapters of peft: they can be turned off and scaled without a change of weights."""
    return any(type(module).__module__.startswith("peft.") for module in encoder.modules())


def stored_export(encoder: nn.Module, compute_dtype: str, fingerprint: str) -> Path:
    """Return the folder of a transformer's export, made if there is none, it is damaged, or others can write it.

    `compute_dtype`: ``"float32"`` or ``"int8"``; `fingerprint`: its `encoder_fingerprint`; raises `StorageError` if the
    cache folder cannot be written.
    """
    folder = cache_folder() / "onnx" / f"{fingerprint}-{compute_dtype}"
    if is_own(folder) and is_whole(folder):
        return folder
    if not is_installed():
        raise MissingExtraError("Exporting to ONNX", "onnx")
    if compute_dtype == "int8":
        source = stored_export(encoder, "float32", fingerprint)
        write_folder(folder, lambda target: quantize_int8(source, target))
    else:
        logger.info("exporting %s to ONNX, which is done once", type(encoder).__name__)
        write_folder(folder, lambda target: export_float32(encoder, target))
    return folder


EXPORT_DTYPES = ("float32", "int8")
_BACKENDS = ("torch", "onnx", "auto")


class Unfit(Exception):
    """Why an engine does not compute something, as a part of a sentence; the next engine is tried."""


def check_backend(backend: Any, device: Any) -> Any:
    """Check the backend and the device to load a model with; return the device, ``"cpu"`` by default for ONNX."""
    check_choice("backend", backend, _BACKENDS)
    if backend != "onnx":
        return device
    if not is_installed():
        raise MissingExtraError('backend="onnx"', "onnx")
    if device is not None and str(device).split(":")[0] != "cpu":
        raise InvalidArgumentError(f"received backend='onnx' with device={str(device)!r}; it computes on the CPU.")
    return "cpu"


def check_onnx(model: Any, compute_dtype: str) -> None:
    """Raise `Unfit` unless ONNX Runtime is to compute a model's transformer in ``"float32"``, ``"int8"`` or another.

    With ``cpu_backend="auto"`` it is where ONNX Runtime is installed, for float32.
    """
    backend = getattr(model, "cpu_backend", "torch")
    if backend == "torch":
        raise Unfit('the model was loaded with backend="torch"; load it with backend="onnx"')
    if not isinstance(model[0], Transformer):
        if backend == "onnx":
            raise InvalidArgumentError(f"a model that starts with a {type(model[0]).__name__} needs backend='torch'.")
        raise Unfit(f"the model starts with a {type(model[0]).__name__}, which has no export")
    if compute_dtype not in EXPORT_DTYPES:
        raise Unfit(f"it computes no {compute_dtype}")
    if not is_installed():
        raise Unfit('ONNX Runtime is not installed; pip install "latelier[onnx]"')
    if backend == "auto" and compute_dtype == "float32" and model.dtype != torch.float32:
        raise Unfit("the weights are not float32")
    if has_adapters(model[0].model):  # they can be turned off and scaled without a change of weights
        raise Unfit("it has adapters inside; merge them, save the model and load it again")


class OnnxTransformer(nn.Module):
    """A transformer that ONNX Runtime runs; for inputs that an export does not know, the transformer itself."""

    def __init__(self, encoder: Any, session: OnnxEncoder) -> None:
        super().__init__()
        self.config = encoder.config
        self._session = session
        self._encoder = [encoder]  # in a list, so that it is not a part of this module

    def forward(self, *args: Any, **options: Any) -> Any:
        """Return the last hidden state, as transformers does."""
        ids = options.get("input_ids")
        mask = options.get("attention_mask")
        known = isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.shape == mask.shape and ids.numel() > 0
        if args or not known or any(value for name, value in options.items() if name not in (*INPUTS, "return_dict")):
            return self._encoder[0](*args, **options)
        given = (options.get(name) for name in INPUTS)
        inputs: list[Any] = [None if each is None else each.long().numpy() for each in given]
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self._session.run(*inputs)))


_FILES = {DESCRIPTION_FILE, GRAPH_FILE, WEIGHTS_FILE, TOKENIZER_FILE, HEADS_FILE}
_NO_LIMIT = 10**9  # transformers' tokenizers without a limit have 10**30


def export(model: Any, folder: str | os.PathLike[str], *, compute_dtype: str = "float32") -> None:
    """Write a model to a folder (new, empty or an export) from which `ExportedEncoder` encodes without torch.

    Its lengths, prompts and `truncate_dim` are part of the export. ``"float32"`` gives the same vectors to 1e-5;
    ``"int8"`` computes products with weights in int8, in two thirds of the space.
    """
    check_choice("compute_dtype", compute_dtype, EXPORT_DTYPES)
    target = as_path(folder, "the folder")
    if target.exists() and not _is_replaceable(target):
        raise InvalidArgumentError(f"{str(target)!r} exists and is not an export; give a new folder.")
    if obstacle := next(_obstacles(model), ""):
        raise InvalidArgumentError(f"this model cannot be exported: {obstacle}.")
    heads = fold([module for module in model if type(module) is Dense])
    description = _describe(model)
    encoder = model[0].model
    fingerprint = encoder_fingerprint(encoder)
    source = stored_export(encoder, compute_dtype, fingerprint)

    def write(unfinished: Path) -> dict[str, Any]:
        for name in (GRAPH_FILE, WEIGHTS_FILE):
            link_or_copy(source / name, unfinished / name)
        model.tokenizer.backend_tokenizer.save(str(unfinished / TOKENIZER_FILE))
        weights: dict[str, Tensor] = {}
        kinds = []
        for i, head in enumerate(heads):
            kinds.append(type(head.activation_function).__name__ + RESIDUAL * head.use_residual)
            tensors: dict[str, Tensor] = dict(head.linear.named_parameters())
            if head.use_residual:
                tensors["residual"] = _residual(head)
            weights |= {f"{i}.{name}": tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
        if weights:
            (unfinished / HEADS_FILE).write_bytes(save(weights))
        return {"fingerprint": fingerprint, "compute_dtype": compute_dtype, "heads": kinds, **description}

    write_folder(target, write)


def _is_replaceable(path: Path) -> bool:
    """Whether this is an empty folder, or one with the files of an export and no others, which would be lost."""
    if path.is_dir():
        names = {each.name for each in path.iterdir()}
    else:
        names = {""}
    return not names or {DESCRIPTION_FILE, GRAPH_FILE} <= names <= _FILES


def fold(heads: Iterable[Dense]) -> list[Dense]:
    """Return linear layers that compute the same: without bias and activation, (W2 + R2)(W1 + R1) is one matrix."""
    folded: list[Dense] = []
    for head in heads:
        if not _is_matrix(head):
            folded.append(head)
            continue
        weight = head.linear.weight.detach().double()
        if head.use_residual:
            weight = weight + _residual(head)
        if folded and _is_matrix(folded[-1]):
            weight = weight @ folded.pop().linear.weight.detach().double()
        folded.append(token_layer(weight.to(head.linear.weight.dtype)))
    return folded


def _is_matrix(head: Dense) -> bool:
    is_linear = type(head.activation_function) is nn.Identity and head.linear.bias is None
    return is_linear and head.module_input_name == head.module_output_name == "token_embeddings"


def _residual(head: Dense) -> Tensor:
    """Return what the input is multiplied by before it is added to a layer's output, ``(out, in)``."""
    weight = head.linear.weight
    if head.in_features != head.out_features:
        return head.residual.weight.detach()
    return torch.eye(len(weight)).to(weight)


def _obstacles(model: Any) -> Iterator[str]:
    """Yield why a model cannot be exported."""
    first, *others = model
    if type(first) is not Transformer:
        yield f"its first module is a {type(first).__name__}, not a Transformer"
        return
    if has_adapters(first.model):
        yield "its transformer has adapters of peft; merge them into its weights first"
    rest = [type(module) for module in others if type(module) not in (Dense, MultiVectorMask)]
    if rest not in ([], [Normalize]) or (rest and type(others[-1]) is not Normalize):
        yield f"after the transformer it has {', '.join(type(module).__name__ for module in others)}"
    for module in others:
        activation = type(getattr(module, "activation_function", nn.Identity())).__name__
        if activation not in ACTIVATIONS:
            yield f"a linear layer has the activation {activation}; expected one of {', '.join(ACTIVATIONS)}"
    if getattr(model.tokenizer, "backend_tokenizer", None) is None:
        yield "its tokenizer is not one of the library tokenizers"
    elif model.tokenizer.padding_side != "right" or first.processing_kwargs or set(first.modality_config) != {"text"}:
        yield "its inputs are not plain texts, padded on the right"
    if first.query_expansion is not None and not any(isinstance(module, MultiVectorMask) for module in others):
        yield "it expands queries, but has no MultiVectorMask that scores the expansion"


def _describe(model: Any) -> dict[str, Any]:
    tokenizer = model.tokenizer
    return {
        "dim": model.truncate_dim or model.embedding_size,
        "query": _describe_task(model, "query"),
        "document": _describe_task(model, "document"),
        "longest_query": longest_query(model),
        "pad_id": tokenizer.pad_token_id or 0,
        "truncation_side": tokenizer.truncation_side,
        "normalizes": isinstance(list(model)[-1], Normalize),
        "similarity_fn_name": model.similarity_fn_name,
    }


def _describe_task(model: Any, task: str) -> dict[str, Any]:
    encoder = model[0]
    tokenizer = model.tokenizer
    masks = [module for module in model if isinstance(module, MultiVectorMask)]
    skipped: list[int] = []
    kept: list[int] | None = None
    for mask in masks:
        if task in mask.skiplist_tasks and mask._skiplist_ids is not None:
            skipped += mask._skiplist_ids.tolist()
        if task != "query" and mask.keep_only_token_ids:
            kept = list(mask.keep_only_token_ids)
    max_length = encoder.document_length
    expansion = None
    if task == "query":
        max_length = encoder.query_length
        expansion = encoder.query_expansion
    described = None
    if expansion is not None:
        if expansion["strategy"] == "fixed" or max_length is None:
            max_length = expansion["length"]
        token = expansion["token"]
        if token is None:
            token_id = tokenizer.mask_token_id
        else:
            token_id = tokenizer.convert_tokens_to_ids(token)
        if token_id is None:
            token_id = tokenizer.eos_token_id
        described = {"length": expansion["length"], "attend": expansion["attend"], "token_id": token_id}
    if max_length is None and tokenizer.model_max_length < _NO_LIMIT:
        max_length = tokenizer.model_max_length
    prompt = model._resolve_prompt(None, task if task in model.prompts else None)
    return {
        "prompt": prompt or "",
        "max_length": max_length,
        "expansion": described,
        "skipped": skipped,
        "kept": kept,
        "inserted": model.inserted_markers.get(task),
    }
