"""The settings in the files of a checkpoint: each that decides about vectors is used as it is meant, or refused.

Loaders take what they find by its truth: "false" is true, a length of 0 is none, a similarity that they do not know is
left out. So the table of this module says what each setting may be, before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from latelier.errors import ModelLoadError
from latelier.models.checkpoint import Checkpoint
from latelier.models.location import HEAD_FILES
from latelier.utils.batching import SHORTEST_LENGTH
from latelier.utils.checks import is_count
from latelier.utils.misc import warn_caller

# Settings that only PyLate writes; a file with any of them has its markers and lengths, unless it names others.
_OF_PYLATE = ("skiplist_words", "do_query_expansion", "attend_to_expansion_tokens", "query_length", "document_length")
_PREFIXES = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
_PYLATE_DEFAULTS = {**_PREFIXES, "document_length": 180}
BEHIND_FIRST = "markers_behind_first_token"  # in the settings of a saved model


class Kind(NamedTuple):
    """What a setting may be: a test of its value, and the words for it."""

    accepts: Callable[[Any], bool]
    expected: str


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(accepts, value))


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 1


def _one_of(*values: Any) -> Kind:
    return Kind(lambda value: _is_text(value) and value in values, " or ".join(map(repr, values)))


_FLAG = Kind(_is_flag, "true or false")
_TEXT = Kind(_is_text, "a text")
_SIZE = Kind(_is_number, "a whole number of at least 1")
_LENGTH = Kind(
    lambda value: type(value) is int and value >= SHORTEST_LENGTH, f"a whole number of at least {SHORTEST_LENGTH}"
)
_WORDS = Kind(
    lambda value: _is_list_of(value, _is_text), "a list of words, such as tokenizer.convert_ids_to_tokens(ids)"
)
_PROMPTS = Kind(
    lambda value: isinstance(value, dict) and all(each is None or _is_text(each) for each in value.values()),
    "an object of texts",
)
_EXPANSION = Kind(
    lambda value: isinstance(value, dict) and ("length" not in value or _LENGTH.accepts(value["length"])),
    f"an object with a length of at least {SHORTEST_LENGTH}",
)
_TASKS = Kind(
    lambda value: _is_list_of(value, lambda each: each in ("query", "document")), 'a list of "query" and "document"'
)
_IDS = Kind(lambda value: _is_list_of(value, lambda each: is_count(each, 0)), "a list of token ids")

_MODEL_FILE = "config_sentence_transformers.json"
# By file: the settings that this library, or a loader that it uses, takes from it.
_OF_FILES: dict[str, dict[str, Kind]] = {
    _MODEL_FILE: {
        "query_length": _LENGTH,
        "document_length": _LENGTH,
        "query_expansion": _EXPANSION,
        "do_query_expansion": _FLAG,
        "attend_to_expansion_tokens": _FLAG,
        "attend_to_mask_tokens": _FLAG,
        BEHIND_FIRST: _FLAG,
        "query_prefix": _TEXT,
        "document_prefix": _TEXT,
        "prompts": _PROMPTS,
        "default_prompt_name": _TEXT,
        "skiplist_words": _WORDS,
    },
    "sentence_bert_config.json": {
        "max_seq_length": _SIZE,
        "query_length": _LENGTH,
        "document_length": _LENGTH,
        "query_expansion": _EXPANSION,
        "do_lower_case": _FLAG,
    },
    "artifact.metadata": {
        "query_maxlen": _LENGTH,
        "doc_maxlen": _LENGTH,
        "dim": _SIZE,
        "mask_punctuation": _FLAG,
        "attend_to_mask_tokens": _FLAG,
        "query_token_id": _TEXT,
        "doc_token_id": _TEXT,
        "similarity": _one_of("cosine"),
        "interaction": _one_of("colbert"),
    },
}
_OF_NEURAL_CHERCHE: dict[str, Kind] = {
    "max_length_query": _LENGTH,
    "max_length_document": _LENGTH,
    "query_prefix": _TEXT,
    "document_prefix": _TEXT,
    "add_special_tokens": Kind(lambda value: value is True, "true"),
}
_OF_MODULES: dict[str, dict[str, Kind]] = {
    "Dense": {
        "in_features": _SIZE,
        "out_features": _SIZE,
        "bias": _FLAG,
        "activation_function": _TEXT,
        "use_residual": _FLAG,
        "module_input_name": _TEXT,
        "module_output_name": _TEXT,
    },
    "MultiVectorMask": {"skiplist_words": _WORDS, "skiplist_tasks": _TASKS, "keep_only_token_ids": _IDS},
}
_BEHIND_AN_ENCODER = ("Dense", "MultiVectorMask", "Normalize", "Pooling")
# Of token vectors. "cosine" and "dot" are what both are for normalised vectors, in early files of PyLate.
_SIMILARITIES = ("maxsim", "meanmaxsim", "MaxSim", "cosine", "dot")
# Those that say nothing about vectors.
_DESCRIPTIONS = ("__version__", "model_type", "similarity_fn_name", "requirements", "truncate_dim")


def check_settings(checkpoint: Checkpoint) -> None:
    """Raise an error for a setting that cannot be meant, and name the settings that are not read."""
    for file, kinds in _OF_FILES.items():
        _check(checkpoint, file, checkpoint.read(file), kinds)
    if checkpoint.path(HEAD_FILES[0]) is not None:
        _check(checkpoint, "metadata.json", checkpoint.read("metadata.json"), _OF_NEURAL_CHERCHE)
    settings = checkpoint.read(_MODEL_FILE)
    default = settings.get("default_prompt_name")
    if default is not None and default not in {"query", "document", *settings.get("prompts", {})}:
        raise _refusal(checkpoint, f"{_MODEL_FILE} has default_prompt_name = {default!r:.60}, and no such prompt")
    if settings.get("model_type") != "SentenceTransformer" and _names_late_interaction(settings):
        _check(checkpoint, _MODEL_FILE, settings, {"similarity_fn_name": _one_of(*_SIMILARITIES)})
        unread = sorted(set(settings) - set(_OF_FILES[_MODEL_FILE]) - set(_DESCRIPTIONS))
        if unread:
            warn_caller(f"{checkpoint.name}: {_MODEL_FILE} has {', '.join(unread)}, which are not read.")
    _check_modules(checkpoint)


def _check_modules(checkpoint: Checkpoint) -> None:
    """Check the list of modules: an order that is meant, each folder once, and the settings of each."""
    modules = checkpoint.modules()
    if not all(isinstance(module, dict) for module in modules):
        raise _refusal(checkpoint, "modules.json is not a list of modules")
    numbers = [module["idx"] for module in modules if "idx" in module]
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    folders = [str(module.get("path") or "") for module in modules]
    own = [folder for folder, kind in zip(folders, kinds, strict=True) if kind in ("Transformer", *_OF_MODULES)]
    again = next((folder for folder in own if own.count(folder) > 1), None)
    if numbers != sorted(numbers):
        raise _refusal(checkpoint, f"modules.json lists its modules in the order {numbers}")
    if again is not None:
        raise _refusal(checkpoint, f"modules.json lists the folder {again!r} more than once")
    if kinds and (kinds[0] in _BEHIND_AN_ENCODER or kinds.count("Transformer") > 1):
        raise _refusal(checkpoint, f"modules.json lists {', '.join(kinds)}: one encoder comes first")
    if "MultiVectorMask" in kinds and "Dense" in kinds[_last_place(kinds, "Normalize") :]:
        raise _refusal(checkpoint, f"modules.json lists {', '.join(kinds)}: a Dense behind Normalize")
    for kind, folder in zip(kinds, folders, strict=True):
        known = _OF_MODULES.get(kind)
        if known is not None and folder:
            settings = checkpoint.read("config.json", folder)
            _check(checkpoint, f"{folder}/config.json", settings, known)
            if kind == "Dense":
                _check_dense(checkpoint, folder, settings)


def _last_place(kinds: Sequence[str], kind: str) -> int:
    """Return the last position of a kind of module; that behind the list where it has none."""
    return max((i for i, each in enumerate(kinds) if each == kind), default=len(kinds))


def _check_dense(checkpoint: Checkpoint, folder: str, settings: Mapping[str, Any]) -> None:
    unread = sorted(set(settings) - set(_OF_MODULES["Dense"]) - {"__version__"})
    missing = [name for name in ("in_features", "out_features", "activation_function") if name not in settings]
    named = str(settings.get("activation_function"))
    if unread or missing:
        reason = f"has {', '.join(unread)}, which no Dense reads" if unread else f"does not say {', '.join(missing)}"
        raise _refusal(checkpoint, f"{folder}/config.json {reason}")
    if not named.startswith("torch.") and not checkpoint.options.get("trust_remote_code"):
        raise ModelLoadError(
            checkpoint.name,
            ValueError(f"the layer {folder} has the activation {named!r:.100}, which is code of its own."),
            cure="To run it: trust_remote_code=True, or --trust-remote-code beside --model.",
        )
    if named.startswith("torch.") and not _is_layer_of_torch(named):
        raise _refusal(
            checkpoint, f"{folder}/config.json names the activation {named!r:.100}, which torch does not have"
        )


def _is_layer_of_torch(name: str) -> bool:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return isinstance(found, type) and issubclass(found, torch.nn.Module)


def _check(checkpoint: Checkpoint, place: str, settings: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    for key, kind in kinds.items():
        if key in settings and not kind.accepts(settings[key]):
            raise _refusal(checkpoint, f"{place} has {key} = {settings[key]!r:.100}, which is not {kind.expected}")


def _refusal(checkpoint: Checkpoint, reason: str) -> ModelLoadError:
    return ModelLoadError(checkpoint.name, ValueError(f"{reason}."), cure="Correct the file.")


def _names_late_interaction(settings: Mapping[str, Any]) -> bool:
    return settings.get("model_type") in ("ColBERT", "MultiVectorEncoder") or _is_of_pylate(settings)


def _is_of_pylate(settings: Mapping[str, Any]) -> bool:
    is_unnamed = settings.get("model_type") in (None, "ColBERT")
    return is_unnamed and any(settings.get(key) is not None for key in _OF_PYLATE)


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's settings with the markers and the length that it takes where none are named; null is absent."""
    # A query expansion of null is off, in sentence-transformers' own settings.
    given = {key: value for key, value in settings.items() if value is not None or key == "query_expansion"}
    if _is_of_pylate(given):
        return {**_PYLATE_DEFAULTS, **given}
    return given


def neural_cherche_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what neural-cherche's metadata.json says, completed; nothing for other checkpoints."""
    settings = checkpoint.read("metadata.json")
    if not settings or checkpoint.path(HEAD_FILES[0]) is None:
        return {}
    return {**_PREFIXES, "max_length_query": 32, "max_length_document": 256, **settings}


def dense_shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a linear layer with these settings has, with their shapes."""
    read = int(settings["in_features"])
    wrote = int(settings["out_features"])
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (wrote, read)}
    if settings.get("bias", True):
        shapes["linear.bias"] = (wrote,)
    if settings.get("use_residual") and read != wrote:
        shapes["residual.weight"] = (wrote, read)
    return shapes


def dense_folders(checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folder and the settings of each linear layer that a checkpoint lists."""
    for module in checkpoint.modules():
        if str(module.get("type")).endswith(".Dense"):
            folder = str(module.get("path") or "")
            yield folder, checkpoint.read("config.json", folder)
