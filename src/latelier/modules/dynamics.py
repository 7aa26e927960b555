"""`DynamicsNetwork`: EfficientZero's network, which predicts the next hidden state and the value prefix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.layers import show_arguments
from latelier.utils.checks import check_choice, check_count, check_number


class LSTMStep(nn.Module):
    """Single-step LSTM with the parameters of ``nn.LSTM(input_size, hidden_size)``, which `torch.compile` can trace."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{self.input_size}, {self.hidden_size}"

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the hidden and the cell state, ``(1, b, hidden_size)`` each, after one position.

        `inputs`: ``(b, input_size)``; `state`: hidden and cell state before it, ``(1, b, hidden_size)`` each.
        """
        before = state[0].squeeze(0), state[1].squeeze(0)
        hidden, cell = torch.lstm_cell(
            inputs, before, self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
        )
        return hidden.unsqueeze(0), cell.unsqueeze(0)


class ResidualBlock(nn.Module):
    """Residual block of He et al. (2016): ``act(norm(conv(act(norm(conv(x))))) + x)``.

    Names and shapes of the parameters are those of ``ding.torch_utils.ResBlock(res_type="basic", bias=False)``.
    """

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.act = activation
        first, second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.conv1 = nn.Sequential(first, nn.BatchNorm2d(channels), activation)
        self.conv2 = nn.Sequential(second, nn.BatchNorm2d(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output for images ``(b, channels, h, w)``, of the same shape."""
        return self.act(self.conv2(self.conv1(images)) + images)


NormType: TypeAlias = Literal["BN", "LN"]
HiddenState: TypeAlias = tuple[Tensor, Tensor]

_DOWNSAMPLING = 16  # of the representation network of EfficientZero: four layers of stride 2


