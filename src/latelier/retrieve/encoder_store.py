"""Exported encoders of the models that fill indexes, kept in the user's cache folder.

An index may come from an untrusted source, and ONNX Runtime is not made for files of such sources. So no encoder is
read from the folder of an index: an index only names its model, and an encoder that this user has exported from a model
of the same name, options and fingerprint is found by a hash of these three.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.errors import ModelLoadError
from latelier.models.cpu.onnx_files import DESCRIPTION_FILE, is_own, is_whole
from latelier.utils.files import cache_folder

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.models.exported import ExportedEncoder
    from latelier.retrieve.model_identity import ModelIdentity

__all__ = ["encoder_folder", "export_encoder", "find_encoder", "is_exported", "open_encoder"]


def encoder_folder(identity: ModelIdentity) -> Path:
    """Return the folder for the exported encoder of a model, in the cache folder; it need not exist.

    Parameters
    ----------
    identity
        The name, options and fingerprint of the model, as an index stores them.
    """
    content = json.dumps([identity.name, identity.options, identity.fingerprint], sort_keys=True)
    return cache_folder() / "encoders" / hashlib.sha256(content.encode()).hexdigest()[:32]


def export_encoder(model: ColBERT, identity: ModelIdentity) -> Path:
    """Export a model for the indexes that store this identity, unless there is a whole export; return the folder."""
    folder = encoder_folder(identity)
    if not (is_own(folder) and is_whole(folder)):
        from latelier.models.exporting import export

        export(model, folder, compute_dtype=identity.options.get("compute_dtype", "float32"))
    return folder


def find_encoder(identity: ModelIdentity) -> ExportedEncoder | None:
    """Return the exported encoder of a model; None if there is none that can be used.

    It cannot be used if it is damaged, others can write it, or ONNX Runtime is missing.
    """
    folder = encoder_folder(identity)
    if find_spec("onnxruntime") is None or not is_exported(folder) or not is_own(folder):
        return None
    try:
        return open_encoder(folder)
    except ModelLoadError:
        return None


def is_exported(folder: Any) -> bool:
    """Whether a folder holds an exported encoder."""
    try:
        return (Path(folder) / DESCRIPTION_FILE).is_file()
    except (OSError, ValueError):  # a name that is no path
        return False


def open_encoder(folder: Any) -> ExportedEncoder:
    """Open an exported encoder."""
    from latelier.models.exported import ExportedEncoder

    return ExportedEncoder(folder)
