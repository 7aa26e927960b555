"""The loop: dtype, features, form of the output.

The next window is tokenised in a background thread while the model works on this one, so that memory depends on the
window and not on the number of texts.

Encoding consists of matrix products, which take about half the time in bfloat16. Weights, residuals and norms stay in
float32 (torch's autocast), so that token vectors keep a cosine above 0.999 with those computed in float32; for
all-MiniLM-L6-v2 the lowest of a million tokens was 0.9998.

transformers turns padded lists of ids, types and masks into tensors one number at a time, which takes four times as
long as tokenising the texts on two cores, and holds Python's lock all the time. Ids without padding, joined into one
array, hold the same information. One text, a query, needs neither padding nor truncation, and transformers' options
take longer than its tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from torch import Tensor, nn

from latelier.arrays import DTYPES, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.kernels.threads import allowed_threads, map_each, thread_count
from latelier.models.aliases import check_delegated_dtype, check_prompt, has_loop_options, prompt_errors
from latelier.models.compression import Recorder, recorded_attention
from latelier.models.construction import check_lengths, max_length
from latelier.models.cpu.held_threads import held_threads, runs_in_threads
from latelier.models.cpu.prepacked import can_prepack
from latelier.models.gpu import encode_unpadded, is_unpadded, packed_batches
from latelier.models.onnx import cpu_forwards
from latelier.models.pooling import Pooling, pool_tokens
from latelier.models.recipe import are_texts, checked_stream
from latelier.models.text_encoder import TextEncoder
from latelier.models.tokens import tokenizer_lock
from latelier.models.windows import Batch, Window, embeddings_on_host, windows_on_host
from latelier.utils import CPU_BATCH_TOKENS, batch_by_tokens, check_count, check_flag, resolve_device, tokens_per_batch
from latelier.utils.checks import check_choice
from latelier.utils.features import move_features, select_rows, used_positions
from latelier.utils.misc import progress_bar
from latelier.utils.ragged import lengths_to_offsets

__all__ = [
    "COMPUTE_DTYPES",
    "WINDOW",
    "Job",
    "OutputForm",
    "check_compute_dtype",
    "check_weights",
    "encode_chunk",
    "encode_rows",
    "encode_windows",
    "encodes_by_budget",
    "inference",
    "is_long_work",
    "packed_windows",
    "prefers_bfloat16",
    "stays_close",
    "stream",
    "tokenize_window",
]

_UNPOOLED_OUTPUTS = Pooling()


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
    pooling: Pooling = _UNPOOLED_OUTPUTS

    def __post_init__(self) -> None:
        check_flag("packed", self.packed)
        if self.raw and self.packed:
            raise InvalidArgumentError("received packed=True with output_value=None; features are returned unchanged.")
        if self.precision is None:
            return
        check_choice("precision", self.precision, DTYPES, optional=True)
        if self.raw:
            raise InvalidArgumentError(
                f"received precision={self.precision!r} with output_value=None; features are returned unchanged."
            )
        if self.precision == "int8" and not self.packed:
            raise InvalidArgumentError(
                "precision='int8' needs packed=True: the scale of each token is kept beside the vectors, and a list "
                "of matrices has no place for it."
            )
        if self.precision == "bfloat16" and self.numpy:
            raise InvalidArgumentError(
                "numpy has no bfloat16; ask for precision='float16' or 'float32', or for tensors "
                "(convert_to_numpy=False)."
            )

    @property
    def works_on_packed(self) -> bool:
        """Whether `convert` needs `TokenEmbeddings`; encoding then returns them without a detour through a list."""
        return self.packed or self._pools

    @property
    def encoded_precision(self) -> str | None:
        """The precision to encode in: None with pooling, which needs the vectors as computed."""
        return None if self._pools else self.precision

    @property
    def _pools(self) -> bool:
        return self.pooling.is_on and not self.pooling.uses_attention

    def convert(self, encoded: Any, dim: int, single: bool) -> Any:
        """Return the embeddings of all texts in this form.

        `encoded`: a list of ``(tokens, dim)`` tensors or arrays, or `TokenEmbeddings`; `dim`: their dimension, needed
        where there are no texts; `single`: whether one text was given rather than a list.
        """
        if self._pools and len(encoded):
            encoded = self._pool(_join(encoded))
        if self.raw:
            return encoded[0] if single else encoded
        if self.packed:
            if not len(encoded):
                encoded = TokenEmbeddings(torch.zeros(0, dim), [0])
            joined = _join(encoded)
            joined = joined if self.precision is None else joined.to(self.precision)
            return joined.to("numpy") if self.numpy else joined
        rows = [self._cast(row) for row in encoded]
        return rows[0] if single else rows

    def convert_window(self, encoded: TokenEmbeddings) -> TokenEmbeddings:
        """Return a window of a stream, encoded in `encoded_precision`, pooled and in this precision."""
        if not self._pools:
            return encoded
        pooled = self._pool(encoded)
        return pooled if self.precision is None else pooled.to(self.precision)

    def _pool(self, encoded: TokenEmbeddings) -> TokenEmbeddings:
        how = self.pooling
        return pool_tokens(encoded, how.pool_factor, num_vectors=how.num_vectors, protected_tokens=how.protected_tokens)

    def _cast(self, row: Any) -> Any:
        """Convert one tensor or array to the wanted kind and precision."""
        if self.numpy and not isinstance(row, np.ndarray):
            row = (row.float() if row.dtype == torch.bfloat16 else row).cpu().numpy()
        if self.precision is None or self.precision == "int8":
            return row
        return row.to(torch_dtype(self.precision)) if isinstance(row, Tensor) else row.astype(self.precision)


def _join(encoded: Any) -> TokenEmbeddings:
    return encoded if isinstance(encoded, TokenEmbeddings) else TokenEmbeddings.from_list(encoded)


COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")

# Fewer tokens take about a second in float32: too short to accept a difference in the fourth digit.
_LONG_WORK = 32_768
_LEAST_COSINE = 0.999

logger = logging.getLogger(__name__)


def check_compute_dtype(compute_dtype: Any) -> None:
    """Raise an error for anything but one of `COMPUTE_DTYPES`."""
    check_choice("compute_dtype", compute_dtype, COMPUTE_DTYPES)


def check_weights(model: Any, compute_dtype: str | None) -> None:
    """Raise an error for a dtype that a model's weights rule out: autocast starts from float32.

    `compute_dtype`: one of `COMPUTE_DTYPES`, or None. ``"auto"`` follows the weights.
    """
    if compute_dtype in (None, "auto", "int8"):
        return
    weights = str(model.dtype).removeprefix("torch.")
    if weights not in ("None", "float32", compute_dtype):
        raise InvalidArgumentError(
            f"received compute_dtype={compute_dtype!r}, but the model's weights are {weights}; give 'auto', which "
            "computes in their dtype, or convert them first: model.float()."
        )


def is_long_work(tokens: int) -> bool:
    """Whether there are so many tokens that ``"auto"`` looks at other dtypes at all."""
    return tokens >= _LONG_WORK


def prefers_bfloat16(tokens: int, device: torch.device, weights: torch.dtype | None) -> bool:
    """Whether ``"auto"`` should try bfloat16: many tokens, a float32 model, and hardware that multiplies bfloat16."""
    if weights != torch.float32 or not is_long_work(tokens):
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_multiplies_bfloat16()


def stays_close(computed: Tensor, exact: Tensor) -> bool:
    """Whether token vectors ``(tokens, dim)`` have a cosine of at least 0.999 with those computed in float32."""
    cosines = torch.cosine_similarity(computed, exact, dim=-1)[exact.any(dim=-1)]  # a zero vector has no cosine
    least = cosines.min().item() if len(cosines) else 1.0
    if least >= _LEAST_COSINE:
        return True
    logger.warning(
        "a token vector of this model in bfloat16 has a cosine of %.4f with the same vector in float32, "
        'so it computes in float32; pass compute_dtype="bfloat16" or "float32" to decide yourself.',
        least,
    )
    return False


@contextmanager
def inference(
    model: nn.Module, device: torch.device, dtype: str | None, *, reads_attention: bool = False
) -> Iterator[None]:
    """Compute without gradients, on a CPU with the model's backend.

    `dtype`: the dtype to compute in: one of `COMPUTE_DTYPES` but ``"auto"``; None for that of the weights.
    `reads_attention`: whether the encoder's attention is recorded, which takes torch whatever the backend is. Raises
    `InvalidArgumentError` for ``"int8"`` on another device, or with another backend than ONNX Runtime; for another
    dtype that the weights rule out.
    """
    check_weights(model, dtype)
    if dtype == "int8" and device.type != "cpu":
        raise InvalidArgumentError(
            f"received compute_dtype='int8' on {device}, but int8 is computed on the CPU only; give device='cpu', or "
            "another compute_dtype."
        )
    autocast = getattr(torch, dtype) if dtype in ("bfloat16", "float16") else None
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if autocast is not None:
            stack.enter_context(torch.autocast(device.type, autocast))
        if device.type == "cpu":
            stack.enter_context(cpu_forwards(model, "autocast" if autocast else dtype or "float32", reads_attention))
        yield


def _cpu_multiplies_bfloat16() -> bool:
    # Without such instructions bfloat16 is emulated, and slower than float32. torch reports those of Intel and AMD;
    # ARM's are not asked for here. ONEDNN_MAX_CPU_ISA may keep oneDNN from using them: it cannot prepack then.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks) and can_prepack(torch.bfloat16)


_TYPES = "token_type_ids"
# Features, and what they are called in what a tokenizer returns.
_TENSORS = {"input_ids": "ids", "attention_mask": "attention_mask", _TYPES: "type_ids"}
# Fewer texts take no time that matters.
_LEAST_TEXTS = 32
# What sentence-transformers passes to the tokenizer: lists of ids of different lengths.
_UNPADDED: Any = {
    "common": {"return_tensors": None},
    "text": {"padding": False, "return_attention_mask": False, "return_token_type_ids": False},
}


# The features of one text, by the tokenizer, the task and the prompt; None where they are not its tokens alone.
_templates: WeakKeyDictionary[Any, dict[tuple[str, str | None], dict[str, Any] | None]] = WeakKeyDictionary()


def tokenize_window(model: MultiVectorEncoder, texts: list[str], prompt: str | None, task: str) -> dict[str, Any]:
    """Return the features of texts, as `ColBERT.preprocess` does.

    `prompt`: what to put before each; None for the model's own prompt. `task`: ``"query"`` or ``"document"``.
    """
    if (1 < len(texts) < _LEAST_TEXTS) or not _pads_at_the_right(model, task):
        return model.preprocess(texts, prompt=prompt, task=task)
    if len(texts) == 1:
        return _tokenize_one(model, texts[0], prompt, task)
    first = model.preprocess(texts[:1], prompt=prompt, task=task)
    tensors = {name: value for name, value in first.items() if isinstance(value, torch.Tensor)}
    if not tensors.keys() <= _TENSORS.keys() or (_TYPES in tensors and tensors[_TYPES].any()):
        return model.preprocess(texts, prompt=prompt, task=task)
    features = model.preprocess(texts, prompt=prompt, task=task, processing_kwargs=_UNPADDED)
    rows = features.pop("input_ids")
    lengths = np.fromiter(map(len, rows), dtype="int64", count=len(rows))
    used = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(used.shape, model.tokenizer.pad_token_id, dtype="int64")
    ids[used] = np.fromiter(chain.from_iterable(rows), dtype="int64", count=int(lengths.sum()))
    made = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(used.astype("int64"))}
    made[_TYPES] = torch.zeros_like(made["input_ids"])
    return {**{name: made[name] for name in tensors}, **features}


def _tokenize_one(model: MultiVectorEncoder, text: str, prompt: str | None, task: str) -> dict[str, Any]:
    """Return the features of one text, from the tokenizer of transformers' tokenizer."""
    encoder: Any = model[0]
    prompt = model.prompts.get(task) or None if prompt is None else prompt
    if prompt and prompt not in model.prompts.values():  # any number of prompts may be given, and each be remembered
        return model.preprocess([text], prompt=prompt, task=task)
    templates = _templates.setdefault(encoder.tokenizer, {})
    template = templates.get((task, prompt))
    if template is not None and (made := _read_tokens(encoder, (prompt or "") + text, template, task)) is not None:
        return made
    features: dict[str, Any] = model.preprocess([text], prompt=prompt, task=task)
    if (task, prompt) not in templates:
        tensors = {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}
        known = tensors.keys() <= _TENSORS.keys()
        made = _read_tokens(encoder, (prompt or "") + text, features, task) if known else None
        if made is not None:
            # Remembered if the shorter way makes the same of this text.
            same = all(torch.equal(made[name], value) for name, value in tensors.items())
            templates[task, prompt] = {**features, **dict.fromkeys(tensors)} if same else None
    return features


