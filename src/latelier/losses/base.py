"""What all losses share: batches of texts as scores, in mini-batches, with other queries' documents as negatives.

Scores are computed in float32, outside autocast: rounding to bfloat16 changes a similarity by up to 0.002, which a sum
over thirty query tokens and a low temperature multiply.

A batch of real texts padded to its longest is two thirds padding; that of the trainer's collator is cut off here.

Columns are concatenated first, so that mini-batches hold texts of similar length. Gradients flow back to the process
that embedded a document, scaled such that their mean over processes is the gradient of the whole batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import similarity_fct_name
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from latelier.arrays import as_tensor, at_least_float32
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.utils import batch_by_tokens
from latelier.utils.batching import lengths_to_offsets, move_features, rows_of, select_rows, used_positions
from latelier.utils.checks import check_count
from latelier.utils.misc import warn_caller

# Tokens of a mini-batch, padding included. A CPU is fastest with activations that fit its caches; a GPU needs large
# matrix products to be busy.
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768
# Where the activations of all passes are kept anyway, a further pass on a GPU pays off if it saves so many tokens of
# padding times the square of the model's width: for 384 dimensions 29,000 tokens, as long as launching a pass takes.
_PASS = 1 << 32
_MOST_TOKENS = 1 << 18


class MiniBatches(NamedTuple):
    """How the texts of a batch are split into forward passes.

    `max_tokens` counts padding; None is a default for the device. `recompute` keeps only token vectors of a pass and
    repeats it in the backward pass (GradCache, Gao et al. 2021): the memory of one pass for a third more time.
    """

    max_tokens: int | None = None
    max_rows: int | None = None
    recompute: bool = False


def run_rows(model: nn.Module, features: dict[str, Any], mini_batches: MiniBatches) -> TokenEmbeddings:
    """Embed the rows of features in mini-batches of similar length; all their tensors must be ``(rows, tokens)``.

    `model`: a late-interaction model, or a wrapper around one. `features`: the features; not modified. Returns: the
    scored tokens of each row, in the order of the rows, with gradients; at least float32.
    """
    used = used_positions(features).cpu()  # once: each mini-batch would wait for a GPU again
    lengths = used.sum(dim=1).numpy()
    order = []
    passes = []
    for rows in _split(model, lengths, mini_batches, on_cpu=features["input_ids"].device.type == "cpu"):
        if len(rows) == len(lengths):  # one mini-batch: the features as they are
            return _pass(model, features, mini_batches.recompute)
        order.append(rows)
        passes.append(_pass(model, select_rows(features, used, rows), mini_batches.recompute))
    joined = TokenEmbeddings.concatenate(passes)
    places = np.argsort(np.concatenate(order))
    # index_select, not joined[places]: the gradient of the latter sorts the rows
    tokens = as_tensor(rows_of(joined.offsets, places)).to(joined.device, non_blocking=True)
    return TokenEmbeddings(joined.vectors.index_select(0, tokens), lengths_to_offsets(joined.lengths[places]))


def _split(model: nn.Module, lengths: np.ndarray, mini_batches: MiniBatches, *, on_cpu: bool) -> Iterator[np.ndarray]:
    """Yield the rows of each mini-batch."""
    budget = mini_batches.max_tokens or (_CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS)
    if on_cpu or mini_batches.max_tokens or mini_batches.recompute:
        yield from batch_by_tokens(lengths, budget, mini_batches.max_rows)
        return
    width = next((weight.shape[-1] for weight in model.parameters() if weight.ndim == 2), 1)
    order = np.argsort(-lengths, kind="stable")
    for rows in _cut_where_padding_is_saved(order, lengths, _PASS // width**2):
        for some in batch_by_tokens(lengths[rows], _MOST_TOKENS, mini_batches.max_rows):
            yield rows[some]


def _cut_where_padding_is_saved(rows: np.ndarray, lengths: np.ndarray, least: int) -> list[np.ndarray]:
    """Cut rows, longest first, in two where that saves most padding, and these again, if it saves more than `least`."""
    if not len(rows):
        return []
    saved = (lengths[rows[0]] - lengths[rows]) * np.arange(len(rows), 0, -1)
    place = int(saved.argmax())
    if saved[place] <= least:
        return [rows]
    first, second = rows[:place], rows[place:]
    return [
        *_cut_where_padding_is_saved(first, lengths, least),
        *_cut_where_padding_is_saved(second, lengths, least),
    ]


def _pass(model: nn.Module, features: dict[str, Any], recompute: bool) -> TokenEmbeddings:
    """Run one pass: return the vectors of the scored tokens of each row."""
    if not (recompute and torch.is_grad_enabled()):
        vectors, lengths = _forward(model, features)
    else:
        vectors, lengths = checkpoint(_first_with_wrapper(model), features, use_reentrant=False)
    return TokenEmbeddings(vectors, lengths_to_offsets(lengths.cpu().numpy()))


def _forward(model: nn.Module, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    with _own_buffers(model):
        out = model(dict(features), task=features.get("task"))  # a copy, since the model's modules write into the dict
    mask = out["attention_mask"].bool()
    vectors = out["token_embeddings"].flatten(0, 1).index_select(0, mask.flatten().nonzero().squeeze(1))
    return at_least_float32(vectors), mask.sum(dim=1)


@contextmanager
def _own_buffers(model: nn.Module) -> Iterator[None]:
    """Let each process use its own buffers, constants such as ``position_ids``.

    The wrapper would broadcast them in each forward pass, and wait forever where processes need other numbers of them.
    """
    if not isinstance(model, DistributedDataParallel):
        yield
        return
    given = model.broadcast_buffers
    model.broadcast_buffers = False
    try:
        yield
    finally:
        model.broadcast_buffers = given


def _check_parallel(model: nn.Module) -> None:
    """Raise an error where processes would wait for the gradient of a pooler, which late interaction does not use."""
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        names = [
            name for name, weight in model.module.named_parameters() if ".pooler." in name and weight.requires_grad
        ]
        if names:
            raise InvalidArgumentError(
                f"the model has weights without a gradient, such as {names[0]}, so DistributedDataParallel would give "
                "wrong gradients of others; pass it find_unused_parameters=True, or freeze them before you wrap the "
                "model: requires_grad_(False)."
            )


def _first_with_wrapper(model: nn.Module) -> Callable[[dict[str, Any]], tuple[Tensor, Tensor]]:
    """Return `_forward` that calls the parallel wrapper in its first run and the wrapped model in its second."""
    if isinstance(model, DistributedDataParallel):
        inner = model.module
    else:
        inner = model
    models = iter([model])
    return lambda features: _forward(next(models, inner), features)


class EmbeddedBatch(NamedTuple):
    """A batch of ``b`` queries with ``n`` documents each, packed: no padding is stored or scored.

    `queries`: ``b`` texts, with gradients, at least float32. `documents`: ``b * n`` texts, grouped by query.
    `query_keys`, `document_keys`: ``(b,)`` and ``(b * n,)`` int64 hashes of the texts' token ids; None if the features
    hold no token ids.
    """

    queries: TokenEmbeddings
    documents: TokenEmbeddings
    query_keys: Tensor | None
    document_keys: Tensor | None

    @property
    def per_query(self) -> int:
        """Documents of each query."""
        return len(self.documents) // max(len(self.queries), 1)


def embed_batch(
    model: nn.Module,
    sentence_features: Iterable[Mapping[str, Any]],
    warn_once: Callable[[str], None],
    mini_batches: MiniBatches | None = None,
) -> EmbeddedBatch:
    """Embed queries and documents, and group the documents by query.

    `sentence_features`: features of the ``b`` queries, then of the documents in any number of dicts, of ``b`` rows (one
    document of each query) or ``b * m`` rows (``m``, those of one query next to each other).
    """
    if mini_batches is None:
        mini_batches = MiniBatches()
    columns = _read_columns(model, sentence_features, warn_once)
    with _shared_casts(mini_batches):
        queries, query_keys = _embed_columns(model, columns[:1], mini_batches, None)
        documents, document_keys = _embed_columns(model, columns[1:], mini_batches, len(queries))
    empty = np.flatnonzero(documents.lengths == 0)
    if len(empty):
        query, document = divmod(int(empty[0]), len(documents) // len(queries))
        raise InvalidArgumentError(
            f"document {document} of query {query} has no token that is scored, so its score is minus infinity; give "
            "it a text, or a shorter skiplist."
        )
    return EmbeddedBatch(queries, documents, query_keys, document_keys)


@contextmanager
def _shared_casts(mini_batches: MiniBatches) -> Iterator[None]:
    """Let all passes share the weights that autocast converts: it forgets them at the end of its outermost block."""
    if mini_batches.recompute or not torch.cuda.is_available():
        yield
        return
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", dtype, enabled=torch.is_autocast_enabled("cuda")):
        yield


def _grouped_by_query(rows: list[int], queries: int) -> list[int]:
    """Return the positions of the documents of query 0, 1, ... in the concatenation of columns of these sizes."""
    for i, size in enumerate(rows, start=1):
        if queries == 0 or size == 0 or size % queries:
            raise InvalidArgumentError(
                f"sentence_features[{i}] has {size} rows for {queries} queries; expected one document for each query, "
                "or all documents of each query next to each other: a multiple of the queries' rows."
            )
    starts = [sum(rows[:i]) for i in range(len(rows))]
    shares = [(start, size // queries) for start, size in zip(starts, rows, strict=True)]
    return [start + q * share + i for q in range(queries) for start, share in shares for i in range(share)]


def _read_columns(
    model: nn.Module, sentence_features: Iterable[Mapping[str, Any]], warn_once: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Check the features and copy them, with their tensors on the model's device."""
    given = list(sentence_features)
    if len(given) < 2:
        raise InvalidArgumentError(
            f"sentence_features holds {len(given)} dicts; expected the queries' features, then the documents'."
        )
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.device.type == "cpu":
        accelerator = None
    else:
        accelerator = parameter.device
    columns = []
    for i, (features, task) in enumerate(zip(given, ["query", *["document"] * (len(given) - 1)], strict=True)):
        if features.get("task") not in (None, task):
            warn_once(
                f"sentence_features[{i}] was tokenised as {features['task']!r}, but a loss expects {task!r} here, so "
                f"the text has the wrong marker and expansion. Without a trainer, use model.tokenize(texts, "
                f"is_query={task == 'query'}); in a trainer, check router_mapping."
            )
        columns.append(move_features(features, accelerator))
    return columns


