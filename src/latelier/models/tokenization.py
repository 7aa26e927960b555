"""Texts to features: the tokens that a model reads, with its own markers, for use and for training alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.checkpoint import Checkpoint
from latelier.models.inputs import check_lengths
from latelier.models.nesting import is_group
from latelier.models.options import check_options, resolve_task

__all__ = ["Tokenization"]

# Options of sentence-transformers' own tokenisation.
_OPTIONS = frozenset({"task", "max_length", "processing_kwargs"})


class Tokenization(Checkpoint):
    """What `ColBERT` does with texts before it computes anything."""

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
        """Tokenise texts into features that go straight into the model or a loss.

        Parameters
        ----------
        texts
            One text or many.
        is_query, query_mode, task
            Whether they are queries (marker, expansion) or documents (marker, skiplist), in the three spellings of
            `encode`; queries by default.
        truncation
            False makes a text that is longer than its cap an error rather than cut.
        **kwargs
            Arguments of `preprocess`.

        Returns
        -------
        dict
            ``input_ids`` and ``attention_mask`` ``(n, tokens)``, ``task``, and what else the encoder takes.

        Raises
        ------
        InvalidArgumentError
            If spellings contradict each other, there is no such argument, or a text is too long.

        Examples
        --------
        >>> from latelier.models import ColBERT
        >>> model = ColBERT("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
        >>> features = model.tokenize(["a pear"], task="document")
        >>> model.tokenizer.convert_ids_to_tokens(features["input_ids"][0])
        ['[CLS]', '[D] ', 'a', 'pear', '[SEP]']
        """
        task = resolve_task(query_mode, is_query, task)
        texts = [texts] if isinstance(texts, str) else texts
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
            ``task`` (``"query"`` or ``"document"``), ``max_length``, ``processing_kwargs``, and what the model's own
            modules take.

        Returns
        -------
        dict
            Features, with ``task`` among them where it is known.

        Raises
        ------
        InvalidArgumentError
            If there is no such argument, or the texts come in lists of lists.
        """
        self._check_preprocessing(inputs, kwargs)
        task = kwargs.get("task")
        if prompt is None and task is not None:
            prompt = self.prompts.get(task) or None
        try:
            features = super().preprocess(inputs, prompt=prompt, **kwargs)
        except LatelierError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"cannot make features of these inputs: {error} Give texts, as str.") from error
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

    def _check_preprocessing(self, inputs: Any, options: Mapping[str, Any]) -> None:
        """Refuse what the encoder would ignore or take for something else; a module of the user's own may know it."""
        if not options.keys() <= _OPTIONS and isinstance(self[0], Transformer):
            check_options("preprocess", options, _OPTIONS.union(self.get_model_kwargs()))
        if isinstance(inputs, (list, tuple)) and any(map(is_group, inputs)):
            raise InvalidArgumentError(
                "received lists of texts; features are made of a flat list, with tuples for pairs that the encoder "
                "reads as one input. encode takes lists of lists, and losses take one column per position."
            )
