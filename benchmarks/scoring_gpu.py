"""MaxSim on a GPU: time, share of the peak, memory and error, beside the kernels of others.

    python benchmarks/scoring_gpu.py [--quick] [--repeats 20] [--json results.json]

Scoring: 1 and 64 queries of 32 tokens against 10,000 documents of 180 tokens, all scored. Training: 64 and 256 queries
of 32 tokens against 2 and 8 documents of 300 tokens for each, all pairs, forward and backward. 128 dimensions. Masks
with holes drop a tenth of the document tokens at random. Each time is the median of repeats, in ms, by events on the
GPU.

* ``latelier``: `colbert_scores` with its defaults, masks given;
* ``late-interaction-kernels``, ``flash-maxsim``: called directly, where they are installed. Both multiply float32 as
  half precision; flash-maxsim takes no masks with holes;
* ``torch.compile`` and ``torch``: one product in blocks of documents, mask, maximum, sum.

"Of peak" counts the products of unmasked tokens in the forward pass, relative to 990 TFLOP/s, which an H100 has in
bfloat16; a product of two large matrices reaches what the first line says. "Error" is the largest difference of a score
to float64, for the first queries and documents.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from latelier.scores import colbert_scores

QUERY_TOKENS, DIM, MASKED, PEAK = 32, 128, 0.1, 990e12
CHECKED = 16  # queries and documents that are compared with float64


class Shape(NamedTuple):
    """What is scored: numbers of queries and of documents, and the tokens of each document."""

    queries: int
    documents: int
    tokens: int
    gradients: bool
    dtype: torch.dtype
    holes: bool

    def __str__(self) -> str:
        work = "training" if self.gradients else "scoring"
        masks = "holes" if self.holes else "full"
        return f"{work} {self.queries} x {self.documents:,} {str(self.dtype).removeprefix('torch.')} {masks}"


def shapes(*, quick: bool) -> Iterator[Shape]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for holes in (False, True):
            if dtype != torch.float16 or not quick:
                yield from (Shape(n, 10_000, 180, False, dtype, holes) for n in (1, 64))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        sizes = [(64, 2), (64, 8), (256, 2), (256, 8)] if dtype == torch.bfloat16 else [(64, 8), (256, 8)]
        if dtype != torch.float16 or not quick:
            yield from (Shape(n, n * each, 300, True, dtype, True) for n, each in sizes)


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def make_inputs(shape: Shape) -> Inputs:
    sizes = (shape.queries, QUERY_TOKENS, DIM), (shape.documents, shape.tokens, DIM)
    queries, documents = (normalize(torch.randn(*size, device="cuda"), dim=-1).to(shape.dtype) for size in sizes)
    masks = [torch.ones(size[:2], dtype=torch.bool, device="cuda") for size in sizes]
    if shape.holes:
        masks[1] &= torch.rand(masks[1].shape, device="cuda") >= MASKED
    return queries, documents, masks[0], masks[1]


def eager(queries: torch.Tensor, documents: torch.Tensor, queries_mask: torch.Tensor, mask: torch.Tensor):
    similarities = torch.einsum("qid,njd->qnij", queries, documents)
    best = similarities.masked_fill(~mask[None, :, None], -torch.inf).amax(dim=-1).float()
    return best.masked_fill(~queries_mask[:, None], 0.0).sum(dim=-1)


def in_blocks(score: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Score in blocks of documents, whose similarities take 2 GiB."""

    def scores(queries, documents, queries_mask, mask):
        step = max(1, (1 << 30) // (queries.shape[0] * queries.shape[1] * documents.shape[1]))
        parts = zip(documents.split(step), mask.split(step), strict=True)
        return torch.cat([score(queries, part, queries_mask, part_mask) for part, part_mask in parts], dim=1)

    return scores


def systems(shape: Shape) -> dict[str, Callable[..., torch.Tensor]]:
    found: dict[str, Callable[..., torch.Tensor]] = {"latelier": colbert_scores}
    if find_spec("late_interaction_kernels"):
        from late_interaction_kernels import maxsim

        found["late-interaction-kernels"] = maxsim if shape.holes else lambda q, d, *masks: maxsim(q, d)
    if find_spec("flash_maxsim") and not shape.holes:
        from flash_maxsim import flash_maxsim_batched

        found["flash-maxsim"] = lambda q, d, *masks: flash_maxsim_batched(q, d, shared_docs=True)
    if not shape.gradients:
        found["torch.compile"] = in_blocks(torch.compile(eager, dynamic=False))
    if not (shape.gradients and shape.queries * shape.documents > 1 << 18):  # too large to keep
        found["torch"] = eager if shape.gradients else in_blocks(eager)
    return found


def milliseconds(step: Callable[[], object], repeats: int) -> float:
    """Return the median time of a step on the GPU, after three steps that compile and tune."""
    times = []
    for number in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(start.elapsed_time(end))
    return median(times)


def error(scores: torch.Tensor, inputs: Inputs) -> float:
    queries, documents, queries_mask, mask = (side[:CHECKED] for side in inputs)
    exact = eager(queries.double(), documents.double(), queries_mask, mask)
    return float((scores[:CHECKED, :CHECKED].double() - exact).abs().max())


def measure(shape: Shape, name: str, score: Callable[..., torch.Tensor], inputs: Inputs, repeats: int) -> dict:
    queries, documents, *masks = inputs
    if shape.gradients:
        queries, documents = (side.detach().clone().requires_grad_() for side in (queries, documents))
        weights = torch.randn(shape.queries, shape.documents, device="cuda")

    def step() -> torch.Tensor:
        scores = score(queries, documents, *masks)
        if shape.gradients:
            torch.autograd.grad((scores * weights).sum(), (queries, documents))
        return scores

    try:
        time = milliseconds(step, repeats)
    except Exception as failure:  # noqa: BLE001 - what a peer cannot do is part of the table
        return {"shape": str(shape), "system": name, "fails": type(failure).__name__}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    scores = step()
    memory = torch.cuda.max_memory_allocated() - before
    products = 2 * DIM * int(masks[0].sum()) * int(masks[1].sum())
    return {
        "shape": str(shape),
        "system": name,
        "ms": time,
        "TFLOP/s": products / time / 1e9,
        "of peak": products / time * 1e3 / PEAK,
        "MiB": memory / 2**20,
        "error": error(scores.detach(), inputs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="leave out float16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: this benchmark needs a CUDA device, and torch finds none.")
        return
    torch.manual_seed(0)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    reached = 2 * 8192**3 / milliseconds(lambda: matrix @ matrix, options.repeats) / 1e9
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: a large bfloat16 product at {reached:.0f} TFLOP/s"
    )
    print("| shape | system | ms | times ours | TFLOP/s | of peak | extra MiB | error |\n" + "| --- " * 8 + "|")
    rows = []
    for shape in shapes(quick=options.quick):
        inputs = make_inputs(shape)
        own = None
        for name, score in systems(shape).items():
            row = measure(shape, name, score, inputs, options.repeats)
            rows.append(row)
            if "fails" in row:
                print(f"| {shape} | {name} | {row['fails']} |", flush=True)
                continue
            own = own or row["ms"]
            numbers = f"{row['ms']:.3f} | {row['ms'] / own:.1f} | {row['TFLOP/s']:.0f} | {row['of peak']:.0%}"
            print(f"| {shape} | {name} | {numbers} | {row['MiB']:.0f} | {row['error']:.1e} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
