"""Documents of every kind that indexes accept, and comparisons of what two indexes hold."""

import numpy as np
from index_helpers import matrices

IDS = ["a", "1", 1, -(2**63), 2**63 - 1, "ä\u0301 \U0001f600", "tab\tline\nnull\0", "\u2028", " "]
TEXTS = ["one", None, "", "line\nend\r\n", "\u2028 \x85 \0", "\U0001f600", '"quoted" \\', "z" * 5000, "\ufeffmark"]
METADATA = [
    {"year": 2020, "big": 2**70, "tiny": 5e-324, "third": 1 / 3, "minus": -0.0},
    {},
    {"nested": {"list": [1, 2.0, None, True, {"x": []}]}, "ä": "ß", "text": "of the metadata"},
    *({"n": n} for n in range(6)),
]
LENGTHS = [3, 1, 2, 5, 1, 1, 4, 2, 7]


def fill(index, dim=8, seed=0):
    """Add the documents above, and some settings, to an empty index."""
    index.add(IDS, matrices(LENGTHS, dim, seed), TEXTS, METADATA)
    index.settings["language"] = {"name": "de", "weights": [0.1, 2**60]}
    index.settings["none"] = None
    return index


def check_contents(index, ids=IDS, texts=TEXTS, metadata=METADATA):
    """Compare ids, texts and metadata, their types included, with what was added."""
    assert [(type(id), id) for id in index.ids()] == [(type(id), id) for id in ids]
    records = index.get(ids)
    assert [record.text for record in records] == texts
    assert [repr(record.metadata) for record in records] == [repr(more) for more in metadata]


def files(folder):
    """Return the contents of all files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def random_documents(count, dim=16, seed=0):
    """Return ids, matrices, texts and metadata of many documents; every third has an integer as its id."""
    ids = [i if i % 3 == 0 else f"doc {i}" for i in range(count)]
    rngs = [np.random.default_rng([seed, i]) for i in range(count)]
    vectors = [rng.standard_normal((int(rng.integers(2, 9)), dim)).astype("float32") for rng in rngs]
    return ids, vectors, [f"text {i}" * (i % 7) for i in range(count)], [{"n": i} for i in range(count)]
