"""Loading a model for search: one that the user names, or one that only a file names and nobody vouches for."""

from __future__ import annotations

import re
from pathlib import Path, PureWindowsPath
from typing import Any

import torch

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.checkpoints.location import DEFAULT_MODEL, resolve_name
from latelier.models.colbert import ColBERT
from latelier.models.inspection import check_plain
from latelier.models.recipe import UNTRAINED
from latelier.utils.describing import short

__all__ = ["load", "load_unvouched"]

_HUB_NAME = re.compile(r"[a-z0-9_][\w.-]{0,95}(/[a-z0-9_][\w.-]{0,95})?", re.ASCII | re.IGNORECASE)
_MOVED = "If the model is elsewhere now, open the index with it: Retriever(model, index), or --model."
# Files of plain models; the others of a repository are pickles, other formats, and pictures.
_FILES = ["*.json", "*.safetensors", "*.txt", "artifact.metadata"]


def load(model_name_or_path: str = DEFAULT_MODEL, device: str | torch.device | None = None, **kwargs: Any) -> ColBERT:
    """Load a model that is ready to search with.

    Parameters
    ----------
    model_name_or_path
        A late-interaction checkpoint, loaded as it was trained; or a dense model or bare encoder, used without
        training as `ColBERT.from_dense` does.
    device
        As in `ColBERT`.
    **kwargs
        Further parameters of `ColBERT`.

    Returns
    -------
    ColBERT
        The model.

    Examples
    --------
    >>> load(device="cpu").embedding_size
    384
    """
    return ColBERT(model_name_or_path, device=device, recipe=UNTRAINED, **kwargs)


def load_unvouched(name: str, device: str | torch.device | None = None, **options: Any) -> ColBERT:
    """Load a model that a file names and not the user: only from safetensors, and only if it contains no code.

    Parameters
    ----------
    name
        An absolute path, or a name on the hub, which is never read as a relative path.
    device
        As in `ColBERT`.
    **options
        Further parameters of `ColBERT`, such as lengths, and ``revision``.

    Raises
    ------
    InvalidArgumentError
        If the name is neither, or the folder holds more than that.
    ModelLoadError
        If there is no such model, or it is damaged.
    """
    try:
        folder = _find(name, options.pop("revision", None))
        check_plain(folder)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the model {short(name)} is not loaded without your word for it: {error} Only text encoders in "
            "safetensors, without code of their own, are. If you trust this one, give it by hand."
        ) from error
    only_weights = {"use_safetensors": True, "weights_only": True}
    try:
        model = load(
            str(folder), device, trust_remote_code=False, local_files_only=True, model_kwargs=only_weights, **options
        )
        model.encode_query(["a"])  # where files of the folder do not fit together, fail here and not in a search
        return model
    except LatelierError:
        raise
    except Exception as error:
        raise ModelLoadError(name, error) from error


def _find(name: str, revision: str | None) -> Path:
    """Return the folder of a model, downloaded if need be; it is checked and then loaded from there."""
    # Asking Windows for \\host\share sends the user's credentials there, so the form is looked at before the disk.
    if name.startswith(("//", "\\\\", "\\/", "/\\")) or "\0" in name:
        raise InvalidArgumentError("its name is that of a network share.")
    named = resolve_name(name) if _HUB_NAME.fullmatch(name) else name
    if Path(named).is_absolute():
        if not Path(named).is_dir():
            raise ModelLoadError(name, FileNotFoundError(f"there is no such folder on this machine. {_MOVED}"))
        return Path(named)
    if PureWindowsPath(name).is_absolute():
        raise ModelLoadError(name, FileNotFoundError(f"it is a folder of another machine. {_MOVED}"))
    if not _HUB_NAME.fullmatch(name):
        raise InvalidArgumentError("its name is neither an absolute path nor a name on the Hugging Face hub.")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=["onnx/*", "openvino/*"])
        )
    except (OSError, ValueError) as error:
        raise ModelLoadError(name, error) from error
