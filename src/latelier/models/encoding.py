"""How texts are encoded: in windows of 2,048 texts, each in batches by tokens.

The next window is tokenised in a background thread while the model works on this one, so that memory depends on the
window and not on the number of texts.

Encoding consists of matrix products, which take about half the time in bfloat16. Weights, residuals and norms stay in
float32 (torch's autocast), so that token vectors keep a cosine above 0.999 with those computed in float32; for
all-MiniLM-L6-v2 the lowest of a million tokens was 0.9998.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from threading import Barrier, Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from torch import Tensor, nn

from latelier.arrays import DTYPES, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.kernels.threads import allowed_threads, limited_threads, thread_count
from latelier.models.arguments import are_texts, checked_stream
from latelier.models.construction import check_lengths, encoder_module, length_limit, longest_query, max_length
from latelier.models.engines import (
    COMPUTE_DTYPES,
    LONG_WORK,
    Work,
    check_weights,
    choose_engine,
    inference,
    prefers_bfloat16,
    run_padded,
    stays_close,
)
from latelier.models.exported_encoder import SINGLE_TOKENS, tokenizer_lock
from latelier.models.frozen import FrozenCopies
from latelier.models.gpu import encode_unpadded, one_behind, packed_batches, start_copy
from latelier.models.pooling import Pooling, pool_tokens, recorded_attention
from latelier.models.text_encoder import TextEncoder
from latelier.models.tokenization import tokenize_window
from latelier.utils import CPU_BATCH_TOKENS, batch_by_tokens, resolve_device, tokens_per_batch
from latelier.utils.batching import lengths_to_offsets, move_features, rows_of, select_rows, used_positions
from latelier.utils.checks import check_choice, check_count
from latelier.utils.misc import progress_bar

# Texts tokenised at once: enough to batch texts of equal length, few enough that their token ids take 17 MB.
WINDOW = 2048
# Values with which options of sentence-transformers' `encode` change nothing; None for all others.
_UNCHANGED = {"output_value": "token_embeddings", "convert_to_numpy": False, "normalize_embeddings": False}
# Those that the loop of this module supports; with any other, sentence-transformers encodes.
_LOOP_OPTIONS = {"show_progress_bar", "convert_to_numpy", "device", "pool", "chunk_size"}
# Texts encoded twice, in float32 and in bfloat16, to see how close the vectors are.
_SAMPLE = 4
# Tokens of a batch without padding, per text of `batch_size`: enough to keep a large GPU busy; and of pictures, which
# have about a thousand each, and are read by models with billions of weights.
_GPU_TOKENS = 2048
_PICTURE_TOKENS = 256
_PICTURE_PIXELS = 1 << 26  # of a batch, 200 MB in RGB
_CPU = torch.device("cpu")
_UNPOOLED = Pooling()
_DESCRIPTIONS = {"query": "Encoding queries", "document": "Encoding documents"}


@dataclass(frozen=True)
class Job:
    """How to encode texts.

    `batch_size`: texts of full length in a batch; a batch of shorter ones may have as many tokens (unpadded on a GPU,
    full length is 2,048 tokens at least). `pooling`: how to pool documents; the loop of this module does it only where
    the encoder's attention gives the weights.
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
        check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)


