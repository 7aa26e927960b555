"""Arguments of a model that do not fit, in all methods: an error that names them, and no other result."""

import numpy as np
import pytest
import torch

from latelier.errors import InvalidArgumentError, StorageError
from latelier.models import ColBERT, Recipe

TEXTS = ["a pear, and a fig!", "planes"]

REFUSED_RECIPES = {
    "projection": ({"projection": "pac"}, "received projection='pac'; expected 'learned', 'orthogonal', 'pca'"),
    "expansion": ({"query_expansion": "no"}, "received query_expansion='no'; expected True or False"),
    "attention": ({"attend_to_expansion": None}, "received attend_to_expansion=None; expected True or False"),
    "letters": ({"skiplist": "the"}, "received skiplist='the'; expected a tuple of str"),
    "numbers": ({"skiplist": (1, 2)}, r"received skiplist=\(1, 2\); expected a tuple of str"),
    "no skiplist": ({"skiplist": None}, "received skiplist=None; expected a tuple of str"),
    "marker": ({"query_marker": None}, "received query_marker=None; expected a str, '' for none"),
    "number": ({"document_marker": 3}, "received document_marker=3; expected a str, '' for none"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED_RECIPES.values(), ids=REFUSED_RECIPES)
def test_recipes_are_checked(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Recipe(**options)


def test_a_recipe_holds_what_it_was_given():
    """An iterator can be read once only."""
    recipe = Recipe(query_expansion=np.False_, attend_to_expansion=np.True_, skiplist=(word for word in "ab"))
    assert recipe == Recipe(query_expansion=False, attend_to_expansion=True, skiplist=("a", "b"))
    assert (recipe.query_expansion, recipe.attend_to_expansion) == (False, True)
    assert {type(recipe.query_expansion), type(recipe.attend_to_expansion)} == {bool}
    with pytest.raises(InvalidArgumentError, match=r"skiplist=<generator .*; expected a tuple of str"):
        Recipe(skiplist=(number for number in (1, 2)))


REFUSED_CALLS = {
    "from_dense, size": (lambda m, _: ColBERT.from_dense("x", embedding_size=64), "embedding_size=64 without a proj"),
    "from_dense, recipe": (
        lambda m, _: ColBERT.from_dense("x", recipe=Recipe()),
        "from_dense has no argument 'recipe'",
    ),
    "two models": (
        lambda m, _: ColBERT("x", modules=[m[0]]),
        "received both the model 'x' and modules; give one of the two",
    ),
    "backend": (
        lambda m, _: ColBERT("x", backend="openvino"),
        r"received backend='openvino'; expected 'torch', 'onnx' or 'auto'",
    ),
    "no model": (lambda m, _: ColBERT(device="cpu"), "received no model; give the name or the folder of one"),
    "export to a null character": (lambda m, _: m.export("a\0"), r"received 'a\\x00' as the folder; give a path"),
    "save to None": (lambda m, _: m.save(None), "received None as the folder; give a str or a pathlib.Path"),
    "save, misspelled": (lambda m, path: m.save(path, safe_serialisation=True), "did you mean 'safe_serialization'"),
    "save_pretrained": (lambda m, path: m.save_pretrained(path, layot="pylate"), "save has no argument 'layot'"),
    "a number": (lambda m, _: m(3), r"received 3 \(int\); expected texts, or features from tokenize"),
    "flag": (lambda m, _: m.encode("a", is_query="no"), "received is_query='no'; expected True or False"),
    "packed": (lambda m, _: m.encode_document(["a"], packed="no"), "received packed='no'; expected True or False"),
    "arrays": (lambda m, _: m.encode("a", convert_to_numpy="no"), "received convert_to_numpy='no'; expected True or"),
    "tensors": (lambda m, _: m.encode("a", convert_to_tensor="no"), "received convert_to_tensor='no'; expected True"),
    "truncation": (lambda m, _: m.encode("a", truncation="no"), "received truncation='no'; expected True or False"),
    "tokenize": (lambda m, _: m.tokenize("a", truncation="no"), "received truncation='no'; expected True or False"),
    "forward": (lambda m, _: m(["a"], truncation="no"), "received truncation='no'; expected True or False"),
    "normalised": (lambda m, _: m.encode("a", normalize_embeddings="no"), "normalize_embeddings='no'; expected True"),
    "progress": (lambda m, _: m.encode("a", show_progress_bar="no"), "show_progress_bar='no'; expected True or False"),
    "stream": (lambda m, _: m.encode_stream(["a"], is_query="no"), "received is_query='no'; expected True or False"),
    "packed stream": (lambda m, _: m.encode_stream(["a"], packed="no"), "received packed='no'; expected True or False"),
    "prompt": (lambda m, _: m.encode_query("a", prompt=5), r"received 5 \(int\) as prompt; give a str, '' for none"),
    "prompt of features": (lambda m, _: m.preprocess(["a"], prompt=5), r"received 5 \(int\) as prompt; give a str"),
    "token pooling": (lambda m, _: m.encode_document(["a"], token_pooling=5), r"received 5 \(int\) as token_pooling"),
    "similarity": (
        lambda m, _: setattr(m, "similarity_fn_name", "cosine"),
        "received similarity_fn_name='cosine'; expected 'maxsim' or 'meanmaxsim'",
    ),
    "raw, packed": (lambda m, _: m.encode("a", output_value=None, packed=True), "packed=True with output_value=None"),
    "raw, cut": (lambda m, _: m.encode("a", output_value=None, truncate_dim=8), "truncate_dim=8 with output_value"),
    "batch size": (lambda m, _: m.encode("a", batch_size=0, normalize_embeddings=True), "received batch_size=0"),
    "no chunks": (lambda m, _: m.encode_document(["a"], chunk_size=0), "received chunk_size=0; expected an integer of"),
    "chunks": (lambda m, _: m.encode_query(["a"], chunk_size="x"), "received chunk_size='x'; expected an integer of"),
    "length 0": (lambda m, _: m.tokenize("a b c d e", max_length=0), "received max_length=0; expected an integer"),
    "length 9,999": (lambda m, _: m.tokenize("a b", max_length=9999), "received max_length=9999, but this encoder"),
    "scores": (lambda m, _: m.scores(None, ["a"]), r"received None \(NoneType\) as queries|received None as queries"),
    "no features": (lambda m, _: m(m.tokenize([])), "received features of no texts; give those of one at least"),
    "features, misspelled": (lambda m, _: m(m.tokenize("a"), trunc=True), "did you mean 'truncation'"),
    "features, twice": (lambda m, _: m(m.tokenize("a"), is_query=True, task="document"), "contradict each other"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_calls_are_checked(fresh, tmp_path, call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(fresh, tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_a_similarity_is_checked(shallow):
    with pytest.raises(InvalidArgumentError, match="received similarity_fn_name='cosine'; expected 'maxsim' or 'mean"):
        ColBERT(shallow, device="cpu", similarity_fn_name="cosine")
    model = ColBERT.from_dense(shallow, device="cpu", similarity_fn_name="meanmaxsim")
    assert model.similarity_fn_name == "meanmaxsim"


@pytest.mark.parametrize("layout", ["sentence-transformers", "pylate"])
def test_a_model_is_not_saved_to_a_file(fresh, tmp_path, layout):
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(InvalidArgumentError, match=r"received the file '.*' as the folder; give a new folder"):
        fresh.save(file, layout=layout)
    with pytest.raises(StorageError, match=r"could not save the model to '.*'"):
        fresh.save(file / "model", layout=layout)
    assert file.read_text() == "kept"


def test_numbers_and_flags_of_numpy_are_saved(tiny, tmp_path):
    recipe = Recipe(attend_to_expansion=np.True_, skiplist=iter("!?"))
    for model in (
        ColBERT(tiny, np.int64(16), "cpu", np.int64(12), np.int64(20), recipe=recipe),
        ColBERT.from_dense(tiny, "orthogonal", np.int64(16), "cpu"),
        ColBERT(modules=[ColBERT(tiny, device="cpu")[0]], embedding_size=np.int64(16), device="cpu"),
    ):
        model.save(tmp_path / "saved")
        again = ColBERT(tmp_path / "saved", device="cpu")
        assert again.embedding_size == 16
        torch.testing.assert_close(again.encode_document(TEXTS), model.encode_document(TEXTS))


def test_an_encoder_of_a_refused_call_is_left_as_it_is(tiny):
    encoder = ColBERT.from_dense(tiny, device="cpu")[0]
    tokens = len(encoder.tokenizer)
    with pytest.raises(InvalidArgumentError, match="give one of the two"):
        ColBERT(tiny, modules=[encoder], device="cpu")
    assert len(encoder.tokenizer) == tokens


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
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        path.relative_to(tmp_path / "kept").parts[0] for path in files
    }


def test_errors_of_a_tokenizer_end_with_what_to_give(fresh):
    with pytest.raises(InvalidArgumentError, match=r"inputs: .*[^. ]\. Give texts, as str, in a list\.$"):
        fresh.preprocess([{"no": "text"}])


def test_texts_for_a_projection_are_checked(shallow):
    model = ColBERT.from_dense(shallow, "pca", 8, "cpu")
    for texts, message in [(None, "received None"), ([3], r"texts\[0\] is 3"), ([], "the texts have 0 tokens")]:
        with pytest.raises(InvalidArgumentError, match=message):
            model.fit_projection(texts)
    with pytest.raises(InvalidArgumentError, match="received batch_size=0"):
        model.fit_projection(["a"], batch_size=0)


@torch.no_grad()
def test_the_same_features_give_the_same_vectors_again(fresh):
    features = fresh.tokenize(TEXTS, is_query=False)
    given = {name: value.clone() for name, value in features.items() if isinstance(value, torch.Tensor)}
    first, again = (fresh(features)["token_embeddings"] for _ in range(2))
    assert torch.equal(first, again)
    for name, value in given.items():
        assert torch.equal(features[name], value), name


@torch.no_grad()
@pytest.mark.parametrize("as_query", [True, False])
def test_features_are_of_the_task_that_is_given(fresh, as_query):
    """A document's skiplist leaves tokens out, a query has none."""
    features = fresh.tokenize(TEXTS, is_query=False)
    expected = fresh(features, task="query" if as_query else "document")["attention_mask"].sum()
    assert fresh(features, is_query=as_query)["attention_mask"].sum() == expected
    assert fresh(features, query_mode=as_query)["attention_mask"].sum() == expected
    assert (expected > fresh(features)["attention_mask"].sum()) == as_query


def test_whether_a_text_is_too_long_depends_on_its_prompt(shallow):
    model = ColBERT.from_dense(shallow, device="cpu", max_length_document=6)
    options = {"task": "document", "truncation": False}
    assert len(model.encode("a b c d", **options)) == 6
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] has 8 tokens, but a document is cut at 6"):
        model.encode("a b c d", prompt="x x ", **options)
    assert len(model.encode([("a b", "c")], **options)[0]) == 6
    with pytest.raises(InvalidArgumentError, match=r"texts\[1\] has 8 tokens, but a document is cut at 6"):
        model.encode(["a", ("a b c", "d e")], **options)
    with pytest.raises(InvalidArgumentError, match=r"the batch's texts\[0\] is None; expected str"):
        model.tokenize([None], truncation=False)


def test_an_empty_path_is_not_the_current_folder(fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="received '' as the folder; give a path that is not empty"):
        fresh.save("")
    assert not list(tmp_path.iterdir())
