"""Multi-step search: read the document that was found, change the query by what it says, and search again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import torch

from latelier.errors import EmbeddingsError
from latelier.experimental.query_dynamics import QueryDynamics
from latelier.indexes import Hit, Id
from latelier.indexes.options import SearchOptions
from latelier.retrieve import Retriever
from latelier.retrieve.query_model import checked_queries
from latelier.retrieve.results import EncodedQueries, find
from latelier.utils.checks import check_choice, check_count

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
        If `merge` is unknown.

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
    is stored as passages, the best passage is read. Queries are the model's own: they are not changed as
    `latelier.retrieve.Retriever.search` changes those of a model without training.

    Parameters
    ----------
    retriever
        A filled retriever.
    dynamics
        How reading changes a query. It is set to evaluation mode.

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
        if not texts:
            return []
        least = -torch.inf if min_gain is None else min_gain
        results = self._run(texts, k, max_steps, least, merge)
        if isinstance(queries, str):
            return results[0]
        return results

    @torch.inference_mode()
    def _run(self, texts: list[str], k: int, max_steps: int, least: float, merge: Merge) -> list[MultiStepResult]:
        index = self.retriever.index
        queries: Any = self.retriever.model.encode_query(texts, packed=True)
        state = self.dynamics.eval().begin(queries)
        hits: list[list[list[Hit]]] = [[] for _ in texts]  # of each search for each query
        ranges: list[dict[Id, Any]] = [{} for _ in texts]  # of each document found: that of what was found of it last
        steps: list[list[Step]] = [[] for _ in texts]
        active = list(range(len(texts)))  # the queries in `state`
        with index.snapshot():
            for step in range(max_steps + 1):
                asked = EncodedQueries([], state.queries())
                for row, found in zip(active, find(index, asked, k, SearchOptions()), strict=True):
                    ranges[row] |= {hit.id: (hit.start, hit.end) for hit, _ in found}
                    hits[row].append([hit for hit, _ in found])
                unread = [_best_unread(merge_hits(hits[row], k, merge), steps[row]) for row in active]
                reading = [i for i, id_ in enumerate(unread) if id_ is not None]
                if step == max_steps or not reading:
                    break
                ids: list[Any] = [unread[i] for i in reading]
                active = [active[i] for i in reading]
                before = state.select(reading)
                read = [ranges[row][id_] for row, id_ in zip(active, ids, strict=True)]
                state = self.dynamics(before, index.get_embeddings(ids, read))
                gains = (state.value_prefix - before.value_prefix).tolist()
                for row, id_, gain in zip(active, ids, gains, strict=True):
                    steps[row].append(Step(id_, gain, gain > least))
                going_on = [i for i, gain in enumerate(gains) if gain > least]
                if not going_on:
                    break
                state = state.select(going_on)
                active = [active[i] for i in going_on]
        return [MultiStepResult(merge_hits(found, k, merge), read) for found, read in zip(hits, steps, strict=True)]


def _best_unread(hits: list[Hit], steps: list[Step]) -> Id | None:
    """Return the best hit that no step has read, None if there is none."""
    read = {step.id for step in steps}
    return next((hit.id for hit in hits if hit.id not in read), None)
