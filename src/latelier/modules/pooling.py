"""`AttentionPooling`: at most a few vectors for each document, by clusters of its tokens and learned attention."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.multi_vector_encoder.modules.token_pooling import BaseTokenPooling
from torch import Tensor, nn

from latelier.kernels.threads import for_ranges
from latelier.kernels.ward import cluster_documents
from latelier.modules.attention import Attention
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_count

# torch before 2.6 cannot read annotations that are strings.
_SCHEMA = "(Tensor vectors, Tensor mask, Tensor weights, int num_clusters) -> Tensor"


@torch.library.custom_op("latelier::ward_clusters", mutates_args=(), schema=_SCHEMA)
def ward_clusters(vectors: Tensor, mask: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    """Cluster the tokens of each document by Ward's method on distances ``1 - cosine``, on the CPU.

    `vectors`: ``(documents, tokens, dim)`` of length 1, on any device. `mask`: bool ``(documents, tokens)``: the tokens
    to cluster. `weights`: ``(documents, tokens)``, positive: a token of weight ``w`` counts as ``w`` equal tokens.
    Other weights, such as the NaN of a training that diverges, count as 1. `num_clusters`: number of clusters of each
    document; a document with fewer tokens has one for each. Returns: ``(documents, tokens)`` int64 without gradient:
    each token's cluster, numbered in the order of their first tokens; -1 where the mask is False.
    """
    lengths = mask.sum(dim=1).cpu().numpy()
    offsets = lengths_to_offsets(lengths)
    rows = vectors[mask].float().cpu().contiguous().numpy()
    sizes = weights[mask].float().cpu().contiguous().numpy()
    sizes = np.where((sizes > 0) & (sizes < np.inf), sizes, np.float32(1))  # the kernel reads out of bounds with NaN
    labels = np.empty(len(rows), dtype=np.int64)

    def cluster(first: int, last: int) -> None:
        tokens = slice(offsets[first], offsets[last])
        places = offsets[first : last + 1] - offsets[first]
        clusters = np.minimum(lengths[first:last], num_clusters)
        cluster_documents(rows[tokens], places, clusters, sizes[tokens], labels[tokens])

    # Multiplications: each token is compared with half of its document's tokens, on average.
    work = vectors.shape[2] * int((lengths**2).sum()) // (2 * max(len(rows), 1))
    for_ranges(cluster, offsets, work)
    found = torch.full(mask.shape, -1, dtype=torch.int64, device=mask.device)
    found[mask] = torch.from_numpy(labels).to(mask.device)
    return found


@ward_clusters.register_fake
def _(vectors: Tensor, mask: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    return torch.empty_like(mask, dtype=torch.int64)


# Largest log weight of a token: exp(4) = 55 equal tokens. Ward's method stays well conditioned.
_MAX_LOG_WEIGHT = 4.0
# Initial penalty on the attention logits of tokens outside a vector's own cluster.
_PENALTY = 2.0


class AttentionPooling(BaseTokenPooling):
    """Pool the token vectors of each document into at most `num_vectors` vectors, by clusters and learned attention.

    Every document then takes the same space, whatever its length. Untrained, the module is Ward's method: its vectors
    are the means of Ward's clusters of the document's tokens. Training changes three things, each of which starts with
    no effect, so it starts from Ward's quality: the weight of a token, an attention from each cluster to all tokens,
    and a learned query of each vector in that attention::

        u_i = x_i / |x_i|                                   token vectors
        w_i = exp(clamp(MLP(s u_i), -4, 4))                 weights, 1 at first; s = sqrt(dim)
        C_1 .. C_k = Ward's clusters of u, weighted by w    k = min(tokens, num_vectors)
        m_j = normalised sum of w_i u_i over C_j
        v_j = m_j + Attention(s m_j + q_j, s u)             output projection 0 at first, q_j = 0

    The attention adds to its logits a learned penalty, one per head, for tokens outside the cluster. No gradient flows
    through the choice of clusters; weights get theirs through the sums, and the next clusters use the changed weights.

    It is a module of a sentence-transformers pipeline, after the scoring mask and before the normalisation;
    `latelier.models.ColBERT.compress_documents` puts it there. Queries pass unchanged.

    Parameters
    ----------
    dim
        Dimensions of the token vectors.
    num_vectors
        Maximum number of vectors of a document. A document with fewer scored tokens keeps one vector per token.
    heads, dim_head
        Heads of the attention, and channels of each.
    hidden_dim
        Hidden units of the network that weighs tokens.
    tasks
        Tasks of the texts that are pooled; default ``["document"]``. Texts without a task count as documents.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import AttentionPooling
    >>> pooling = AttentionPooling(dim=2, num_vectors=2)
    >>> tokens = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.8, 0.6]]
    >>> with torch.inference_mode():
    ...     pooling.pool([torch.tensor(tokens), torch.tensor(tokens[:1])])
    [tensor([[ 0.8638,  0.5039],
            [-1.0000,  0.0000]]), tensor([[1., 0.]])]
    """

    config_keys = ["dim", "num_vectors", "heads", "dim_head", "hidden_dim", "tasks"]  # noqa: RUF012 (as in the base)

    def __init__(
        self,
        dim: int,
        num_vectors: int = 16,
        heads: int = 4,
        dim_head: int = 32,
        hidden_dim: int = 128,
        *,
        tasks: str | list[str] | None = None,
    ) -> None:
        super().__init__(tasks=tasks)
        self.dim = dim
        self.num_vectors = check_count("num_vectors", num_vectors)
        self.heads = heads
        self.dim_head = dim_head
        self.hidden_dim = hidden_dim
        self.importance = nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, 1))
        self.queries = nn.Parameter(torch.empty(num_vectors, dim))
        self.penalty = nn.Parameter(torch.empty(heads))
        self.attention = Attention(dim, dim, heads=heads, dim_head=dim_head)
        output = self.attention.to_out[0]  # type: ignore[index]
        for parameter in (*self.importance[2].parameters(), self.queries, *output.parameters()):
            nn.init.zeros_(parameter)
        nn.init.constant_(self.penalty, _PENALTY)

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        given = self.get_config_dict() | {"tasks": None if self.tasks == ["document"] else self.tasks}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value != defaults[name].default)

    __repr__ = nn.Module.__repr__  # that of sentence-transformers leaves out the parts

    def forward(  # type: ignore[override]
        self, features: dict[str, Any], task: str | None = None
    ) -> dict[str, Any]:
        """Pool the documents of a batch.

        Parameters
        ----------
        features
            ``token_embeddings (n, tokens, dim)`` of any length, and ``attention_mask (n, tokens)``, which tokens are
            scored; other features pass unchanged.
        task
            The texts' task, None being that of documents; texts of a task that is not pooled pass unchanged.

        Returns
        -------
        dict
            The features, with ``token_embeddings (n, num_vectors, dim)`` and the bool ``attention_mask
            (n, num_vectors)``: a document of ``k`` scored tokens has ``min(k, num_vectors)`` vectors, in the order of
            their clusters' first tokens; the rows after them are zero.
        """
        if not self.applies_to(task):
            return features
        tokens = features["token_embeddings"]
        mask = features["attention_mask"].bool()
        vectors, kept = self._pool(tokens, mask)
        return {**features, "token_embeddings": vectors.to(tokens.dtype), "attention_mask": kept}

    def pool_one(self, embedding: Tensor, **kwargs: Any) -> Tensor:
        """Pool one document ``(tokens, dim)`` into ``(at most num_vectors, dim)`` vectors of length 1, of its dtype."""
        vectors, kept = self._pool(embedding[None], embedding.new_ones(1, len(embedding), dtype=torch.bool))
        return F.normalize(vectors[kept], dim=-1).to(embedding.dtype)

    def log_weights(self, tokens: Tensor) -> Tensor:
        """Return ``log w_i``, between -4 and 4, of token vectors ``(..., dim)``; shape ``(...)``."""
        scaled = F.normalize(tokens.to(self.queries.dtype), dim=-1) * self.dim**0.5  # as in `_pool`
        return self.importance(scaled).squeeze(-1).clamp(-_MAX_LOG_WEIGHT, _MAX_LOG_WEIGHT)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save arguments and weights to a folder, as other modules of sentence-transformers do."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(  # type: ignore[override]
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> AttentionPooling:
        """Load what `save` wrote; sentence-transformers calls this with the folder or name of the whole model."""
        place: dict[str, Any] = {"subfolder": subfolder, "token": token, "cache_folder": cache_folder}
        place |= {"revision": revision, "local_files_only": local_files_only}
        pooling = cls(**cls.load_config(model_name_or_path, **place))
        cls.load_torch_weights(model_name_or_path, model=pooling, **place)
        return pooling

    def _pool(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors ``(n, num_vectors, dim)``, not normalised, and which of them are a document's."""
        unit = F.normalize(tokens.to(self.queries.dtype), dim=-1)
        weights = self.log_weights(unit).exp()
        clusters = ward_clusters(unit.detach(), mask, weights.detach(), self.num_vectors)
        # (n, num_vectors, tokens): whether a token is in a vector's own cluster
        own = clusters[:, None, :] == torch.arange(self.num_vectors, device=mask.device)[:, None]
        kept = own.any(dim=-1)
        means = F.normalize(torch.where(own, weights[:, None], 0).to(unit.dtype) @ unit, dim=-1)
        outside = -self.penalty[:, None, None] * ~own[:, None]  # (n, heads, num_vectors, tokens)
        bias = outside.masked_fill(~mask[:, None, None], float("-inf"))
        scale = self.dim**0.5  # entries of about 1, as linear layers expect
        update = self.attention(means * scale + self.queries, unit * scale, bias)
        return torch.where(kept[..., None], means + update, 0), kept
