"""Exports of transformers, made once and kept in the user's cache folder under a fingerprint of their weights."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from latelier.errors import LatelierError, StorageError
from latelier.models.cpu.module_tree import submodules
from latelier.models.cpu.onnx_export import EXPORT_VERSION, export_float32, quantize_int8
from latelier.models.cpu.onnx_files import is_own, is_whole, write_folder
from latelier.utils.files import cache_folder

__all__ = ["encoder_fingerprint", "has_adapters", "stored_export"]

logger = logging.getLogger(__name__)


def encoder_fingerprint(encoder: Any) -> str:
    """Return a hash of a transformer's weights and configuration, and of what exports them.

    Parameters
    ----------
    encoder
        The transformer.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    config = {**encoder.config.to_dict(), "_name_or_path": None, "transformers_version": transformers.__version__}
    kind = (type(encoder).__module__, type(encoder).__qualname__)
    digest = hashlib.sha256(repr((EXPORT_VERSION, torch.__version__, kind)).encode())
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def has_adapters(encoder: nn.Module) -> bool:
    """Whether a transformer has adapters of peft: they can be turned off and scaled without a change of weights."""
    return any(type(module).__module__.startswith("peft.") for module in submodules(encoder))


def stored_export(encoder: nn.Module, compute_dtype: str, fingerprint: str) -> Path:
    """Return the folder of a transformer's export, made if there is none, it is damaged, or others can write it.

    Parameters
    ----------
    encoder
        The transformer.
    compute_dtype
        ``"float32"`` or ``"int8"``.
    fingerprint
        Its `encoder_fingerprint`.

    Raises
    ------
    StorageError
        If the cache folder cannot be written.
    """
    folder = cache_folder() / "onnx" / f"{fingerprint}-{compute_dtype}"
    if is_own(folder) and is_whole(folder):
        return folder
    try:
        if compute_dtype == "int8":
            source = stored_export(encoder, "float32", fingerprint)
            write_folder(folder, lambda target: quantize_int8(source, target))
        else:
            logger.info("exporting %s to ONNX, which is done once", type(encoder).__name__)
            write_folder(folder, lambda target: export_float32(encoder, target))
    except OSError as error:
        if isinstance(error, LatelierError):
            raise
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    return folder
