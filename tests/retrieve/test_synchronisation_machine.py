"""Any sequence of changes, of runs that others write into, are killed or cannot list a folder, loses no document."""

import json
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_synchronisation import faults

from latelier import indexes, models
from latelier.errors import LatelierError
from latelier.retrieve import Retriever, read_documents

SOURCES = st.sampled_from(("one", "two"))
NAMES = ("a.md", "sub/b.md", "sub/r.jsonl")  # in each source with its own name before, and "same.md" in both
FILES = st.sampled_from((*NAMES, "same.md"))
TEXTS = st.sampled_from(("pears", "plums are blue", "f\u00efgs"))
ENCODINGS = st.sampled_from((None, None, "cp1252"))
FAULTS = st.sampled_from((None, None, None, "", "sub", *NAMES))
# What becomes of a run at one of its commits: it is killed before or after it, or another writer goes first.
EVENTS = st.sampled_from((None, None, "kill", "kill after", "run", "update", "remove"))
COMMITS = st.integers(1, 4)


class Killed(BaseException):
    """Ends a run at any point."""


class Machine(RuleBasedStateMachine):
    """The disk, the index, and what the user has stored by hand."""

    encoder = None

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.retriever = Retriever(self.encoder, index=indexes.Flat())
        self.retriever.add([("user", "stone")], passages=False)
        self.own = {"user": "stone"}
        self.serial = 0
        self.removed = set()
        self.absent = {}  # ids that a run at the present place has missed
        for source in ("one", "two"):
            (self.root / source).mkdir()
            (self.root / source / f"{source}-kept.md").write_text("kept")  # else the folder may be a data set
            for name in (*NAMES, "same.md"):
                self.write(source, name, "pears")

    def teardown(self):
        if not hasattr(self, "root"):
            return
        for folder in list(self.root.glob("* (away)")):
            self.swap(folder.name.removesuffix(" (away)"))
        for folder in list(self.root.glob("*-sub (inner)")):
            self.swap_inner(folder.name.partition("-")[0])
        for source in ("one", "two", "one", "two", "one", "two"):
            self.run(source)
        held = self.held("one") | self.held("two")
        texts = self.texts()
        assert {id for id in texts if id not in self.own} == {id for id in held if id not in self.own}
        shutil.rmtree(self.root)

    # The disk.

    def path(self, source, name):
        folder, _, file = name.rpartition("/")
        if file != "same.md":
            file = f"{source}-{file}"
        return self.root / source / folder / file

    @rule(source=SOURCES, name=FILES, text=TEXTS)
    def write(self, source, name, text):
        path = self.path(source, name)
        path.parent.mkdir(exist_ok=True)
        records = [json.dumps({"id": i, "text": word}) for i, word in enumerate(text.split())]
        path.write_text("\n".join(records) if path.suffix == ".jsonl" else text)

    @rule(source=SOURCES, name=FILES)
    def delete(self, source, name):
        self.path(source, name).unlink(missing_ok=True)

    @rule(source=SOURCES)
    def rename(self, source):
        old, new = self.path(source, "a.md"), self.path(source, "c.md")
        if new.exists():
            old, new = new, old
        if old.exists():
            old.replace(new)

    @rule(source=SOURCES)
    def swap(self, source):
        """Put another drive in the place of a folder, or the first one again."""
        folder, away = self.root / source, self.root / f"{source} (away)"
        if away.exists():
            shutil.rmtree(folder)
            away.rename(folder)
        else:
            folder.rename(away)
            folder.mkdir()
            (folder / f"{source}-photo.md").write_text("photo")
        self.forget(source)

    @rule(source=SOURCES)
    def swap_inner(self, source):
        """Take a drive in a folder away, or bring it back; its empty mount point stays."""
        folder, away = self.root / source / "sub", self.root / f"{source}-sub (inner)"
        if away.exists() and self.is_here(source):
            shutil.rmtree(folder, ignore_errors=True)
            away.rename(folder)
        elif folder.exists() and self.is_here(source):
            folder.rename(away)
            folder.mkdir()
        self.forget(source)

    def forget(self, source):
        self.absent = {id: other for id, other in self.absent.items() if other != source}

    def held(self, source):
        """Return the texts of the documents that a folder holds now, by id."""
        found = {}
        for path in (self.root / source).rglob("*.*"):
            name = path.relative_to(self.root / source).as_posix()
            if path.suffix == ".jsonl":
                records = map(json.loads, path.read_text().splitlines())
                found |= {f"{name}#{record['id']}": record["text"] for record in records}
            elif path.suffix == ".md":
                found[name] = path.read_text()
        return found

    # The user.

    @rule(id=st.sampled_from(("user", "same.md", "one-a.md", "sub/two-b.md", "sub/one-r.jsonl#0")))
    def update(self, id):
        self.serial += 1
        self.own[id] = f"mine {self.serial}"
        self.retriever.update([(id, self.own[id])])

    @rule()
    def add_without_id(self):
        self.serial += 1
        before = set(self.retriever.index.ids())
        self.retriever.add([f"mine {self.serial}"])
        [id] = set(self.retriever.index.ids()) - before
        self.own[id] = f"mine {self.serial}"

    @rule(number=st.integers(0, 20))
    def remove(self, number):
        ids = self.retriever.index.ids()
        if ids:
            id = ids[number % len(ids)]
            self.own.pop(id, None)
            self.removed.add(id)
            self.retriever.remove(id)

    # Runs.

    @rule(source=SOURCES, encoding=ENCODINGS, fault=FAULTS, event=EVENTS, at=COMMITS, keep=st.booleans())
    def synchronise(self, source, encoding, fault, event, at, keep):
        if event == "run":  # which looks at the disk, too
            fault = None
        self.run(source, encoding, fault, event, at, remove=not keep)

    def run(self, source, encoding=None, fault=None, event=None, at=1, *, remove=True):
        index = self.retriever.index
        before = set(index.ids())
        self.removed = set()
        write = index.write
        count = 0

        def written(*arguments, **options):
            nonlocal count
            count += 1
            if count != at or event is None:
                return write(*arguments, **options)
            if event == "kill":
                raise Killed
            if event != "kill after":
                index.write = write
                self.other_writer(event, source)
                index.write = written
            left = write(*arguments, **options)
            if event == "kill after":
                raise Killed
            return left

        index.write = written
        is_whole = True
        names = () if fault is None else (self.path(source, fault).relative_to(self.root / source).as_posix(),)
        if fault in ("", "sub"):
            names = (fault,)
        try:
            with faults(self.root / source, names):
                documents = read_documents(self.root / source, encoding=encoding)
                self.retriever.synchronise(documents, remove=remove, chunk_size=2)
        except (Killed, LatelierError):
            is_whole = False
        finally:
            index.write = write
        self.check(source, before, encoding, is_whole=is_whole, fault=fault, event=event, remove=remove)

    def other_writer(self, event, source):
        if event == "run":
            for other in ("one", "two"):
                self.run(other)
        elif event == "update":
            self.update(f"{source}-a.md")
        else:
            self.remove(self.serial)

    def check(self, source, before, encoding, *, is_whole, fault, event, remove):
        held = self.held(source)
        texts = self.texts()
        for id in before - texts.keys() - self.removed:
            others = self.held("two" if source == "one" else "one") if event == "run" else {}
            if id == "same.md" and event == "run":  # it was the other source's, whose run has removed it meanwhile
                continue
            assert id not in held, "a file holds it"
            assert id not in others, "a file of the other source holds it"
            assert id not in self.own, "it is the user's"
            assert remove or event == "run", "nothing is removed"
            assert id in self.absent or event == "run" or self.is_here(source), "another place says nothing at first"
        for id in texts.keys() - held.keys() - self.own.keys():
            if remove and (source in id or id == "same.md"):  # also if the run was killed after its last commit
                self.absent[id] = source
        if not is_whole or fault is not None or event is not None:
            return
        for id, text in held.items():
            if id not in self.own and id != "same.md":
                shown = text if encoding is None else text.encode().decode(encoding)
                assert texts[id].endswith(shown), (id, texts[id], shown)
            assert id in texts

    def is_here(self, source):
        return not (self.root / f"{source} (away)").exists()

    def texts(self):
        index = self.retriever.index
        return {record.id: record.text for record in index.get(index.ids())}

    @invariant()
    def what_the_user_has_stored_is_there(self):
        if hasattr(self, "own"):
            texts = self.texts()
            assert {id: texts.get(id) for id in self.own} == self.own


@pytest.mark.parametrize("examples", [8])
def test_no_document_is_lost(tiny, examples):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine = type("Bound", (Machine,), {"encoder": models.ColBERT(tiny, device="cpu")})
        options = settings(
            max_examples=examples,
            stateful_step_count=16,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        from hypothesis.stateful import run_state_machine_as_test

        run_state_machine_as_test(machine, settings=options)
