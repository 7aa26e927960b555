"""The soak: thousands of kills, forks, damaged files, full disks and odd filters, each one repeatable by its seed."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

# What the parts share with the tests of their areas.
_folder = str(Path(__file__).parents[1] / "indexes")
if _folder not in sys.path:
    sys.path.append(_folder)
