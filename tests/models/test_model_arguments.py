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
    "recipe, skiplist": (lambda m, _: Recipe(skiplist="the"), "skiplist='the'; expected a tuple"),
    "backend": (lambda m, _: ColBERT("x", backend="openvino"), "backend='openvino'; expected 'torch'"),
    "no model": (lambda m, _: ColBERT(device="cpu"), "received the model None and no modules"),
    "from_dense, size": (lambda m, _: ColBERT.from_dense("x", embedding_size=64), "without a projection"),
    "layout": (lambda m, path: m.save(path, layout="colbert"), "layout='colbert'; expected"),
    "tasks": (lambda m, _: m.tokenize(TEXTS, True, task="document"), "contradict each other"),
    "generator": (lambda m, _: m.encode(text for text in TEXTS), "encode_stream reads generators"),
    "stream of one text": (lambda m, _: m.encode_stream("one text"), r"received 'one text' \(str\) as texts"),
    "not a text": (lambda m, _: m.encode(["a", 3]), r"texts\[1\] is 3 \(int\); expected str"),
    "not a text of a stream": (lambda m, _: list(m.encode_stream(["a", None])), r"texts\[1\] is None; expected str"),
    "precision": (lambda m, _: m.encode("a", precision="int4"), "precision='int4'; expected 'float32'"),
    "compute dtype": (lambda m, _: m.encode("a", compute_dtype="int4"), "compute_dtype='int4'; expected 'auto'"),
    "cut": (lambda m, _: m.encode("a", truncate_dim=17), "truncate_dim=17; expected an integer from 1 to 16"),
    "pooled to nothing": (lambda m, _: m.encode_document("a", num_vectors=1), "num_vectors=1 with protected_tokens=1"),
    "no weights": (lambda m, _: pool_tokens(VECTORS, 2, method="attention"), "method='attention' without weights"),
    "weights": (lambda m, _: pool_tokens(VECTORS, 2, method="attention", weights=[1] * 7), r"expected \(8,\)"),
    "vocabulary": (lambda m, _: TextEncoder(TransformerEncoder(9), TOKENIZER), "for an encoder with 9 embeddings"),
}


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
