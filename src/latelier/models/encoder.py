"""Texts to tokens to embeddings: the calls that need no gradient, in the spellings that people know.

`encode` and `tokenize` accept what PyLate, neural-cherche and sentence-transformers accept, and return what
sentence-transformers returns; `preprocess` sees to it that trainers get the markers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models.checkpoint import Checkpoint
from latelier.models.encoding import encode_texts
from latelier.models.pooling import check_pooling, pool_tokens
from latelier.models.texts import check_lengths, check_texts, resolve_task
from latelier.models.workers import PackedChunk, PackingQueue

__all__ = ["Encoder"]

# Options of encode that have said all they have to say once our encoding loop is chosen.
_UNUSED_OPTIONS = ("output_value", "token_pooling", "normalize_embeddings")


class Encoder(Checkpoint):
    """What `ColBERT` does with texts, without gradients."""

    def encode(  # type: ignore[override]
        self,
        texts: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        query_mode: bool | None = None,
        is_query: bool | None = None,
        task: str | None = None,
        truncation: bool = True,
        add_special_tokens: bool = False,
        packed: bool = False,
        pool_factor: int = 1,
        protected_tokens: int = 1,
        inputs: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encode texts without gradients.

        Parameters
        ----------
        texts, inputs
            One text or many; two names for one argument, the second is sentence-transformers'.
        prompt_name, prompt
            What to put before each text instead of the model's own prompt (its marker).
        query_mode, is_query, task
            Three spellings of one thing, from neural-cherche, PyLate and sentence-transformers: ``query_mode=True``,
            ``is_query=True`` and ``task="query"`` encode queries, False and ``"document"`` documents. Default:
            **queries**, as in the first two libraries. `encode_query` and `encode_document` leave no doubt.
        truncation
            False makes a text that is longer than its cap an error rather than cut.
        add_special_tokens
            Kept for calls written for neural-cherche; no effect there or here: special tokens are always added.
        packed
            Return one `TokenEmbeddings` rather than a list.
        pool_factor, protected_tokens
            For documents: keep about one vector of ``pool_factor``, the mean of similar ones, and the first
            ``protected_tokens`` as they are; see `pool_tokens`.
        **kwargs
            Arguments of `sentence_transformers.MultiVectorEncoder.encode`: ``batch_size``, ``show_progress_bar``,
            ``convert_to_numpy``, ``normalize_embeddings``, ``token_pooling``, ``device``, ``pool``, ...

        Returns
        -------
        list of torch.Tensor
            One ``(tokens, dim)`` matrix per text, in order; one matrix for one text. With ``packed=True`` a
            `TokenEmbeddings`, also for one text.

        Raises
        ------
        InvalidArgumentError
            If the spellings contradict each other, a text is not a string, or is too long with ``truncation=False``; if
            queries, or features (``output_value=None``), are to be pooled.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> model.encode(["fruits are healthy.", ""], is_query=False, packed=True)
        TokenEmbeddings(2 texts, 8 tokens, dim=384, float32, cpu)
        >>> model.encode("fruits", query_mode=True).shape
        torch.Size([3, 384])
        >>> model.encode_document("fruits are healthy.", pool_factor=2).shape  # [CLS] and 5 others
        torch.Size([3, 384])
        """
        given = inputs if texts is None else texts
        if given is None:
            raise InvalidArgumentError("received no texts to encode; give a str or a list of str.")
        check_texts(given)
        task = resolve_task(query_mode, is_query, task)
        check_pooling(pool_factor, protected_tokens, task, kwargs.get("output_value", "token_embeddings"))
        if not truncation:
            check_lengths(self, given, task)
        if prompt is None and prompt_name is None and task in self.prompts:
            prompt_name = task
        self._check_fitted()
        encoded = super().encode(given, prompt_name, prompt, task=task, **kwargs)
        if kwargs.get("output_value", "token_embeddings") is None:
            return encoded
        single = self.is_singular_input(given)
        rows = [encoded] if single else encoded
        if packed and not rows:
            return TokenEmbeddings(torch.zeros(0, self.embedding_size), [0])
        if packed or (pool_factor > 1 and rows):
            batch = pool_tokens(TokenEmbeddings.from_list(rows), pool_factor, protected_tokens=protected_tokens)
            if packed:
                return batch
            rows = list(batch)
        return rows[0] if single else rows

    def tokenize(  # type: ignore[override]
        self, texts: Sequence[str], is_query: bool = True, *, truncation: bool = True, **kwargs: Any
    ) -> dict[str, Any]:
        """Tokenise texts into features that go straight into the model or a loss.

        Parameters
        ----------
        texts
            The texts.
        is_query
            Whether they are queries (marker, expansion) or documents (marker, skiplist).
        truncation
            False makes a text that is longer than its cap an error rather than cut.
        **kwargs
            Arguments of `preprocess`.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask`` ``(n, tokens)``, ``task``, and what else the encoder takes.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> model.tokenizer.decode(model.tokenize(["a pear"], is_query=False)["input_ids"][0])
        '[CLS] [D] a pear [SEP]'
        """
        task = "query" if is_query else "document"
        if not truncation:
            check_lengths(self, texts, task)
        return self.preprocess(texts, task=task, **kwargs)

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenise texts, with the model's own prompt (its marker) where none is given.

        The sentence-transformers trainer passes no prompt: without this, a model would be trained without the
        markers that it is used with.

        Parameters
        ----------
        inputs
            The texts.
        prompt
            What to put before each; None means the model's prompt for the task, ``""`` none.
        **kwargs
            ``task`` (``"query"`` or ``"document"``) and other arguments of the encoder's tokenisation.

        Returns
        -------
        dict
            Features, with ``task`` among them where it is known.
        """
        task = kwargs.get("task")
        if prompt is None and task is not None:
            prompt = self.prompts.get(task) or None
        features = super().preprocess(inputs, prompt=prompt, **kwargs)
        if features and task is not None:
            features["task"] = task
        return features

    def tokens(self, text: str, is_query: bool = True) -> list[str]:
        """Return the word pieces that the rows of a text's embedding stand for.

        Parameters
        ----------
        text
            One text.
        is_query
            Whether it is a query.

        Returns
        -------
        list of str
            As many as `encode` returns rows, in the same order.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT.from_dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> model.tokens("unhealthy fruits")
        ['[CLS]', 'un', '##hea', '##lth', '##y', 'fruits', '[SEP]']
        """
        features = self.tokenize([text], is_query=is_query)
        task = features["task"]
        for module in self:
            if isinstance(module, MultiVectorMask):
                features = module(features, task=task)
        counted = features["input_ids"][0][features["attention_mask"][0].bool().cpu()]
        return list(self.tokenizer.convert_ids_to_tokens(counted.tolist()))

    def _inference(self, inputs: list[Any], *, device: Any = None, **options: Any) -> Any:
        """Encode plain texts by token budget; anything else (images, raw outputs) as sentence-transformers does."""
        encoder = self[0]
        # With flash attention a batch is flattened, not padded: nothing to win there.
        ours = isinstance(encoder, Transformer) and not encoder.can_flatten_inputs and options["task"] is not None
        ours = ours and options["output_value"] is not None and all(isinstance(text, str) for text in inputs)
        if not ours or options["token_pooling"] is not None or options["normalize_embeddings"]:
            return super()._inference(inputs, device=device, **options)
        options = {name: value for name, value in options.items() if name not in _UNUSED_OPTIONS}
        if device is not None or self._placement_is_delegated:
            device = self._resolve_inference_device(device)  # walks over all parameters: a tenth of a short query
        return encode_texts(self, inputs, device=device, **options)

    @classmethod
    def _multi_process_worker(cls, target_device: str, model: Any, input_queue: Any, results_queue: Any) -> None:
        packing: Any = PackingQueue(results_queue)
        super()._multi_process_worker(target_device, model, input_queue, packing)

    @staticmethod
    def _get_worker_result(pool: Any, *args: Any, **kwargs: Any) -> Any:
        chunk, output = Checkpoint._get_worker_result(pool, *args, **kwargs)
        return [chunk, output.unpack() if isinstance(output, PackedChunk) else output]
