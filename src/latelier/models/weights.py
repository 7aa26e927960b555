"""The files of a checkpoint: the rule that each of its tensors is used, or named, and errors about damaged ones.

transformers fills a parameter that no file has with random numbers, leaves out a tensor that no module takes, reports
both in a table and goes on. Here both are errors between the tokens and their vectors. What other tasks have behind the
vectors, such as a language model's head, is left to that table.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import SafetensorError
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn
from transformers.utils import is_accelerate_available

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.checkpoint import ADAPTER, WEIGHTS, Checkpoint
from latelier.models.location import without_weight_bars
from latelier.models.settings import dense_folders, dense_shapes, known_architectures
from latelier.models.text_encoder import TextEncoder
from latelier.utils.batching import move_features
from latelier.utils.files import json_items, parse_json
from latelier.utils.misc import warn_caller

# Options of the loader with which the files are others than those that are compared, or the encoder is another.
_OTHER_FILES = ("variant", "gguf_file", "state_dict", "quantization_config")
# Computed, not trained; and the encoder's pooler, which no token vector comes from.
_COMPUTED = r"(^|\.)position_ids$|rotary_emb\.inv_freq$"
_POOLER = r"(^|\.)pooler\."
# Heads of pretraining: they predict words from vectors.
_PRETRAINING = {"cls", "lm_head", "lm_predictions", "mask_predictions", "generator_predictions"}
_PRETRAINING |= {"discriminator_predictions", "vocab_transform", "vocab_layer_norm", "vocab_projector"}
_MOST_NAMED = 5
_COPY = "Copy the whole model again, or save it again with the library that trained it."
_ARGUMENTS = ("model_kwargs", "processor_kwargs", "config_kwargs")
# Those that this library passes itself.
_OWN_OPTIONS = {"use_safetensors", "weights_only"}
_ROLES = ("unk", "pad", "mask", "cls", "sep", "bos", "eos")
_WHOLE_NUMBERS = re.compile(r"u?int\d+|[UI]\d+|(float8|F8)\w*|bool", re.IGNORECASE)


class Unmatched(NamedTuple):
    """What differs between a file and the encoder that it was loaded into.

    `unused`: tensors that the encoder has no place for, by name, with their shapes; `missing`: parameters that no
    tensor filled.
    """

    unused: dict[str, tuple[int, ...]]
    missing: list[str]


def unmatched(checkpoint: Checkpoint, folder: str, encoder: Any) -> Unmatched:
    """Compare the files in a checkpoint's folder with the encoder that was loaded from them, adapters left out."""
    given = checkpoint.options.get("model_kwargs") or {}
    is_quantized = getattr(encoder.config, "quantization_config", None) is not None
    if is_quantized or any(given.get(option) for option in _OTHER_FILES):
        return Unmatched({}, [])
    shapes = checkpoint.shapes(folder)
    if not shapes:
        return Unmatched({}, [])
    prefix = f"{encoder.base_model_prefix}."
    saved = {_present_name(name).removeprefix(prefix) for name in shapes}
    own = {name.removeprefix(prefix) for name in _without_adapters(encoder, encoder.state_dict())}
    unused = [name for name in shapes if _present_name(name).removeprefix(prefix) not in own]
    parameters = _without_adapters(encoder, dict(encoder.named_parameters(remove_duplicate=False)))
    filled = {each.data_ptr() for name, each in parameters.items() if name.removeprefix(prefix) in saved}
    missing = [
        name
        for name, each in parameters.items()
        if name.removeprefix(prefix) not in saved and each.data_ptr() not in filled
    ]
    unused = _without(unused, encoder._keys_to_ignore_on_load_unexpected, _COMPUTED)
    missing = _without(missing, encoder._keys_to_ignore_on_load_missing, _POOLER)
    if unused and missing:  # transformers renames some tensors while it loads them
        report = _report_of_transformers(checkpoint, folder, encoder)
        unused = [name for name in report["unexpected_keys"] if not re.search(_COMPUTED, name)]
        missing = _without(sorted(report["missing_keys"]), _POOLER)
    # Of what transformers has renamed, the name in the file is not known.
    return Unmatched({name: shapes.get(name, ()) for name in sorted(unused)}, missing)