@dataclass(frozen=True)
class OutputForm:
    """The form in which a call of `encode` returns token vectors.

    `packed`: `TokenEmbeddings` rather than a list. `precision`: name of a dtype; None keeps the dtype that the model
    computed in. `numpy`: arrays rather than tensors. `raw`: sentence-transformers' own features
    (``output_value=None``), returned unchanged. `pooling`: how to pool the vectors; with weights from the encoder's
    attention, the encoding loop has pooled them already.
    """

    packed: bool = False
    precision: str | None = None
    numpy: bool = False
    raw: bool = False
    pooling: Pooling = _UNPOOLED

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, DTYPES, optional=True)
        if self.precision == "int8" and not self.packed:
            raise InvalidArgumentError("precision='int8' needs packed=True, which has a scale for each token.")

    @property
    def encoded_precision(self) -> str | None:
        """The precision to encode in: None with pooling, which needs the vectors as computed."""
        if self._pools:
            return None
        return self.precision

    @property
    def _pools(self) -> bool:
        return self.pooling.is_on and not self.pooling.uses_attention

    def convert(self, encoded: Any, dim: int, single: bool) -> Any:
        """Return the embeddings of all texts in this form.

        `encoded`: `TokenEmbeddings`, or what sentence-transformers has returned; `dim`: their dimension, needed where
        there are no texts; `single`: whether one text was given rather than a list.
        """
        if self.raw:
            if single:
                return encoded[0]
            return encoded
        if not isinstance(encoded, TokenEmbeddings):
            empty = TokenEmbeddings(torch.zeros(0, dim), [0])
            if len(encoded):
                encoded = TokenEmbeddings.from_list(encoded)
            else:
                encoded = empty
        encoded = self.finish(encoded)
        if self.numpy:
            encoded = (encoded.to("float32") if encoded.dtype == "bfloat16" else encoded).to("numpy")
        if self.packed:
            return encoded
        if single:
            return encoded[0]
        return list(encoded)

    def finish(self, encoded: TokenEmbeddings) -> TokenEmbeddings:
        """Return embeddings pooled and in this precision."""
        if self._pools and len(encoded):
            how = self.pooling
            options = {"num_vectors": how.num_vectors, "protected_tokens": how.protected_tokens}
            encoded = pool_tokens(encoded, how.pool_factor, **options)  # type: ignore[arg-type]
        if self.precision is None:
            return encoded
        return encoded.to(self.precision)


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

    `job`: how to encode; the device and the prompt's name are resolved here. `prompt_name`: name of the prompt if `job`
    has none; None for the prompt of the task. `form`: what the result will be converted to. `options`: options of
    sentence-transformers. `truncation`: False raises an error for a text that would be
    truncated. Returns: `TokenEmbeddings`, or what sentence-transformers returns.
    """
    if job.prompt is None and prompt_name is None and job.task in model.prompts:
        prompt_name = job.task
    prompt = model._resolve_prompt(job.prompt, prompt_name)
    options = {name: value for name, value in options.items() if value != _UNCHANGED.get(name)}
    check_count("batch_size", job.batch_size)
    check_lengths(model, rows, job.task, prompt, truncation=truncation)
    delegated = model._distributed_inference is not None and options.get("device") is None
    device = options.get("device")
    pool = options.get("pool")
    are_many = pool is not None or (isinstance(device, list) and bool(device))
    if are_many or job.pooling.uses_attention or are_texts(rows):
        pixels = []
    else:
        pixels = list(map(_pixels, rows))
    are_known = all(pixels) if pixels else are_texts(rows)
    if delegated or not (encodes_by_budget(model) and _LOOP_OPTIONS.issuperset(options) and are_known):
        if job.compute_dtype in ("bfloat16", "float16", "int8") or job.pooling.uses_attention:
            reason = ", ".join(sorted(set(options) - _LOOP_OPTIONS)) or f"a {job.task} of this model"
            raise InvalidArgumentError(
                f"received compute_dtype={job.compute_dtype!r} and pool_method={job.pooling.method!r} with {reason}: "
                "that is encoded by sentence-transformers, in the dtype of the model's weights and without attention."
            )
        check_weights(model, job.compute_dtype)
        options = {**options, "batch_size": job.batch_size, "task": job.task}
        encoded: Any = MultiVectorEncoder.encode(
            model, rows, prompt_name if prompt is None else None, prompt, **options
        )
        if job.truncate_dim is None or options.get("output_value", "") is None:
            return encoded
        return [_truncate(torch.as_tensor(row), job.truncate_dim) for row in encoded]
    shown = options.get("show_progress_bar")
    if shown is None and len(rows) <= job.batch_size:  # a search, or little more
        shown = False
    if are_many:
        for each in device if isinstance(device, list) else ():
            resolve_device(each)
        job = replace(job, prompt=prompt)
        return model._multi_process(rows, bool(shown), pool, device, options.get("chunk_size"), job=job)
    job = replace(job, prompt=prompt, device=_place(model, device))
    with progress_bar(shown=shown, total=len(rows), desc=_DESCRIPTIONS[job.task]) as bar:
        if pixels:
            return encode_pictures(model, rows.__getitem__, pixels, job, bar)
        parts = [window.to_embeddings() for window in encode_windows(model, rows, job, bar)]
    if parts:
        return TokenEmbeddings.concatenate(parts)
    return parts


def encode_pictures(
    model: Any, load: Callable[[int], Any], pixels: Sequence[int], job: Job, bar: Any = None
) -> TokenEmbeddings:
    """Encode pictures, of which `load` returns one by its position; `pixels`: the size of each.

    The largest comes first, alone: it shows how many tokens (patches) one has, so that batches are bounded by them.
    """
    if job.compute_dtype == "int8":
        raise InvalidArgumentError(
            "received compute_dtype='int8', which is for texts only; pictures are encoded by torch."
        )
    check_weights(model, job.compute_dtype)
    model.eval()
    dtype = None if job.compute_dtype == "auto" else job.compute_dtype
    work = Work(model, job.task, job.device, dtype, reads_attention=False)
    forward = _Forward(work, job, model, is_packed=False)
    budget = job.batch_size * _PICTURE_TOKENS
    if job.device.type == "cpu":
        budget = min(budget, CPU_BATCH_TOKENS)
    waiting = deque(np.argsort(-np.asarray(pixels), kind="stable").tolist())
    longest = budget
    batches: list[Batch] = []
    while waiting:
        rows = [waiting.popleft()]
        most = min(budget // longest, _PICTURE_PIXELS // max(pixels[rows[0]], 1))
        rows += [waiting.popleft() for _ in range(min(most - 1, len(waiting)))]
        features = model.preprocess([load(row) for row in rows], prompt=job.prompt, task=job.task)
        with inference(job.device, dtype):
            vectors, mask = forward.run(features)
            vectors = forward.finish(vectors)
            vectors = vectors.cpu() if job.save_to_cpu else vectors
        longest = max(mask.shape[1], longest if batches else 1)
        batches.append(Batch(np.array(rows), vectors, mask.sum(dim=1).tolist()))
        if bar is not None:
            bar.update(len(rows))
    return Window(batches).to_embeddings()


def _pixels(row: Any) -> int:
    """Return the number of pixels of an image of PIL, alone or in a dict; 0 for any other input."""
    image: Any = row.get("image") if isinstance(row, dict) else row
    if hasattr(image, "getbands"):
        return image.width * image.height
    return 0


def encode_chunk(model: MultiVectorEncoder, texts: list[str], job: Job, device: Any) -> TokenEmbeddings:
    """Encode texts in a worker process, on its device.

    One tensor in shared memory comes back: one per text, each an open file in the parent until the last chunk has
    arrived, would exhaust the usual limit of 1,024.
    """
    job = replace(job, device=_place(model, device))
    windows = encode_windows(model, texts, job)
    return TokenEmbeddings.concatenate([window.to_embeddings() for window in windows]).to("cpu")


def stream(model: MultiVectorEncoder, texts: Iterable[str], job: Job, form: OutputForm, shown: bool) -> Iterator[Any]:
    """Return an iterator over the embedding of each text, or `TokenEmbeddings` of each window, as `form` says.

    `model`, `job`: as in `packed_windows`. `texts`: the texts; each is checked when it is read.
    """
    check_count("batch_size", job.batch_size)
    checked = checked_stream(texts)
    total = len(texts) if isinstance(texts, Sized) else None

    def encode() -> Iterator[Any]:
        with progress_bar(shown=shown, total=total, desc=_DESCRIPTIONS[job.task]) as bar:
            for encoded in packed_windows(model, checked, job, form.encoded_precision, bar):
                window = form.finish(encoded)
                # Rows are copied: a view would keep the memory of all 2,048 texts of the window.
                yield from [window] if form.packed else map(torch.clone, window)

    return encode()


def packed_windows(
    model: MultiVectorEncoder, texts: Iterable[str], job: Job, precision: str | None = None, bar: Any = None
) -> Iterator[TokenEmbeddings]:
    """Encode texts into one `TokenEmbeddings` on the CPU per window.

    `texts`: the texts, read in the caller's thread, one window ahead. `job`: how to encode. The device and the prompt
    are the model's own. `precision`: as in `ColBERT.encode`. `bar`: progress bar to update. Yields: `WINDOW` texts, the
    last time the remaining ones.
    """
    if encodes_by_budget(model):
        job = replace(job, prompt=model.prompts.get(job.task), device=model.device)
        on_gpu = job.device.type == "cuda"  # where vectors are converted before they are copied
        job = replace(job, save_to_cpu=not on_gpu)
        packed = (window.to_embeddings(precision) for window in encode_windows(model, texts, job, bar))
        yield from one_behind(map(_start_copy_of_embeddings, packed)) if on_gpu else packed
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

    `texts` are read in the caller's thread, one window ahead.
    """
    windows = _encode_windows(model, texts, job, bar)
    # A GPU's window is copied as a whole, while the next one is computed.
    if job.save_to_cpu and job.device.type == "cuda":
        return one_behind(map(_start_copy_of_window, windows))
    return windows


