"""`ResidualBlock`: two 3x3 convolutions with batch norm, and a shortcut around them."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["ResidualBlock"]


class ResidualBlock(nn.Module):
    """Residual block of He et al. (2016): ``act(norm(conv(act(norm(conv(x))))) + x)``.

    Names and shapes of the parameters are those of ``ding.torch_utils.ResBlock(res_type="basic", bias=False)``.

    Parameters
    ----------
    channels
        Channels of input and output.
    activation
        Activation function, used in both places.

    Examples
    --------
    A new block whose second norm is 0 applies the activation alone:

    >>> import torch
    >>> from torch import nn
    >>> block = ResidualBlock(4, nn.ReLU())
    >>> _ = nn.init.zeros_(block.conv2[1].weight)
    >>> images = torch.randn(2, 4, 3, 3)
    >>> torch.equal(block(images), images.relu())
    True
    """

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.act = activation
        self.conv1 = nn.Sequential(_conv3x3(channels), nn.BatchNorm2d(channels), activation)
        self.conv2 = nn.Sequential(_conv3x3(channels), nn.BatchNorm2d(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output for images ``(b, channels, h, w)``, of the same shape."""
        return self.act(self.conv2(self.conv1(images)) + images)


def _conv3x3(channels: int) -> nn.Conv2d:
    """Return a convolution that keeps the shape; the norm after it has the bias."""
    return nn.Conv2d(channels, channels, 3, padding=1, bias=False)