def _embed_columns(
    model: nn.Module, columns: list[dict[str, Any]], mini_batches: MiniBatches, queries: int | None
) -> tuple[TokenEmbeddings, Tensor | None]:
    """Return the token vectors and the keys of all columns; of documents, in groups for so many `queries`."""
    if _are_token_ids(columns):
        joined = columns[0]
        if queries is not None:
            # Grouped before the pass, so that what it returns is the batch: nothing is cut up and joined again.
            joined = _join_columns(columns, _grouped_by_query([len(c["input_ids"]) for c in columns], queries))
        keys = _hash_rows(joined)  # first: it would wait for a GPU to finish the pass
        return run_rows(model, joined, mini_batches), keys
    passes = [_pass(model, column, mini_batches.recompute) for column in columns]  # images, say
    texts = TokenEmbeddings.concatenate(passes)
    hashes = [_hash_rows(column) for column in columns]
    keys = torch.cat(hashes) if all(key is not None for key in hashes) else None  # type: ignore[arg-type]
    if queries is None:
        return texts, keys
    order = _grouped_by_query([len(each) for each in passes], queries)
    rows = texts.vectors.split(texts.lengths.tolist())
    return TokenEmbeddings.from_list([rows[i] for i in order]), None if keys is None else keys[order]


def _are_token_ids(columns: list[dict[str, Any]]) -> bool:
    """Whether all tensors are ``(rows, tokens)`` and all other values equal; not so for images and unpadded batches."""
    kinds = [{key: None if isinstance(v, Tensor) else repr(v) for key, v in column.items()} for column in columns]
    if any(kind != kinds[0] for kind in kinds) or kinds[0].get("input_ids", "") is not None:
        return False
    tensors = [(column["input_ids"], v) for column in columns for v in column.values() if isinstance(v, Tensor)]
    return all(v.shape == ids.shape and v.ndim == 2 and not v.is_floating_point() for ids, v in tensors)