def _without_adapters(encoder: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an encoder by the names that they have without the adapters of peft around them."""
    adapters = "|".join(map(re.escape, getattr(encoder, "peft_config", ())))
    if not adapters:
        return dict(tensors)
    return {
        re.sub(r"\.(base_layer|original_module)(?=\.)", "", name): tensor
        for name, tensor in tensors.items()
        if not re.search(rf"\.({adapters})(\.|$)", name)
    }


def check_adapter(checkpoint: Checkpoint, folder: str, encoder: Any) -> None:
    """Raise an error for a tensor of an adapter, or of its base model, that is missing or that nothing takes."""
    from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    settings = checkpoint.read("adapter_config.json", folder)
    name = next(iter(encoder.peft_config))
    expected = get_peft_model_state_dict(encoder, adapter_name=name, save_embedding_layers=False)
    own = {_name_in_encoder(each, encoder) for each in expected}
    shapes = {_name_in_encoder(each, encoder): shape for each, shape in checkpoint.shapes(folder, ADAPTER).items()}
    refuse_missing(checkpoint.name, sorted(own - set(shapes)))
    whole = _without_adapters(encoder, encoder.state_dict())  # embeddings may be saved beside an adapter
    saved = checkpoint.tensors(checkpoint.shapes(folder, ADAPTER), folder, ADAPTER)
    repeated = {
        key
        for key, tensor in ((_name_in_encoder(each, encoder), tensor) for each, tensor in saved.items())
        if key in whole and _are_equal(tensor, whole[key])
    }
    unused = {each: shapes[each] for each in sorted(set(shapes) - own - repeated)}
    refuse_unused(checkpoint.name, unused, "which no part of its base model takes")
    base = Checkpoint(str(settings.get("base_model_name_or_path")), {**checkpoint.options, "revision": None})
    others, missing = unmatched(base, "", encoder)
    refuse_missing(base.name, missing)
    inside = inside_the_encoder(set(others) - behind_the_vectors(others, encoder), encoder)
    refuse_unused(base.name, {each: others[each] for each in sorted(inside)}, "which the encoder lacks")


def _name_in_encoder(name: str, encoder: Any) -> str:
    """Return the name of an adapter's tensor without what the classes around the encoder put before it."""
    return name.removeprefix("base_model.model.").removeprefix(f"{encoder.base_model_prefix}.")


def _present_name(name: str) -> str:
    """Return what transformers calls a parameter that the first BERT had by another name."""
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))


def _without(names: Sequence[str], *patterns: Any) -> list[str]:
    """Leave out names that match a regular expression, or one of several, or None."""
    flat = [each for given in patterns for each in ([given] if isinstance(given, str) else given or [])]
    return [name for name in names if not any(re.search(pattern, name) for pattern in flat)]


def _report_of_transformers(checkpoint: Checkpoint, folder: str, encoder: Any) -> dict[str, Any]:
    """Load the encoder again, without memory where accelerate is installed, for transformers' list of differences."""
    options: dict[str, Any] = {key: value for key, value in checkpoint.place.items() if key != "cache_folder"}
    options |= {"cache_dir": checkpoint.place["cache_folder"], "subfolder": folder}
    if is_accelerate_available():
        options["device_map"] = "meta"
    with _without_reports(), without_weight_bars():
        _, report = type(encoder).from_pretrained(
            checkpoint.name, config=encoder.config, output_loading_info=True, **options
        )
    return report


