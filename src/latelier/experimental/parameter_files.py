"""A module's parameters and constructor arguments in one safetensors file, the arguments as JSON in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from latelier.errors import InvalidArgumentError, StorageError
from latelier.indexes.base import PathLike
from latelier.utils.files import as_path, is_file, parse_json, replaced

__all__ = ["read_module", "write_module"]

_Module = TypeVar("_Module", bound=nn.Module)
_FORMAT_VERSION = "1"


def write_module(path: PathLike, module: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Write a module to a file, atomically.

    Parameters
    ----------
    path
        The file; an existing one is replaced.
    module
        The module.
    arguments
        The arguments of its constructor, JSON values.

    Raises
    ------
    StorageError
        If the file cannot be written; an existing file is unchanged.
    """
    path = as_path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    metadata = {
        "latelier": type(module).__name__,
        "version": _FORMAT_VERSION,
        "arguments": json.dumps(dict(arguments)),
    }
    try:
        with replaced(path) as new:
            save_file(tensors, new, metadata=metadata)
    except (SafetensorError, OSError, ValueError) as error:  # ValueError: a surrogate in the name
        raise StorageError(f"could not write {str(path)!r}: {error}; an existing file is unchanged.") from error


def read_module(path: PathLike, cls: type[_Module]) -> _Module:
    """Read a module that `write_module` wrote.

    Parameters
    ----------
    path
        The file.
    cls
        The module's class.

    Raises
    ------
    InvalidArgumentError
        If there is no such file, or it holds something else, is damaged or of a newer version.
    """
    path = as_path(path)
    if not is_file(path):
        raise InvalidArgumentError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{path} is not a complete safetensors file: {error}.") from error
    if metadata.get("latelier") != cls.__name__:
        raise InvalidArgumentError(f"{path} was not written by {cls.__name__}.save.")
    if metadata.get("version") != _FORMAT_VERSION:
        raise InvalidArgumentError(
            f"{path} has format version {metadata.get('version')}; this version of latelier reads version "
            f"{_FORMAT_VERSION}. Upgrade latelier, or train and save again."
        )
    try:
        arguments = parse_json(metadata["arguments"])
        with torch.device("meta"):  # compares the shapes before memory is taken for them
            cls(**arguments).load_state_dict(tensors, assign=True)
        module = cls(**arguments)
        module.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"{path} is damaged: {error}") from error
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidArgumentError(f"{path} holds weights that are not finite; train and save again.")
    return module
