"""ColBERT: sentence-transformers' `MultiVectorEncoder` with the ColBERT recipe and another encoding loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Literal, cast

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Module, Transformer
from sentence_transformers.util import fullname
from torch import Tensor, nn
from tqdm import trange

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models import arguments, encoding, location
from latelier.models import pooling as compression
from latelier.models.arguments import Recipe, check_text_pairs, read_inputs, untrained_recipe
from latelier.models.checkpoint import Checkpoint
from latelier.models.construction import (
    Construction,
    check_lengths,
    fit_pca,
    lower_max_lengths,
    max_length,
    set_max_lengths,
)
from latelier.models.encoding import OutputForm
from latelier.models.exported_encoder import tokenizer_lock
from latelier.models.foreign_layouts import (
    check_head_size,
    choose_head,
    insert_markers,
    inserted_markers,
    is_late_interaction,
    pad_at_the_right,
    prepare,
    read_heads,
    resolve_markers,
    stanford_skiplist,
    token_head_of_dense,
)
from latelier.models.frozen import FrozenCopies
from latelier.models.onnx_export import check_backend, export
from latelier.models.pages import PageEncoder, read_pages
from latelier.models.pooling import Pooling, PoolMethod
from latelier.models.pylate_layout import LayoutName, save_for_pylate
from latelier.models.settings import BEHIND_FIRST, check_settings, complete_settings
from latelier.models.text_encoder import TextEncoder
from latelier.models.tokenization import check_features, check_preprocessing, flat_candidates, scored_tokens
from latelier.models.weights import (
    check_files,
    check_listed,
    check_modules,
    check_numbers,
    check_type,
    damage_errors,
    refuse_missing,
    refuse_unused,
    try_out,
    unmatched,
)
from latelier.modules import AttentionPooling
from latelier.scores import colbert_scores, colbert_scores_pairwise
from latelier.utils import resolve_device
from latelier.utils.batching import SHORTEST_LENGTH, move_features
from latelier.utils.checks import check_choice, check_count
from latelier.utils.files import as_path

# The modules of this library, by the name that a saved model's modules.json has for them: they need no
# ``trust_remote_code``.
_OWN_MODULES: dict[str, type[Module]] = {fullname(each): each for each in (AttentionPooling, PageEncoder, TextEncoder)}


def _take_result(pool: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for ``[chunk id, output]`` as sentence-transformers does, and copy it out of shared memory, an open file."""
    chunk, output = MultiVectorEncoder._get_worker_result(pool, *args, **kwargs)
    if isinstance(output, TokenEmbeddings):
        output = TokenEmbeddings(output.vectors.clone(), output.offsets)
    return [chunk, output]


def _stripped(text: Any) -> Any:
    """Return a text, or a pair of texts, without outer white space; other inputs unchanged."""
    if isinstance(text, tuple):
        return tuple(map(_stripped, text))
    if isinstance(text, str):
        return text.strip()
    return text


def _taking_packed(method: Callable[..., Any], score: Callable[..., Any]) -> Callable[..., Any]:
    """Return `similarity` or `similarity_pairwise` of sentence-transformers, taking `TokenEmbeddings` and texts too."""

    @wraps(method)
    def similarity(self: Any, embeddings1: Any, embeddings2: Any, **kwargs: Any) -> Any:
        sides = [_encoded(embeddings1, self.encode_query), _encoded(embeddings2, self.encode_document)]
        widths = [_width(side) for side in sides]
        if None not in widths and widths[0] != widths[1]:
            raise InvalidArgumentError(
                f"received vectors of {widths[0]} and of {widths[1]} dimensions; both sides must come from one model, "
                "with one truncate_dim."
            )
        if any(isinstance(side, TokenEmbeddings) for side in sides):
            if self.similarity_fn_name == "maxsim" and not kwargs:
                return score(*sides)
            sides = [list(side.to("torch")) if isinstance(side, TokenEmbeddings) else side for side in sides]
        return method(self, *sides, **kwargs)

    similarity.__doc__ = (
        f"Score two sides as in sentence-transformers' `{method.__name__}`; also `TokenEmbeddings`, and texts, the "
        "first as queries."
    )
    return similarity


def _encoded(side: Any, encode: Callable[[list[str]], Any]) -> Any:
    """Return texts encoded, and embeddings as they are."""
    if isinstance(side, str):
        return encode([side])
    if isinstance(side, (list, tuple)) and side and all(isinstance(each, str) for each in side):
        return encode(list(side))
    return side


