"""`LangChainRetriever` and `LangChainReranker`: search and reranking as parts of LangChain chains.

Needs the extra ``langchain``, which installs langchain-core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latelier.integrations.common import (
    SCORE_KEY,
    OpenedRetriever,
    RerankingModel,
    find_documents,
    merge_search_options,
    place_metadata,
    result_text,
)
from latelier.retrieve import Retriever
from latelier.retrieve.retriever import rank_texts
from latelier.utils.misc import needs_extra

with needs_extra("Searching from LangChain", "langchain"):
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
        Callbacks,
    )
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
    from langchain_core.runnables import run_in_executor
    from pydantic import ConfigDict, Field, PrivateAttr


class LangChainRetriever(OpenedRetriever, BaseRetriever):
    """A `latelier.retrieve.Retriever` as a retriever of LangChain.

    Each document has the text, the stored metadata, and the id as str. Its metadata also has ``latelier_id``, the exact
    id; ``latelier_score``; and in an index of passages ``latelier_start`` and ``latelier_end``, the place of the best
    passage in the text.

    Parameters
    ----------
    retriever
        Searches; whoever opened it closes it. `open` opens a folder.
    k
        Maximum number of documents.
    search_kwargs
        Further arguments of `Retriever.search`: ``mode``, ``filter``, ``parameters``, ``effort``, ...
    tags, metadata, name
        For callbacks and traces, as in every retriever of LangChain.

    Notes
    -----
    ``invoke`` takes ``k`` and arguments of `Retriever.search` too, which replace those given here; a ``filter`` brings
    its own ``parameters``. ``ainvoke`` searches in a thread, and several threads may search at the same time.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon.")])
    >>> fruit = LangChainRetriever(retriever=retriever, k=1)
    >>> [document] = fruit.invoke("unhealthy fruit")
    >>> document.id, document.page_content
    ('a', 'Bananas are healthy.')
    >>> len(fruit.invoke("unhealthy fruit", k=2))
    2
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    retriever: Retriever = Field(repr=False)
    k: int = Field(default=10, ge=1)
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **search_kwargs: Any
    ) -> list[Document]:
        return self._search(query, search_kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **search_kwargs: Any
    ) -> list[Document]:
        return await run_in_executor(None, self._search, query, search_kwargs)

    def _search(self, query: str, search_kwargs: dict[str, Any]) -> list[Document]:
        options = merge_search_options({"k": self.k}, self.search_kwargs, search_kwargs)
        results = find_documents(self.retriever, query, **options)
        return [
            Document(result_text(each), id=str(each.id), metadata=place_metadata(each) | {SCORE_KEY: each.score})
            for each in results
        ]

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """Return what traces say about this retriever."""
        model = self.retriever.model_name
        names = LangSmithRetrieverParams(ls_retriever_name="latelier", ls_vector_store_provider="latelier")
        if model is None:
            return names
        return {**names, "ls_embedding_model": model}


class LangChainReranker(BaseDocumentCompressor):
    """Orders documents of any retriever by MaxSim, as a document compressor of LangChain.

    The documents that come back are copies with ``latelier_score`` in their metadata.

    Parameters
    ----------
    model
        A `latelier.models.ColBERT`, such as ``retriever.model``; a name or folder for `latelier.models.load`; the
        folder of an exported encoder; or None for all-MiniLM-L6-v2.
    device, model_options
        For a model given by name, as for `latelier.retrieve.Retriever`.
    top_n
        Maximum number of documents; None: all.

    Raises
    ------
    ModelLoadError
        If there is no such model.
    InvalidArgumentError
        If a document has an empty text.

    Examples
    --------
    >>> from langchain_core.documents import Document
    >>> reranker = LangChainReranker(device="cpu", top_n=1)
    >>> documents = [Document("The moon is far."), Document("Bananas.")]
    >>> [best] = reranker.compress_documents(documents, "fruit")
    >>> best.page_content
    'Bananas.'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: Any = Field(default=None, repr=False)
    device: str | None = None
    model_options: dict[str, Any] | None = None
    top_n: int | None = Field(default=None, ge=1)
    _encoder: RerankingModel = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Load the model."""
        self._encoder = RerankingModel(self.model, self.device, self.model_options)
        _ = self._encoder.loaded

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the best documents for a query.

        Parameters
        ----------
        documents
            The documents.
        query
            One query.
        callbacks
            Not called, whether given or None: a reranker makes no calls to report.

        Returns
        -------
        list of Document
            Copies, best first; equal scores in the order of `documents`.
        """
        ranked = rank_texts(self._encoder.loaded, query, [document.page_content for document in documents], self.top_n)
        return [
            document.model_copy(update={"metadata": {**document.metadata, SCORE_KEY: hit.score}})
            for hit, document in ((hit, documents[int(hit.id)]) for hit in ranked)
        ]
