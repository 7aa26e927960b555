"""Loading models: `load` for those that a user names, `load_untrusted` for those that only a file, an index, names.

A folder can name classes to import, files to unpickle, kernels to download and other folders to read. Loaders reject
most of that unless they are told to trust it, but what they reject differs by version. So a model that only a file
names must consist of module classes in a list, and of safetensors, and its settings may refer to nothing else. They may
not describe a larger model than the safetensors hold, and its tokenizer consists of parts in a list, of which none has
a regular expression of its own or makes a text grow. A model of page images has a processor in a list, whose numbers
let no picture grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.arguments import UNTRAINED
from latelier.models.exported import tokenizer_lock
from latelier.models.location import DEFAULT_MODEL, HEAD_FILES, HUB_NAME, check_name, resolve_name
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
_FILES = ["*.json", "*.safetensors", "*.txt", "artifact.metadata", *HEAD_FILES]


def load_untrusted(name: str, device: str | torch.device | None = None, **options: Any) -> ColBERT:
    """Load a model by an absolute path or a name on the hub, if nothing in its folder speaks against it.

    `**options`: further parameters of `ColBERT`, such as lengths, and ``revision``.
    """
    only_weights = {"use_safetensors": True, "weights_only": True}
    safely = {"trust_remote_code": False, "local_files_only": True, "model_kwargs": only_weights}
    try:
        folder = _find(name, options.pop("revision", None))
        if reason := next(_reasons(folder), None):
            raise InvalidArgumentError(reason)
        with tokenizer_lock(None):
            model = load(str(folder), device, **safely, **options)
        # Files that do not fit together raise here rather than in a search.
        model.encode_query(["a"], show_progress_bar=False)
        return model
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the model {short(name)}, which only a file names, is not loaded: {error} Such a model must be a text "
            "encoder, ColPali or ColQwen2, in safetensors without code of its own. "
            "If you trust this one, pass it yourself: with model=, or "
            "--model, and with trust_remote_code=True, or --trust-remote-code, for its code."
        ) from error
    except LatelierError:
        raise
    except Exception as error:
        raise ModelLoadError(name, error) from error


def _find(name: str, revision: str | None) -> Path:
    """Return the folder of a model, downloaded if need be; a name is never taken for a relative path."""
    # Opening \\host\share on Windows sends the user's credentials there, so such a name is rejected before any access.
    if name.startswith(("//", "\\\\", "\\/", "/\\")) or "\0" in name:
        raise InvalidArgumentError("its name is that of a network share.")
    if HUB_NAME.fullmatch(name):
        named = resolve_name(name)
    else:
        named = name
    if Path(named).is_absolute():
        if not Path(named).is_dir():
            missing = FileNotFoundError("there is no such folder on this machine.")
            raise ModelLoadError(name, missing, advice="give-model")
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
_REFERENCES |= {"gguf_file", "kernel_config", "quantization_config", "transformers_weights"}
_REFERENCES |= {"tokenizer_name_or_path", "use_kernels"}
_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
_EMBED = {"method": "forward", "method_output_name": "embeddings"}
_METHODS = {"feature-extraction": {"text": _FORWARD}, "retrieval": {"text": _EMBED, "image": _EMBED}}
# Models of page images whose processors hold numbers and two prompts; others have a template, which may run for long.
_OF_PAGES = (["ColPaliForRetrieval"], ["ColQwen2ForRetrieval"])
_NAMES = {
    "processor_class": {"ColPaliProcessor", "ColQwen2Processor"},
    "image_processor_type": {"SiglipImageProcessor", "Qwen2VLImageProcessor"},
    "data_format": {"channels_first"},
}
_PROMPTS = ("query_prefix", "visual_prompt_prefix")
# Of Qwen's processor, edges are numbers of pixels.
_EDGES = ("shortest_edge", "longest_edge", "min_pixels", "max_pixels")
_MOST_PIXELS = 2**24
_MOST_SIDE = 2**12
_LEAST_PATCH = 8
_LARGEST_FILE = 2**24
# Tokens of a text: of queries, which may be expanded to them, and of others.
_LONGEST_QUERY = 2**13
_LONGEST = 2**20
_LONGEST_WORD = 1000
# Settings that are no number of modules: at most the largest dimension of a weight, or a position.
_POSITION = re.compile(r"position|length|window|theta|ctx|distance|max_seq|maxlen|context|index|id$|ids$")
_DIMENSION = re.compile(r"size|dim|hidden|width|features|embd|inner|attention|d_model|d_ff|d_kv|ffn|num_vectors|token")
_FEW = 64
# Of a model's numbers per number in its safetensors, and beside them: what a checkpoint leaves out, such as a pooler.
_TIMES = 4
_BESIDE = 2**24


def _reasons(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a folder; what comes after the first may rely on it."""
    if (folder / "modules.json").exists():
        modules = _read(folder / "modules.json")
    else:
        modules = [{"type": "", "path": ""}]
    if not isinstance(modules, list) or not 0 < len(modules) <= _FEW:
        yield "modules.json is not a list of modules."
    for module in modules:
        if isinstance(module, dict):
            kind = module.get("type")
            path = module.get("path")
        else:
            kind = None
            path = None
        if kind != "" and not (isinstance(kind, str) and _MODULE_TYPE.fullmatch(kind)):
            yield f"modules.json names {short(kind)}, which is code of its own."
        if isinstance(path, str) and "\0" not in path:
            parts = PureWindowsPath(path)
        else:
            parts = None
        if parts is None or parts.anchor or ".." in parts.parts:
            yield f"modules.json names the folder {short(path)}."
            return
        name = str(kind).rpartition(".")[2] or "Transformer"  # a folder without a list holds an encoder
        yield from _reasons_of_module(folder.joinpath(*parts.parts), name)


