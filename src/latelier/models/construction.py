"""How a `ColBERT` is made of what a user names: heads, projection, markers and length caps.

sentence-transformers reads the files. A checkpoint that lists a complete pipeline (ours, its own, PyLate 3's) is used
unchanged and not passed here. For all others sentence-transformers builds a pipeline, of which we keep the trained
parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tokenizers import AddedToken
from torch import nn

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.arguments import DEFAULT_DOCUMENT_LENGTH, DEFAULT_QUERY_LENGTH, Recipe, checked_stream
from latelier.models.exported_encoder import tokenizer_lock
from latelier.models.foreign_layouts import token_layer
from latelier.models.text_encoder import TextEncoder
from latelier.utils import encoder_limit, resolve_length
from latelier.utils.batching import move_features
from latelier.utils.checks import check_count, short
from latelier.utils.misc import progress_bar, warn_caller


def _token_heads(name: str, modules: Sequence[nn.Module], has_saved_head: bool) -> list[Dense]:
    """Return the linear layers of a dense model that can be applied to each token, with their activations."""
    heads: list[Dense] = []
    width = next(module for module in modules if isinstance(module, Transformer)).get_embedding_dimension()
    for module in modules:
        if isinstance(module, (Transformer, MultiVectorMask, Normalize, nn.Dropout)):
            continue
        if isinstance(module, Dense) and not has_saved_head:
            continue  # added by sentence-transformers, with random weights
        if isinstance(module, Dense):
            reads = module.in_features
        else:
            reads = None
        if isinstance(module, Dense) and reads == width:
            heads.append(module)
            width = module.out_features
            continue
        if reads:
            reason = f"reads {reads} numbers, and a token has {width}"
        else:
            reason = "works on pooled vectors"
        warn_caller(f"the {type(module).__name__} of {name} is left out: it {reason}.")
    return heads


def orthogonal_weight(out_features: int, in_features: int) -> torch.Tensor:
    """Return a random matrix with orthonormal rows (columns where it is taller than wide), ``(out, in)`` float32.

    Random orthonormal directions preserve inner products on average (Johnson-Lindenstrauss). The seed is fixed: the
    same shape gives the same matrix on every machine.
    """
    weight = torch.empty(out_features, in_features)
    torch.nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(0))
    return weight


def fit_pca(model: MultiVectorEncoder, texts: Iterable[str], batch_size: int, show_progress_bar: bool) -> None:
    """Set the weight of the model's last linear layer to the principal directions of that layer's inputs.

    Without centring: the leading eigenvectors of the second moment preserve inner products best (Eckart-Young), and
    MaxSim consists of inner products. Subtracting a mean would need a bias in the projection.
    """
    position, projection = [(i, module) for i, module in enumerate(model) if isinstance(module, Dense)][-1]
    moment = torch.zeros(projection.in_features, projection.in_features, dtype=torch.float64)
    count = 0
    model.eval()
    check_count("batch_size", batch_size)
    remaining = checked_stream([texts] if isinstance(texts, str) else texts)
    with torch.inference_mode(), progress_bar(shown=show_progress_bar, desc="Fitting projection", unit=" texts") as bar:
        while batch := list(islice(remaining, batch_size)):
            features = move_features(model.preprocess(batch, task="document"), model.device)
            for module in list(model)[:position]:
                features = module(features)
            vectors = features["token_embeddings"][features["attention_mask"].bool()]
            unit = nn.functional.normalize(vectors.double().cpu(), dim=1)
            moment += unit.T @ unit
            count += len(unit)
            bar.update(len(batch))
    size = projection.out_features
    if count < size:
        raise InvalidArgumentError(f"the texts have {count} tokens, too few to fit {size} dimensions; give more.")
    with torch.no_grad():
        projection.linear.weight.copy_(principal_directions(moment, size))


def principal_directions(moment: torch.Tensor, size: int) -> torch.Tensor:
    """Return the leading eigenvectors ``(size, dim)`` of a second moment ``(dim, dim)``."""
    directions = torch.linalg.eigh(moment).eigenvectors.flip(1).T[:size]
    # An eigenvector's sign is arbitrary: make its largest entry positive, so that every machine agrees.
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return directions * largest.sign()


DEFAULT_EMBEDDING_SIZE = 128

logger = logging.getLogger(__name__)


@dataclass
class Construction:
    """Builds a pipeline around an encoder that has none, and remembers what it has built.

    A plain object: a model stores it before ``nn.Module.__init__``, when a module would break `nn.Sequential`.
    `is_fresh`: whether the pipeline was built here; `needs_fit`: whether its PCA projection is still to be fitted.
    """

    recipe: Recipe
    embedding_size: int | None = None
    given_prompts: frozenset[str] = frozenset()
    is_fresh: bool = False
    needs_fit: bool = False
    has_saved_head: bool = False
    has_new_tokens: bool = False
    inserts_markers: bool = False

    def complete(
        self, name: str, loaded: tuple[Any, Any], has_modules_json: bool, markers: Any, prompts: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Build the recipe around what sentence-transformers has loaded, unless that is a late-interaction model.

        `loaded`: modules, and their arguments, which are returned unchanged; `has_modules_json`: whether the checkpoint
        lists its modules; `prompts`: the model's prompts, changed in place; returns: modules, and their arguments.
        """
        modules, module_kwargs = loaded
        # Complete already: built here, or of PyLate before version 3 or Stanford, whose markers are inserted as tokens;
        # or one of transformers' own, such as ColPali.
        if self.is_fresh or markers or (not has_modules_json and modules[0].transformer_task == "retrieval"):
            return loaded
        if has_modules_json:
            heads = _token_heads(name, modules, self.has_saved_head)
        else:
            heads = []
        transformer = next(module for module in modules if isinstance(module, Transformer))
        return self.build(transformer, heads, prompts), module_kwargs

    def with_modules(self, options: Mapping[str, Any], name: str | None) -> dict[str, Any]:
        """Return the constructor's options, with the pipeline of the recipe around a single encoder in ``modules``.

        A longer list is a pipeline of the user's own, and taken as it is.
        """
        modules = options.get("modules")
        if (modules is None) == (name is None):
            raise InvalidArgumentError(
                f"received the model {short(name)} and {'no' if modules is None else 'its'} modules; give one of both."
            )
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

        `transformer`: the encoder; markers are added to its vocabulary. `heads`: trained linear layers of a dense
        model, applied to every token here. They take the place of a learned head. `prompts`: the model's prompts;
        markers are put before them. Returns: encoder, heads, scoring mask, normalisation: a saved folder loads in plain
        sentence-transformers.
        """
        self.is_fresh = True
        self.has_saved_head = bool(heads)
        self.needs_fit = self.recipe.projection == "pca"
        self._put_markers_before(prompts)
        encoder: Any = transformer.model
        vocabulary = encoder.get_input_embeddings().num_embeddings
        _add_markers(transformer, [self.recipe.query_marker, self.recipe.document_marker])
        self.has_new_tokens = encoder.get_input_embeddings().num_embeddings > vocabulary
        if heads:
            width = heads[-1].out_features
        else:
            width = int(transformer.get_embedding_dimension())
        modules: list[nn.Module] = [transformer, *heads]
        kind = self.recipe.projection
        size = self.embedding_size or DEFAULT_EMBEDDING_SIZE
        # Trained heads replace a learned one, and a rotation where they have the wanted size already.
        if kind is not None and not (heads and (kind == "learned" or (kind == "orthogonal" and width == size))):
            modules.append(_projection(width, size, kind))
        modules.append(MultiVectorMask(skiplist_words=list(self.recipe.skiplist)))
        modules.append(Normalize(module_input_name="token_embeddings"))
        return modules

    def check_fitted(self) -> None:
        """Raise an error if the PCA projection is not fitted yet."""
        if self.needs_fit:
            raise LatelierError("the PCA projection is not fitted yet; call fit_projection(texts) with some documents.")

    def check_vocabulary_is_saved(self, class_name: str) -> None:
        """Raise an error if markers were added to the vocabulary: a saved adapter names an encoder without them."""
        if self.has_new_tokens:
            raise LatelierError(
                "the markers are new tokens, which the encoder that an adapter is saved for does not have: first "
                f"model.save('base'); model = {class_name}('base')."
            )

    def report(self, name: str | None, embedding_size: int) -> None:
        """Warn about a new model that needs training, and about an `embedding_size` other than the model's."""
        if self.is_fresh and self.recipe.projection == "learned" and name is not None:
            added = "markers, query expansion and a head"
            if self.has_saved_head:
                added = "markers and query expansion (its linear layer is kept as the head)"
            message = "%s got %s, which need training. To search without training, use ColBERT.from_dense(%r)."
            logger.warning(message, name, added, name)
        if self.embedding_size not in (None, embedding_size):
            warn_caller(f"embedding_size={self.embedding_size} is ignored: {name} has {embedding_size} dimensions.")

    def _put_markers_before(self, prompts: dict[str, str | None]) -> None:
        # A dense model keeps its own prompts, which it was trained with.
        document_prompt = next((p for p in map(prompts.get, ("document", "passage", "corpus")) if p), "")
        composed = {
            "query": self.recipe.query_marker + (prompts.get("query") or ""),
            "document": self.recipe.document_marker + document_prompt,
        }
        prompts.update({task: prompt for task, prompt in composed.items() if task not in self.given_prompts})


