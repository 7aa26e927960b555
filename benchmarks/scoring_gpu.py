"""A training step with in-batch scores on a GPU: time, memory, and share of the GPU's peak speed.

    python benchmarks/scoring_gpu.py [--dtype bfloat16] [--queries 256] [--documents 512] [--json results.json]

Queries have 32 tokens, documents 300, a tenth of them masked at random positions; 128 dimensions. Each time is the
median of forward and backward passes with

* ``latelier``: `colbert_scores` with its defaults;
* ``latelier, torch``: the same with ``backend="torch"``, which is used without the extra 'gpu';
* ``eager torch``: all similarities in one product, then mask, maximum and sum;
* ``late-interaction-kernels``: its padded `maxsim` with masks, called directly.

The column "of peak" counts only the products of real tokens in the forward pass, relative to the speed of one large
bfloat16 product on the same GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import normalize

from latelier.scores import colbert_scores
from latelier.scores.engines import cuda

QUERY_TOKENS, DOCUMENT_TOKENS, DIM, MASKED = 32, 300, 128, 0.1


def eager(
    queries: torch.Tensor, documents: torch.Tensor, queries_mask: torch.Tensor, documents_mask: torch.Tensor
) -> torch.Tensor:
    similarities = torch.einsum("qid,njd->qnij", queries, documents)
    best = similarities.masked_fill(~documents_mask[None, :, None], -torch.inf).amax(dim=-1).float()
    return best.masked_fill(~queries_mask[:, None], 0.0).sum(dim=-1)


def systems() -> dict[str, Callable[..., torch.Tensor]]:
    found: dict[str, Callable[..., torch.Tensor]] = {
        "latelier": colbert_scores,
        "latelier, torch": lambda *inputs: colbert_scores(*inputs, backend="torch"),
        "eager torch": eager,
    }
    if find_spec("late_interaction_kernels"):
        from late_interaction_kernels import maxsim

        found["late-interaction-kernels"] = maxsim
    return found


def seconds(step: Callable[[], object], repeats: int) -> float:
    """Return the median time of a step on the GPU, after three steps that compile and tune."""
    times = []
    for number in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(start.elapsed_time(end) / 1000)
    return median(times)


def peak_rate(repeats: int) -> float:
    """Return the multiplications and additions per second of one large bfloat16 product."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / seconds(lambda: matrix @ matrix, repeats)


def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    shapes = (options.queries, QUERY_TOKENS, DIM), (options.documents, DOCUMENT_TOKENS, DIM)
    vectors = [normalize(torch.randn(*shape, device="cuda"), dim=-1).to(dtype).requires_grad_() for shape in shapes]
    masks = [torch.ones(shapes[0][:2], dtype=torch.bool, device="cuda"), torch.rand(shapes[1][:2]).cuda() >= MASKED]
    products = 2 * DIM * int(masks[0].sum()) * int(masks[1].sum())
    peak = peak_rate(options.repeats)
    labels = torch.arange(options.queries, device="cuda") % options.documents

    def step(score: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        loss = torch.nn.functional.cross_entropy(score(*vectors, *masks), labels)
        return [loss.detach(), *torch.autograd.grad(loss, vectors)]

    rows, reference = [], None
    for name, score in systems().items():
        reference = step(score) if reference is None else reference
        difference = max(float((ours - first).abs().max()) for ours, first in zip(step(score), reference, strict=True))
        time = seconds(lambda score=score: step(score), options.repeats)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(score)
        memory = torch.cuda.max_memory_allocated() - before
        share = products / time / peak
        rows.append({"system": name, "ms": time * 1e3, "MiB": memory / 2**20, "share": share, "difference": difference})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: this benchmark needs a CUDA device, and torch finds none.")
        return
    if not cuda.is_installed():
        print("the extra 'gpu' is not installed, so latelier uses plain torch: pip install \"latelier[gpu]\"")
    rows = measure(options)
    print(f"{torch.cuda.get_device_name()}, {options.dtype}, {options.queries} x {options.documents}")
    for row in rows:
        print("{system:26} {ms:9.2f} ms {MiB:9.0f} MiB {share:6.1%} of peak, differs by {difference:.1e}".format(**row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
