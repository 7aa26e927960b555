"""One step of an index in a process of its own: prints the peak of its resident memory, and what a search found."""

import json
import sys
from pathlib import Path

import numpy as np

from latelier import indexes

DIM, DOCUMENTS, TOKENS, MB = 64, 10000, 80, 500_000
KINDS = {"flat": (indexes.Flat, {}), "ivf": (indexes.IVF, {"nbits": 8})}


def documents():
    topics = np.random.default_rng(9).standard_normal((200, DIM), dtype="float32")
    for first in range(0, DOCUMENTS, 100):
        rng = np.random.default_rng(first)
        own = topics[rng.integers(0, 200, (100, TOKENS)) % rng.integers(3, 200, (100, 1))]
        vectors = own + rng.standard_normal((100, TOKENS, DIM), dtype="float32")
        yield from vectors / np.linalg.norm(vectors, axis=2, keepdims=True)


def resident(name):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def main(step, kind, folder, budget):
    make, options = KINDS[kind]
    with make() as small:  # loads everything else
        small.add("a", np.eye(DIM))
        small.search(np.eye(DIM))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before, found = resident("VmRSS"), []
    with make(folder, max_memory=int(budget) or None, **options) as index:
        if step == "build":
            index.add(range(DOCUMENTS), documents())
        elif step == "texts":
            count = int(budget) // 500_000  # 2 MB of texts and metadata each, four times the budget
            texts, metadata = (
                (f"{i} " + "word " * 200_000 for i in range(count)),
                ({"n": "é" * MB} for _ in range(count)),
            )
            index.add((f"{i}" * 100 for i in range(count)), (np.eye(2, DIM) for _ in range(count)), texts, metadata)
            index.compact(keywords=True)
            assert index.verify().is_whole
            assert len(index.search(np.eye(2, DIM), filter="n LIKE 'é%'", k=count)[0]) == count
        else:
            queries = [matrix[:12] for matrix in list(documents())[:: DOCUMENTS // 20]] if step == "queries" else []
            queries = queries or list(np.load(folder + ".npy"))
            if step == "queries":
                np.save(folder + ".npy", np.stack(queries))
            found = [index.search(query, 5)[0] for query in queries]
            found += index.search(queries, 5, filter="id % 3 = 0")
            found += index.search(queries, 5, **({} if kind == "flat" else {"effort": "exact"}))
        peak = resident("VmHWM") - before
        report = str(index.memory)
    sys.stdout.write(json.dumps({"peak": peak, "found": found, "report": report}))


if __name__ == "__main__":
    main(*sys.argv[1:])
