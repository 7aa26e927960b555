"""Running cases in child processes: a crash or a hang is put down to its seed, and the rest goes on."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from tqdm import tqdm

from soak.cases import Part, Report, is_own, run_case

# Forking is quick, and safe here because the parent starts no threads; elsewhere torch does not stand it.
PROCESSES = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
# Beyond what a worker takes at its start; stops a runaway before the machine does.
MEMORY_BYTES = 6 << 30
# A worker that is over its limit writes down where it is, and is killed so many seconds later.
GRACE = 5.0


def run_part(part: Part, seeds: Iterable[int], folder: Path, workers: int) -> list[Report]:
    """Run cases in several processes, each of which has an equal share of the seeds; return their reports in order."""
    source = folder / "source"
    source.mkdir(parents=True)
    preparing = _Worker(_prepare, (part, source), [0], folder / "prepare.log")
    preparing.wait_for_end()
    seeds = list(seeds)
    shares = [share for share in (seeds[first::workers] for first in range(workers)) if share]
    running = [
        _Worker(_work, (part, source, folder / f"scratch{i}"), share, folder / f"worker{i}.log")
        for i, share in enumerate(shares)
    ]
    reports: list[Report] = []
    try:
        with tqdm(total=len(seeds), desc=f"{part.name:10}", unit=" cases") as progress:
            while running:
                for worker in running:
                    found = worker.poll(part.seconds + GRACE)
                    reports += found
                    for report in found:
                        if report.wrong:  # the table comes later
                            progress.write(name_wrong(part, report), file=sys.stderr)
                    progress.update(len(found))
                wrong = sum(bool(report.wrong) for report in reports)
                progress.set_postfix(wrong=wrong, refresh=False)
                running = [worker for worker in running if worker.left]
                wait([worker.pipe for worker in running], timeout=1.0)
    finally:
        for worker in running:
            worker.stop()
    return sorted(reports, key=lambda report: report.seed)


def name_wrong(part: Part, report: Report) -> str:
    return f"WRONG --only {part.name} --seed {report.seed}: {report.wrong}"


class _Worker:
    """A process, the seeds that it has still to report, and since when it is at the first of them."""

    def __init__(self, target: Callable[..., None], arguments: tuple, seeds: list[int], log: Path) -> None:
        self.target, self.arguments, self.log = target, arguments, log
        self.left = list(seeds)
        self._start()

    def _start(self) -> None:
        self.pipe, other = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=_begin, args=(self.target, self.arguments, self.left, other, self.log))
        self.process.start()
        other.close()
        self.since = time.monotonic()

    def poll(self, seconds: float) -> list[Report]:
        """Return what has been reported; a process that has died or hangs is replaced by one for the seeds left."""
        reports: list[Report] = []
        try:
            while self.left and self.pipe.poll():
                reports.append(self.pipe.recv())
                self.left.remove(reports[-1].seed)
                self.since = time.monotonic()
        except EOFError:
            self.process.join()
            reports.append(self._give_up(f"the process died: {_exit(self.process.exitcode)}"))
            return reports
        if self.left and time.monotonic() - self.since > seconds:
            reports.append(self._give_up(f"no end after {seconds - GRACE:g} seconds"))
        if not self.left:
            self.process.join(GRACE)
            self.stop()
        return reports

    def wait_for_end(self) -> None:
        self.process.join()
        if self.process.exitcode:
            raise RuntimeError(f"could not prepare: {self.log.read_text(errors='replace')}")

    def stop(self) -> None:
        if os.name == "posix" and self.process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def _give_up(self, reason: str) -> Report:
        self.stop()
        report = Report(self.left.pop(0), Counter(), f"{reason}{_place(self.log)}")
        if self.left:
            self._start()
        return report


def _begin(target: Callable[..., None], arguments: tuple, seeds: list[int], pipe: Connection, log: Path) -> None:
    if os.name == "posix":
        os.setpgid(0, 0)
    file = log.open("w+b", buffering=0)
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    faulthandler.enable(file)
    torch.set_num_threads(1)
    _limit_memory()
    target(*arguments, seeds, pipe, file)
    os._exit(0)  # no clean-up of what a case has left behind


def _prepare(part: Part, source: Path, seeds: list[int], pipe: Connection, log) -> None:
    try:
        part.prepare(source)
    except Exception:  # noqa: BLE001 (whatever it is, the parent shows it)
        traceback.print_exc()
        os._exit(1)


def _work(part: Part, source: Path, scratch: Path, seeds: list[int], pipe: Connection, log) -> None:
    for seed in seeds:
        log.seek(0)
        log.truncate()
        faulthandler.dump_traceback_later(part.seconds, file=log)
        report = run_case(part, source, scratch / str(seed), seed)
        faulthandler.cancel_dump_traceback_later()
        pipe.send(report)


def _place(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    frames = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    own = [frame for frame in frames if is_own(frame)] or frames
    said = [line for line in lines if line.startswith(("case: ", "Fatal"))][:2]
    return "".join(f"; {line}" for line in (*said, *own[:3]))


def _exit(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _limit_memory() -> None:
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
