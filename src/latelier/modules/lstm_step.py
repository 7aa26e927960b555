"""`LSTMStep`: an LSTM that is given one position at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["LSTMStep"]


class LSTMStep(nn.Module):
    """LSTM of one layer, for one position; `torch.compile` traces it, which it does not do with `nn.LSTM`.

    Names, shapes and initial values of the parameters are those of ``nn.LSTM(input_size, hidden_size)``.

    Parameters
    ----------
    input_size, hidden_size
        Channels of the inputs and of the hidden state.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> step, lstm = LSTMStep(4, 8), nn.LSTM(4, 8)
    >>> step.load_state_dict(lstm.state_dict())
    <All keys matched successfully>
    >>> inputs, zeros = torch.randn(3, 4), torch.zeros(1, 3, 8)
    >>> state = (zeros, zeros)
    >>> outputs, _ = lstm(inputs.unsqueeze(0), state)
    >>> torch.allclose(step(inputs, state)[0], outputs, atol=1e-6)
    True
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
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

        Parameters
        ----------
        inputs
            ``(b, input_size)``.
        state
            Hidden and cell state before it, ``(1, b, hidden_size)`` each.
        """
        before = state[0].squeeze(0), state[1].squeeze(0)
        hidden, cell = torch.lstm_cell(
            inputs, before, self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
        )
        return hidden.unsqueeze(0), cell.unsqueeze(0)
