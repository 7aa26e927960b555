"""How fast MaxSim is computed on this CPU, beside sentence-transformers and maxsim-cpu in the same process.

    python benchmarks/scoring.py [--documents 1000] [--tokens 180] [--repeats 15] [--threads 2] [--json results.json]

Random unit vectors: 32 query tokens against documents of equally many tokens, 128 dims, and one training step
(64 queries, 2 documents each, forward and backward). Medians of repeats, side by side, each with the ratio to
sentence-transformers; beside the int8 times the recall of the float32 top 10. maxsim-cpu is compared where it is
installed (pip install maxsim-cpu).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores as peer_training_scores
from sentence_transformers.util import maxsim as peer_maxsim
from torch.nn.functional import cross_entropy, normalize

from latelier.embeddings import TokenEmbeddings
from latelier.scores import colbert_scores

DIM, QUERY_TOKENS = 128, 32


def median_ms(repeats: int, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time all calls in turn, so that a busy moment of the machine falls on all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def unit(*shape: int) -> torch.Tensor:
    return normalize(torch.randn(*shape), dim=-1)


def search(documents: int, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    query, corpus = unit(QUERY_TOKENS, DIM), unit(documents, tokens, DIM)
    listed = list(corpus)
    packed = TokenEmbeddings(corpus.flatten(0, 1), np.arange(0, documents * tokens + 1, tokens))
    small, small_query = packed.to("int8"), TokenEmbeddings.from_list([query]).to("int8")
    calls: dict[str, Callable[[], Any]] = {
        "sentence-transformers, list": lambda: peer_maxsim([query], listed),
        "sentence-transformers, padded": lambda: peer_maxsim(query[None], corpus),
        "latelier, list": lambda: colbert_scores([query], listed),
        "latelier, packed": lambda: colbert_scores([query], packed),
        "latelier, int8": lambda: colbert_scores(small_query, small),
        "latelier, packed, portable kernels": lambda: _portable(lambda: colbert_scores([query], packed)),
        "latelier, int8, portable kernels": lambda: _portable(lambda: colbert_scores(small_query, small)),
    }
    if importlib.util.find_spec("maxsim_cpu"):
        import maxsim_cpu

        arrays = [document.numpy() for document in listed]
        calls["maxsim-cpu, list"] = lambda: maxsim_cpu.maxsim_scores_variable(query.numpy(), arrays)
        calls["maxsim-cpu, padded"] = lambda: maxsim_cpu.maxsim_scores(query.numpy(), corpus.numpy())
    times = median_ms(repeats, calls)
    queries = [unit(QUERY_TOKENS, DIM) for _ in range(20)]
    exact = colbert_scores(queries, packed).topk(10).indices
    integer = colbert_scores(TokenEmbeddings.from_list(queries).to("int8"), small).topk(10).indices
    pairs = zip(exact.tolist(), integer.tolist(), strict=True)
    recall = statistics.mean(len(set(a) & set(b)) / 10 for a, b in pairs)
    for name, value in times.items():
        row = {"work": "search", "name": name, "ms": value, "ratio": times["sentence-transformers, list"] / value}
        yield row | ({"recall@10": recall} if "int8" in name else {})


def training(repeats: int) -> Iterator[dict[str, Any]]:
    queries, documents = unit(64, QUERY_TOKENS, DIM).requires_grad_(), unit(64, 2, 180, DIM).requires_grad_()
    masks = {
        "queries_mask": torch.ones(64, QUERY_TOKENS, dtype=torch.bool),
        "documents_mask": torch.arange(180) < torch.randint(60, 181, (64, 2, 1)),
    }

    def step(score: Callable[..., torch.Tensor]) -> torch.Tensor:
        queries.grad = documents.grad = None
        loss = cross_entropy(score(queries, documents, **masks), torch.arange(64) * 2)
        loss.backward()
        return loss

    calls = {
        "sentence-transformers": lambda: step(peer_training_scores),
        "latelier": lambda: step(colbert_scores),
        "latelier, plain torch": lambda: step(lambda *a, **k: colbert_scores(*a, **k, backend="torch")),
    }
    times = median_ms(max(3, repeats // 4), calls)
    for name, value in times.items():
        loss = float(calls[name]().detach())
        yield {
            "work": "training",
            "name": name,
            "ms": value,
            "ratio": times["sentence-transformers"] / value,
            "loss": loss,
        }


def _portable(call: Callable[[], Any]) -> Any:
    os.environ["LATELIER_KERNELS"] = "portable"
    try:
        return call()
    finally:
        del os.environ["LATELIER_KERNELS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=180)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the table there too")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(f"{options.documents} documents x {options.tokens} tokens x {DIM} dims, {options.threads} threads")
    rows = [*search(options.documents, options.tokens, options.repeats), *training(options.repeats)]
    for row in rows:
        quality = "".join(f"  {name} {row[name]:.4f}" for name in ("recall@10", "loss") if name in row)
        print(f"{row['work']:9} {row['name']:36} {row['ms']:9.2f} ms  {row['ratio']:6.1f}x{quality}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