def _projection(width: int, embedding_size: int, kind: str | None) -> Dense:
    if kind != "learned" and embedding_size > width:
        raise InvalidArgumentError(f"received {kind!r} to {embedding_size} dimensions, but the vectors have {width}.")
    return token_layer(orthogonal_weight(embedding_size, width))


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
        if isinstance(transformer, TextEncoder):
            options = {}
        else:
            options = {"mean_resizing": False}
        table = transformer.model.resize_token_embeddings(len(tokenizer), **options)
        with torch.no_grad():
            table.weight[before:] = mean


NO_LIMIT = 1 << 30  # tokenizers that state no limit have a larger number


def encoder_module(model: MultiVectorEncoder) -> Transformer | TextEncoder:
    """Return the encoder module; a model made of other modules (``modules=[...]``) has no length caps."""
    module = model[0]
    if not isinstance(module, (Transformer, TextEncoder)):
        raise LatelierError(f"a {type(module).__name__} is this model's first module, no Transformer or TextEncoder.")
    return module


def max_length(model: MultiVectorEncoder, task: str) -> int:
    """Return the maximum number of tokens of a ``"query"`` or a ``"document"``, special tokens included."""
    encoder = encoder_module(model)
    if task == "query":
        expansion = encoder.query_expansion
        if expansion and expansion["strategy"] == "fixed":
            return int(expansion["length"])
        cap = encoder.query_length
    else:
        cap = encoder.document_length
    return cap or min(length_limit(encoder) or NO_LIMIT, int(model.max_seq_length or 0))


