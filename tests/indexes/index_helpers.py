"""Documents to store, the answer an index must give, and code run in a child process."""

import json
import os
import select
import signal
import threading
import traceback

import numpy as np
import pytest

from latelier import indexes
from naive import naive_matrix


def matrices(lengths, dim=4, seed=0):
    """Return one random float32 matrix (tokens, dim) per length; the numbers are exact in float16 as well."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(-16, 17, size=(n, dim)) / 8).astype("float32") for n in lengths]


def expected_hits(index, queries, k, keep=lambda id: True):
    ids = [id for id in index.ids() if keep(id)]
    scores = naive_matrix(queries, list(index.get_embeddings(ids)))
    ranked = [sorted(range(len(ids)), key=lambda d: -row[d])[:k] for row in scores]
    return [[(ids[d], row[d]) for d in best] for row, best in zip(scores, ranked, strict=True)]


def check_hits(hits, expected):
    assert [[hit.id for hit in row] for row in hits] == [[id for id, _ in row] for row in expected]
    for row, wanted in zip(hits, expected, strict=True):
        np.testing.assert_allclose([hit.score for hit in row], [score for _, score in wanted], rtol=1e-5, atol=1e-5)


def keeps_vectors(index):
    """Whether an index keeps vectors as they are: exact ones do, a coded index rounds each number."""
    return isinstance(index, (indexes.Flat, indexes.Qdrant)) or (
        isinstance(index, indexes.Sharded) and index.nbits is None
    )


def about(index, score):
    return score if keeps_vectors(index) else pytest.approx(score, rel=1e-2)


def check_stored(index, stored, given):
    """Compare vectors that came back with those that were given: exactly, or to the step of the index's codes."""
    if keeps_vectors(index):
        np.testing.assert_array_equal(stored, given)
        return
    # Codes are of rotated vectors: an error of half a step, norm / 127 at most, may come together in one number.
    step = np.linalg.norm(given, axis=1) / (64 if index.nbits == 8 else 4)
    assert (np.abs(np.asarray(stored) - given) <= step[:, None]).all()


def contents(index):
    ids = index.ids()
    vectors = [matrix.tolist() for matrix in index.get_embeddings(ids)]
    return list(zip(index.get(ids), vectors, strict=True))


def start_child(function, from_thread=False):
    """Run a function in a forked child process; return a function that waits for its JSON result."""
    reader, writer = os.pipe()
    children = []

    def start():
        child = os.fork()
        if child:
            children.append(child)
            return
        try:
            answer = {"result": function()}
        except BaseException:  # noqa: BLE001 (whatever it is, the parent shows it)
            answer = {"error": traceback.format_exc()}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)

    if from_thread:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    else:
        start()
    os.close(writer)

    def result():
        with os.fdopen(reader, "rb") as pipe:
            hangs = not select.select([pipe], [], [], 120)[0]
            if hangs:
                os.kill(children[0], signal.SIGKILL)
            text = pipe.read()
        os.waitpid(children[0], 0)
        if hangs:
            raise TimeoutError("the child process hangs")
        answer = json.loads(text or '{"error": "the child process died"}')
        assert "error" not in answer, answer["error"]
        return answer["result"]

    return result


def in_child(function):
    return start_child(function)()
