"""Indexes: random operations with valid and spoilt arguments, beside a dict that holds what must be stored."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from index_helpers import check_stored

from latelier import indexes
from latelier.errors import LatelierError
from naive import naive_matrix
from soak.arguments import COUNTS, NONSENSE, dress, matrices, spoil
from soak.caller import REFUSED, Caller, close
from soak.cases import Wrong

DIM = 3
_IDS = st.one_of(st.integers(-2, 6), st.sampled_from(["a", "b", "1", "é", "x" * 300, 2**63 - 1]))
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=4)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
_METADATA = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["year", "Year", "a b", "é", "id", "text"]), _JSON, max_size=3)
)
_TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
_KINDS = (
    lambda scratch: indexes.Flat(),
    lambda scratch: indexes.IVF(nbits=8),
    lambda scratch: indexes.IVF(nbits=4),
    lambda scratch: indexes.Flat(scratch / "index", dtype="float16"),
    lambda scratch: indexes.IVF(scratch / "index"),
)


class _Model:
    """What the index must hold: ``{id: (matrix, text, metadata)}`` in the order of insertion."""

    def __init__(self) -> None:
        self.documents: dict[Any, tuple[Any, Any, Any]] = {}

    def check(self, index: indexes.Index) -> None:
        """Compare everything."""
        ids = list(self.documents)
        if index.ids() != ids or len(index) != len(ids):
            raise Wrong(f"the ids are {index.ids()}, expected {ids}")
        for record, matrix in zip(index.get(ids), index.get_embeddings(ids), strict=True):
            wanted, text, metadata = self.documents[record.id]
            if (record.text, record.metadata) != (text, metadata or {}):
                raise Wrong(f"stored {record}, expected {(text, metadata)}")
            try:
                check_stored(index, matrix, wanted)
            except AssertionError as error:
                raise Wrong(f"vectors of {record.id!r}: {error}") from error

    def read(self, index: indexes.Index) -> None:
        """Take over what an index holds, which must fit together."""
        ids = index.ids()
        vectors = index.get_embeddings(ids)
        if len(set(ids)) != len(ids) or len(vectors) != len(ids):
            raise Wrong(f"{len(ids)} ids, {len(set(ids))} different ones, {len(vectors)} matrices")
        for record, matrix in zip(index.get(ids), vectors, strict=True):
            if not len(matrix) or not np.isfinite(matrix).all():
                raise Wrong(f"stored vectors of {record.id!r} that hold nothing, NaN or infinity")
            self.documents.setdefault(record.id, (np.asarray(matrix), record.text, record.metadata))
        self.documents = {id: self.documents[id] for id in ids}


def operate(call: Caller, scratch: Path) -> None:
    """Some operations on one index, of either kind, in memory or on disk."""
    folder = scratch / str(len(list(scratch.iterdir())))
    folder.mkdir()
    model = _Model()
    with call.draw(st.sampled_from(_KINDS))(folder) as index:
        for _ in range(call.draw(st.integers(2, 6))):
            call.draw(st.sampled_from([_store, _store, _store, _remove, _search, _read, _settings, _maintain]))(
                call, index, model
            )
        with contextlib.suppress(AttributeError):
            model.check(index)


def _store(call: Caller, index: indexes.Index, model: _Model) -> None:
    draw = call.draw
    ids = draw(st.lists(_IDS, min_size=1, max_size=4, unique_by=lambda id: (type(id), id)))
    replace, number = draw(st.booleans()), len(ids)
    given = matrices(draw, number, DIM)
    vectors = dress(draw, given, ("numpy", "torch", "tuple", "nested", "strided", "packed"))
    texts = draw(st.one_of(st.none(), st.lists(_TEXTS, min_size=number, max_size=number)))
    metadata = draw(st.one_of(st.none(), st.lists(_METADATA, min_size=number, max_size=number)))
    arguments: list[Any] = [ids, vectors.value, texts, metadata]
    damaged = draw(st.sampled_from([None] * 5 + [0, 1, 2, 3]))
    if damaged == 1:
        arguments[1] = draw(st.sampled_from([spoil(draw, vectors).value, matrices(draw, number, DIM + 1)]))
    elif damaged is not None:
        arguments[damaged] = draw(st.one_of(NONSENSE, st.lists(NONSENSE, min_size=number, max_size=number)))
    valid = damaged is None and index.dim in (None, DIM) and (replace or not any(id in model.documents for id in ids))
    result = call(index.update if replace else index.add, *arguments, valid=valid)
    if valid:
        documents = zip(ids, vectors.matrices, texts or [None] * number, metadata or [None] * number, strict=True)
        for id, *document in documents:
            model.documents.pop(id, None)
            stored = document[0].astype(index.dtype) if isinstance(index, indexes.Flat) else document[0]
            model.documents[id] = (stored, document[1], document[2])
    elif result is not REFUSED:
        model.documents = {} if replace else model.documents
        model.read(index)
    model.check(index)


def _remove(call: Caller, index: indexes.Index, model: _Model) -> None:
    ids = call.draw(st.one_of(st.lists(_IDS, max_size=3), _IDS, NONSENSE))
    if call(index.remove, ids) is not REFUSED:
        model.read(index)
    model.check(index)


def _search(call: Caller, index: indexes.Index, model: _Model) -> None:
    draw = call.draw
    queries = dress(draw, matrices(draw, draw(st.integers(1, 2)), DIM), ("numpy", "torch", "tuple", "nested", "packed"))
    damaged = draw(st.booleans())
    k = draw(COUNTS) if damaged else draw(st.integers(1, 9))
    options = {"effort": "exact"} if isinstance(index, indexes.IVF) else {}
    if damaged:
        queries = spoil(draw, queries) if draw(st.booleans()) else queries
        names = st.sampled_from(
            ["filter", "parameters", "effort", "nprobe", "candidates", "rerank"][: 6 if options else 2]
        )
        options |= draw(st.dictionaries(names, st.one_of(NONSENSE, COUNTS), max_size=2))
    found = call(index.search, queries.value, k, valid=not damaged and index.dim in (None, DIM), **options)
    if found is REFUSED:
        return
    if any(hit.id not in model.documents for row in found for hit in row):
        raise Wrong(f"found what is not there: {found}")
    if not damaged and index.dim == DIM and isinstance(index, indexes.Flat) and index.dtype == "float32":
        expected = -np.sort(-naive_matrix(queries.matrices, [m for m, _, _ in model.documents.values()]), axis=1)[:, :k]
        close([[hit.score for hit in row] for row in found], expected, "scores of hits", queries.tolerance)


def _read(call: Caller, index: indexes.Index, model: _Model) -> None:
    ids = call.draw(st.one_of(st.lists(_IDS, max_size=3), _IDS, NONSENSE))
    for read in (index.get, index.get_embeddings, index.__contains__):
        call(read, ids)
    known = list(model.documents)
    records = call(index.get, known, valid=True)
    if [record.id for record in records] != known:
        raise Wrong(f"got {records}")


def _settings(call: Caller, index: indexes.Index, model: _Model) -> None:
    name, value = call.draw(st.one_of(st.text(max_size=3), NONSENSE)), call.draw(st.one_of(_JSON, NONSENSE))
    if call(index.settings.__setitem__, name, value) is not REFUSED and index.settings[name] != value:
        raise Wrong(f"setting {name!r} is {index.settings[name]!r}, expected {value!r}")
    call(index.settings.__getitem__, call.draw(st.one_of(st.text(max_size=3), NONSENSE)), may=(KeyError,))


def _maintain(call: Caller, index: indexes.Index, model: _Model) -> None:
    call(index.check, call.draw(COUNTS), queries=call.draw(COUNTS))
    call(index.compact, valid=True)
    if not call(index.verify, valid=True).is_whole:
        raise Wrong("not whole")
    call(repr, index, valid=True)


def make(call: Caller, scratch: Path) -> None:
    """Constructors and ``open`` with any argument."""
    draw = call.draw
    options = st.dictionaries(st.sampled_from(["read_only", "device"]), NONSENSE, max_size=1)
    path = draw(st.one_of(st.none(), st.just(scratch / "no"), st.just(scratch / "new"), NONSENSE.filter(_no_name)))
    kind = draw(st.sampled_from([indexes.Flat, indexes.IVF, indexes.open]))
    own = (
        {"dtype": NONSENSE, "max_memory": COUNTS} if kind is indexes.Flat else {"nbits": NONSENSE, "max_memory": COUNTS}
    )
    some = draw(options) | ({} if kind is indexes.open else draw(st.fixed_dictionaries({}, optional=own)))
    found = call(kind, path, **some)
    if found is not REFUSED:
        with contextlib.suppress(LatelierError):
            found.add("a", np.ones((2, DIM)))
        found.close()


def _no_name(value: Any) -> bool:
    return not isinstance(value, (str, bytes))  # which would make folders wherever we are


TARGETS = (operate, operate, operate, make)
