"""Speed of encoding on a GPU compared with sentence-transformers, and where the time goes.

    python benchmarks/encoding_gpu.py path/to/debian [--documents 8192] [--models minilm modernbert] [--json out.json]

The folder is a collection in BEIR layout. Its documents are encoded as they are and, in a second set, joined in threes,
with two models, both projected to 128 dimensions without training: all-MiniLM-L6-v2, and a random encoder of the shape
of ModernBERT-base (149 million parameters) with the same tokenizer. All systems compute in bfloat16 (`--dtype`):

* ``sentence-transformers``: `MultiVectorEncoder.encode`, weights in bfloat16, with the fastest of several batch sizes;
* ``latelier``: weights in bfloat16; ``latelier, float32 weights``: products in bfloat16 (``compute_dtype="bfloat16"``);
* ``latelier, padded``: the first with batches that are padded.

Embeddings stay on the GPU; rows with ``to CPU`` include their way to the CPU, float16 for this library and as numpy for
sentence-transformers. "tokenizer" is the share of the time in which a thread tokenises, which may overlap with the GPU;
"GPU" is the share in which a kernel runs, of which "attention", "products" and "copies" are parts; both come from
a profile of some of the documents. "padding" is the share of padded positions that the encoder computes. "cosine" is
the lowest and the mean one of the token vectors of 256 documents with those computed in float32.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from _common import parse_options
from sentence_transformers import MultiVectorEncoder
from torch.profiler import ProfilerActivity, profile

from latelier.embeddings import TokenEmbeddings
from latelier.models import DEFAULT_MODEL, ColBERT, encoding, engines
from latelier.models.location import resolve_name

PEER = "sentence-transformers"
BATCH_SIZES = (32, 128, 512)
SAMPLE = 256  # documents whose vectors are compared
WARM, PROFILED = 512, 2048  # documents
# What the names of kernels contain, by kind; other kernels are norms, activations, sums and the like.
KINDS = {
    "attention": ("flash", "fmha", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "splitk"),
    "copies": ("memcpy", "memset"),
}
COLUMNS = {"documents/s": ",.0f", "tokens/s": ",.0f", "ratio": ".2f", "tokenizer": ".0%", "GPU": ".0%"}
COLUMNS |= {**dict.fromkeys(KINDS, ".0%"), "padding": ".0%", "least cosine": ".4f", "mean cosine": ".5f"}
Encode = Callable[[list[str]], Any]


def read_documents(folder: Path, count: int) -> dict[str, list[str]]:
    """Return the two sets of documents by name."""
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]
    return {"short": texts, "long": ["\n".join(texts[i : i + 3]) for i in range(0, len(texts), 3)]}


def save_model(name: str, folder: str, options: argparse.Namespace) -> None:
    """Save one of the models in float32."""
    source = options.model
    if name == "modernbert":
        from transformers import AutoTokenizer, ModernBertConfig, ModernBertModel

        torch.manual_seed(0)
        shape = {"num_hidden_layers": options.layers} if options.layers else {}
        config = ModernBertConfig(pad_token_id=0, cls_token_id=101, sep_token_id=102, **shape)
        source = f"{folder}/encoder"
        ModernBertModel(config).save_pretrained(source)
        AutoTokenizer.from_pretrained(resolve_name(options.model)).save_pretrained(source)
    model = ColBERT.from_dense(
        source,
        "orthogonal",
        128,
        "cpu",
        max_length_document=options.length,
        model_kwargs={"dtype": torch.float32},
    )
    model.save_pretrained(folder)


def systems(folder: str, options: argparse.Namespace) -> dict[str, tuple[Any, Encode]]:
    """Return the model and the function of each system, by its name."""
    dtype = getattr(torch, options.dtype)  # of the encoder, and of the projection after it
    peer = MultiVectorEncoder(folder, device=options.device, model_kwargs={"dtype": dtype}).to(dtype)
    ours = ColBERT(folder, device=options.device, model_kwargs={"dtype": dtype}).to(dtype)
    exact = ColBERT(folder, device=options.device)

    def padded(texts: list[str]) -> Any:
        with mock.patch.object(engines, "ENGINES", [each for each in engines.ENGINES if not each.is_packed]):
            return ours.encode_document(texts, packed=True)

    def stream(texts: list[str]) -> Any:
        return list(ours.encode_stream(texts, packed=True, precision="float16"))

    return {
        PEER: (peer, peer.encode_document),
        "latelier": (ours, partial(ours.encode_document, packed=True)),
        "latelier, padded": (ours, padded),
        "latelier, float32 weights": (exact, partial(exact.encode_document, packed=True, compute_dtype=options.dtype)),
        f"{PEER}, to CPU": (peer, partial(peer.encode_document, convert_to_numpy=True)),
        "latelier, to CPU": (ours, stream),
    }


def seconds(encode: Encode, texts: list[str], device: str) -> float:
    _wait(device)
    begin = time.perf_counter()
    encode(texts)
    _wait(device)
    return time.perf_counter() - begin


def best_batch(encode: Encode, texts: list[str], device: str) -> int:
    """Return the fastest batch size for a system."""
    encode(texts[:64])
    return min(BATCH_SIZES, key=lambda size: seconds(partial(encode, batch_size=size), texts[:PROFILED], device))  # type: ignore[call-arg]


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add the seconds of each call of a function to a list."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - begin)

    with mock.patch.object(owner, name, call):
        yield


@contextmanager
def counted(model: Any, seen: list[int]) -> Iterator[None]:
    """Count the positions that the encoder computes."""

    def look(_: Any, inputs: tuple[dict[str, Any]]) -> None:
        seen.append(inputs[0]["input_ids"].numel())

    handle = model[0].register_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def shares(model: Any, encode: Encode, texts: list[str], tokens: int, device: str) -> dict[str, float]:
    """Return the shares of the time in the tokenizer and in kernels, and of padding in what the encoder computes."""
    spent: list[float] = []
    seen: list[int] = []
    owner, name = (model, "preprocess") if type(model) is MultiVectorEncoder else (encoding, "tokenize_window")
    with counted(model, seen):
        encode(texts)
    with timed(owner, name, spent):
        taken = seconds(encode, texts, device)
    found = {"tokenizer": sum(spent) / taken, "padding": 1 - tokens / sum(seen)}
    if device == "cpu":
        return found
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        seconds(encode, texts, device)
    kernels = {event.key.lower(): event.self_device_time_total / 1e6 for event in profiled.key_averages()}
    found["GPU"] = sum(kernels.values()) / taken
    for kind, parts in KINDS.items():
        found[kind] = sum(time for name, time in kernels.items() if any(part in name for part in parts)) / taken
    return found


def measure(name: str, documents: dict[str, list[str]], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(name, folder, options)
        found = systems(folder, options)
    exact_model = found["latelier, float32 weights"][0]
    for kind, texts in documents.items():
        exact = exact_model.encode_document(texts[:SAMPLE], packed=True, compute_dtype="float32").to("cpu")
        profiled = texts[: min(len(texts) // 2, PROFILED)]
        lengths = found["latelier"][1](texts).lengths
        size = best_batch(found[PEER][1], texts, options.device)
        rates: dict[str, float] = {}
        for system, (model, encode) in found.items():
            call = partial(encode, batch_size=size) if model is found[PEER][0] else encode  # type: ignore[call-arg]
            call(texts[:WARM])
            rates[system] = len(texts) / min(seconds(call, texts, options.device) for _ in range(options.repeats))
            row: dict[str, Any] = {"model": f"{name}, {kind}", "system": system}
            row |= {"documents/s": rates[system], "tokens/s": rates[system] * lengths.mean()}
            row["ratio"] = rates[system] / rates[f"{PEER}, to CPU" if system.endswith("to CPU") else PEER]
            row |= shares(model, call, profiled, lengths[: len(profiled)].sum(), options.device)
            row |= cosines(call(texts[:SAMPLE]), exact)
            row["batch size"] = size if model is found[PEER][0] else None
            rows.append(row)
            print_row(row)
    return rows


def cosines(encoded: Any, exact: TokenEmbeddings) -> dict[str, float]:
    rows = encoded[0] if isinstance(encoded, list) and isinstance(encoded[0], TokenEmbeddings) else encoded
    packed = rows if isinstance(rows, TokenEmbeddings) else TokenEmbeddings.from_list(rows)
    found = torch.cosine_similarity(torch.as_tensor(packed.to("cpu").vectors).float(), exact.vectors.float(), dim=-1)
    return {"least cosine": found.min().item(), "mean cosine": found.mean().item()}


def print_row(row: dict[str, Any]) -> None:
    system = row["system"] + (f" ({row['batch size']})" if row["batch size"] else "")
    cells = [format(row[name], spec) if name in row else "" for name, spec in COLUMNS.items()]
    print("|", " | ".join([row["model"], system, *cells]), "|", flush=True)


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=8192)
    parser.add_argument("--length", type=int, default=512, help="maximum document length in tokens")
    parser.add_argument("--models", nargs="+", choices=["minilm", "modernbert"], default=["minilm", "modernbert"])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder or name of all-MiniLM-L6-v2")
    parser.add_argument("--layers", type=int, help="layers of the random encoder; default: those of ModernBERT-base")
    parser.add_argument("--repeats", type=int, default=1, help="the fastest of so many runs counts")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser, default=torch.cuda.is_available())
    documents = read_documents(options.folder, options.documents)
    print("| model | system |", " | ".join(COLUMNS), "|\n| --- | --- |" + " --- |" * len(COLUMNS))
    rows = [row for name in options.models for row in measure(name, documents, options)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