@contextmanager
def _without_reports() -> Iterator[None]:
    """Drop the table that transformers has shown at the first loading."""
    logger = logging.getLogger("transformers.modeling_utils")

    def keep(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def behind_the_vectors(names: Collection[str], encoder: Any) -> set[str]:
    """Return those names that are of other tasks: of pretraining, or of the class that config.json names."""
    tops = set(_PRETRAINING)
    for known in known_architectures(encoder.config.architectures or []):
        with suppress(Exception), torch.device("meta"):  # an encoder's part of a configuration may lack the rest
            tops |= {name for name, _ in known(encoder.config).named_children()}
    tops -= {encoder.base_model_prefix, *(name for name, _ in encoder.named_children())}
    return {name for name in names if name.partition(".")[0] in tops}


def inside_the_encoder(names: Collection[str], encoder: Any) -> list[str]:
    """Return those names that are of the encoder's own parts, such as a layer that it does not have."""
    prefix = f"{encoder.base_model_prefix}."
    own = {name for name, _ in encoder.named_children()}
    return [name for name in names if name.startswith(prefix) or name.partition(".")[0] in own]


def described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the names of tensors and their shapes, the first few of many."""
    named = [
        f"{name} ({' x '.join(map(str, shape))})" if shape else name
        for name, shape in list(shapes.items())[:_MOST_NAMED]
    ]
    more = len(shapes) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def check_type(checkpoint: Checkpoint) -> None:
    """Raise an error that names the weights if transformers does not know the type of their model."""
    config = checkpoint.read("config.json")
    kind = config.get("model_type")
    if kind is None or kind in transformers.CONFIG_MAPPING or "auto_map" in config:
        return
    shapes = checkpoint.shapes()
    tops: dict[str, list[str]] = {}
    for name in shapes:
        tops.setdefault(name.partition(".")[0], []).append(name)
    held = [
        f"{top} ({len(names)} tensors)" if len(names) > _MOST_NAMED else described({n: shapes[n] for n in names})
        for top, names in tops.items()
    ]
    raise ModelLoadError(
        checkpoint.name,
        ValueError(
            f"its type {kind!r:.60} is not one of transformers. Its weights hold {', '.join(held) or 'nothing'}."
        ),
        cure="Save its encoder alone with save_pretrained, and its head as a Dense module that modules.json lists.",
    )


def refuse_unused(name: str, shapes: Mapping[str, tuple[int, ...]], reason: str) -> None:
    """Raise an error for tensors between the tokens and their vectors that no module takes; for none, nothing."""
    if shapes:
        raise ModelLoadError(
            name,
            ValueError(f"its weights hold {described(shapes)}, {reason}, so its vectors would be wrong."),
            cure="Save the model again with the library that trained it, or list each layer in modules.json.",
        )


def refuse_missing(name: str, missing: Sequence[str]) -> None:
    """Raise an error for parameters that no tensor filled, which would be random; for none, nothing."""
    if missing:
        raise ModelLoadError(
            name,
            ValueError(f"its weights lack {described({each: () for each in missing})}, which would be random numbers."),
            cure=_COPY,
        )


def check_files(checkpoint: Checkpoint) -> None:
    """Raise an error for weights without their scale, and for linear layers of the list whose tensors are others.

    Files of weights beside those that are read are named. It reads the names and the sizes of tensors only, before
    anything is loaded.
    """
    encoder = checkpoint.encoder_folder()
    config = checkpoint.read("config.json", encoder)
    heads = dict(dense_folders(checkpoint))
    for folder in dict.fromkeys((encoder, *heads)):
        read, unread = checkpoint.weights_in(folder)
        if unread:
            warn_caller(f"{checkpoint.name}: {', '.join(unread)} beside {', '.join(read) or 'no weights'} is not read.")
    for folder in (encoder, *(heads if not checkpoint.options.get("quantization_config") else ())):
        for files in (WEIGHTS, ADAPTER):
            headers = checkpoint.headers(folder, files)
            unscaled = {
                f"{name} ({header.dtype})": header.shape
                for name, header in headers.items()
                if name.endswith(".weight") and _WHOLE_NUMBERS.fullmatch(header.dtype)
            }
            if unscaled and "quantization_config" not in config:
                refuse_unused(checkpoint.name, unscaled, "numbers without a scale")
    for folder, settings in heads.items():
        expected = dense_shapes(settings)
        found = checkpoint.shapes(folder)
        if found != expected:
            raise ModelLoadError(
                checkpoint.name,
                ValueError(
                    f"the weights in {folder} hold {described(found) or 'nothing'}, and its config.json is of "
                    f"{described(expected)}."
                ),
                cure=_COPY,
            )


def check_listed(checkpoint: Checkpoint, modules: Sequence[nn.Module], *, is_dense: bool) -> None:
    """Check the weights and the activations of a checkpoint that lists its modules; others pass.

    A tensor beside the encoder's is fine if a linear layer of the list holds the same numbers; another one is only
    named in a dense model (`is_dense`), which has no vectors of tokens of its own.
    """
    listed = checkpoint.modules()
    folders = {str(entry.get("path") or ""): str(entry.get("type")) for entry in listed}
    if not listed:
        return
    for config in sorted(Path(checkpoint.name).glob("*/config.json")):
        folder = config.parent.name
        if folder not in folders and "out_features" in checkpoint.read("config.json", folder):
            refuse_unused(checkpoint.name, checkpoint.shapes(folder), f"in {folder}, a layer that modules.json lacks")
    encoder = next((each for each in modules if isinstance(each, Transformer)), None)
    for folder, kind in folders.items():
        if kind.endswith(".Transformer") and encoder is not None:
            _check_encoder(checkpoint, folder, encoder.model, modules, is_dense=is_dense)


def _check_encoder(
    checkpoint: Checkpoint, folder: str, encoder: Any, modules: Sequence[nn.Module], *, is_dense: bool
) -> None:
    if not isinstance(encoder, transformers.PreTrainedModel):
        return
    if getattr(encoder, "_hf_peft_config_loaded", False):
        check_adapter(checkpoint, folder, encoder)
        return
    unused, missing = unmatched(checkpoint, folder, encoder)
    refuse_missing(checkpoint.name, missing)
    others = set(unused) - behind_the_vectors(unused, encoder)
    inside = set(inside_the_encoder(others, encoder))
    if not checkpoint.options.get("config_kwargs"):  # with which an encoder has fewer layers on purpose
        refuse_unused(checkpoint.name, {each: unused[each] for each in sorted(inside)}, "which the encoder lacks")
    used = [parameter for each in modules if isinstance(each, Dense) for parameter in each.parameters()]
    saved = checkpoint.tensors(others - inside, folder)
    left = {name: unused[name] for name in sorted(saved) if not any(_are_equal(saved[name], each) for each in used)}
    if is_dense and left:
        warn_caller(f"{checkpoint.name} has weights that are not used: {described(left)}.")
    elif left:
        refuse_unused(checkpoint.name, left, "which modules.json does not list")


def _are_equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left.float(), right.detach().cpu().float(), atol=1e-3)


@contextmanager
def damage_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn errors of the loader about the contents of files into `ModelLoadError`.

    Where arguments are handed on to transformers, or code of the model is trusted, only errors about the format of a
    file are: others may be of the arguments or of the code.
    """
    name = checkpoint.name
    options = checkpoint.options
    try:
        yield
    except (LatelierError, OSError, MemoryError):
        raise
    except ImportError as error:
        needed = ImportError(" ".join(str(error).split()))  # sentence-transformers names packages in lines of their own
        raise ModelLoadError(name, needed, cure="Install it, or take a checkpoint that does not need it.") from error
    except (JSONDecodeError, UnicodeDecodeError, SafetensorError, UnpicklingError) as error:
        raise ModelLoadError(name, error) from error
    except Exception as error:
        if "trust_remote_code" in str(error) and not options.get("trust_remote_code"):
            trusted = "trust_remote_code=True, or --trust-remote-code beside --model"
            raise InvalidArgumentError(f"the model {name!r:.300} has code of its own; to run it: {trusted}.") from error
        given = any(set(options.get(argument) or ()) - _OWN_OPTIONS for argument in _ARGUMENTS)
        if given or options.get("trust_remote_code"):
            raise
        reason: Exception = error
        cure = None
        if Path(name).is_dir():
            reason = ValueError(f"{type(error).__name__}: {error!s}")
            cure = _COPY
        if "ignore_mismatched_sizes" in str(error):
            reason = ValueError(_sizes(checkpoint) or "its tensors have other sizes than its config.json says.")
        raise ModelLoadError(name, reason, cure=cure) from error


def _sizes(checkpoint: Checkpoint) -> str:
    """Return which tensors of an encoder have other sizes than its configuration says; "" if that is not known."""
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint.name, local_files_only=True)
        with torch.device("meta"):
            encoder = transformers.AutoModel.from_config(config)
    except Exception:  # noqa: BLE001 (the error that this describes is raised in any case)
        return ""
    prefix = f"{encoder.base_model_prefix}."
    expected = {name.removeprefix(prefix): tuple(each.shape) for name, each in encoder.state_dict().items()}
    found = {_present_name(name).removeprefix(prefix): shape for name, shape in checkpoint.shapes().items()}
    others = {name: shape for name, shape in found.items() if expected.get(name, shape) != shape}
    if not others:
        return ""
    own = {name: expected[name] for name in others}
    return f"its weights hold {described(others)}, and its config.json is of {described(own)}."


