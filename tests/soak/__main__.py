"""``python -m soak``: run all parts, or some, or one seed, and print the table."""

import argparse
import faulthandler
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from soak.cases import Part, Report, run_case
from soak.workers import name_wrong, run_part

PARTS = ("kills", "forks", "flips", "disks", "filters")
_ROW = "{:10} {:>8} {:>8} {:>9} {:>6} {:>8}"


def main() -> int:
    options = _options()
    tqdm.monitor_interval = 0  # its thread would be forked along
    parts: list[Part] = [_part(name) for name in options.only or PARTS]
    with tempfile.TemporaryDirectory(prefix="latelier-soak-") as folder:
        if options.seed is not None:
            return _repeat(parts, options.seed, Path(folder))
        rows, wrong = [], []
        for part in parts:
            started = time.monotonic()
            seeds = range(options.first, options.first + max(2, round(part.cases * options.scale)))
            reports = run_part(part, seeds, Path(folder) / part.name, options.workers)
            rows.append(_row(part, reports, time.monotonic() - started))
            wrong += [(part, report) for report in reports if report.wrong]
    print(_ROW.format("part", "tried", "refused", "accepted", "wrong", "seconds"))
    print(*rows, sep="\n")
    for part, report in wrong:
        print(name_wrong(part, report))
    return bool(wrong)


def _part(name: str) -> Part:
    return getattr(importlib.import_module(f"soak.{name}"), name.upper())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part (may be given several times)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size to run (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one seed, in this process, and show its traceback")
    parser.add_argument("--first", type=int, default=0, help="first seed; other ones try other things (default: 0)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=min(cores, 8), help="processes (default: %(default)s)")
    options = parser.parse_args()
    if options.seed is not None and len(options.only or ()) != 1:
        parser.error("--seed needs the part that it belongs to: --only flips --seed 17")
    return options


def _repeat(parts: list[Part], seed: int, folder: Path) -> int:
    [part] = parts
    faulthandler.enable()
    source = folder / "source"
    source.mkdir()
    part.prepare(source)
    report = run_case(part, source, folder / "scratch", seed, show=True)
    print(f"WRONG: {report.wrong}" if report.wrong else f"seed {seed}: {dict(report.counts)}")
    return bool(report.wrong)


def _row(part: Part, reports: list[Report], seconds: float) -> str:
    counts = {name: sum(report.counts[name] for report in reports) for name in ("refused", "accepted")}
    wrong = sum(bool(report.wrong) for report in reports)
    tried = sum(counts.values()) + wrong
    return _ROW.format(part.name, tried, counts["refused"], counts["accepted"], wrong, f"{seconds:.0f}")


if __name__ == "__main__":
    sys.exit(main())
