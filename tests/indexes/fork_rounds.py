"""One fork at a random moment, while threads of the parent add, remove and search: is anything lost, found or hung?"""

import os
import random
import threading
import time
import traceback
from typing import NamedTuple

import numpy as np
from index_helpers import start_child

from latelier import indexes
from latelier.errors import StorageError

KINDS = {"flat": indexes.Flat, "ivf": indexes.IVF}
QUERY = np.ones((2, 8))


class Outcome(NamedTuple):
    """How a round ended: whether the child "worked" or was "refused" by a clear error, and what went wrong."""

    child: str
    failures: list


def fork_round(kind, folder, seed):
    rng = random.Random(seed)
    parent, failures = Work("parent", rng.random()), []
    index = KINDS[kind](folder)
    index.add(["kept", "removed"], [QUERY, QUERY])
    index.remove("removed")
    stop = threading.Event()
    jobs = rng.sample([parent.add, parent.search, parent.stream, parent.search], rng.randint(0, 4))
    threads = [threading.Thread(target=repeat, args=(job, index, stop, failures)) for job in jobs]
    for thread in threads:
        thread.start()
    time.sleep(rng.random() * 0.1)
    child = start_child(lambda: work_in_child(index, rng.random()), from_thread=rng.random() < 0.3)
    time.sleep(rng.random() * 0.1)
    stop.set()
    for thread in threads:
        thread.join()
    if rng.random() < 0.6:
        index.close()  # while the child goes on
    try:
        answer = child()
    except (AssertionError, TimeoutError) as error:
        answer = {"child": "failed", "added": [], "failures": [str(error)]}
    index.close()
    failures += answer.pop("failures")
    failures += differences(folder, parent.added | set(answer["added"]))
    return Outcome(answer["child"], failures)


class Work:
    """What a process does with the index, and what it was told is done."""

    def __init__(self, name, seed):
        self.rng, self.name, self.added = random.Random(seed), name, set()
        self.lock = threading.Lock()

    def name_some(self, count):
        with self.lock:
            return [f"{self.name} {self.rng.random()}" for _ in range(count)]

    def add(self, index):
        ids = self.name_some(2)
        index.add(ids, [QUERY / 2] * 2)
        self.added |= set(ids)
        passing = self.name_some(1)
        index.add(passing, [QUERY * 3])
        index.remove(passing)
        if len(self.added) % 5 == 0:
            index.compact()

    def stream(self, index):
        ids, pause = self.name_some(3), self.rng.choice([0.01, 0.15])

        def vectors():
            for _ in ids:
                time.sleep(pause)
                yield QUERY / 2

        index.add(ids, vectors())
        self.added |= set(ids)

    def search(self, index):
        for hit in index.search(QUERY, k=1000)[0]:
            assert hit.id != "removed", f"{self.name} found a removed document"
        assert "kept" in index


def repeat(job, index, stop, failures):
    while not stop.is_set():
        try:
            job(index)
        except StorageError as error:
            if "another write" not in str(error):  # two writers may wait too long for each other
                failures.append(f"{job.__name__}: {error}")
        except Exception:  # noqa: BLE001 (collected)
            failures.append(traceback.format_exc())
            return


def work_in_child(index, seed):
    work = Work(f"child {os.getpid()}", seed)
    answer = {"child": "worked", "failures": []}
    try:
        index.search(QUERY)
    except StorageError as error:
        answer["child"] = "refused"
        if "forked" not in str(error):
            answer["failures"].append(str(error))
        for call in (index.ids, lambda: index.add("never", QUERY), index.compact, lambda: indexes.open(index.path)):
            try:
                call()
                answer["failures"].append("the child was refused, and then was not")
            except StorageError:
                pass
    if answer["child"] == "worked":
        for _ in range(4):
            work.search(index)
            work.add(index)
            time.sleep(work.rng.random() * 0.05)
        missing = work.added - set(index.ids())
        if missing:
            answer["failures"].append(f"the child misses its own {sorted(missing)}")
        index.close()
    return {**answer, "added": sorted(work.added)}


def differences(folder, added):
    found = []
    with indexes.open(folder) as index:
        report, ids = index.verify(), set(index.ids())
        if not report.is_whole:
            found.append(str(report))
        found += [f"lost: {id}" for id in sorted({"kept", *added} - ids)]
        if report.is_whole and {hit.id for hit in index.search(QUERY, k=10000)[0]} != ids:
            found.append("a search does not find what ids() names")
        if "removed" in ids:
            found.append("a removed document is back")
    return found
