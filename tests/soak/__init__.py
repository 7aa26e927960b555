"""The soak: thousands of kills, forks, damaged files, full disks and odd inputs, each one repeatable by its seed.

``make soak`` runs it at full size, ``python -m soak --help`` says how to run a part or a single seed. A case is a
function of a seed. It ends in one of three ways: what it tried was refused with an error of the library, it was
accepted and gave what it should (or did no harm), or something is wrong.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

# What the parts share with the tests of their areas.
for _area in ("indexes", "cli"):
    _folder = str(Path(__file__).parents[1] / _area)
    if _folder not in sys.path:
        sys.path.append(_folder)