def _reasons_of_module(folder: Path, name: str) -> Iterator[str]:
    """Yield what is wrong with the weights and the settings of a module, by the name of its class."""
    settings = {}
    if any((folder / file).exists() for file in HEAD_FILES):
        yield f"its head is in {' or '.join(HEAD_FILES)}, a pickle; load it yourself and save it to a folder."
    for path in (*folder.glob("*.json"), *folder.glob("artifact.metadata")):
        if path.name == "adapter_config.json":
            yield "it has an adapter_config.json: an adapter, which names other models."
        is_settings = path.name.endswith(("config.json", ".metadata"))
        if is_settings and path.name != "data_config.json":  # no loader reads the training data's
            settings[path.name] = _read(path)
            yield from _references(path.name, settings[path.name])
    shapes: list[list[int]] = []
    if name in _WITH_WEIGHTS:
        shards = _shards(folder)
        if not shards or not all(re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII) for shard in shards):
            yield f"{folder.name} has weights in {short(shards)}, not in model.safetensors; others are pickles."
        shapes = _shapes(folder, shards)
    for file, content in settings.items():
        yield from _oversized(file, content, shapes)
    if name not in ("TextEncoder", "Transformer"):
        return
    yield from _reasons_of_pages(settings)
    yield from _describing_more(folder, name, settings, sum(map(math.prod, shapes)))
    if not (folder / "tokenizer.json").is_file():
        yield "it has no tokenizer.json."
    yield from _reasons_of_tokenizer(_read(folder / "tokenizer.json", 16))


