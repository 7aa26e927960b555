"""What a training is measured on: validation questions, the documents they search, and what the model reads of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorInformationRetrievalEvaluator

from latelier.data import TrainingSet
from latelier.data.splitting import components_of, count_shared_positives, positives, text_key
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.utils.checks import short

# Documents to search: enough to make the search hard, few enough to encode them at each validation.
_CORPUS = 2000
_SAMPLE = 100_000
_RESAMPLES = 10_000
_NAME = "validation"
# Name in reports to key of the evaluator's result.
_MEASURES = {"success@1": f"{_NAME}_maxsim_accuracy@1", "ndcg@10": f"{_NAME}_maxsim_ndcg@10"}
BEST = f"eval_{_MEASURES['ndcg@10']}"
"""The trainer's key of the measure that chooses the best checkpoint."""


def sampled(data: TrainingSet, seed: int) -> TrainingSet:
    """Return all rows, or a hundred thousand drawn at random, where a sample of the texts is enough."""
    if len(data) <= _SAMPLE:
        return data
    return data.select(sorted(random.Random(seed).sample(range(len(data)), _SAMPLE)))


class Validation(MultiVectorInformationRetrievalEvaluator):
    """How well the positives of validation rows are found; keeps the nDCG@10 of each query in its last call.

    `positives` are the different ones, of which `shared_positives` are positives of the training rows too;
    `components`: the connected component of each query, as queries with one passage are not independent.
    """

    per_query: np.ndarray
    components: np.ndarray
    positives: int
    shared_positives: int

    def interval(self, before: np.ndarray) -> tuple[float, float]:
        """Return the 95% bootstrap interval of the mean change of the nDCG@10, resampling components of queries."""
        _, places = np.unique(self.components, return_inverse=True)
        sums = np.bincount(places, self.per_query - before)
        counts = np.bincount(places)
        drawn = np.random.default_rng(0).integers(0, len(sums), (_RESAMPLES, len(sums)))
        low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [0.025, 0.975])
        return float(low), float(high)

    def compute_metrics(self, queries_result_list: list[Any]) -> Any:
        """Compute the measures of all queries."""
        values = []
        for query, hits in zip(self.queries_ids, queries_result_list, strict=True):
            top = sorted(hits, key=lambda hit: (-hit["score"], hit["corpus_id"]))[:10]
            relevant = self.relevant_docs[query]
            gains = [hit["corpus_id"] in relevant for hit in top]
            ideal = self.compute_dcg_at_k([1] * min(10, len(relevant)), 10)
            values.append(self.compute_dcg_at_k(gains, 10) / ideal)
        self.per_query = np.array(values, "float64")
        return super().compute_metrics(queries_result_list)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the measures."""
        return {
            **super().get_config_dict(),
            "queries": len(self.queries),
            "documents": len(self.corpus),
            "positives": self.positives,
            "positives_in_training": self.shared_positives,
        }


def make_validation(validation: TrainingSet, training: TrainingSet, data: TrainingSet, seed: int) -> Validation | None:
    """Make an evaluator of how well positives of `validation` are found among 2,000 documents of `data`.

    Copies of a text, in the sense of `text_key`, are one document. None without validation rows.
    """
    if not len(validation):
        return None
    own = {text_key(text): text for documents in validation.documents for text in documents}
    others = {text_key(text): text for documents in sampled(data, seed).documents for text in documents}
    drawn = sorted(others.keys() - own.keys())
    random.Random(seed).shuffle(drawn)
    keys = [*own, *drawn[: max(0, _CORPUS - len(own))]]
    ids = {key: str(i) for i, key in enumerate(keys)}
    queries = {text: str(i) for i, text in enumerate(dict.fromkeys(validation.queries))}
    relevant: dict[str, set[str]] = {id_: set() for id_ in queries.values()}
    for query, text in zip(validation.queries, positives(validation), strict=True):
        relevant[queries[query]].add(ids[text_key(text)])
    made = Validation(
        queries={id_: text for text, id_ in queries.items()},
        corpus={id_: (own | others)[key] for key, id_ in ids.items()},
        relevant_docs=relevant,
        name=_NAME,
        write_csv=False,
    )
    made.shared_positives, made.positives = count_shared_positives(training, validation)
    labels = dict(zip(validation.queries, components_of(validation)[1], strict=True))
    made.components = np.array([labels[query] for query in queries])
    return made


def measure(validation: Validation | None, model: ColBERT) -> dict[str, float]:
    """Return the measures of a model; an empty dict without validation."""
    if validation is None:
        return {}
    return measured(validation(model.eval()))


def measured(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the measures of a report from the evaluator's result or, with a prefix, from the trainer's logs."""
    return {name: float(values[prefix + key]) for name, key in _MEASURES.items() if prefix + key in values}


