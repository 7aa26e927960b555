"""Ranges of tokens in the text as it was given, whatever the tokenizer and the prompt make of it."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as tokenizer_models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from latelier.models import ColBERT
from latelier.models.tokenization import scored_ranges

TEXTS = [
    "Bananas are healthy.",
    "Ünïcode CAFÉ cafe\u0301 İstanbul",  # precomposed, combining, and a capital whose lower case has two characters
    "日本の首都は東京です。",
    "fig 🙂 pear 👩\u200d👩\u200d👧 plum",
    "  white \t space\n\nand ﬁgs ",  # a ligature that NFKC makes two letters of
    "한국어 한국어 नमस्ते",
]


def ranges_of(model, text, is_query=False):
    return scored_ranges(model, model.tokenize([text], is_query=is_query), text)


def pieces(model, text, is_query=False):
    """The tokens of a text with the characters that they stand for."""
    found = ranges_of(model, text, is_query)
    return list(zip(model.tokens(text, is_query), [each and text[slice(*each)] for each in found], strict=True))


@pytest.fixture(scope="module")
def dense(tiny):
    return ColBERT.from_dense(tiny, device="cpu")


@pytest.fixture(scope="module")
def recipe(tiny):
    return ColBERT(tiny, 16, device="cpu", max_length_query=12, max_length_document=10)


def byte_level():
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "<pad>"])


def sentence_piece():
    tokenizer = Tokenizer(tokenizer_models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(vocab_size=120, special_tokens=["<s>", "<pad>"], unk_token="<s>")


@pytest.fixture(scope="module", params=[byte_level, sentence_piece])
def other_kind(request, tmp_path_factory):
    """A model with the kind of tokenizer that GPT-2 has, or XLM-RoBERTa, and a prompt."""
    tokenizer, trainer = request.param()
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("kinds") / "model"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", cls_token="<s>").save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    return ColBERT.from_dense(str(folder), device="cpu", prompts={"query": "query: ", "document": "passage: "})


def visible(text):
    return "".join(text.split())


@pytest.mark.parametrize("text", TEXTS)
def test_every_visible_character_is_in_the_range_of_a_token(dense, other_kind, text):
    for model in (dense, other_kind):
        for is_query in (False, True):
            found = [each for each in ranges_of(model, text, is_query) if each]
            assert found == sorted(found)
            covered = {i for start, end in found for i in range(start, end)}
            assert visible("".join(text[i] for i in sorted(covered))) == visible(text)
            assert all(text[i].isspace() for i in range(len(text)) if i not in covered)


def test_accents_case_and_characters_of_several_code_points(dense):
    assert ("cafe", "CAFÉ") in pieces(dense, TEXTS[1])
    assert ("cafe", "cafe\u0301") in pieces(dense, TEXTS[1])
    assert ("istanbul", "İstanbul") in pieces(dense, TEXTS[1])
    assert ("東", "東") in pieces(dense, TEXTS[2])
    assert [part for _, part in pieces(dense, "fig 🙂 pear")] == [None, "fig", "🙂", "pear", None]


def test_markers_added_mask_tokens_and_the_skiplist_have_no_range(recipe):
    assert pieces(recipe, "a fig, a pear.") == [
        ("[CLS]", None), ("[D] ", None), ("a", "a"), ("fig", "fig"), ("a", "a"), ("pear", "pear"), ("[SEP]", None),
    ]  # fmt: skip
    assert pieces(recipe, "figs", is_query=True) == [
        ("[CLS]", None), ("[Q] ", None), ("fig", "fig"), ("##s", "s"), ("[SEP]", None), *[("[MASK]", None)] * 7,
    ]  # fmt: skip


def test_truncated_tokens_have_no_row(recipe, dense):
    assert pieces(recipe, "one two three four five six seven eight nine ten")[-3:] == [
        ("six", "six"), ("seven", "seven"), ("[SEP]", None),
    ]  # fmt: skip
    assert pieces(dense, "[SEP] typed")[1] == ("[SEP]", "[SEP]")


def test_exported_encoders_give_the_same_ranges(dense, recipe, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    from latelier.models.exported import ExportedEncoder

    for name, model in {"dense": dense, "recipe": recipe}.items():
        model.export(tmp_path / name)
        encoder = ExportedEncoder(tmp_path / name, threads=1)
        for text in [*TEXTS, "one two three four five six seven eight nine ten"]:
            for is_query in (False, True):
                assert encoder.token_ranges(text, is_query) == ranges_of(model, text, is_query)


def test_what_a_prompt_and_a_text_share_is_the_texts(dense, other_kind):
    assert pieces(other_kind, "fig pear")[0] == ("<s>", None)
    found = [part for _, part in pieces(other_kind, "fig pear") if part]
    assert found[0][0] == "f"
    assert "".join(found) == "figpear"


def test_without_offsets_no_token_has_a_range(dense, monkeypatch):
    monkeypatch.setattr(type(dense.tokenizer), "is_fast", False)
    assert ranges_of(dense, "fig pear") == [None] * 4