def _join_columns(columns: list[dict[str, Any]], order: list[int]) -> dict[str, Any]:
    """Concatenate columns, padded with zeros, which the attention mask excludes, and put their rows in an order."""
    joined = dict(columns[0])
    if len(columns) == 1:
        return joined
    width = max(column["input_ids"].shape[1] for column in columns)
    places = torch.tensor(order)
    for key in [key for key, value in joined.items() if isinstance(value, Tensor)]:
        rows = torch.cat([nn.functional.pad(c[key], (0, width - c[key].shape[1])) for c in columns])
        joined[key] = rows[places.to(rows.device, non_blocking=True)]
    return joined


def _hash_rows(features: Mapping[str, Any]) -> Tensor | None:
    """Hash the token ids of each row to 64 bits; padding has no effect, and all processes get the same hash."""
    ids = features.get("input_ids")
    mask = features.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or ids.ndim != 2 or mask.shape != ids.shape:
        return None
    ids = ids.cpu()
    mask = mask.cpu().bool()
    factors = torch.randint(1, 2**62, (ids.shape[1] + 1,), generator=torch.Generator().manual_seed(0))
    position = mask.cumsum(dim=1)
    return torch.where(mask, (ids + 1) * factors[position], 0).sum(dim=1)  # overflow wraps around


