"""The settings in the files of a checkpoint: each that decides about vectors is used as it is meant, or refused.

Loaders take what they find by its truth: "false" is true, a length of 0 is none, a similarity that they do not know is
left out. So the table of this module says what each setting may be, before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
import transformers
from sentence_transformers import __version__ as st_version
from sentence_transformers.util.misc import import_from_string

from latelier.errors import ModelLoadError
from latelier.models.checkpoint import Checkpoint
from latelier.models.location import HEAD_FILES
from latelier.utils.batching import SHORTEST_LENGTH, encoder_limit
from latelier.utils.checks import is_count, short
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
_NAMES = Kind(lambda value: _is_list_of(value, _is_text), "a list of names")
_CODE = Kind(lambda value: isinstance(value, dict), "an object of classes")
_IDS = Kind(lambda value: _is_list_of(value, lambda each: is_count(each, 0)), "a list of token ids")

_SPACE = _one_of("token_embeddings", "sentence_embedding")
_MODEL_FILE = "config_sentence_transformers.json"
_ENCODER_FILE = "sentence_bert_config.json"
_TASK_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}


class Settings:
    """The settings of a file.

    `read`: the names of those that this library, or a loader that it uses, takes from the file, by their kind.
    `others`: what becomes of the rest: it is ``"refused"``, ``"named"``, or ``"left"`` to transformers. `harmless`:
    those of the rest that say nothing about vectors.
    """

    def __init__(
        self, read: Mapping[Kind, str], others: Literal["refused", "named", "left"], harmless: str = "__version__"
    ) -> None:
        self.kinds = {name: kind for kind, names in read.items() for name in names.split()}
        self.others = others
        self.harmless = harmless.split()


_OF_MODEL = Settings(
    {
        _LENGTH: "query_length document_length",
        _EXPANSION: "query_expansion",
        _FLAG: f"do_query_expansion attend_to_expansion_tokens attend_to_mask_tokens {BEHIND_FIRST}",
        _TEXT: "query_prefix document_prefix default_prompt_name",
        _PROMPTS: "prompts",
        _WORDS: "skiplist_words",
    },
    "named",
    "__version__ model_type similarity_fn_name requirements",
)
_OF_ENCODER = Settings(
    {
        _SIZE: "max_seq_length",
        _LENGTH: "query_length document_length",
        _EXPANSION: "query_expansion",
        _FLAG: "do_lower_case",
    },
    "refused",
    "transformer_task modality_config module_output_name processing_kwargs unpad_inputs family model_args model_kwargs "
    "tokenizer_args processor_kwargs config_args config_kwargs",
)
_OF_STANFORD = Settings(
    {
        _LENGTH: "query_maxlen doc_maxlen",
        _SIZE: "dim",
        _FLAG: "mask_punctuation attend_to_mask_tokens",
        _TEXT: "query_token_id doc_token_id",
        _one_of("cosine"): "similarity",
        _one_of("colbert"): "interaction",
        Kind(lambda value: value is False, "false"): "relu",
    },
    "named",
    # Of ColBERT's runs, resources, training, indexes and searches; and of trainers that others have made of it.
    "accumsteps amp avoid_fork_if_possible bsize centroid_score_threshold checkpoint collection distillation_alpha "
    "doc_token experiment gpus highest_quant_level ib_loss_weight ignore_scores index_bsize index_name index_path "
    "index_root kldiv_loss kldiv_weight kmeans_niters load_index_with_mmap lowest_quant_level lr marginmse_loss "
    "marginmse_weight maxsteps meta model_name name nbits ncells ndocs normalise_training_scores normalization_method "
    "nranks num_partitions_max nway overwrite quant_aware queries query_token rank reranker resume root save_every "
    "schedule_free schedule_free_wd total_visible_gpus triples use_ib_negatives warmup warmup_bert",
)
_OF_NEURAL_CHERCHE = Settings(
    {
        _LENGTH: "max_length_query max_length_document",
        _TEXT: "query_prefix document_prefix",
        Kind(lambda value: value is True, "true"): "add_special_tokens",
    },
    "named",
)
_OF_MODULES = {
    "Dense": Settings(
        {
            _SIZE: "in_features out_features",
            _FLAG: "bias use_residual",
            _TEXT: "activation_function module_input_name module_output_name",
        },
        "refused",
    ),
    "MultiVectorMask": Settings(
        {_WORDS: "skiplist_words", _TASKS: "skiplist_tasks", _IDS: "keep_only_token_ids"}, "refused"
    ),
    "Normalize": Settings({_SPACE: "module_input_name module_output_name"}, "refused"),
}
_OF_TRANSFORMERS = Settings({_NAMES: "architectures", _CODE: "auto_map"}, "left")
_BEHIND_AN_ENCODER = ("Dense", "MultiVectorMask", "Normalize", "Pooling")
# Of token vectors. "cosine" and "dot" are what both are for normalised vectors, in files of PyLate before it named the
# type of a model.
_SIMILARITIES = ("maxsim", "meanmaxsim", "MaxSim")
_EARLY_SIMILARITIES = (*_SIMILARITIES, "cosine", "dot")


def check_settings(checkpoint: Checkpoint) -> None:
    """Raise an error for a setting that cannot be meant, and name the settings that are not read."""
    settings = checkpoint.read(_MODEL_FILE)
    files = {_MODEL_FILE: _OF_MODEL, _ENCODER_FILE: _OF_ENCODER, "artifact.metadata": _OF_STANFORD}
    if checkpoint.path(HEAD_FILES[0]) is not None:
        files["metadata.json"] = _OF_NEURAL_CHERCHE
    for file, known in files.items():
        _check(checkpoint, file, checkpoint.read(file), known)
    is_late = settings.get("model_type") != "SentenceTransformer" and _names_late_interaction(settings)
    if is_late and "similarity_fn_name" in settings:
        known_similarities = _SIMILARITIES if "model_type" in settings else _EARLY_SIMILARITIES
        _check_one(checkpoint, _MODEL_FILE, settings, "similarity_fn_name", _one_of(*known_similarities))
    _check_prompts(checkpoint, settings, is_late=is_late)
    _check_modules(checkpoint)
    _check_encoder(checkpoint)
    _check_limits(checkpoint, files)


def _check_limits(checkpoint: Checkpoint, files: Mapping[str, Settings]) -> None:
    """Name the lengths above the encoder's positions, which count, and limits of the tokenizer below the lengths.

    Lengths count above those limits, as in ColBERT, PyLate and sentence-transformers. PyLate leaves the length of its
    last call in the limits, which is no fault.
    """
    folder = checkpoint.encoder_folder()
    lengths = {
        f"{file} has {key}": settings[key]
        for file, known in files.items()
        for settings in [checkpoint.read(file)]
        for key in settings
        if known.kinds.get(key) is _LENGTH
    }
    limits = {
        f"{_ENCODER_FILE} has max_seq_length": checkpoint.read(_ENCODER_FILE).get("max_seq_length"),
        "tokenizer_config.json has model_max_length": checkpoint.read("tokenizer_config.json", folder).get(
            "model_max_length"
        ),
    }
    positions = encoder_limit(SimpleNamespace(**checkpoint.read("config.json", folder))) or math.inf
    for place, length in lengths.items():
        if length > positions:
            _name(checkpoint, f"{place} = {length}, above the {positions} tokens that its positions allow")
    longest = min(positions, max(lengths.values(), default=0))
    left = [length - marker for length in lengths.values() for marker in (0, 1)]
    for place, limit in limits.items():
        if isinstance(limit, int) and limit < longest and limit not in left:
            _name(checkpoint, f"{place} = {limit}, below a length of {longest} tokens, which counts")


def _check_prompts(checkpoint: Checkpoint, settings: Mapping[str, Any], *, is_late: bool) -> None:
    """Refuse a default prompt that there is not; name what no task takes where a task has no prompt of its own."""
    prompts = {name: text for name, text in settings.get("prompts", {}).items() if text}
    default = settings.get("default_prompt_name")
    if default is not None and default not in {"query", "document", *settings.get("prompts", {})}:
        raise _refusal(checkpoint, f"{_MODEL_FILE} has default_prompt_name = {default!r:.60}, and no such prompt")
    names = {task: (task,) if is_late else every for task, every in _TASK_PROMPTS.items()}
    left = sorted(set(prompts).difference(*names.values()))
    bare = [task for task, every in names.items() if not any(name in prompts for name in every)]
    if default is not None:
        _name(
            checkpoint,
            f"{_MODEL_FILE} has default_prompt_name = {default!r:.60}; each task takes the prompt of its name",
        )
    elif left and bare:
        kinds = {"query": "queries", "document": "documents"}
        without = " and ".join(kinds[task] for task in bare)
        _name(
            checkpoint, f"{without} get no prompt: {_MODEL_FILE} has those of {', '.join(left)}, for prompt_name alone"
        )


def _check_encoder(checkpoint: Checkpoint) -> None:
    """Check that the files of transformers say the same of an encoder, and name code that is not run."""
    folder = checkpoint.encoder_folder()
    config = checkpoint.read("config.json", folder)
    _check(checkpoint, "config.json", config, _OF_TRANSFORMERS)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        return
    for architecture in known_architectures(config.get("architectures", [])):
        own = getattr(architecture.config_class, "model_type", kind)
        if own != kind:
            raise _refusal(
                checkpoint, f"config.json has model_type = {kind!r}, and the {architecture.__name__} of {own!r}"
            )
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute" and not hasattr(transformers.CONFIG_MAPPING[kind], "position_embedding_type"):
        raise _refusal(
            checkpoint,
            f"config.json has position_embedding_type = {positions!r:.60}, and transformers {transformers.__version__} "
            f"computes {kind!r} with 'absolute' ones alone",
        )
    if checkpoint.options.get("trust_remote_code"):
        return
    for file in ("config.json", "tokenizer_config.json", "adapter_config.json"):
        code = checkpoint.read(file, folder).get("auto_map")
        if code:
            _name(
                checkpoint,
                f"{file} names code of its own, {short(code)}, which is not run: transformers' {kind!r} takes its "
                "place. To run it: trust_remote_code=True, or --trust-remote-code beside --model",
            )


def known_architectures(names: Sequence[str]) -> Iterator[type[transformers.PreTrainedModel]]:
    """Yield the classes of transformers among the names in config.json."""
    for name in names:
        known = getattr(transformers, name, None)
        if isinstance(known, type) and issubclass(known, transformers.PreTrainedModel):
            yield known


def _check_modules(checkpoint: Checkpoint) -> None:
    """Check the list of modules: classes that there are, an order that is meant, each folder once, their settings."""
    modules = checkpoint.modules()
    numbers = [module["idx"] for module in modules if "idx" in module]
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    folders = [str(module.get("path") or "") for module in modules]
    own = [folder for folder, kind in zip(folders, kinds, strict=True) if kind in ("Transformer", *_OF_MODULES)]
    again = next((folder for folder in own if own.count(folder) > 1), None)
    for module in modules:
        _check_class(checkpoint, module["type"])
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
            if kind == "Normalize" and "MultiVectorMask" in kinds:
                _check_one(
                    checkpoint, f"{folder}/config.json", settings, "module_input_name", _one_of("token_embeddings")
                )


def _check_class(checkpoint: Checkpoint, name: str) -> None:
    """Raise an error for a class of sentence-transformers that its installed version does not have."""
    if not name.startswith("sentence_transformers."):
        return  # of this library, of PyLate, or code of the checkpoint's own
    try:
        import_from_string(name)
    except ImportError as error:
        raise ModelLoadError(
            checkpoint.name,
            ValueError(f"modules.json lists {name!r:.100}, which sentence-transformers {st_version} does not have."),
            cure="Correct the file, or install the version that it was saved with.",
        ) from error


def _last_place(kinds: Sequence[str], kind: str) -> int:
    """Return the last position of a kind of module; that behind the list where it has none."""
    return max((i for i, each in enumerate(kinds) if each == kind), default=len(kinds))


def _check_dense(checkpoint: Checkpoint, folder: str, settings: Mapping[str, Any]) -> None:
    missing = [name for name in ("in_features", "out_features", "activation_function") if name not in settings]
    named = str(settings.get("activation_function"))
    if missing:
        raise _refusal(checkpoint, f"{folder}/config.json does not say {', '.join(missing)}")
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


def _check(checkpoint: Checkpoint, place: str, settings: Mapping[str, Any], known: Settings) -> None:
    """Raise an error for a setting that is not what it may be; refuse or name those that are not known."""
    for key, kind in known.kinds.items():
        if key in settings:
            _check_one(checkpoint, place, settings, key, kind)
    others = sorted(set(settings) - set(known.kinds) - set(known.harmless))
    if others and known.others != "left":
        reason = f"{place} has {', '.join(others)}, which {'is' if len(others) == 1 else 'are'} not read"
        if known.others == "refused":
            raise _refusal(checkpoint, reason)
        _name(checkpoint, reason)


def _check_one(checkpoint: Checkpoint, place: str, settings: Mapping[str, Any], key: str, kind: Kind) -> None:
    value = settings.get(key)
    if not kind.accepts(value):
        raise _refusal(checkpoint, f"{place} has {key} = {value!r:.100}, which is not {kind.expected}")


def _name(checkpoint: Checkpoint, reason: str) -> None:
    warn_caller(f"{checkpoint.name}: {reason}.")


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