class DynamicsNetwork(nn.Module):
    """Dynamics network of EfficientZero (Ye et al. 2021, arXiv 2111.00210, appendix A).

    From a latent state ``s`` and an action ``a``, both images, it predicts the next latent state, and by an LSTM over
    the steps the *value prefix*: the sum of the rewards from the first step to this one, as logits over a support::

        s'       = blocks(act(norm(conv([s, a])) + s))
        h', c'   = LSTM(act(norm(conv1x1(s'))), (h, c))
        logits   = MLP(act(norm(h')))

    A `state_dict` of ``lzero.model.efficientzero_model.DynamicsNetwork`` (LightZero) with the same arguments loads as
    it is, and the outputs agree up to rounding.

    Parameters
    ----------
    observation_shape
        Shape of an observation; the last two entries are its height and width, such as ``(12, 96, 96)``. Only
        ``norm_type="LN"`` uses them.
    action_encoding_dim
        Channels of the action: the last ones of the input.
    num_res_blocks
        Number of residual blocks.
    num_channels
        Channels of the input: those of the latent state and of the action.
    reward_head_channels
        Channels that the 1x1 convolution makes of the latent state.
    fc_reward_layers
        Sizes of the hidden layers between the LSTM and the logits, which must be equal: LightZero gives all of them
        the first size.
    output_support_size
        Number of logits; see `ValueSupport`.
    flatten_output_size_for_reward_head
        Inputs of the LSTM: ``reward_head_channels * height * width`` of the latent state.
    downsample
        Whether latent states are 16 times smaller than observations in height and width, rounded up.
    lstm_hidden_size
        Channels of the LSTM's hidden state.
    last_linear_layer_init_zero
        Start with a last layer of zeros, so that all logits are 0.
    activation
        Activation function, one instance for all places; None: a new ``nn.ReLU(inplace=True)``. (LightZero's default
        is one instance for all networks.)
    reward_head_hidden_channels, flatten_input_size_for_reward_head
        What LightZero calls `fc_reward_layers` and `flatten_output_size_for_reward_head` since 0.2; they win, unless
        they are None.
    norm_type
        ``"BN"``: batch norms. ``"LN"``: layer norms, except in the residual blocks and after the LSTM.

    Raises
    ------
    InvalidArgumentError
        If an argument has a value that is not listed here, or arguments do not fit each other.

    Examples
    --------
    Latent states of 6 channels and actions of 2, as images of 3 x 3, from observations of 48 x 48:

    >>> import torch
    >>> from latelier.modules import DynamicsNetwork, ValueSupport
    >>> _ = torch.manual_seed(0)
    >>> dynamics = DynamicsNetwork(
    ...     (3, 48, 48),
    ...     num_channels=8,
    ...     reward_head_channels=4,
    ...     output_support_size=21,
    ...     flatten_output_size_for_reward_head=4 * 3 * 3,
    ...     downsample=True,
    ...     lstm_hidden_size=16,
    ... ).eval()
    >>> state, hidden = torch.rand(5, 6, 3, 3), None
    >>> for action in torch.rand(2, 5, 2, 3, 3):
    ...     encoding = torch.cat([state, action], dim=1)
    ...     state, hidden, logits = dynamics(encoding, hidden)
    >>> state.shape, hidden[0].shape, logits.shape
    (torch.Size([5, 6, 3, 3]), torch.Size([1, 5, 16]), torch.Size([5, 21]))

    The last layer starts with zeros, so every value prefix is 0:

    >>> ValueSupport(21).decode(logits.detach())
    tensor([0., 0., 0., 0., 0.])
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        action_encoding_dim: int = 2,
        num_res_blocks: int = 1,
        num_channels: int = 64,
        reward_head_channels: int = 64,
        fc_reward_layers: Sequence[int] = (32,),
        output_support_size: int = 601,
        flatten_output_size_for_reward_head: int = 64,
        downsample: bool = False,
        lstm_hidden_size: int = 512,
        last_linear_layer_init_zero: bool = True,
        activation: nn.Module | None = None,
        norm_type: NormType = "BN",
        *,
        reward_head_hidden_channels: Sequence[int] | None = None,
        flatten_input_size_for_reward_head: int | None = None,
    ) -> None:
        if reward_head_hidden_channels is not None:
            fc_reward_layers = reward_head_hidden_channels
        if flatten_input_size_for_reward_head is not None:
            flatten_output_size_for_reward_head = flatten_input_size_for_reward_head
        others = (
            "self",
            "__class__",
            "activation",
            "reward_head_hidden_channels",
            "flatten_input_size_for_reward_head",
        )
        arguments = {name: value for name, value in locals().items() if name not in (*others, "others")}
        super().__init__()
        check_choice("norm_type", norm_type, get_args(NormType))
        if len(set(fc_reward_layers)) > 1:
            raise InvalidArgumentError(
                f"received fc_reward_layers={list(fc_reward_layers)}; expected equal sizes. LightZero gives all layers "
                f"the first size: for its weights, pass {[fc_reward_layers[0]] * len(fc_reward_layers)}."
            )
        self.observation_shape = tuple(observation_shape)
        self.downsample = downsample
        lists = {"observation_shape": self.observation_shape, "fc_reward_layers": tuple(fc_reward_layers)}
        self._arguments = arguments | lists
        self.action_encoding_dim = action_encoding_dim
        self.num_channels = num_channels
        self.reward_head_channels = reward_head_channels
        self.output_support_size = output_support_size
        self.flatten_output_size_for_reward_head = flatten_output_size_for_reward_head
        self.lstm_hidden_size, self.norm_type = lstm_hidden_size, norm_type
        if activation is None:
            activation = nn.ReLU(inplace=True)
        self.activation = activation

        state_channels = num_channels - action_encoding_dim
        self.conv = nn.Conv2d(num_channels, state_channels, 3, padding=1, bias=False)
        self.norm_common = self._make_norm(state_channels)
        self.resblocks = nn.ModuleList(ResidualBlock(state_channels, self.activation) for _ in range(num_res_blocks))
        self.conv1x1_reward = nn.Conv2d(state_channels, reward_head_channels, 1)
        self.norm_reward = self._make_norm(reward_head_channels)
        self.lstm = LSTMStep(flatten_output_size_for_reward_head, lstm_hidden_size)
        self.norm_value_prefix = nn.BatchNorm1d(lstm_hidden_size)
        if norm_type == "BN":
            norm: type[nn.Module] = nn.BatchNorm1d
        else:
            norm = nn.LayerNorm
        layers: list[nn.Module] = []
        for before, after in pairwise([lstm_hidden_size, *fc_reward_layers, output_support_size]):
            layers += [nn.Linear(before, after), norm(after), self.activation]
        self.fc_reward_head = nn.Sequential(*layers[:-2])  # the last layer has neither norm nor activation
        if last_linear_layer_init_zero:
            for parameter in self.fc_reward_head[-1].parameters():
                nn.init.zeros_(parameter)

    def _make_norm(self, channels: int) -> nn.Module:
        """Return the norm of images of the size of latent states."""
        if self.norm_type == "BN":
            return nn.BatchNorm2d(channels)
        if self.downsample:
            divisor = _DOWNSAMPLING
        else:
            divisor = 1
        return nn.LayerNorm([channels, *(math.ceil(size / divisor) for size in self.observation_shape[-2:])])

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults; the activation is shown as a module."""
        return show_arguments(self, self._arguments)

    def forward(
        self, state_action_encoding: Tensor, reward_hidden_state: HiddenState | None = None
    ) -> tuple[Tensor, HiddenState, Tensor]:
        """Predict one step.

        Parameters
        ----------
        state_action_encoding
            Latent state and action, concatenated: ``(b, num_channels, height, width)``.
        reward_hidden_state
            Hidden and cell state of the LSTM after the step before, ``(1, b, lstm_hidden_size)`` each; None: zeros, for
            the first step.

        Returns
        -------
        next_latent_state : Tensor
            ``(b, num_channels - action_encoding_dim, height, width)``.
        next_reward_hidden_state : tuple of Tensor
            Hidden and cell state after this step, ``(1, b, lstm_hidden_size)`` each.
        value_prefix : Tensor
            Logits of the value prefix, ``(b, output_support_size)``; `ValueSupport` makes values of them.
        """
        batch = state_action_encoding.shape[0]  # len() would make it a constant of an export
        if reward_hidden_state is None:
            zeros = state_action_encoding.new_zeros(1, batch, self.lstm_hidden_size)
            reward_hidden_state = (zeros, zeros)

        latent_state = state_action_encoding[:, : self.num_channels - self.action_encoding_dim]
        next_latent_state = self.activation(self.norm_common(self.conv(state_action_encoding)) + latent_state)
        for block in self.resblocks:
            next_latent_state = block(next_latent_state)

        reward = self.activation(self.norm_reward(self.conv1x1_reward(next_latent_state))).flatten(1)
        next_hidden_state = self.lstm(reward, reward_hidden_state)
        value_prefix = self.fc_reward_head(self.activation(self.norm_value_prefix(next_hidden_state[0].squeeze(0))))
        return next_latent_state, next_hidden_state, value_prefix

    @torch.no_grad()
    def get_dynamic_mean(self) -> float:
        """Return the mean absolute weight of `conv` and `resblocks`, which predict the next state, for monitoring."""
        return _flatten([self.conv.weight, *(weight for block in self.resblocks for weight in block.parameters())])[1]

    @torch.no_grad()
    def get_reward_mean(self) -> tuple[np.ndarray, float]:
        """Return the weights ``(n,)`` of `conv1x1_reward` and `fc_reward_head`, and their mean absolute value.

        LightZero's method of this name looks for the head under another name, and raises an error.
        """
        return _flatten([self.conv1x1_reward.weight, *self.fc_reward_head.parameters()])


