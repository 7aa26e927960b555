"""`HaystackRetriever` and `HaystackRanker`: search and reranking as components of Haystack pipelines.

Needs the extra ``haystack``, which installs haystack-ai.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, Literal

from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.integrations.found_documents import find_documents, place_metadata
from latelier.integrations.reranking_model import RerankingModel
from latelier.integrations.search_options import add_filter, merge_search_options
from latelier.integrations.shared_folder import SharedFolder
from latelier.retrieve import Retriever
from latelier.retrieve.query_model import check_query_backend
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.retrieve.text_ranking import rank_texts
from latelier.utils.checks import check_count, describe

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.core.errors import SerializationError
    from haystack.document_stores.types import FilterPolicy, apply_filter_policy
except ImportError as error:
    raise MissingExtraError("Searching from Haystack", "haystack") from error

from latelier.integrations.haystack_filters import haystack_filter

__all__ = ["HaystackRanker", "HaystackRetriever"]


@component
class HaystackRetriever:
    """A `latelier.retrieve.Retriever`, or the folder that one has filled, as a retriever component of Haystack.

    Each document has the text, the stored metadata, the score, and the id as str. Its metadata also has
    ``latelier_id``, the exact id, and in an index of passages ``latelier_start`` and ``latelier_end``, the place of the
    best passage in the text.

    Parameters
    ----------
    retriever
        Searches; whoever opened it closes it. Or a folder, which `warm_up` or the first search opens for reading, and
        `close` closes; a component with a folder can be serialised and copied.
    model, device, backend
        For a folder, as for `Retriever.open`.
    top_k
        Maximum number of documents.
    filters
        Filters on the metadata, in the form of Haystack's document stores.
    filter_policy
        Whether the filters of a run replace these or are merged with them.
    search_options
        Further arguments of `Retriever.search`: ``mode``, ``filter`` in SQL, ``parameters``, ``effort``, ... Documents
        have to pass both filters.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type or value.
    MissingExtraError
        If haystack-ai is not installed, when this module is imported.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([{"id": "a", "text": "Bananas.", "year": 2024}])
    >>> fruit = HaystackRetriever(retriever, top_k=3)
    >>> recent = {"field": "meta.year", "operator": ">", "value": 2020}
    >>> [document] = fruit.run("fruit", filters=recent)["documents"]
    >>> document.id, document.content
    ('a', 'Bananas.')
    """

    def __init__(
        self,
        retriever: Retriever | str | PathLike[str],
        *,
        model: str | None = None,
        device: str | None = None,
        backend: Literal["auto", "onnx", "torch"] = "auto",
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(retriever, (Retriever, str, PathLike)):
            raise InvalidArgumentError(
                f"received {describe(retriever)}; expected a Retriever or the folder of an index."
            )
        if isinstance(retriever, Retriever) and (model, device, backend) != (None, None, "auto"):
            raise InvalidArgumentError("model, device and backend are for a folder, not for an open Retriever.")
        check_query_backend(backend, model)
        self.top_k = check_count("top_k", top_k)
        self.filters = filters
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.search_options = merge_search_options(search_options)
        self._options = {"model": model, "device": device, "backend": backend}
        self._folder = None if isinstance(retriever, Retriever) else fspath(retriever)
        self._searched = (
            retriever if isinstance(retriever, Retriever) else SharedFolder(fspath(retriever), self._options)
        )

    def warm_up(self) -> None:
        """Open the folder and its model, unless that is done.

        Raises
        ------
        LatelierError
            As `Retriever.open` does.
        """
        with self._opened():
            pass

    def close(self) -> None:
        """Close the folder when the searches that run have ended; the next `warm_up` or search opens it again.

        A retriever that was given stays open.
        """
        if isinstance(self._searched, SharedFolder):
            self._searched.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component, as Haystack saves pipelines.

        Raises
        ------
        haystack.core.errors.SerializationError
            If the component was given an open `Retriever`.
        """
        if self._folder is None:
            raise SerializationError(
                "HaystackRetriever was given an open Retriever, which cannot be serialised; give its folder."
            )
        return default_to_dict(
            self,
            retriever=self._folder,
            **self._options,
            top_k=self.top_k,
            filters=self.filters,
            filter_policy=self.filter_policy.value,
            search_options=self.search_options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HaystackRetriever:
        """Return the component that `to_dict` describes; nothing is opened before `warm_up`.

        Parameters
        ----------
        data
            What `to_dict` returned.
        """
        made: HaystackRetriever = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        search_options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Find the best documents for a query.

        Parameters
        ----------
        query
            One query.
        filters, top_k, search_options
            Instead of those of the component; filters by its `filter_policy`, and of `search_options` each by itself.

        Returns
        -------
        dict
            ``documents``, best first.

        Raises
        ------
        haystack.errors.FilterError
            If the filters are malformed.
        LatelierError
            As `Retriever.search` does.
        """
        wanted = apply_filter_policy(self.filter_policy, self.filters, filters)
        count = {"k": self.top_k if top_k is None else check_count("top_k", top_k)}
        options = merge_search_options(count, self.search_options, search_options)
        with self._opened() as retriever:
            passages = StoredDocuments(retriever.index).has_passages
            options = add_filter(options, haystack_filter(wanted, passages=passages) if wanted else None)
            results = find_documents(retriever, query, **options)
        documents = [
            Document(id=str(result.id), content=result.text, meta=place_metadata(result), score=result.score)
            for result in results
        ]
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        search_options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Do the same in a thread; the event loop goes on meanwhile.

        Parameters
        ----------
        query, filters, top_k, search_options
            As of `run`.
        """
        found: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, filters, top_k, search_options)
        return found

    def _opened(self) -> AbstractContextManager[Retriever]:
        return self._searched.opened() if isinstance(self._searched, SharedFolder) else nullcontext(self._searched)


