"""Speed of MaxSim on this CPU, compared with other libraries in the same process.

    python benchmarks/scoring.py [--documents 1000] [--tokens 180] [--repeats 15] [--threads 2] [--json results.json]
    python benchmarks/scoring.py --only search --only ragged --only threads     # scoring one query, and nothing else
    .ci/isa avx2 python benchmarks/scoring.py                                   # as on a processor with AVX2 only

Vectors are random unit vectors of 128 dimensions, queries have 32 tokens. The script measures one query, with documents
of the same length ("search") and of many lengths ("ragged"); the same with one thread and with two, on idle cores and
while another process keeps one core busy ("threads"); 64 queries; a training step (64 queries, 2 documents each,
forward and backward) with the memory that it adds to its inputs; and the first call of a process. Times
are medians of repeats, in which all systems take turns, with the ratio to sentence-transformers; where numbers are not
float32, the recall of the float32 top 10 is shown. Gop/s counts multiplications and additions. Compare it with the
peak, which is that of a large float32 matrix product: int8 can reach four times the peak with integer dot products.

maxsim-cpu and NumKong are compared if they are installed (pip install "latelier[benchmarks]"). Memory is measured on
Linux only, each step in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _busy import one_busy_core
from _common import median_ms
from _peers_of_scoring import maxsim_cpu_calls, numkong_calls
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores as peer_training_scores
from sentence_transformers.util import maxsim as peer_maxsim
from torch.nn.functional import cross_entropy, normalize

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.library import instruction_set, supported
from latelier.scores import colbert_scores

DIM, QUERY_TOKENS = 128, 32
Row = dict[str, Any]
TRAINING: dict[str, Callable[..., torch.Tensor]] = {
    "sentence-transformers": peer_training_scores,
    "latelier": colbert_scores,
    "latelier, plain torch": lambda *a, **k: colbert_scores(*a, **k, backend="torch"),
}


def unit(*shape: int) -> torch.Tensor:
    return normalize(torch.randn(*shape), dim=-1)


def pack(vectors: torch.Tensor) -> TokenEmbeddings:
    n, tokens, _ = vectors.shape
    return TokenEmbeddings(vectors.flatten(0, 1), np.arange(n + 1) * tokens)


def rows(work: str, times: dict[str, float], reference: str, multiplications: int) -> Iterator[Row]:
    for name, value in times.items():
        speed = 2e-6 * multiplications / value
        yield {"work": work, "name": name, "ms": value, "ratio": times[reference] / value, "Gop/s": speed}


def search(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    """Measure one query with documents of the same length."""
    yield from one_query("search", [tokens] * documents, repeats)


def ragged(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    """Measure one query with documents of 1 to twice the number of tokens."""
    yield from one_query("ragged", torch.randint(1, 2 * tokens, (documents,)).tolist(), repeats)


def one_query(work: str, lengths: list[int], repeats: int) -> Iterator[Row]:
    query = unit(QUERY_TOKENS, DIM)
    listed = list(unit(sum(lengths), DIM).split(lengths))
    packed, packed_query = TokenEmbeddings.from_list(listed), pack(query[None])
    forms = {name: (packed_query.to(name), packed.to(name)) for name in ("float16", "bfloat16", "int8")}
    calls: dict[str, Callable[[], Any]] = {
        "sentence-transformers, list": lambda: peer_maxsim([query], listed),
        "latelier, list": lambda: colbert_scores([query], listed),
        "latelier, packed": lambda: colbert_scores(packed_query, packed),
        "latelier, int8, float query": lambda: colbert_scores(packed_query, forms["int8"][1]),
    }
    if len(set(lengths)) == 1:
        corpus = torch.stack(listed)
        calls["sentence-transformers, padded"] = lambda: peer_maxsim(query[None], corpus)
        calls["latelier, padded"] = lambda: colbert_scores(query[None], corpus)
    for name, (left, right) in forms.items():
        calls[f"latelier, {name}"] = lambda left=left, right=right: colbert_scores(left, right)
    for isa in supported():
        for name, sides in {"packed": (packed_query, packed), "int8": forms["int8"]}.items():
            if isa != instruction_set():
                calls[f"latelier, {name}, {isa}"] = lambda isa=isa, sides=sides: _forced(isa, sides)
    calls |= maxsim_cpu_calls(query, listed) | numkong_calls(query, listed)
    queries = pack(unit(20, QUERY_TOKENS, DIM))
    exact = colbert_scores(queries, packed).topk(10).indices.tolist()
    found = {
        f"latelier, {name}": colbert_scores(queries.to(name), right).topk(10).indices.tolist()
        for name, (_, right) in forms.items()
    }
    approximate = [numkong_calls(query, listed) for query in queries]
    for name in [name for name in calls if "approximate" in name]:
        found[name] = [torch.from_numpy(of_query[name]()).topk(10).indices.tolist() for of_query in approximate]
    recalls = {
        name: statistics.mean(len(set(a) & set(b)) / 10 for a, b in zip(exact, best, strict=True))
        for name, best in found.items()
    }
    times = median_ms(repeats, calls)
    for row in rows(work, times, "sentence-transformers, list", QUERY_TOKENS * sum(lengths) * DIM):
        yield row | ({"recall@10": recalls[row["name"]]} if row["name"] in recalls else {})


def threads(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    """Measure one query with one thread and with two: on idle cores, and while another process keeps one core busy."""
    query, corpus = pack(unit(1, QUERY_TOKENS, DIM)), pack(unit(documents, tokens, DIM))
    before = torch.get_num_threads()
    for state in ("idle", "one core busy"):
        with one_busy_core() if state != "idle" else nullcontext():
            forms = {name: (query.to(name), corpus.to(name)) for name in ("float32", "float16", "int8")}
            forms["int8, float query"] = query, forms["int8"][1]
            for name, sides in forms.items():
                calls = {n: lambda n=n, sides=sides: _with_threads(n, sides) for n in (1, 2)}
                times = median_ms(repeats, calls, turn=3)
                for n, value in times.items():
                    row = {"work": "threads", "name": f"{name}, {n} threads, {state}", "ms": value}
                    yield row | {"times one thread": value / times[1]}
    torch.set_num_threads(before)


def _with_threads(number: int, sides: tuple[TokenEmbeddings, TokenEmbeddings]) -> torch.Tensor:
    torch.set_num_threads(number)
    return colbert_scores(*sides)


def batch(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    queries, corpus = unit(64, QUERY_TOKENS, DIM), unit(documents, tokens, DIM)
    left, right = pack(queries), pack(corpus)
    small, half = (left.to("int8"), right.to("int8")), (left.to("bfloat16"), right.to("bfloat16"))
    calls = {
        "sentence-transformers, padded": lambda: peer_maxsim(queries, corpus),
        "latelier, packed": lambda: colbert_scores(left, right),
        "latelier, bfloat16": lambda: colbert_scores(*half),
        "latelier, int8": lambda: colbert_scores(*small),
    }
    work = 64 * QUERY_TOKENS * documents * tokens * DIM
    yield from rows("batch", median_ms(max(3, repeats // 5), calls), "sentence-transformers, padded", work)


def peak(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    """Measure the product of large float32 matrices, as a reference for the other speeds."""
    square = torch.randn(2048, 2048)
    times = median_ms(repeats, {"torch, 2048 x 2048 x 2048": lambda: square @ square})
    yield from rows("peak", times, "torch, 2048 x 2048 x 2048", 2048**3)


def training_step(score: Callable[..., torch.Tensor], size: int = 64, tokens: int = 180) -> Callable[[], torch.Tensor]:
    queries, documents = unit(size, QUERY_TOKENS, DIM).requires_grad_(), unit(size, 2, tokens, DIM).requires_grad_()
    masks = {
        "queries_mask": torch.ones(size, QUERY_TOKENS, dtype=torch.bool),
        "documents_mask": torch.arange(tokens) < torch.randint(tokens // 3, tokens + 1, (size, 2, 1)),
    }

    def step() -> torch.Tensor:
        queries.grad = documents.grad = None
        loss = cross_entropy(score(queries, documents, **masks), torch.arange(size) * 2)
        loss.backward()
        return loss.detach()

    return step


def training(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    calls = {}
    for name, score in TRAINING.items():
        torch.manual_seed(1)  # the same numbers for all
        calls[name] = training_step(score)
    losses = {name: float(step()) for name, step in calls.items()}
    memory = {name: float(_in_child("--memory", name)) for name in TRAINING if sys.platform == "linux"}
    work = 3 * 64 * QUERY_TOKENS * 128 * 180 * DIM  # forward, and twice as much for a full backward pass
    for row in rows("training", median_ms(max(3, repeats // 4), calls), "sentence-transformers", work):
        yield row | {"loss": losses[row["name"]]} | ({"MiB": memory[row["name"]]} if memory else {})


def extra_memory(name: str) -> float:
    """Return how many MiB a training step adds to the memory of this process."""
    training_step(TRAINING[name], size=4, tokens=20)()  # starts threads
    step = training_step(TRAINING[name])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def first_calls(documents: int, tokens: int, repeats: int) -> Iterator[Row]:
    for form in ("float32", "bfloat16", "int8"):
        yield {"work": "first", "name": f"latelier, {form}", "ms": 1e3 * float(_in_child("--first-call", form))}


def first_call(form: str) -> float:
    """Return the seconds of the first scoring call of a process, without the imports of torch and latelier."""
    queries, documents = pack(unit(1, QUERY_TOKENS, DIM)).to(form), pack(unit(3, 20, DIM)).to(form)
    begin = time.perf_counter()
    colbert_scores(queries, documents)
    return time.perf_counter() - begin


def _in_child(*arguments: str, **environment: str) -> str:
    command = [sys.executable, __file__, "--threads", str(torch.get_num_threads()), *arguments]
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return child.stdout


def _forced(kernels: str, sides: tuple[TokenEmbeddings, TokenEmbeddings]) -> torch.Tensor:
    os.environ["LATELIER_KERNELS"] = kernels
    instruction_set.cache_clear()
    try:
        return colbert_scores(*sides)
    finally:
        del os.environ["LATELIER_KERNELS"]
        instruction_set.cache_clear()


SECTIONS: dict[str, Callable[[int, int, int], Iterator[Row]]] = {
    "search": search,
    "ragged": ragged,
    "threads": threads,
    "batch": batch,
    "peak": peak,
    "training": training,
    "first": first_calls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=180)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure this section; may be given again")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--memory", choices=TRAINING, help=argparse.SUPPRESS)
    parser.add_argument("--first-call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    if options.memory or options.first_call:
        print(extra_memory(options.memory) if options.memory else first_call(options.first_call))
        return
    print(
        f"{options.documents} documents x {options.tokens} tokens x {DIM} dims, {options.threads} threads, "
        f"kernels for {instruction_set().name}"
    )
    table = []
    for section in options.only or SECTIONS:
        table += SECTIONS[section](options.documents, options.tokens, options.repeats)
    for row in table:
        rest = "".join(f"  {name} {row[name]:.3f}" for name in ("recall@10", "loss", "times one thread") if name in row)
        rest += f"  {row['MiB']:.0f} MiB" if "MiB" in row else ""
        ratio = f"{row['ratio']:6.1f}x {row['Gop/s']:7.0f} Gop/s" if "ratio" in row else ""
        print(f"{row['work']:9} {row['name']:40} {row['ms']:9.2f} ms {ratio}{rest}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
