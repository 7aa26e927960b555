"""Arguments of a model that do not fit, in all methods: an error that names them, and no other result."""

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, StorageError
from latelier.models import ColBERT, Recipe, TextEncoder, pool_tokens, train_tokenizer
from latelier.modules import TransformerEncoder

TEXTS = ["a pear, and a fig!", "planes"]


def test_a_recipe_holds_what_it_was_given():
    """An iterator can be read once only."""
    recipe = Recipe(query_expansion=np.False_, attend_to_expansion=np.True_, skiplist=(word for word in "ab"))
    assert recipe == Recipe(query_expansion=False, attend_to_expansion=True, skiplist=("a", "b"))
    assert (recipe.query_expansion, recipe.attend_to_expansion) == (False, True)
    assert {type(recipe.query_expansion), type(recipe.attend_to_expansion)} == {bool}
    with pytest.raises(InvalidArgumentError, match=r"skiplist=<generator .*; expected a tuple of str"):
        Recipe(skiplist=(number for number in (1, 2)))


TOKENIZER = train_tokenizer(TEXTS)
REFUSED = {
    "recipe, projection": (lambda m, _: Recipe(projection="pac"), "projection='pac'; expected 'learned'"),
    "recipe, flag": (lambda m, _: Recipe(query_expansion="no"), "query_expansion='no'; expected True"),
    "recipe, skiplist": (lambda m, _: Recipe(skiplist="the"), "skiplist='the'; expected a tuple"),
    "recipe, marker": (lambda m, _: Recipe(query_marker=None), "query_marker=None; expected a str"),
    "recipe, type": (lambda m, _: ColBERT("x", recipe={}), "as recipe; expected a Recipe"),
    "lengths": (lambda m, _: set_lengths(m, document=600), "max_length_document=600, but this encoder"),
    "short": (lambda m, _: set_lengths(m, query=2), "max_length_query=2; expected an integer"),
    "size": (lambda m, _: ColBERT("x", embedding_size=0), "embedding_size=0; expected"),
    "device": (lambda m, _: ColBERT(modules=[m[0]], device="gpu"), "unknown device 'gpu'"),
    "prompts": (lambda m, _: ColBERT("x", prompts="query: "), "as prompts; expected a dict"),
    "length by another name": (lambda m, _: ColBERT("x", query_length=9), "give max_length_query"),
    "misspelled": (lambda m, _: ColBERT("x", embeding_size=9), "did you mean 'embedding_size'"),
    "backend": (lambda m, _: ColBERT("x", backend="openvino"), "backend='openvino'; expected 'torch'"),
    "two models": (lambda m, _: ColBERT("x", modules=[m[0]]), "both the model 'x' and modules"),
    "no model": (lambda m, _: ColBERT(device="cpu"), "received no model"),
    "from_dense, size": (lambda m, _: ColBERT.from_dense("x", embedding_size=64), "without a projection"),
    "from_dense, recipe": (lambda m, _: ColBERT.from_dense("x", recipe=Recipe()), "no argument 'recipe'"),
    "save to None": (lambda m, _: m.save(None), "received None as the folder"),
    "save to nothing": (lambda m, _: m.save(""), "received '' as the folder"),
    "save, misspelled": (lambda m, path: m.save_pretrained(path, layot="pylate"), "no argument 'layot'"),
    "export": (lambda m, _: m.export("a\0"), r"received 'a\\x00' as the folder"),
    "task": (lambda m, _: m.encode_document(TEXTS, task="query"), "use encode_query"),
    "tasks": (lambda m, _: m.tokenize(TEXTS, True, task="document"), "contradict each other"),
    "texts twice": (lambda m, _: m.encode(TEXTS, sentences=TEXTS), "names of one argument"),
    "no texts": (lambda m, _: m.encode_query(), "received no texts to encode"),
    "encode, misspelled": (lambda m, _: m.encode([], packd=True), "did you mean 'packed'"),
    "padding": (lambda m, _: m.encode(TEXTS, padding=True), "no argument 'padding'"),
    "generator": (lambda m, _: m.encode(text for text in TEXTS), "encode_stream reads generators"),
    "a list and a text": (lambda m, _: m.encode(["a", ["b"]]), r"texts\[1\] is a list and texts\[0\] is a str"),
    "not a text": (lambda m, _: m.encode(["a", 3]), r"texts\[1\] is 3 \(int\); expected str"),
    "not a text of a group": (lambda m, _: m.encode([["a"], ["b", 3]]), r"texts\[1\]\[1\] is 3"),
    "no Unicode": (lambda m, _: m.encode(["a", "b\udcff"]), r"texts\[1\] is not valid Unicode"),
    "groups": (lambda m, _: m.preprocess([["a"]], task="document"), "received lists of texts"),
    "a number": (lambda m, _: m(3), r"received 3 \(int\); expected texts, or features"),
    "flag": (lambda m, _: m.encode("a", is_query="no"), "is_query='no'; expected True or False"),
    "packed": (lambda m, _: m.encode_stream(["a"], packed="no"), "packed='no'; expected True or False"),
    "prompt": (lambda m, _: m.encode_query("a", prompt=5), r"received 5 \(int\) as prompt"),
    "token pooling": (lambda m, _: m.encode_document(["a"], token_pooling=5), "as token_pooling"),
    "similarity": (lambda m, _: setattr(m, "similarity_fn_name", "cosine"), "expected 'maxsim' or 'meanmaxsim'"),
    "precision": (lambda m, _: m.encode("a", precision=["int8"]), r"precision=\['int8'\]; expected 'float32'"),
    "raw, packed": (lambda m, _: m.encode("a", output_value=None, packed=True), "packed=True with output_value=None"),
    "raw, cut": (lambda m, _: m.encode("a", output_value=None, truncate_dim=8), "truncate_dim=8 with output_value"),
    "batch size": (lambda m, _: m.encode("a", batch_size=0, normalize_embeddings=True), "received batch_size=0"),
    "chunks": (lambda m, _: m.encode_document(["a"], chunk_size=0), "received chunk_size=0"),
    "length": (lambda m, _: m.tokenize("a b", max_length=9999), "max_length=9999, but this encoder"),
    "pairs": (lambda m, _: m.scores(["a", "b"], ["c"]), "received 2 queries and 1 documents"),
    "no features": (lambda m, _: m(m.tokenize([])), "received features of no texts"),
    "features": (lambda m, _: m(m.tokenize("a"), trunc=True), "did you mean 'truncation'"),
    "pooled": (lambda m, _: m.encode_document("a", pool_factor=0), "pool_factor=0; expected an integer"),
    "pooled twice": (lambda m, _: m.encode_document("a", pool_factor=2, num_vectors=4), "give one of them"),
    "pooled to nothing": (lambda m, _: m.encode_document("a", num_vectors=1), "num_vectors=1 with protected_tokens=1"),
    "pooled otherwise": (lambda m, _: m.encode_document("a", pool_method="kmeans"), "pool_method='kmeans'"),
    "network": (lambda m, _: TextEncoder(torch.nn.Identity(), None), "expected a TransformerEncoder"),
    "tokenizer": (lambda m, _: TextEncoder(TransformerEncoder(9), "bert"), "as tokenizer; expected"),
    "vocabulary": (lambda m, _: TextEncoder(TransformerEncoder(9), TOKENIZER), "for an encoder with 9 embeddings"),
    "words": (lambda m, _: train_tokenizer([" "]), "received no words"),
    "words of None": (lambda m, _: train_tokenizer(["a", None]), r"texts\[1\] is None"),
}


