"""MultiStepRetriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.experimental.query_dynamics import QueryDynamics, QueryState
from latelier.indexes import Hit, Id, Index
from latelier.indexes.options import SearchOptions
from latelier.retrieve import Retriever
from latelier.retrieve.model import checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.utils import check_choice, check_count
from latelier.utils.checks import describe, short

__all__ = ["DocumentSearches", "Merge", "MultiStepResult", "MultiStepRetriever", "Step", "merge_hits"]


class DocumentSearches:
    """The hits of all searches so far, for each of some queries.

    `index`: the index; of documents stored as passages, only the best passage counts. `hits`: for each query the hits
    of each search, best first, with ids of documents. `parts`: for each query the documents that were found; and the id
    of what was found last of each, in the index.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier.indexes import Flat
    >>> index = Flat()
    >>> ones = np.ones((1, 2), "float32")
    >>> index.add(["a", "b"], [np.eye(2, dtype="float32"), ones])
    >>> searches = DocumentSearches(index, queries=1)
    >>> searches.search([0], TokenEmbeddings(ones, np.array([0, 1])), k=1)
    >>> searches.hits, searches.parts
    ([[[Hit(id='b', score=2.0)]]], [{'b': 'b'}])
    """

    def __init__(self, index: Index, queries: int) -> None:
        self.hits: list[list[list[Hit]]] = [[] for _ in range(queries)]
        self.parts: list[dict[Id, Id]] = [{} for _ in range(queries)]
        self._stored = StoredDocuments(index)

    def search(self, rows: Sequence[int], matrices: TokenEmbeddings, k: int) -> None:
        """Search for some of the queries.

        Parameters
        ----------
        rows
            Which queries.
        matrices
            Their vectors.
        k
            Maximum number of documents per query.
        """
        found = self._stored.find(matrices, [], k, SearchOptions())
        for row, hits in zip(rows, found, strict=True):
            self.parts[row] |= {self._stored.document(hit.id): hit.id for hit in hits}
            self.hits[row].append([Hit(self._stored.document(hit.id), hit.score) for hit in hits])


Merge: TypeAlias = Literal["last", "best_score", "reciprocal_rank"]

# Cormack et al. 2009 chose it on a pilot collection; it keeps one first rank from outweighing several good ranks.
_RANK_OFFSET = 60


def merge_hits(searches: Sequence[Sequence[Hit]], k: int, merge: Merge = "last") -> list[Hit]:
    """Return one ranking from the hits of several searches for one query.

    Parameters
    ----------
    searches
        The hits of each search, best first, in the order in which the searches were made.
    k
        Maximum number of hits to return.
    merge
        ``"last"``: the hits of the last search, then those that only earlier searches found, latest search first.
        ``"best_score"``: by the highest score of any search. ``"reciprocal_rank"``: by the sum of ``1 / (60 + rank)``
        over the searches (Cormack, Clarke and Büttcher 2009, reciprocal rank fusion), which becomes the score.

    Returns
    -------
    list of Hit
        Best first; equal scores in the order in which the searches returned them.

    Raises
    ------
    InvalidArgumentError
        If `merge` is unknown or `k` is not a positive integer.

    Examples
    --------
    >>> first = [Hit("a", 3.0), Hit("b", 2.0)]
    >>> second = [Hit("b", 2.5), Hit("c", 2.25)]
    >>> merge_hits([first, second], k=3)
    [Hit(id='b', score=2.5), Hit(id='c', score=2.25), Hit(id='a', score=3.0)]
    >>> merge_hits([first, second], k=3, merge="best_score")
    [Hit(id='a', score=3.0), Hit(id='b', score=2.5), Hit(id='c', score=2.25)]
    >>> [hit.id for hit in merge_hits([first, second], 2, "reciprocal_rank")]
    ['b', 'a']
    """
    check_count("k", k)
    check_choice("merge", merge, get_args(Merge))
    scores: dict[Id, float] = {}
    if merge == "last":
        for hits in reversed(searches):
            for hit in hits:
                scores.setdefault(hit.id, hit.score)
        return [Hit(id_, score) for id_, score in scores.items()][:k]
    for hits in searches:
        for rank, hit in enumerate(hits, 1):
            if merge == "best_score":
                scores[hit.id] = max(hit.score, scores.get(hit.id, hit.score))
            else:
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_RANK_OFFSET + rank)
    return [Hit(id_, scores[id_]) for id_ in sorted(scores, key=lambda id_: -scores[id_])][:k]


class Step(NamedTuple):
    """A document that was read.

    Attributes
    ----------
    id
        The document.
    gain
        Predicted increase of the target's reciprocal rank by searching with what was read.
    searched
        Whether the gain was large enough to search again.

    Examples
    --------
    >>> Step("a", 0.25, True).gain
    0.25
    """

    id: Id
    gain: float
    searched: bool


class MultiStepResult(NamedTuple):
    """What was found for one query.

    Attributes
    ----------
    hits
        The best documents of all searches, best first.
    steps
        The documents that were read, in order.

    Examples
    --------
    >>> hits, steps = MultiStepResult([Hit("a", 1.5)], [Step("a", 0.0, False)])
    >>> hits[0].id
    'a'
    """

    hits: list[Hit]
    steps: list[Step]


class MultiStepRetriever:
    """Retrieval in several steps, for targets that only another document names.

    1. Search with the query's token matrix.
    2. Read the best hit that was not read yet: `QueryDynamics` predicts the next query matrix, and the gain of
       searching with it.
    3. Stop if the gain is not above a threshold. Otherwise search with the new matrix, merge the hits, and go to 2.

    Any index will do; the documents are its stored vectors, so nothing is encoded after the query. Of a document that
    is stored as passages, the best passage is read.

    Parameters
    ----------
    retriever
        A filled retriever.
    dynamics
        How reading changes a query. It is set to evaluation mode.

    Raises
    ------
    InvalidArgumentError
        If the arguments are of other types.
    EmbeddingsError
        If `dynamics` is for vectors of another dim.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add(["The moon orbits the earth.", "Bananas are healthy."])
    >>> multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=384))

    `QueryDynamics` is untrained here: it changes no query and predicts no gain.

    >>> hits, steps = multi_step.search("which fruit is good for me?", k=1)
    >>> hits[0].id, steps
    (1, [Step(id=1, gain=0.0, searched=False)])
    """

    def __init__(self, retriever: Retriever, dynamics: QueryDynamics) -> None:
        if not isinstance(retriever, Retriever):
            raise InvalidArgumentError(f"received {describe(retriever)} as retriever; expected a Retriever.")
        if not isinstance(dynamics, QueryDynamics):
            raise InvalidArgumentError(f"received {describe(dynamics)} as dynamics; expected a QueryDynamics.")
        dim = retriever.index.dim
        if dim is not None and dim != dynamics.dim:
            raise EmbeddingsError(f"dynamics has dim {dynamics.dim}, the index has dim {dim}; expected the same.")
        self.retriever = retriever
        self.dynamics = dynamics.eval()

    @overload
    def search(
        self, queries: str, k: int = 10, max_steps: int = 1, *, min_gain: float | None = 0.0, merge: Merge = "last"
    ) -> MultiStepResult: ...

    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        k: int = 10,
        max_steps: int = 1,
        *,
        min_gain: float | None = 0.0,
        merge: Merge = "last",
    ) -> list[MultiStepResult]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        max_steps: int = 1,
        *,
        min_gain: float | None = 0.0,
        merge: Merge = "last",
    ) -> MultiStepResult | list[MultiStepResult]:
        """Find the best documents for one query or several.

        Parameters
        ----------
        queries
            One text or a list of texts.
        k
            Maximum number of hits per query.
        max_steps
            Maximum number of documents to read per query, each one of the best `k` hits; 0: one search, as
            `Retriever.search`.
        min_gain
            Search again only if the predicted gain, an increase of the reciprocal rank, is above this; None: always.
        merge
            How to merge the hits of the searches; see `merge_hits`.

        Returns
        -------
        MultiStepResult or list of MultiStepResult
            One for a text, a list for a list of texts.

        Raises
        ------
        InvalidArgumentError
            If an argument has a value that is not accepted, or a query more tokens than ``dynamics.query_rows``.
        """
        texts = checked_queries(queries)
        check_count("k", k)
        check_count("max_steps", max_steps, least=0)
        check_choice("merge", merge, get_args(Merge))
        if not (min_gain is None or (isinstance(min_gain, (int, float)) and min_gain == min_gain)):
            raise InvalidArgumentError(f"received min_gain={short(min_gain)}; expected a number, or None.")
        if not texts:
            return []
        least = -torch.inf if min_gain is None else min_gain
        results = self._run(texts, k, max_steps, least, merge)
        return results[0] if isinstance(queries, str) else results

    @torch.inference_mode()
    def _run(self, texts: list[str], k: int, max_steps: int, least: float, merge: Merge) -> list[MultiStepResult]:
        index = self.retriever.index
        queries: Any = self.retriever.model.encode_query(texts, packed=True)
        state = self.dynamics.eval().begin(queries)
        with index.snapshot():
            searches = DocumentSearches(index, len(texts))
            searches.search(range(len(texts)), state.queries(), k)
            steps: list[list[Step]] = [[] for _ in texts]
            active = list(range(len(texts)))  # the queries in `state`
            for _ in range(max_steps):
                unread = [_best_unread(merge_hits(searches.hits[i], k, merge), steps[i]) for i in active]
                reading = [row for row, id_ in enumerate(unread) if id_ is not None]
                ids = [id_ for id_ in unread if id_ is not None]
                if not ids:
                    break
                active = [active[row] for row in reading]
                parts = [searches.parts[i][id_] for i, id_ in zip(active, ids, strict=True)]
                before, state = state.select(reading), self._read(state.select(reading), parts)
                gains = (state.value_prefix - before.value_prefix).tolist()
                for i, id_, gain in zip(active, ids, gains, strict=True):
                    steps[i].append(Step(id_, gain, gain > least))
                going_on = [row for row, gain in enumerate(gains) if gain > least]
                if not going_on:
                    break
                state, active = state.select(going_on), [active[row] for row in going_on]
                searches.search(active, state.queries(), k)
        merged = [merge_hits(found, k, merge) for found in searches.hits]
        return [MultiStepResult(hits, read) for hits, read in zip(merged, steps, strict=True)]

    def _read(self, state: QueryState, ids: list[Id]) -> QueryState:
        return self.dynamics(state, self.retriever.index.get_embeddings(ids))


def _best_unread(hits: list[Hit], steps: list[Step]) -> Id | None:
    """Return the best hit that no step has read, None if there is none."""
    read = {step.id for step in steps}
    return next((hit.id for hit in hits if hit.id not in read), None)
