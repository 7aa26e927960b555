"""`LlamaIndexRetriever` and `LlamaIndexReranker`: search and reranking as parts of LlamaIndex.

Needs the extra ``llamaindex``, which installs llama-index-core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal

from latelier.errors import InvalidArgumentError
from latelier.integrations.common import (
    END_KEY,
    ID_KEY,
    START_KEY,
    OpenedRetriever,
    RerankingModel,
    SqlCondition,
    add_filter,
    combine,
    equals,
    find_documents,
    holds_element,
    in_order,
    is_empty,
    merge_search_options,
    metadata_field,
    negate,
    one_of,
    place_metadata,
    result_text,
)
from latelier.retrieve import Result, Retriever
from latelier.retrieve.retriever import rank_texts
from latelier.utils.checks import check_count, describe
from latelier.utils.misc import needs_extra

with needs_extra("Searching from LlamaIndex", "llamaindex"):
    from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_serializer
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters


class LlamaIndexRetriever(OpenedRetriever, BaseRetriever):
    """A `latelier.retrieve.Retriever` as a retriever of LlamaIndex.

    Each node has the text, the stored metadata, and the id as str. Its metadata also has ``latelier_id``, the exact id;
    of a passage, the node has its place in characters too. The index compares texts alone, so no metadata is part of a
    node's text for embedding; for a language model, the stored metadata is.

    Parameters
    ----------
    retriever
        Searches; whoever opened it closes it. `open` opens a folder.
    similarity_top_k
        Maximum number of nodes.
    filters
        Filters on the metadata; default: none.
    search_options
        Further arguments of `Retriever.search`: ``mode``, ``filter`` in SQL, ``parameters``, ``effort``, ...; default:
        none. Documents have to pass both filters.
    callback_manager, verbose
        As in every retriever of LlamaIndex.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type or value.

    Notes
    -----
    The attributes `similarity_top_k`, `filters` and `search_options` may be set between searches. ``aretrieve``
    searches in a thread, and several threads may search at the same time. The texts of a query that was transformed, as
    by HyDE, are joined.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon.")])
    >>> fruit = LlamaIndexRetriever(retriever, similarity_top_k=1)
    >>> [found] = fruit.retrieve("unhealthy fruit")
    >>> found.node.node_id, found.text
    ('a', 'Bananas are healthy.')
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        search_options: Mapping[str, Any] | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(callback_manager=callback_manager, verbose=verbose)
        self.retriever = retriever
        self.similarity_top_k = check_count("similarity_top_k", similarity_top_k)
        self.filters = filters
        self.search_options = merge_search_options(search_options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.filters is None:
            condition = None
        else:
            condition = llamaindex_filter(self.filters)
        options = merge_search_options({"k": self.similarity_top_k}, self.search_options)
        query = " ".join(query_bundle.embedding_strs)
        results = find_documents(self.retriever, query, **add_filter(options, condition))
        return [NodeWithScore(node=_node(result), score=result.score) for result in results]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


class LlamaIndexReranker(BaseNodePostprocessor):
    """Orders nodes of any retriever by MaxSim, as a node postprocessor of LlamaIndex.

    Parameters
    ----------
    model
        A `latelier.models.ColBERT`, such as ``retriever.model``; a name or folder for `latelier.models.load`; the
        folder of an exported encoder; or None for all-MiniLM-L6-v2.
    device, model_options
        For a model given by name, as for `latelier.retrieve.Retriever`.
    top_n
        Maximum number of nodes; None: all.
    metadata_mode
        Which metadata is part of a node's text: those for embedding, as in other rerankers of LlamaIndex, or none.

    Raises
    ------
    ModelLoadError
        If there is no such model.
    InvalidArgumentError
        If there is no query, or a node has an empty text.

    Examples
    --------
    >>> from llama_index.core.schema import NodeWithScore, TextNode
    >>> texts = ["The moon is far.", "Bananas are healthy."]
    >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    >>> reranker = LlamaIndexReranker(device="cpu", top_n=1)
    >>> [best] = reranker.postprocess_nodes(nodes, query_str="fruit")
    >>> best.text
    'Bananas are healthy.'
    """

    model_config = ConfigDict(extra="forbid")

    model: Any = Field(default=None, repr=False)
    device: str | None = None
    model_options: dict[str, Any] | None = None
    top_n: int | None = Field(default=None, ge=1)
    metadata_mode: MetadataMode = MetadataMode.EMBED
    _encoder: RerankingModel = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Load the model."""
        super().model_post_init(context)
        self._encoder = RerankingModel(self.model, self.device, self.model_options)
        _ = self._encoder.loaded

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised components."""
        return "LlamaIndexReranker"

    @field_serializer("model")
    def _name(self, model: Any) -> str | None:
        if not isinstance(model, (str, PathLike, type(None))):
            raise InvalidArgumentError(
                f"a reranker is serialised with the name of its model, and this one has a {type(model).__name__}; give "
                "the name or folder of the model."
            )
        if model is None:
            return None
        return str(model)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InvalidArgumentError("received no query; give query_str or query_bundle.")
        texts = [node.node.get_content(metadata_mode=self.metadata_mode) for node in nodes]
        ranked = rank_texts(self._encoder.loaded, query_bundle.query_str, texts, self.top_n)
        return [NodeWithScore(node=nodes[int(hit.id)].node, score=hit.score) for hit in ranked]


def _node(result: Result) -> TextNode:
    metadata = place_metadata(result)
    return TextNode(
        id_=str(result.id),
        text=result_text(result),
        metadata=metadata,
        start_char_idx=result.start,
        end_char_idx=result.end,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=[key for key in (ID_KEY, START_KEY, END_KEY) if key in metadata],
    )


_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
_ORDERS: dict[FilterOperator, Literal["<", "<=", ">", ">="]] = {
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
}


def llamaindex_filter(filters: MetadataFilters) -> SqlCondition | None:
    """Translate filters, which may be nested; None if there is none.

    Of a list, ``any``, ``all`` and ``contains`` compare the elements, and of a text its parts.
    ``text_match_insensitive`` ignores the case of ASCII letters.
    """
    conditions = [
        llamaindex_filter(each) if isinstance(each, MetadataFilters) else _condition(each) for each in filters.filters
    ]
    given = [condition for condition in conditions if condition is not None]
    if not given:
        return None
    if filters.condition is FilterCondition.NOT:  # none of them holds
        return negate(combine("OR", given))
    return combine("OR" if filters.condition is FilterCondition.OR else "AND", given)


def _condition(filter: MetadataFilter) -> SqlCondition:
    field = metadata_field(filter.key)
    operator = FilterOperator(filter.operator)
    value: Any = filter.value
    expected = None
    if operator in _LISTS and not (isinstance(value, list) and value):
        expected = "a list that is not empty"
    elif operator in _TEXTS and not isinstance(value, str):
        expected = "a text"
    elif operator in _ORDERS and value is None:
        expected = "a number or a text"
    if expected:
        raise InvalidArgumentError(
            f"received {describe(value)} as the value of the filter {filter.key!r} {operator.value}; expected "
            f"{expected}."
        )
    if operator in _ORDERS:
        return in_order(field, _ORDERS[operator], value)
    return _CONDITIONS[operator](field, value)


def _matches(field: SqlCondition, form: str, part: str) -> SqlCondition:
    sql = f"(typeof({field.sql}) = 'text' AND instr({form.format(field.sql)}, {form.format('?')}) > 0)"
    return SqlCondition(sql, (*field.parameters * 2, part))


_CONDITIONS: dict[FilterOperator, Callable[[SqlCondition, Any], SqlCondition]] = {
    FilterOperator.EQ: equals,
    FilterOperator.NE: lambda field, value: negate(equals(field, value)),
    FilterOperator.IN: one_of,
    FilterOperator.NIN: lambda field, values: negate(one_of(field, values)),
    FilterOperator.CONTAINS: holds_element,
    FilterOperator.ANY: lambda field, values: combine("OR", [holds_element(field, value) for value in values]),
    FilterOperator.ALL: lambda field, values: combine("AND", [holds_element(field, value) for value in values]),
    FilterOperator.IS_EMPTY: lambda field, _: is_empty(field),
    FilterOperator.TEXT_MATCH: lambda field, part: _matches(field, "{}", part),
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda field, part: _matches(field, "lower({})", part),
}
