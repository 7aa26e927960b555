"""Store outputs and gradients of LightZero's DynamicsNetwork as reference numbers.

Run it where LightZero is installed: ``PYTHONPATH=src:tests/modules python tests/modules/make_dynamics_references.py``.
"""

from functools import partial
from pathlib import Path

import numpy as np
from dynamics_peer import import_peer, stored_numbers, theirs

if __name__ == "__main__":
    numbers = stored_numbers(partial(theirs, import_peer()))
    np.savez_compressed(Path(__file__).with_name("dynamics_references.npz"), **numbers)
