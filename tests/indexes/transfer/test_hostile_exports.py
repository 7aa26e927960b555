"""Folders of strangers: every damage or trick is an error that names the file, and nothing of the chunk is stored."""

import hashlib
import json
import os

import numpy as np
import pytest
from safetensors.numpy import save
from transfer_helpers import random_documents

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    DuplicateIdError,
    EmbeddingsError,
    IndexFormatError,
    InvalidArgumentError,
)

VECTORS, LINES = "chunk-000001.safetensors", "chunk-000001.jsonl"


@pytest.fixture
def folder(tmp_path):
    """An export of four documents in two chunks."""
    source = indexes.Flat()
    source.add(*random_documents(4))
    sizes = [matrix.nbytes for matrix in random_documents(4)[1]]
    indexes.export_documents(source, tmp_path / "export", chunk_size=sum(sizes[:2]))
    return tmp_path / "export"


def edit(folder, change):
    """Change the values of the manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def put(folder, name, contents):
    """Replace a file of the second chunk, with a manifest that fits."""
    (folder / name).write_bytes(contents)
    described = {"size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
    edit(folder, lambda manifest: manifest["chunks"][1].update({"contents" if name == LINES else "vectors": described}))


def tensors(folder, **others):
    """Write the vectors of the second chunk: those that it has, and others."""
    _, vectors, _, _ = random_documents(4)
    offsets = np.array([0, len(vectors[2]), len(vectors[2]) + len(vectors[3])])
    put(folder, VECTORS, save({"vectors": np.concatenate(vectors[2:]), "offsets": offsets} | others))


def lines(folder, *rows):
    put(folder, LINES, "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode())


def second_vectors():
    return np.concatenate(random_documents(4)[1][2:])


def link(folder, name):
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")


def pipe(folder):
    (folder / LINES).unlink()
    os.mkfifo(folder / LINES)


def nested(depth):
    return '{"id": "a", "metadata": {"x": ' + "[" * depth + "]" * depth + "}}"


def set_value(*path, value):
    def change(folder):
        def inner(manifest):
            for name in path[:-1]:
                manifest = manifest[name]
            manifest[path[-1]] = value

        edit(folder, inner)

    return change


GOOD = {"id": "x", "text": "t", "metadata": {}}
DAMAGES = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), IndexFormatError, "there is no export"),
    "linked manifest": (lambda f: link(f, "manifest.json"), IndexFormatError, "or it is a link"),
    "not JSON": (lambda f: (f / "manifest.json").write_text("{"), CorruptedIndexError, "malformed JSON"),
    "nested": (lambda f: (f / "manifest.json").write_text("[" * 10**5), CorruptedIndexError, "nested too deeply"),
    "no object": (lambda f: (f / "manifest.json").write_text("[1]"), IndexFormatError, "its format is not"),
    "newer": (set_value("version", value=2), IndexFormatError, "format version 2; .* Upgrade"),
    "interrupted": (set_value("complete", value=False), InvalidArgumentError, "was interrupted"),
    "no dim": (lambda f: edit(f, lambda m: m.pop("dim")), CorruptedIndexError, "'dim' is missing"),
    "other dim": (set_value("dim", value=8), CorruptedIndexError, r"000000\.safetensors is damaged: it holds"),
    "huge dim": (set_value("dim", value=10**9), CorruptedIndexError, "dim is 1000000000"),
    "bool dim": (set_value("dim", value=True), CorruptedIndexError, "dim is True"),
    "dtype": (set_value("dtype", value="object"), CorruptedIndexError, "dtype is 'object'"),
    "dtype of a list": (set_value("dtype", value=["float32"]), CorruptedIndexError, "dtype is"),
    "tokenizer": (set_value("tokenizer", value="x'); DROP"), CorruptedIndexError, "tokenizer is"),
    "settings": (set_value("settings", value=[1]), CorruptedIndexError, "settings is"),
    "setting": (set_value("settings", value={"a": 1, "": 2}), CorruptedIndexError, "damaged: the setting ''"),
    "setting of NaN": (set_value("settings", value={"a": 1, "b": float("nan")}), CorruptedIndexError, "'b' holds nan"),
    "huge count": (set_value("documents", value=10**18), CorruptedIndexError, "documents is 1000000000000000000"),
    "wrong count": (set_value("documents", value=5), CorruptedIndexError, "its chunks have 4 documents, not 5"),
    "wrong tokens": (set_value("tokens", value=5), CorruptedIndexError, "tokens, not 5"),
    "chunk": (set_value("chunks", 1, value="../../etc/passwd"), CorruptedIndexError, "a chunk is"),
    "path": (set_value("chunks", 1, "vectors", value="/etc/passwd"), CorruptedIndexError, "vectors is '/etc/passwd'"),
    "checksum": (set_value("chunks", 1, "vectors", "sha256", value="0" * 64), CorruptedIndexError, "their checksum"),
    "no checksum": (set_value("chunks", 1, "vectors", "sha256", value="../x"), CorruptedIndexError, "64 hexadecimal"),
    "size": (set_value("chunks", 1, "contents", "size", value=10**12), CorruptedIndexError, "were written"),
    "missing": (lambda f: (f / VECTORS).unlink(), CorruptedIndexError, f"{VECTORS} is missing"),
    "linked": (lambda f: link(f, LINES), CorruptedIndexError, f"{LINES} is missing, or is a link"),
    "pipe": (pipe, CorruptedIndexError, f"{LINES} is missing, or is a link"),
    "truncated": (lambda f: os.truncate(f / VECTORS, 90), CorruptedIndexError, "it has 90 bytes"),
    "pickle": (lambda f: put(f, VECTORS, b"\x80\x04N."), CorruptedIndexError, "not a safetensors file"),
    "huge header": (lambda f: put(f, VECTORS, b"\xff" * 8 + b"{}"), CorruptedIndexError, "not a safetensors file"),
    "other shape": (lambda f: tensors(f, vectors=np.ones((2, 3), "f4")), CorruptedIndexError, "its manifest says"),
    "other dtype": (
        lambda f: tensors(f, vectors=second_vectors().astype("f8")),
        CorruptedIndexError,
        "its manifest says",
    ),
    "third tensor": (lambda f: tensors(f, more=np.ones(1)), CorruptedIndexError, "its manifest says"),
    "offsets": (lambda f: tensors(f, offsets=np.array([0, 99, 1])), CorruptedIndexError, "its offsets do not divide"),
    "negative": (
        lambda f: tensors(f, offsets=np.array([0, -(2**63), 1])),
        CorruptedIndexError,
        "offsets do not divide",
    ),
    "NaN": (lambda f: tensors(f, vectors=second_vectors() * np.nan), EmbeddingsError, "document 'doc 2'.*NaN"),
    "few lines": (lambda f: lines(f, GOOD), CorruptedIndexError, f"{LINES}:2 is damaged: malformed JSON"),
    "many lines": (lambda f: lines(f, GOOD, GOOD | {"id": 2}, GOOD), CorruptedIndexError, "more than 2 lines"),
    "list": (lambda f: lines(f, [1], GOOD), CorruptedIndexError, f"{LINES}:1 is damaged: it is"),
    "other key": (lambda f: lines(f, GOOD | {"path": "x"}, GOOD), CorruptedIndexError, ":1 is damaged: it is"),
    "no id": (lambda f: lines(f, {"text": "t"}, GOOD), CorruptedIndexError, ":1 is damaged: it is"),
    "float id": (lambda f: lines(f, GOOD | {"id": 1.5}, GOOD), CorruptedIndexError, "received 1.5"),
    "huge id": (lambda f: lines(f, GOOD | {"id": 2**63}, GOOD), CorruptedIndexError, "64 bits"),
    "surrogate": (lambda f: lines(f, '{"id": "\\ud800"}', GOOD), CorruptedIndexError, "valid Unicode"),
    "surrogate text": (lambda f: lines(f, '{"id": "a", "text": "\\ud800"}', GOOD), CorruptedIndexError, "Unicode"),
    "text": (lambda f: lines(f, GOOD | {"text": 5}, GOOD), CorruptedIndexError, "came with int as its text"),
    "metadata": (
        lambda f: lines(f, GOOD | {"metadata": "m"}, GOOD),
        CorruptedIndexError,
        "came with str as its",
    ),
    "NaN metadata": (lambda f: lines(f, '{"id": "a", "metadata": {"x": NaN}}', GOOD), CorruptedIndexError, "holds nan"),
    "nested metadata": (lambda f: lines(f, nested(950), GOOD), CorruptedIndexError, "nested too deeply"),
    "bytes": (lambda f: put(f, LINES, b"\xff\n\xff\n"), CorruptedIndexError, "can't decode|cannot decode"),
    "long integer": (lambda f: lines(f, '{"id": ' + "9" * 5000 + "}", GOOD), CorruptedIndexError, "too many digits"),
    "twice": (lambda f: lines(f, GOOD, GOOD), DuplicateIdError, "'x' is in the source twice"),
    "twice in two chunks": (lambda f: lines(f, GOOD, GOOD | {"id": 0}), DuplicateIdError, "0 is in the source twice"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_an_error_and_earlier_chunks_stay(name, folder):
    damage, error, message = DAMAGES[name]
    if name == "pipe" and os.name == "nt":
        pytest.skip("Windows has no named pipes in folders")
    damage(folder)
    target = indexes.Flat()
    with pytest.raises(error, match=message):
        indexes.import_documents(folder, target, batch_size=1)
    assert target.ids() in ([], [0, "doc 1"], [0, "doc 1", "x"])  # a document per transaction, in order


def test_exports_of_other_programs_need_only_ids_and_vectors(folder):
    lines(folder, {"id": "x"}, {"metadata": None, "id": 7, "text": None})
    for name in ("kind", "nbits", "tokenizer", "settings", "ids_sha256"):
        edit(folder, lambda manifest, name=name: manifest.pop(name))
    target = indexes.Flat()
    indexes.import_documents(folder, target)
    assert target.ids() == [0, "doc 1", "x", 7]
    assert target.get(7) == (7, None, {})


def test_verify_reads_every_byte(folder):
    export = indexes.Export(folder)
    export.verify()
    content = bytearray((folder / VECTORS).read_bytes())
    content[-1] ^= 1
    (folder / VECTORS).write_bytes(content)
    with pytest.raises(CorruptedIndexError, match=f"{VECTORS} is damaged: its bytes do not match their checksum"):
        export.verify()
