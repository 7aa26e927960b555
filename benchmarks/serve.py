"""Queries per second and latencies of `latelier serve`, by the number of clients.

    python benchmarks/serve.py path/to/scifact [--documents 5000] [--seconds 10] [--clients 1 8 64] [--effort fast]

The folder is a collection in BEIR layout. Its documents are indexed once (IVF, the default model) and served by a
process of its own with the exported encoder (extra ``onnx``; ``--compute-dtype int8`` exports it with integer weights)
or torch (``--backend torch``). Each client sends the next query when it has the answer to its last one, over one
connection. ``texts`` are encoded by the server; ``vectors`` are sent as token vectors. The first searches of the
process are not measured.

``CPU ms`` is the processor time of the server per query, which other work on the machine changes less than the rest.
``own MB`` is the memory of the process itself; ``mapped MB`` are pages of files in memory, most of them the index's and
the model's, which the system takes back when it needs them. All clients are coroutines of this process; ``client`` is
the share of one core that they use, which is not the server's. Then the table of docs/serving.md, and ``/v1/encode``
beside `encode_document` of a model in this process: 64 documents a request, in turns, and the largest difference.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import parse_options, sample
from safetensors.numpy import load as load_arrays

from latelier import indexes
from latelier.evaluation import load_beir
from latelier.retrieve import Retriever

WARM_SECONDS = 1


def make_index(options: argparse.Namespace) -> tuple[Path, list[str], list[list[list[float]]]]:
    """Return the folder of the index, of an earlier run if there was one, and queries as texts and as vectors."""
    collection = load_beir(options.folder, "test", on_problem="skip")
    folder = options.index or Path(f"/tmp/latelier-serve-{options.folder.name}-{options.documents}")
    if not folder.is_dir():
        texts = collection.texts()
        with Retriever(index=indexes.IVF(folder), device="cpu") as retriever:
            documents = ((id, texts[id]) for id in sample(collection, options.documents))
            retriever.add(documents, show_progress=True)
            if options.backend != "torch":
                retriever.export_encoder()
    queries = list(collection.queries.values())
    with Retriever.open(folder, read_only=True, device="cpu") as retriever:
        matrices = [matrix.tolist() for matrix in retriever.model.encode_query(queries[:64])]
    return folder, queries, matrices


def export_int8(folder: Path) -> Path:
    """Return the folder of the index's encoder with integer weights, exported beside the index."""
    exported = folder.with_name(f"{folder.name}-int8")
    if not exported.is_dir():
        with Retriever.open(folder, read_only=True, device="cpu", backend="torch") as retriever:
            retriever.model.export(exported, compute_dtype="int8")
    return exported


