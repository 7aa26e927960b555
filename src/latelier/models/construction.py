"""Building a late-interaction model around an encoder that has no head for it, by a recipe."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import AddedToken
from torch import nn

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.checkpoints.heads import LoadedModules, trained_heads
from latelier.models.projection import fit_pca, orthogonal_weight
from latelier.models.recipe import Recipe
from latelier.models.text_encoder import TextEncoder
from latelier.utils import check_count
from latelier.utils.checks import describe, short
from latelier.utils.misc import warn_caller

__all__ = ["DEFAULT_EMBEDDING_SIZE", "Construction"]

DEFAULT_EMBEDDING_SIZE = 128

logger = logging.getLogger(__name__)


@dataclass
class Construction:
    """Builds a pipeline around an encoder that has none, and remembers what it has built.

    A plain object: a model stores it before ``nn.Module.__init__``, when a module would break `nn.Sequential`.

    Parameters
    ----------
    recipe
        What to build.
    embedding_size
        Dimensions asked for; None for the default of a new head.
    given_prompts
        Names of the prompts that the caller gave, which are left unchanged.
    is_fresh
        Whether the pipeline was built here; a late-interaction checkpoint has its own.
    needs_fit
        Whether its PCA projection is still to be fitted.
    has_saved_head
        Whether the checkpoint had a linear layer.
    has_new_tokens
        Whether markers were added to the vocabulary.
    """

    recipe: Recipe
    embedding_size: int | None = None
    given_prompts: frozenset[str] = frozenset()
    is_fresh: bool = False
    needs_fit: bool = False
    has_saved_head: bool = False
    has_new_tokens: bool = False

    @classmethod
    def of(cls, recipe: Any, embedding_size: Any, prompts: Any) -> Construction:
        """Check the arguments of a model's constructor, and return the construction that they ask for."""
        size = check_count("embedding_size", embedding_size, optional=True)
        if not isinstance(recipe, (Recipe, type(None))):
            raise InvalidArgumentError(f"received {describe(recipe)} as recipe; expected a Recipe, or None.")
        if not isinstance(prompts, (Mapping, type(None))):
            raise InvalidArgumentError(f"received {describe(prompts)} as prompts; expected a dict of texts.")
        return cls(recipe or Recipe(), size, frozenset(prompts or ()))

    @property
    def built_recipe(self) -> Recipe | None:
        """The recipe, if the pipeline was built by it."""
        return self.recipe if self.is_fresh else None

    def note_saved_head(self, modules: Any) -> None:
        """Remember whether a linear layer is among the modules that a checkpoint lists."""
        self.has_saved_head = any(isinstance(module, Dense) for module in modules.values())

    def complete(
        self, name: str, loaded: tuple[Any, Any], has_modules_json: bool, markers: Any, prompts: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Build the recipe around what sentence-transformers has loaded, unless that is a late-interaction model.

        Parameters
        ----------
        name
            Name or folder of the checkpoint.
        loaded
            Modules, and their arguments, which are returned unchanged.
        has_modules_json
            Whether the checkpoint lists its modules.
        markers
            The markers that the checkpoint's settings name.
        prompts
            The model's prompts, changed in place.

        Returns
        -------
        tuple
            Modules, and their arguments.
        """
        modules, module_kwargs = loaded
        if self.is_fresh:
            return loaded
        heads = trained_heads(LoadedModules(name, modules, has_modules_json, bool(markers), self.has_saved_head))
        if heads is None:
            return loaded
        transformer = next(module for module in modules if isinstance(module, Transformer))
        return self.build(transformer, heads, prompts), module_kwargs

    def with_modules(self, options: Mapping[str, Any], name: str | None) -> dict[str, Any]:
        """Return the constructor's options, with the pipeline of the recipe around a single encoder in ``modules``.

        A longer list is a pipeline of the user's own, and taken as it is.
        """
        modules = options.get("modules")
        if modules is None and name is None:
            raise InvalidArgumentError("received no model; give the name or the folder of one, or modules=[...].")
        if modules is not None and name is not None:
            raise InvalidArgumentError(f"received both the model {short(name)} and modules; give one of the two.")
        if not isinstance(modules, (list, tuple)) or len(modules) != 1:
            return dict(options)
        (encoder,) = modules
        if not isinstance(encoder, (Transformer, TextEncoder)):
            return dict(options)
        prompts = dict(options.get("prompts") or {})
        return {**options, "modules": self.build(encoder, [], prompts), "prompts": prompts}

    def build(
        self, transformer: Transformer | TextEncoder, heads: list[Dense], prompts: dict[str, str | None]
    ) -> list[nn.Module]:
        """Return the pipeline of a new late-interaction model, in sentence-transformers' own modules.

        Parameters
        ----------
        transformer
            The encoder; markers are added to its vocabulary.
        heads
            Trained linear layers of a dense model, applied to every token here. They take the place of a learned head.
        prompts
            The model's prompts; markers are put before them.

        Returns
        -------
        list of torch.nn.Module
            Encoder, heads, scoring mask, normalisation: a saved folder loads in plain sentence-transformers.

        Raises
        ------
        InvalidArgumentError
            If a projection that is not learned would have more dimensions than its input.
        """
        self.is_fresh = True
        self.has_saved_head = bool(heads)
        self.needs_fit = self.recipe.projection == "pca"
        self._put_markers_before(prompts)
        encoder: Any = transformer.model
        vocabulary = encoder.get_input_embeddings().num_embeddings
        _add_markers(transformer, [self.recipe.query_marker, self.recipe.document_marker])
        self.has_new_tokens = encoder.get_input_embeddings().num_embeddings > vocabulary
        width = heads[-1].out_features if heads else int(transformer.get_embedding_dimension())
        modules: list[nn.Module] = [transformer, *heads]
        if self._needs_projection(heads, width):
            modules.append(_projection(width, self.embedding_size or DEFAULT_EMBEDDING_SIZE, self.recipe.projection))
        modules.append(MultiVectorMask(skiplist_words=list(self.recipe.skiplist)))
        modules.append(Normalize(module_input_name="token_embeddings"))
        return modules

    def check_fitted(self) -> None:
        """Raise an error if the PCA projection is not fitted yet."""
        if self.needs_fit:
            raise LatelierError(
                "the PCA projection of this model is not fitted yet; call fit_projection(texts) with a sample of your "
                "documents first."
            )

    def check_fresh(self, name: str) -> None:
        """Raise an error if the model is a late-interaction checkpoint rather than built here."""
        if not self.is_fresh:
            raise InvalidArgumentError(f"{name!r} is a late-interaction checkpoint already; load it with ColBERT(...).")

    def fit_projection(
        self, model: MultiVectorEncoder, texts: Iterable[str], batch_size: int, show_progress_bar: bool
    ) -> None:
        """Fit the PCA projection of the model built here, as `fit_pca` does.

        Raises
        ------
        InvalidArgumentError
            If the model has no PCA projection, or the texts have too few tokens.
        """
        if self.recipe.projection != "pca" or not self.is_fresh:
            raise InvalidArgumentError('this model has no PCA projection; make one with from_dense(projection="pca").')
        fit_pca(model, texts, batch_size, show_progress_bar)
        self.needs_fit = False

    def check_vocabulary_is_saved(self, class_name: str) -> None:
        """Raise an error if markers were added to the vocabulary: a saved adapter names an encoder without them."""
        if self.has_new_tokens:
            raise LatelierError(
                "the markers are new tokens, which the encoder that this adapter would be saved for does not have. "
                "Save the model first, and add the adapter to the saved one: model.save('base'); "
                f"model = {class_name}('base'); model.add_adapter(...)."
            )

    def report(self, name: str | None, modules: nn.Sequential, embedding_size: int) -> None:
        """Warn about a new model that needs training, and about an `embedding_size` other than the model's."""
        if self.is_fresh and self.recipe.projection == "learned" and name is not None:
            kept = self.has_saved_head
            logger.warning(
                "%s %s: ColBERT added markers%s query expansion%s that need training. To search without training, use "
                "ColBERT.from_dense(%r).",
                name,
                "is a dense model, whose linear layer is kept as the head" if kept else "has no late-interaction head",
                " and" if kept else ",",
                "" if kept else " and a head",
                name,
            )
        if self.embedding_size not in (None, embedding_size):
            has = "a head" if any(isinstance(module, Dense) for module in modules) else "vectors"
            warn_caller(
                f"embedding_size={self.embedding_size} is ignored: {name} was saved with {has} of {embedding_size} "
                "dimensions, and keeps it."
            )

    def _put_markers_before(self, prompts: dict[str, str | None]) -> None:
        # A dense model keeps its own prompts, which it was trained with.
        document_prompt = next((p for p in map(prompts.get, ("document", "passage", "corpus")) if p), "")
        composed = {
            "query": self.recipe.query_marker + (prompts.get("query") or ""),
            "document": self.recipe.document_marker + document_prompt,
        }
        prompts.update({task: prompt for task, prompt in composed.items() if task not in self.given_prompts})

    def _needs_projection(self, heads: list[Dense], width: int) -> bool:
        """Whether to add a linear layer: not if trained heads replace a learned one or have the wanted size already."""
        projection = self.recipe.projection
        size = self.embedding_size or DEFAULT_EMBEDDING_SIZE
        is_done = projection == "learned" or (projection == "orthogonal" and width == size)
        return projection is not None and not (heads and is_done)


def _projection(width: int, embedding_size: int, kind: str | None) -> Dense:
    if kind != "learned" and embedding_size > width:
        raise InvalidArgumentError(
            f"received projection={kind!r} to {embedding_size} dimensions, but the model's vectors "
            f"have {width}; give embedding_size={width} or fewer, or projection=None to keep them as they are."
        )
    return Dense(
        in_features=width,
        out_features=embedding_size,
        bias=False,
        activation_function=nn.Identity(),
        init_weight=orthogonal_weight(embedding_size, width),
        module_input_name="token_embeddings",
    )


def _add_markers(transformer: Transformer | TextEncoder, markers: list[str]) -> None:
    """Make each marker one token of the vocabulary; empty ones are skipped.

    As plain text, "[Q] " is three word pieces of a BERT vocabulary. New rows of the embedding table start as the mean
    of the others, so that the encoder gets inputs like those it was trained with. The table is never made smaller.
    """
    tokenizer: Any = transformer.tokenizer
    new = [marker for marker in markers if marker and tokenizer.tokenize(marker) != [marker]]
    if not new:
        return
    # normalized=False: a lower-casing tokenizer would never find "[Q] " in its own output.
    tokens: Any = [AddedToken(marker, normalized=False, special=True) for marker in new]
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [*getattr(tokenizer, "additional_special_tokens", []), *tokens]}
    )
    table: Any = transformer.model.get_input_embeddings()
    before = table.weight.shape[0]
    if len(tokenizer) > before:
        mean = table.weight.detach().mean(dim=0)
        options = {} if isinstance(transformer, TextEncoder) else {"mean_resizing": False}
        table = transformer.model.resize_token_embeddings(len(tokenizer), **options)
        with torch.no_grad():
            table.weight[before:] = mean
