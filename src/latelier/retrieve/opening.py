"""What a retriever is made of: its model and its index, from what the user gives or from what an index stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latelier import indexes
from latelier.errors import IndexFormatError, InvalidArgumentError
from latelier.indexes import Index
from latelier.indexes.base import PathLike
from latelier.models.checkpoints.location import DEFAULT_MODEL
from latelier.retrieve.computation import Computation
from latelier.retrieve.encoder_store import is_exported
from latelier.retrieve.existing_index import open_if_made
from latelier.retrieve.model_identity import ModelIdentity
from latelier.retrieve.query_model import QueryModel
from latelier.utils.checks import describe, short
from latelier.utils.files import is_folder

__all__ = ["given_model", "open_existing", "open_or_make", "stored_model"]


def given_model(model: Any, device: str | None = None, options: Mapping[str, Any] | None = None) -> QueryModel:
    """Return the model that a user gives.

    Parameters
    ----------
    model
        A model, its name or folder, the folder of an exported encoder, or None for the default model.
    device, options
        Where and how to load a model given by name.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or a loaded model comes with a device or options.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise InvalidArgumentError(f"received {describe(options)} as model_options; expected a dict.")
    if isinstance(model, QueryModel):
        return model
    if isinstance(model, (str, os.PathLike, type(None))):
        return QueryModel.named(_portable_name(DEFAULT_MODEL if model is None else model), device, options or {})
    given = QueryModel.given(model)
    if device is not None or options:
        raise InvalidArgumentError("device and model_options are for a model given by name, not a loaded one.")
    return given


def stored_model(
    path: PathLike | Index,
    index: Index,
    model: PathLike | None,
    device: str | None,
    backend: str,
    computing: Mapping[str, Any] | None = None,
) -> QueryModel:
    """Return the model that filled an index, or the one that the user names in its place.

    Parameters
    ----------
    path, index
        The folder of the index, or the index itself, for messages; and the index.
    model
        Name or folder of a model, loaded with the options that the index stores, or of an exported encoder; None for
        the model that the index names.
    device, backend
        See `latelier.retrieve.Retriever.open`.
    computing
        The ``backend`` and the ``compute_dtype`` of the model itself, where they are not the default.

    Raises
    ------
    InvalidArgumentError
        If the index does not name its model, the model needs options that are not stored, or it is to compute in int8
        and the index was filled without, or the reverse.
    """
    options, computing = _stored_options(index), computing or {}
    if index.dim is not None:
        Computation.of(computing).check_stored(options)
    if model is not None:
        return given_model(model, device, computing if is_exported(model) else {**options, **computing})
    stored, which = ModelIdentity.stored_in(index), repr(index) if path is index else f"the index in {path}"
    if stored is None or stored.name is None:
        raise InvalidArgumentError(
            f"{which} does not name its model: it is empty, or was filled with embeddings or with a model given as an "
            "object. Give the model: Retriever(model, path), or --model."
        )
    if stored.unstored:
        raise InvalidArgumentError(
            f"{which} was filled by {short(stored.name)} with options that are not stored: "
            f"{', '.join(map(short, stored.unstored))}. Give the model: Retriever(model, path), or --model."
        )
    return QueryModel.stored(stored, device, backend, computing)


def open_existing(path: PathLike | Index, read_only: bool, max_memory: int | str | None) -> Index:
    """Open the index in a folder; an open index is returned.

    Parameters
    ----------
    path
        The folder, or an index.
    read_only, max_memory
        How to open the folder.

    Raises
    ------
    IndexFormatError
        If there is no index in the folder.
    InvalidArgumentError
        If an index comes with them.
    """
    if not isinstance(path, Index):
        return indexes.open(path, read_only=read_only, max_memory=max_memory)
    if read_only or max_memory is not None:
        raise InvalidArgumentError(
            f"received read_only={read_only} and max_memory={short(max_memory)} for an open index; they are for one "
            "given by its folder. Open the index with them."
        )
    return path


def open_or_make(path: Index | PathLike | None, max_memory: int | str | None = None) -> Index:
    """Open the index in a folder; make a `latelier.indexes.Flat` in an empty or missing one, or in memory for None.

    Parameters
    ----------
    path
        The folder, None, or an index, which is returned.
    max_memory
        Memory budget of the index.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or an index comes with a memory budget.
    """
    if isinstance(path, Index):
        if max_memory is not None:
            raise InvalidArgumentError(
                f"received max_memory={short(max_memory)} for an open index; it is for one given by its folder. Open "
                "the index with max_memory."
            )
        return path
    if not isinstance(path, (str, os.PathLike, type(None))):
        raise InvalidArgumentError(f"received {describe(path)} as the index; expected an Index, a folder or None.")
    opened = None if path is None else open_if_made(Path(path), max_memory=max_memory)
    return indexes.Flat(path, max_memory=max_memory) if opened is None else opened


def _stored_options(index: Index) -> dict[str, Any]:
    """Return the stored options of the model that filled an index; none if they are malformed."""
    try:
        stored = ModelIdentity.stored_in(index)
    except IndexFormatError:
        return {}
    return stored.options if stored else {}


def _portable_name(model: PathLike) -> str:
    """Return a folder as an absolute path, so that the index can be opened from any working directory."""
    name = os.fspath(model)
    return str(Path(name).resolve()) if is_folder(Path(name)) else name
