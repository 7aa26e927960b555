"""Arguments of a model that do not fit, in all methods: an error that names them, and no other result."""

import numpy as np
import pytest

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, StorageError
from latelier.models import ColBERT, Recipe, TextEncoder, pool_tokens, train_tokenizer
from latelier.modules import TransformerEncoder

TEXTS = ["a pear, and a fig!", "planes"]


TOKENIZER = train_tokenizer(TEXTS)
VECTORS = TokenEmbeddings.from_list([np.eye(8, dtype="float32")])
REFUSED = {
    "recipe, projection": (lambda m, _: Recipe(projection="pac"), "projection='pac'; expected 'learned'"),
    "recipe, skiplist": (lambda m, _: Recipe(skiplist="the"), "skiplist='the'; expected a tuple"),
    "too short": (lambda m, _: set_lengths(m, query=2), "max_length_query=2; expected an integer"),
    "size": (lambda m, _: ColBERT("x", embedding_size=0), "embedding_size=0; expected"),
    "device": (lambda m, _: ColBERT(modules=[m[0]], device="gpu"), "unknown device 'gpu'"),
    "length by PyLate's name": (lambda m, _: ColBERT("x", query_length=9), "give max_length_query"),
    "backend": (lambda m, _: ColBERT("x", backend="openvino"), "backend='openvino'; expected 'torch'"),
    "no model": (lambda m, _: ColBERT(device="cpu"), "received the model None and no modules"),
    "from_dense, size": (lambda m, _: ColBERT.from_dense("x", embedding_size=64), "without a projection"),
    "from_dense, projection": (
        lambda m, _: ColBERT.from_dense("x", "umap"),
        "projection='umap'",
    ),
    "save to nothing": (lambda m, _: m.save(""), "received '' as the folder"),
    "layout": (lambda m, path: m.save(path, layout="colbert"), "layout='colbert'; expected"),
    "export to int4": (
        lambda m, path: m.export(path, compute_dtype="int4"),
        "compute_dtype='int4'; expected",
    ),
    "tasks": (lambda m, _: m.tokenize(TEXTS, True, task="document"), "contradict each other"),
    "generator": (lambda m, _: m.encode(text for text in TEXTS), "encode_stream reads generators"),
    "stream of one text": (lambda m, _: m.encode_stream("one text"), r"received 'one text' \(str\) as texts"),
    "not a text": (lambda m, _: m.encode(["a", 3]), r"texts\[1\] is 3 \(int\); expected str"),
    "not a text of a stream": (lambda m, _: list(m.encode_stream(["a", None])), r"texts\[1\] is None; expected str"),
    "no Unicode": (lambda m, _: m.encode(["a", "b\udcff"]), r"texts\[1\] is not valid Unicode"),
    "precision": (lambda m, _: m.encode("a", precision="int4"), "precision='int4'; expected 'float32'"),
    "int8 lists": (lambda m, _: m.encode("a", precision="int8"), "precision='int8' needs packed=True"),
    "compute dtype": (lambda m, _: m.encode("a", compute_dtype="int4"), "compute_dtype='int4'; expected 'auto'"),
    "int8 by torch": (lambda m, _: m.encode("a", compute_dtype="int8"), "load the model with backend='onnx'"),
    "cut": (lambda m, _: m.encode("a", truncate_dim=17), "truncate_dim=17; expected an integer from 1 to 16"),
    "batch size": (lambda m, _: m.encode("a", batch_size=0), "batch_size=0; expected an integer"),
    "pairs": (lambda m, _: m.scores(["a", "b"], ["c"]), "received 2 queries and 1 documents"),
    "pooled": (lambda m, _: m.encode_document("a", pool_factor=0), "pool_factor=0; expected an integer"),
    "pooled to nothing": (lambda m, _: m.encode_document("a", num_vectors=1), "num_vectors=1 with protected_tokens=1"),
    "pooled otherwise": (lambda m, _: m.encode_document("a", pool_method="kmeans"), "pool_method='kmeans'"),
    "no weights": (lambda m, _: pool_tokens(VECTORS, 2, method="attention"), "method='attention' without weights"),
    "weights": (lambda m, _: pool_tokens(VECTORS, 2, method="attention", weights=[1] * 7), r"expected \(8,\)"),
    "negative": (lambda m, _: pool_tokens(VECTORS, 2, method="attention", weights=[-1] * 8), "finite and not negative"),
    "vocabulary": (lambda m, _: TextEncoder(TransformerEncoder(9), TOKENIZER), "for an encoder with 9 embeddings"),
    "words": (lambda m, _: train_tokenizer([" "]), "received no words"),
}


def set_lengths(model, **lengths):
    return ColBERT(modules=list(model)[:1], device="cpu", **{f"max_length_{name}": n for name, n in lengths.items()})


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_said(fresh, tmp_path, call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(fresh, tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_a_model_is_not_saved_to_a_file(fresh, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    for layout in ("sentence-transformers", "pylate"):
        with pytest.raises(InvalidArgumentError, match=r"received the file '.*' as the folder"):
            fresh.save(file, layout=layout)
        with pytest.raises(StorageError, match="could not save the model to '"):
            fresh.save(file / "model", layout=layout)
    assert file.read_text() == "kept"


def test_a_save_that_fails_leaves_the_model_that_stands_there(tiny, tmp_path):
    model = ColBERT(tiny, embedding_size=16, device="cpu")
    model.save(tmp_path / "kept")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    model.prompts["query"] = object()
    for folder in ("kept", "new/folder"):
        with pytest.raises(TypeError, match="not JSON serializable"):
            model.save(tmp_path / folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert not (tmp_path / "new" / "folder").exists()
    model.prompts["query"] = "other: "
    model.save(tmp_path / "kept")
    assert ColBERT(tmp_path / "kept", device="cpu").prompts["query"] == "other: "


def test_whether_a_text_is_too_long_depends_on_its_prompt(shallow):
    model = ColBERT.from_dense(shallow, device="cpu", max_length_document=6)
    options = {"task": "document", "truncation": False}
    assert len(model.encode("a b c d", **options)) == 6
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] has 8 tokens, .* cut at 6"):
        model.encode("a b c d", prompt="x x ", **options)
