"""What every exported module fulfils: a new one joins by an entry in `CASES`, and in `DROPOUT` if it has dropout."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from latelier import modules


class Case(NamedTuple):
    """A class, arguments of its constructor, and a function that makes positional inputs of a dtype."""

    cls: type[nn.Module]
    arguments: dict[str, Any]
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    starts_at_zero: bool = False


def sequences(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
    return lambda dtype: tuple(torch.randn(shape).to(dtype) for shape in shapes)


def token_ids(vocabulary_size: int, *shape: int) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
    def draw(dtype: torch.dtype) -> tuple[Tensor, ...]:
        mask = torch.rand(shape) > 0.3
        mask[..., 0] = True
        return torch.randint(vocabulary_size, shape), mask

    return draw


def state_and_hidden_state(dtype: torch.dtype) -> tuple[Any, ...]:
    """Inputs of a `DynamicsNetwork`: a state with an action, and the state of its LSTM."""
    encoding, hidden, cell = sequences((3, 5, 2, 3), (1, 3, 4), (1, 3, 4))(dtype)
    return encoding, (hidden, cell)


def features(dtype: torch.dtype) -> tuple[dict[str, Tensor]]:
    """Features of a batch in a pipeline of sentence-transformers, with masks that have holes."""
    mask = torch.tensor([[True, True, False, True, True], [False, True, True, False, True]])
    return ({"token_embeddings": torch.randn(2, 5, 6).to(dtype), "attention_mask": mask},)


DYNAMICS = {
    "observation_shape": (3, 2, 3),
    "action_encoding_dim": 1,
    "num_channels": 5,
    "reward_head_channels": 2,
    "fc_reward_layers": (6, 6),
    "output_support_size": 7,
    "flatten_output_size_for_reward_head": 12,
    "lstm_hidden_size": 4,
    "last_linear_layer_init_zero": False,  # so that outputs depend on all other weights
}
JOINT = {"added_kv_proj_dim": 6, "context_pre_only": False, "qk_norm": "rms_norm", "out_context_dim": 10}
CASES = {
    "Attention": Case(modules.Attention, {"query_dim": 8, "heads": 2, "dim_head": 4}, sequences((2, 3, 8))),
    "Attention, cross": Case(
        modules.Attention,
        {"query_dim": 8, "cross_attention_dim": 6, "kv_heads": 2, "dim_head": 4, "norm_num_groups": 2, "out_dim": 16},
        sequences((2, 8, 2, 3), (2, 5, 6)),
    ),
    "Attention, joint": Case(modules.Attention, {"query_dim": 8, **JOINT}, sequences((2, 3, 8), (2, 4, 6))),
    "AttentionPooling": Case(
        modules.AttentionPooling,
        {"dim": 6, "num_vectors": 3, "heads": 2, "dim_head": 4, "hidden_dim": 5},
        features,
        starts_at_zero=True,
    ),
    "DynamicsNetwork": Case(modules.DynamicsNetwork, DYNAMICS, state_and_hidden_state),
    "DynamicsNetwork, layer norm": Case(
        modules.DynamicsNetwork,
        {**DYNAMICS, "observation_shape": (3, 20, 48), "downsample": True, "num_res_blocks": 2, "norm_type": "LN"},
        state_and_hidden_state,
    ),
    "FeedForward": Case(modules.FeedForward, {"dim": 4, "hidden_dim": 6}, sequences((2, 3, 4))),
    "RotaryPositions": Case(modules.RotaryPositions, {"dim": 4, "scale": 2.0, "alpha": 8.0}, sequences((2, 3, 4))),
    "SinusoidalPositions": Case(modules.SinusoidalPositions, {"dim": 4, "base": 100.0}, sequences((2, 3, 4))),
    "TransformerBlock": Case(modules.TransformerBlock, {"dim": 8, "heads": 2}, sequences((2, 3, 8))),
    "TransformerBlock, post-norm": Case(
        modules.TransformerBlock,
        {"dim": 8, "heads": 4, "hidden_dim": 12, "activation": "relu", "norm_first": False, "eps": 1e-6},
        sequences((2, 3, 8)),
    ),
    "TransformerEncoder": Case(
        modules.TransformerEncoder, {"vocabulary_size": 3, "dim": 4, "heads": 2, "hidden_dim": 5}, token_ids(3, 2, 4)
    ),
    "TransformerEncoder, post-norm": Case(
        modules.TransformerEncoder,
        {"vocabulary_size": 3, "dim": 4, "num_layers": 1, "positions": "sinusoidal", "norm_first": False},
        token_ids(3, 2, 4),
    ),
}
DROPOUT = {
    "Attention": Case(modules.Attention, {"query_dim": 8, "dropout": 0.5}, sequences((2, 3, 8))),
    "FeedForward": Case(modules.FeedForward, {"dim": 8, "dropout": 0.5}, sequences((2, 3, 8))),
    "TransformerBlock": Case(modules.TransformerBlock, {"dim": 8, "dropout": 0.5}, sequences((2, 3, 8))),
    "TransformerEncoder": Case(
        modules.TransformerEncoder, {"vocabulary_size": 9, "dim": 8, "dropout": 0.5}, token_ids(9, 2, 3)
    ),
}


def build(case: Case) -> nn.Module:
    torch.manual_seed(0)
    module = case.cls(**case.arguments).eval()
    for parameter in module.parameters() if case.starts_at_zero else ():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return module


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def leaves(values: Any) -> list[Tensor]:
    inner = values.values() if isinstance(values, dict) else values
    return [tensor for value in inner for tensor in leaves(value)] if isinstance(values, (tuple, dict)) else [values]


def moved(values: Any, device: str) -> Any:
    if isinstance(values, dict):
        return {name: moved(value, device) for name, value in values.items()}
    return tuple(moved(value, device) for value in values) if isinstance(values, tuple) else values.to(device)


def floating(values: Any) -> list[Tensor]:
    return [tensor for tensor in leaves(values) if tensor.is_floating_point()]


def flat(out: Any) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in leaves(out)])


def call(module: nn.Module, case: Case, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    return flat(module(*case.inputs(dtype)))


def test_repr_shows_the_arguments_that_build_it(case):
    module = build(case)
    for name, value in case.arguments.items():
        if value != inspect.signature(case.cls).parameters[name].default:
            assert f"{name}={value!r}" in module.extra_repr()
    again = eval(f"modules.{case.cls.__name__}({module.extra_repr()})", {"modules": modules})
    assert repr(again) == repr(module)
    again.load_state_dict(module.state_dict())
    assert torch.equal(call(again.eval(), case), call(module, case))


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_is_for_training_alone(name):
    case = DROPOUT[name]
    module, inputs = build(case), case.inputs(torch.float32)
    assert torch.equal(module(*inputs), module(*inputs))
    assert not torch.equal(module.train()(*inputs), module(*inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_to_dtype(case, dtype):
    module = build(case)
    expected = call(module, case)
    assert module.to(dtype) is module
    assert {parameter.dtype for parameter in module.parameters()} <= {dtype}
    assert {tensor.dtype for tensor in floating(module(*case.inputs(dtype)))} == {dtype}
    # weights, inputs and a dozen intermediate results are rounded
    tolerance = 20 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-5
    torch.testing.assert_close(call(module, case, dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_gives_the_same_numbers(case):
    module = build(case)
    inputs = case.inputs(torch.float32)
    expected = flat(module(*inputs))
    found = flat(module.to("cuda")(*moved(inputs, "cuda")))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter_and_input(case):
    module = build(case)
    inputs = case.inputs(torch.float32)
    for tensor in floating(inputs):
        tensor.requires_grad_()
    flat(module(*inputs)).pow(3).sum().backward()  # the sum of squares of a layer norm's output is constant
    without = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert without == []
    assert [name for name, parameter in module.named_parameters() if not parameter.grad.any()] == []
    assert all(tensor.grad.any() for tensor in floating(inputs))


def test_gradients_are_those_of_finite_differences(case):
    module = build(case).double()
    inputs = case.inputs(torch.float64)
    # of the inputs; of the parameters where the inputs have none
    varied = [tensor.requires_grad_() for tensor in floating(inputs)] or list(module.parameters())
    assert torch.autograd.gradcheck(lambda *_: flat(module(*inputs)), varied)


def test_export_gives_the_same_numbers(case):
    module, inputs = build(case), case.inputs(torch.float32)
    exported = torch.export.export(module, inputs)
    torch.testing.assert_close(flat(exported.module()(*inputs)), flat(module(*inputs)))
