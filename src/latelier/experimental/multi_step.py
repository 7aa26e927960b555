"""`MultiStepRetriever`: a search reads what it found, and searches again; and the training of how it reads.

The encoder is frozen: only the parameters of `QueryDynamics` are trained, on the vectors that an index stores.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import torch
from torch import Tensor

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, UnknownIdError
from latelier.experimental.query_dynamics import QueryDynamics, QueryState
from latelier.indexes import Hit, Id
from latelier.indexes.options import SearchOptions
from latelier.retrieve import Retriever
from latelier.retrieve.model import checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.scores import colbert_kd_scores
from latelier.utils import check_choice, check_count, check_number, count_entries
from latelier.utils.checks import describe, short

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
        hits: list[list[list[Hit]]] = [[] for _ in texts]  # of each search for each query
        parts: list[dict[Id, Id]] = [{} for _ in texts]  # of each document found: what was found of it last
        steps: list[list[Step]] = [[] for _ in texts]
        active = list(range(len(texts)))  # the queries in `state`
        with index.snapshot():
            stored = StoredDocuments(index)
            for step in range(max_steps + 1):
                for row, found in zip(active, stored.find(state.queries(), [], k, SearchOptions()), strict=True):
                    parts[row] |= {stored.document(hit.id): hit.id for hit in found}
                    hits[row].append([Hit(stored.document(hit.id), hit.score) for hit in found])
                unread = [_best_unread(merge_hits(hits[row], k, merge), steps[row]) for row in active]
                reading = [i for i, id_ in enumerate(unread) if id_ is not None]
                if step == max_steps or not reading:
                    break
                ids: list[Any] = [unread[i] for i in reading]
                active, before = [active[i] for i in reading], state.select(reading)
                read = [parts[row][id_] for row, id_ in zip(active, ids, strict=True)]
                state = self.dynamics(before, index.get_embeddings(read))
                gains = (state.value_prefix - before.value_prefix).tolist()
                for row, id_, gain in zip(active, ids, gains, strict=True):
                    steps[row].append(Step(id_, gain, gain > least))
                going_on = [i for i, gain in enumerate(gains) if gain > least]
                if not going_on:
                    break
                state, active = state.select(going_on), [active[i] for i in going_on]
        return [MultiStepResult(merge_hits(found, k, merge), read) for found, read in zip(hits, steps, strict=True)]


def _best_unread(hits: list[Hit], steps: list[Step]) -> Id | None:
    """Return the best hit that no step has read, None if there is none."""
    read = {step.id for step in steps}
    return next((hit.id for hit in hits if hit.id not in read), None)


# Probability that the first hit is read instead of the first document, as it will be in a search.
_READ_FIRST_HIT = 0.5


class ReadingExample(NamedTuple):
    """A query and the documents to read one after the other; the last one is the target.

    Attributes
    ----------
    query
        The query's text.
    documents
        Two ids or more.

    Examples
    --------
    >>> example = ReadingExample("Who began the kernel?", ["kernel", "linux"])
    >>> example.documents[-1]
    'linux'
    """

    query: str
    documents: Sequence[Id]


class _Prepared(NamedTuple):
    """An example as positions: of its query, of the documents to read, of its first hit and of its hard negatives."""

    query: int
    documents: list[int]
    first_hit: int
    negatives: list[int]


def train_query_dynamics(
    multi_step: MultiStepRetriever,
    examples: Iterable[ReadingExample],
    *,
    steps: int = 150,
    batch_size: int = 16,
    negatives: int = 31,
    learning_rate: float = 2e-3,
    value_weight: float = 0.1,
    seed: int = 0,
) -> list[float]:
    """Train the `QueryDynamics` of a retriever in place.

    After reading document ``t`` of an example, the query matrix should score document ``t + 1`` above hard negatives:
    hits of the query, and of the query together with the document's tokens. The loss is the cross entropy over their
    MaxSim scores (contrastive; Khattab and Zaharia 2020). The value prefix is trained on the measured gain: the
    target's reciprocal rank among the negatives after reading, minus that before (EfficientZero, Ye et al. 2021, with
    increases of the reciprocal rank as rewards). Reading the target itself gains nothing more.

    Parameters
    ----------
    multi_step
        The retriever whose `dynamics` to train; its index holds all documents of the examples.
    examples
        At least `batch_size` examples with equally many documents.
    steps
        Batches to train on.
    batch_size
        Examples per batch, at least 2.
    negatives
        Hard negatives per example and batch, drawn from four times as many.
    learning_rate
        Of AdamW at the first step; it falls linearly to 0.
    value_weight
        Weight of the value prefix in the loss.
    seed
        Seed of the order of examples and of the drawn negatives. The initial parameters are those of `dynamics`.

    Returns
    -------
    list of float
        The loss of each step. The vectors of about ``4 * negatives`` documents per example are held in memory.

    Examples
    --------
    >>> import torch
    >>> from latelier.experimental import QueryDynamics
    >>> from latelier.retrieve import Retriever
    >>> _ = torch.manual_seed(0)
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add(["The kernel is Linux.", "Linux was begun in Helsinki."])
    >>> retriever.add(["The editor is vi.", "Bill Joy wrote vi in Berkeley."])
    >>> examples = [
    ...     ReadingExample("Who began the kernel?", [0, 1]),
    ...     ReadingExample("Who wrote the editor?", [2, 3]),
    ... ]
    >>> multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=384))
    >>> sizes = {"batch_size": 2, "negatives": 2}
    >>> losses = train_query_dynamics(multi_step, examples, steps=30, **sizes)
    >>> losses[-1] < 0.7 * losses[0]
    True
    """
    check_count("steps", steps)
    check_count("batch_size", batch_size, least=2)
    check_count("negatives", negatives)
    check_number("learning_rate", learning_rate)
    check_number("value_weight", value_weight, zero=True)
    check_count("seed", seed, least=0)
    given = _checked_examples(examples, multi_step, batch_size)
    prepared, queries, documents = _prepare(multi_step, given, negatives)
    negatives = min(negatives, *(len(example.negatives) for example in prepared))
    if negatives == 0:
        raise InvalidArgumentError("an example has no negatives: it reads every document of the index; add others.")

    dynamics, draw = multi_step.dynamics.train(), random.Random(seed)
    optimizer = torch.optim.AdamW(dynamics.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    for _ in range(steps):
        batch = draw.sample(prepared, batch_size)
        compared = [example.documents[1:] + draw.sample(example.negatives, negatives) for example in batch]
        loss = _loss(dynamics, batch, compared, queries, documents, draw, value_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    dynamics.eval()
    return losses


def _loss(
    dynamics: QueryDynamics,
    batch: list[_Prepared],
    compared: list[list[int]],
    queries: TokenEmbeddings,
    documents: TokenEmbeddings,
    draw: random.Random,
    value_weight: float,
) -> Tensor:
    """Return the loss of a batch: one term per document that is read, plus the value prefixes'.

    ``compared`` holds the positions of the documents after the first, then of the negatives, for each example.
    """
    device, targets = dynamics.weights.weight.device, len(batch[0].documents) - 1
    candidates = documents[[position for row in compared for position in row]].to(device)
    state = dynamics.begin(queries[[example.query for example in batch]])
    start = rank = _reciprocal_rank(_scores(state, candidates), targets)
    total = torch.zeros((), device=device)
    for step in range(targets + 1):
        read = [example.documents[step] for example in batch]
        if step == 0:
            hits = [example.first_hit for example in batch]
            read = [hit if draw.random() < _READ_FIRST_HIT else own for hit, own in zip(hits, read, strict=True)]
        state = dynamics(state, documents[read])
        if step < targets:  # after the target there is nothing left to find, and the gain stays what it was
            scores = _scores(state, candidates)
            rank = _reciprocal_rank(scores, targets)
            columns = torch.arange(scores.shape[1], device=device)
            scores = scores.masked_fill((columns < targets) & (columns != step), -torch.inf)
            total = total + torch.nn.functional.cross_entropy(scores, torch.full((len(batch),), step, device=device))
        total = total + value_weight * dynamics.value_loss(state, rank - start)
    return total


def _scores(state: QueryState, candidates: TokenEmbeddings) -> Tensor:
    """Return the MaxSim of each query with its own candidates, ``(b, candidates per query)``."""
    return colbert_kd_scores(state.queries(), candidates)


def _reciprocal_rank(scores: Tensor, targets: int) -> Tensor:
    """Return the reciprocal rank of the last of the `targets` first columns, among itself and the columns after it."""
    scores = scores.detach()
    above = scores[:, targets:] >= scores[:, targets - 1 : targets]
    return 1 / (1 + above.sum(1))


def _checked_examples(
    examples: Iterable[ReadingExample], multi_step: MultiStepRetriever, batch_size: int
) -> list[ReadingExample]:
    if not isinstance(multi_step, MultiStepRetriever):
        raise InvalidArgumentError(f"received {describe(multi_step)} as multi_step; expected a MultiStepRetriever.")
    if StoredDocuments(multi_step.retriever.index).has_passages:
        raise InvalidArgumentError(
            "the index holds documents as passages; training reads whole documents: give one filled without passages."
        )
    try:
        given = [ReadingExample(*example) for example in examples]
    except TypeError as error:
        raise InvalidArgumentError(
            "expected each example as a ReadingExample: a query and ids of documents."
        ) from error
    if len(given) < batch_size:
        raise InvalidArgumentError(f"received {len(given)} examples; expected at least batch_size={batch_size}.")
    for position, example in enumerate(given):
        count_entries(example.documents, f"documents of examples[{position}]", "a list of ids")
        if len(example.documents) < 2 or len(example.documents) != len(given[0].documents):
            raise InvalidArgumentError(
                f"examples[{position}] has {len(example.documents)} documents; expected as many as the first example "
                f"({len(given[0].documents)}), and at least 2."
            )
        for id_ in example.documents:
            if id_ not in multi_step.retriever.index:
                raise UnknownIdError(f"document {id_!r} of examples[{position}] is not in the index.")
    return given


def _prepare(
    multi_step: MultiStepRetriever, examples: list[ReadingExample], negatives: int
) -> tuple[list[_Prepared], TokenEmbeddings, TokenEmbeddings]:
    """Encode the queries, find hard negatives, and load the vectors of all documents that training needs."""
    model, index = multi_step.retriever.model, multi_step.retriever.index
    encoded: Any = model.encode_query([example.query for example in examples], packed=True)
    queries = encoded.to("cpu").to("float32")
    with index.snapshot():
        first = _as_torch(index.get_embeddings([example.documents[0] for example in examples]))
        plain = index.search(queries, 2 * negatives)
        expanded = index.search([torch.cat(rows) for rows in zip(queries, first, strict=True)], 2 * negatives)
        positives: dict[str, set[Id]] = {}
        for example in examples:
            positives.setdefault(example.query, set()).update(example.documents)
        positions: dict[Id, int] = {}
        prepared = []
        for i, example in enumerate(examples):
            found = dict.fromkeys(hit.id for hit in plain[i] + expanded[i])
            ids: list[Any] = [
                *example.documents,
                plain[i][0].id,
                *(id_ for id_ in found if id_ not in positives[example.query]),
            ]
            rows = [positions.setdefault(id_, len(positions)) for id_ in ids]
            count = len(example.documents)
            prepared.append(_Prepared(i, rows[:count], rows[count], rows[count + 1 :]))
        documents = _as_torch(index.get_embeddings(list(positions)))
    return prepared, queries, documents


def _as_torch(embeddings: TokenEmbeddings) -> TokenEmbeddings:
    return embeddings.to("torch").to("float32")
