"""Neural building blocks: `Attention`, an encoder made of it, and the dynamics network of EfficientZero."""

from latelier.modules.attention import Attention
from latelier.modules.dynamics import DynamicsNetwork
from latelier.modules.feed_forward import FeedForward
from latelier.modules.positions import RotaryPositions, SinusoidalPositions
from latelier.modules.processors import ExplicitProcessor, FusedProcessor, Processor, SDPAProcessor, SlicedProcessor
from latelier.modules.transformer_block import TransformerBlock
from latelier.modules.transformer_encoder import TransformerEncoder
from latelier.modules.value_support import ValueSupport

__all__ = [
    "Attention",
    "DynamicsNetwork",
    "ExplicitProcessor",
    "FeedForward",
    "FusedProcessor",
    "Processor",
    "RotaryPositions",
    "SDPAProcessor",
    "SinusoidalPositions",
    "SlicedProcessor",
    "TransformerBlock",
    "TransformerEncoder",
    "ValueSupport",
]
