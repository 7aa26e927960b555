"""The arguments of modules: those of a constructor as its `repr` shows them, and what `Attention` is given, checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.utils import check_count, check_flag, check_number
from latelier.utils.checks import describe

_COUNTS = ("query_dim", "heads", "dim_head", "cross_attention_norm_num_groups")
_OPTIONAL_COUNTS = (
    "cross_attention_dim",
    "kv_heads",
    "added_kv_proj_dim",
    "norm_num_groups",
    "spatial_norm_dim",
    "out_dim",
    "out_context_dim",
)
_FLAGS = (
    "bias",
    "upcast_attention",
    "upcast_softmax",
    "out_bias",
    "scale_qk",
    "only_cross_attention",
    "residual_connection",
    "_from_deprecated_attn_block",
    "pre_only",
    "elementwise_affine",
    "is_causal",
)
_OPTIONAL_FLAGS = ("added_proj_bias", "context_pre_only")


def show_arguments(module: nn.Module, arguments: Mapping[str, Any]) -> str:
    """Return the constructor's arguments that differ from their defaults, as ``name=value, ...``.

    `module`: the module, whose class has the defaults.
    """
    defaults = inspect.signature(type(module).__init__).parameters
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != defaults[name].default)


def check_arguments(given: dict[str, Any]) -> None:
    """Check the constructor's arguments, given by name, and make Python's floats of those of numpy."""
    for name in (*_COUNTS, *_OPTIONAL_COUNTS):
        check_count(name, given[name], optional=name in _OPTIONAL_COUNTS)
    for name in (*_FLAGS, *_OPTIONAL_FLAGS):
        if given[name] is not None or name not in _OPTIONAL_FLAGS:
            check_flag(name, given[name])
    given["dropout"] = check_number("dropout", given["dropout"], zero=True, most=1.0)
    given["eps"] = check_number("eps", given["eps"], zero=True)
    given["rescale_output_factor"] = check_number("rescale_output_factor", given["rescale_output_factor"])
    _check_divisors(given)
    if given["added_kv_proj_dim"] is None:
        if given["only_cross_attention"]:
            raise InvalidArgumentError("received only_cross_attention=True without added_kv_proj_dim; give both.")
        if given["context_pre_only"] is not None:
            raise InvalidArgumentError("received context_pre_only without added_kv_proj_dim; give both.")
    elif given["is_causal"]:
        raise InvalidArgumentError("received is_causal=True with added_kv_proj_dim; a context has no order.")


def _check_divisors(given: dict[str, Any]) -> None:
    """Check that channels can be divided into heads and groups."""
    query_dim, out_dim, dim_head = given["query_dim"], given["out_dim"], given["dim_head"]
    if out_dim is not None and out_dim % dim_head:
        raise InvalidArgumentError(f"received out_dim={out_dim}; expected a multiple of dim_head={dim_head}.")
    heads = given["heads"] if out_dim is None else out_dim // dim_head
    if heads % (given["kv_heads"] or 1):
        raise InvalidArgumentError(f"received kv_heads={given['kv_heads']}; expected a divisor of the {heads} heads.")
    groups = given["norm_num_groups"] or 1
    if query_dim % groups:
        raise InvalidArgumentError(f"received norm_num_groups={groups}; expected a divisor of query_dim={query_dim}.")
    if given["spatial_norm_dim"] is not None and query_dim % 32:
        raise InvalidArgumentError(f"received query_dim={query_dim}; a spatial norm needs a multiple of 32.")
    if given["cross_attention_norm"] == "group_norm":
        channels = given["added_kv_proj_dim"] or given["cross_attention_dim"] or query_dim
        groups = given["cross_attention_norm_num_groups"]
        if channels % groups:
            raise InvalidArgumentError(
                f"received cross_attention_norm_num_groups={groups}; expected a divisor of the context's {channels} "
                "channels."
            )


def check_tensor(name: str, value: object) -> None:
    """Check that an input is a tensor.

    `name`: the input's name, for the message.
    """
    if not isinstance(value, Tensor):
        raise InvalidArgumentError(
            f"received {describe(value)} as {name}; expected a tensor, such as torch.tensor(...)."
        )


def check_inputs(attn: Any, hidden_states: Tensor, context: Tensor | None) -> None:
    """Check the types and shapes of the inputs of an `Attention`."""
    check_tensor("hidden_states", hidden_states)
    if context is not None:
        check_tensor("encoder_hidden_states", context)
    shape = tuple(hidden_states.shape)
    if len(shape) not in (3, 4) or shape[-1 if len(shape) == 3 else 1] != attn.query_dim:
        raise InvalidArgumentError(
            f"received hidden_states of shape {shape}; expected (batch, length, {attn.query_dim}) or "
            f"(batch, {attn.query_dim}, height, width)."
        )
    channels = attn.cross_attention_dim if attn.added_kv_proj_dim is None else attn.added_kv_proj_dim
    if context is None:
        if channels != attn.query_dim and attn.add_q_proj is None:
            raise InvalidArgumentError(f"received no encoder_hidden_states; expected (batch, length, {channels}).")
    elif context.ndim != 3 or context.shape[0] != shape[0] or context.shape[2] != channels:
        raise InvalidArgumentError(
            f"received encoder_hidden_states of shape {tuple(context.shape)} for hidden_states of shape {shape}; "
            f"expected ({shape[0]}, length, {channels})."
        )