def _start_copy_of_window(window: Window) -> Callable[[], Window]:
    wait = start_copy([batch.vectors for batch in window.batches])
    return lambda: Window([batch._replace(vectors=copy) for batch, copy in zip(window.batches, wait(), strict=True)])


def _start_copy_of_embeddings(window: TokenEmbeddings) -> Callable[[], TokenEmbeddings]:
    wait = start_copy([window.vectors] if window.scales is None else [window.vectors, window.scales])
    offsets = window.offsets

    def finish() -> TokenEmbeddings:
        vectors, *scales = wait()
        return TokenEmbeddings(vectors, offsets, *scales)

    return finish


def _encode_windows(model: Any, texts: Iterable[str], job: Job, bar: Any) -> Iterator[Window]:
    if model.training:
        model.eval()
    dtype: str | None = job.compute_dtype
    for features in _tokenized(model, texts, job):
        used = used_positions(features)
        if dtype == "auto":
            dtype = _choose_dtype(model, features, used, job)
        yield _Forward.of(model, job, dtype, features).encode_window(features, used, bar)


def _tokenized(model: MultiVectorEncoder, texts: Iterable[str], job: Job) -> Iterator[Any]:
    """Yield the features of each window; the next one is tokenised in a thread meanwhile."""
    remaining = iter(texts)
    window = list(islice(remaining, WINDOW))
    if not window:
        return
    features = tokenize_window(model, window, job.prompt, job.task)
    upcoming = list(islice(remaining, WINDOW))
    if upcoming:
        with ThreadPoolExecutor(1, "latelier-tokenizer") as thread:
            while upcoming:
                pending = thread.submit(tokenize_window, model, upcoming, job.prompt, job.task)
                yield features
                features = pending.result()
                upcoming = list(islice(remaining, WINDOW))
    yield features


