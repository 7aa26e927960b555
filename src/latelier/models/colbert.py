"""`ColBERT`: a late-interaction model, one vector per token.

A subclass of sentence-transformers' `MultiVectorEncoder`, so its trainer, evaluators, model cards, hub upload, PEFT
and backends work unchanged, and a folder that we save loads there. What is ours: the recipe around a bare or dense
encoder, late interaction without training, the calls people know from PyLate and neural-cherche, packed output,
and a guard for each of the ways in which the recipe can be lost silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import trange

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.checkpoint import DEFAULT_EMBEDDING_SIZE
from latelier.models.encoder import Encoder
from latelier.models.fitting import fit_pca
from latelier.models.inputs import check_pairs
from latelier.models.options import check_options, one_name, resolve_task
from latelier.models.recipe import UNTRAINED
from latelier.scores import colbert_scores_pairwise
from latelier.utils import check_count
from latelier.utils.reading import as_path

__all__ = ["ColBERT"]


class ColBERT(Encoder):
    """ColBERT model: texts in, one normalised vector per token out.

    Loads late-interaction checkpoints as they were trained (ours, PyLate's of any version, Stanford ColBERT's,
    sentence-transformers'). Around a bare encoder or a dense sentence-transformers model it builds the ColBERT recipe,
    which then wants training; for late interaction without training use `from_dense`.

    Parameters
    ----------
    model_name_or_path
        Path to the model or the model name.
    embedding_size
        Dimensions of the embeddings; default 128 for a fresh head. A checkpoint that has a head keeps its own, and so
        does a dense model with trained linear layers, applied to every token: another number is ignored with a warning.
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; None takes the best there is.
    max_length_query, max_length_document
        Most tokens of a query and of a document, markers and special tokens included; default: what the checkpoint
        was saved with, or 32 and 350. With query expansion every query has exactly `max_length_query` tokens.
    recipe
        What to build around a bare or dense encoder; ignored by checkpoints, which have their own.
    truncate_dim
        How many of the first numbers of each vector `encode` keeps unless told otherwise, for models trained with
        ``dims``. Not saved with the model.
    **kwargs
        Further parameters of `sentence_transformers.MultiVectorEncoder`.

    Raises
    ------
    ModelLoadError
        If there is no such model.
    InvalidArgumentError
        If a length is more than the encoder reads, or the device is missing.

    Examples
    --------
    >>> from latelier import models
    >>> import torch

    >>> _ = torch.manual_seed(42)

    >>> queries = ["Berlin", "Paris", "London"]

    >>> documents = [
    ...     "Berlin is the capital of Germany",
    ...     "Paris is the capital of France and France is in Europe",
    ...     "London is the capital of England",
    ... ]

    >>> encoder = models.ColBERT(
    ...     model_name_or_path="sentence-transformers/all-MiniLM-L6-v2",
    ...     embedding_size=128,
    ...     max_length_query=32,
    ...     max_length_document=350,
    ...     device="cpu",
    ... )

    >>> scores = encoder.scores(
    ...    queries=queries,
    ...    documents=documents,
    ...    tqdm_bar=False,
    ... )

    >>> scores  # doctest: +ELLIPSIS
    tensor([..., grad_fn=<CatBackward0>)

    >>> _ = encoder.save_pretrained("checkpoint")

    >>> encoder = models.ColBERT(
    ...     model_name_or_path="checkpoint",
    ...     embedding_size=64,
    ...     device="cpu",
    ... )

    >>> reloaded = encoder.scores(queries=queries, documents=documents, tqdm_bar=False)
    >>> torch.equal(scores, reloaded)
    True

    >>> embeddings = encoder(
    ...     texts=queries,
    ...     query_mode=True
    ... )

    >>> embeddings["embeddings"].shape
    torch.Size([3, 32, 128])

    >>> embeddings = encoder(
    ...     texts=queries,
    ...     query_mode=False
    ... )

    >>> embeddings["embeddings"].shape
    torch.Size([3, 350, 128])
    """

    @classmethod
    def from_dense(
        cls,
        model_name_or_path: str,
        projection: Literal["orthogonal", "pca"] | None = None,
        embedding_size: int = DEFAULT_EMBEDDING_SIZE,
        device: str | torch.device | None = None,
        *,
        max_length_query: int | None = None,
        max_length_document: int | None = None,
        **kwargs: Any,
    ) -> ColBERT:
        """Late interaction without training: the token vectors of a dense model, as they are.

        No markers and no query expansion, which only harm a model that was not trained with them. On SciFact the token
        vectors of all-MiniLM-L6-v2 rank better (nDCG@10 0.72) than its pooled vector (0.65).

        Parameters
        ----------
        model_name_or_path
            A dense sentence-transformers model, or any encoder. Prompts that a dense model was trained with are kept,
            and so are trained linear layers behind its pooling (applied to every token).
        projection
            None keeps the encoder's own dimension (384 for MiniLM); ``"orthogonal"`` projects to `embedding_size` by a
            seeded random rotation; ``"pca"`` by principal components, to be fitted with `fit_projection` before use.
        embedding_size
            Dimensions after the projection, at most those before it.
        device
            As in `ColBERT`.
        max_length_query, max_length_document
            Caps in tokens; default: whatever the encoder reads for queries (they are not padded), 350 for documents.
        **kwargs
            Further parameters of `sentence_transformers.MultiVectorEncoder`.

        Returns
        -------
        ColBERT
            A model that is ready to encode, after `fit_projection` for ``"pca"``.

        Raises
        ------
        InvalidArgumentError
            If the model is a late-interaction checkpoint already, the projection is unknown, or it has more dimensions
            than what it projects.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> model.encode_document(["fruits are healthy."])[0].shape
        torch.Size([6, 384])
        """
        if projection not in (None, "orthogonal", "pca"):
            raise InvalidArgumentError(f"unknown projection {projection!r}; expected None, 'orthogonal' or 'pca'.")
        as_path(model_name_or_path, "the model")
        model = cls(
            model_name_or_path,
            None if projection is None else embedding_size,
            device,
            max_length_query,
            max_length_document,
            recipe=replace(UNTRAINED, projection=projection),
            **kwargs,
        )
        if not model._is_fresh:
            raise InvalidArgumentError(
                f"{model_name_or_path!r} is a late-interaction checkpoint already; load it with ColBERT(...)."
            )
        return model

    def forward(
        self,
        input: Mapping[str, Any] | Sequence[str] | None = None,
        *,
        texts: Sequence[str] | None = None,
        query_mode: bool | None = None,
        is_query: bool | None = None,
        task: str | None = None,
        truncation: bool = True,
        add_special_tokens: bool = True,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Embed texts with gradients, or run tokenised features through the pipeline.

        Parameters
        ----------
        input
            Features from `tokenize` or `preprocess` (what trainers and losses pass); or texts.
        texts
            Texts to embed.
        query_mode, is_query, task
            Whether the texts are queries or documents, in the three spellings of `encode`; queries by default.
            Features know it themselves, unless ``task`` says otherwise.
        truncation, add_special_tokens
            As in `encode`.
        **kwargs
            Other arguments of the modules, for features only.

        Returns
        -------
        dict
            For texts ``{"embeddings": (batch, max_length, dim)}``, always of the full length cap: rows of padding and
            of tokens that do not count are zero. For features, the features with ``token_embeddings`` and
            ``attention_mask`` (which tokens count).

        Raises
        ------
        InvalidArgumentError
            If there is no such argument, or spellings contradict each other.
        LatelierError
            In training, if features do not say whether they are queries or documents.
        """
        if isinstance(input, Mapping):  # tokenisers return their own mapping, not a dict
            return self._forward_features(input, task=task, **kwargs)
        check_options("the model, called with texts,", kwargs, (), inspect.signature(self.forward).parameters)
        given = one_name({"input": input, "texts": texts}, "texts to embed, nor features of tokenize(...)")
        task = resolve_task(query_mode, is_query, task)
        features = self.tokenize(given if isinstance(given, str) else list(given), task=task, truncation=truncation)
        cap = self.max_length_query if task == "query" else self.max_length_document
        if not features:
            return {"embeddings": torch.zeros(0, cap, self.embedding_size, device=self.device)}
        vectors, mask = self._token_vectors(features)
        vectors = vectors * mask.unsqueeze(-1)
        return {"embeddings": nn.functional.pad(vectors, (0, 0, 0, max(cap - vectors.shape[1], 0)))}

    def scores(
        self, queries: Sequence[str], documents: Sequence[str], batch_size: int = 2, tqdm_bar: bool = True
    ) -> Tensor:
        """Score query ``i`` against document ``i``, with gradients.

        Parameters
        ----------
        queries, documents
            Texts, as many of one as of the other.
        batch_size
            Pairs per batch.
        tqdm_bar
            Show a progress bar on standard error.

        Returns
        -------
        torch.Tensor
            ``(n,)`` float32.

        Raises
        ------
        InvalidArgumentError
            If there are not as many documents as queries.
        """
        queries, documents = check_pairs(queries, documents)
        check_count("batch_size", batch_size)
        batches = []
        for start in trange(0, len(queries), batch_size, desc="Scoring pairs", disable=not tqdm_bar):
            pair = slice(start, start + batch_size)
            query_vectors, queries_mask = self._token_vectors(self.tokenize(queries[pair], is_query=True))
            document_vectors, documents_mask = self._token_vectors(self.tokenize(documents[pair], is_query=False))
            batches.append(
                colbert_scores_pairwise(query_vectors, document_vectors, queries_mask, documents_mask, backend="torch")
            )
        return torch.cat(batches) if batches else torch.zeros(0, device=self.device)

    def fit_projection(self, texts: Iterable[str], batch_size: int = 32, show_progress_bar: bool = False) -> ColBERT:
        """Fit the projection of a model made with ``from_dense(..., projection="pca")``, in closed form.

        Parameters
        ----------
        texts
            A sample of the documents to be indexed; a thousand is plenty.
        batch_size
            Texts per batch; memory does not grow with their number.
        show_progress_bar
            Show a progress bar.

        Returns
        -------
        ColBERT
            The model itself, ready to encode; the fitted projection is saved with it.

        Raises
        ------
        InvalidArgumentError
            If the model has no such projection, or the texts have fewer tokens than the projection has dimensions.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", projection="pca", embedding_size=4, device="cpu")
        >>> model.fit_projection(["fruits are healthy.", "pears are fruits."]).encode_query("fruits").shape
        torch.Size([3, 4])
        """
        if self._recipe.projection != "pca" or not self._is_fresh:
            raise InvalidArgumentError('this model has no PCA projection; make one with from_dense(projection="pca").')
        fit_pca(self, texts, batch_size, show_progress_bar)
        self._needs_fit = False
        return self

    def _forward_features(self, features: Any, **kwargs: Any) -> dict[str, Any]:
        task = kwargs.pop("task", None) or features.get("task")
        if task is None and self.training and torch.is_grad_enabled() and self._tells_queries_from_documents():
            raise LatelierError(
                "received features that do not say whether they are queries or documents, so markers and query "
                "expansion would be missing in training. Train with sentence_transformers.MultiVectorEncoderTrainer, "
                'or pass router_mapping={"<query column>": "query", "<document column>": "document", ...} to the '
                "training arguments of SentenceTransformerTrainer; by hand, make features with "
                "model.tokenize(texts, is_query=...)."
            )
        self._check_fitted()
        return super().forward(features, task=task, **kwargs)

    def _token_vectors(self, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Run features: vectors ``(n, tokens, dim)`` and bool mask ``(n, tokens)`` of those that count."""
        moved = {key: value.to(self.device) if isinstance(value, Tensor) else value for key, value in features.items()}
        out = self._forward_features(moved)
        return out["token_embeddings"], out["attention_mask"].bool()
