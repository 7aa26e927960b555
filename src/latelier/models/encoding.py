"""The encoding loop: tokenise a window of texts once, then run batches of similar length under a token budget.

The next window is tokenised in a background thread while the model works on this one, so that memory depends on the
window and not on the number of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sentence_transformers.base.modules import Normalize
from torch import Tensor, nn

from latelier.arrays import DTYPES
from latelier.embeddings import TokenEmbeddings
from latelier.models.compute_dtype import Numbers, computing, prefers_bfloat16, stays_close
from latelier.utils import batch_by_tokens
from latelier.utils.ranges import lengths_to_offsets, rows_of

if TYPE_CHECKING:
    from latelier.models.encoder import Encoder

__all__ = ["WINDOW", "Batch", "Job", "encode_windows", "matrices", "pack", "truncate"]

# Texts tokenised at once: enough to find partners of equal length, few enough to hold their token ids (17 MB).
WINDOW = 2048
# What a batch holds on a CPU: more tokens fall out of its caches between one layer and the next.
_CPU_TOKENS = 2048
_SAMPLE = 4


@dataclass(frozen=True)
class Job:
    """How to encode.

    Parameters
    ----------
    task
        ``"query"`` or ``"document"``.
    device
        Where to compute.
    prompt
        What to put before each text; None is the model's own.
    batch_size
        How many texts of full length make a batch at most; of shorter texts, as many as make equally many tokens.
    numbers
        What to compute in and how many dims to keep.
    save_to_cpu
        Move each batch to the CPU when it is done.
    options
        Arguments of `preprocess` and of the modules.
    """

    task: str
    device: torch.device
    prompt: str | None = None
    batch_size: int = 32
    numbers: Numbers = field(default_factory=Numbers)
    save_to_cpu: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Batch(NamedTuple):
    """Encoded texts: their positions in the window, ``(tokens, dim)`` vectors of all of them, and their lengths."""

    rows: np.ndarray
    vectors: Tensor
    lengths: list[int]


def encode_windows(model: Encoder, texts: Iterable[str], job: Job, bar: Any = None) -> Iterator[list[Batch]]:
    """Encode texts without gradients, window by window; memory is bounded by the window.

    Parameters
    ----------
    model
        The model.
    texts
        The texts, read in the caller's thread, one window ahead.
    job
        How to encode.
    bar
        Progress bar to update.

    Yields
    ------
    list of Batch
        The batches of `WINDOW` texts (the last window has what is left), each text in one of them.
    """
    if model.training:
        model.eval()
    dtype = DTYPES.get(job.numbers.compute_dtype)
    decided = job.numbers.compute_dtype != "auto"
    for features in _tokenized(model, texts, job):
        used = _used_columns(features)
        if not decided:
            dtype, decided = _choose_dtype(model, features, used, job), True
        yield _encode_window(model, features, used, job, dtype, bar)


def matrices(window: list[Batch]) -> list[Tensor]:
    """Return one ``(tokens, dim)`` matrix per text of a window, in order; those of a batch share memory."""
    encoded: dict[int, Tensor] = {}
    for batch in window:
        encoded.update(zip(batch.rows.tolist(), batch.vectors.split(batch.lengths), strict=True))
    return [encoded[row] for row in range(len(encoded))]


def truncate(vectors: Tensor, dim: int) -> Tensor:
    """Keep the first numbers of each token vector ``(tokens, dim)``, and bring it back to length 1."""
    return nn.functional.normalize(vectors[:, :dim], dim=-1)


def pack(window: list[Batch], precision: str | None = None) -> TokenEmbeddings:
    """Return the texts of a window in order, converted to `precision` on the way."""
    lengths = np.zeros(sum(len(batch.rows) for batch in window), dtype="int64")
    for batch in window:
        lengths[batch.rows] = batch.lengths
    offsets = lengths_to_offsets(lengths)
    first = window[0].vectors
    # int8 needs the whole numbers first: the scale of a token comes from them.
    dtype = first.dtype if precision in (None, "int8") else DTYPES[precision]
    vectors = first.new_empty(int(offsets[-1]), first.shape[1], dtype=dtype)
    for batch in window:
        vectors[torch.from_numpy(rows_of(offsets, batch.rows)).to(vectors.device)] = batch.vectors.to(dtype)
    packed = TokenEmbeddings(vectors, offsets)
    return packed if precision is None else packed.to(precision)


def _tokenized(model: Encoder, texts: Iterable[str], job: Job) -> Iterator[Any]:
    def tokenize(window: list[str]) -> Any:
        return model.preprocess(window, prompt=job.prompt, task=job.task, **job.options)

    remaining = iter(texts)
    window = list(islice(remaining, WINDOW))
    if not window:
        return
    features = tokenize(window)
    upcoming = list(islice(remaining, WINDOW))
    if upcoming:
        with ThreadPoolExecutor(1, "latelier-tokenizer") as thread:
            while upcoming:
                pending = thread.submit(tokenize, upcoming)
                yield features
                features = pending.result()
                upcoming = list(islice(remaining, WINDOW))
    yield features


def _encode_window(
    model: Encoder, features: Any, used: Tensor, job: Job, dtype: torch.dtype | None, bar: Any
) -> list[Batch]:
    cap = model.max_length_query if job.task == "query" else model.max_length_document
    budget = job.batch_size * cap
    if job.device.type == "cpu":
        budget = min(budget, _CPU_TOKENS)
    batches = []
    autocast = None if dtype == torch.float32 else dtype
    with computing(model, job.device, autocast):
        for rows in batch_by_tokens(used.sum(dim=1).numpy(), budget):
            batches.append(_encode_batch(model, features, used, rows, job))
            if bar is not None:
                bar.update(len(rows))
    return batches


def _encode_batch(model: Encoder, features: Any, used: Tensor, rows: np.ndarray, job: Job) -> Batch:
    out = model(_select(features, used, rows, job.device), task=job.task, **job.options)
    mask = out["attention_mask"].bool()
    vectors = out["token_embeddings"][mask]  # (tokens of the batch, dim)
    if torch.is_autocast_enabled(job.device.type):
        # The last layers rounded the length of each vector too.
        vectors = vectors.float()
        vectors = nn.functional.normalize(vectors, dim=-1) if isinstance(model[-1], Normalize) else vectors
    if job.numbers.truncate_dim is not None:
        vectors = truncate(vectors, job.numbers.truncate_dim)
    return Batch(rows, vectors.cpu() if job.save_to_cpu else vectors, mask.sum(dim=1).tolist())


def _choose_dtype(model: Encoder, features: Any, used: Tensor, job: Job) -> torch.dtype | None:
    """Return bfloat16 for long work where it is faster and a sample of the texts stays close; None as the model is."""
    if not prefers_bfloat16(int(used.sum()), job.device, model.dtype):
        return None
    rows = np.unique(np.linspace(0, len(used) - 1, _SAMPLE).astype("int64"))
    sample = {}
    for dtype in (torch.bfloat16, None):
        with computing(model, job.device, dtype):
            sample[dtype] = _encode_batch(model, features, used, rows, job).vectors
    return torch.bfloat16 if stays_close(sample[torch.bfloat16], sample[None]) else None


def _used_columns(features: Any) -> Tensor:
    """Bool ``(n, width)``: positions that hold a token of the text or of its query expansion."""
    used = features["attention_mask"].bool()
    expansion = features.get("query_expansion_positions")
    return used if expansion is None else used | expansion.bool()


def _select(features: Any, used: Tensor, rows: np.ndarray, device: torch.device) -> dict[str, Any]:
    """Cut a batch out of a tokenised window, without the columns that only its longer texts need."""
    if len(used) == 1:
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
    index = torch.from_numpy(rows)
    columns = torch.nonzero(used[index].any(dim=0)).flatten()
    first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, used.shape[1])
    batch = {}
    for name, value in features.items():
        per_token = isinstance(value, Tensor) and value.shape == used.shape
        batch[name] = value[index, first:last].to(device) if per_token else value
    return batch
