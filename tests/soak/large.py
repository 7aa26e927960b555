"""Large: flips of an index that is large enough for its ANN data to be made without any patching."""

import random
from pathlib import Path

from soak.cases import Part
from soak.flip_sources import make_large
from soak.flips import damaged


def case(source: Path, scratch: Path, seed: int) -> str:
    """Damage a copy of the large index as others are damaged."""
    return damaged(source, scratch, random.Random(seed), "large")


PART = Part("large", 40, make_large, case)
