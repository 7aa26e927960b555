"""Any sequence of writes, compactions and reopenings leaves exactly what a dict would hold."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from index_helpers import check_hits, check_stored

from latelier import indexes
from latelier.errors import DuplicateIdError, UnknownIdError
from naive import naive_maxsim

# Few ids, so that they meet again; both types of one number among them.
IDS = st.sampled_from([0, 1, 2, "0", "1", "a", "b", "é'\""])
THRESHOLDS = indexes.IVF._thresholds
BATCHES = st.lists(IDS, unique=True, max_size=5)


class Machine(RuleBasedStateMachine):
    """The index beside its model: an ordered dict from id to vectors, text and metadata."""

    on_disk = False
    exact = True

    def make(self, folder):
        index = indexes.Flat(folder)
        index._segment_bytes = 400  # so that some segments are full
        return index

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp()) / "index" if self.on_disk else None
        self.index = self.make(self.folder)
        self.model = {}
        self.serial = 0

    def teardown(self):
        self.index.close()
        if self.folder:
            shutil.rmtree(self.folder.parent)

    def made(self, ids):
        columns = ([], [], [])
        for _ in ids:
            self.serial += 1
            rng = np.random.default_rng(self.serial)
            columns[0].append(rng.integers(-8, 9, size=(rng.integers(1, 5), 3)).astype("float32"))
            columns[1].append(f"text {self.serial}")
            columns[2].append({"serial": self.serial, "odd": self.serial % 2})
        return columns

    @rule(ids=BATCHES)
    def add(self, ids):
        columns = self.made(ids)
        if any(id in self.model for id in ids):
            with pytest.raises(DuplicateIdError, match="in the index already"):
                self.index.add(ids, *columns)
        else:
            self.index.add(ids, *columns)
            self.model.update(zip(ids, zip(*columns, strict=True), strict=True))

    @rule(ids=BATCHES)
    def update(self, ids):
        columns = self.made(ids)
        self.index.update(iter(ids), *map(iter, columns))
        for id, made in zip(ids, zip(*columns, strict=True), strict=True):
            self.model.pop(id, None)
            self.model[id] = made

    @rule(ids=BATCHES)
    def remove(self, ids):
        if all(id in self.model for id in ids):
            self.index.remove(ids)
            for id in ids:
                del self.model[id]
        else:
            with pytest.raises(UnknownIdError, match="no document has the id"):
                self.index.remove(ids)

    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.verify().is_whole

    @precondition(lambda self: self.on_disk)
    @rule()
    def reopen(self):
        self.index.close()
        self.index = indexes.open(self.folder)

    @rule(k=st.integers(1, 9), odd=st.booleans())
    def search(self, k, odd):
        query = np.random.default_rng(k).integers(-8, 9, size=(2, 3)).astype("float32")
        kept = [id for id, made in self.model.items() if made[2]["odd"] or not odd]
        vectors = [self.model[id][0] for id in kept] if self.exact else self.index.get_embeddings(kept)
        scores = {id: naive_maxsim(query, matrix) for id, matrix in zip(kept, vectors, strict=True)}
        expected = sorted(scores.items(), key=lambda item: -item[1])[:k]
        hits = self.index.search(query, k=k, filter="odd" if odd else None)
        if self.exact:
            check_hits(hits, [expected])
        else:  # the codes of different vectors may have scores that differ in the last digit of a double only
            np.testing.assert_allclose(
                [h.score for h in hits[0]], [score for _, score in expected], rtol=1e-5, atol=1e-5
            )
            assert all(abs(hit.score - scores[hit.id]) <= 1e-5 * max(1, abs(hit.score)) for hit in hits[0])
            assert len({hit.id for hit in hits[0]}) == len(hits[0])

    @invariant()
    def holds_what_the_model_holds(self):
        assert self.index.ids() == list(self.model)
        assert len(self.index) == len(self.model)
        records = self.index.get(list(self.model))
        assert [(record.text, record.metadata) for record in records] == [made[1:] for made in self.model.values()]
        stored = self.index.get_embeddings(list(self.model))
        for matrix, made in zip(stored, self.model.values(), strict=True):
            check_stored(self.index, matrix, made[0])


class DiskMachine(Machine):
    on_disk = True


class IVFMachine(Machine):
    """Inverted lists are made from ten tokens on, and documents appended for every third one."""

    exact = False

    def make(self, folder):
        indexes.IVF._thresholds = replace(THRESHOLDS, train_tokens=10, train_documents=1, small=0, append_tokens=3)
        index = indexes.IVF(folder)
        index._segment_bytes = 400
        return index

    def teardown(self):
        indexes.IVF._thresholds = THRESHOLDS
        super().teardown()


class IVFDiskMachine(IVFMachine):
    on_disk = True


quickly = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestInMemory = Machine.TestCase
TestInMemory.settings = settings(max_examples=30, stateful_step_count=25, **quickly)
TestOnDisk = DiskMachine.TestCase
TestOnDisk.settings = settings(max_examples=12, stateful_step_count=20, **quickly)

TestIVFInMemory = IVFMachine.TestCase
TestIVFInMemory.settings = settings(max_examples=25, stateful_step_count=25, **quickly)
TestIVFOnDisk = IVFDiskMachine.TestCase
TestIVFOnDisk.settings = settings(max_examples=12, stateful_step_count=20, **quickly)
