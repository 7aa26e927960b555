"""Loading models that only a file, an index, names, and nobody who uses it has chosen.

What is promised stands in docs/deploying.md. Each rule here is a list of what is allowed, since what
loaders reject by themselves differs by version.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.checkpoint import Checkpoint
from latelier.models.exported_encoder import tokenizer_lock
from latelier.models.loading import load
from latelier.models.location import HEAD_FILES, find_named
from latelier.utils.checks import short
from latelier.utils.files import json_items, parse_json

if TYPE_CHECKING:
    import torch

    from latelier.models.colbert import ColBERT


def load_untrusted(name: str, device: str | torch.device | None = None, **options: Any) -> ColBERT:
    """Load a model by an absolute path or a name on the hub, if nothing in its folder speaks against it.

    `**options`: further parameters of `ColBERT`, such as lengths, and ``revision``.
    """
    only_weights = {"use_safetensors": True, "weights_only": True}
    safely = {"trust_remote_code": False, "local_files_only": True, "model_kwargs": only_weights}
    try:
        folder = find_named(name, options.pop("revision", None))
        if reason := next(_reasons(folder), None):
            raise InvalidArgumentError(reason)
        with tokenizer_lock(None):
            return load(str(folder), device, **safely, **options)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the model {short(name)}, which only a file names, is not loaded: {error} Such a model must be a text "
            "encoder, ColPali or ColQwen2, in safetensors without code of its own. If you trust this one, pass it "
            "yourself: with model=, or --model, and with trust_remote_code=True, or --trust-remote-code, for its code."
        ) from error
    except LatelierError:
        raise
    except Exception as error:
        raise ModelLoadError(name, error) from error


# Modules that only compute. sentence-transformers' Router and WordEmbeddings name further classes to import.
_MODULE = re.compile(
    r"sentence_transformers(\.\w+)+\.(Transformer|Dense|Normalize|Pooling|MultiVectorMask|LayerNorm|Dropout|"
    r"HierarchicalTokenPooling)|pylate\.models\.Dense\.Dense|"
    r"latelier\.(models\.text_encoder\.TextEncoder|modules\.\w+\.AttentionPooling)",
    re.ASCII,
)
_WITH_WEIGHTS = ("AttentionPooling", "Dense", "LayerNorm", "TextEncoder", "Transformer")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation\.\w+|linear\.Identity)", re.ASCII)
# Keys at any depth that refer to code, to other files or repositories, or to arguments of loaders, which may unpickle.
_REFERENCE = re.compile(
    r"auto_map(ping)?|base_model_name_or_path|compression_config|custom_pipelines|gguf_file|kernel_config|use_kernels|"
    r"quantization_config|tokenizer_name_or_path|transformers_weights|.*_(kw)?args"
)
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_PAGE = {"method": "forward", "method_output_name": "embeddings"}
_METHODS = {"feature-extraction": {"text": _TEXT}, "retrieval": {"text": _PAGE, "image": _PAGE}}
# Models of page images whose processors hold numbers and two prompts; others have a template, which is a program.
_PAGE_MODELS = (["ColPaliForRetrieval"], ["ColQwen2ForRetrieval"])
_PROCESSORS = "ColPaliProcessor ColQwen2Processor SiglipImageProcessor Qwen2VLImageProcessor channels_first"
_PARTS = (
    "BertNormalizer NFC NFD NFKC NFKD Lowercase StripAccents Strip Nmt Precompiled Prepend Replace Sequence "
    "BertPreTokenizer ByteLevel Metaspace Whitespace WhitespaceSplit Punctuation Digits CharDelimiterSplit Split "
    "UnicodeScripts TemplateProcessing BertProcessing RobertaProcessing WordPiece BPEDecoder CTC Fuse ByteFallback "
    "BPE Unigram WordLevel"
)
# The regular expressions of tokenizers by SHA-256: of spaces, digits and CLIP, GPT-2, GPT-4, Llama 3 and Qwen.
_REGEXES = (
    "00431aed57e696b7 0a438c792bcdc7b8 1ff7f41064896984 37eeaf14e325fd50 4add64ab568a8b69 5cada29124805d8e "
    "78626aee2df085fd 8e12e7a373c51572 d98f9631be1e9607 dfa66c1644748ec4 eeb55ba74cc544ae"
)
# SentencePiece's character maps (nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf), of the versions before 0.1.95, 0.2.1 and later.
_CHARACTER_MAPS = (
    "0942789e0111452f 97331fbb9d795a02 b69e3e8b5f89a687 ccd62357d9f1e0a6 51d3684747b35ef9 557b5397b1133d8a "
    "6cec34e8016fd0d0 b30e4085ba1fad56 79372c41389c2b9b 52f11028ff8a7df3 22c292c76f503795 60833ec112014466"
)
_LARGEST_FILE = 2**28
# Numbers of parts that have tensors of their own, by the ends of their names in config.json.
_COUNT = re.compile(r"(n|num|encoder|decoder|number)_.*(layers?|blocks?|experts?|stages?)|depth|layers", re.ASCII)
# Tables of a configuration, by the names of their rows and columns.
_TABLES = (("vocab_size", "hidden_size"), ("hidden_size", "intermediate_size"), ("vocab_size", "dim"))
_PREFIXED = ("prompts", "_prefix", "_token_id")
_LONGEST_PROMPT = 10_000
_LONGEST_EXPANSION = 8192
_LONGEST_TEMPLATE = 16  # special tokens around a text
_LONGEST_PADDING = 8192  # tokens that each text is padded to


def _reasons(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder, an encoder if it lists no modules; what comes after may rely on it."""
    yield from _reasons_of_places(folder)
    modules = _read(folder / "modules.json") if (folder / "modules.json").exists() else [{"type": "", "path": ""}]
    if not isinstance(modules, list) or not modules:
        yield "modules.json is not a list of modules."
    for module in modules:
        kind = module.get("type") if isinstance(module, dict) else None
        path = module.get("path") if isinstance(module, dict) else None
        if kind != "" and not (isinstance(kind, str) and _MODULE.fullmatch(kind)):
            yield f"modules.json names {short(kind)}, which is code of its own."
        parts = PureWindowsPath(path) if isinstance(path, str) and "\0" not in path else None
        if parts is None or parts.anchor or ".." in parts.parts:
            yield f"modules.json names the folder {short(path)}."
            return
        yield from _reasons_of_module(folder.joinpath(*parts.parts), str(kind).rpartition(".")[2] or "Transformer")


