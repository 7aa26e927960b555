"""Encoding texts as they come, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from latelier.embeddings import TokenEmbeddings
from latelier.models.compute_dtype import Numbers
from latelier.models.encoding import WINDOW, Job, encode_windows, pack

if TYPE_CHECKING:
    from latelier.models.encoder import Encoder

__all__ = ["packed_windows"]


def packed_windows(
    model: Encoder,
    texts: Iterable[str],
    task: str,
    *,
    batch_size: int = 32,
    numbers: Numbers | None = None,
    precision: str | None = None,
    bar: Any = None,
) -> Iterator[TokenEmbeddings]:
    """Encode texts and give them back packed, on the CPU, as many at a time as were tokenised together.

    Parameters
    ----------
    model
        The model.
    texts
        The texts, read in the caller's thread, one window ahead.
    task
        ``"query"`` or ``"document"``.
    batch_size, precision
        As in `ColBERT.encode`.
    numbers
        What to compute in and how many dims to keep; default: as `encode` does.
    bar
        Progress bar to update.

    Yields
    ------
    TokenEmbeddings
        2,048 texts, the last time what is left.
    """
    numbers = numbers or Numbers("auto", model.truncate_dim)
    if model.encodes_by_budget(task):
        job = Job(task, model.device, model.prompts.get(task), batch_size, numbers, save_to_cpu=True)
        for window in encode_windows(model, texts, job, bar):
            yield pack(window, precision)
        return
    remaining = iter(texts)
    while part := list(islice(remaining, WINDOW)):
        options: dict[str, Any] = {"task": task, "batch_size": batch_size, **numbers._asdict()}
        yield model.encode(part, precision=precision, packed=True, **options).to("cpu")
        if bar is not None:
            bar.update(len(part))