def _shards(folder: Path) -> list[str]:
    """Return the names of a module's files of weights."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.exists():
        if (folder / "model.safetensors").is_file():
            return ["model.safetensors"]
        return []
    return sorted(set(map(str, _read(index).get("weight_map", {}).values())))


def _references(name: str, settings: Any) -> Iterator[str]:
    if not isinstance(settings, dict):
        yield f"{name} does not hold a JSON object."
    for key, value in _items_at_any_depth(settings):
        # An attention implementation may be a repository of kernels to download and run; arguments of loaders may
        # unpickle.
        if key in _REFERENCES and value is not None:
            refers = True
        elif "attn_implementation" in key or "experts_implementation" in key:
            if isinstance(value, (str, type(None))):
                refers = value not in (None, "eager", "sdpa")
            else:
                refers = True
        else:
            refers = bool(value) and key.endswith(("_args", "_kwargs"))
        if refers:
            yield f"{name} has {short(key)}: {short(value)}, which refers to code or other files."
    activation = settings.get("activation_function")
    if isinstance(activation, str) and "." in activation and not _ACTIVATION.fullmatch(activation):
        yield f"{name} names the activation {short(activation)}, which is code of its own."
    task = settings.get("transformer_task", "feature-extraction")
    if isinstance(task, str):
        known = _METHODS.get(task)
    else:
        known = None
    methods = settings.get("modality_config", known)
    if known is None or methods != known:
        yield f"{name} calls other methods than a text encoder's: {short(methods)}."


def _reasons_of_pages(settings: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a model that reads page images, or with a processor of one that does not."""
    architectures = _architectures(settings)
    if not architectures and all(each.get("transformer_task") != "retrieval" for each in settings.values()):
        if "processor_config.json" in settings:
            yield "it has a processor_config.json: a processor, which names other models."
        return
    if architectures not in _OF_PAGES:
        read = " and ".join(each for [each] in _OF_PAGES)
        yield f"config.json names {short(architectures)}; of models of page images, {read} are read."
    processors = [settings.get(each, {}) for each in ("processor_config.json", "preprocessor_config.json")]
    items = list(_items_at_any_depth(processors))
    kinds = {str(value) for key, value in items if key == "image_processor_type"}
    if len(kinds) > 1:
        yield f"its processor reads pictures in several ways: {', '.join(sorted(kinds))}."
    for key, value in items:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                named = each.removesuffix("Fast") in _NAMES.get(key, ())
                is_known = named or (key in _PROMPTS and len(each) <= _LONGEST_WORD)
            elif isinstance(each, (int, float)):
                if key in _EDGES and kinds == {"Qwen2VLImageProcessor"}:
                    most = _MOST_PIXELS
                else:
                    most = _MOST_SIDE
                is_known = (_LEAST_PATCH if key == "patch_size" else 0) <= each <= most
            else:
                is_known = each is None or isinstance(each, dict)
            if not is_known:
                yield f"its processor sets {short(key)} to {short(each)}, which is not in the list, or too large."


def _architectures(settings: dict[str, Any]) -> list[Any]:
    """Return the classes of a model of page images; none of a text encoder."""
    named = settings.get("config.json", {}).get("architectures")
    named = named if isinstance(named, list) else [named]
    if any(str(each).endswith("ForRetrieval") for each in named):
        return named
    return []


def _shapes(folder: Path, names: list[str]) -> list[list[int]]:
    """Return the shapes of all weights, from the headers of the safetensors."""
    from safetensors import SafetensorError, safe_open

    shapes = []
    for name in names:
        try:
            with safe_open(folder / name, framework="numpy") as file:
                shapes += [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118 (it has no iterator)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(str(folder), error) from error
    return shapes


def _oversized(name: str, settings: dict[str, Any], shapes: list[list[int]]) -> Iterator[str]:
    """Yield the first integer of a module's settings that its weights have no room for."""
    largest = max((dim for shape in shapes for dim in shape), default=_LONGEST)  # a module may have no weights
    if name.startswith(("tokenizer", "preprocessor", "processor")):
        return
    for key, value in _items_at_any_depth({**settings, "label2id": None}):
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int):
                continue
            if "query" in key or key == "length":
                most = _LONGEST_QUERY
            elif _POSITION.search(key):
                most = max(_LONGEST, largest)
            else:
                is_dimension = _DIMENSION.search(key) and not key.endswith(("layers", "layer"))
                most = max(_FEW, largest if is_dimension else len(shapes))
            if abs(number) > most:
                yield f"{name} sets {short(key)} to {short(number)}; its weights have room for {most}."


