"""Neural building blocks: `Attention`, an encoder and a pooling of documents made of it, EfficientZero's dynamics."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.modules.attention import Attention
    from latelier.modules.attention_processors import (
        ExplicitProcessor,
        FusedProcessor,
        Processor,
        SDPAProcessor,
        SlicedProcessor,
    )
    from latelier.modules.dynamics import DynamicsNetwork, ValueSupport
    from latelier.modules.layers import RotaryPositions, SinusoidalPositions
    from latelier.modules.pooling import AttentionPooling
    from latelier.modules.transformer import FeedForward, TiedOutput, TransformerBlock, TransformerEncoder

__all__ = [
    "Attention",
    "AttentionPooling",
    "DynamicsNetwork",
    "ExplicitProcessor",
    "FeedForward",
    "FusedProcessor",
    "Processor",
    "RotaryPositions",
    "SDPAProcessor",
    "SinusoidalPositions",
    "SlicedProcessor",
    "TiedOutput",
    "TransformerBlock",
    "TransformerEncoder",
    "ValueSupport",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    attention=("Attention",),
    dynamics=("DynamicsNetwork", "ValueSupport"),
    layers=("RotaryPositions", "SinusoidalPositions"),
    pooling=("AttentionPooling",),
    attention_processors=("ExplicitProcessor", "FusedProcessor", "Processor", "SDPAProcessor", "SlicedProcessor"),
    transformer=("FeedForward", "TiedOutput", "TransformerBlock", "TransformerEncoder"),
)
