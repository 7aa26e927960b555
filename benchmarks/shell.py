"""From the shell to the answer: time, memory and modules of commands, each in fresh processes.

    python benchmarks/shell.py [FOLDER] [--documents 10000] [--exact] [--index DIR] [--json results.json]

FOLDER is a collection in BEIR layout; without one, the documents are the docstrings of the standard library. An index
of the first documents is made by `latelier index` (with --index it is kept, and used again), which also exports the
encoder. Then the commands take turns. CPU seconds are those of all threads, user and system; they change less than wall
seconds on a machine with other work. The first run of each command, which fills the caches of the disk, is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from latelier.demo import standard_library_documents
from latelier.evaluation import load_beir

QUERY = "wait until several threads are done"
# Runs a command and prints the number of modules, and which of the slow ones are among them, as its last line.
COMMAND = """
import sys
from latelier.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
slow = [name for name in ("torch", "transformers", "sentence_transformers") if name in sys.modules]
print(len(sys.modules), *slow, file=sys.stderr)
"""
IMPORT = "import sys, latelier.retrieve; latelier.retrieve.Retriever; print(len(sys.modules), file=sys.stderr)"


class Run(NamedTuple):
    """One process: wall and CPU seconds, the most memory that was resident, and what it imported."""

    wall: float
    cpu: float
    megabytes: float
    modules: str


def run(code: str, *arguments: str, **environment: str) -> Run:
    """Run Python code in a new process."""
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **environment},
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        errors.seek(0)
        printed = errors.read().decode()
    if status:
        sys.exit(f"{' '.join(arguments)} failed:\n{printed}")
    kilobytes = usage.ru_maxrss / (1024 if platform.system() == "Darwin" else 1)
    return Run(wall, usage.ru_utime + usage.ru_stime, kilobytes / 1024, printed.strip().splitlines()[-1])


def make_index(options: argparse.Namespace, folder: Path) -> None:
    """Make the index, unless it is there already."""
    if folder.is_dir() and any(folder.iterdir()):
        return
    if options.folder is None:
        documents: Any = (document["text"] for document in standard_library_documents())
    else:
        documents = load_beir(options.folder).texts().values()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "documents.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for text in itertools.islice(documents, options.documents):
                print(json.dumps({"text": text}), file=lines)
        exact = ["--exact"] if options.exact else []
        made = run(COMMAND, "index", str(file), str(folder), *exact, "--device", "cpu")
    print(f"latelier index: {made.wall:.0f} s, {made.cpu:.0f} CPU s, {made.megabytes:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--exact", action="store_true", help="an index of float16, not of 2 bits")
    parser.add_argument("--index", type=Path, help="folder of the index, kept")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        index = options.index or Path(temporary) / "index"
        make_index(options, index)
        search = ("search", str(index), QUERY)
        commands: dict[str, tuple[Any, ...]] = {
            "latelier --version": (COMMAND, "--version"),
            "latelier index --help": (COMMAND, "index", "--help"),
            "latelier info": (COMMAND, "info", str(index)),
            "import latelier.retrieve": (IMPORT,),
            "latelier search": (COMMAND, *search),
            "latelier search --backend torch": (COMMAND, *search, "--backend", "torch"),
        }
        runs: dict[str, list[Run]] = {name: [] for name in commands}
        for command in commands.values():
            run(*command)
        for _ in range(options.repeats):
            for name, command in commands.items():
                runs[name].append(run(*command))
    rows = {
        name: {
            "wall s": round(statistics.median(one.wall for one in given), 2),
            "CPU s": round(statistics.median(one.cpu for one in given), 2),
            "MB": round(max(one.megabytes for one in given)),
            "modules": given[0].modules,
        }
        for name, given in runs.items()
    }
    print(f"{'':42} {'wall s':>7} {'CPU s':>7} {'MB':>6}  modules")
    for name, row in rows.items():
        print(f"{name:42} {row['wall s']:7.2f} {row['CPU s']:7.2f} {row['MB']:6}  {row['modules']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