ScoreMetric: TypeAlias = Callable[..., Tensor]
"""(queries, documents, *, queries_mask, documents_mask) to scores, as in latelier.scores and sentence-transformers."""


class LossOptions(NamedTuple):
    """Options that all losses share.

    `size_average`: mean over the queries of the batch; False sums. `dims`: numbers of dimensions to train for, see
    `truncated`; None: the model's own. `gather_across_devices`: use the documents of all processes as negatives.
    """

    size_average: bool = True
    dims: Sequence[int] | None = None
    gather_across_devices: bool = False
    mini_batches: MiniBatches = MiniBatches()


class WarnOnce:
    """Give each warning once per loss object, not once per step."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, message: str) -> None:
        """Warn, unless the same message was given before."""
        if message not in self._given:
            self._given.add(message)
            warn_caller(message)


class Loss(nn.Module, ABC):
    """A loss over the token vectors of queries and their documents."""

    def __init__(self, model: nn.Module, score_metric: ScoreMetric, options: LossOptions) -> None:
        super().__init__()
        _check_model(model)
        check_count("mini_batch_tokens", options.mini_batches.max_tokens, optional=True)
        self.model = model  # trainers replace this attribute by a wrapped model
        self.score_metric = score_metric
        self.options = options._replace(
            dims=None if options.dims is None else tuple(check_count("dims", dim) for dim in options.dims)
        )
        self._warn_once = WarnOnce()

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Any = None) -> Tensor:
        """Return the loss of a batch, a scalar of at least float32 whatever the model computes in.

        `sentence_features`: features of the ``b`` queries, then of their ``n`` documents each: ``n`` dicts of ``b``
        rows, as the trainer passes them; one dict of ``b * n`` rows, the documents of one query next to each other; or
        both. `labels`: see the class. Wrong shapes raise `InvalidArgumentError`.
        """
        _check_parallel(self.model)
        batch = embed_batch(self.model, sentence_features, self._warn_once, self.options.mini_batches)
        dims = self.options.dims
        if dims is None:
            return self._compute(batch, labels)
        return torch.stack([self._compute(truncated(batch, dim), labels) for dim in dims]).mean()

    @abstractmethod
    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        """Return the loss of a batch, a scalar."""

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card; of the shared options, those that differ from their defaults."""
        options = self.options
        defaults = LossOptions()
        settings: dict[str, Any] = {
            "score_metric": similarity_fct_name(self.score_metric),
            "size_average": options.size_average,
        }
        for name in ("dims", "gather_across_devices"):
            if getattr(options, name) != getattr(defaults, name):
                settings[name] = getattr(options, name)
        return settings