def _width(side: Any) -> int | None:
    """Return the number of dimensions of embeddings; None if it is unknown."""
    if isinstance(side, TokenEmbeddings):
        return side.dim
    if isinstance(side, (list, tuple)) and side:
        side = side[0]
    shape = getattr(side, "shape", None)
    if shape is None or not len(shape):
        return None
    return int(shape[-1])


class ColBERT(MultiVectorEncoder):
    """ColBERT model: texts in, one normalised vector per token out.

    Loads late-interaction checkpoints as they were trained: ours, PyLate's, Stanford ColBERT's, sentence-transformers'.
    Around a bare or dense encoder it builds the ColBERT recipe, which needs training; `from_dense` needs none.

    Parameters
    ----------
    model_name_or_path
        Folder of the model, or its name on the Hugging Face hub; None: `modules` are given instead.
    embedding_size
        Dimensions of the embeddings; default 128 for a new head. A checkpoint that has a head keeps its own, and so
        does a dense model with trained linear layers, applied to every token: another number is ignored with a warning.
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; None takes the best available. A missing one is an error.
    max_length_query, max_length_document
        Maximum number of tokens, markers and special tokens included, at most what the encoder reads; default: the
        checkpoint's, or 32 and 350. With query expansion, every query has exactly `max_length_query` tokens.
    recipe
        What to build around a bare or dense encoder; default: ``Recipe()``. Checkpoints have their own, and ignore it.
    truncate_dim
        Default of the `truncate_dim` of `encode`, for models trained with ``dims``; not saved with the model.
    backend
        What encodes on a CPU. ``"torch"``; ``"onnx"``: ONNX Runtime (extra ``onnx``), which exports the transformer
        once, into the cache folder, with vectors equal to 1e-5; ``"auto"``: ONNX Runtime where it is installed and the
        model can be exported.
        Training, and weights that have changed since the first encoding, use torch with any of them.
    **kwargs
        Further parameters of `sentence_transformers.MultiVectorEncoder`. A single encoder in `modules` gets the recipe.

    Raises
    ------
    InvalidArgumentError
        If an argument does not exist, contradicts another or has an invalid value: here, and in all methods.
    ModelLoadError
        If there is no such model, or it cannot be read.

    Examples
    --------
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> model.tokens("unhealthy fruits")
    ['[CLS]', 'un', '##hea', '##lth', '##y', 'fruits', '[SEP]']
    >>> documents = ["Fruits are healthy.", "Planes fly."]
    >>> model.encode_document(documents, packed=True)
    TokenEmbeddings(2 texts, 11 tokens, dim=384, float32, cpu)
    >>> model.scores(["healthy food"] * 2, documents, tqdm_bar=False) > 2
    tensor([ True, False])
    """

    _construction: Construction
    _frozen: FrozenCopies
    inserted_markers: dict[str, int]
    _module_classes = _OWN_MODULES

    def __init__(
        self,
        model_name_or_path: str | None = None,
        embedding_size: int | None = None,
        device: str | torch.device | None = None,
        max_length_query: int | None = None,
        max_length_document: int | None = None,
        *,
        recipe: Recipe | None = None,
        truncate_dim: int | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> None:
        arguments.check(type(self).__name__, kwargs, arguments.parameters_of(MultiVectorEncoder), ColBERT)
        device = check_backend(backend, device)
        size = check_count("embedding_size", embedding_size, optional=True)
        self._construction = Construction(recipe or Recipe(), size, frozenset(kwargs.get("prompts") or ()))
        self._frozen = FrozenCopies()
        self.inserted_markers = {}
        name = None if model_name_or_path is None else str(model_name_or_path)
        kwargs = location.without_pickles(self._construction.with_modules(kwargs, name))
        with location.loading(name, kwargs) as found:
            is_mapped = device is None and "device_map" in (kwargs.get("model_kwargs") or {})
            super().__init__(found, device=None if is_mapped else str(resolve_device(device)), **kwargs)
        for parameter_name, parameter in self.named_parameters():
            if ".pooler." in parameter_name:  # unused: processes that train together would wait for its gradient
                parameter.requires_grad_(False)
        if self.tokenizer is not None and self.tokenizer.pad_token is None:  # any token, as padding is masked
            tokenizer = self.tokenizer
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.mask_token
        if len(self) and isinstance(self[0], Transformer):
            pad_at_the_right(self[0])
        if self._construction.inserts_markers or self._legacy.prefixes:
            self.inserted_markers = inserted_markers(self)
        if self._construction.is_fresh:
            built = self._construction.recipe
        else:
            built = None
        set_max_lengths(self, max_length_query, max_length_document, built)
        self.truncate_dim = arguments.resolve_truncation(truncate_dim, None, self.embedding_size)
        self._construction.report(name, self.embedding_size)
        self.cpu_backend = backend
        if name is not None:
            check_numbers(name, self)
        if name is not None and not self._construction.needs_fit:
            try_out(name, self)

    @classmethod
    def from_dense(
        cls,
        model_name_or_path: str,
        projection: Literal["orthogonal", "pca"] | None = None,
        embedding_size: int | None = None,
        device: str | torch.device | None = None,
        *,
        max_length_query: int | None = None,
        max_length_document: int | None = None,
        **kwargs: Any,
    ) -> ColBERT:
        """Late interaction without training: the token vectors of a dense model.

        No markers and no query expansion, which only harm a model that was not trained with them. On SciFact the token
        vectors of all-MiniLM-L6-v2 rank better (nDCG@10 0.72) than its pooled vector (0.65).

        Parameters
        ----------
        model_name_or_path
            A dense sentence-transformers model (its prompts and trained linear layers are kept), or any encoder.
        projection
            None keeps the encoder's own dimension (384 for MiniLM); ``"orthogonal"`` projects to `embedding_size` by a
            seeded random rotation; ``"pca"`` by principal components, to be fitted with `fit_projection` before use.
        embedding_size
            Dimensions after the projection, at most those before it; 128 by default. An error without a projection.
        device, max_length_query, max_length_document, **kwargs
            As in `ColBERT`; but queries, which are not padded here, are as long as the encoder reads by default.

        Returns
        -------
        ColBERT
            The model, ready to encode unless `projection` is ``"pca"``.

        Raises
        ------
        InvalidArgumentError
            If the model is a late-interaction checkpoint, which `ColBERT` loads.

        Examples
        --------
        >>> from latelier.models import ColBERT, DEFAULT_MODEL
        >>> model = ColBERT.from_dense(DEFAULT_MODEL, "orthogonal", 64, device="cpu")
        >>> model.encode_document(["Bananas are healthy."])[0].shape
        torch.Size([6, 64])
        """
        as_path(model_name_or_path, "the model")
        recipe = untrained_recipe(projection, embedding_size)
        size = embedding_size
        model = cls(model_name_or_path, size, device, max_length_query, max_length_document, recipe=recipe, **kwargs)
        if not model._construction.is_fresh:
            raise InvalidArgumentError(
                f"{model_name_or_path!r} has late interaction already: load it with ColBERT(...)."
            )
        return model

    @property
    def embedding_size(self) -> int:
        """Dimensions of each token's embedding."""
        return int(self.get_embedding_dimension() or 0)

    @property
    def max_length_query(self) -> int:
        """Maximum number of tokens of a query, markers and special tokens included."""
        return max_length(self, "query")

    @property
    def max_length_document(self) -> int:
        """Maximum number of tokens of a document, markers and special tokens included."""
        return max_length(self, "document")

    @property
    def max_seq_length(self) -> int | None:
        """Maximum number of tokens that the tokenizer keeps; setting it lowers the two lengths above if need be."""
        return super().max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        length = check_count("max_seq_length", value, SHORTEST_LENGTH)
        lower_max_lengths(self, length)
        encoder: Any = self[0]
        encoder.max_seq_length = length

    def encode(  # type: ignore[override]
        self,
        texts: Any = None,  # up to `task`, the order is that of sentence-transformers
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
        packed: bool = False,
        precision: str | None = None,
        compute_dtype: str = "auto",
        truncate_dim: int | None = None,
        pool_factor: int = 1,
        num_vectors: int | None = None,
        pool_method: PoolMethod = "ward",
        protected_tokens: int = 1,
        add_special_tokens: bool = False,
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
            sentence-transformers and PyLate, of which one is given. A pair that the encoder reads as one input is a
            tuple.
        prompt_name, prompt
            What to put before each text instead of the model's own prompt (its marker).
        task, query_mode, is_query
            The spellings of sentence-transformers, neural-cherche and PyLate: ``"query"`` and True, ``"document"`` and
            False. Default: **queries**. `encode_query` and `encode_document` leave no doubt.
        truncation
            False raises an error for a text that is longer than its cap, instead of truncating it.
        packed
            Return one `TokenEmbeddings` rather than a list.
        precision
            Dtype to return: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"int8"`` with one scale per token
            (needs ``packed=True``). Default: that of the weights.
        compute_dtype
            Dtype to compute in: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"int8"`` (ONNX Runtime), or ``"auto"``:
            bfloat16 for more than 32,768 tokens where it is faster and a sample keeps a cosine of 0.999 for each token.
        truncate_dim
            Keep the first `truncate_dim` numbers of each vector and normalise them again; default: the model's.
        pool_factor, num_vectors, pool_method, protected_tokens
            For documents: keep about one of every ``pool_factor`` vectors, or at most `num_vectors`, by one of the
            methods of `pool_tokens`; the encoder's attention gives their weights. Default: all vectors.
        add_special_tokens, convert_to_tensor
            For calls written for neural-cherche and PyLate: there are always special tokens, and tensors.
        batch_size, show_progress_bar, output_value, convert_to_numpy, device, normalize_embeddings, pool, **kwargs
            With ``chunk_size`` and ``token_pooling``, as in `sentence_transformers.MultiVectorEncoder.encode`. Without
            `show_progress_bar`, a bar appears on a terminal or in a notebook, if it takes longer than two seconds.

        Returns
        -------
        list of torch.Tensor
            One ``(tokens, dim)`` matrix per text; one matrix for one text; a list for each list of texts.

        Examples
        --------
        >>> from latelier.models import load, DEFAULT_MODEL
        >>> model = load(DEFAULT_MODEL, device="cpu")
        >>> model.encode(["Bananas are healthy.", "The moon."], is_query=False, packed=True)
        TokenEmbeddings(2 texts, 11 tokens, dim=384, float32, cpu)
        """
        if kwargs:
            arguments.check("encode", kwargs, {"processing_kwargs", *self.get_model_kwargs()} - {"task"}, self.encode)
        given = arguments.one_name({"texts": texts, "inputs": inputs, "sentences": sentences}, "texts to encode")
        batch = read_inputs(given, self.is_singular_input)
        task = arguments.resolve_task(query_mode, is_query, task)
        pooling = Pooling(pool_factor, num_vectors, pool_method, protected_tokens).checked_for(task, output_value)
        numpy = bool(convert_to_numpy and not convert_to_tensor)
        size = self.embedding_size
        form = OutputForm(packed, precision, numpy, output_value is None, pooling)
        dim = arguments.resolve_truncation(truncate_dim, self.truncate_dim, size)
        job = encoding.Job(task, prompt, batch_size, compute_dtype, dim, numpy, pooling=pooling)
        options = {
            "show_progress_bar": show_progress_bar,
            "output_value": output_value,
            "convert_to_numpy": numpy,
            "device": device,
            "normalize_embeddings": normalize_embeddings,
            "pool": pool,
            "chunk_size": chunk_size,
            "token_pooling": token_pooling,
            **kwargs,
        }
        self._construction.check_fitted()
        encoded = encoding.encode_rows(self, batch.rows, job, prompt_name, form, options, truncation=truncation)
        return batch.regroup(form.convert(encoded, dim or size, batch.single))

    similarity = _taking_packed(MultiVectorEncoder.similarity, colbert_scores)
    similarity_pairwise = _taking_packed(MultiVectorEncoder.similarity_pairwise, colbert_scores_pairwise)

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
        num_vectors: int | None = None,
        pool_method: PoolMethod = "ward",
        protected_tokens: int = 1,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> Iterator[Any]:
        """Encode any iterable of texts, in memory that does not grow with their number.

        Parameters
        ----------
        texts
            Any iterable, read 2,048 texts ahead. A row that is not a string raises an error when it is reached.
        is_query
            Whether the texts are queries rather than documents.
        packed
            Yield `TokenEmbeddings` of up to 2,048 texts rather than one matrix per text. Indexes take either.
        precision, compute_dtype, truncate_dim, pool_factor, num_vectors, pool_method, protected_tokens, batch_size
            As in `encode`. ``compute_dtype="auto"`` decides by the first 2,048 texts.
        show_progress_bar
            Show a bar on standard error; its end is known if `texts` has a length.

        Yields
        ------
        torch.Tensor
            One ``(tokens, dim)`` matrix per text, in order, on the CPU; or `TokenEmbeddings`.

        Examples
        --------
        >>> from latelier.models import load, DEFAULT_MODEL
        >>> model = load(DEFAULT_MODEL, device="cpu")
        >>> [len(vectors) for vectors in model.encode_stream(text for text in ["Bananas.", "The moon is far away."])]
        [4, 8]
        """
        task = arguments.resolve_task(None, is_query, None, default="document")
        pooling = Pooling(pool_factor, num_vectors, pool_method, protected_tokens).checked_for(task)
        dim = arguments.resolve_truncation(truncate_dim, self.truncate_dim, self.embedding_size)
        job = encoding.Job(task, None, batch_size, compute_dtype, dim, pooling=pooling)
        self._construction.check_fitted()
        return encoding.stream(self, texts, job, OutputForm(packed, precision, pooling=pooling), show_progress_bar)

    def forward(
        self,
        input: Any = None,
        query_mode: bool | None = None,
        *,
        texts: str | Sequence[str] | None = None,
        is_query: bool | None = None,
        task: str | None = None,
        truncation: bool = True,
        add_special_tokens: bool = True,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Embed texts with gradients, or run tokenised features through the pipeline.

        Parameters
        ----------
        input, texts
            Texts to embed; or, as `input`, features from `tokenize` or `preprocess` (what trainers and losses pass).
            One of the two is given.
        query_mode, is_query, task, truncation, add_special_tokens
            As in `encode`. Features hold their task, unless one is given; they are truncated already.
        **kwargs
            Other arguments of the modules, for features only.

        Returns
        -------
        dict
            For texts ``{"embeddings": (batch, max_length, dim)}``, of the full length cap; rows that are not scored are
            zero. For features, those with ``token_embeddings``, not truncated, and ``attention_mask`` (what is scored).

        Raises
        ------
        LatelierError
            If the features hold no task in training.
        """
        if isinstance(input, Mapping):  # tokenisers return their own mapping, not a dict
            arguments.check(
                "the model", kwargs, kwargs and {"processing_kwargs", *self.get_model_kwargs()}, self.forward
            )
            task = arguments.resolve_task(query_mode, is_query, task, default=input.get("task"))
            check_features(self, input, task)
            self._construction.check_fitted()
            if torch.is_grad_enabled():  # the weights may be trained, by fused optimisers without counting a change
                self._frozen.drop()
            return super().forward({**input}, task=task, **kwargs)  # the modules change the masks in it
        arguments.check("the model, called with texts,", kwargs, (), self.forward)
        given = arguments.one_name({"input": input, "texts": texts}, "texts to embed, nor features of tokenize(...)")
        task = arguments.resolve_task(query_mode, is_query, task)
        return {"embeddings": self._embed(given, task, truncation)}

    def _embed(self, texts: Any, task: str, truncation: bool) -> Tensor:
        """Return token vectors ``(n, max_length, dim)``; rows of padding and of tokens that are not scored are zero."""
        length = max_length(self, task)
        features = self.tokenize(texts if isinstance(texts, str) else list(texts), task=task, truncation=truncation)
        if not features:
            return torch.zeros(0, length, self.truncate_dim or self.embedding_size, device=self.device)
        vectors, mask = self._token_vectors(features)
        return nn.functional.pad(vectors * mask.unsqueeze(-1), (0, 0, 0, max(length - vectors.shape[1], 0)))

    def _token_vectors(self, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return vectors ``(n, tokens, dim)`` with gradients, and the bool mask ``(n, tokens)`` of the scored ones."""
        out = self.forward(move_features(features, self.device))
        vectors = out["token_embeddings"]
        mask = out["attention_mask"].bool()
        if self.truncate_dim is not None:
            vectors = nn.functional.normalize(vectors[..., : self.truncate_dim], dim=-1)
        return vectors, mask

    def scores(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        batch_size: int = 2,
        tqdm_bar: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Score query ``i`` against document ``i``, with gradients.

        Parameters
        ----------
        queries, documents
            As many texts each.
        batch_size, tqdm_bar
            Pairs per batch, and whether to show a progress bar on standard error.
        **kwargs
            For queries and documents: ``truncation`` and ``add_special_tokens``, as in `encode`; ``max_length`` and
            ``processing_kwargs``, as in `preprocess`.

        Returns
        -------
        torch.Tensor
            ``(n,)`` float32.

        Examples
        --------
        >>> from latelier.models import load, DEFAULT_MODEL
        >>> model = load(DEFAULT_MODEL, device="cpu")
        >>> scores = model.scores(["fruit", "fruit"], ["Bananas are healthy.", "The moon."], tqdm_bar=False)
        >>> bool(scores[0] > scores[1]), scores.shape
        (True, torch.Size([2]))
        """
        known = ("truncation", "add_special_tokens", "max_length", "processing_kwargs")
        arguments.check("scores", kwargs, known, self.scores)
        kwargs.pop("add_special_tokens", None)
        queries, documents = check_text_pairs(queries, documents)
        check_count("batch_size", batch_size)
        batches = []
        for start in trange(0, len(queries), batch_size, desc="Scoring pairs", disable=not tqdm_bar):
            pairs = slice(start, start + batch_size)
            left, left_mask = self._token_vectors(self.tokenize(queries[pairs], task="query", **kwargs))
            right, right_mask = self._token_vectors(self.tokenize(documents[pairs], task="document", **kwargs))
            batches.append(colbert_scores_pairwise(left, right, left_mask, right_mask, backend="torch"))
        if batches:
            return torch.cat(batches)
        return torch.zeros(0, device=self.device)

    def train(self, mode: bool = True) -> ColBERT:
        """Set the training mode, as in torch; `encode` takes weights as they are after this call and after `eval`.

        Parameters
        ----------
        mode
            Whether to train.

        Returns
        -------
        ColBERT
            The model itself.
        """
        if "_frozen" in self.__dict__:  # the classes of sentence-transformers call this while the model is made
            self._frozen.drop()
        super().train(mode)
        return self

    def tokenize(  # type: ignore[override]
        self,
        texts: str | Sequence[str],
        is_query: bool | None = None,
        *,
        query_mode: bool | None = None,
        task: str | None = None,
        truncation: bool = True,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Tokenise texts into features for the model or a loss.

        Parameters
        ----------
        texts
            One text or many.
        is_query, query_mode, task, truncation
            As in `encode`: queries get their marker and expansion, documents their marker and skiplist.
        **kwargs
            Arguments of `preprocess`.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask`` ``(n, tokens)``, ``task``, and what else the encoder takes.
        """
        task = arguments.resolve_task(query_mode, is_query, task)
        texts = [texts] if isinstance(texts, str) else texts
        check_lengths(self, texts, task, truncation=truncation)
        return self.preprocess(texts, task=task, **kwargs)

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Turn texts, or other inputs that the encoder reads, into features.

        Texts get the model's own prompt for their task, which holds the marker: trainers pass no prompt.

        Parameters
        ----------
        inputs
            The texts, in a flat list. Documents may be lists, the candidates of each query, of as many texts each: a
            trainer's column of lists. They are put one after the other, as losses take them.
        prompt
            What to put before each; None: the model's prompt for the task, ``""``: nothing.
        **kwargs
            ``task`` (``"query"`` or ``"document"``), ``max_length``, ``processing_kwargs``, and what the modules take.

        Returns
        -------
        dict
            The features, and ``task`` if it was given.
        """
        check_preprocessing(self, kwargs)
        task = kwargs.get("task")
        inputs = flat_candidates(inputs, task)
        if isinstance(inputs, (list, tuple)):
            inputs = [_stripped(each) for each in inputs]
            if "image" in self.modalities:  # where sentence-transformers opens a text that is an address or a path
                inputs = [{"text": each} if isinstance(each, str) else each for each in inputs]
        if prompt is None and task is not None:
            prompt = self.prompts.get(task) or None
        with tokenizer_lock(self.tokenizer):
            features = super().preprocess(inputs, prompt=prompt, **kwargs)
        if features and task is not None:
            features["task"] = task
            if (marker := self.inserted_markers.get(task)) is not None:
                insert_markers(features, marker)
        return features

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the tokens that the rows of a text's embedding stand for: without those on the skiplist.

        Parameters
        ----------
        text, is_query
            The text, and whether it is a query rather than a document.

        Returns
        -------
        list of str
            As many as the embedding has rows.

        Examples
        --------
        >>> from latelier.models import load, DEFAULT_MODEL
        >>> load(DEFAULT_MODEL, device="cpu").tokens("Bananas!")
        ['[CLS]', 'bananas', '!', '[SEP]']
        """
        return scored_tokens(self, self.tokenize([text], is_query=is_query))

    def fit_projection(self, texts: Iterable[str], batch_size: int = 32, show_progress_bar: bool = False) -> ColBERT:
        """Fit the projection of ``from_dense(..., projection="pca")``, in closed form, and return the model itself.

        Parameters
        ----------
        texts
            A sample of the documents to be indexed, with at least as many tokens as the projection has dimensions.
        batch_size, show_progress_bar
            Texts per batch, and whether to show a progress bar.

        Raises
        ------
        InvalidArgumentError
            If the model has no PCA projection, or the texts have too few tokens.

        Returns
        -------
        ColBERT
            The model itself.

        Examples
        --------
        >>> from latelier.models import ColBERT, DEFAULT_MODEL
        >>> model = ColBERT.from_dense(DEFAULT_MODEL, "pca", 8, device="cpu")
        >>> model.fit_projection(["Bananas are healthy.", "The moon is far away from the earth."]).embedding_size
        8
        """
        if self._construction.recipe.projection != "pca" or not self._construction.is_fresh:
            raise InvalidArgumentError('this model has no PCA projection; make one with from_dense(projection="pca").')
        fit_pca(self, texts, batch_size, show_progress_bar)
        self._construction.needs_fit = False
        return self

    def compress_documents(self, num_vectors: int = 16, **kwargs: Any) -> ColBERT:
        """Pool each document into at most `num_vectors` vectors from now on, and return the model itself.

        Adds an `AttentionPooling` to the pipeline. Untrained, it pools by Ward's method; train it with the losses of
        this library, or with `latelier.training.distill_pooling`. It is saved with the model.

        Parameters
        ----------
        num_vectors, **kwargs
            As in `latelier.modules.AttentionPooling`.

        Returns
        -------
        ColBERT
            The model itself.

        Examples
        --------
        >>> from latelier.models import load, DEFAULT_MODEL
        >>> model = load(DEFAULT_MODEL, device="cpu").compress_documents(4)
        >>> len(model.encode_document("Bananas are healthy, and the moon is far away."))
        4
        """
        compression.compress_documents(self, num_vectors, kwargs)
        return self

    def save(
        self, path: str | os.PathLike[str], *args: Any, layout: LayoutName = "sentence-transformers", **kwargs: Any
    ) -> None:
        """Save to a folder that `ColBERT` and plain sentence-transformers load, and PyLate 1.6 where asked for.

        Parameters
        ----------
        path, *args, **kwargs
            As in `sentence_transformers.MultiVectorEncoder.save`.
        layout
            ``"pylate"`` writes what PyLate 1.6 reads, which `ColBERT` and sentence-transformers read too.

        Raises
        ------
        InvalidArgumentError
            If PyLate's layout cannot hold the model, or the path is a file; nothing is written then.

        Examples
        --------
        >>> from latelier.models import ColBERT, load, DEFAULT_MODEL
        >>> load(DEFAULT_MODEL, device="cpu").save("copy-of-minilm")
        >>> ColBERT("copy-of-minilm", device="cpu").embedding_size
        384
        """
        self._construction.check_fitted()
        arguments.check("save", kwargs, arguments.parameters_of(super().save), self.save)
        check_choice("layout", layout, ["sentence-transformers", "pylate"])
        save = partial(save_for_pylate, self) if layout == "pylate" else super().save
        with location.saving(path) as folder:
            save(folder, *args, **kwargs)

    def save_pretrained(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as `save` does, which subclasses can override; the name that transformers uses, and trainers call.

        Parameters
        ----------
        path, *args, **kwargs
            As in `save`.
        """
        self.save(path, *args, **kwargs)

    def add_adapter(self, *args: Any, **kwargs: Any) -> None:
        """Add a PEFT adapter, such as LoRA, as `sentence_transformers.MultiVectorEncoder.add_adapter` does.

        Raises
        ------
        LatelierError
            If markers were added to the vocabulary since the encoder was loaded: an adapter is saved with the name of
            its encoder, which does not have them.
        """
        self._construction.check_vocabulary_is_saved(type(self).__name__)
        super().add_adapter(*args, **kwargs)

    def export(self, folder: str | os.PathLike[str], *, compute_dtype: Literal["float32", "int8"] = "float32") -> None:
        """Write a folder from which `latelier.models.ExportedEncoder` encodes without torch.

        Parameters
        ----------
        folder
            A new or empty folder, or an export, which is replaced.
        compute_dtype
            ``"float32"``: the same vectors to 1e-5; ``"int8"``: products of bytes, and two thirds of the space.

        Raises
        ------
        LatelierError
            If the model cannot be exported, the folder holds something else, or the extra ``onnx`` is missing.
        """
        self._construction.check_fitted()
        export(self, folder, compute_dtype=compute_dtype)

    # What follows overrides how sentence-transformers loads a model and encodes in several processes.

    def _load_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        checkpoint = Checkpoint(model_name_or_path, kwargs)
        with damage_errors(checkpoint):
            check_settings(checkpoint)
            check_files(checkpoint)
            modules, module_kwargs = super()._load_modules(model_name_or_path, *args, **kwargs)
            loaded: list[Any] = list(modules.values() if isinstance(modules, dict) else modules)
            check_modules(model_name_or_path, loaded, self._legacy.prefixes.values())
            check_listed(checkpoint, loaded, is_dense=self._construction.is_fresh)
        return modules, module_kwargs

    def _parse_model_config(self, model_config: dict[str, Any]) -> None:
        settings = complete_settings(model_config)
        self._construction.inserts_markers = bool(settings.pop(BEHIND_FIRST, False))
        super()._parse_model_config(settings)

    def _get_model_config(self) -> dict[str, Any]:
        config = super()._get_model_config()
        if self.inserted_markers:
            return {**config, BEHIND_FIRST: True}
        return config

    def _load_default_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        checkpoint = Checkpoint(model_name_or_path, kwargs)
        check_type(checkpoint)
        pages = read_pages(checkpoint)
        if pages is not None:
            return pages, {}
        prepare(self, checkpoint)
        modules, options = super()._load_default_modules(model_name_or_path, *args, **kwargs)
        first, *others = cast(list[Any], modules)
        if first.transformer_task == "retrieval":  # its head is inside
            unused, missing = unmatched(checkpoint, "", first.model)
            refuse_missing(model_name_or_path, missing)
            refuse_unused(model_name_or_path, unused, "which no module takes")
            heads = []
        else:
            heads = read_heads(checkpoint, first.model, first.get_embedding_dimension())
        if heads:
            check_head_size(checkpoint, heads)
            others[0] = choose_head(heads, model_name_or_path, self._construction.embedding_size).to_dense()
        elif self._legacy.prefixes or (first.transformer_task != "retrieval" and is_late_interaction(checkpoint)):
            raise ModelLoadError(model_name_or_path, ValueError("its weights hold no head, such as linear.weight."))
        if self._legacy.prefixes:
            resolve_markers(self, model_name_or_path, first.tokenizer, is_stanford=True)
        loaded = [first, *others], options
        return self._construction.complete(model_name_or_path, loaded, False, bool(heads), self.prompts)

    def _maybe_load_stanford_metadata(  # type: ignore[override]
        self, model_name_or_path: str, **kwargs: Any
    ) -> None:
        super()._maybe_load_stanford_metadata(model_name_or_path, **kwargs)
        self._legacy.skiplist_words = stanford_skiplist(Checkpoint(model_name_or_path, kwargs))

    @staticmethod
    def _build_stanford_projection(*args: Any, **kwargs: Any) -> Dense:
        return Dense(1, 1)  # `_load_default_modules` puts the head in its place

    def _load_converted_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        loaded: Any = super()._load_converted_modules(model_name_or_path, *args, **kwargs)
        trained = token_head_of_dense(Checkpoint(model_name_or_path, kwargs), loaded[0][0])
        if trained is not None:
            self.similarity_fn_name = "meanmaxsim"
            return trained, loaded[1]
        return self._construction.complete(model_name_or_path, loaded, True, self._legacy.prefixes, self.prompts)

    def _load_config_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        modules, module_kwargs = super()._load_config_modules(model_name_or_path, *args, **kwargs)
        loaded = list(cast(Any, modules).values())
        self._construction.has_saved_head = any(isinstance(module, Dense) for module in loaded)
        if self._legacy.prefixes and isinstance(loaded[0], Transformer):  # PyLate's
            if not self._construction.has_saved_head:
                raise ModelLoadError(model_name_or_path, ValueError("its modules.json lists no head, a Dense."))
            resolve_markers(self, model_name_or_path, loaded[0].tokenizer, is_stanford=False)
        return modules, module_kwargs

    def _inference(self, inputs: list[Any], *, device: Any = None, job: Any = None, **others: Any) -> Any:
        """Encode in a worker process, where `encoding` has sent a job; or as sentence-transformers does."""
        if job is None:
            return super()._inference(inputs, device=device, **others)
        return encoding.encode_chunk(self, inputs, job, device)

    _get_worker_result = staticmethod(_take_result)

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:  # sentence-transformers' class loads the model for everyone
        return super()._push_to_hub_usage_tip(repo_id).replace(type(self).__name__, MultiVectorEncoder.__name__)
