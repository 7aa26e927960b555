"""What an index may name.

A folder can name classes to import, files to unpickle, kernels to download and other folders to read. Loaders reject
most of that unless they are told to trust it, but what they reject differs by version. So every setting in a folder
that a loader acts on must be in a list of the settings of plain text encoders, and weights must be safetensors.
A user who trusts a model that is rejected here passes it by name; then only the loader checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.location import DEFAULT_MODEL, HUB_NAME, check_name, resolve_name
from latelier.models.recipe import UNTRAINED
from latelier.utils.checks import short
from latelier.utils.files import parse_json

if TYPE_CHECKING:
    import torch

    from latelier.models.colbert import ColBERT

__all__ = ["check_plain", "load", "load_untrusted"]

# Modules of sentence-transformers, and ours, that only compute. sentence-transformers' Router and WordEmbeddings name
# further classes to import.
_MODULE_TYPE = re.compile(
    r"sentence_transformers(\.\w+)+\.(Transformer|Dense|Normalize|Pooling|MultiVectorMask|LayerNorm|Dropout|"
    r"HierarchicalTokenPooling)|pylate\.models\.Dense\.Dense|"
    r"latelier\.(models\.text_encoder\.TextEncoder|modules\.attention_pooling\.AttentionPooling)",
    re.ASCII,
)
_WITH_WEIGHTS = ("AttentionPooling", "Dense", "LayerNorm")
_MODEL_TYPES = {None, "ColBERT", "MultiVectorEncoder", "SentenceTransformer"}
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation\.\w+|linear\.Identity)", re.ASCII)

# Text encoders and decoders of transformers; its other models bring image libraries, retrievers and parts by name.
_ENCODERS = """
albert bert big_bird camembert convbert deberta deberta-v2 distilbert electra ernie eurobert funnel gemma gemma2
gemma3_text gpt_neox granite lfm2 llama longformer mistral mobilebert modernbert modernbert-decoder mpnet mt5
nomic_bert phi3 qwen2 qwen3 rembert roberta roberta-prelayernorm roformer smollm3 squeezebert t5 umt5 xlm-roberta
xlm-roberta-xl
"""
_TOKENIZER = re.compile(
    r"(TokenizersBackend|PreTrainedTokenizerFast|(Albert|Bert|BigBird|Camembert|ConvBert|CodeGen|Deberta|DebertaV2|"
    r"DistilBert|Electra|Funnel|GPT2|GPTNeoX|Gemma|Llama|Longformer|MPNet|MT5|MobileBert|Qwen2|RemBert|Roberta|"
    r"RoFormer|SqueezeBert|T5|XLMRoberta)Tokenizer(Fast)?)"
)
# Keys of a configuration, at any depth, that refer to code, other files or repositories.
_REFERENCES = """
auto_map auto_mapping base_model_name_or_path compression_config custom_pipelines gguf_file kernel_config
processor_class quantization_config transformers_weights use_kernels
"""
_TEXT_ENCODER_SETTINGS = "document_length max_seq_length model query_expansion query_length"
_ATTENTION = (None, "eager", "sdpa")
# Files with sentence-transformers' settings of the encoder: the current name, then those of its first versions.
_SETTINGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_SETTINGS_KNOWN = """
do_lower_case document_length max_seq_length modality_config module_output_name query_expansion query_length
transformer_task unpad_inputs
"""
_SETTINGS_EMPTY = """
config_args config_kwargs model_args model_kwargs processing_kwargs processor_kwargs tokenizer_args
"""
_TEXT_ONLY = ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, "token_embeddings")
_LARGEST_FILE = 2**24


def check_plain(folder: Path) -> None:
    """Raise an error for a model's folder that holds more than a text encoder in safetensors.

    `folder`: the folder that will be loaded: for a model on the hub, its snapshot. Raises `InvalidArgumentError` if
    anything else is found; the message says in which file.
    """
    _check_top(folder)
    if not (folder / "modules.json").exists():
        _check_encoder(folder)
        return
    modules = _read(folder / "modules.json")
    if not isinstance(modules, list) or not modules:
        raise InvalidArgumentError("modules.json is not a list of modules.")
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not _MODULE_TYPE.fullmatch(kind):
            raise InvalidArgumentError(f"modules.json names {short(kind)}, which is code of its own.")
        inside = folder / _module_path(path)
        name = kind.rpartition(".")[2]
        if name == "Transformer":
            _check_encoder(inside)
        if name == "TextEncoder":
            _check_text_encoder(inside)
        if name in _WITH_WEIGHTS:
            _check_layer(inside)


def _check_top(folder: Path) -> None:
    """Check the settings beside the modules."""
    settings = _read_mapping(folder / "config_sentence_transformers.json")
    kind = settings.get("model_type")
    if not isinstance(kind, (str, type(None))) or kind not in _MODEL_TYPES:
        raise InvalidArgumentError(f"config_sentence_transformers.json names the model type {short(kind)}.")
    requirements = settings.get("requirements")
    if requirements:
        raise InvalidArgumentError(f"config_sentence_transformers.json requires {short(requirements)}.")


def _check_encoder(folder: Path) -> None:
    """Check a folder that transformers loads a model and a tokenizer from."""
    for name in ("adapter_config.json", "processor_config.json", "preprocessor_config.json"):
        if (folder / name).exists():
            raise InvalidArgumentError(f"it has a {name}: an adapter or a processor, which names other models.")
    config = _read_mapping(folder / "config.json")
    _check_keys("config.json", config)
    _check_tokenizer_class("config.json", config)
    if (kind := config.get("model_type")) not in _ENCODERS.split():
        raise InvalidArgumentError(f"config.json names the architecture {short(kind)}, which is not a known encoder.")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or any(str(each).endswith("ForRetrieval") for each in architectures):
        raise InvalidArgumentError(f"config.json names the classes {short(architectures)}.")
    _check_tokenizer(folder)
    for name in _SETTINGS:
        _check_encoder_settings(name, _read_mapping(folder / name))
    if not (folder / "model.safetensors").is_file():
        _check_shards(folder)


def _check_text_encoder(folder: Path) -> None:
    """Check the folder of a `TextEncoder`: numbers, a tokenizer and weights."""
    name, settings = "text_encoder_config.json", _read_mapping(folder / "text_encoder_config.json")
    if unknown := settings.keys() - set(_TEXT_ENCODER_SETTINGS.split()):
        raise InvalidArgumentError(f"{name} sets {', '.join(map(short, sorted(unknown)))}.")
    _check_tokenizer(folder)
    if not (folder / "model.safetensors").is_file():
        raise InvalidArgumentError("it has no model.safetensors; other weights are pickles.")


def _check_tokenizer(folder: Path) -> None:
    name, content = "tokenizer_config.json", _read_mapping(folder / "tokenizer_config.json")
    _check_keys(name, content)
    _check_tokenizer_class(name, content)
    if not (folder / "tokenizer.json").is_file():
        raise InvalidArgumentError("it has no tokenizer.json.")


def _check_tokenizer_class(name: str, content: dict[str, Any]) -> None:
    known = content.get("tokenizer_class")
    if known is not None and not (isinstance(known, str) and _TOKENIZER.fullmatch(known)):
        raise InvalidArgumentError(f"{name} names the tokenizer {short(known)}, which is not a known one.")


def _check_encoder_settings(name: str, settings: dict[str, Any]) -> None:
    """Check sentence-transformers' settings of the encoder: some make the loader unpickle or download files."""
    for key, value in settings.items():
        if key not in _SETTINGS_KNOWN.split() and (value or key not in _SETTINGS_EMPTY.split()):
            raise InvalidArgumentError(f"{name} sets {short(key)}.")
    if settings.get("transformer_task", "feature-extraction") != "feature-extraction":
        raise InvalidArgumentError(f"{name} sets the task {short(settings['transformer_task'])}.")
    given = (settings.get("modality_config", _TEXT_ONLY[0]), settings.get("module_output_name", _TEXT_ONLY[1]))
    if given != _TEXT_ONLY:
        raise InvalidArgumentError(f"{name} calls other methods than a text encoder's: {short(given[0])}.")


