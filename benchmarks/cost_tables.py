"""The tables of docs/cost.md, computed from what ``benchmarks/cost.py`` has measured.

    python benchmarks/cost_tables.py MEASURED docs/cost.md [--shard 1e8] [--memory 64e9] [--cores 16]

Bytes and build time per token are those of the largest measured index, and proportional to the tokens. The time of a
search grows with a power of the tokens, fitted to the largest sizes; the time on real text is that of the synthetic
documents, multiplied by what the real collection took relative to a synthetic one of its size, per token of the query.
Each table replaces what stands between ``<!-- its name -->`` and ``<!-- end of its name -->``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (10**8, 10**9, 10**10, 10**11)
# Kinds of index of the table, and their names in it.
KINDS = {"ivf-8": "8 bits (default)", "ivf-4": "4 bits", "ivf-1": "1 bit"}
# Documents of 100 tokens per second of two cores with AMX, as docs/encoding.md has them; ONNX Runtime in int8.
ENCODED, ENCODED_CORES, DOCUMENT = 192.4, 2, 100
QUERY = 32  # tokens
FITTED_FROM = 3_000_000  # tokens
# The share of a node's memory that indexes may take.
SHARE = 0.75


@dataclass(frozen=True)
class Costs:
    """What a kind of index costs: bytes, microseconds and milliseconds of one core.

    Parameters
    ----------
    disk, needed
        Bytes per token on disk, and of what stays in memory if the codes are read from the disk.
    build
        Microseconds per token.
    factor, exponent
        A search of real text takes ``factor * tokens ** exponent`` milliseconds.
    largest
        Tokens of the largest index that was measured.
    """

    disk: float
    needed: float
    build: float
    factor: float
    exponent: float
    largest: int

    def search(self, tokens: float) -> float:
        """Return the milliseconds of a search in an index of so many tokens."""
        return float(self.factor * tokens**self.exponent)


def fit(rows: list[dict[str, Any]]) -> Costs:
    """Return the costs of a kind of index, from its rows of synthetic documents and of real ones, without a budget."""
    synthetic = sorted((row for row in rows if row["text"] == "synthetic"), key=lambda row: row["tokens"])
    large = [row for row in synthetic if row["tokens"] >= FITTED_FROM]
    logs = np.log([[row["tokens"], _per_query(row)] for row in large])
    exponent, _ = np.polyfit(logs[:, 0], logs[:, 1], 1)
    last = large[-1]
    text = 1.0
    for real in (row for row in rows if row["text"] != "synthetic"):
        near = min(synthetic, key=lambda row: abs(math.log(row["tokens"] / real["tokens"])))
        text = _per_query(real) / _per_query(near)
    needed = sum(size for name, size in last["kept"].items() if name != "codes") + last["tables"]
    return Costs(
        last["disk"] / last["tokens"],
        needed / last["tokens"],
        1e6 * last["build cpu s"] / last["tokens"],
        text * _per_query(last) / last["tokens"] ** exponent,
        float(exponent),
        last["tokens"],
    )


def _per_query(row: dict[str, Any]) -> float:
    """Return the milliseconds of a search with a query of 32 tokens."""
    return float(row["search ms"] * QUERY / row["query tokens"])


def measured_table(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return the table of the measured indexes."""
    table = [["", "tokens", "bytes per token", "build, µs per token", "memory of the build", "one search", "recall@10"]]
    for row in rows:
        text = "" if row["text"] == "synthetic" else f", {row['text']}"
        budget = f", `max_memory` {row['budget']}" if row["budget"] else ""
        # A search with a budget is another process on the same files: it was not built again.
        built = [f"{1e6 * row['build cpu s'] / row['tokens']:.1f}", _bytes(1e6 * row["build anonymous MB"])]
        table.append(
            [
                f"{KINDS[row['kind']]}{text}{budget}",
                f"{row['tokens']:,}",
                f"{row['disk'] / row['tokens']:.0f}",
                *built,
                f"{row['search ms']:.1f} ms",
                f"{row['recall@10']:.3f}",
            ]
        )
    return table


def collection_table(costs: dict[str, Costs], shard: float, memory: float, cores: int) -> list[list[str]]:
    """Return the table of disk, memory, hours, nodes and queries per second by number of tokens."""
    columns = ["tokens", "", "disk", "least memory", "build, core-hours", "nodes", "core-seconds per query"]
    table = [[*columns, "queries per second"]]
    for tokens in SIZES:
        for kind, cost in costs.items():
            shards = max(1.0, tokens / shard)
            busy = shards * cost.search(tokens / shards) / 1e3  # seconds of one core, on all nodes together
            nodes = math.ceil(tokens * cost.disk / (SHARE * memory))
            cells = [_power(tokens), KINDS[kind], _bytes(tokens * cost.disk), _bytes(tokens * cost.needed)]
            cells += [_digits(tokens * cost.build / 3.6e9), f"{nodes:,}", _digits(busy)]
            table.append([*cells, _digits(cores * nodes / busy)])
    return table


def encoding_table(cores: int) -> list[list[str]]:
    """Return the table of encoding on CPUs."""
    table = [["tokens", f"documents of {DOCUMENT} tokens", "core-hours", f"days on 10 nodes of {cores} cores"]]
    for tokens in SIZES:
        hours = tokens / DOCUMENT / ENCODED / 3600 * ENCODED_CORES
        table.append([_power(tokens), _power(tokens // DOCUMENT), _digits(hours), _digits(hours / cores / 10 / 24)])
    return table


def _power(count: int) -> str:
    return f"10^{round(math.log10(count))}"


def _digits(value: float) -> str:
    """Return a number with two significant digits."""
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def _bytes(count: float) -> str:
    """Return a size with two significant digits."""
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 995:
            return f"{_digits(count)} {unit}"
    return f"{_digits(count / 1000)} TB"


def markdown(table: list[list[str]]) -> str:
    """Return a table as Markdown; its first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + " --- |" * len(table[0]), *lines[1:]])


def insert(page: str, name: str, text: str) -> str:
    """Return a page with a text in the place of what stands between the comments of a name."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    inserted, places = pattern.subn(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
    if places != 1:
        raise ValueError(f"the page has {places} places <!-- {name} --> with an end; expected one.")
    return inserted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="?", help="The file of benchmarks/cost.py.")
    parser.add_argument("page", type=Path, nargs="?", help="Page to put the tables into; default: they are printed.")
    parser.add_argument("--shard", type=float, default=1e8, help="Tokens of a shard.")
    parser.add_argument("--memory", type=float, default=64e9, help="Bytes of memory of a node.")
    parser.add_argument("--cores", type=int, default=16, help="Cores of a node.")
    options = parser.parse_args()
    if options.measured is None:
        print("skipped: give the file that benchmarks/cost.py has written", file=sys.stderr)
        return
    rows = [json.loads(line) for line in options.measured.read_text(encoding="ascii").splitlines()]
    costs = {kind: fit([row for row in rows if row["kind"] == kind and not row["budget"]]) for kind in KINDS}
    tables = {
        "measured costs": measured_table(rows),
        "costs by tokens": collection_table(costs, options.shard, options.memory, options.cores),
        "costs of encoding": encoding_table(options.cores),
    }
    page = options.page.read_text(encoding="utf-8") if options.page else ""
    for name, table in tables.items():
        if options.page:
            page = insert(page, name, markdown(table))
        else:
            print(f"{name}\n\n{markdown(table)}\n")
    print(*(f"{kind}: {cost}" for kind, cost in costs.items()), sep="\n")
    if options.page:
        options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
