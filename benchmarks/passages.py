"""Passages that are encoded by themselves beside late ones, in long documents made of a collection's texts.

    python benchmarks/passages.py path/to/cranfield [--words 3500] [--queries 200] [--tokens 350 128]

The folder is a collection in BEIR layout (corpus.jsonl, queries.jsonl, qrels/test.tsv). Its texts, shuffled, are joined
to documents of so many words; a document is relevant that holds a relevant text. Windows of late passages have the 512
tokens that all-MiniLM-L6-v2 can read. Printed are the CPU seconds of indexing, nDCG@10 and the share of queries whose
best passage overlaps a relevant text, each with the p of a paired randomisation test against the first line.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
from _common import parse_options

from latelier.evaluation import Collection, load_beir
from latelier.retrieve import Passages, Results, Retriever

K = 10
DRAWS = 10_000


def joined(collection: Collection, words: int) -> tuple[list[tuple[str, str]], dict[str, tuple[str, int, int]]]:
    """Return long documents, and for each text its document, start and end."""
    texts = [(id, text) for id, text in collection.texts().items() if text.strip()]
    random.Random(5).shuffle(texts)
    documents: list[tuple[str, str]] = []
    places = {}
    current = ""
    for id, text in texts:
        if current and len(f"{current} {text}".split()) > words:
            documents.append((f"long{len(documents)}", current))
            current = ""
        if current:
            current += "\n\n"
        places[id] = (f"long{len(documents)}", len(current), len(current) + len(text))
        current += text
    return [*documents, (f"long{len(documents)}", current)], places


def measured(results: Results, gold: list[tuple[str, int, int]]) -> tuple[float, float]:
    """Return nDCG@10 of the documents, and whether the best passage overlaps a relevant text."""
    relevant = {document for document, _, _ in gold}
    gains = [1 / np.log2(rank + 2) for rank in range(K)]
    found = sum(gain for gain, result in zip(gains, results, strict=False) if result.id in relevant)
    best = results[0]
    overlaps = any(best.id == document and best.start < end and start < best.end for document, start, end in gold)
    return found / sum(gains[: len(relevant)]), float(overlaps)


def p_value(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the p of a paired randomisation test of the mean."""
    differences = ours - theirs
    signs = np.random.default_rng(0).choice([-1, 1], size=(DRAWS, len(differences)))
    as_large = np.abs((signs * differences).mean(axis=1)) >= abs(differences.mean()) - 1e-12
    return float((as_large.sum() + 1) / (DRAWS + 1))


def main() -> None:
    """Index and search the long documents in each form of passages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=3500)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--tokens", type=int, nargs="+", default=[350, 128])
    options = parse_options(parser)
    collection = load_beir(options.folder)
    documents, places = joined(collection, options.words)
    judged = list(collection.qrels)
    random.Random(5).shuffle(judged)
    asked = []
    for id in judged[: options.queries]:
        gold = [places[each] for each, grade in collection.qrels[id].items() if grade > 0 and each in places]
        if gold:
            asked.append((collection.queries[id], gold))
    print(f"{len(documents)} documents, {len(asked)} queries")
    first = None
    for passages in [Passages(tokens, late=late) for late in (False, True) for tokens in options.tokens]:
        retriever = Retriever(device="cpu", model_options={"max_length_document": 512})
        begin = time.process_time()
        retriever.add(documents, passages=passages)
        seconds = time.process_time() - begin
        found = retriever.search([query for query, _ in asked], k=K, mode="vectors")
        values = np.array([measured(results, gold) for results, (_, gold) in zip(found, asked, strict=True)])
        first = values if first is None else first
        means = ", ".join(
            f"{name} {values[:, i].mean():.4f} (p {p_value(values[:, i], first[:, i]):.3f})"
            for i, name in enumerate(("nDCG@10", "passage first"))
        )
        print(f"{passages}: {seconds:.0f} s, {retriever.index.statistics().tokens:,} vectors, {means}")


if __name__ == "__main__":
    main()