def _check_layer(folder: Path) -> None:
    """Check the folder of a linear layer."""
    activation = _read_mapping(folder / "config.json").get("activation_function")
    if activation is not None and not (isinstance(activation, str) and _ACTIVATION.fullmatch(activation)):
        raise InvalidArgumentError(f"{folder.name} names the activation {short(activation)}, which is code of its own.")
    if not (folder / "model.safetensors").is_file():
        raise InvalidArgumentError(f"{folder.name} has no model.safetensors; other weights are pickles.")


def _check_shards(folder: Path) -> None:
    weights = _read_mapping(folder / "model.safetensors.index.json").get("weight_map")
    if not isinstance(weights, dict):
        raise InvalidArgumentError("it has no model.safetensors; other weights are pickles.")
    for shard in set(map(str, weights.values())):
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII):
            raise InvalidArgumentError(f"model.safetensors.index.json names {short(shard)}.")


def _check_keys(name: str, value: Any) -> None:
    for key, inner in _items_at_any_depth(value):
        # An attention implementation may be a repository of kernels to download and run.
        if "attn_implementation" in key or "experts_implementation" in key:
            refers = inner not in _ATTENTION if isinstance(inner, (str, type(None))) else True
        else:
            refers = key in _REFERENCES.split() and inner is not None
        if refers:
            raise InvalidArgumentError(f"{name} has {short(key)}: {short(inner)}, which refers to code or other files.")


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


def _module_path(path: Any) -> Path:
    """Return the path of a module inside the folder; a path that leads elsewhere on any system raises an error."""
    parts = PureWindowsPath(path) if isinstance(path, str) and "\0" not in path else None
    if parts is None or parts.anchor or ".." in parts.parts:
        raise InvalidArgumentError(f"modules.json names the folder {short(path)}.")
    return Path(*parts.parts)


def _read_mapping(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if there is no file."""
    value = _read(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{path.name} does not hold a JSON object.")
    return value


def _read(path: Path) -> Any:
    if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
        raise InvalidArgumentError(f"{path.name} is not a file, or is larger than 16 MiB.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path.name} is not UTF-8.") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path.name}: {error}") from error


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

    `name`: an absolute path or a name on the hub; a name is never taken for a relative path. `device`: as in `ColBERT`.
    `**options`: further parameters of `ColBERT`, such as lengths, and ``revision``. Raises `ModelLoadError` if there is
    no such model, or it is damaged.
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
