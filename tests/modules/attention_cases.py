"""Combinations of options that `Attention` and the class of diffusers both have, with inputs and weights for each.

Weights and inputs come from numpy's legacy generator, whose numbers are the same in every version.

Run where diffusers is installed, it stores the reference numbers of the tests:
``PYTHONPATH=src:tests/modules python tests/modules/attention_cases.py``.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from latelier import modules

QK_NORMS = (None, "layer_norm", "fp32_layer_norm", "rms_norm", "l2")


class Case(NamedTuple):
    """Arguments of both classes, inputs, and the processors that compute the same in each."""

    arguments: dict[str, Any]
    image: bool = False
    context: int | None = None
    mask: str | None = None
    theirs: str | None = None  # None: the default
    ours: str | None = None

    @property
    def name(self) -> str:
        arguments = ",".join(f"{key}={value}" for key, value in sorted(self.arguments.items()))
        return f"{arguments}|{self.image}|{self.context}|{self.mask}|{self.theirs}|{self.ours}"


def product(**options: tuple) -> Iterator[dict[str, Any]]:
    """Dictionaries of all combinations of the options' values."""
    return (dict(zip(options, values, strict=True)) for values in itertools.product(*options.values()))


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that are None, which are defaults."""
    return {name: value for name, value in options.items() if value is not None}


SMALL = {"query_dim": 8, "heads": 2, "dim_head": 4}
OUTPUT = ({}, {"residual_connection": True, "rescale_output_factor": 2.0})


def self_attention() -> Iterator[Case]:
    """Default processors over a sequence or an image."""
    for options in product(qk_norm=QK_NORMS, norm_num_groups=(None, 2), bias=(True, False), out_bias=(True, False)):
        for rest, image, mask in itertools.product(OUTPUT, (False, True), (None, "keys", "pairs")):
            yield Case({**SMALL, **given(options), **rest, "eps": 1e-3}, image, None, mask)


def cross_attention() -> Iterator[Case]:
    """Default processors over a context."""
    options = product(qk_norm=QK_NORMS, cross_attention_norm=(None, "layer_norm", "group_norm"), bias=(True, False))
    for chosen, dim, rest, image, mask in itertools.product(options, (None, 6), OUTPUT, (False, True), (None, "keys")):
        norm = {"cross_attention_norm_num_groups": 2} if chosen["cross_attention_norm"] == "group_norm" else {}
        arguments = {**SMALL, **given({**chosen, "cross_attention_dim": dim}), **norm, **rest}
        yield Case(arguments, image, dim or 8, mask)


def unscaled() -> Iterator[Case]:
    """The formula without a scale, and with float32 scores."""
    options = product(scale_qk=(True, False), upcast_attention=(True, False), upcast_softmax=(True, False))
    for chosen, groups, context, mask in itertools.product(options, (None, 2), (None, 8), (None, "keys", "pairs")):
        yield Case(
            {**SMALL, **chosen, **given({"norm_num_groups": groups})},
            False,
            context,
            mask,
            "AttnProcessor",
            "ExplicitProcessor",
        )
        if not chosen["scale_qk"]:
            yield Case({**SMALL, **chosen, **given({"norm_num_groups": groups})}, False, context, mask)


def grouped_queries() -> Iterator[Case]:
    """Fewer heads for keys and values than for queries, which one processor of diffusers computes."""
    options = product(heads=(4, 6), kv_heads=(1, 2), qk_norm=QK_NORMS, bias=(True, False))
    for chosen, context, mask in itertools.product(options, (None, 6), (None, "keys")):
        arguments = {**SMALL, **given({**chosen, "cross_attention_dim": context})}
        yield Case(arguments, False, context, mask, "StableAudioAttnProcessor2_0")


def across_heads() -> Iterator[Case]:
    """Norms of all heads together; the default processor of diffusers computes them for one head."""
    options = product(qk_norm=("layer_norm_across_heads", "rms_norm_across_heads"), elementwise_affine=(True, False))
    for chosen, context, mask in itertools.product(options, (None, 8), (None, "keys")):
        yield Case({"query_dim": 8, "heads": 1, "kv_heads": 1, "dim_head": 4, **chosen}, False, context, mask)


def output_dimension() -> Iterator[Case]:
    """Other channels out than in, and heads that follow from them."""
    for out_dim, qk_norm, affine, mask in itertools.product((4, 12), QK_NORMS, (True, False), (None, "keys")):
        arguments = {**SMALL, "out_dim": out_dim, **given({"qk_norm": qk_norm}), "elementwise_affine": affine}
        yield Case(arguments, False, None, mask)


def spatial_norm() -> Iterator[Case]:
    """Images whose norm has a condition."""
    for groups, residual, context in itertools.product((None, 4), (True, False), (None, 8)):
        arguments = {**SMALL, "query_dim": 32, "spatial_norm_dim": 3, "residual_connection": residual}
        dim = {} if context is None else {"cross_attention_dim": context}
        yield Case({**arguments, **dim, **given({"norm_num_groups": groups})}, True, context)


def sliced() -> Iterator[Case]:
    """A few heads at a time."""
    for theirs, ours in (("SlicedAttnProcessor", "SlicedProcessor"),):
        for bias, groups, context, mask in itertools.product((True, False), (None, 2), (None, 8), (None, "keys")):
            arguments = {**SMALL, "bias": bias, **given({"norm_num_groups": groups})}
            yield Case(arguments, False, context, mask, theirs, ours)


def fused() -> Iterator[Case]:
    """Projections as one product."""
    options = product(qk_norm=QK_NORMS, bias=(True, False))
    for chosen, context, mask, image in itertools.product(options, (None, 6), (None, "keys"), (False, True)):
        arguments = {**SMALL, **given({**chosen, "cross_attention_dim": context})}
        yield Case(arguments, image, context, mask, "FusedAttnProcessor2_0", "FusedProcessor")


def added_projections() -> Iterator[Case]:
    """A context with keys and values of its own; in diffusers always with a residual and a group norm."""
    processors = (
        ("AttnAddedKVProcessor2_0", None),
        ("AttnAddedKVProcessor", "ExplicitProcessor"),
        ("SlicedAttnAddedKVProcessor", "SlicedProcessor"),
    )
    options = product(only_cross_attention=(True, False), added_proj_bias=(True, False), bias=(True, False))
    norms = (None, "layer_norm", "group_norm")
    for chosen, dim, norm, mask, pair in itertools.product(options, (8, 6, None), norms, (None, "keys"), processors):
        arguments = {**SMALL, **chosen, "added_kv_proj_dim": dim or 8, "norm_num_groups": 2}
        if norm == "layer_norm" and dim == 6:
            continue  # diffusers sizes the layer norm by cross_attention_dim
        if norm is not None:
            arguments |= {"cross_attention_norm": norm, "cross_attention_norm_num_groups": 2}
        if mask is not None and (chosen["only_cross_attention"] or dim is None):
            continue  # diffusers pads the mask by the keys that are not there
        yield Case({**arguments, "residual_connection": True}, True, dim, mask, *pair)


def joint() -> Iterator[Case]:
    """Queries of both the sequence and the context."""
    kinds = (None, "layer_norm", "fp32_layer_norm", "rms_norm")
    options = product(context_pre_only=(True, False), qk_norm=kinds, bias=(True, False), out_context_dim=(None, 10))
    pairs = (("JointAttnProcessor2_0", None), ("FusedJointAttnProcessor2_0", "FusedProcessor"))
    for chosen, out_dim, context, pair in itertools.product(options, (None, 12), (None, 6), pairs):
        arguments = {**SMALL, **given({**chosen, "out_dim": out_dim}), "added_kv_proj_dim": 6}
        if pair[1] and (context is None or chosen["qk_norm"]):
            continue  # diffusers needs the context here, and leaves the norms out
        yield Case(arguments, False, context, None, *pair)


def mixed() -> Iterator[Case]:
    """Any options together, drawn at random, for the default processors."""
    random = np.random.RandomState(0)
    choices: dict[str, tuple] = {
        "cross_attention_dim": (None, 6, 8),
        "heads": (1, 2, 4),
        "dim_head": (2, 4),
        "dropout": (0.0, 0.3),
        "bias": (True, False),
        "upcast_attention": (True, False),
        "upcast_softmax": (True, False),
        "cross_attention_norm": (None, "layer_norm", "group_norm"),
        "qk_norm": QK_NORMS,
        "norm_num_groups": (None, 2, 4),
        "out_bias": (True, False),
        "eps": (1e-5, 1e-2),
        "rescale_output_factor": (1.0, 1.5),
        "residual_connection": (True, False),
        "out_dim": (None, 8),
        "elementwise_affine": (True, False),
    }
    for _ in range(600):
        arguments = {name: values[random.randint(len(values))] for name, values in choices.items()}
        mask = (None, "keys", "pairs", "boolean")[random.randint(4)]
        image, with_context = random.randint(2) == 0, arguments["cross_attention_dim"] == 6 or random.randint(2) == 0
        context = (arguments["cross_attention_dim"] or 8) if with_context else None
        norm = {"cross_attention_norm_num_groups": 2}
        yield Case({"query_dim": 8, **norm, **given(arguments)}, image, context, mask)


FAMILIES = {
    family.__name__: family
    for family in (
        self_attention,
        cross_attention,
        unscaled,
        grouped_queries,
        across_heads,
        output_dimension,
        spatial_norm,
        sliced,
        fused,
        added_projections,
        joint,
        mixed,
    )
}


def fill(module: nn.Module) -> nn.Module:
    """Set all parameters, in the order of their names, to numbers that depend on nothing else."""
    random = np.random.RandomState(7)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            values = random.standard_normal(tuple(parameter.shape)) * 0.4
            parameter.copy_(torch.from_numpy(values))
    return module.eval()


def inputs(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states, and what goes with them by name."""
    random = np.random.RandomState(3)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    dim = case.arguments["query_dim"]
    hidden_states = draw(2, dim, 2, 2) if case.image else draw(2, 4, dim)
    more = {}
    if case.context is not None:
        more["encoder_hidden_states"] = draw(2, 3, case.context)
    keys = 4 if case.context is None else 3
    if case.mask is not None:
        mask = draw(2, 4 if case.mask == "pairs" else 1, keys)
        mask[0, :, 1] = -10000.0  # as good as excluded; another key remains
        more["attention_mask"] = mask > -0.5 if case.mask == "boolean" else mask
    if "spatial_norm_dim" in case.arguments:
        more["temb"] = draw(2, case.arguments["spatial_norm_dim"], 1, 1)
    return hidden_states, more