@dataclass(frozen=True)
class _Forward:
    """The forward pass of the batches of a window.

    `computes`: the model, or a copy of it; `is_packed`: whether it computes batches without padding.
    """

    work: Work
    job: Job
    computes: Any
    is_packed: bool

    @classmethod
    def of(cls, model: Any, job: Job, dtype: str | None, features: Any) -> _Forward:
        """Return the forward pass by the first engine that fits."""
        check_weights(model, dtype)
        work = Work(model, job.task, job.device, dtype, job.pooling.uses_attention)
        engine, computes = choose_engine(work, features)
        return cls(work, job, computes, engine.is_packed)

    @property
    def is_frozen(self) -> bool:
        """Whether a copy computes, with which several threads may compute at once."""
        return self.computes is not self.work.model

    def encode_window(self, features: Any, used: Tensor, bar: Any) -> Window:
        """Encode a tokenised window, whose `used_positions` are `used`."""
        if self.is_packed:
            return self._encode_unpadded(features, used, bar)
        with recorded_attention(self.work.model) if self.work.reads_attention else nullcontext() as recorder:
            # Beside other work, the threads of a query wait for the one that has lost its core.
            if not self.is_frozen or used.numel() <= SINGLE_TOKENS:
                threads = 1
            else:
                threads = allowed_threads()
            updating = Lock()

            def encode(rows: np.ndarray) -> Batch:
                batch = self.encode_batch(features, used, rows, recorder)
                if bar is not None:
                    with updating:
                        bar.update(len(rows))
                return batch

            groups = self._split(used, threads)
            apart = self.is_frozen and (min(threads, len(groups)) > 1 or threads < thread_count())
            if apart and _are_threads_apart():
                return Window(_map_in_threads(encode, groups, threads))
            return Window([encode(rows) for rows in groups])

    def _split(self, used: Tensor, threads: int) -> list[np.ndarray]:
        """Return the rows of each batch."""
        if len(used) == 1:  # a query on its own needs no lengths and no budget
            return [np.zeros(1, dtype="int64")]
        lengths = used.sum(dim=1).numpy()
        budget = self.job.batch_size * max_length(self.work.model, self.job.task)
        if self.job.device.type == "cpu":
            budget = min(budget, CPU_BATCH_TOKENS)
        if threads > 1:
            budget = min(budget, tokens_per_batch(int(lengths.sum()), threads))
        return list(batch_by_tokens(lengths, budget))

    def encode_batch(self, features: Any, used: Tensor, rows: np.ndarray, recorder: Any = None) -> Batch:
        """Encode some rows of features."""
        if len(used) == 1:
            batch = features
        else:
            batch = select_rows(features, used, rows)
        with inference(self.job.device, self.work.dtype, frozen=self.is_frozen):
            vectors, mask = self.run(batch)
            vectors = self.finish(vectors)
            lengths = mask.sum(dim=1).tolist()
        if self.is_frozen:
            vectors = vectors.clone()  # an ordinary tensor, which may be trained on
        if recorder is not None:
            how = self.job.pooling
            read = batch["attention_mask"].to(mask.device).bool()  # `mask` has the tokens that are scored only
            pooled = pool_tokens(
                TokenEmbeddings(vectors, lengths_to_offsets(lengths)),
                how.pool_factor,
                num_vectors=how.num_vectors,
                method=how.method,
                weights=recorder.received(read)[mask],
                protected_tokens=how.protected_tokens,
            )
            vectors = pooled.vectors
            lengths = pooled.lengths.tolist()
        copied = self.job.save_to_cpu and self.job.device.type != "cuda"
        return Batch(rows, vectors.cpu() if copied else vectors, lengths)

    def run(self, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Run a padded batch: return the vectors of its scored tokens, ``(tokens, dim)``, and which those are."""
        return run_padded(self.computes, features, task=self.job.task, device=self.job.device)

    def finish(self, vectors: Tensor) -> Tensor:
        """Return token vectors in float32 where autocast has rounded them, and truncated."""
        if torch.is_autocast_enabled(self.job.device.type):
            # The vectors were normalised in half precision, so their length is rounded too.
            vectors = vectors.float()
            if isinstance(self.work.model[-1], Normalize):
                vectors = nn.functional.normalize(vectors, dim=-1)
        if self.job.truncate_dim is None:
            return vectors
        return _truncate(vectors, self.job.truncate_dim)

    def _encode_unpadded(self, features: Any, used: Tensor, bar: Any) -> Window:
        """Encode a window on a GPU in batches without padding."""
        budget = self.job.batch_size * max(max_length(self.work.model, self.job.task), _GPU_TOKENS)
        batches = []
        with inference(self.job.device, self.work.dtype):
            for rows in packed_batches(used.sum(dim=1).numpy(), budget):
                vectors, lengths = encode_unpadded(self.work.model, features, rows, self.job.task, self.job.device)
                batches.append(Batch(rows, self.finish(vectors), lengths))
                if bar is not None:
                    bar.update(len(rows))
        return Window(batches)


def _map_in_threads(encode: Callable[[np.ndarray], Batch], groups: Sequence[np.ndarray], threads: int) -> list[Batch]:
    """Encode each group in one of so many threads, in which torch computes with one thread.

    Threads that share a batch wait for each other after every operation: a tenth of the time on two idle cores, and on
    a busy machine as long as one of them is without a core.
    """
    waiting = deque(groups)
    batches = []

    def work() -> None:
        with limited_threads(1):
            while True:
                try:
                    rows = waiting.popleft()
                except IndexError:
                    return
                batches.append(encode(rows))

    running = [_threads(thread_count()).submit(work) for _ in range(min(threads, len(groups)))]
    try:
        for each in running:
            each.result()
    finally:
        waiting.clear()  # not empty only if a thread raised
        for each in running:
            each.exception()
    return batches


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    """Return threads in which torch computes with one thread each: OpenMP and MKL have a number for each thread."""
    started = Barrier(count + 1)

    def start() -> None:
        torch.get_num_threads()  # at its first call in a thread, torch sets the number of that thread
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, "latelier-encoder")
    for _ in range(count):
        pool.submit(start)
    started.wait()
    torch.set_num_threads(count)  # also of threads that start later
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked child has none of the threads


@lru_cache
def _are_threads_apart() -> bool:
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()


def _place(model: Any, device: Any) -> torch.device:
    """Return the device to compute on. Looking at all parameters would take a tenth of the time of a short query."""
    if device is None and not model._placement_is_delegated:
        return torch.device(model.device)
    return torch.device(model._resolve_inference_device(None if device is None else resolve_device(device)))


def _truncate(vectors: Tensor, dim: int) -> Tensor:
    """Keep the first `dim` numbers of each token vector ``(tokens, dim)``, normalised again."""
    return nn.functional.normalize(vectors[:, :dim], dim=-1)


def _choose_dtype(model: Any, features: Any, used: Tensor, job: Job) -> str | None:
    """Return bfloat16 where it is faster and a sample of the texts stays close; None for the dtype of the weights."""
    if used.numel() < LONG_WORK or getattr(model, "cpu_backend", "torch") == "onnx":
        return None
    if not prefers_bfloat16(int(used.sum()), job.device, model.dtype):
        return None
    rows = np.unique(np.linspace(0, len(used) - 1, _SAMPLE).astype("int64"))
    computed, exact = (
        _Forward.of(model, job, dtype, features).encode_batch(features, used, rows).vectors
        for dtype in ("bfloat16", None)
    )
    if stays_close(computed, exact):
        return "bfloat16"
    return None


class Batch(NamedTuple):
    """Encoded texts: their positions in the window, ``(tokens, dim)`` vectors of all of them, and their lengths."""

    rows: np.ndarray
    vectors: Tensor
    lengths: list[int]


class Window(NamedTuple):
    """The encoded batches of texts that were tokenised together; each text is in one batch."""

    batches: list[Batch]

    def to_embeddings(self, precision: str | None = None) -> TokenEmbeddings:
        """Return the texts in order, copied once at most, and converted to `precision` on the way."""
        first = self.batches[0]
        # int8 needs the vectors as computed: the scale of a token comes from them.
        if precision in (None, "int8"):
            dtype = first.vectors.dtype
        else:
            dtype = torch_dtype(precision)
        if len(first.rows) == len(self.batches) == 1:  # a query on its own is in order
            packed = TokenEmbeddings(first.vectors.to(dtype), [0, len(first.vectors)])
        else:
            packed = self._in_order(dtype)
        if precision is None:
            return packed
        return packed.to(precision)

    def _in_order(self, dtype: torch.dtype) -> TokenEmbeddings:
        rows = np.concatenate([batch.rows for batch in self.batches])
        lengths = np.zeros(len(rows), dtype="int64")
        for batch in self.batches:
            lengths[batch.rows] = batch.lengths
        offsets = lengths_to_offsets(lengths)
        if np.array_equal(rows, np.arange(len(rows))):  # batches in order, of which a GPU needs no index
            return TokenEmbeddings(torch.cat([batch.vectors.to(dtype) for batch in self.batches]), offsets)
        first = self.batches[0].vectors
        vectors = first.new_empty(int(offsets[-1]), first.shape[1], dtype=dtype)
        for batch in self.batches:
            places = rows_of(offsets, batch.rows)
            given = batch.vectors.to(dtype)
            if vectors.device.type == "cpu":  # by numpy: after torch computes with threads here, a forked child hangs
                _plain(vectors)[places] = _plain(given)
            else:
                vectors[torch.from_numpy(places).to(vectors.device)] = given
        return TokenEmbeddings(vectors, offsets)


def _plain(vectors: Tensor) -> np.ndarray:
    """Return a view that numpy can copy: it has no bfloat16."""
    return (vectors.view(torch.int16) if vectors.dtype == torch.bfloat16 else vectors).detach().numpy()


def document_length(model: Any, text: str) -> int | None:
    """Return the number of tokens of a whole document, markers included; None if it is more than the model reads."""
    prompt = model.prompts.get("document") or ""
    with tokenizer_lock(model.tokenizer):
        count = len(model.tokenizer(prompt + text, truncation=False, verbose=False)["input_ids"])
    limit = length_limit(encoder_module(model))
    if limit is None or count <= limit:
        return count
    return None


def encode_up_to(model: Any, text: str, max_length: int) -> np.ndarray:
    """Return the token vectors of one document, as if `max_length` were its cap, ``(tokens, dim)`` float32."""
    model.eval()
    features = model.tokenize([text], is_query=False, max_length=max_length)
    with torch.inference_mode():
        out = model(move_features(features, model.device), task="document")
    vectors = out["token_embeddings"][0][out["attention_mask"][0].bool()].float()
    encoded: np.ndarray = (
        (vectors if model.truncate_dim is None else _truncate(vectors, model.truncate_dim)).cpu().numpy()
    )
    return encoded


def with_longer_queries(model: MultiVectorEncoder) -> MultiVectorEncoder:
    """Return a model of the same weights that reads up to `longest_query` tokens of a query, and expands none."""
    encoder: Any = copy(encoder_module(model))
    encoder.query_expansion = None
    encoder.query_length = longest_query(model)
    longer: Any = copy(model)
    longer._modules = {**model._modules, next(iter(model._modules)): encoder}
    longer._frozen = FrozenCopies()
    return longer
