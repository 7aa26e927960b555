"""Texts to embeddings: the calls that need no gradient, in the spellings that people know.

`encode` accepts what PyLate, neural-cherche and sentence-transformers accept, and returns what sentence-transformers
returns.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Literal

import torch
from sentence_transformers.base.modules import Transformer

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models.checkpoint import Checkpoint
from latelier.models.compute_dtype import Numbers, check_compute_dtype
from latelier.models.encoding import Job, encode_windows, matrices, pack, truncate
from latelier.models.form import Form
from latelier.models.inputs import check_lengths, checked_stream
from latelier.models.nesting import flatten, regroup
from latelier.models.options import check_options, one_name, resolve_task
from latelier.models.pooling import check_pooling, pool_tokens
from latelier.models.streaming import packed_windows
from latelier.models.tokenization import Tokenization
from latelier.models.workers import PackedChunk, PackingQueue
from latelier.utils import check_count, resolve_device
from latelier.utils.describing import short
from latelier.utils.progress import progress_bar

__all__ = ["Encoder"]

_logger = logging.getLogger(__name__)
_DESCRIPTIONS = {"query": "Encoding queries", "document": "Encoding documents"}

# Options of sentence-transformers that our own loop knows; the others are left to theirs.
_OUR_OPTIONS = {"batch_size", "show_progress_bar", "convert_to_numpy", "device", "pool", "chunk_size"}
# Options of sentence-transformers in the order of their `encode`, and the values that say nothing.
_NEUTRAL: dict[str, Any] = {
    "show_progress_bar": None,
    "output_value": "token_embeddings",
    "convert_to_numpy": False,
    "device": None,
    "normalize_embeddings": False,
    "pool": None,
    "chunk_size": None,
    "token_pooling": None,
}


class Encoder(Tokenization):
    """What `ColBERT` does with texts, without gradients."""

    def encode(  # type: ignore[override]
        self,
        texts: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["token_embeddings"] | None = "token_embeddings",
        convert_to_numpy: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        pool: Any = None,
        chunk_size: int | None = None,
        token_pooling: Any = None,
        task: str | None = None,
        *,
        query_mode: bool | None = None,
        is_query: bool | None = None,
        truncation: bool = True,
        add_special_tokens: bool = False,
        packed: bool = False,
        precision: str | None = None,
        compute_dtype: str = "auto",
        truncate_dim: int | None = None,
        pool_factor: int = 1,
        protected_tokens: int = 1,
        convert_to_tensor: bool = False,
        inputs: Any = None,
        sentences: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Encode texts without gradients.

        Parameters
        ----------
        texts, inputs, sentences
            One text, many, or lists of texts (the candidates of each query): the names of latelier,
            sentence-transformers and PyLate. A pair that the encoder reads as one input is a tuple.
        prompt_name, prompt
            What to put before each text instead of the model's own prompt (its marker).
        task, query_mode, is_query
            The spellings of sentence-transformers, neural-cherche and PyLate: ``"query"`` and True, ``"document"`` and
            False. Default: **queries**. `encode_query` and `encode_document` leave no doubt.
        truncation
            False makes a text that is longer than its cap an error rather than cut.
        packed
            Return one `TokenEmbeddings` rather than a list.
        precision
            Numbers to return: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"int8"`` with one scale per token
            (needs ``packed=True``). Default: as computed.
        compute_dtype
            Numbers to compute in: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: bfloat16 for more than
            32,768 tokens where it is faster and a sample of the texts keeps a cosine of 0.999 for each token.
        truncate_dim
            Keep so many of the first numbers of each vector, brought back to length 1; default: the model's.
        pool_factor, protected_tokens
            Of documents, keep about one vector of ``pool_factor``; see `pool_tokens`.
        add_special_tokens, convert_to_tensor
            Kept for calls written for neural-cherche and PyLate: there are always special tokens, and tensors.
        batch_size, show_progress_bar, output_value, convert_to_numpy, device, normalize_embeddings, pool, **kwargs
            With ``chunk_size`` and ``token_pooling``, as in `sentence_transformers.MultiVectorEncoder.encode`.

        Returns
        -------
        list of torch.Tensor
            One ``(tokens, dim)`` matrix per text; one matrix for one text; a list for each list of texts.

        Raises
        ------
        InvalidArgumentError
            If an argument does not exist, contradicts another or has a value that it cannot have, or a text is no str.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> model.encode(["fruits are healthy.", ""], is_query=False, packed=True)
        TokenEmbeddings(2 texts, 8 tokens, dim=384, float32, cpu)
        """
        given, single = self._given({"texts": texts, "inputs": inputs, "sentences": sentences}, kwargs)
        rows, sizes = flatten([given] if single else list(given))
        task = resolve_task(query_mode, is_query, task)
        check_pooling(pool_factor, protected_tokens, task, output_value)
        form = Form(packed, precision, convert_to_numpy and not convert_to_tensor, output_value is None)
        check_compute_dtype(compute_dtype)
        if not truncation:
            check_lengths(self, rows, task)
        numbers = Numbers(compute_dtype, self.resolve_truncation(truncate_dim))
        values = (show_progress_bar, output_value, form.numpy, device, normalize_embeddings, pool, chunk_size)
        options = {"batch_size": batch_size, **dict(zip(_NEUTRAL, (*values, token_pooling), strict=True)), **kwargs}
        encoded = self._encode_rows(rows, task, prompt_name, prompt, numbers, packed or pool_factor > 1, options)
        if pool_factor > 1 and rows:
            encoded = pool_tokens(form.pack(encoded), pool_factor, protected_tokens=protected_tokens)
        encoded = form.give(encoded, numbers.truncate_dim or self.embedding_size, single)
        return encoded if sizes is None else regroup(encoded, sizes)

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        is_query: bool = False,
        packed: bool = False,
        precision: str | None = None,
        compute_dtype: str = "auto",
        truncate_dim: int | None = None,
        pool_factor: int = 1,
        protected_tokens: int = 1,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> Iterator[Any]:
        """Encode texts as they come, in memory that does not grow with their number.

        Parameters
        ----------
        texts
            Any iterable, read 2,048 texts ahead.
        is_query
            Whether the texts are queries; documents by default, which is what corpora consist of.
        packed
            Yield `TokenEmbeddings` of up to 2,048 texts rather than one matrix per text. Indexes take either.
        precision, compute_dtype, truncate_dim, pool_factor, protected_tokens
            As in `encode`. ``compute_dtype="auto"`` decides by the first 2,048 texts.
        batch_size
            Texts of full length that are encoded together.
        show_progress_bar
            Count texts on standard error.

        Yields
        ------
        torch.Tensor
            One ``(tokens, dim)`` matrix per text, in order, on the CPU; or `TokenEmbeddings`.

        Raises
        ------
        InvalidArgumentError
            As in `encode`, and when a text that is not a string is reached; the message gives its position.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> lines = (f"{n} fruits" for n in range(3))
        >>> [matrix.shape[0] for matrix in model.encode_stream(lines)]
        [4, 4, 4]
        """
        task = "query" if is_query else "document"
        Form(packed, precision)
        total = len(texts) if isinstance(texts, Sized) else None
        check_pooling(pool_factor, protected_tokens, task)
        check_compute_dtype(compute_dtype)
        check_count("batch_size", batch_size)
        checked = checked_stream(texts)
        self._check_fitted()
        as_computed = precision if pool_factor == 1 else None
        numbers = Numbers(compute_dtype, self.resolve_truncation(truncate_dim))

        def windows() -> Iterator[Any]:
            with progress_bar(shown=show_progress_bar, total=total, desc=_DESCRIPTIONS[task]) as bar:
                for part in packed_windows(
                    self, checked, task, batch_size=batch_size, numbers=numbers, precision=as_computed, bar=bar
                ):
                    if pool_factor > 1:
                        part = pool_tokens(part, pool_factor, protected_tokens=protected_tokens)
                        part = part if precision is None else part.to(precision)
                    # A row that the caller keeps must not keep 2,048 others.
                    yield from [part] if packed else map(torch.clone, part)

        return windows()

    def encodes_by_budget(self, task: str | None) -> bool:
        """Whether texts are encoded in batches of similar length under a token budget.

        Not so with flash attention, where a batch is flattened rather than padded, nor with encoders that are no
        transformer: those are left to sentence-transformers.
        """
        encoder = self[0]
        return isinstance(encoder, Transformer) and not encoder.can_flatten_inputs and task is not None

    def _given(self, spellings: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, bool]:
        """Return what is to be encoded, and whether it is one text; refuse arguments that do not exist first."""
        if options:
            known = {"processing_kwargs", *self.get_model_kwargs()} - {"task"}
            check_options("encode", options, known, inspect.signature(self.encode).parameters)
        given = one_name(spellings, "texts to encode")
        if isinstance(given, Iterator):
            raise InvalidArgumentError("received a generator; encode takes a list, encode_stream reads generators.")
        return given, self.is_singular_input(given)

    def _encodes_here(self, rows: list[Any], task: str | None, options: Mapping[str, Any]) -> bool:
        """Whether our loop does it: plain texts and no step of sentence-transformers' own in between."""
        ours = self.encodes_by_budget(task) and set(options) <= _OUR_OPTIONS
        ours = ours and all(isinstance(text, str) for text in rows)
        return ours and (self._distributed_inference is None or options.get("device") is not None)

    def _encode_rows(
        self,
        rows: list[Any],
        task: str,
        prompt_name: str | None,
        prompt: str | None,
        numbers: Numbers,
        packed: bool,
        options: Mapping[str, Any],
    ) -> Any:
        """Encode texts with our loop, and what it does not know with sentence-transformers'."""
        self._check_fitted()
        if prompt is None and prompt_name is None and task in self.prompts:
            prompt_name = task
        options = {name: value for name, value in options.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}
        if self._encodes_here(rows, task, options):
            prompt = self._resolve_prompt(prompt, prompt_name)
            return self._encode_here(rows, task, prompt, numbers, packed, **options)
        if numbers.compute_dtype in ("bfloat16", "float16"):
            reason = ", ".join(sorted(set(options) - _OUR_OPTIONS)) or f"a {task} of this model"
            raise InvalidArgumentError(
                f"received compute_dtype={numbers.compute_dtype!r} with {reason}: "
                "that is encoded by sentence-transformers, in the dtype of the model's weights."
            )
        encoded = super().encode(rows, prompt_name, prompt, task=task, **options)
        if numbers.truncate_dim is None or options.get("output_value", "") is None:
            return encoded
        return [truncate(torch.as_tensor(matrix), numbers.truncate_dim) for matrix in encoded]

    def _encode_here(
        self,
        rows: list[str],
        task: str,
        prompt: str | None,
        numbers: Numbers,
        packed: bool,
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = False,
        device: Any = None,
        pool: Any = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Return a matrix per text, or `TokenEmbeddings`, as computed."""
        check_count("batch_size", batch_size)
        if show_progress_bar is None:
            show_progress_bar = _logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
        if pool is not None or (isinstance(device, list) and device):
            for each in device if isinstance(device, list) else ():
                resolve_device(each)
            options = {"prompt": prompt, "batch_size": batch_size, "task": task, "numbers": numbers}
            return self._multi_process(rows, show_progress_bar, pool, device, chunk_size, **options)
        job = Job(task, self._place(device), prompt, batch_size, numbers, convert_to_numpy)
        with progress_bar(shown=show_progress_bar, total=len(rows), desc=_DESCRIPTIONS[task]) as bar:
            windows = encode_windows(self, rows, job, bar)
            if packed and rows:
                return TokenEmbeddings.concatenate([pack(window) for window in windows])
            return [matrix for window in windows for matrix in matrices(window)]

    def _resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        try:
            return super()._resolve_prompt(prompt, prompt_name)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"received prompt_name={short(prompt_name)}; this model has {', '.join(map(repr, self.prompts))}."
            ) from error

    def _place(self, device: Any) -> torch.device:
        """Return where to compute; finding out walks over all parameters, a tenth of a short query."""
        if device is None and not self._placement_is_delegated:
            return self.device
        return self._resolve_inference_device(None if device is None else resolve_device(device))

    def _inference(self, inputs: list[Any], *, device: Any = None, numbers: Any = None, **options: Any) -> Any:
        """Encode in a worker process what `_encode_here` sent there, and all else as sentence-transformers does."""
        if numbers is None:
            return super()._inference(inputs, device=device, **options)
        job = Job(options["task"], self._place(device), options["prompt"], options["batch_size"], numbers)
        return [matrix for window in encode_windows(self, inputs, job) for matrix in matrices(window)]

    @classmethod
    def _multi_process_worker(cls, target_device: str, model: Any, input_queue: Any, results_queue: Any) -> None:
        packing: Any = PackingQueue(results_queue)
        super()._multi_process_worker(target_device, model, input_queue, packing)

    @staticmethod
    def _get_worker_result(pool: Any, *args: Any, **kwargs: Any) -> Any:
        chunk, output = Checkpoint._get_worker_result(pool, *args, **kwargs)
        return [chunk, output.unpack() if isinstance(output, PackedChunk) else output]
