"""What a late-interaction model is made of: loading a checkpoint as it was trained, or building one around an encoder.

Everything that touches the private loading hooks of sentence-transformers stands in this file. The modules of the
pipeline are theirs, so a saved folder loads in plain `MultiVectorEncoder`; `model_type` stays theirs too, since
another one makes their loader replace the trained head by a random one.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import nn

from latelier.errors import InvalidArgumentError, LatelierError, ModelLoadError
from latelier.models.checkpoints.location import check_folder, resolve_name
from latelier.models.checkpoints.pylate import save_for_pylate
from latelier.models.options import check_options
from latelier.models.quiet import quiet_conversion
from latelier.models.recipe import Recipe, build_modules, token_heads
from latelier.utils import check_count, encoder_limit, resolve_device, resolve_length
from latelier.utils.describing import describe

__all__ = ["DEFAULT_EMBEDDING_SIZE", "Checkpoint"]

logger = logging.getLogger(__name__)

DEFAULT_EMBEDDING_SIZE = 128
_QUERY_LENGTH = 32
_DOCUMENT_LENGTH = 350


class Checkpoint(MultiVectorEncoder):
    """What `ColBERT` is loaded from or built of; its docstring describes the parameters."""

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
        **kwargs: Any,
    ) -> None:
        check_options(
            type(self).__name__,
            kwargs,
            inspect.signature(MultiVectorEncoder.__init__).parameters.keys() - {"self"},
            inspect.signature(Checkpoint.__init__).parameters.keys() - {"self"},
        )
        check_count("embedding_size", embedding_size, optional=True)
        if not isinstance(recipe, (Recipe, type(None))):
            raise InvalidArgumentError(f"received {describe(recipe)} as recipe; expected a Recipe, or None.")
        if not isinstance(kwargs.get("prompts"), (Mapping, type(None))):
            raise InvalidArgumentError(f"received {describe(kwargs['prompts'])} as prompts; expected a dict of texts.")
        # Plain values only: modules stored here, before nn.Module.__init__, would break nn.Sequential.
        self._recipe = recipe or Recipe()
        self._asked_size = embedding_size
        self._given_prompts = frozenset(kwargs.get("prompts") or ())
        self._is_fresh = False
        self._needs_fit = False
        self._saved_head = False
        self._has_new_tokens = False
        self.truncate_dim: int | None = None
        has_device_map = "device_map" in (kwargs.get("model_kwargs") or {})
        place = None if has_device_map and device is None else str(resolve_device(device))
        name = None if model_name_or_path is None else str(model_name_or_path)
        if not kwargs.get("trust_remote_code") and kwargs.get("backend", "torch") == "torch":
            # The settings in a folder may ask transformers to unpickle whatever its weights are; arguments win.
            kwargs["model_kwargs"] = {"weights_only": True, **(kwargs.get("model_kwargs") or {})}
        try:
            if name is not None:
                check_folder(name)
            with quiet_conversion():
                super().__init__(None if name is None else resolve_name(name), device=place, **kwargs)
        except (OSError, UnpicklingError) as error:
            raise ModelLoadError(name, error) from error
        self._set_lengths(max_length_query, max_length_document)
        self.truncate_dim = self.resolve_truncation(truncate_dim)
        self._report(name)

    @property
    def embedding_size(self) -> int:
        """Dimensions of each token's embedding."""
        return int(self.get_embedding_dimension() or 0)

    def resolve_truncation(self, truncate_dim: int | None) -> int | None:
        """Return how many numbers of each vector `encode` keeps: what is asked for, else what the model was loaded for.

        Raises
        ------
        InvalidArgumentError
            If the model's vectors have fewer.
        """
        if truncate_dim is None:
            return self.truncate_dim
        return check_count("truncate_dim", truncate_dim, most=self.embedding_size)

    @property
    def max_length_query(self) -> int:
        """Most tokens of a query, markers and special tokens included."""
        expansion = self._encoder.query_expansion
        return expansion["length"] if expansion else self._encoder.query_length or self._read_limit()

    @property
    def max_length_document(self) -> int:
        """Most tokens of a document, markers and special tokens included."""
        return self._encoder.document_length or self._read_limit()

    def save(
        self,
        path: str | os.PathLike[str],
        model_name: str | None = None,
        create_model_card: bool = True,
        train_datasets: list[str] | None = None,
        safe_serialization: bool = True,
        *,
        layout: Literal["sentence-transformers", "pylate"] = "sentence-transformers",
    ) -> None:
        """Save to a folder that `ColBERT` and plain sentence-transformers load, and PyLate 1.6 where asked for.

        Parameters
        ----------
        path
            The folder.
        model_name, create_model_card, train_datasets, safe_serialization
            As in `sentence_transformers.MultiVectorEncoder.save`.
        layout
            ``"pylate"`` writes what PyLate 1.6 reads; `ColBERT` and sentence-transformers read that too.

        Raises
        ------
        InvalidArgumentError
            If the layout is unknown, or PyLate's cannot hold the model; nothing is written then.
        """
        self._check_fitted()
        if layout == "pylate":
            lengths = self.max_length_query, self.max_length_document
            save_for_pylate(self, str(path), lengths, safe_serialization=safe_serialization)
            if create_model_card:
                self._create_model_card(str(path), model_name, train_datasets)
        elif layout == "sentence-transformers":
            super().save(str(path), model_name, create_model_card, train_datasets, safe_serialization)
        else:
            raise InvalidArgumentError(f"unknown layout {layout!r}; expected 'sentence-transformers' or 'pylate'.")

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        model_name: str | None = None,
        create_model_card: bool = True,
        train_datasets: list[str] | None = None,
        safe_serialization: bool = True,
        *,
        layout: Literal["sentence-transformers", "pylate"] = "sentence-transformers",
    ) -> None:
        """Save as `save` does; the name that transformers uses.

        Parameters
        ----------
        path, model_name, create_model_card, train_datasets, safe_serialization, layout
            As in `save`.
        """
        self.save(path, model_name, create_model_card, train_datasets, safe_serialization, layout=layout)

    def add_adapter(self, *args: Any, **kwargs: Any) -> None:
        """Add a PEFT adapter, such as LoRA, that is trained in place of the encoder's own weights.

        Parameters
        ----------
        *args, **kwargs
            Arguments of `sentence_transformers.MultiVectorEncoder.add_adapter`.

        Raises
        ------
        LatelierError
            If markers were added to the vocabulary since the encoder was loaded: what is saved is the adapter and where
            its encoder is, which would lack them.
        """
        if self._has_new_tokens:
            raise LatelierError(
                "the markers are new tokens, which the encoder that this adapter would be saved for does not have. "
                "Save the model first, and add the adapter to the saved one: model.save('base'); "
                f"model = {type(self).__name__}('base'); model.add_adapter(...)."
            )
        super().add_adapter(*args, **kwargs)

    @property
    def _encoder(self) -> Transformer:
        """The encoder module; models built from other modules (``modules=[...]``) have no caps to speak of."""
        module = self[0]
        if not isinstance(module, Transformer):
            raise LatelierError(f"the first module of this model is a {type(module).__name__}, not a Transformer.")
        return module

    def _read_limit(self) -> int:
        return encoder_limit(self._encoder.config) or int(self.max_seq_length or 0)

    def _tells_queries_from_documents(self) -> bool:
        prompts = {self.prompts.get("query") or "", self.prompts.get("document") or ""}
        skips = any(isinstance(module, MultiVectorMask) and module.skiplist_words for module in self)
        return prompts != {""} or self._encoder.query_expansion is not None or skips

    def _check_fitted(self) -> None:
        if self._needs_fit:
            raise LatelierError(
                "the PCA projection of this model is not fitted yet; call fit_projection(texts) with a sample of your "
                "documents first."
            )

    def _load_default_modules(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Bare encoders get the recipe; Stanford checkpoints and transformers' own retrievers are complete."""
        modules: Any
        modules, module_kwargs = super()._load_default_modules(*args, **kwargs)
        if self._legacy.prefixes or modules[0].transformer_task == "retrieval":
            return modules, module_kwargs
        return self._build(modules[0], []), module_kwargs

    def _load_converted_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Dense models get the recipe; folders of early PyLate, which look like dense models, are complete."""
        modules: Any
        modules, module_kwargs = super()._load_converted_modules(model_name_or_path, *args, **kwargs)
        if self._is_fresh or self._legacy.prefixes:
            return modules, module_kwargs
        transformer = next(module for module in modules if isinstance(module, Transformer))
        # sentence-transformers appends a random head where the folder has none; only a trained one is kept.
        others = [module for module in modules if self._saved_head or not isinstance(module, Dense)]
        width = transformer.get_embedding_dimension()
        return self._build(transformer, token_heads(others, width, model_name_or_path)), module_kwargs

    def _load_config_modules(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        modules: Any
        modules, module_kwargs = super()._load_config_modules(*args, **kwargs)
        self._saved_head = any(isinstance(module, Dense) for module in modules.values())
        return modules, module_kwargs

    def _build(self, transformer: Transformer, heads: list[Dense]) -> list[nn.Module]:
        self._is_fresh = True
        self._saved_head = bool(heads)
        self._needs_fit = self._recipe.projection == "pca"
        # A dense model's own prompts stay: it was trained with them. Prompts given by the caller are taken as they are.
        document_prompt = next((p for p in map(self.prompts.get, ("document", "passage", "corpus")) if p), "")
        composed = {
            "query": self._recipe.query_marker + (self.prompts.get("query") or ""),
            "document": self._recipe.document_marker + document_prompt,
        }
        self.prompts.update({task: p for task, p in composed.items() if task not in self._given_prompts})
        encoder: Any = transformer.model
        words = encoder.get_input_embeddings().num_embeddings
        modules = build_modules(self._recipe, transformer, heads, self._asked_size or DEFAULT_EMBEDDING_SIZE)
        self._has_new_tokens = encoder.get_input_embeddings().num_embeddings > words
        return modules

    def _set_lengths(self, query: int | None, document: int | None) -> None:
        """Apply explicit lengths to any model, and defaults to a fresh one; a checkpoint keeps its own otherwise."""
        transformer: Any = self[0] if len(self) else None
        if not isinstance(transformer, Transformer):
            return  # a pipeline of the caller's own, through modules=[...]
        limit = encoder_limit(transformer.config)
        default = _DOCUMENT_LENGTH if self._is_fresh else transformer.document_length
        transformer.document_length = resolve_length("max_length_document", document, default, limit)
        expansion = transformer.query_expansion
        if self._is_fresh:
            default = _QUERY_LENGTH if self._recipe.projection == "learned" else limit
            if self._recipe.query_expansion:
                expansion = {
                    "strategy": "fixed",
                    "attend": self._recipe.attend_to_expansion,
                    "length": 1,
                    "token": None,
                }
        else:
            default = transformer.query_length
        length = resolve_length("max_length_query", query, default, limit)
        if expansion is None:
            transformer.query_length = length
        elif self._is_fresh or query is not None:
            transformer.query_length = None  # the expansion's length says it all, and a smaller cap would contradict it
            transformer.query_expansion = {**expansion, "length": length}

    def _report(self, name: str | None) -> None:
        if self._is_fresh and self._recipe.projection == "learned":
            kept = self._saved_head
            logger.warning(
                "%s %s: ColBERT added markers%s query expansion%s that want training. To search without training, use "
                "ColBERT.from_dense(%r).",
                name,
                "is a dense model, whose linear layer is kept as the head" if kept else "has no late-interaction head",
                " and" if kept else ",",
                "" if kept else " and a head",
                name,
            )
        if self._asked_size not in (None, self.embedding_size):
            has = "a head" if any(isinstance(module, Dense) for module in self) else "vectors"
            warnings.warn(
                f"embedding_size={self._asked_size} is ignored: {name} was saved with {has} of {self.embedding_size} "
                "dimensions, and keeps it.",
                stacklevel=3,
            )

    def _push_to_hub_usage_tip(self, repo_id: str) -> str:
        """Name the class under which everyone who has sentence-transformers can load the model."""
        return super()._push_to_hub_usage_tip(repo_id).replace(type(self).__name__, MultiVectorEncoder.__name__)