def check_modules(name: str, modules: Sequence[Any], markers: Collection[str]) -> None:
    """Raise `ModelLoadError` if there are no modules, or if tokens have no embeddings or all words are [UNK].

    An encoder may have more embeddings than its tokenizer has tokens, and a tokenizer may need no files: only both are
    a fault. `markers`: tokens that the model puts before texts.
    """
    if not modules:
        raise ModelLoadError(name, FileNotFoundError("its modules.json lists no modules."))
    encoder = modules[0]
    if not isinstance(encoder, (Transformer, TextEncoder)) or encoder.tokenizer is None:
        return
    tokenizer: Any = encoder.tokenizer
    model: Any = encoder.model
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if rows is None:
        return
    _check_embeddings(name, tokenizer, rows, markers)
    kept = [
        number for each in modules if isinstance(each, MultiVectorMask) for number in each.keep_only_token_ids or ()
    ]
    if kept and max(kept) >= rows:
        raise ModelLoadError(
            name, ValueError(f"its mask keeps the token {max(kept)}, of {rows:,} embeddings."), cure="Correct the file."
        )
    files = sorted(set(getattr(tokenizer, "vocab_files_names", {}).values()))
    tokens = len(tokenizer)
    if not Path(name).is_dir():
        return
    if files and 2 * tokens < rows and not any(any(Path(name).rglob(file)) for file in files):
        reason = f"its tokenizer knows {tokens:,} tokens for {rows:,} embeddings, and the folder has none of "
        raise ModelLoadError(name, FileNotFoundError(f"{reason}{', '.join(files)}. Copy the whole folder."))