def describe_cut_texts(model: ColBERT, data: TrainingSet, seed: int, *, as_pairs: bool) -> str:
    """Return how many texts are longer than the model reads, as a line; empty if there are none.

    `as_pairs`: raise an error for rows that teach nothing, as their documents are equal once they are cut.
    """
    data = sampled(data, seed)
    queries = list(dict.fromkeys(data.queries))
    documents = list(dict.fromkeys(text for own in data.documents for text in own))
    cut_queries = _cut(model, queries, "query")
    cut_documents = _cut(model, documents, "document")
    if as_pairs:
        _check_distinct(model, data, cut_documents)
    parts = [
        f"{len(cut):,} of {len(texts):,} {name} ({len(cut) / len(texts):.0%}) are longer than the {length} tokens"
        for name, cut, texts, length in (
            ("queries", cut_queries, queries, model.max_length_query),
            ("documents", cut_documents, documents, model.max_length_document),
        )
        if cut
    ]
    if not parts:
        return ""
    return f"{', and '.join(parts)} that the model reads; the rest of them is not trained on."


_BATCH = 1000  # texts tokenised at once


def _cut(model: ColBERT, texts: Sequence[str], task: str) -> set[str]:
    """Return the texts that are longer than the model reads."""
    if task == "query":
        most = model.max_length_query
    else:
        most = model.max_length_document
    prompt = model.prompts.get(task) or ""
    longer: set[str] = set()
    for start in range(0, len(texts), _BATCH):
        part = texts[start : start + _BATCH]
        ids = model.tokenizer([prompt + text for text in part], truncation=False, verbose=False)["input_ids"]
        longer.update(text for text, own in zip(part, ids, strict=True) if len(own) > most)
    return longer


def _check_distinct(model: ColBERT, data: TrainingSet, cut: set[str]) -> None:
    """Raise an error if different positives are equal once they are cut; with scores, all candidates of a row."""
    if data.scores is None:
        alike = [texts for texts in _alike(model, cut.intersection(positives(data))) if len(texts) > 1]
        kind = "positives"
    else:
        groups = [set(own) for own in data.documents if cut.issuperset(own) and len(set(own)) > 1]
        alike = [list(own) for own in groups if len(_alike(model, own)) == 1]
        kind = "candidates"
    if not alike:
        return
    wanted = set().union(*alike)
    names = data.rows or [f"row {i}" for i in range(len(data))]
    rows = [name for name, own in zip(names, data.documents, strict=True) if not wanted.isdisjoint(own)]
    raise InvalidArgumentError(
        f"{len(wanted):,} different {kind} are equal to another one in the {model.max_length_document} tokens that the "
        f"model reads, so nothing can be learned from them: those of {', '.join(rows[:5])}{', ...' * (len(rows) > 5)} "
        f"begin with {short(min(alike[0]))}. Give the passage that answers in place of a long document; let the model "
        "read more (max_length_document); or leave these rows out."
    )


def _alike(model: ColBERT, texts: Iterable[str]) -> list[list[str]]:
    """Return different texts in groups of those that are the same to the model once they are cut."""
    different = list({text_key(text): text for text in sorted(texts)}.values())
    groups = defaultdict(list)
    for start in range(0, len(different), _BATCH):
        part = different[start : start + _BATCH]
        for text, ids in zip(part, model.tokenize(part, is_query=False)["input_ids"].tolist(), strict=True):
            groups[tuple(ids)].append(text)
    return list(groups.values())
