"""Features of batches and of one text, ranges of tokens in the text as given, threads that tokenise at once."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from layouts import make_tokenizer
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel

from latelier.errors import LatelierError
from latelier.models import ColBERT, ExportedEncoder
from latelier.models.exported_encoder import tokenizer_lock
from latelier.models.tokenization import scored_ranges, tokenize_window

WINDOW = ["", "a pear.", *(f"number {i}, " * i for i in range(1, 60))]
ONE = ["", "a pear.", "[SEP] and [MASK] in a text", "x " * 400, "naïve Ünïcode ☃"]
TEXTS = [
    "Bananas are healthy.",
    "Ünïcode CAFÉ cafe\u0301 İstanbul",  # precomposed, combining, and a capital whose lower case has two characters
    "日本の首都は東京です。",
    "fig 🙂 pear 👩\u200d👩\u200d👧 plum",
    "  white \t space\n\nand ﬁgs ",  # a ligature that NFKC makes two letters of
    "한국어 한국어 नमस्ते",
]


@pytest.fixture(scope="module")
def plain(tiny):
    return ColBERT.from_dense(tiny, device="cpu")


@pytest.fixture(scope="module")
def recipe(tiny):
    return ColBERT(tiny, 16, device="cpu", max_length_query=12, max_length_document=10)


def check_features(model, texts, task, prompt=None):
    expected = model.preprocess(texts, prompt=prompt, task=task)
    found = tokenize_window(model, texts, prompt, task)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("task", ["query", "document"])
@pytest.mark.parametrize("prompt", [None, "", "search: "])
def test_features_equal_those_of_preprocess(fresh, plain, task, prompt):
    for model in (fresh, plain):
        for texts in (WINDOW, *([text] for text in ONE)):
            check_features(model, texts, task, prompt)


def test_one_text_after_calls_that_leave_other_settings(plain):
    calls = [
        {"truncation": True, "max_length": 4},
        {"padding": "max_length", "max_length": 50, "truncation": True},
        {"padding": True, "pad_to_multiple_of": 8},
        {"split_special_tokens": True},
        {"add_special_tokens": False},
    ]
    expected = {text: plain.preprocess([text], task="query")["input_ids"] for text in ONE}
    for options in calls:
        for text in ONE:
            plain.tokenizer([text], **options)
            found = tokenize_window(plain, [text], None, "query")
            assert torch.equal(found["input_ids"], expected[text]), (options, text)
            assert found["attention_mask"].all()


def test_a_panic_of_the_tokenizer_is_an_error(tiny):
    model = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu")
    model.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"^(\w+\s?)+$"), "isolated")
    for texts in ("pear " * 20 + "?", ["a fig"] * 40 + ["pear " * 20 + "?"]):
        with pytest.raises(LatelierError, match=r"cannot read these texts: .*retry-limit"):
            model.encode_document(texts)


def ranges_of(model, text, is_query=False):
    return scored_ranges(model, model.tokenize([text], is_query=is_query), text)


def pieces(model, text, is_query=False):
    found = ranges_of(model, text, is_query)
    return list(zip(model.tokens(text, is_query), [each and text[slice(*each)] for each in found], strict=True))


@pytest.fixture(scope="module", params=["bytes after BOS", "pieces"])
def other_kind(request, tmp_path_factory):
    tokenizer, folder = make_tokenizer(request.param), tmp_path_factory.mktemp("kinds") / "model"
    if request.param == "pieces":
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return ColBERT.from_dense(str(folder), device="cpu", prompts={"query": "query: ", "document": "passage: "})


@pytest.mark.parametrize("text", TEXTS)
def test_every_visible_character_is_in_the_range_of_a_token(plain, other_kind, text):
    for model in (plain, other_kind):
        for is_query in (False, True):
            found = [each for each in ranges_of(model, text, is_query) if each]
            assert found == sorted(found)
            covered = {i for start, end in found for i in range(start, end)}
            assert all(text[i].isspace() for i in range(len(text)) if i not in covered)


def test_accents_case_and_characters_of_several_code_points(plain):
    assert {("cafe", "CAFÉ"), ("cafe", "cafe\u0301"), ("istanbul", "İstanbul")} <= set(pieces(plain, TEXTS[1]))
    assert ("東", "東") in pieces(plain, TEXTS[2])
    assert [part for _, part in pieces(plain, "fig 🙂 pear")] == [None, "fig", "🙂", "pear", None]
    assert pieces(plain, "[SEP] typed")[1] == ("[SEP]", "[SEP]")


def test_markers_added_mask_tokens_the_skiplist_and_what_is_cut_have_no_range(recipe):
    assert pieces(recipe, "a fig, a pear.") == [
        ("[CLS]", None), ("[D] ", None), ("a", "a"), ("fig", "fig"), ("a", "a"), ("pear", "pear"), ("[SEP]", None),
    ]  # fmt: skip
    assert pieces(recipe, "figs", is_query=True) == [
        ("[CLS]", None), ("[Q] ", None), ("fig", "fig"), ("##s", "s"), ("[SEP]", None), *[("[MASK]", None)] * 7,
    ]  # fmt: skip
    assert pieces(recipe, "one two three four five six seven eight nine ten")[-3:] == [
        ("six", "six"), ("seven", "seven"), ("[SEP]", None),
    ]  # fmt: skip


def test_what_a_prompt_and_a_text_share_is_the_texts(other_kind):
    assert pieces(other_kind, "fig pear")[0] == ("<s>", None)
    found = [part for _, part in pieces(other_kind, "fig pear") if part]
    assert found[0][0] == "f"
    assert "".join(found) == "figpear"


def test_exported_encoders_give_the_same_ranges(plain, recipe, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    for name, model in {"dense": plain, "recipe": recipe}.items():
        model.export(tmp_path / name)
        encoder = ExportedEncoder(tmp_path / name, threads=1)
        for text in [*TEXTS, "one two three four five six seven eight nine ten"]:
            for is_query in (False, True):
                assert encoder.token_ranges(text, is_query) == ranges_of(model, text, is_query)


def test_threads_truncate_queries_and_documents_at_their_own_lengths(tiny):
    model = ColBERT(tiny, device="cpu", max_length_query=32, max_length_document=200)
    texts = ["alpha beta gamma " * 100] * 8

    def tokens(call):
        return model.tokenize(texts, is_query=call % 2 == 0)["input_ids"].shape[1]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(tokens, range(200)))
    assert [set(found[first::2]) for first in range(2)] == [{32}, {200}]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(plain):
    with tokenizer_lock(plain.tokenizer), ThreadPoolExecutor(1) as thread:

        def forked():
            child = os.fork()
            if not child:
                with tokenizer_lock(plain.tokenizer):
                    os._exit(7)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        assert thread.submit(forked).result(timeout=60) == 7