def outputs(module: nn.Module, case: Case) -> list[Tensor]:
    """The outputs of either class: one tensor, or two in joint attention."""
    hidden_states, more = inputs(case)
    with torch.no_grad():
        result = module(hidden_states, **more)
    return list(result) if isinstance(result, tuple) else [result]


def import_peer() -> ModuleType:
    """The module of diffusers that holds its attention; raises ImportError where it is not installed."""
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    from diffusers.models import attention_processor

    return attention_processor


def build(library: Any, case: Case, processor: str | None) -> Any:
    """The `Attention` of a library, with the case's arguments and processor, and initial weights of a fixed seed."""
    torch.manual_seed(0)
    module = library.Attention(**case.arguments)
    if processor is not None:
        module.set_processor(getattr(library, processor)(*([2] if "Sliced" in processor else [])))
    return module


def ready(module: Any, processor: str | None) -> Any:
    """Fill the weights, and fuse them where the processor needs that."""
    fill(module)
    if processor is not None and "Fused" in processor:
        module.fuse_projections()
    return module


def ours(case: Case) -> Any:
    return ready(build(modules, case, case.ours), case.ours)


def theirs(peer: ModuleType, case: Case) -> Any:
    return ready(build(peer, case, case.theirs), case.theirs)


def stored_cases(family: str) -> Iterator[Case]:
    """A dozen cases of a family, evenly spaced, whose outputs are stored."""
    cases = list(FAMILIES[family]())
    step = max(1, len(cases) // 12)
    return iter(cases[step // 2 :: step][:12])


if __name__ == "__main__":
    peer = import_peer()
    numbers = {
        family: np.concatenate(
            [out.flatten().numpy() for case in stored_cases(family) for out in outputs(theirs(peer, case), case)]
        )
        for family in FAMILIES
    }
    np.savez_compressed(Path(__file__).with_name("attention_references.npz"), **numbers)