# Attention takes memory with the square of this; questions are shorter.
_LONGEST_QUERY = 8192


def longest_query(model: MultiVectorEncoder) -> int:
    """Return the most tokens of a query that `with_longer_queries` makes a model read: its positions bound them."""
    return min(length_limit(encoder_module(model)) or _LONGEST_QUERY, _LONGEST_QUERY)


def check_lengths(
    model: MultiVectorEncoder, inputs: Sequence[Any], task: str, prompt: str | None = None, *, truncation: bool
) -> None:
    """Raise an error for the first text, or pair of texts, that would be truncated; other inputs are not looked at.

    `prompt` is what is put before each; None for the model's own prompt. With ``truncation=True``, any length is fine.
    """
    if truncation:
        return
    cap = max_length(model, task)
    if prompt is None:
        prompt = model.prompts.get(task) or ""
    for i, given in enumerate(inputs):
        if not isinstance(given, (str, tuple)):
            continue
        if isinstance(given, str):
            first, *others = [given]
        else:
            first, *others = given
        with tokenizer_lock(model.tokenizer):
            length = len(model.tokenizer(f"{prompt}{first}", *others, truncation=False, verbose=False)["input_ids"])
        if length > cap:
            raise InvalidArgumentError(
                f"texts[{i}] has {length} tokens, but a {task} is cut at {cap}; see max_length_{task}, and truncation."
            )


