"""Neural building blocks: `Attention` with the processors that compute it, and position encodings."""

from latelier.modules.attention import Attention
from latelier.modules.positions import RotaryPositions, SinusoidalPositions
from latelier.modules.processors import ExplicitProcessor, FusedProcessor, Processor, SDPAProcessor, SlicedProcessor

__all__ = [
    "Attention",
    "ExplicitProcessor",
    "FusedProcessor",
    "Processor",
    "RotaryPositions",
    "SDPAProcessor",
    "SinusoidalPositions",
    "SlicedProcessor",
]