@component
class HaystackRanker:
    """Orders documents of any retriever by MaxSim, as a ranker component of Haystack.

    The documents that come out are copies with the new score.

    Parameters
    ----------
    model
        A name or folder for `latelier.models.load`, or the folder of an exported encoder, which `warm_up` or the first
        run loads; None for all-MiniLM-L6-v2. Or a `latelier.models.ColBERT`, such as ``retriever.model``, with which
        the component cannot be serialised.
    device, model_options
        For a model given by name, as for `latelier.retrieve.Retriever`.
    top_k
        Maximum number of documents; None: all.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type or value, or a document has no text.

    Examples
    --------
    >>> from haystack import Document
    >>> texts = ["The moon is far.", "Bananas are healthy."]
    >>> documents = [Document(content=text) for text in texts]
    >>> ranker = HaystackRanker(device="cpu", top_k=1)
    >>> [best] = ranker.run("fruit", documents)["documents"]
    >>> best.content
    'Bananas are healthy.'
    """

    def __init__(
        self,
        model: Any = None,
        *,
        device: str | None = None,
        model_options: Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> None:
        self.top_k = check_count("top_k", top_k, optional=True)
        self._model, self._device = model, device
        self._model_options = None if model_options is None else dict(model_options)
        self._encoder = RerankingModel(model, device, self._model_options)

    def warm_up(self) -> None:
        """Load the model, unless that is done.

        Raises
        ------
        ModelLoadError
            If there is no such model.
        """
        _ = self._encoder.loaded

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component, as Haystack saves pipelines.

        Raises
        ------
        haystack.core.errors.SerializationError
            If the component was given a loaded model.
        """
        if not isinstance(self._model, (str, PathLike, type(None))):
            raise SerializationError(
                f"HaystackRanker was given a {type(self._model).__name__}, which cannot be serialised; give its name "
                "or its folder."
            )
        name = None if self._model is None else fspath(self._model)
        options = {"device": self._device, "model_options": self._model_options, "top_k": self.top_k}
        return default_to_dict(self, model=name, **options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HaystackRanker:
        """Return the component that `to_dict` describes; no model is loaded before `warm_up`.

        Parameters
        ----------
        data
            What `to_dict` returned.
        """
        made: HaystackRanker = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Order documents by their score for a query.

        Parameters
        ----------
        query
            One query.
        documents
            The documents.
        top_k
            Instead of that of the component.

        Returns
        -------
        dict
            ``documents``, best first; equal scores in the order of `documents`.
        """
        texts: list[Any] = [document.content for document in documents]
        ranked = rank_texts(self._encoder.loaded, query, texts, self.top_k if top_k is None else top_k)
        return {"documents": [replace(documents[int(hit.id)], score=hit.score) for hit in ranked]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do the same in a thread; the event loop goes on meanwhile.

        Parameters
        ----------
        query, documents, top_k
            As of `run`.
        """
        ranked: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, documents, top_k)
        return ranked