def set_lengths(model, **lengths):
    return ColBERT(modules=list(model)[:1], device="cpu", **{f"max_length_{name}": n for name, n in lengths.items()})


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_said(fresh, tmp_path, call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(fresh, tmp_path / "saved")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1.0] * 8}, 'received weights for method="ward"'),
        ({"method": "attention"}, "method='attention' without weights"),
        ({"method": "attention", "weights": [1.0] * 7}, r"shape \(7,\) .* expected \(8,\)"),
        ({"method": "attention", "weights": [-1.0] * 8}, "finite and not negative"),
        ({"method": "attention", "weights": [float("nan")] * 8}, "finite and not negative"),
        ({"method": "attention", "weights": "heavy"}, "expected one number per token"),
    ],
)
def test_weights_that_do_not_fit(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        pool_tokens(TokenEmbeddings.from_list([np.eye(8, dtype="float32")]), num_vectors=4, **options)


@pytest.mark.parametrize("layout", ["sentence-transformers", "pylate"])
def test_a_model_is_not_saved_to_a_file(fresh, tmp_path, layout):
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(InvalidArgumentError, match=r"received the file '.*' as the folder; give a new folder"):
        fresh.save(file, layout=layout)
    with pytest.raises(StorageError, match=r"could not save the model to '.*'"):
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
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        path.relative_to(tmp_path / "kept").parts[0] for path in files
    }


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
