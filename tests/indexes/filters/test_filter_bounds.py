"""The bounds of filters: time, Ctrl-C, memory, size, and what remains if the grammar had a hole."""

import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes import filters as parse

QUERY = np.ones((1, 2))
# Thousands of millions of steps: each of a document's thousand items beside each.
ENDLESS = (
    "EXISTS (SELECT 1 FROM json_each(items) a WHERE EXISTS (SELECT 1 FROM json_each(items) b WHERE EXISTS "
    "(SELECT 1 FROM json_each(items) c WHERE a.value + b.value + c.value < 0)))"
)
KINDS = {"memory": lambda folder: indexes.Flat(), "disk": lambda folder: indexes.Flat(folder)}


@pytest.fixture(params=KINDS)
def index(request, tmp_path):
    with KINDS[request.param](tmp_path / "index") as index:
        index.add(["a", "b"], [np.ones((1, 2))] * 2, metadata=[{"items": list(range(1000))}, {"items": []}])
        yield index


@pytest.fixture(autouse=True)
def _no_garbage_collection():
    """Hypothesis has the collector call a function, and Python drops what a signal's handler raises within that."""
    gc.disable()
    yield
    gc.enable()


def found(index, filter, **options):
    return [hit.id for hit in index.search(QUERY, filter=filter, **options)[0]]


def test_a_filter_ends_when_its_time_is_over(index):
    with pytest.raises(FilterTimeoutError, match=r"'EXISTS .* within 0.3 seconds.*filter_timeout=60"):
        found(index, ENDLESS, filter_timeout=0.3)
    assert found(index, "items = '[]'", filter_timeout=None) == ["b"]
    index.add("c", [np.ones((1, 2))], metadata={"items": None})
    assert found(index, "items IS NULL", filter_timeout=0.3) == ["c"]
    with pytest.raises(TimeoutError, match=r"within 0\.2 seconds"):
        found(index, ENDLESS, filter_timeout=np.float32(0.2))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_ctrl_c_ends_a_filter_and_leaves_the_index_usable(index):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(2):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt, match=r"^$"):  # Python's own handler gives it no message
                found(index, ENDLESS, filter_timeout=None)
    finally:
        signal.signal(signal.SIGINT, before)
    index.add("new", [np.ones((1, 2))])
    assert found(index, "items IS NULL") == ["new"]


GROWING = [
    "max(" + ", ".join(["text || text"] * 16) + ") = ''",
    "length(" + "replace(" * 6 + "text" + ", 'é', 'éééééééé')" * 6 + ") > 0",
    "length(" + "replace(" * 16 + "text" + ", 'é', 'éé')" * 16 + ") > 0",
]

