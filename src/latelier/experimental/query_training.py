"""Training of the network that changes queries, on queries with the documents that they should find."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.experimental.multi_step import MultiStepRetriever
from latelier.experimental.query_dynamics import QueryDynamics
from latelier.indexes import Id
from latelier.scores import colbert_kd_scores
from latelier.utils.checks import check_count

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
    check_count("batch_size", batch_size, least=2)
    given = [ReadingExample(*example) for example in examples]
    for position, example in enumerate(given):
        if len(example.documents) < 2 or len(example.documents) != len(given[0].documents):
            raise InvalidArgumentError(
                f"examples[{position}] has {len(example.documents)} documents; expected as many as the first example "
                f"({len(given[0].documents)}), and at least 2."
            )
    prepared, queries, documents = _prepare(multi_step, given, negatives)
    negatives = min(negatives, *(len(example.negatives) for example in prepared))
    if negatives == 0:
        raise InvalidArgumentError("an example has no negatives: it reads every document of the index; add others.")

    dynamics = multi_step.dynamics.train()
    draw = random.Random(seed)
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
    """Return the loss of a batch: one term per document that is read, plus the value prefixes'."""
    device = dynamics.weights.weight.device
    targets = len(batch[0].documents) - 1
    candidates = documents[[position for row in compared for position in row]].to(device)
    state = dynamics.begin(queries[[example.query for example in batch]])
    start = rank = _reciprocal_rank(colbert_kd_scores(state.queries(), candidates), targets)
    total = torch.zeros((), device=device)
    for step in range(targets + 1):
        read = [example.documents[step] for example in batch]
        if step == 0:
            hits = [example.first_hit for example in batch]
            read = [hit if draw.random() < _READ_FIRST_HIT else own for hit, own in zip(hits, read, strict=True)]
        state = dynamics(state, documents[read])
        if step < targets:  # after the target there is nothing left to find, and the gain stays what it was
            scores = colbert_kd_scores(state.queries(), candidates)  # (b, candidates of each)
            rank = _reciprocal_rank(scores, targets)
            columns = torch.arange(scores.shape[1], device=device)
            scores = scores.masked_fill((columns < targets) & (columns != step), -torch.inf)
            total = total + torch.nn.functional.cross_entropy(scores, torch.full((len(batch),), step, device=device))
        total = total + value_weight * dynamics.value_loss(state, rank - start)
    return total


def _reciprocal_rank(scores: Tensor, targets: int) -> Tensor:
    """Return the reciprocal rank of the last of the `targets` first columns, among itself and the columns after it."""
    scores = scores.detach()
    above = scores[:, targets:] >= scores[:, targets - 1 : targets]
    return 1 / (1 + above.sum(1))


def _prepare(
    multi_step: MultiStepRetriever, examples: list[ReadingExample], negatives: int
) -> tuple[list[_Prepared], TokenEmbeddings, TokenEmbeddings]:
    """Encode the queries, find hard negatives, and load the vectors of all documents that training needs."""
    model = multi_step.retriever.model
    index = multi_step.retriever.index
    if index.statistics().passages:
        raise InvalidArgumentError("documents in passages cannot be learned from; train with an index of whole ones.")
    encoded: Any = model.encode_query([example.query for example in examples], packed=True)
    queries = encoded.to("cpu").to("float32")
    with index.snapshot():
        first = index.get_embeddings([example.documents[0] for example in examples]).to("torch").to("float32")
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
        documents = index.get_embeddings(list(positions)).to("torch").to("float32")
    return prepared, queries, documents
