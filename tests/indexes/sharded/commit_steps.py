"""Kills a process at one of the steps of a write: before it syncs, renames, deletes, commits, or waits for a shard.

Killed after a step is killed before the next one, since nothing is stored between them. Processes of shards import this
module, each time that they are started again, so it imports nothing that takes long.
"""

import itertools
import os
import pathlib
import shutil
import signal

from latelier import indexes
from latelier.indexes.ivf.index import Thresholds
from latelier.indexes.sharded.replica import Replica
from latelier.indexes.store import connections


def grow_early():
    """Have this process make ANN data of a few documents already."""
    indexes.IVF._thresholds = Thresholds(train_tokens=100, train_documents=1, small=0, append_tokens=50)


def die_at(place):
    """Kill this process at its step of this number, counted from now on."""
    grow_early()
    numbers, changes = itertools.count(), {}

    def step():
        if next(numbers) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_step(function):
        def call(*arguments, **options):
            step()
            return function(*arguments, **options)

        return call

    commit, delete = connections._commit, shutil.rmtree

    def step_and_commit(connection):
        if connection.total_changes != changes.get(id(connection), 0):  # otherwise it has only read
            changes[id(connection)] = connection.total_changes
            step()
        commit(connection)

    def delete_in_steps(folder, **options):
        for file in sorted(pathlib.Path(folder).glob("*")):
            step()
            file.unlink()
        step()
        delete(folder, **options)

    os.fsync, pathlib.Path.rename = after_step(os.fsync), after_step(pathlib.Path.rename)
    Replica.result = after_step(Replica.result)
    connections._commit, shutil.rmtree = step_and_commit, delete_in_steps