MEASURED = f"""
import json, resource, sys
import numpy as np
from latelier import indexes
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
index, query = indexes.Flat(), np.ones((1, 2))
index.add(range(40), [query] * 40, texts=["é" * 50_000] * 40)
index.search(query, filter="text IS NULL")
before, refused = peak(), 0
for filter in {GROWING!r}:
    try:
        index.search(query, filter=filter, filter_timeout=5)
    except (ValueError, TimeoutError) as error:
        refused += 1
print(json.dumps([refused, peak() - before]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no module resource")
@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.11 and later set SQLite's limits")
def test_no_filter_takes_much_memory():
    """A value has up to 16 MiB, and all together have 256."""
    ran = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    refused, grown = json.loads(ran.stdout)
    assert refused == 2
    assert grown < 300 << 20


def test_filters_are_bounded_in_every_way(index):
    for filter, message in [
        ("x" * 90_000, "unknown field"),
        ("items = '" + "x" * 100_000 + "'", "it has 100,010 characters.*json_each"),
        ("(" * 21 + "1" + ")" * 21, "nested more than 20 deep"),
        ("NOT " * 5000 + "1", "nested more than 20 deep"),
        ("1" + " OR items = 1" * 1100, r"nest less, and write .* x IN \(...\)"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message) as error:
            found(index, filter)
        assert len(str(error.value)) < 700
    assert found(index, "(" * 19 + "1" + ")" * 19) == ["a", "b"]
    assert found(index, f"id IN ({', '.join(map(repr, [*range(9000), 'a']))})") == ["a"]
    assert found(index, " OR ".join(["items = 1"] * 900) + " OR id = 'b'") == ["b"]


LONG, SHORT = "a" * 1_000_000, "a" * 100_000
PRODUCTS = {
    "instr": ("instr(?, ?) > 0", [LONG, "a" * 500_000 + "b"]),
    "replace": ("replace(?, ?, '') = ''", [LONG, "a" * 500_000 + "b"]),
    "trim": ("trim(?, ?) = ''", ["a" * 60_000, "b" * 60_000 + "a"]),
    "glob": ("? GLOB ?", [LONG, "*" + "[^b]" * 240 + "b"]),
    "like": ("? LIKE ?", [LONG, "%" + "a_" * 400 + "b"]),
    "computed": ("trim(?, lower(?)) = ''", [SHORT, "b" * 50_000 + "a"]),
    "joined": ("? LIKE '%' || ? || '%'", [LONG, "a" * 900 + "b"]),
    "nested": ("instr(replace(?, 'a', 'aa'), ? || ?) > 0", [LONG, SHORT, "b"]),
    "stored": ("instr(text, long) > 0", []),
    "json": (" OR ".join(["json_extract(?1, '$[0]') = items"] * 40), ["[" + "1," * 5_000_000 + "1]"]),
}


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.11 and later set SQLite's limits")
@pytest.mark.parametrize("name", PRODUCTS)
def test_no_step_takes_long(index, name):
    """One step of SQLite cannot be interrupted: what it would do to values as long as these takes minutes."""
    index.add("long", np.ones((1, 2)), texts=LONG, metadata={"long": SHORT + "b"})
    filter, parameters = PRODUCTS[name]
    with pytest.raises(InvalidArgumentError, match=r"too big; a value may have up to [0-9,]+ bytes in this filter"):
        found(index, filter, parameters=parameters)


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.11 and later set SQLite's limits")
def test_values_and_patterns_are_bounded(index):
    large = "x" * (10 << 20)
    with pytest.raises(InvalidArgumentError, match="too big; a value may have up to 16,777,216 bytes"):
        found(index, "length(? || ?) > 0", parameters=[large, large])
    with pytest.raises(InvalidArgumentError, match="pattern too complex"):
        found(index, "items LIKE ?", parameters=["%a" * 501])
    index.add("large", np.ones((1, 2)), texts=large + large)  # only while a filter is evaluated
    assert len(index.get("large").text) == 20 << 20
    assert found(index, "id LIKE 'lar%' AND instr(id, 'g') = 4") == ["large"]


def test_the_clock_is_looked_at_after_the_last_step(index):
    """It may be the only one that takes long."""
    with pytest.raises(FilterTimeoutError, match="within 1e-09 seconds"):
        found(index, "1", filter_timeout=1e-9)


def test_a_hole_in_the_grammar_would_lead_nowhere(index):
    """What the grammar never writes, the authorizer denies."""
    functions = {*parse.FUNCTIONS, "like", "glob"}
    with index._storage._pool.reading() as connection, connection.authorizer.restricted_to(functions):
        for statement in (
            "SELECT name FROM setting",
            "SELECT count(*) FROM document",
            "SELECT number FROM document UNION SELECT first FROM segment",
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT x FROM c",
            "SELECT group_concat(id) FROM document",
            "SELECT number FROM document WHERE printf('x')",
            "SELECT number FROM document WHERE load_extension('x')",
            "DELETE FROM document",
            "PRAGMA table_list",
            "ATTACH 'x' AS y",
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                connection.execute(statement).fetchall()