def _read_tokens(encoder: Any, text: str, template: dict[str, Any], task: str) -> dict[str, Any] | None:
    """Return the template with the tokens of a text in it; None for a text that is truncated or padded."""
    tokenizer = encoder.tokenizer
    backend = tokenizer.backend_tokenizer
    with tokenizer_lock(tokenizer):
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            return None
        tokens = backend.encode(text)  # truncated and padded as in the last call
    cap = (encoder.query_length if task == "query" else encoder.document_length) or tokenizer.model_max_length
    if len(tokens) > cap or tokens.overflowing or not all(tokens.attention_mask):
        return None
    return {
        name: torch.tensor([getattr(tokens, _TENSORS[name])]) if name in _TENSORS else value
        for name, value in template.items()
    }


def _pads_at_the_right(model: MultiVectorEncoder, task: str) -> bool:
    """Whether a text is padded at the right, and nothing else is done with its padding."""
    encoder: Any = model[0]
    if type(encoder) is not Transformer or (task == "query" and encoder.query_expansion is not None):
        return False
    tokenizer = encoder.tokenizer
    return (
        encoder.processor is tokenizer
        and bool(getattr(tokenizer, "is_fast", False))
        and tokenizer.padding_side == "right"
        and tokenizer.pad_token_id is not None
        and encoder.transformer_task == "feature-extraction"
        and set(encoder.modality_config) == {"text"}
        and not encoder.processing_kwargs
    )


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

    `task`: ``"query"`` or ``"document"``. `prompt`: what to put before each text; None for the model's own prompt.
    `batch_size`: maximum number of texts of full length in a batch; a batch of shorter texts may have as many tokens.
    Without padding, on a GPU, full length is 2,048 tokens at least. `compute_dtype`: the dtype to compute in, or
    ``"auto"``. `truncate_dim`: how many of the first numbers of each vector to keep; None for all. `save_to_cpu`: move
    each batch to the CPU when it is done. `device`: where to compute. `pooling`: how to pool documents; the loop of
    this module does it only where the encoder's attention gives the weights.
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

    `job`: how to encode; the device and the prompt's name are resolved here. `prompt_name`: name of the prompt if `job`
    has none; None for the prompt of the task. `form`: what the result will be converted to. `options`: options of
    sentence-transformers that are not at their defaults. `truncation`: False raises an error for a text that would be
    truncated. Returns: token vectors of each input, or `TokenEmbeddings` if `form.works_on_packed`.
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

    `model`, `job`: as in `packed_windows`. `texts`: the texts; each is checked when it is read.
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

    `texts`: the texts, read in the caller's thread, one window ahead. `job`: how to encode. The device and the prompt
    are the model's own. `precision`: as in `ColBERT.encode`. `bar`: progress bar to update. Yields: `WINDOW` texts, the
    last time the remaining ones.
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

    `texts`: the texts, read in the caller's thread, one window ahead; `job`: how to encode; `bar`: progress bar to
    update; returns: `WINDOW` texts each, the last time the remaining ones.
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
