"""Two-hop retrieval: is it worth reading the first hit before searching again? `python examples/two_hop.py`.

Each question describes one document, its source, and asks for the documents that the source names; neither the source's
name nor theirs is in the question. By default the documents are the docstrings of Python's standard library, and the
question is the first paragraph of a docstring that refers to other functions further down. With `--debian FOLDER`, they
are descriptions of Debian packages that name other packages, and the question is the package's synopsis.

Compared are one search, expansion of the query by its first hit (its text, its tokens, and Rocchio's update of each
token), and `latelier.experimental`, trained on questions that share no document with those it is measured on.
"""

import argparse
import collections
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from latelier.demo import standard_library_documents
from latelier.evaluation import evaluate
from latelier.experimental import MultiStepRetriever, QueryDynamics, ReadingExample, train_query_dynamics
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.retrieve import Retriever

MEASURES = ("nDCG@10", "R@10", "Success@1")
# Documents that more than this many others name are no answer to a question: ValueError, Python.
MOST_REFERRERS = 8
REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|\b[A-Za-z_]\w*(?=\()|\b[a-z]+_\w+|\b[A-Z][a-z]+[A-Z]\w+")
NAME_OF_PACKAGE = re.compile(r"^([A-Z][\w.+-]*[\w+]) (?:is|are|provides|implements) ")


class Question(NamedTuple):
    """A question, the document that it describes, and the documents that this one names."""

    text: str
    source: str
    targets: list[str]


def standard_library() -> tuple[dict[str, str], list[Question]]:
    """Return docstrings by id, and a question for each one that names one to three others."""
    documents = {document["id"]: document for document in standard_library_documents()}
    named = collections.defaultdict(set)
    for id_, document in documents.items():
        docstring = document["text"].partition("\n")[2]
        for name in set(REFERENCE.findall(docstring)):
            known = (f"{id_.rpartition('.')[0]}.{name}", f"{document['module']}.{name}", name)
            target = next((one for one in known if "." in one and one != id_ and one in documents), None)
            if target is not None and documents[target]["kind"] != "module":
                named[id_].add(target)
    questions = []
    for id_, targets in only_rare(named).items():
        docstring = documents[id_]["text"].partition("\n")[2].strip()
        summary = " ".join(docstring.partition("\n\n")[0].split())
        given_away = any(target.rpartition(".")[2].lower() in summary.lower() for target in targets)
        if documents[id_]["kind"] != "module" and 20 <= len(summary) <= 200 and not given_away:
            questions.append(Question(summary, id_, targets))
    return {id_: document["text"] for id_, document in documents.items()}, questions


def debian(folder: Path) -> tuple[dict[str, str], list[Question]]:
    """Return descriptions by id, and a question for each one that names one to three packages with a description."""
    documents = {row["_id"]: row["text"] for row in read_lines(folder / "corpus.jsonl")}
    synopses = {row["_id"]: row["text"] for row in read_lines(folder / "queries.jsonl")}
    described = {}
    for part in ("train", "test"):
        for line in (folder / "qrels" / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            query, id_, _ = line.split("\t")
            described[id_] = synopses[query]
    names, named = package_names(documents)
    questions = []
    for id_, targets in only_rare(named).items():
        given_away = [described.get(id_, "").lower(), documents[id_][:30].lower()]
        if id_ in described and not any(names[target] in text for target in targets for text in given_away):
            questions.append(Question(described[id_], id_, targets))
    return documents, questions


def package_names(documents: dict[str, str]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the name of each package that one description begins with, and the packages in each description."""
    begins = collections.defaultdict(list)
    for id_, text in documents.items():
        if match := NAME_OF_PACKAGE.match(text):
            begins[match[1].lower()].append((match[1], id_))
    known = {lower: found[0] for lower, found in begins.items() if len(found) == 1 and len(lower) > 2}
    spellings, mentions = collections.Counter(), collections.defaultdict(set)
    for id_, text in documents.items():
        for word in re.findall(r"[A-Za-z][\w.+-]*[\w+]", text):
            if word.lower() in known:
                as_name = word == known[word.lower()][0]
                spellings[word.lower(), as_name] += 1
                mentions[id_].update([word.lower()] if as_name else [])
    # A name that is often spelt in another way is a common word: "Routes".
    names = {lower: id_ for lower, (_, id_) in known.items() if spellings[lower, True] >= 4 * spellings[lower, False]}
    named = {id_: {names[lower] for lower in found & names.keys()} - {id_} for id_, found in mentions.items()}
    return {id_: lower for lower, id_ in names.items()}, named


def read_lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def only_rare(named: dict[str, set[str]]) -> dict[str, list[str]]:
    """Keep targets that few documents name, and sources with one to three of them."""
    referrers = collections.Counter(target for targets in named.values() for target in targets)
    rare = {id_: sorted(one for one in targets if referrers[one] <= MOST_REFERRERS) for id_, targets in named.items()}
    return {id_: targets for id_, targets in rare.items() if 1 <= len(targets) <= 3}


def fill(documents: dict[str, str], questions: list[Question], most: int) -> Retriever:
    """Index the documents of all questions, and others up to a number."""
    needed = {id_ for question in questions for id_ in (question.source, *question.targets)}
    others = [id_ for id_ in documents if id_ not in needed]
    random.Random(0).shuffle(others)
    kept = needed | set(others[: max(0, most - len(needed))])
    model = ColBERT.from_dense(
        DEFAULT_MODEL, projection="pca", embedding_size=128, device="cpu", max_length_query=128, max_length_document=96
    )
    model.fit_projection([documents[id_] for id_ in others[: min(1000, most)]])
    retriever = Retriever(model)
    retriever.add([(id_, text) for id_, text in documents.items() if id_ in kept], passages=False)
    return retriever


def split(questions: list[Question], seed: int) -> tuple[list[int], list[int]]:
    """Return the positions of training and test questions, which share no document."""
    group = {}

    def find(id_: str) -> str:
        while group.setdefault(id_, id_) != id_:
            id_ = group[id_]
        return id_

    for question in questions:
        for target in question.targets:
            group[find(question.source)] = find(target)
    groups = collections.defaultdict(list)
    for position, question in enumerate(questions):
        groups[find(question.source)].append(position)
    shuffled = list(groups.values())
    random.Random(seed).shuffle(shuffled)
    train, test = [], []
    for positions in shuffled:
        (test if len(test) < 0.4 * len(questions) else train).extend(positions)
    return train, test


class Experiment:
    """The systems, each of which finds documents for questions; all of them use one index."""

    def __init__(self, retriever: Retriever, questions: list[Question]) -> None:
        self.index, self.model = retriever.index, retriever.model
        self.questions = questions
        self.queries = self.encode([question.text for question in questions])
        self.single = self.index.search(self.queries, k=11)
        self.first_hits = [hits[0].id for hits in self.single]
        self.sources = [question.source for question in questions]

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Return the token vectors of queries."""
        return list(self.model.encode_query(texts, packed=True).to("numpy"))

    def read(self, ids: list[str]) -> list[np.ndarray]:
        """Return the token vectors of documents."""
        return list(self.index.get_embeddings(ids).to("numpy"))

    def found(self, matrices: list[np.ndarray]) -> list[list[str]]:
        """Return the ids of the best documents for each query matrix: ten, and the source."""
        return [[hit.id for hit in hits] for hits in self.index.search(matrices, k=11)]

    def pairs(self, positions: list[int], read: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the token vectors of each question and of the document read for it."""
        return zip([self.queries[i] for i in positions], self.read([read[i] for i in positions]), strict=True)

    def expand_text(self, positions: list[int], read: list[str]) -> list[list[str]]:
        """Encode the question and the text of the document as one query."""
        records = self.index.get([read[i] for i in positions])
        texts = [f"{self.questions[i].text} {record.text}" for i, record in zip(positions, records, strict=True)]
        return self.found(self.encode(texts))

    def expand_tokens(self, positions: list[int], read: list[str], weight: float) -> list[list[str]]:
        """Add the document's token vectors, which together weigh `weight` times as much as the question's."""
        pairs = self.pairs(positions, read)
        return self.found([np.concatenate([q, tokens * (weight * len(q) / len(tokens))]) for q, tokens in pairs])

    def rocchio(self, positions: list[int], read: list[str]) -> list[list[str]]:
        """Move each token vector of the question halfway to the token of the document that matches it best."""
        moved = [q + tokens[(q @ tokens.T).argmax(axis=1)] for q, tokens in self.pairs(positions, read)]
        return self.found([rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in moved])

    def read_and_search(self, positions: list[int], read: list[str], dynamics: QueryDynamics) -> list[list[str]]:
        """Search with the query that `dynamics` predicts after reading the document."""
        with torch.inference_mode():
            state = dynamics.begin([self.queries[i] for i in positions])
            state = dynamics(state, self.read([read[i] for i in positions]))
        return self.found(list(state.queries()))

    def measure(self, positions: list[int], found: list[list[str]]) -> list[float]:
        """Return the measures; the source does not count, neither as right nor as wrong."""
        run, qrels = {}, {}
        for i, ids in zip(positions, found, strict=True):
            ranked = [id_ for id_ in ids if id_ != self.sources[i]][:10]
            run[str(i)] = {id_: float(-rank) for rank, id_ in enumerate(ranked)}
            qrels[str(i)] = dict.fromkeys(self.questions[i].targets, 1)
        measured = evaluate(run, qrels, MEASURES)
        return [measured[name] for name in MEASURES]

    def best_weight(self, train: list[int]) -> float:
        """Return the weight of a document's tokens with the best nDCG@10 on training questions."""
        return max(
            (1.0, 4.0, 16.0),
            key=lambda weight: self.measure(train, self.expand_tokens(train, self.first_hits, weight))[0],
        )


Rows = dict[str, tuple[list[float], float]]  # the measures of each system, and its seconds per question


def run_seed(experiment: Experiment, retriever: Retriever, seed: int, options: argparse.Namespace) -> Rows:
    """Train on one split, and measure all systems on its test questions."""
    torch.manual_seed(seed)
    train, test = split(experiment.questions, seed)
    texts = [experiment.questions[i].text for i in test]
    first, source = experiment.first_hits, experiment.sources
    multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=128, query_rows=128))
    rows: Rows = {}
    searches = []

    def add(name: str, run: Callable[[], list[list[str]]], before: float = 0.0) -> float:
        start = time.perf_counter()
        found = run()
        seconds = before + (time.perf_counter() - start) / len(test)
        rows[name] = experiment.measure(test, found), seconds
        return seconds

    def search(**arguments: Any) -> list[list[str]]:
        results = multi_step.search(texts, k=11, **arguments)
        searches.append(statistics.mean(1 + sum(step.searched for step in result.steps) for result in results))
        return [[hit.id for hit in result.hits] for result in results]

    weight = experiment.best_weight(train[: options.tuning_questions])
    once = add("one search", lambda: search(max_steps=0))  # which all others make first, except with an oracle
    add("+ text of the first hit", lambda: experiment.expand_text(test, first), once)
    add("+ tokens of the first hit", lambda: experiment.expand_tokens(test, first, weight), once)
    add("Rocchio", lambda: experiment.rocchio(test, first), once)
    add("multi-step, untrained", lambda: search(min_gain=None))
    examples = [
        ReadingExample(question.text, [question.source, target])
        for question in (experiment.questions[i] for i in train)
        for target in question.targets
    ]
    start = time.perf_counter()
    train_query_dynamics(multi_step, examples, steps=options.steps, batch_size=options.batch_size, seed=seed)
    seconds = time.perf_counter() - start
    add("multi-step, trained", search)
    add("  never stopping", lambda: search(min_gain=None))
    add("  best score of both", lambda: search(merge="best_score"))
    add("  reciprocal ranks", lambda: search(merge="reciprocal_rank"))
    add("  two steps", lambda: search(max_steps=2))
    add("oracle + tokens", lambda: experiment.expand_tokens(test, source, weight))
    add("oracle, trained", lambda: experiment.read_and_search(test, source, multi_step.dynamics))
    found = statistics.mean(first[i] == source[i] for i in test)
    print(
        f"seed {seed}: {len(train)} training and {len(test)} test questions, {len(examples)} examples trained on in "
        f"{seconds:.0f} s; the source is the first hit of {found:.0%}; weight of tokens {weight:g}; searches per "
        f"question {', '.join(f'{count:.2f}' for count in searches)}",
        flush=True,
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debian", type=Path, metavar="FOLDER", help="BEIR folder of package descriptions")
    parser.add_argument("--documents", type=int, default=1500, help="documents to index (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=1000, help="maximum number of questions")
    parser.add_argument("--steps", type=int, default=150, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="examples per batch (default: %(default)s)")
    parser.add_argument("--tuning-questions", type=int, default=40, help="training questions to tune on")
    parser.add_argument("--seeds", type=int, default=3, help="splits and initial weights (default: %(default)s)")
    options = parser.parse_args()

    documents, questions = debian(options.debian) if options.debian else standard_library()
    questions = questions[: options.questions]
    retriever = fill(documents, questions, options.documents)
    print(f"{len(questions)} questions, {len(retriever)} documents", flush=True)
    experiment = Experiment(retriever, questions)
    results = [run_seed(experiment, retriever, seed, options) for seed in range(options.seeds)]

    print(f"\n{'':28}{''.join(f'{name:>20}' for name in MEASURES)}  ms per question")
    for name in results[0]:
        columns = zip(*(measured for measured, _ in (rows[name] for rows in results)), strict=True)
        shown = "".join(f"{statistics.mean(values):13.3f} ± {statistics.pstdev(values):.3f}" for values in columns)
        print(f"{name:28}{shown}  {1000 * statistics.mean(rows[name][1] for rows in results):8.0f}")


if __name__ == "__main__":
    main()
