"""Any sequence of writes, compactions and reopenings of a sharded index leaves exactly what a dict would hold."""

import pytest
from hypothesis import settings
from test_index_machine import DiskMachine, quickly

from latelier import indexes

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shard_processes")]


class ShardedMachine(DiskMachine):
    """Exact shards: hits, their scores and their order are those of a loop over all documents, ties included."""

    def make(self, folder):
        return indexes.Sharded(folder, shards=3, index="flat", replicas=2)


class ShardedIVFMachine(DiskMachine):
    exact = False

    def make(self, folder):
        return indexes.Sharded(folder, shards=2)


TestSharded = ShardedMachine.TestCase
TestSharded.settings = settings(max_examples=10, stateful_step_count=12, **quickly)
TestShardedIVF = ShardedIVFMachine.TestCase
TestShardedIVF.settings = settings(max_examples=5, stateful_step_count=12, **quickly)