async def client(address: tuple[str, int], bodies: Iterator[bytes], until: float, times: list[float]) -> int:
    """Send queries one after the other; return the number of errors."""
    reader, writer = await asyncio.open_connection(*address)
    errors = 0
    while time.perf_counter() < until:
        body = next(bodies)
        begin = time.perf_counter()
        writer.write(
            b"POST /v1/indexes/served/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        times.append(time.perf_counter() - begin)
        errors += b" 200 " not in head.partition(b"\r\n")[0]
    writer.close()
    return errors


async def load(address: tuple[str, int], bodies: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Return queries per second, percentiles of the latency in milliseconds, and errors."""
    source, times = itertools.cycle(bodies), []
    await asyncio.gather(*(client(address, source, time.perf_counter() + seconds / 5, []) for _ in range(clients)))
    begin = time.perf_counter()
    errors = await asyncio.gather(*(client(address, source, begin + seconds, times) for _ in range(clients)))
    elapsed = time.perf_counter() - begin
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    percentiles = {"p50 ms": cuts[49], "p95 ms": cuts[94], "p99 ms": cuts[98]}
    return {"queries/s": len(times) / elapsed, **{k: 1e3 * v for k, v in percentiles.items()}, "errors": sum(errors)}


def compare_encoding(url: str, folder: Path, server: psutil.Process, texts: list[str], turns: int = 3) -> None:
    """Print texts per second of `/v1/encode` and of `encode_document`, by the clock and by processor time."""
    body = json.dumps({"texts": texts, "input_type": "document"}).encode()
    headers = {"content-type": "application/json", "accept": "application/octet-stream"}

    def ask() -> np.ndarray:
        with urllib.request.urlopen(urllib.request.Request(f"{url}v1/encode", body, headers)) as answer:
            return load_arrays(answer.read())["vectors"]

    with Retriever.open(folder, read_only=True, device="cpu", backend="torch") as retriever:
        calls = {
            "/v1/encode": (ask, server),
            "encode_document": (
                lambda: retriever.model.encode_document(texts, packed=True).to("numpy").vectors,
                psutil.Process(),
            ),
        }
        served, own = (call() for call, _ in calls.values())
        print(f"\n/v1/encode: largest difference {np.abs(served - own).max():.1e} of {len(own):,} vectors")
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(turns):
            for name, (call, process) in calls.items():
                begin, before = time.perf_counter(), sum(process.cpu_times()[:2])
                call()
                seconds[name].append((time.perf_counter() - begin, sum(process.cpu_times()[:2]) - before))
    for name, found in seconds.items():
        wall, cpu = (len(texts) / statistics.median(each) for each in zip(*found, strict=True))
        print(f"{name:16}{wall:8.1f} texts/s{cpu:8.1f} texts per second of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--effort", default="balanced")
    parser.add_argument("--backend", choices=["auto", "torch"], default="auto")
    parser.add_argument("--compute-dtype", choices=["float32", "int8"], default="float32")
    parser.add_argument("--index", type=Path, help="folder of the index; made if missing")
    options = parse_options(parser)
    folder, queries, matrices = make_index(options)
    command = [sys.executable, "-c", "from latelier.cli import main; main()", "serve", f"served={folder}"]
    command += ["--port", "0", "--no-log", "--read-only", "--backend", options.backend, "--device", "cpu"]
    if options.compute_dtype == "int8":
        command += ["--model", str(export_int8(folder))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline().split()[1].rpartition(":")[2])
        common: dict[str, Any] = {"k": options.k, "mode": "vectors", "effort": options.effort}
        kinds = {
            "texts": [json.dumps({"query": query, **common}).encode() for query in queries],
            "vectors": [json.dumps({"vectors": [matrix], **common}).encode() for matrix in matrices],
        }
        server, own = psutil.Process(process.pid), psutil.Process()
        columns = ("queries/s", "p50 ms", "p95 ms", "p99 ms", "errors", "CPU ms", "own MB", "mapped MB", "client")
        table = ["| clients | queries/s | p50 | p99 |", "| --- | --- | --- | --- |"]
        print(f"{'queries':9}{'clients':>8}" + "".join(f"{column:>11}" for column in columns))
        for kind, bodies in kinds.items():
            asyncio.run(load(("127.0.0.1", port), bodies, 8, WARM_SECONDS))
            for clients in options.clients:
                begin, before = time.perf_counter(), [sum(each.cpu_times()[:2]) for each in (server, own)]
                row = asyncio.run(load(("127.0.0.1", port), bodies, clients, options.seconds))
                used = [sum(each.cpu_times()[:2]) - cpu for each, cpu in zip((server, own), before, strict=True)]
                elapsed = time.perf_counter() - begin
                row |= {"CPU ms": 1e3 * used[0] / elapsed / row["queries/s"], "client": used[1] / elapsed}
                memory = server.memory_info()
                mapped = getattr(memory, "shared", 0)  # of Linux
                row |= {"own MB": (memory.rss - mapped) / 1e6, "mapped MB": mapped / 1e6}
                cells = "".join(f"{row[column]:11.{2 if column == 'client' else 1}f}" for column in columns)
                print(f"{kind:9}{clients:8d}{cells}", flush=True)
                if kind == "texts":
                    rounded = (f"{row['queries/s']:.0f}", f"{row['p50 ms']:.0f} ms", f"{row['p99 ms']:.0f} ms")
                    table.append(f"| {clients} | {' | '.join(rounded)} |")
        print("", *table, sep="\n")
        texts = load_beir(options.folder, "test", on_problem="skip").texts()
        compare_encoding(f"http://127.0.0.1:{port}/", folder, server, list(texts.values())[:64])
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
