"""Calls: public functions with arguments that hypothesis makes: valid ones, spoilt ones and nonsense.

What is valid must be accepted and give what a naive computation gives; what is not is refused with an error of the
library, or accepted as the function documents; nothing else.
"""

import warnings
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from latelier.indexes.ivf.index import compile_kernels
from soak import calls_data, calls_embeddings, calls_indexes, calls_losses, calls_models, calls_scores
from soak.caller import Caller
from soak.cases import Part

# Examples of one case; each makes one call or some more.
EXAMPLES = 10
# The cheap ones more often: models cost a thousand times as much as scores.
TARGETS = (
    *calls_embeddings.TARGETS * 2,
    *calls_scores.TARGETS * 2,
    *calls_indexes.TARGETS,
    *calls_data.TARGETS * 2,
    *calls_models.TARGETS,
    *calls_losses.TARGETS,
)
_SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    derandomize=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def prepare(source: Path) -> None:
    """Compile the kernels once for all workers."""
    compile_kernels()


def case(source: Path, scratch: Path, seed: int) -> Counter[str]:
    """Call one function, or several on one object, with arguments of ten examples."""
    target = TARGETS[seed % len(TARGETS)]
    counts: Counter[str] = Counter()

    @with_seed(seed)
    @_SETTINGS
    @given(st.data())
    def run(data: st.DataObject) -> None:
        target(Caller(data.draw, counts), scratch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    return counts


PART = Part("calls", 500, prepare, case)
