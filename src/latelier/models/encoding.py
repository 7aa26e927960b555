"""The encoding loop: tokenise a window of texts, then run batches of similar length under a token budget.

The next window is tokenised in a background thread while the model works on this one, so that memory depends on the
window and not on the number of texts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from torch import Tensor, nn

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.kernels.threads import allowed_threads, map_each, thread_count
from latelier.models.compute_dtype import (
    check_compute_dtype,
    check_weights,
    inference,
    is_long_work,
    prefers_bfloat16,
    stays_close,
)
from latelier.models.cpu.held_threads import held_threads, runs_in_threads
from latelier.models.gpu.unpadded import encode_unpadded, is_unpadded, packed_batches
from latelier.models.inputs import are_texts, checked_stream
from latelier.models.lengths import check_lengths, max_length
from latelier.models.options import check_delegated_dtype, check_prompt, has_loop_options, prompt_errors
from latelier.models.outputs import OutputForm
from latelier.models.pooling import Pooling, pool_tokens
from latelier.models.salience import Recorder, recorded_attention
from latelier.models.text_encoder import TextEncoder
from latelier.models.window_features import tokenize_window
from latelier.models.windows import Batch, Window, embeddings_on_host, windows_on_host
from latelier.utils import CPU_BATCH_TOKENS, batch_by_tokens, check_count, resolve_device, tokens_per_batch
from latelier.utils.features import move_features, select_rows, used_positions
from latelier.utils.misc import progress_bar
from latelier.utils.ragged import lengths_to_offsets

__all__ = [
    "WINDOW",
    "Job",
    "encode_chunk",
    "encode_rows",
    "encode_windows",
    "encodes_by_budget",
    "packed_windows",
    "stream",
]

# Texts tokenised at once: enough to batch texts of equal length, few enough that their token ids take 17 MB.
WINDOW = 2048
# Texts encoded twice, in float32 and in bfloat16, to see how close the vectors are.
_SAMPLE = 4
# Tokens of a batch without padding, per text of `batch_size`: enough to keep a large GPU busy.
_GPU_TOKENS = 2048
_CPU = torch.device("cpu")
_UNPOOLED = Pooling()
_logger = logging.getLogger(__name__)
_DESCRIPTIONS = {"query": "Encoding queries", "document": "Encoding documents"}


@dataclass(frozen=True)
class Job:
    """How to encode texts.

    Parameters
    ----------
    task
        ``"query"`` or ``"document"``.
    prompt
        What to put before each text; None for the model's own prompt.
    batch_size
        Maximum number of texts of full length in a batch; a batch of shorter texts may have as many tokens. Without
        padding, on a GPU, full length is 2,048 tokens at least.
    compute_dtype
        The dtype to compute in, or ``"auto"``.
    truncate_dim
        How many of the first numbers of each vector to keep; None for all.
    save_to_cpu
        Move each batch to the CPU when it is done.
    device
        Where to compute.
    pooling
        How to pool documents; the loop of this module does it only where the encoder's attention gives the weights.

    Raises
    ------
    InvalidArgumentError
        If `compute_dtype` is unknown, or the prompt is not a text.
    """

    task: str
    prompt: str | None = None
    batch_size: int = 32
    compute_dtype: str = "auto"
    truncate_dim: int | None = None
    save_to_cpu: bool = False
    device: torch.device = _CPU
    pooling: Pooling = _UNPOOLED

    def __post_init__(self) -> None:
        check_compute_dtype(self.compute_dtype)
        check_prompt(self.prompt)


def encodes_by_budget(model: MultiVectorEncoder) -> bool:
    """Whether the loop of this module can encode a model's texts; if not, sentence-transformers encodes them.

    It cannot with flash attention, where a batch is flattened rather than padded, nor if the first module of the model
    is neither a `Transformer` nor a `TextEncoder`.
    """
    encoder = model[0]
    return isinstance(encoder, TextEncoder) or (isinstance(encoder, Transformer) and not encoder.can_flatten_inputs)


def encode_rows(
    model: Any,
    rows: list[Any],
    job: Job,
    prompt_name: str | None,
    form: OutputForm,
    options: dict[str, Any],
    *,
    truncation: bool = True,
) -> Any:
    """Encode inputs: texts by the loop of this module, other inputs and options by sentence-transformers' loop.

    Parameters
    ----------
    model
        The model.
    rows
        The inputs.
    job
        How to encode; the device and the prompt's name are resolved here.
    prompt_name
        Name of the prompt if `job` has none; None for the prompt of the task.
    form
        What the result will be converted to.
    options
        Options of sentence-transformers that are not at their defaults.
    truncation
        False raises an error for a text that would be truncated.

    Returns
    -------
    list or TokenEmbeddings
        Token vectors of each input, or `TokenEmbeddings` if `form.works_on_packed`.
    """
    if job.prompt is None and prompt_name is None and job.task in model.prompts:
        prompt_name = job.task
    with prompt_errors(prompt_name, model.prompts):
        prompt = model._resolve_prompt(job.prompt, prompt_name)
    check_count("batch_size", job.batch_size)
    check_lengths(model, rows, job.task, prompt, truncation=truncation)
    delegated = model._distributed_inference is not None and options.get("device") is None
    if delegated or not (encodes_by_budget(model) and has_loop_options(options) and are_texts(rows)):
        check_delegated_dtype(job.compute_dtype, options, job.task)
        check_weights(model, job.compute_dtype)
        if job.pooling.uses_attention:
            raise InvalidArgumentError(
                f"received pool_method={job.pooling.method!r}, but these inputs or options are encoded by "
                'sentence-transformers, which does not return attention; use pool_method="ward", or give plain texts '
                "without these options."
            )
        options = {**options, "batch_size": job.batch_size, "task": job.task}
        encoded: Any = MultiVectorEncoder.encode(
            model, rows, prompt_name if prompt is None else None, prompt, **options
        )
        if job.truncate_dim is None or options.get("output_value", "") is None:
            return encoded
        return [_truncate(torch.as_tensor(row), job.truncate_dim) for row in encoded]
    shown = options.get("show_progress_bar")
    if shown is None:
        shown = _logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    device, pool = options.get("device"), options.get("pool")
    if pool is not None or (isinstance(device, list) and device):
        for each in device if isinstance(device, list) else ():
            resolve_device(each)
        job = replace(job, prompt=prompt)
        return model._multi_process(rows, shown, pool, device, options.get("chunk_size"), job=job)
    job = replace(job, prompt=prompt, device=_place(model, device))
    with progress_bar(shown=shown, total=len(rows), desc=_DESCRIPTIONS[job.task]) as bar:
        windows = encode_windows(model, rows, job, bar)
        if form.works_on_packed and rows:
            parts = [window.to_embeddings() for window in windows]
            return parts[0] if len(parts) == 1 else TokenEmbeddings.concatenate(parts)
        return [row for window in windows for row in window.to_list()]


def encode_chunk(model: MultiVectorEncoder, texts: list[str], job: Job, device: Any) -> list[Tensor]:
    """Encode texts in a worker process, on its device: one ``(tokens, dim)`` tensor per text."""
    job = replace(job, device=_place(model, device))
    return [row for window in encode_windows(model, texts, job) for row in window.to_list()]


def stream(model: MultiVectorEncoder, texts: Iterable[str], job: Job, form: OutputForm, shown: bool) -> Iterator[Any]:
    """Return an iterator over the embedding of each text, or `TokenEmbeddings` of each window, as `form` says.

    Parameters
    ----------
    model, job
        As in `packed_windows`.
    texts
        The texts; each is checked when it is read.
    form
        What the iterator yields.
    shown
        Whether to show a progress bar.

    Raises
    ------
    InvalidArgumentError
        If the batch size is not a positive integer, or `texts` is not an iterable of texts.
    """
    check_count("batch_size", job.batch_size)
    checked = checked_stream(texts)
    total = len(texts) if isinstance(texts, Sized) else None

    def encode() -> Iterator[Any]:
        with progress_bar(shown=shown, total=total, desc=_DESCRIPTIONS[job.task]) as bar:
            for encoded in packed_windows(model, checked, job, form.encoded_precision, bar):
                window = form.convert_window(encoded)
                # Rows are copied: a view would keep the memory of all 2,048 texts of the window.
                yield from [window] if form.packed else map(torch.clone, window)

    return encode()


def packed_windows(
    model: MultiVectorEncoder, texts: Iterable[str], job: Job, precision: str | None = None, bar: Any = None
) -> Iterator[TokenEmbeddings]:
    """Encode texts into one `TokenEmbeddings` on the CPU per window.

    Parameters
    ----------
    model
        The model.
    texts
        The texts, read in the caller's thread, one window ahead.
    job
        How to encode. The device and the prompt are the model's own.
    precision
        As in `ColBERT.encode`.
    bar
        Progress bar to update.

    Yields
    ------
    TokenEmbeddings
        `WINDOW` texts, the last time the remaining ones.
    """
    if encodes_by_budget(model):
        job = replace(job, prompt=model.prompts.get(job.task), device=model.device)
        on_gpu = job.device.type == "cuda"  # where vectors are converted before they are copied
        job = replace(job, save_to_cpu=not on_gpu)
        packed = (window.to_embeddings(precision) for window in encode_windows(model, texts, job, bar))
        yield from embeddings_on_host(packed) if on_gpu else packed
        return
    options: dict[str, Any] = {"compute_dtype": job.compute_dtype, "truncate_dim": job.truncate_dim}
    options |= {"task": job.task, "batch_size": job.batch_size, "precision": precision, "packed": True}
    remaining = iter(texts)
    while part := list(islice(remaining, WINDOW)):
        encoded: Any = model.encode(part, **options)
        yield encoded.to("cpu")
        if bar is not None:
            bar.update(len(part))


def encode_windows(model: MultiVectorEncoder, texts: Iterable[str], job: Job, bar: Any = None) -> Iterator[Window]:
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

    Returns
    -------
    iterator of Window
        `WINDOW` texts each, the last time the remaining ones.
    """
    windows = _encode_windows(model, texts, job, bar)
    return windows_on_host(windows) if job.save_to_cpu and job.device.type == "cuda" else windows


