"""What a model and an index give to training: mined negatives, batches of confusable pairs, a teacher's scores.

Random negatives become easy after a few hundred steps; a search with the model itself finds documents that it confuses
with the positives.

In contrastive training the documents of a batch are negatives for all of its queries. In batches of random pairs these
in-batch negatives are easy. If a pair is grouped with pairs whose positives were mined as its hard negatives, they are
hard, and no more texts are encoded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from latelier.data.loading import TrainingSet
from latelier.data.splitting import text_key
from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Index
from latelier.indexes.results import Hit
from latelier.scores import colbert_scores_pairwise
from latelier.utils.checks import check_count, short
from latelier.utils.misc import progress_bar
from latelier.utils.values import Id

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoder


def mine_hard_negatives(
    model: MultiVectorEncoder,
    index: Index,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[Any, int]],
    *,
    documents: Mapping[Any, str] | None = None,
    negatives: int = 1,
    ranks: tuple[int, int] = (1, 50),
    margin: float | None = None,
    seed: int | None = None,
    batch_size: int = 64,
    show_progress_bar: bool = False,
) -> TrainingSet:
    """Find hard negatives for the positives of queries.

    Parameters
    ----------
    model
        The model that encodes the queries.
    index
        Any index of `latelier.indexes`, with documents encoded by the same model.
    queries
        Query id to text.
    qrels
        Relevance judgements: query id to document id to relevance. A document of relevance above 0 is a
        positive; a negative is a document of relevance 0, or without a judgement. A document with the text of a
        positive, up to normal form, case and white space, is no negative, whatever its id.
    documents
        Document id to text; default: the texts that the index stores.
    negatives
        Number of negatives per positive.
    ranks
        First and last rank, counted from 1 and without the positives, that negatives are taken from. A larger first
        rank avoids relevant documents without a judgement, and makes negatives easier.
    margin
        Exclude documents with a score above ``(1 - margin)`` times the positive's, as these may be relevant, too (0.05
        is usual; Moreira et al., 2024, NV-Retriever); None excludes none.
    seed
        Seed for drawing negatives from the ranks; None takes the documents with the highest scores.
    batch_size
        Queries per search.
    show_progress_bar
        Show a progress bar.

    Returns
    -------
    TrainingSet
        One row for each positive of each query: query, positive, negatives. A positive with fewer than `negatives`
        negatives has no row.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, another argument has another form, or a query or a document has no text.
    UnknownIdError
        If a positive is not in the index.

    Examples
    --------
    >>> from latelier import indexes
    >>> from latelier.models import ColBERT
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = ColBERT.from_dense(name, device="cpu")
    >>> texts = ["Rome lies on the Tiber.", "Rome, Georgia, is a city."]
    >>> index = indexes.Flat()
    >>> index.add(["a", "b"], model.encode_document(texts), texts=texts)
    >>> queries, qrels = {"q": "where is Rome?"}, {"q": {"a": 1}}
    >>> mined = mine_hard_negatives(model, index, queries, qrels)
    >>> mined.documents
    [['Rome lies on the Tiber.', 'Rome, Georgia, is a city.']]
    """
    check_count("negatives", negatives)
    check_count("batch_size", batch_size)
    seed = check_count("seed", seed, 0, optional=True)  # an int: random takes no integer of numpy
    first, last = ranks
    if first < 1 or last - first + 1 < negatives:
        raise InvalidArgumentError(
            f"received ranks={short(ranks)}; expected (first, last), counted from 1, with at least {negatives} ranks."
        )
    if margin is not None and not 0 <= margin < 1:
        raise InvalidArgumentError(f"received margin={short(margin)}; expected a number from 0 to less than 1.")
    for id_ in qrels:
        if id_ not in queries:
            raise InvalidArgumentError(f"query {id_!r} has relevance judgements, but no text in queries.")
    rng = None if seed is None else random.Random(seed)
    wanted = [id_ for id_, judged in qrels.items() if any(value > 0 for value in judged.values())]
    rows: list[tuple[str, Id, list[Id]]] = []
    with progress_bar(shown=show_progress_bar, total=len(wanted), desc="Mining negatives") as bar:
        for start in range(0, len(wanted), batch_size):
            batch = wanted[start : start + batch_size]
            vectors = model.encode_query([queries[id_] for id_ in batch], packed=True)
            searched = _search(index, vectors, [qrels[id_] for id_ in batch], last, documents)
            for position, (id_, (hits, candidates)) in enumerate(zip(batch, searched, strict=True)):
                window = candidates[first - 1 : last]
                for positive in _positive_ids(qrels[id_]):
                    limit = _score_limit(margin, index, vectors[position], positive, hits)
                    kept = [hit for hit in window if hit.score <= limit]
                    if len(kept) >= negatives:
                        if rng is None:
                            chosen = kept[:negatives]
                        else:
                            chosen = rng.sample(kept, negatives)
                        rows.append((id_, positive, [hit.id for hit in chosen]))
            bar.update(len(batch))
    texts = _texts(index, documents, dict.fromkeys(id_ for _, positive, others in rows for id_ in (positive, *others)))
    return TrainingSet(
        [queries[id_] for id_, _, _ in rows],
        [[texts[id_] for id_ in (positive, *others)] for _, positive, others in rows],
    )


def _positive_ids(judged: Mapping[Any, int]) -> list[Any]:
    return [id_ for id_, value in judged.items() if value > 0]


def _search(
    index: Index,
    vectors: Any,
    judgements: Sequence[Mapping[Any, int]],
    last: int,
    documents: Mapping[Any, str] | None,
) -> list[tuple[Sequence[Hit], list[Hit]]]:
    """Return the hits of each query, and those that may be negatives: at least `last`, if the index holds so many."""
    k = last + max(sum(value != 0 for value in judged.values()) for judged in judgements)
    own = [_text_keys(index, documents, set(_positive_ids(judged))) for judged in judgements]
    while True:
        found = index.search(vectors, k=k)
        keys = _text_keys(index, documents, {hit.id for hits in found for hit in hits})
        searched: list[tuple[Sequence[Hit], list[Hit]]] = []
        copies = False
        for judged, positives, hits in zip(judgements, own, found, strict=True):
            others = [hit for hit in hits if not judged.get(hit.id)]
            candidates = [hit for hit in others if keys.get(hit.id) not in positives.values()]
            copies = copies or len(candidates) < min(last, len(others))
            searched.append((hits, candidates))
        if not copies or k >= len(index):
            return searched
        k *= 2  # copies of positives took the places of candidates


def _text_keys(index: Index, documents: Mapping[Any, str] | None, ids: set[Id]) -> dict[Id, str]:
    """Return what tells whether texts are equal, of documents that have a text."""
    if documents is not None:
        texts = {id_: documents.get(id_) for id_ in ids}
    else:
        texts = {record.id: record.text for record in index.get(list(ids))}
    return {id_: text_key(text) for id_, text in texts.items() if text}


def _score_limit(margin: float | None, index: Index, query: Any, positive: Id, hits: Sequence[Hit]) -> float:
    """Return the highest score that a negative may have: ``(1 - margin) * score of the positive``.

    The positive's score is that of its hit; if it is not among the hits, the score is computed.
    """
    if margin is None:
        return math.inf
    found = next((hit.score for hit in hits if hit.id == positive), None)
    if found is None:
        vectors = index.get_embeddings([positive]).to("float32")
        found = float(colbert_scores_pairwise([query], list(vectors.to("torch"))))
    return (1 - margin) * found


def _texts(index: Index, documents: Mapping[Any, str] | None, ids: Iterable[Id]) -> dict[Id, str]:
    ids = list(ids)
    if documents is not None:
        texts = {id_: documents.get(id_) for id_ in ids}
    else:
        if ids:
            texts = {record.id: record.text for record in index.get(ids)}
        else:
            texts = {}
    lacking = next((id_ for id_, text in texts.items() if not text), None)
    if lacking is not None:
        raise InvalidArgumentError(
            f"document {lacking!r} has no text; give documents={{id: text}}, or add texts to the index."
        )
    return texts  # type: ignore[return-value]


def order_by_neighbours(
    mined: TrainingSet, neighbours: int = 7, *, negatives: int = 0, passes: int = 1, seed: int = 0
) -> TrainingSet:
    """Group each row with rows whose positives are among its mined hard negatives.

    Train in this order (`InOrder`), with several groups per batch.

    Parameters
    ----------
    mined
        Rows from `mine_hard_negatives`, with more negatives per row (such as 10) than are trained on.
    neighbours
        Maximum number of rows to group with a row. Candidates are rows whose positive is one of its negatives, hardest
        first; rows that are in a group already are left out.
    negatives
        Number of mined negatives that each row keeps, drawn at random.
    passes
        Number of times that each row occurs, each time in a new group; one pass per epoch, for example.
    seed
        Seed of the random choices.

    Returns
    -------
    TrainingSet
        ``passes * len(mined)`` rows.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, the rows have fewer negatives than `negatives`, or they have a teacher's scores,
        which do not say which document is the positive.

    Examples
    --------
    >>> documents = [["A", "C"], ["B", "D"], ["C", "A"], ["D", "B"]]
    >>> mined = TrainingSet(["a", "b", "c", "d"], documents)
    >>> ordered = order_by_neighbours(mined, neighbours=1)
    >>> ordered.queries, ordered.documents
    (['d', 'b', 'a', 'c'], [['D'], ['B'], ['A'], ['C']])
    """
    if mined.scores is not None:
        raise InvalidArgumentError("the rows have a teacher's scores; give rows from mine_hard_negatives.")
    for name, value, least in (("neighbours", neighbours, 0), ("negatives", negatives, 0), ("passes", passes, 1)):
        check_count(name, value, least)
    seed = check_count("seed", seed, 0)
    rng = random.Random(seed)
    owner = {documents[0]: row for row, documents in enumerate(mined.documents)}
    rows: list[int] = []
    for _ in range(passes):
        placed: set[int] = set()
        groups: list[list[int]] = []
        for row in rng.sample(range(len(mined)), len(mined)):
            if row in placed:
                continue
            near = [owner[text] for text in mined.documents[row][1:] if text in owner]
            free = [other for other in dict.fromkeys(near) if other not in placed and other != row]
            groups.append([row, *free[:neighbours]])
            placed.update(groups[-1])
        # The last rows form small groups, as most of their neighbours are in groups already. Shuffled, these groups are
        # spread over all batches; otherwise the last batches would be easy.
        rng.shuffle(groups)
        rows += [row for group in groups for row in group]
    documents = [[mined.documents[i][0], *rng.sample(mined.documents[i][1:], negatives)] for i in rows]
    return TrainingSet([mined.queries[i] for i in rows], documents)


class InOrder(BatchSampler):
    """Batches of consecutive rows, for the order that `order_by_neighbours` makes.

    Pass the class in the trainer's arguments: ``batch_sampler=InOrder``.

    Parameters
    ----------
    rows
        The data set, or anything else with a length.
    batch_size
        Rows per batch.
    drop_last
        Leave out the last batch if it has fewer rows.
    **options
        What the trainer passes besides, such as a seed, which makes no difference to the order.

    Examples
    --------
    >>> list(InOrder(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, rows: Sized, batch_size: int, drop_last: bool, **options: Any) -> None:
        # The trainer also passes the label columns, a generator and a seed, which make no difference to the order.
        super().__init__(range(len(rows)), batch_size, drop_last)


def teacher_scores(
    teacher: Any, examples: TrainingSet, *, batch_size: int = 32, show_progress_bar: bool = False
) -> TrainingSet:
    """Score all documents of all rows with a teacher, for `Distillation` or `MarginMSE`.

    Parameters
    ----------
    teacher
        A `sentence_transformers.CrossEncoder`, or another object with a ``predict`` that scores a list of pairs of
        texts; or a late-interaction model, such as `latelier.models.ColBERT`.
    examples
        Queries and documents, from `load_training_set` or `mine_hard_negatives`.
    batch_size
        Texts, or pairs of texts, per batch of the teacher.
    show_progress_bar
        Show the teacher's progress bar.

    Returns
    -------
    TrainingSet
        The same rows with scores. Scores of a late-interaction model are sums over query tokens: train on them with
        ``Distillation(model, normalize_scores=False)``.

    Raises
    ------
    InvalidArgumentError
        If the teacher is neither of these, or does not give one number for each pair.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> teacher = ColBERT.from_dense(name, device="cpu")
    >>> documents = ["Rome lies on the Tiber.", "Iron and oxygen form rust."]
    >>> examples = TrainingSet(["where is Rome?"], [documents])
    >>> scores = teacher_scores(teacher, examples).scores[0]
    >>> scores[0] > scores[1]
    True
    """
    pairs = [(q, d) for q, documents in zip(examples.queries, examples.documents, strict=True) for d in documents]
    options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
    if callable(getattr(teacher, "predict", None)):
        predicted = torch.as_tensor(teacher.predict(pairs, **options) if pairs else [])
        if predicted.shape != (len(pairs),):
            raise InvalidArgumentError(
                f"the teacher's predict returned shape {tuple(predicted.shape)} for {len(pairs)} pairs; expected one "
                "number for each. A cross-encoder with several labels, such as one for NLI, has no single score."
            )
        flat = predicted.tolist()
    elif callable(getattr(teacher, "encode_query", None)) and callable(getattr(teacher, "encode_document", None)):
        flat = _late_interaction(teacher, pairs, options)
    else:
        raise InvalidArgumentError(
            f"received a teacher of type {type(teacher).__name__}; expected a CrossEncoder or a late-interaction model."
        )
    width = examples.width
    scores = [flat[start : start + width] for start in range(0, len(flat), max(width, 1))]
    return TrainingSet(examples.queries, examples.documents, scores, examples.rows, examples.groups)


def _late_interaction(teacher: Any, pairs: list[tuple[str, str]], options: dict[str, Any]) -> list[float]:
    """Score pairs; each text is encoded once, even if several rows have it."""
    queries, documents = ({text: i for i, text in enumerate(dict.fromkeys(pair[j] for pair in pairs))} for j in (0, 1))
    with torch.inference_mode():
        left = teacher.encode_query(list(queries), **options)
        right = teacher.encode_document(list(documents), **options)
        scores: list[float] = []
        for start in range(0, len(pairs), 1024):
            part = pairs[start : start + 1024]
            chosen = [left[queries[q]] for q, _ in part], [right[documents[d]] for _, d in part]
            scores += colbert_scores_pairwise(*chosen).tolist()
    return scores