def check_numbers(name: str, model: nn.Module) -> None:
    """Raise an error for a parameter with a number that is not finite, which would reach each vector."""
    for parameter_name, parameter in model.named_parameters():
        if parameter.device.type == "meta" or not parameter.is_floating_point():
            continue
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float32)):
            raise ModelLoadError(
                name, ValueError(f"its weights hold {parameter_name} with numbers that are not finite."), cure=_COPY
            )


def try_out(name: str, model: Any) -> None:
    """Encode a text of each task, so that modules that do not fit together are errors of loading.

    A model of page images reads texts as queries only.
    """
    tasks = ("query", "document") if "image" not in model.modalities else ("query",)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for task in tasks:
            with torch.inference_mode():
                features = move_features(model.preprocess(["a word"], task=task), model.device)
                vectors = model.forward(features, task=task)["token_embeddings"]
            if vectors.shape[-1] != model.embedding_size or not vectors.any() or not vectors.isfinite().all():
                raise ValueError(
                    f"it makes vectors {tuple(vectors.shape)} that are zero, not finite, or of another size"
                )
    except LatelierError:
        raise
    except Exception as error:
        described = f"{type(error).__name__}: {error!s:.200}".split("\n")[0].rstrip(".")
        raise ModelLoadError(
            name, ValueError(f"a text cannot be encoded by its modules, {_pipeline(model)}: {described}."), cure=_COPY
        ) from error
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def _pipeline(model: Any) -> str:
    """Return the modules of a model, with the sizes that linear layers read and write."""
    sizes = [
        f" ({module.in_features} -> {module.out_features})" if isinstance(module, Dense) else "" for module in model
    ]
    return ", ".join(type(module).__name__ + size for module, size in zip(model, sizes, strict=True))


def _check_embeddings(name: str, tokenizer: Any, rows: int, markers: Collection[str]) -> None:
    """Raise an error if tokens of texts have no row among the encoder's embeddings.

    Special tokens that no text has, such as that of a picture in the tokenizer of a model of texts, need none.
    """
    if not getattr(tokenizer, "is_fast", False):  # others may compute embeddings from characters
        return
    template = _template_ids(tokenizer)
    used = {*markers, *(tokenizer.special_tokens_map.get(f"{role}_token") for role in _ROLES)}
    added = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
    beyond = [
        str(token.content)
        for number, token in sorted(tokenizer.added_tokens_decoder.items())
        if number >= rows and (not token.special or token.content in used)
    ]
    beyond += [token for token, number in tokenizer.get_vocab().items() if number >= rows and token not in added]
    beyond += [f"token {number} of its template" for number in template if number >= rows]
    if beyond:
        named = ", ".join(map(repr, beyond[:5])) + (f" and {len(beyond) - 5} more" if len(beyond) > 5 else "")
        raise ModelLoadError(
            name,
            ValueError(f"{named} of its tokenizer have no embeddings, of which it has {rows:,}."),
            cure="Load the encoder with transformers, resize_token_embeddings(len(tokenizer)), train it, and save it.",
        )


def _template_ids(tokenizer: Any) -> set[int]:
    """Return the ids that the tokenizer's template puts around a text, whatever its vocabulary says."""
    template = parse_json(tokenizer.backend_tokenizer.to_str()).get("post_processor") or {}
    named = [ids for key, ids in json_items(template) if key == "ids"]
    pairs = [template[role] for role in ("cls", "sep") if isinstance(template.get(role), list)]
    return {number for ids in (*named, *pairs) for number in ids if isinstance(number, int)}