def _flatten(parameters: Iterable[Tensor]) -> tuple[np.ndarray, float]:
    """Return parameters as one array, and the mean of their absolute values, summed in float64."""
    flat = torch.cat([parameter.flatten() for parameter in parameters]).cpu()
    if flat.dtype == torch.bfloat16:  # unknown to numpy
        flat = flat.float()
    return flat.numpy(), flat.double().abs().mean().item()


class ValueSupport:
    """Distributions over the integers ``-n .. n`` that stand for scalar values (MuZero, Schrittwieser et al. 2020).

    A value ``x`` is scaled (Pohlen et al. 2018, arXiv 1805.11593) and then shared between the two integers next to
    ``h(x)``, so that the distribution's mean is ``h(x)``::

        h(x) = sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x

    `decode` always applies softmax; LightZero's function leaves it out where logits happen to sum to 1.

    Parameters
    ----------
    size
        Number of integers, ``2n + 1``: an odd number of at least 3.
    epsilon
        Slope that ``h`` has at least; 0: none.

    Examples
    --------
    >>> import torch
    >>> support = ValueSupport(5, epsilon=0.0)
    >>> support.encode(torch.tensor([0.0, 3.0, 1.25]))
    tensor([[0.0000, 0.0000, 1.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000, 0.0000]])
    >>> support.decode(torch.tensor([[0.0, 0.0, 20.0, 20.0, 0.0]]))
    tensor([1.2500])
    """

    def __init__(self, size: int = 601, *, epsilon: float = 0.001) -> None:
        self.size = check_count("size", size, least=3)
        if self.size % 2 == 0:
            raise InvalidArgumentError(f"received size={size}; expected an odd number: integers from -n to n.")
        self.epsilon = check_number("epsilon", epsilon, zero=True)

    def __repr__(self) -> str:
        """Return the call that makes an equal object."""
        return f"ValueSupport({self.size}, epsilon={self.epsilon})"

    def encode(self, values: Tensor) -> Tensor:
        """Return the distributions ``(..., size)``, float32 at least, that stand for values ``(...)``.

        Values whose ``h(x)`` is outside ``-n .. n`` are clamped.

        Parameters
        ----------
        values
            Of any shape.
        """
        values = _to_float(values)
        scaled = values.sign() * ((values.abs() + 1).sqrt() - 1) + self.epsilon * values
        positions = scaled.clamp(-(self.size // 2), self.size // 2) + self.size // 2
        below = positions.floor().clamp(max=self.size - 2)
        upper = (positions - below).unsqueeze(-1)
        probabilities = upper.new_zeros((*values.shape, self.size))
        index = below.long().unsqueeze(-1)
        return probabilities.scatter(-1, torch.cat([index, index + 1], -1), torch.cat([1 - upper, upper], -1))

    def decode(self, logits: Tensor) -> Tensor:
        """Return the values ``(...)`` of logits ``(..., size)``: the inverse of ``h`` at the mean of their softmax.

        Parameters
        ----------
        logits
            ``(..., size)``.
        """
        probabilities = _to_float(logits).softmax(dim=-1)
        n = self.size // 2
        weights = torch.arange(1, n + 1, device=logits.device, dtype=probabilities.dtype)
        # integers of opposite sign together: equal probabilities cancel exactly
        scaled = (probabilities[..., n + 1 :] - probabilities[..., :n].flip(-1)) @ weights
        # sqrt(|x| + 1), the root of epsilon * root^2 + root = |scaled| + 1 + epsilon, in the form without cancellation
        total = scaled.abs() + 1 + self.epsilon
        root = 2 * total / (1 + (1 + 4 * self.epsilon * total).sqrt())
        return scaled.sign() * (root - 1) * (root + 1)


def _to_float(tensor: Tensor) -> Tensor:
    """Return float64 as it is, and other dtypes as float32."""
    if tensor.dtype == torch.float64:
        return tensor
    return tensor.float()
