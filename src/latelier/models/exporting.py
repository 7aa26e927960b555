"""Exporting a late-interaction model to a folder that `ExportedEncoder` reads without torch."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.errors import InvalidArgumentError, LatelierError, StorageError
from latelier.models.cpu.onnx_files import DESCRIPTION_FILE, write_folder
from latelier.models.cpu.onnx_session import GRAPH_FILE, WEIGHTS_FILE
from latelier.models.cpu.onnx_store import encoder_fingerprint, has_adapters, stored_export
from latelier.models.exported import ACTIVATIONS, HEADS_FILE, TOKENIZER_FILE
from latelier.utils.checks import check_choice
from latelier.utils.files import as_path, cache_folder

__all__ = ["EXPORT_DTYPES", "export"]

EXPORT_DTYPES = ("float32", "int8")
_FILES = {DESCRIPTION_FILE, GRAPH_FILE, WEIGHTS_FILE, TOKENIZER_FILE, HEADS_FILE}
_NO_LIMIT = 10**9  # transformers' tokenizers without a limit have 10**30


def export(model: Any, folder: str | os.PathLike[str], *, compute_dtype: str = "float32") -> None:
    """Write a model to a folder from which `ExportedEncoder` encodes without torch.

    Parameters
    ----------
    model
        A `ColBERT`. Its lengths, prompts and `truncate_dim` are part of the export.
    folder
        The folder: a new or empty one, or an export, which is replaced.
    compute_dtype
        ``"float32"``: the same vectors to 1e-5; ``"int8"``: products with weights in int8, in two thirds of the space.

    Raises
    ------
    MissingExtraError
        If a package that exporting needs is missing.
    InvalidArgumentError
        If the model has a part that cannot be exported, or the folder holds something else.
    """
    check_choice("compute_dtype", compute_dtype, EXPORT_DTYPES)
    target = as_path(folder, "the folder")
    if target.exists() and not _is_replaceable(target):
        raise InvalidArgumentError(f"{str(target)!r} exists and is not an export; give a new folder.")
    heads, description = _heads(model), _describe(model)
    encoder = model[0].model
    fingerprint = encoder_fingerprint(encoder)
    source = stored_export(encoder, compute_dtype, fingerprint)

    def write(unfinished: Path) -> dict[str, Any]:
        for name in (GRAPH_FILE, WEIGHTS_FILE):
            _link_or_copy(source / name, unfinished / name)
        model.tokenizer.backend_tokenizer.save(str(unfinished / TOKENIZER_FILE))
        weights = {}
        for i, head in enumerate(heads):
            for name, parameter in head.linear.named_parameters():
                weights[f"{i}.{name}"] = parameter.detach().float().cpu().contiguous()
        if weights:
            (unfinished / HEADS_FILE).write_bytes(save(weights))
        return {"fingerprint": fingerprint, "compute_dtype": compute_dtype, **description}

    try:
        write_folder(target, write)
    except OSError as error:
        if isinstance(error, LatelierError):
            raise
        raise StorageError(f"cannot write the export {target}: {error}.") from error


def _link_or_copy(source: Path, target: Path) -> None:
    """Put a file of the cache into an export: inside the cache as a second name, which takes no space."""
    # Windows does not sync a file that another process has mapped.
    if os.name != "nt" and cache_folder().resolve() in target.resolve().parents:
        with suppress(OSError):  # some file systems have no hard links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _is_replaceable(path: Path) -> bool:
    """Whether this is an empty folder, or one with the files of an export and no others, which would be lost."""
    names = {each.name for each in path.iterdir()} if path.is_dir() else {""}
    return not names or {DESCRIPTION_FILE, GRAPH_FILE} <= names <= _FILES


def _heads(model: Any) -> list[Dense]:
    """Return the linear layers of a model, after checking that all its modules can be exported, in their order."""
    modules = list(model)
    if not modules or type(modules[0]) is not Transformer:
        raise _not_exportable("its first module is not a Transformer.")
    if has_adapters(modules[0].model):
        raise _not_exportable("its transformer has adapters of peft; merge them into its weights first.")
    heads = [module for module in modules[1:] if type(module) is Dense]
    rest = [module for module in modules[1:] if type(module) not in (Dense, MultiVectorMask)]
    if [type(module) for module in rest] not in ([], [Normalize]) or (rest and modules[-1] is not rest[0]):
        names = ", ".join(type(module).__name__ for module in modules[1:])
        raise _not_exportable(f"after the transformer it has {names}; expected Dense, MultiVectorMask and Normalize.")
    for module in [*heads, *rest]:
        if (module.module_input_name, module.module_output_name) != ("token_embeddings", "token_embeddings"):
            raise _not_exportable(f"a {type(module).__name__} of it has other inputs than token_embeddings.")
    for head in heads:
        activation = type(head.activation_function).__name__
        if activation not in ACTIVATIONS or head.use_residual:
            kind = f"the activation {activation}" if activation not in ACTIVATIONS else "a residual connection"
            raise _not_exportable(f"a linear layer has {kind}; expected one of {', '.join(ACTIVATIONS)} alone.")
    return heads


def _describe(model: Any) -> dict[str, Any]:
    encoder, tokenizer = model[0], model.tokenizer
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise _not_exportable("its tokenizer is not one of the library tokenizers.")
    if tokenizer.padding_side != "right" or encoder.processing_kwargs or set(encoder.modality_config) != {"text"}:
        raise _not_exportable("its inputs are not plain texts, padded on the right.")
    return {
        "dim": model.truncate_dim or model.embedding_size,
        "query": _describe_task(model, "query"),
        "document": _describe_task(model, "document"),
        "pad_id": tokenizer.pad_token_id or 0,
        "truncation_side": tokenizer.truncation_side,
        "heads": [type(head.activation_function).__name__ for head in _heads(model)],
        "normalizes": isinstance(list(model)[-1], Normalize),
    }


def _describe_task(model: Any, task: str) -> dict[str, Any]:
    encoder, tokenizer = model[0], model.tokenizer
    masks = [module for module in model if isinstance(module, MultiVectorMask)]
    skipped: list[int] = []
    kept: list[int] | None = None
    for mask in masks:
        if task in mask.skiplist_tasks and mask._skiplist_ids is not None:
            skipped += mask._skiplist_ids.tolist()
        if task != "query" and mask.keep_only_token_ids:
            kept = list(mask.keep_only_token_ids)
    max_length = encoder.query_length if task == "query" else encoder.document_length
    expansion = encoder.query_expansion if task == "query" else None
    described = None
    if expansion is not None:
        if not masks:
            raise _not_exportable("it expands queries, but has no MultiVectorMask that scores the expansion.")
        max_length = expansion["length"] if expansion["strategy"] == "fixed" or max_length is None else max_length
        token = expansion["token"]
        token_id = tokenizer.mask_token_id if token is None else tokenizer.convert_tokens_to_ids(token)
        token_id = tokenizer.eos_token_id if token_id is None else token_id
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
    }


def _not_exportable(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"this model cannot be exported: {reason}")
