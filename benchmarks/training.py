"""Cost of a training step compared with sentence-transformers, with the same model, texts, batches and collator.

    python benchmarks/training.py path/to/debian [--repeats 3] [--memory] [--device cpu] [--json results.json]
    python benchmarks/training.py path/to/debian --device cuda --batch 256 [--memory] [--random 768 12]

The folder is a collection in BEIR layout; batches are made of its documents and queries. A step consists of collation,
forward, backward and optimizer, at a learning rate of 0, so that both libraries have equal weights. Seconds are medians
of repeats, in which the libraries take turns; dropout is off, so that the losses can be compared. On a GPU, products
are computed in bfloat16 (autocast), and collation is timed apart, since it runs in other processes there.
`--memory` doubles the batch: on a CPU, in a process each, until a step adds more than 1 GiB; on a GPU, until its memory
is exhausted, with the peak of the memory allocated by each step and its seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import parse_options
from sentence_transformers.multi_vector_encoder import losses as theirs
from sentence_transformers.multi_vector_encoder.data_collator import MultiVectorEncoderDataCollator
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel

from latelier import losses as ours
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.models.location import resolve_name

LENGTH = 300
LIMIT = 1 << 20  # KiB that a step on a CPU may add, for --memory
LONGEST = 8.0  # seconds of a step on a GPU after which larger batches are not tried


def read_texts(folder: Path) -> tuple[list[str], list[str]]:
    """Read queries and documents, shuffled."""
    sides = []
    for name in ("queries", "corpus"):
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        random.Random(0).shuffle(texts)
        sides.append(texts)
    return sides[0], sides[1]


def make_rows(texts: tuple[list[str], list[str]], batch: int, documents: int, *, scored: bool) -> list[dict[str, Any]]:
    rng = random.Random(1)
    rows = []
    for i in range(batch):
        row: dict[str, Any] = {"query": texts[0][i]}
        row |= {f"document_{j}": texts[1][i * documents + j] for j in range(documents)}
        rows.append(row | ({"scores": [rng.random() for _ in range(documents)]} if scored else {}))
    return rows


def make_model(device: str, name: str = DEFAULT_MODEL, shape: Sequence[int] | None = None) -> ColBERT:
    """Return the model; with a shape (dimensions, layers), a random BERT of that shape with the tokenizer of `name`."""
    torch.manual_seed(0)
    weights = {"dtype": torch.float32}
    if shape is None:
        return ColBERT(name, 128, device, max_length_document=LENGTH, model_kwargs=weights).eval()
    dim, layers = shape
    tokenizer = AutoTokenizer.from_pretrained(resolve_name(name))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=max(1, dim // 64),
        intermediate_size=4 * dim,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return ColBERT(folder, 128, device, max_length_document=LENGTH, model_kwargs=weights).eval()


def use_mixed_precision(model: ColBERT) -> None:
    """Run the model's forward in bfloat16 with outputs in float32, as accelerate does for a trainer with ``bf16``."""
    forward = torch.autocast(model.device.type, torch.bfloat16)(model.forward)

    def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
        out = forward(*args, **kwargs)
        return {**out, "token_embeddings": out["token_embeddings"].float()}

    model.forward = call  # type: ignore[method-assign]


