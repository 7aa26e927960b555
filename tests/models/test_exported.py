"""An exported model encodes what the model itself encodes, without torch; damaged and foreign folders raise."""

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import LayerNorm

from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models import ColBERT, ExportedEncoder, Recipe

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

TEXTS = ["pear", "a longer text, which says more about pears!", "", "un-hyphenated words " * 40, "Über naïve café 東京"]


@pytest.fixture(scope="module")
def models(tiny):
    attending = Recipe(query_marker="", document_marker="", attend_to_expansion=True, skiplist=("says", "!"))
    torch.manual_seed(0)
    with_head = ColBERT.from_dense(tiny, device="cpu", max_length_query=9)
    with_head.insert(1, Dense(48, 20, bias=True, activation_function=torch.nn.Tanh(), module_input_name=KEY))
    shorter = ColBERT.from_dense(tiny, "orthogonal", 24, "cpu", truncate_dim=7, max_length_document=12)
    shorter.prompts["query"] = "find: "
    return {
        "dense": ColBERT.from_dense(tiny, device="cpu"),
        "recipe": ColBERT(tiny, 16, "cpu", max_length_query=14, max_length_document=33),
        "attending": ColBERT(tiny, 16, "cpu", max_length_query=20, recipe=attending),
        "head": with_head,
        "truncated": shorter,
    }


KEY = "token_embeddings"


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    for name, model in models.items():
        model.export(folder / name)
    return {name: ExportedEncoder(folder / name) for name in models}


def assert_equal(encoder, model, atol=1e-5):
    for task, encode in (("query", encoder.encode_queries), ("document", encoder.encode_documents)):
        for computed, expected in zip(encode(TEXTS), model.encode(TEXTS, task=task), strict=True):
            assert computed.dtype == np.float32
            assert computed.shape == tuple(expected.shape)
            np.testing.assert_allclose(computed, expected.numpy(), rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["dense", "recipe", "attending", "head", "truncated"])
def test_vectors_are_those_of_the_model(models, exported, name):
    assert_equal(exported[name], models[name])
    assert exported[name].embedding_size == (models[name].truncate_dim or models[name].embedding_size)
    assert exported[name].max_length_query == models[name].max_length_query
    assert exported[name].max_length_document == models[name].max_length_document
    for text in TEXTS:
        for is_query in (True, False):
            assert exported[name].tokens(text, is_query) == models[name].tokens(text, is_query)


def test_int8_is_close(tiny, tmp_path):
    model = ColBERT.from_dense(tiny, device="cpu")
    model.export(tmp_path / "exported", compute_dtype="int8")
    encoder = ExportedEncoder(tmp_path / "exported")
    assert (encoder.compute_dtype, encoder.embedding_size) == ("int8", 48)
    for computed, expected in zip(encoder.encode_documents(TEXTS), model.encode_document(TEXTS), strict=True):
        assert 0.9 < torch.cosine_similarity(torch.from_numpy(computed), expected).min() < 1


def ragged(count):
    rng = np.random.default_rng(0)
    words = ["pear", "apple", "un-hyphenated", "naïve", "café", "東京", "longer", "says", "moon"]
    return [" ".join(rng.choice(words, size=int(size))) for size in rng.geometric(0.06, size=count) - 1]


@pytest.mark.parametrize("name", ["dense", "attending"])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_text_is_encoded_as_it_is_alone_however_many_threads(exported, name, threads):
    """Batches are cut, padded, and shared among threads; what each text gets, and where, does not depend on it."""
    encoder, texts, before = exported[name], ragged(60), torch.get_num_threads()
    alone = {
        encode: [encode([text])[0] for text in texts] for encode in (encoder.encode_queries, encoder.encode_documents)
    }
    torch.set_num_threads(threads)
    try:
        together = {encode: encode(texts) for encode in alone}
    finally:
        torch.set_num_threads(before)
    assert len({len(vectors) for vectors in alone[encoder.encode_documents]}) > 5
    for encode, expected in alone.items():
        for got, want in zip(together[encode], expected, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_an_export_is_replaced_and_other_folders_are_not(models, exported, tmp_path):
    folder = tmp_path / "exported"
    models["dense"].export(folder)
    models["recipe"].export(folder)
    assert_equal(ExportedEncoder(folder), models["recipe"])
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "export.json").write_text("{}")
    for other in (folder, tmp_path / "settings"):  # files of other names would be lost
        (other / "diary.txt").write_text("kept")
        for target in (other, other / "diary.txt"):
            with pytest.raises(InvalidArgumentError, match="exists and is not an export"):
                models["dense"].export(target)
        assert (other / "diary.txt").read_text() == "kept"


def change_description(change):
    def damage(folder):
        described = json.loads((folder / "export.json").read_text())
        change(described)
        (folder / "export.json").write_text(json.dumps(described))

    return damage


DAMAGES = {
    "description": lambda folder: (folder / "export.json").write_text("{"),
    "a file elsewhere": change_description(lambda d: d["files"].update({"../elsewhere": {"bytes": 1, "sha256": ""}})),
    "graph": lambda folder: (folder / "encoder.onnx").write_bytes(bytes((folder / "encoder.onnx").stat().st_size)),
    "no description": lambda folder: (folder / "export.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_export_raises(exported, tmp_path, damage):
    folder = shutil.copytree(exported["recipe"].folder, tmp_path / "damaged")
    damage(folder)
    with pytest.raises(ModelLoadError, match="could not load the model"):
        ExportedEncoder(folder)


def test_a_model_with_other_modules_is_not_exported(tiny, tmp_path):
    model = ColBERT.from_dense(tiny, device="cpu")
    model.insert(1, LayerNorm(48))
    with pytest.raises(InvalidArgumentError, match="after the transformer it has LayerNorm"):
        model.export(tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
