"""What is built around a bare encoder or a dense model to make it a late-interaction model.

Training wants the ColBERT recipe: markers that tell queries from documents, queries expanded with [MASK] tokens,
punctuation of documents left out of the score. Without training all of it is noise: around all-MiniLM-L6-v2 it took
nDCG@10 on SciFact from 0.72 to 0.65, and to 0.59 with attention to the expansion. So `UNTRAINED` has none of it.
"""

from __future__ import annotations

import string
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import AddedToken
from torch import nn

from latelier.errors import InvalidArgumentError
from latelier.models.projection import orthogonal_weight

__all__ = ["UNTRAINED", "Recipe", "add_markers", "build_modules", "token_heads"]


@dataclass(frozen=True)
class Recipe:
    """The ColBERT recipe; the defaults are those of the paper and of PyLate.

    Parameters
    ----------
    query_marker, document_marker
        Texts put before every query and document, each one token of its own; ``""`` for none.
    query_expansion
        Fill every query up to its length cap with [MASK] tokens, which are scored too.
    attend_to_expansion
        Let the encoder attend to those tokens.
    skiplist
        Document tokens that are not scored (the encoder still reads them).
    projection
        ``"learned"``: a linear head to train, orthogonal at first; ``"orthogonal"``: the same head, meant to stay;
        ``"pca"``: a head fitted on texts (`ColBERT.fit_projection`); None: no head, the encoder's own dimension.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> recipe = Recipe(query_expansion=False, skiplist=(".",))
    >>> model = ColBERT("all-MiniLM-L6-v2", device="cpu", recipe=recipe)
    >>> model.tokens("a pear, a fig."), model.tokens("a pear, a fig.", is_query=False)[-3:]
    (['[CLS]', '[Q] ', 'a', 'pear', ',', 'a', 'fig', '.', '[SEP]'], ['a', 'fig', '[SEP]'])
    """

    query_marker: str = "[Q] "
    document_marker: str = "[D] "
    query_expansion: bool = True
    attend_to_expansion: bool = False
    skiplist: tuple[str, ...] = tuple(string.punctuation)
    projection: Literal["learned", "orthogonal", "pca"] | None = "learned"


UNTRAINED = Recipe(query_marker="", document_marker="", query_expansion=False, skiplist=(), projection=None)


def build_modules(recipe: Recipe, transformer: Transformer, heads: list[Dense], embedding_size: int) -> list[nn.Module]:
    """Return the pipeline of a fresh late-interaction model, in sentence-transformers' own modules.

    Parameters
    ----------
    recipe
        What to build.
    transformer
        The encoder; markers are added to its vocabulary.
    heads
        Trained linear layers of a dense model, applied to every token here. With any of them there is no head to learn.
    embedding_size
        Output dims of a new head.

    Returns
    -------
    list of torch.nn.Module
        Encoder, heads, scoring mask, normalisation: a saved folder loads in plain sentence-transformers.

    Raises
    ------
    InvalidArgumentError
        If a projection that is not to be learned would have more dims than what it projects.
    """
    add_markers(transformer, [recipe.query_marker, recipe.document_marker])
    width = heads[-1].out_features if heads else transformer.get_embedding_dimension()
    modules: list[nn.Module] = [transformer, *heads]
    is_projected = recipe.projection == "learned" or (recipe.projection == "orthogonal" and width == embedding_size)
    if recipe.projection is not None and not (heads and is_projected):
        if recipe.projection != "learned" and embedding_size > width:
            raise InvalidArgumentError(
                f"received projection={recipe.projection!r} to {embedding_size} dimensions, but the model's vectors "
                f"have {width}; give embedding_size={width} or fewer, or projection=None to keep them as they are."
            )
        modules.append(
            Dense(
                in_features=width,
                out_features=embedding_size,
                bias=False,
                activation_function=nn.Identity(),
                init_weight=orthogonal_weight(embedding_size, width),
                module_input_name="token_embeddings",
            )
        )
    modules.append(MultiVectorMask(skiplist_words=list(recipe.skiplist)))
    modules.append(Normalize(module_input_name="token_embeddings"))
    return modules


def token_heads(modules: Iterable[nn.Module], width: int, name: object) -> list[Dense]:
    """Return the linear layers of a dense model that can be applied to each token, with their activations.

    sentence-transformers and PyLate do the same with any `Dense`, before the pooling or behind it. What else works on
    the pooled vector has no meaning for a token, and is left out with a warning.

    Parameters
    ----------
    modules
        The dense model's modules.
    width
        Dims of a token's vector.
    name
        The model, for warnings.
    """
    heads: list[Dense] = []
    for module in modules:
        if isinstance(module, (Transformer, MultiVectorMask, Normalize, nn.Dropout)):
            continue
        reads = module.in_features if isinstance(module, Dense) else None
        if isinstance(module, Dense) and reads == width:
            heads.append(module)
            width = module.out_features
            continue
        kind = type(module).__name__
        reason = f"reads {reads} numbers, and a token has {width}" if reads else "works on pooled vectors"
        warnings.warn(f"the {kind} of {name} is left out: it {reason}.", stacklevel=2)
    return heads


def add_markers(transformer: Transformer, markers: list[str]) -> None:
    """Make each marker one token of the vocabulary.

    As plain text, "[Q] " is three word pieces of a BERT vocabulary. New rows of the embedding table start as the mean
    of the others, which is nothing in particular yet near everything; the table is never made smaller.

    Parameters
    ----------
    transformer
        The encoder, changed in place.
    markers
        Marker texts; empty ones are passed over.
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
        table = transformer.model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            table.weight[before:] = mean