def collate(model: ColBERT, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return MultiVectorEncoderDataCollator(preprocess_fn=model.preprocess)(rows)


class Step:
    """One training step with the loss of one of the libraries."""

    def __init__(self, model: ColBERT, loss: nn.Module, rows: list[dict[str, Any]], batch: Any = None) -> None:
        self.loss, self.rows = loss, rows
        self.model = model
        self.batch = batch  # collated already; None: collation is a part of the step
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        self.device = model.device

    def __call__(self) -> float:
        """Take the step; return its loss."""
        batch = dict(collate(self.model, self.rows) if self.batch is None else self.batch)
        labels = batch.pop("label", None)
        names = list(self.rows[0])[: -1 if labels is not None else None]
        columns = [
            {
                key.removeprefix(f"{name}_"): value.to(self.device) if isinstance(value, torch.Tensor) else value
                for key, value in batch.items()
                if key.startswith(f"{name}_")
            }
            for name in names
        ]
        value = self.loss(columns, None if labels is None else labels.to(self.device))
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value.item()


def steps(kind: str, model: ColBERT, rows: list[dict[str, Any]], batch: Any = None) -> dict[str, Callable[[], float]]:
    pairs: dict[str, dict[str, nn.Module]] = {
        "distillation": {
            "sentence-transformers": theirs.MultiVectorDistillKLDivLoss(model),
            "latelier": ours.Distillation(model, normalize_scores=False),
        },
        "contrastive": {
            "sentence-transformers": theirs.MultiVectorMultipleNegativesRankingLoss(model),
            "latelier": ours.Contrastive(model),
        },
        "cached": {
            "sentence-transformers": theirs.CachedMultiVectorMultipleNegativesRankingLoss(model),
            "latelier": ours.CachedContrastive(model),
        },
    }
    return {name: Step(model, loss, rows, batch) for name, loss in pairs[kind].items()}


def count_tokens(model: ColBERT, call: Callable[[], float]) -> tuple[int, int]:
    """Return the number of positions in the document batches, and of those that are not padding."""
    seen = [0, 0]

    def look(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        if (options.get("task") or inputs[0].get("task")) == "document":
            mask = inputs[0]["attention_mask"]
            seen[0] += mask.numel()
            seen[1] += int(mask.sum())

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    call()
    handle.remove()
    return seen[0], seen[1]


def time_steps(kind: str, model: ColBERT, rows: list[dict[str, Any]], repeats: int) -> dict[str, Any]:
    on_gpu = model.device.type == "cuda"
    calls = steps(kind, model, rows, collate(model, rows) if on_gpu else None)
    result: dict[str, Any] = {"work": kind, "batch": len(rows)}
    values = {}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        computed, real = count_tokens(model, call)
        result[f"padding, {name}"] = 1 - real / computed
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            values[name] = call()  # of which .item() waits for the GPU, but not for the optimizer
            if on_gpu:
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
    result |= {f"seconds, {name}": statistics.median(values) for name, values in seconds.items()}
    result["ratio"] = result["seconds, sentence-transformers"] / result["seconds, latelier"]
    result["losses"] = values
    result["difference of losses"] = abs(values["latelier"] - values["sentence-transformers"])
    return result


def peak(kind: str, side: str, batch: int, texts: tuple[list[str], list[str]]) -> int:
    """Return how many KiB one step adds to the memory of this process."""
    model = make_model("cpu")
    steps(kind, model, make_rows(texts, 2, 2, scored=False))[side]()  # allocates gradients and kernels
    before = _most_resident()
    steps(kind, model, make_rows(texts, batch, 2, scored=False))[side]()
    return _most_resident() - before


def _most_resident() -> int:
    """Return the peak memory of this process in KiB; on Linux `ru_maxrss` includes the peak of its parent."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition("VmHWM:")[2].split()[0])


def largest_batch(folder: Path, kind: str, side: str, most: int) -> dict[str, Any]:
    """Double the batch until a step adds more than the limit."""
    sizes = {}
    batch = 4
    while batch <= most:
        command = [sys.executable, __file__, str(folder), "--peak", kind, side, str(batch)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        sizes[batch] = int(output.split()[-1])
        if sizes[batch] > LIMIT:
            break
        batch *= 2
    fitting = max((size for size, kib in sizes.items() if kib <= LIMIT), default=0)
    return {"loss": kind, "side": side, "largest batch": fitting, "MiB": {b: kib >> 10 for b, kib in sizes.items()}}


def largest_batches(model: ColBERT, texts: tuple[list[str], list[str]], first: int, most: int) -> list[dict[str, Any]]:
    """Double the batch until the memory of the GPU is exhausted, or a step takes longer than the limit."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    stopped = set()
    batch = first
    while batch <= min(most, len(texts[0]), len(texts[1]) // 2) and len(stopped) < 4:
        rows = make_rows(texts, batch, 2, scored=False)
        collated = collate(model, rows)
        for kind in ("contrastive", "cached"):
            for side, call in steps(kind, model, rows, collated).items():
                if (kind, side) in stopped:
                    continue
                row = found.setdefault((kind, side), {"loss": kind, "side": side, "largest batch": 0, "MiB": {}})
                row.setdefault("seconds", {})
                taken = _peak_on_gpu(call)
                if taken is None:
                    row["ended by"] = "memory"
                else:
                    row["largest batch"] = batch
                    row["MiB"][batch], row["seconds"][batch] = taken[0] >> 20, round(taken[1], 2)
                    row["ended by"] = "time" if taken[1] > LONGEST else "--most"
                if row["ended by"] != "--most":
                    stopped.add((kind, side))
        batch *= 2
    return list(found.values())


def _peak_on_gpu(call: Callable[[], float]) -> tuple[int, float] | None:
    """Return the bytes allocated at the peak of a step and its seconds; None if the memory is exhausted."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    try:
        call()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_allocated(), time.perf_counter() - begin


def print_tables(results: dict[str, Any]) -> None:
    print("\n| step | batch | theirs, s | ours, s | ratio | padding, theirs | ours | difference of losses |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in results["steps"]:
        shown = [f"{row[f'seconds, {side}']:.2f}" for side in ("sentence-transformers", "latelier")]
        padding = [f"{row[f'padding, {side}']:.0%}" for side in ("sentence-transformers", "latelier")]
        difference = f"{row['difference of losses']:.1e}"
        print(
            "|", " | ".join([row["work"], str(row["batch"]), *shown, f"{row['ratio']:.2f}x", *padding, difference]), "|"
        )
    if results["memory"]:
        print(
            "\n| loss | library | largest batch | ended by | MiB by batch | seconds by batch |"
            + "\n"
            + "| --- " * 6
            + "|"
        )
        for row in results["memory"]:
            ended, seconds = row.get("ended by", "1 GiB"), row.get("seconds", "")
            print(f"| {row['loss']} | {row['side']} | {row['largest batch']} | {ended} | {row['MiB']} | {seconds} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", action="store_true", help="also measure memory")
    parser.add_argument("--most", type=int, help="largest batch tried for memory (default: 256; on a GPU 8192)")
    parser.add_argument(
        "--batch", type=int, default=64, help="queries in a batch; distillation: a quarter (default: 64)"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder or name of the encoder")
    parser.add_argument("--random", type=int, nargs=2, metavar=("DIM", "LAYERS"), help="a random BERT of this shape")
    parser.add_argument("--only", choices=["distillation", "contrastive", "cached", "memory"], help="measure only this")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parse_options(parser)
    texts = read_texts(options.folder)
    if options.peak:
        kind, side, batch = options.peak
        print(peak(kind, side, int(batch), texts))
        return
    model = make_model(options.device, options.model, options.random)
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        use_mixed_precision(model)
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "steps": [], "memory": []}
    for kind, batch, documents in (
        ("distillation", max(1, options.batch // 4), 8),
        ("contrastive", options.batch, 2),
        ("cached", options.batch, 2),
    ):
        if options.only in (None, kind):
            rows = make_rows(texts, batch, documents, scored=kind == "distillation")
            results["steps"].append(time_steps(kind, model, rows, options.repeats))
            print(json.dumps(results["steps"][-1]), flush=True)
    if options.memory and on_gpu:
        results["memory"] = largest_batches(model, texts, options.batch, options.most or 8192)
    elif options.memory:
        for kind, side in (
            ("contrastive", "sentence-transformers"),
            ("contrastive", "latelier"),
            ("cached", "sentence-transformers"),
            ("cached", "latelier"),
        ):
            results["memory"].append(largest_batch(options.folder, kind, side, options.most or 256))
            print(json.dumps(results["memory"][-1]), flush=True)
    print_tables(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
