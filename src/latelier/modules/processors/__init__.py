"""Ways to compute the attention of one `Attention` module: equal outputs and gradients, different memory and speed."""

from latelier.modules.processors.base import Processor
from latelier.modules.processors.explicit import ExplicitProcessor
from latelier.modules.processors.fused import FusedProcessor
from latelier.modules.processors.sdpa import SDPAProcessor
from latelier.modules.processors.sliced import SlicedProcessor

__all__ = ["ExplicitProcessor", "FusedProcessor", "Processor", "SDPAProcessor", "SlicedProcessor"]