def truncated(batch: EmbeddedBatch, dim: int) -> EmbeddedBatch:
    """Truncate token vectors to their first `dim` dimensions and normalise them to length 1."""
    if dim > batch.documents.dim:
        raise InvalidArgumentError(
            f"dims holds {dim}, but the model's vectors have {batch.documents.dim} dimensions; give at most that."
        )
    cut = partial(_cut, dim=dim)
    return batch._replace(queries=cut(batch.queries), documents=cut(batch.documents))


def raw_score(
    score_metric: ScoreMetric,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings,
    columns: int,
    suggestion: str,
    name: str = "score_metric",
) -> Tensor:
    """Compute scores ``(b, columns)``, with at least float32 vectors, in the dtype that `score_metric` returns.

    Functions of this library get the packed texts, others get padded tensors with masks. `suggestion` names a function
    that returns that many scores, and `name` the argument of the loss, for the message.
    """
    per_query = len(documents) // len(queries)
    with _without_autocast(documents.device.type):
        if _takes_packed(score_metric):
            scores = score_metric(queries, documents)
        else:
            left, left_mask = map(torch.as_tensor, queries.pad())
            right, right_mask = map(torch.as_tensor, documents.pad())
            # Documents gathered from processes with other batch sizes need not divide into groups of one size.
            shape = (-1, per_query if len(documents) == per_query * len(queries) else 1)
            documents_mask = right_mask.unflatten(0, shape)
            scores = score_metric(
                left, right.unflatten(0, shape), queries_mask=left_mask, documents_mask=documents_mask
            )
    expected = (len(queries), columns)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        if isinstance(scores, Tensor):
            received = f"shape {tuple(scores.shape)}"
        else:
            received = f"a {type(scores).__name__}"
        raise InvalidArgumentError(
            f"{name} returned {received} for {expected[0]} queries with {per_query} documents "
            f"each; expected shape {expected}, as {suggestion} returns it."
        )
    return scores


def _check_model(model: nn.Module) -> None:
    dense = isinstance(model, BaseModel) and not isinstance(model, MultiVectorEncoder)
    if dense or not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"received a model of type {type(model).__name__}; expected a late-interaction model, such as "
            "latelier.models.ColBERT(name)."
        )


def _cut(texts: TokenEmbeddings, dim: int) -> TokenEmbeddings:
    return TokenEmbeddings(nn.functional.normalize(texts.vectors[:, :dim], dim=1), texts.offsets)


def _takes_packed(score_metric: ScoreMetric) -> bool:
    if isinstance(score_metric, partial):
        function = score_metric.func
    else:
        function = score_metric
    return getattr(function, "__module__", "").startswith("latelier.scores.")


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class _Keys(NamedTuple):
    """The key of each document and of the query that it belongs to, ``(columns,)`` int64, as in `EmbeddedBatch`."""

    documents: Tensor
    queries: Tensor


class GatheredDocuments(NamedTuple):
    """The documents that each query of this process is scored against.

    `keys`: keys that are equal for equal texts; None if the features hold no token ids. `first`: position of this
    process's first document.
    """

    documents: TokenEmbeddings
    keys: _Keys | None
    first: int
    queries: int