def _encode_windows(model: MultiVectorEncoder, texts: Iterable[str], job: Job, bar: Any) -> Iterator[Window]:
    if model.training:
        model.eval()
    decided = job.compute_dtype != "auto"
    dtype = job.compute_dtype if decided else None
    for features in _tokenized(model, texts, job):
        used = used_positions(features)
        if not decided:
            dtype, decided = _choose_dtype(model, features, used, job), True
        yield _encode_window(model, features, used, job, dtype, bar)


def _place(model: Any, device: Any) -> torch.device:
    """Return the device to compute on. Looking at all parameters would take a tenth of the time of a short query."""
    if device is None and not model._placement_is_delegated:
        return torch.device(model.device)
    return torch.device(model._resolve_inference_device(None if device is None else resolve_device(device)))


def _truncate(vectors: Tensor, dim: int) -> Tensor:
    """Keep the first `dim` numbers of each token vector ``(tokens, dim)``, normalised again."""
    return nn.functional.normalize(vectors[:, :dim], dim=-1)


def _tokenized(model: MultiVectorEncoder, texts: Iterable[str], job: Job) -> Iterator[Any]:
    """Yield the features of each window; the next one is tokenised in a thread meanwhile."""

    def tokenize(window: list[str]) -> Any:
        return tokenize_window(model, window, job.prompt, job.task)

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
    model: MultiVectorEncoder, features: Any, used: Tensor, job: Job, dtype: str | None, bar: Any
) -> Window:
    batches = []
    computing = inference(model, job.device, dtype, reads_attention=job.pooling.uses_attention)
    with _recording(model, job) as recorder, _limited(job), computing:
        shares = _shares(model, used, job) if recorder is None else []
        if len(shares) > 1:
            return Window(_encode_in_threads(model, features, used, shares, job, dtype, bar))
        unpadded = recorder is None and is_unpadded(
            model, features, job.task, job.device, dtype, partial(_run, model, job)
        )
        for rows in _split(model, used, job, unpadded=unpadded):
            if unpadded:
                batch = encode_unpadded(model, features, rows, job.task, job.device)
                batches.append(batch._replace(vectors=_finish(model, batch.vectors, job)))
            else:
                batches.append(_encode_batch(model, features, used, rows, job, recorder))
            if bar is not None:
                bar.update(len(rows))
    return Window(batches)


