"""`Overrides`: methods of sentence-transformers that `ColBERT` replaces, for encoding, saving, loading and workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Module
from sentence_transformers.util import fullname

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import encoding, options, workers
from latelier.models.checkpoints.damage import check_modules, damage_errors
from latelier.models.construction import Construction
from latelier.models.text_encoder import TextEncoder
from latelier.modules import AttentionPooling
from latelier.scores import colbert_scores, colbert_scores_pairwise
from latelier.utils.checks import short

__all__ = ["Overrides"]

# The modules of this library, by the name that a saved model's modules.json has for them: they need no
# ``trust_remote_code``.
_OWN_MODULES: dict[str, type[Module]] = {fullname(each): each for each in (AttentionPooling, TextEncoder)}


def _in_every_spelling(method: Callable[..., Any], task: str) -> Callable[..., Any]:
    """Return `encode_query` or `encode_document` with every name that `ColBERT.encode` has for the texts and the task.

    Its signature and its docstring are those of sentence-transformers.
    """

    @wraps(method)
    def encode(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        texts = {"inputs": inputs, **{name: kwargs.pop(name, None) for name in ("texts", "sentences")}}
        query_mode, is_query, asked = (kwargs.pop(name, None) for name in ("query_mode", "is_query", "task"))
        asked = options.resolve_task(query_mode, is_query, asked, default=task)
        if asked != task:
            raise InvalidArgumentError(f"encode_{task} received the task {asked!r}; use encode_{asked}.")
        return method(self, options.one_name(texts, "texts to encode"), *args, **kwargs)

    return encode


def _taking_packed(method: Callable[..., Any], score: Callable[..., Any]) -> Callable[..., Any]:
    """Return `similarity` or `similarity_pairwise`, which take `TokenEmbeddings` too.

    Its signature and its docstring are those of sentence-transformers, which takes lists and has options of its own.
    """

    @wraps(method)
    def similarity(self: Any, embeddings1: Any, embeddings2: Any, **kwargs: Any) -> Any:
        sides = [embeddings1, embeddings2]
        if any(isinstance(side, TokenEmbeddings) for side in sides):
            if self.similarity_fn_name == "maxsim" and not kwargs:
                return score(*sides)
            sides = [list(side.to("torch")) if isinstance(side, TokenEmbeddings) else side for side in sides]
        return method(self, *sides, **kwargs)

    return similarity


class Overrides(MultiVectorEncoder):
    """Base class of `ColBERT`, with no method that sentence-transformers does not have."""

    _construction: Construction

    encode_query = _in_every_spelling(MultiVectorEncoder.encode_query, "query")
    encode_document = _in_every_spelling(MultiVectorEncoder.encode_document, "document")
    similarity = _taking_packed(MultiVectorEncoder.similarity, colbert_scores)
    similarity_pairwise = _taking_packed(MultiVectorEncoder.similarity_pairwise, colbert_scores_pairwise)

    @property
    def similarity_fn_name(self) -> Any:
        """How `similarity` scores: ``"maxsim"``, the default, or ``"meanmaxsim"``."""
        return super().similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        try:
            MultiVectorEncoder.similarity_fn_name.fset(self, value)  # type: ignore[attr-defined]
        except (TypeError, ValueError) as error:
            names = " or ".join(map(repr, self.SUPPORTED_SIMILARITY_FN_NAMES))
            raise InvalidArgumentError(f"received similarity_fn_name={short(value)}; expected {names}.") from error

    def save_pretrained(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save as `save` does, which subclasses can override; the name that transformers uses, and trainers call."""
        self.save(path, *args, **kwargs)  # type: ignore[arg-type]  # `ColBERT.save` takes any path

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

    def _load_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        with damage_errors(model_name_or_path, kwargs):
            modules, module_kwargs = super()._load_modules(model_name_or_path, *args, **kwargs)
            check_modules(model_name_or_path, list(modules.values() if isinstance(modules, dict) else modules))
        return modules, module_kwargs

    def _load_default_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        loaded = super()._load_default_modules(model_name_or_path, *args, **kwargs)
        return self._construction.complete(model_name_or_path, loaded, False, self._legacy.prefixes, self.prompts)

    def _load_converted_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        loaded = super()._load_converted_modules(model_name_or_path, *args, **kwargs)
        return self._construction.complete(model_name_or_path, loaded, True, self._legacy.prefixes, self.prompts)

    def _load_config_modules(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        modules, module_kwargs = super()._load_config_modules(*args, **kwargs)
        self._construction.note_saved_head(modules)
        return modules, module_kwargs

    def _inference(self, inputs: list[Any], *, device: Any = None, job: Any = None, **others: Any) -> Any:
        """Encode in a worker process, where `encoding` has sent a job; or as sentence-transformers does."""
        if job is None:
            return super()._inference(inputs, device=device, **others)
        return encoding.encode_chunk(self, inputs, job, device)

    _module_classes = _OWN_MODULES
    _multi_process_worker = staticmethod(workers.encode_chunks)
    _get_worker_result = staticmethod(workers.take_result)

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:  # sentence-transformers' class loads the model for everyone
        return super()._push_to_hub_usage_tip(repo_id).replace(type(self).__name__, MultiVectorEncoder.__name__)
