"""Neural building blocks: `Attention`, and the processors that compute it."""

from latelier.modules.attention import Attention
from latelier.modules.processors import ExplicitProcessor, FusedProcessor, Processor, SDPAProcessor, SlicedProcessor

__all__ = ["Attention", "ExplicitProcessor", "FusedProcessor", "Processor", "SDPAProcessor", "SlicedProcessor"]
