"""Whole indexes to damage, of every kind of file that an index has, and the answers that they give."""

import random
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kill_rounds import grow_early

from latelier import indexes
from latelier.errors import LatelierError

DIM = 8
DOCUMENTS = 150
FILTER = "year >= 2100 AND who <> 'w3'"
QUERIES = [np.random.default_rng(99).integers(-8, 9, size=(4, DIM)).astype("float32") for _ in range(3)]

_SMALL = {f"flat-{dtype}": (indexes.Flat, {"dtype": dtype}) for dtype in ("float32", "float16")}
_CODED = {f"ivf-{n}": (indexes.IVF, {"nbits": n}) for n in (8, 4, 2, 1)}
_ANN = {f"ann-{n}": (indexes.IVF, {"nbits": n}) for n in (8, 4, 2, 1)}
KINDS: dict[str, tuple[Callable[..., indexes.Index], dict[str, Any]]] = {**_SMALL, **_CODED, **_ANN}
LOGGED = {"log-flat": indexes.Flat, "log-ivf": indexes.IVF}
# Commits that the log holds; with the first, it is empty.
STATES = 7


def make(folder: Path) -> None:
    repeat_names()
    make_with_log(folder)
    for name, (kind, options) in (_SMALL | _CODED).items():
        fill(kind(folder / name, **options))
    grow_early()
    for name, (kind, options) in _ANN.items():
        index = fill(kind(folder / name, **options))
        assert index._storage.snapshot().ann_data is not None


def make_with_log(folder: Path) -> None:
    rng = np.random.default_rng(8)
    for name, kind in LOGGED.items():
        with kind(folder / "open") as index:
            for state in range(STATES):
                ids = [f"{state} {i}" for i in range(20)]
                if state and state % 2 == 0:
                    index.remove(f"{state - 1} 3")
                elif state:
                    vectors = [rng.integers(-8, 9, size=(3, DIM)).astype("float32") for _ in ids]
                    index.add(ids, vectors, ids, [{"year": 2100 + state, "who": "w"}] * 20)
                shutil.copytree(folder / "open", folder / f"{name}.{state}", ignore=shutil.ignore_patterns("*-shm"))
        shutil.rmtree(folder / "open")
        (folder / f"{name}.{STATES - 1}").rename(folder / name)


def repeat_names() -> None:
    rng = random.Random(0)
    secrets.token_hex = lambda size=32: f"{rng.getrandbits(8 * size):0{2 * size}x}"


def fill(index: indexes.Index) -> indexes.Index:
    rng = np.random.default_rng(7)
    numbers = range(DOCUMENTS)
    matrices = [rng.integers(-8, 9, size=(rng.integers(2, 9), DIM)).astype("float32") for _ in numbers]
    metadata = [{"year": 2000 + i, "who": f"w{i % 5}", "tags": ["a", i]} if i % 9 else None for i in numbers]
    texts = [f"text of document {i} " * 4 if i % 7 else None for i in numbers]
    ids = [f"d{i}" if i % 3 else i for i in numbers]
    index._segment_bytes = 5000  # segments of some thirty documents, so that an index has several
    with index:
        for first in (0, 60, 120):
            some = slice(first, first + 60)
            index.add(ids[some], matrices[some], texts[some], metadata[some])
        index.remove(ids[5:50:8])
        index.update(ids[60:63], matrices[:3], texts[:3], metadata[:3])
        index.settings["note"] = {"kept": [1, 2.5, None, "x"]}
    return indexes.open(index.path, read_only=True)


def answers(index: indexes.Index, ids: list[Any] | None = None, *, approximate: bool = True) -> dict[str, Any]:
    """Ask everything; an answer is a value or the library's error. `ids` limits the questions to those documents."""
    exact = {"effort": "exact"} if isinstance(index, indexes.IVF) else {}
    known = ids if ids is not None else _ask(index.ids)
    asked = known if isinstance(known, list) else []
    found = {
        "ids": known,
        "records": _ask(lambda: {record.id: record for record in index.get(asked)}),
        "vectors": _ask(lambda: dict(zip(asked, index.get_embeddings(asked), strict=True))),
    }
    if ids is None:
        k = len(asked) + 1
        found["count"] = _ask(lambda: len(index))
        found["settings"] = _ask(lambda: dict(index.settings))
        found["exact"] = _ask(lambda: _hits(index.search(QUERIES, k, **exact)))
        found["filtered"] = _ask(lambda: _hits(index.search(QUERIES, k, filter=FILTER, **exact)))
        if approximate:
            found["approximate"] = _ask(lambda: _hits(index.search(QUERIES, 10)))
    return found


def differing(found: dict[str, Any], good: dict[str, Any], *, ignore: Any = None) -> list[str]:
    """Name the questions whose answers are not those of the whole index, leaving one document out; errors are none."""
    return [
        name
        for name, answer in found.items()
        if not isinstance(answer, LatelierError) and not _equal(_without(answer, ignore), good[name], name, ignore)
    ]


def of_ids(good: dict[str, Any], ids: list[Any]) -> dict[str, Any]:
    return {
        "ids": ids,
        "records": {id: good["records"][id] for id in ids},
        "vectors": {id: good["vectors"][id] for id in ids},
    }


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except LatelierError as error:
        return error


def _hits(found: list[list[indexes.Hit]]) -> list[dict[Any, float]]:
    return [{hit.id: hit.score for hit in row} for row in found]


def _without(answer: Any, id: Any) -> Any:
    if id is None:
        return answer
    if isinstance(answer, list):
        return [_without(item, id) if isinstance(item, dict) else item for item in answer if item != id]
    return {key: value for key, value in answer.items() if key != id} if isinstance(answer, dict) else answer


def _equal(answer: Any, good: Any, name: str, ignore: Any) -> bool:
    if name == "count" and ignore is not None:
        return True
    if name == "vectors":
        return answer.keys() == good.keys() and all(_same_vectors(answer[id], good[id]) for id in answer)
    if name not in ("exact", "filtered", "approximate") or not isinstance(answer, list):
        return answer == good
    # Merged segments are summed up in other blocks: the last digits of a score may differ.
    return all(
        row.keys() == wanted.keys()
        and np.allclose(list(row.values()), [wanted[id] for id in row], rtol=1e-4, atol=1e-4)
        for row, wanted in zip(answer, good, strict=True)
    )


def _same_vectors(matrix: Any, good: Any) -> bool:
    """Integers, as Flat keeps them, are equal; BLAS decodes codes of few documents, and its last digit may differ."""
    if matrix.shape != good.shape:
        return False
    return np.array_equal(matrix, good) or (np.any(good % 1) and np.allclose(matrix, good, rtol=0, atol=1e-5))