def set_max_lengths(model: MultiVectorEncoder, query: int | None, document: int | None, recipe: Recipe | None) -> None:
    """Set the length caps: those given, else those of the checkpoint, else the defaults of a recipe.

    `model`: the model; one that does not start with an encoder (``modules=[...]``) is left unchanged. `query`,
    `document`: the caps asked for; None for those that the model has. `recipe`: what the model was built by; None for a
    checkpoint, which has lengths of its own.
    """
    encoder = model[0] if len(model) else None
    if not isinstance(encoder, (Transformer, TextEncoder)):
        return
    limit = length_limit(encoder)
    if recipe is None:
        default = encoder.document_length or own_length(encoder)
    else:
        default = DEFAULT_DOCUMENT_LENGTH
    encoder.document_length = resolve_length("max_length_document", document, default, limit)
    _set_query_length(encoder, query, limit, recipe)
    if isinstance(encoder, Transformer) and set(encoder.modalities) == {"text"}:
        longest = max(max_length(model, "query"), max_length(model, "document"))
        encoder.max_seq_length = max(encoder.max_seq_length or 0, longest)  # of the tokenizer, by which nothing is cut


def lower_max_lengths(model: MultiVectorEncoder, most: int) -> None:
    """Lower the length caps that are above a number of tokens."""
    query = min(most, max_length(model, "query"))
    document = min(most, max_length(model, "document"))
    set_max_lengths(model, query, document, None)


def _set_query_length(
    encoder: Transformer | TextEncoder, query: int | None, limit: int | None, recipe: Recipe | None
) -> None:
    """Set the cap of queries, or the length that all are expanded to; arguments are those of `set_max_lengths`."""
    expansion = encoder.query_expansion
    if recipe is None:
        default = encoder.query_length or own_length(encoder)
        if expansion is not None and expansion["strategy"] == "fixed":
            default = expansion["length"]
    elif recipe.projection == "learned" and recipe.query_expansion != "min":
        default = DEFAULT_QUERY_LENGTH
    else:
        default = limit
    if recipe is not None and recipe.query_expansion:
        strategy = "min" if recipe.query_expansion == "min" else "fixed"
        attend = recipe.attend_to_expansion
        expansion = {"strategy": strategy, "attend": attend, "length": DEFAULT_QUERY_LENGTH, "token": None}
    length = resolve_length("max_length_query", query, default, limit)
    if expansion is None:
        encoder.query_length = length
        return
    encoder.query_length = None  # expanded queries have the expansion's length, which a smaller cap contradicts
    if expansion["strategy"] == "fixed":
        encoder.query_expansion = {**expansion, "length": length}
    else:
        encoder.query_expansion = {**expansion, "length": min(expansion["length"], length or expansion["length"])}
        encoder.query_length = length


def own_length(encoder: Transformer | TextEncoder) -> int | None:
    """Return where an encoder cuts a text if no length is set: at its tokenizer's limit, or at its positions."""
    if isinstance(encoder, TextEncoder) or set(encoder.modalities) != {"text"}:
        return None
    lengths = [length_limit(encoder), encoder.max_seq_length]
    return min((length for length in lengths if length is not None and length < NO_LIMIT), default=None)


def length_limit(encoder: Transformer | TextEncoder) -> int | None:
    """Return the longest input that an encoder reads, or None where it has no limit."""
    if isinstance(encoder, TextEncoder):
        return encoder.max_seq_length
    return encoder_limit(encoder.config)
