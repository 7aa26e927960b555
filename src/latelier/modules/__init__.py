"""Neural building blocks: `Attention`, an encoder and a pooling of documents made of it, EfficientZero's dynamics."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.modules.attention import Attention
    from latelier.modules.attention_pooling import AttentionPooling
    from latelier.modules.dynamics import DynamicsNetwork
    from latelier.modules.feed_forward import FeedForward
    from latelier.modules.positions import RotaryPositions, SinusoidalPositions
    from latelier.modules.processors import ExplicitProcessor, FusedProcessor, Processor, SDPAProcessor, SlicedProcessor
    from latelier.modules.transformer_block import TransformerBlock
    from latelier.modules.transformer_encoder import TransformerEncoder
    from latelier.modules.value_support import ValueSupport

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
    "TransformerBlock",
    "TransformerEncoder",
    "ValueSupport",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    attention=("Attention",),
    attention_pooling=("AttentionPooling",),  # of sentence-transformers' class, which takes seconds to import
    dynamics=("DynamicsNetwork",),
    feed_forward=("FeedForward",),
    positions=("RotaryPositions", "SinusoidalPositions"),
    processors=("ExplicitProcessor", "FusedProcessor", "Processor", "SDPAProcessor", "SlicedProcessor"),
    transformer_block=("TransformerBlock",),
    transformer_encoder=("TransformerEncoder",),
    value_support=("ValueSupport",),
)
