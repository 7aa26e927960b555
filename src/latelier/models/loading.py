"""Loading a model for search: one that the user names, or an untrusted one that only a file names."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.checkpoints.location import DEFAULT_MODEL, HUB_NAME, check_name, resolve_name
from latelier.models.inspection import check_plain
from latelier.models.recipe import UNTRAINED
from latelier.utils.checks import short

if TYPE_CHECKING:
    import torch

    from latelier.models.colbert import ColBERT

__all__ = ["load", "load_untrusted"]

_MOVED = "If the model is elsewhere now, open the index with it: Retriever(model, index), or --model."
# Files of plain models; a repository also has pickles, other formats and pictures.
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

    Raises
    ------
    ModelLoadError
        If there is no such model, or it cannot be read.

    Examples
    --------
    >>> load(device="cpu").embedding_size
    384
    """
    check_name(str(model_name_or_path))  # before torch is imported, which takes seconds
    from latelier.models.colbert import ColBERT

    return ColBERT(model_name_or_path, device=device, recipe=UNTRAINED, **kwargs)


def load_untrusted(name: str, device: str | torch.device | None = None, **options: Any) -> ColBERT:
    """Load a model that a file names, not the user: only from safetensors, and only if it contains no code.

    Parameters
    ----------
    name
        An absolute path or a name on the hub; a name is never taken for a relative path.
    device
        As in `ColBERT`.
    **options
        Further parameters of `ColBERT`, such as lengths, and ``revision``.

    Returns
    -------
    ColBERT
        The model.

    Raises
    ------
    InvalidArgumentError
        If the name is neither, or the folder holds anything else.
    ModelLoadError
        If there is no such model, or it is damaged.
    """
    try:
        folder = _find(name, options.pop("revision", None))
        check_plain(folder)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the model {short(name)}, which only a file names, is not loaded: {error} Such a model must be a text "
            "encoder in safetensors without code of its own. If you trust this one, pass it yourself."
        ) from error
    only_weights = {"use_safetensors": True, "weights_only": True}
    try:
        model = load(
            str(folder), device, trust_remote_code=False, local_files_only=True, model_kwargs=only_weights, **options
        )
        # Files that do not fit together raise here rather than in a search.
        model.encode_query(["a"], show_progress_bar=False)
        return model
    except LatelierError:
        raise
    except Exception as error:
        raise ModelLoadError(name, error) from error


def _find(name: str, revision: str | None) -> Path:
    """Return the folder of a model, downloaded if need be; it is checked and then loaded from there."""
    # Opening \\host\share on Windows sends the user's credentials there, so such a name is rejected before any access.
    if name.startswith(("//", "\\\\", "\\/", "/\\")) or "\0" in name:
        raise InvalidArgumentError("its name is that of a network share.")
    named = resolve_name(name) if HUB_NAME.fullmatch(name) else name
    if Path(named).is_absolute():
        if not Path(named).is_dir():
            raise ModelLoadError(name, FileNotFoundError(f"there is no such folder on this machine. {_MOVED}"))
        return Path(named)
    if PureWindowsPath(name).is_absolute():
        raise ModelLoadError(name, FileNotFoundError(f"it is a folder of another machine. {_MOVED}"))
    if not HUB_NAME.fullmatch(name):
        raise InvalidArgumentError("its name is neither an absolute path nor a name on the Hugging Face hub.")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=["onnx/*", "openvino/*"])
        )
    except (OSError, ValueError) as error:
        raise ModelLoadError(name, error) from error
