"""Which model to open: one pure function from what a user says and an index stores to what is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.models.location import DEFAULT_MODEL
from latelier.retrieve.identity import ModelIdentity
from latelier.utils.checks import check_choice, short

Purpose: TypeAlias = Literal["use", "open", "fill"]
Kind: TypeAlias = Literal["object", "export", "checkpoint"]


class Asked(NamedTuple):
    """What a user says about a model.

    `model`: a name, a folder, an address, a loaded model, or None. `options`: of loading, with ``compute_dtype`` and
    ``backend``. `purpose`: ``"use"``: None stands for the default model; ``"open"``: for the one that the index names;
    ``"fill"``: for that of an index with documents, and otherwise for the default one, as the command line takes it.
    """

    model: Any = None
    options: Mapping[str, Any] = {}
    device: str | None = None
    backend: str = "auto"
    trusts_code: bool = False
    purpose: Purpose = "use"


class Stored(NamedTuple):
    """What an index says about the model that filled it, whether it has had documents, and its model of queries."""

    identity: ModelIdentity | None = None
    is_filled: bool = False
    of_queries: ModelIdentity | None = None


class Machine(NamedTuple):
    """What this machine has: ONNX Runtime, and an accelerator, to look for which torch has to be imported."""

    has_onnx: bool
    has_accelerator: Callable[[], bool]


class Choice(NamedTuple):
    """What is opened.

    `loading`: options to load the model with; `compute_dtype`: what it computes in; `identity`: the options that an
    index stores. `exported`: the exported encoder to look for, which then encodes queries: ``"cached"``, by the
    identity that the index stores, or ``"int8"``, which is made if it can be without the model; None: the model
    encodes. `needs_export`: without one it is an error. `is_trusted`: named by the user, not by an index alone.
    """

    kind: Kind
    name: str | None = None
    loading: Mapping[str, Any] = {}
    compute_dtype: str = "auto"
    device: str | None = None
    identity: Mapping[str, Any] = {}
    exported: Literal["cached", "int8"] | None = None
    needs_export: bool = False
    is_trusted: bool = True


_KINDS = {
    "object": "a loaded model",
    "export": "an exported encoder, which runs on the CPU,",
}


def choose(asked: Asked, kind: Kind, stored: Stored, machine: Machine) -> Choice:
    """Return what to open; `kind` is that of the model that the user names."""
    check_choice("backend", asked.backend, ["auto", "onnx", "torch"])
    identity = stored.identity
    is_new = asked.purpose == "fill" and identity is None and not stored.is_filled
    follows = asked.purpose != "use" and not is_new
    if asked.trusts_code and asked.model is None:
        raise InvalidArgumentError(
            "only a model that you name is trusted, not one that an index names.", advice="give-model"
        )
    if asked.model is not None and asked.backend != "auto" and (kind == "export") != (asked.backend == "onnx"):
        raise InvalidArgumentError(
            f"received backend={asked.backend!r} for {short(str(asked.model))}, which is "
            f"{'' if kind == 'export' else 'not '}the folder of an exported encoder (Retriever.export_encoder() "
            "returns one); omit one of them."
        )
    options = dict(asked.options)
    if identity is not None:
        _check_dtype(stored, identity, options)
    if follows and asked.model is None:
        return _of_index(asked, stored)
    if kind != "checkpoint":
        _refuse_options(asked, kind)
        return Choice(kind, None if kind == "object" else os.fspath(asked.model))
    says_how = "backend" in options or "compute_dtype" in options
    if identity is not None and follows:
        options = {**identity.options, **options}
    elif identity is not None and not says_how and identity.options.get("compute_dtype") == "int8":
        options["compute_dtype"] = "int8"
    if is_new and not says_how and _is_best_in_int8(asked, machine):
        options["compute_dtype"] = "int8"
    computation = Computation.of(options)
    if asked.trusts_code:
        computation.loading_options["trust_remote_code"] = True
    exported: Literal["int8"] | None = None
    if computation.compute_dtype == "int8" and asked.device in (None, "cpu"):
        exported = "int8"
    name = os.fspath(DEFAULT_MODEL if asked.model is None else asked.model)
    return Choice("checkpoint", name, *computation[:2], asked.device, computation.identity_options, exported)


def _of_index(asked: Asked, stored: Stored) -> Choice:
    """Return the model that an index names; its exported encoder is looked for on a CPU."""
    identity = stored.identity
    if asked.purpose == "open" and stored.of_queries is not None:
        identity = stored.of_queries
    if identity is None or identity.name is None or identity.unstored:
        reason = "does not name its model: it is empty, or filled with embeddings or with a model given as an object"
        if identity is not None and identity.name is not None:
            unstored = ", ".join(map(short, identity.unstored))
            reason = f"was filled by {short(identity.name)} with options that are not stored: {unstored}"
        raise InvalidArgumentError(f"the index {reason}.", advice="give-model")
    on_cpu = asked.device in (None, "cpu")
    if asked.backend == "onnx" and not on_cpu:
        raise InvalidArgumentError(
            f"there is no exported encoder of {short(identity.name)} for device={asked.device!r}, only for the CPU.",
            advice="export-encoder",
        )
    options = {**identity.options, **asked.options}
    if not on_cpu or asked.backend == "torch":  # which do not compute in int8, unless the user asks for it
        options = {**identity.options, "compute_dtype": None, **asked.options}
    computation = Computation.of(options)
    return Choice(
        "checkpoint",
        identity.name,
        *computation[:2],
        asked.device,
        identity.options,
        "cached" if on_cpu and asked.backend != "torch" else None,
        needs_export=asked.backend == "onnx",
        is_trusted=False,
    )


def _refuse_options(asked: Asked, kind: Kind) -> None:
    device = None if kind == "export" and asked.device == "cpu" else asked.device
    if device is not None or asked.options:
        raise InvalidArgumentError(f"{_KINDS[kind]} takes no device and no options; omit device and model_options.")


def _is_best_in_int8(asked: Asked, machine: Machine) -> bool:
    """Whether a model is as good in int8, and this machine is fastest in it: the default model on a CPU.

    Its nDCG@10 stays the same; others were not measured.
    """
    if asked.model not in (None, DEFAULT_MODEL, DEFAULT_MODEL.split("/")[1]) or not machine.has_onnx:
        return False
    return asked.device == "cpu" or (asked.device is None and not machine.has_accelerator())


def _check_dtype(stored: Stored, identity: ModelIdentity, options: Mapping[str, Any]) -> None:
    wanted = options.get("compute_dtype") or "auto"
    is_int8 = identity.options.get("compute_dtype") == "int8"
    if not stored.is_filled or wanted == "auto" or (wanted == "int8") == is_int8:
        return
    filled = "in int8" if is_int8 else "in another dtype than int8"
    raise InvalidArgumentError(
        f"received compute_dtype={wanted!r}, but the index was filled {filled}; omit it, or make a new index."
    )


class Computation(NamedTuple):
    """A model's options: to load it with, to compute in, and those (int8) that say which vectors it makes."""

    loading_options: dict[str, Any]
    compute_dtype: str
    identity_options: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Computation:
        """Divide the options that a user gives, or that an index stores."""
        others = dict(options)
        backend = others.pop("backend", None)
        dtype = others.pop("compute_dtype", None) or "auto"
        if dtype == "int8":
            identity = {**others, "compute_dtype": "int8"}
        else:
            identity = dict(others)
        if backend is None and dtype == "int8":
            backend = "onnx"
        if backend not in (None, "torch", "onnx", "auto"):  # whose vectors may differ
            identity["backend"] = backend
        return cls(others if backend is None else {**others, "backend": backend}, dtype, identity)