def _world_size() -> int:
    """Return how many processes train together, 1 outside of such training."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def gather_documents(batch: EmbeddedBatch, *, across_devices: bool) -> GatheredDocuments:
    """Gather the documents of all processes, or take those of this process.

    `batch`: the batch of this process; processes may have batches of different sizes. `across_devices`: whether to
    gather from other processes. All of them have to call this.
    """
    keys = None
    if batch.query_keys is not None and batch.document_keys is not None:
        keys = _Keys(batch.document_keys, batch.query_keys.repeat_interleave(batch.per_query))
    if not across_devices or _world_size() == 1:
        return GatheredDocuments(batch.documents, keys, 0, len(batch.queries))
    device = batch.documents.device
    # All processes use the same tokeniser, so either all have keys or none has.
    table = torch.from_numpy(batch.documents.lengths)[None]
    if keys is not None:
        table = torch.cat([table, torch.stack(keys)])
    tables = _gather_ragged(table.T.contiguous().to(device))
    lengths = torch.cat([part[:, 0] for part in tables]).cpu().numpy()
    tokens = [int(part[:, 0].sum()) for part in tables]
    vectors = _AllGather.apply(batch.documents.vectors, tokens)
    gathered_keys = torch.cat([part[:, 1:] for part in tables]).T.cpu()
    queries = torch.tensor([len(batch.queries)], device=device)
    dist.all_reduce(queries)
    return GatheredDocuments(
        TokenEmbeddings(vectors, lengths_to_offsets(lengths)),
        None if keys is None else _Keys(*gathered_keys),
        sum(len(part) for part in tables[: dist.get_rank()]),
        int(queries),
    )


def score_all(
    score_metric: ScoreMetric, batch: EmbeddedBatch, gathered: GatheredDocuments, name: str = "score_metric"
) -> Tensor:
    """Score each query of this process against all gathered documents: ``(b, columns)``; `name` is the argument's."""
    columns = len(gathered.documents)
    suggestion = "latelier.scores.colbert_scores"
    return at_least_float32(raw_score(score_metric, batch.queries, gathered.documents, columns, suggestion, name))


def false_negatives(
    batch: EmbeddedBatch, gathered: GatheredDocuments, positives: Tensor, are_positives: Tensor
) -> Tensor:
    """Return which documents must not count as negatives of a query.

    `positives`: ``(b,)``, the column of each query's positive. `are_positives`: ``(columns,)`` bool: which documents
    are the positive of a query, of this process or another one. Returns: ``(b, columns)`` bool, on the device of the
    queries' vectors: true for a text that equals the query's positive, and for the positive of another row with the
    same query. False everywhere if there are no keys.
    """
    device = batch.queries.device
    columns = torch.arange(len(gathered.documents), device=device)
    positives = positives.to(device)
    if gathered.keys is None or batch.query_keys is None:
        return torch.zeros(len(positives), len(columns), dtype=torch.bool, device=device)
    documents, queries = (keys.to(device) for keys in gathered.keys)
    same_text = documents == documents[positives][:, None]
    same_query = (queries == batch.query_keys.to(device)[:, None]) & are_positives.to(device)
    return (same_text | same_query) & (columns != positives[:, None])


def reduce_total(total: Tensor, gathered: GatheredDocuments, options: LossOptions) -> Tensor:
    """Scale a sum over this process's queries so that the mean gradient over processes is that of the whole batch."""
    if options.gather_across_devices:
        share = _world_size()
    else:
        share = 1
    return total * share / (gathered.queries if options.size_average else 1)


def _gather_ragged(rows: Tensor) -> list[Tensor]:
    """Gather ``(n, width)`` tensors; ``n`` may differ between processes."""
    sizes = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    return _gather_padded(rows, [int(size) for size in sizes])


def _gather_padded(rows: Tensor, sizes: list[int]) -> list[Tensor]:
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return [part[:size] for part, size in zip(received, sizes, strict=True)]


class _AllGather(torch.autograd.Function):
    """Concatenate the rows of all processes; backward, sum over all processes the gradients of this process's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return torch.cat(_gather_padded(rows.detach(), sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.split(ctx.sizes)[dist.get_rank()], None