def _limited(job: Job) -> AbstractContextManager[Any]:
    """Return a context in which torch computes with the threads that the calling thread is allowed."""
    threads = allowed_threads() if job.device.type == "cpu" else thread_count()
    return held_threads(threads) if threads < thread_count() else nullcontext()


def _shares(model: MultiVectorEncoder, used: Tensor, job: Job) -> list[np.ndarray]:
    """Return the rows of batches that one thread each is to encode; none if threads are to share each batch."""
    if job.device.type != "cpu" or len(used) == 1 or (threads := allowed_threads()) == 1:
        return []
    with held_threads(1) as is_held:
        if not is_held or not isinstance(model[0], Transformer) or not runs_in_threads(model):
            return []
    lengths = used.sum(dim=1).numpy()
    budget = min(_batch_tokens(model, job, unpadded=False), tokens_per_batch(int(lengths.sum()), threads))
    return list(batch_by_tokens(lengths, budget))


def _encode_in_threads(
    model: MultiVectorEncoder,
    features: Any,
    used: Tensor,
    shares: list[np.ndarray],
    job: Job,
    dtype: str | None,
    bar: Any,
) -> list[Batch]:
    updating = Lock()

    def encode(rows: np.ndarray) -> Batch:
        with held_threads(1), inference(model, job.device, dtype):
            batch = _encode_batch(model, features, used, rows, job)
        if bar is not None:
            with updating:
                bar.update(len(rows))
        return batch

    return map_each(encode, shares)