def _reasons_of_places(folder: Path) -> Iterator[str]:
    """Yield the entries of a folder that are neither files nor folders inside it.

    In the cache of huggingface_hub a snapshot is a folder of links to the files of its repository.
    """
    root = folder.resolve()
    inside = [root]
    if root.parent.name == "snapshots":
        inside.append(root.parent.parent / "blobs")
    for path in folder.rglob("*"):
        place = path.resolve()
        if not any(place.is_relative_to(each) for each in inside):
            yield f"{path.relative_to(folder)} is a link to a place outside of its folder."
        elif not (place.is_file() or place.is_dir()):
            yield f"{path.relative_to(folder)} is neither a file nor a folder."


def _reasons_of_module(folder: Path, name: str) -> Iterator[str]:
    """Yield what is wrong with the files of a module, by the name of its class."""
    settings: dict[str, Any] = {}
    if any((folder / file).exists() for file in HEAD_FILES):
        yield f"its head is in {' or '.join(HEAD_FILES)}, a pickle; load it yourself and save it to a folder."
    for path in (*folder.glob("*.json"), *folder.glob("artifact.metadata")):
        if path.name == "adapter_config.json":
            yield "it has an adapter_config.json: an adapter, which names other models."
        is_read = path.name.endswith(("config.json", ".metadata", "config_sentence_transformers.json"))
        if is_read and path.name != "data_config.json":  # which no loader reads
            settings[path.name] = _read(path)
            yield from _references(path.name, settings[path.name])
    if name in _WITH_WEIGHTS:
        index = folder / "model.safetensors.index.json"
        shards = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
        if not shards and index.exists():
            shards = sorted(set(map(str, _read(index).get("weight_map", {}).values())))
        if not shards or not all(re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII) for shard in shards):
            yield f"{folder.name} has weights in {short(shards)}, not in model.safetensors; others are pickles."
    if name in ("TextEncoder", "Transformer"):
        yield from _reasons_of_size(folder, settings)
        yield from _reasons_of_pages(settings)
        yield from _reasons_of_tokenizer(_read(folder / "tokenizer.json"))


def _references(name: str, settings: Any) -> Iterator[str]:
    if not isinstance(settings, dict):
        yield f"{name} does not hold a JSON object."
    for key, value in json_items(settings):
        is_kernel = "attn_implementation" in key or "experts_implementation" in key  # of a repository, to download
        if (value and _REFERENCE.fullmatch(key)) or (is_kernel and value not in (None, "eager", "sdpa")):
            yield f"{name} has {short(key)}: {short(value)}, which refers to code or other files."
    activation = settings.get("activation_function")
    if isinstance(activation, str) and "." in activation and not _ACTIVATION.fullmatch(activation):
        yield f"{name} names the activation {short(activation)}, which is code of its own."
    known = _METHODS.get(str(settings.get("transformer_task", "feature-extraction")))
    if known is None or settings.get("modality_config", known) != known:
        yield f"{name} calls other methods than a text encoder's: {short(settings.get('modality_config'))}."