def _describing_more(folder: Path, name: str, settings: dict[str, Any], numbers: int) -> Iterator[str]:
    """Yield why a configuration does not describe the weights: its model, without memory, has many more numbers."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModel

    from latelier.modules import TransformerEncoder

    try:
        with torch.device("meta"):
            if name == "TextEncoder":
                model: Any = TransformerEncoder(**settings["text_encoder_config.json"]["model"])
            else:
                options: Any = {"trust_remote_code": False}
                config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
                of_pages = _architectures(settings)
                if of_pages:
                    model = getattr(transformers, of_pages[0])(config)
                else:
                    model = AutoModel.from_config(config, **options)
            described = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    except Exception as error:
        raise ModelLoadError(str(folder), error) from error
    if described > _TIMES * numbers + _BESIDE:
        yield f"its configuration describes {described:,} numbers, and its safetensors hold {numbers:,}."


# The parts of tokenizers that sentence-transformers' models have, by their types.
_PARTS = {
    "normalizer": "BertNormalizer NFC NFD NFKC NFKD Lowercase StripAccents Strip Nmt Precompiled Prepend Replace "
    "Sequence",
    "pre_tokenizer": "BertPreTokenizer ByteLevel Metaspace Whitespace WhitespaceSplit Punctuation Digits "
    "CharDelimiterSplit UnicodeScripts Split Sequence",
    "post_processor": "TemplateProcessing BertProcessing RobertaProcessing ByteLevel Sequence",
    "decoder": "WordPiece ByteLevel Metaspace BPEDecoder CTC Fuse Strip ByteFallback Replace Sequence",
    "model": "BPE WordPiece Unigram WordLevel",
}
# The regular expressions of known tokenizers: of spaces (SentencePiece, CLIP), GPT-2, GPT-4, Llama 3 and Qwen.
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REGEXES = {
    " {2,}",
    "\\s+",
    "\\s",
    "[\r\n]",
    "\\p{N}",
    "\\p{N}{1,3}",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_REST}",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
}


def _reasons_of_tokenizer(tokenizer: Any) -> Iterator[str]:
    """Yield the parts of a tokenizer that are not in the list, or with which a text could grow or take long."""
    parts: list[Any] = []
    for place, known in _PARTS.items():
        waiting = [tokenizer.get(place)]
        while waiting:
            part = waiting.pop()
            if isinstance(part, list):
                waiting += part
            elif part is not None:
                kind = part.get("type", "BPE" if place == "model" else None)
                if kind not in known.split():
                    yield f"tokenizer.json has the {place} {short(kind)}, which is not in the list."
                parts.append(part)
                waiting += [part.get(inner) for inner in ("normalizers", "pretokenizers", "processors", "decoders")]
    if len(parts) > _FEW:
        yield f"tokenizer.json has {len(parts)} parts; {_FEW} at most are read."
    for part in parts:
        yield from _reasons_of_part(part)
    for key, value in _items_at_any_depth(tokenizer.get("padding")):
        if isinstance(value, int) and value > _LONGEST:
            yield f"tokenizer.json pads texts: {short(key)} is {value}."


def _reasons_of_part(part: dict[str, Any]) -> Iterator[str]:
    pattern = part.get("pattern") or {"String": " "}
    if isinstance(pattern, dict):
        regex = pattern.get("Regex")
    else:
        regex = None
    if regex is not None and regex not in _REGEXES:
        yield f"tokenizer.json has the regular expression {short(regex)}, which is not in the list."
    if isinstance(pattern, dict):
        replaced = pattern.get("String", " ")
    else:
        replaced = " "
    if len(part.get("content") or "") > len(replaced) or len(part.get("prepend") or "") > 1:
        yield f"tokenizer.json has a {part['type']} that makes a text grow."
    tokens = [token for each in (part.get("special_tokens") or {}).values() for token in each["ids"]]
    if max(len(tokens), len(part.get("single") or ""), len(part.get("pair") or "")) > _FEW:
        yield "tokenizer.json adds too many tokens to a text."
    if str(part.get("single")).count("'Sequence'") > 1 or str(part.get("pair")).count("'Sequence'") > 2:
        yield "tokenizer.json repeats a text."
    if part.get("max_input_chars_per_word", 0) > _LONGEST_WORD:
        yield "tokenizer.json splits words that are too long."


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


def _read(path: Path, times: int = 1) -> Any:
    if not path.is_file() or path.stat().st_size > times * _LARGEST_FILE:
        raise InvalidArgumentError(f"{path.name} is not a file, or is larger than {times * 16} MiB.")
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path.name} is not UTF-8.") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path.name}: {error}") from error