def _split(model: MultiVectorEncoder, used: Tensor, job: Job, *, unpadded: bool) -> Iterable[np.ndarray]:
    """Return the rows of each batch of a window; a query on its own needs no lengths and no budget."""
    if len(used) == 1:
        return [np.zeros(1, dtype="int64")]
    lengths, budget = used.sum(dim=1).numpy(), _batch_tokens(model, job, unpadded=unpadded)
    return packed_batches(lengths, budget) if unpadded else batch_by_tokens(lengths, budget)


def _batch_tokens(model: MultiVectorEncoder, job: Job, *, unpadded: bool) -> int:
    """Return the maximum number of tokens of a batch."""
    longest = max_length(model, job.task)
    if job.device.type == "cpu":
        return min(job.batch_size * longest, CPU_BATCH_TOKENS)
    return job.batch_size * max(longest, _GPU_TOKENS if unpadded else 0)


def _recording(model: MultiVectorEncoder, job: Job) -> AbstractContextManager[Recorder | None]:
    """Return a context in which the encoder's attention is recorded, if documents are pooled by it."""
    return recorded_attention(model) if job.pooling.uses_attention else nullcontext()


def _encode_batch(
    model: MultiVectorEncoder,
    features: Any,
    used: Tensor,
    rows: np.ndarray,
    job: Job,
    recorder: Recorder | None = None,
) -> Batch:
    batch = features if len(used) == 1 else select_rows(features, used, rows)
    vectors, mask = _run(model, job, batch)
    vectors = _finish(model, vectors, job)
    lengths = mask.sum(dim=1).tolist()
    if recorder is not None:
        how = job.pooling
        read = batch["attention_mask"].to(mask.device).bool()  # `mask` has the tokens that are scored only
        pooled = pool_tokens(
            TokenEmbeddings(vectors, lengths_to_offsets(lengths)),
            how.pool_factor,
            num_vectors=how.num_vectors,
            method=how.method,
            weights=recorder.received(read)[mask],
            protected_tokens=how.protected_tokens,
        )
        vectors, lengths = pooled.vectors, pooled.lengths.tolist()
    # A GPU's window is copied as a whole, while the next one is computed.
    copied = job.save_to_cpu and job.device.type != "cuda"
    return Batch(rows, vectors.cpu() if copied else vectors, lengths)


def _run(model: MultiVectorEncoder, job: Job, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Run a padded batch: return the vectors of its scored tokens, ``(tokens, dim)``, and which those are."""
    # A trainer of mixed precision leaves accelerate's autocast around the instance's forward.
    forward: Any = partial(type(model).forward, model) if "_original_forward" in vars(model) else model
    out = forward(move_features(features, job.device), task=job.task)
    vectors, mask = out["token_embeddings"], out["attention_mask"].bool()
    # Vectors of texts without padding, such as one query, are not copied.
    return (vectors.flatten(0, 1) if mask.all() else vectors[mask]), mask


def _finish(model: MultiVectorEncoder, vectors: Tensor, job: Job) -> Tensor:
    """Return token vectors in float32 where autocast has rounded them, and truncated."""
    if torch.is_autocast_enabled(job.device.type):
        # The vectors were normalised in half precision, so their length is rounded too.
        vectors = vectors.float()
        vectors = nn.functional.normalize(vectors, dim=-1) if isinstance(model[-1], Normalize) else vectors
    return vectors if job.truncate_dim is None else _truncate(vectors, job.truncate_dim)


def _choose_dtype(model: Any, features: Any, used: Tensor, job: Job) -> str | None:
    """Return bfloat16 where it is faster and a sample of the texts stays close; None for the dtype of the weights."""
    backend = getattr(model, "cpu_backend", "torch")
    if backend == "onnx" or not is_long_work(used.numel()):
        return None
    if not prefers_bfloat16(int(used.sum()), job.device, model.dtype):
        return None
    rows = np.unique(np.linspace(0, len(used) - 1, _SAMPLE).astype("int64"))
    sample = {}
    for dtype in ("bfloat16", None):
        with inference(model, job.device, dtype):
            sample[dtype] = _encode_batch(model, features, used, rows, job).vectors
    return "bfloat16" if stays_close(sample["bfloat16"], sample[None]) else None