def _reasons_of_size(folder: Path, settings: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of an encoder that its tensors do not have, and texts of its settings that are too long.

    Each layer, expert or block has a tensor of its own: a number above that of all tensors is refused before as many
    are built.
    """
    headers = Checkpoint(str(folder), {"local_files_only": True}).shapes()
    for name in ("config.json", "text_encoder_config.json"):
        for key, value in json_items(settings.get(name, {})):
            if _COUNT.fullmatch(key) and isinstance(value, int) and value > len(headers):
                yield f"{name} has {key} = {value:,}, and its weights hold {len(headers)} tensors."
    held = sum(math.prod(shape) for shape in headers.values())
    for rows, columns in _TABLES:
        needed = settings.get("config.json", {}).get(rows), settings.get("config.json", {}).get(columns)
        if all(isinstance(each, int) for each in needed) and math.prod(needed) > held:
            yield f"config.json has {rows} = {needed[0]:,} and {columns} = {needed[1]:,}, more than its weights hold."
    for key, value in json_items(list(settings.values())):
        if key.endswith(_PREFIXED) and len(str(value)) > _LONGEST_PROMPT:
            yield f"it puts {short(str(value))} before each text, {len(str(value)):,} characters."
        if key == "length" and isinstance(value, int) and value > _LONGEST_EXPANSION:
            yield f"it expands each query to {value:,} tokens."


def _reasons_of_pages(settings: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a model that reads page images, or with a processor of one that does not."""
    named = settings.get("config.json", {}).get("architectures")
    is_of_pages = any(each.get("transformer_task") == "retrieval" for each in settings.values())
    if not is_of_pages and "ForRetrieval" not in str(named):
        if "processor_config.json" in settings:
            yield "it has a processor_config.json: a processor, which names other models."
        return
    if named not in _PAGE_MODELS:
        yield f"config.json names {short(named)}; of models of page images, ColPali and ColQwen2 are read."
    for key, value in json_items([settings.get(f"{each}_config.json") for each in ("processor", "preprocessor")]):
        is_name = key not in ("query_prefix", "visual_prompt_prefix")
        if isinstance(value, str) and is_name and value.removesuffix("Fast") not in _PROCESSORS.split():
            yield f"its processor sets {short(key)} to {short(value)}, which is not in the list."


def _reasons_of_tokenizer(tokenizer: Any) -> Iterator[str]:
    """Yield the parts of a tokenizer that are not in the list, or with which a text that was cut grows again."""
    yield from _reasons_of_growth(tokenizer)
    model = {**tokenizer["model"], "vocab": None, "merges": None}
    roles = {role: tokenizer.get(role) for role in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    for key, value in json_items(roles | {"model": {"type": "BPE", **model}}):
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                continue
            kind = part.get("type")
            if kind not in _PARTS.split() and (kind is not None or key in roles):
                yield f"tokenizer.json has the {key} {short(kind)}, which is not in the list."
            replaced = (part.get("pattern") or {}).get("String", " ") if kind == "Replace" else " "
            if len(part.get("content") or "") > len(replaced) or len(part.get("prepend") or "") > 1:
                yield f"tokenizer.json has a {kind} that makes a text grow."
            charsmap = part.get("precompiled_charsmap")
            if charsmap is not None and _digest(base64.b64decode(charsmap)) not in _CHARACTER_MAPS.split():
                yield "tokenizer.json has a character map that is not one of SentencePiece's."
            if "Regex" in part and _digest(str(part["Regex"]).encode()) not in _REGEXES.split():
                yield f"tokenizer.json has the regular expression {short(part['Regex'])}, which is not in the list."


def _reasons_of_growth(tokenizer: Any) -> Iterator[str]:
    """Yield what adds tokens to each text: padding to one length, and long templates."""
    padding = tokenizer.get("padding") or {}
    lengths = [value for key, value in json_items(padding) if key in ("Fixed", "pad_to_multiple_of")]
    if any(isinstance(length, int) and length > _LONGEST_PADDING for length in lengths):
        yield f"tokenizer.json pads each text: {short(padding)}."
    for key, value in json_items(tokenizer.get("post_processor") or {}):
        if key not in ("single", "pair", "ids") or not isinstance(value, list):
            continue
        texts = [str(each["Sequence"].get("id")) for each in value if isinstance(each, dict) and "Sequence" in each]
        if len(value) > _LONGEST_TEMPLATE or len(texts) != len(set(texts)):
            yield f"tokenizer.json has a template of {len(value)} parts that makes a text grow."


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _read(path: Path) -> Any:
    if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
        raise InvalidArgumentError(f"{path.name} is not a file, or is larger than {_LARGEST_FILE:,} bytes.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path.name} is not UTF-8.") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path.name}: {error}") from error
