"""Neural building blocks: `Attention` with the processors that compute it, and an encoder made of it."""

from latelier.modules.attention import Attention
from latelier.modules.feed_forward import FeedForward
from latelier.modules.positions import RotaryPositions, SinusoidalPositions
from latelier.modules.processors import ExplicitProcessor, FusedProcessor, Processor, SDPAProcessor, SlicedProcessor
from latelier.modules.transformer_block import TransformerBlock
from latelier.modules.transformer_encoder import TransformerEncoder

__all__ = [
    "Attention",
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
]
