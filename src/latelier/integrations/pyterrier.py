"""`PyTerrierIndexer`, `PyTerrierRetriever` and `PyTerrierReranker`: late interaction in pipelines of PyTerrier.

Needs the extra ``pyterrier``, which installs pyterrier without Java. Frames are PyTerrier's: queries have the columns
``qid`` and ``query``, results also ``docno``, ``score`` and ``rank``, which begins at 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.integrations.common import OpenedRetriever, RerankingModel, check_text_ids, result_text
from latelier.retrieve import Retriever
from latelier.retrieve.retriever import rank_texts
from latelier.utils.checks import check_count
from latelier.utils.misc import needs_extra

with needs_extra("Pipelines of PyTerrier", "pyterrier"):
    import pandas as pd
    import pyterrier as pt

_DOCNO = "docno"
_TEXT = "text"


class PyTerrierIndexer(pt.Indexer):
    """Adds the documents of PyTerrier's collections to a `latelier.retrieve.Retriever`.

    Parameters
    ----------
    retriever
        Stores the documents, in memory or in the folder of its index.
    text
        Keys of the searchable text. Several are joined by a line break, and a document needs one of them.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> documents = [{"docno": "d1", "text": "Bananas are healthy."}, {"docno": "d2", "text": "The moon."}]
    >>> search = PyTerrierIndexer(Retriever(device="cpu")).index(documents)
    >>> search.search("fruit").docno.tolist()
    ['d1', 'd2']
    """

    def __init__(self, retriever: Retriever, *, text: str | Sequence[str] = _TEXT) -> None:
        self.retriever = retriever
        self.text = (text,) if isinstance(text, str) else tuple(text)

    def index(self, iter: Iterable[Mapping[str, Any]], **kwargs: Any) -> PyTerrierRetriever:
        """Add documents and return a retriever of them.

        Parameters
        ----------
        iter
            Documents: ``docno`` is the id, the keys in `text` are the text, all others are metadata. A document without
            text cannot be found and is left out, and a warning says which.
        **kwargs
            Arguments of `Retriever.add`, such as ``passages``.

        Returns
        -------
        PyTerrierRetriever
            Finds them.

        Raises
        ------
        InvalidArgumentError
            If a document has no ``docno``, or none of the keys in `text`.
        DuplicateIdError
            If an id is stored already.
        """
        self.retriever.add(self._records(iter), **kwargs)
        return PyTerrierRetriever(self.retriever)

    def index_inputs(self) -> list[list[str]]:
        """Return the columns that `index` reads, for PyTerrier's diagrams."""
        return [[_DOCNO, *self.text]]

    def _records(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        empty: list[str] = []
        for document in documents:
            metadata = dict(document)
            if _DOCNO not in metadata:
                raise InvalidArgumentError(f"a document has the keys {', '.join(metadata)}, and no docno.")
            docno = str(metadata.pop(_DOCNO))
            texts = [metadata.pop(key) for key in self.text if key in metadata]
            if not texts:
                raise InvalidArgumentError(
                    f"the document {docno!r} has the keys {', '.join(metadata)}, and none of {', '.join(self.text)}; "
                    "name its text by text=."
                )
            joined = "\n".join(text for text in texts if text and text.strip())
            if joined:
                yield {"id": docno, "text": joined, "metadata": metadata}
            else:
                empty.append(docno)
        if empty:
            message = f"{len(empty)} of the documents cannot be found, as they have no text: {', '.join(empty[:5])}"
            warnings.warn(message, stacklevel=2)


class PyTerrierRetriever(OpenedRetriever, pt.Transformer):
    """A `latelier.retrieve.Retriever` as a transformer from queries to results.

    Parameters
    ----------
    retriever
        Searches; whoever opened it closes it. `open` opens a folder.
    k
        Maximum number of documents of a query.
    search_options
        Further arguments of `Retriever.search`: ``mode``, ``filter``, ``effort``, ...; default: none.
    text
        Whether results have the column ``text``, as a reranker after this one needs.

    Examples
    --------
    >>> import pyterrier as pt
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("d1", "Bananas are healthy."), ("d2", "The moon.")])
    >>> topics = pt.new.queries(["unhealthy fruit", "night sky"])
    >>> best = (PyTerrierRetriever(retriever) % 1)(topics)
    >>> best.docno.tolist(), best["rank"].tolist()
    (['d1', 'd2'], [0, 0])
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        k: int = 1000,
        search_options: Mapping[str, Any] | None = None,
        text: bool = False,
    ) -> None:
        check_count("k", k)
        self.retriever = retriever
        self.k = k
        self.search_options = dict(search_options or {})
        self.text = text

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search for queries.

        Parameters
        ----------
        inp
            Queries: ``qid`` and ``query``.

        Returns
        -------
        pandas.DataFrame
            The columns of the queries, and ``docno``, ``score``, ``rank`` and if asked for ``text``; the queries in
            their order, the results of each best first.
        """
        pt.validate.query_frame(inp, extra_columns=["query"])
        columns = [*inp.columns, _DOCNO, "score", "rank"]
        if self.text:
            columns.append(_TEXT)
        found = []
        if len(inp):
            found = self.retriever.search(inp["query"].tolist(), k=self.k, **self.search_options)
        rows = []
        for asked, results in zip(inp.to_dict("records"), found, strict=True):
            check_text_ids(results)
            for rank, result in enumerate(results):
                row = {**asked, _DOCNO: str(result.id), "score": result.score, "rank": rank}
                if self.text:
                    row[_TEXT] = result_text(result)
                rows.append(row)
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return f"PyTerrierRetriever({self.retriever!r}, k={self.k})"


class PyTerrierReranker(pt.Transformer):
    """Orders the results of any transformer by MaxSim, from their texts.

    Parameters
    ----------
    model
        A `latelier.models.ColBERT`, such as ``retriever.model``; a name or folder for `latelier.models.load`; the
        folder of an exported encoder; or None for all-MiniLM-L6-v2.
    device, model_options
        For a model given by name, as for `latelier.retrieve.Retriever`.
    text
        The column with the texts.

    Examples
    --------
    >>> import pandas as pd
    >>> results = pd.DataFrame(
    ...     [["q", "fruit", "d1", "The moon is far."], ["q", "fruit", "d2", "Bananas."]],
    ...     columns=["qid", "query", "docno", "text"],
    ... )
    >>> PyTerrierReranker(device="cpu")(results)[["docno", "rank"]]
      docno  rank
    0    d2     0
    1    d1     1
    """

    def __init__(
        self,
        model: Any = None,
        *,
        device: str | None = None,
        model_options: dict[str, Any] | None = None,
        text: str = _TEXT,
    ) -> None:
        self._encoder = RerankingModel(model, device, model_options)
        self.text = text

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Order the documents of each query by their score.

        Parameters
        ----------
        inp
            Results: ``qid``, ``query``, ``docno`` and the column of texts.

        Returns
        -------
        pandas.DataFrame
            The same rows and columns, with new ``score`` and ``rank``, best first for each query.
        """
        pt.validate.columns(inp, includes=["qid", "query", _DOCNO, self.text])
        kept = inp.drop(columns=["score", "rank"], errors="ignore")
        ordered = []
        for _, group in kept.groupby("qid", sort=False):
            ranked = rank_texts(self._encoder.loaded, group["query"].iloc[0], group[self.text].tolist(), None)
            best_first = group.iloc[[int(hit.id) for hit in ranked]]
            ordered.append(best_first.assign(score=[hit.score for hit in ranked], rank=range(len(ranked))))
        if not ordered:
            return kept.assign(score=pd.Series(dtype=float), rank=pd.Series(dtype=int))
        return pd.concat(ordered, ignore_index=True)
