"""A model around a random encoder: tokenised as sentence-transformers does it, trained, saved and loaded."""

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers import AutoTokenizer

from latelier.models import ColBERT, Recipe, TextEncoder, train_tokenizer
from latelier.modules import TransformerEncoder

TEXTS = ["The quick brown fox jumps over the lazy dog.", "A fox!", "", "Figs, pears & (some) apples; no foxes."]


def encoder(**options):
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS, 300)
    return TextEncoder(TransformerEncoder(len(tokenizer), dim=16, heads=2), tokenizer, **options)


def model(recipe=None, **options):
    return ColBERT(modules=[encoder()], embedding_size=8, device="cpu", recipe=recipe, **options)


def assert_equal_lists(left, right):
    assert [tuple(a.shape) for a in left] == [tuple(b.shape) for b in right]
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_single_encoder_gets_the_recipe():
    colbert = model(max_length_query=12, max_length_document=9)
    assert [type(module) for module in colbert] == [TextEncoder, Dense, MultiVectorMask, Normalize]
    assert colbert.tokens("A fox?") == ["[CLS]", "[Q] ", "a", "fox", "?", "[SEP]", *["[MASK]"] * 6]
    # [CLS] [D] figs , pears & ( some [SEP]
    assert colbert.tokens(TEXTS[3], is_query=False) == ["[CLS]", "[D] ", "figs", "pears", "some", "[SEP]"]
    assert (colbert.max_length_query, colbert.max_length_document, colbert.embedding_size) == (12, 9, 8)
    assert [len(rows) for rows in colbert.encode_query(TEXTS)] == [12] * 4
    rows = colbert.encode_document(TEXTS[0])
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(len(rows)))


def test_an_encoder_of_transformers_gets_the_recipe_too(tiny):
    colbert = ColBERT(modules=[Transformer(tiny)], embedding_size=8, device="cpu", max_length_query=7)
    named = ColBERT(tiny, embedding_size=8, device="cpu", max_length_query=7)
    assert colbert.tokens("A fig?") == ["[CLS]", "[Q] ", "a", "fig", "?", "[SEP]", "[MASK]"]
    assert_equal_lists(colbert.encode_document(TEXTS), named.encode_document(TEXTS))


@pytest.mark.parametrize("attend", [False, True])
def test_features_are_those_of_sentence_transformers(tiny, attend):
    theirs = Transformer(tiny)
    ours = TextEncoder(TransformerEncoder(len(theirs.tokenizer), dim=8, heads=2), AutoTokenizer.from_pretrained(tiny))
    for each in (theirs, ours):
        each.document_length = 7
        each.query_expansion = {"strategy": "fixed", "attend": attend, "length": 9}
    for task in ("query", "document", None):
        expected, found = (each.preprocess(TEXTS, prompt="search: ", task=task) for each in (theirs, ours))
        assert found.keys() == expected.keys() - {"modality", "prompt_length", "token_type_ids"}
        assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("recipe", [None, Recipe(attend_to_expansion=True), Recipe(query_expansion=False)], ids=str)
def test_sentence_transformers_loads_what_was_saved(recipe, tmp_path):
    colbert = model(recipe, max_length_query=11, max_length_document=20)
    colbert.save(tmp_path)
    ours = ColBERT(str(tmp_path), device="cpu")
    plain = MultiVectorEncoder(str(tmp_path), device="cpu", trust_remote_code=True)
    for loaded in (ours, plain):
        assert_equal_lists(loaded.encode_query(TEXTS), colbert.encode_query(TEXTS))
        assert_equal_lists(loaded.encode_document(TEXTS), colbert.encode_document(TEXTS))
    assert (ours.max_length_query, ours.max_length_document) == (11, 20)
    assert repr(ours) == repr(colbert)
    assert ColBERT(str(tmp_path), max_length_document=8, device="cpu").max_length_document == 8


def test_the_vocabulary_is_learned_and_repeatable():
    tokenizer = train_tokenizer(TEXTS * 3, 300)
    assert tokenizer.tokenize("The FOXES jumps!") == ["the", "foxes", "jumps", "!"]
    assert tokenizer.decode(tokenizer("a quick fox")["input_ids"]) == "[CLS] a quick fox [SEP]"
    assert tokenizer.get_vocab() == train_tokenizer(iter(TEXTS * 3), 300).get_vocab()
    assert len(tokenizer) <= 300
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert "[UNK]" not in tokenizer.tokenize("zyzzyva q7x {~}")
    assert train_tokenizer(TEXTS, 300, lowercase=False).tokenize("The the") == ["The", "the"]
