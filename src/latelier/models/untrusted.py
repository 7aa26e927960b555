"""Loading models: `load` for those that a user names, `load_untrusted` for those that only a file, an index, names.

A folder can name classes to import, files to unpickle, kernels to download and other folders to read. Loaders reject
most of that unless they are told to trust it, but what they reject differs by version. So a model that only a file
names must consist of module classes in a list, and of safetensors, and its settings may refer to nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.arguments import UNTRAINED
from latelier.models.location import DEFAULT_MODEL, HUB_NAME, check_name, resolve_name
from latelier.utils.checks import short
from latelier.utils.files import parse_json

if TYPE_CHECKING:
    import torch

    from latelier.models.colbert import ColBERT


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


# Files of plain models; a repository also has pickles, other formats and pictures.
_FILES = ["*.json", "*.safetensors", "*.txt", "artifact.metadata"]


def load_untrusted(name: str, device: str | torch.device | None = None, **options: Any) -> ColBERT:
    """Load a model by an absolute path or a name on the hub, if `check_plain` accepts it.

    `**options`: further parameters of `ColBERT`, such as lengths, and ``revision``.
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
    """Return the folder of a model, downloaded if need be; a name is never taken for a relative path."""
    # Opening \\host\share on Windows sends the user's credentials there, so such a name is rejected before any access.
    if name.startswith(("//", "\\\\", "\\/", "/\\")) or "\0" in name:
        raise InvalidArgumentError("its name is that of a network share.")
    named = resolve_name(name) if HUB_NAME.fullmatch(name) else name
    if Path(named).is_absolute():
        if not Path(named).is_dir():
            raise ModelLoadError(
                name, FileNotFoundError("there is no such folder on this machine."), advice="give-model"
            )
        return Path(named)
    if PureWindowsPath(name).is_absolute():
        raise ModelLoadError(name, FileNotFoundError("it is a folder of another machine."), advice="give-model")
    if not HUB_NAME.fullmatch(name):
        raise InvalidArgumentError("its name is neither an absolute path nor a name on the Hugging Face hub.")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=["onnx/*", "openvino/*"])
        )
    except (OSError, ValueError) as error:
        raise ModelLoadError(name, error) from error


# Modules of sentence-transformers, and ours, that only compute. sentence-transformers' Router and WordEmbeddings name
# further classes to import.
_MODULE_TYPE = re.compile(
    r"sentence_transformers(\.\w+)+\.(Transformer|Dense|Normalize|Pooling|MultiVectorMask|LayerNorm|Dropout|"
    r"HierarchicalTokenPooling)|pylate\.models\.Dense\.Dense|"
    r"latelier\.(models\.text_encoder\.TextEncoder|modules\.\w+\.AttentionPooling)",
    re.ASCII,
)
_WITH_WEIGHTS = ("AttentionPooling", "Dense", "LayerNorm", "TextEncoder", "Transformer")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation\.\w+|linear\.Identity)", re.ASCII)
# Keys at any depth that refer to code, other files or repositories.
_REFERENCES = {"auto_map", "auto_mapping", "base_model_name_or_path", "compression_config", "custom_pipelines"}
_REFERENCES |= {"gguf_file", "kernel_config", "processor_class", "quantization_config", "transformers_weights"}
_REFERENCES |= {"tokenizer_name_or_path", "use_kernels"}
_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# An adapter or a processor names other models.
_REFUSED = ("adapter_config.json", "processor_config.json", "preprocessor_config.json")
_LARGEST_FILE = 2**24
_LARGEST_SIZE = 10**7  # of a vocabulary, of a text, of a vector


def check_plain(folder: Path) -> None:
    """Raise `InvalidArgumentError` for a model's folder that holds more than a text encoder in safetensors."""
    modules = _read(folder / "modules.json") if (folder / "modules.json").exists() else [{"type": "", "path": ""}]
    if not isinstance(modules, list) or not modules:
        raise InvalidArgumentError("modules.json is not a list of modules.")
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if kind != "" and not (isinstance(kind, str) and _MODULE_TYPE.fullmatch(kind)):
            raise InvalidArgumentError(f"modules.json names {short(kind)}, which is code of its own.")
        parts = PureWindowsPath(path) if isinstance(path, str) and "\0" not in path else None
        if parts is None or parts.anchor or ".." in parts.parts:
            raise InvalidArgumentError(f"modules.json names the folder {short(path)}.")
        name = kind.rpartition(".")[2] or "Transformer"  # a folder without a list holds an encoder
        _check_module(folder.joinpath(*parts.parts), name)


def _check_module(folder: Path, name: str) -> None:
    """Check the weights and the settings of a module, by the name of its class."""
    for path in folder.glob("*.json"):
        if path.name in _REFUSED:
            raise InvalidArgumentError(f"it has a {path.name}: an adapter or a processor, which names other models.")
        if path.name.endswith("config.json") and path.name != "data_config.json":  # no loader reads the training data's
            _check_settings(path.name, _read(path))
    if name in _WITH_WEIGHTS and not (folder / "model.safetensors").is_file():
        index = folder / "model.safetensors.index.json"
        shards = _read(index).get("weight_map") if index.exists() else None
        if not isinstance(shards, dict):
            raise InvalidArgumentError(f"{folder.name} has no model.safetensors; other weights are pickles.")
        for shard in set(map(str, shards.values())):
            if not re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII):
                raise InvalidArgumentError(f"{index.name} names {short(shard)}.")
    if name in ("TextEncoder", "Transformer") and not (folder / "tokenizer.json").is_file():
        raise InvalidArgumentError("it has no tokenizer.json.")


def _check_settings(name: str, settings: Any) -> None:
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{name} does not hold a JSON object.")
    for key, value in _items_at_any_depth(settings):
        # An attention implementation may be a repository of kernels to download and run; arguments of loaders may
        # unpickle.
        if key in _REFERENCES and value is not None:
            refers = True
        elif "attn_implementation" in key or "experts_implementation" in key:
            refers = value not in (None, "eager", "sdpa") if isinstance(value, (str, type(None))) else True
        else:
            refers = bool(value) and key.endswith(("_args", "_kwargs"))
        if refers:
            raise InvalidArgumentError(f"{name} has {short(key)}: {short(value)}, which refers to code or other files.")
        if isinstance(value, int) and abs(value) > _LARGEST_SIZE and not name.startswith("tokenizer"):
            raise InvalidArgumentError(f"{name} sets {short(key)} to {value}, which no text encoder needs.")
    activation = settings.get("activation_function")
    if isinstance(activation, str) and "." in activation and not _ACTIVATION.fullmatch(activation):
        raise InvalidArgumentError(f"{name} names the activation {short(activation)}, which is code of its own.")
    methods = settings.get("modality_config", {"text": _FORWARD})
    if methods != {"text": _FORWARD} or settings.get("transformer_task", "feature-extraction") != "feature-extraction":
        raise InvalidArgumentError(f"{name} calls other methods than a text encoder's: {short(methods)}.")


def _items_at_any_depth(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of dicts at any depth, without recursion: a hostile file may be nested very deeply."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _read(path: Path) -> Any:
    if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
        raise InvalidArgumentError(f"{path.name} is not a file, or is larger than 16 MiB.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path.name} is not UTF-8.") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path.name}: {error}") from error
