"""Store outputs of diffusers' Attention as reference numbers.

Run it where diffusers is installed: ``PYTHONPATH=src:tests/modules python tests/modules/make_attention_references.py``.
"""

from pathlib import Path

import numpy as np
from attention_cases import FAMILIES, outputs
from attention_peer import import_peer, stored_cases, theirs

if __name__ == "__main__":
    peer = import_peer()
    numbers = {
        family: np.concatenate(
            [out.flatten().numpy() for case in stored_cases(family) for out in outputs(theirs(peer, case), case)]
        )
        for family in FAMILIES
    }
    np.savez_compressed(Path(__file__).with_name("attention_references.npz"), **numbers)
