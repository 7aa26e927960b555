"""Terms: one normal form for documents and queries, scripts without spaces, identifiers, and ranges of what matched."""

# ruff: noqa: RUF001 (letters that look alike are what is tested)

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latelier.indexes.words import MAX_TERMS, document_terms, matched_ranges, query_terms, query_words

# Spellings of one word.
SPELLINGS = [
    ("Straße", "STRASSE", "strasse", "ſtraſſe"),
    ("cœur", "CŒUR", "coeur", "cœ\u0301ur"),
    ("encyclopædia", "Encyclopaedia"),
    ("café", "cafe\u0301", "CAFE", "ｃａｆé"),
    ("file", "ﬁle", "fi\u00adle", "fi\u200ble", "fi\ufeffle", "fi\u2060le"),
    ("office", "oﬃce"),
    ("كتاب", "كِتَاب", "كـتـاب", "ﻛﺘﺎب"),
    ("مدرسه", "مُدَرِّسه"),
    ("שלום", "שָׁלוֹם"),
    ("می\u200cخواهم", "میخواهم"),
    ("İstanbul", "istanbul", "\u0131stanbul"),
    ("Łódź", "lodz"),
    ("ёлка", "Елка"),
    ("ΣΊΣΥΦΟΣ", "Σίσυφος"),
    ("Việt", "viet"),
    ("١٢٣", "123", "１２３"),
    ("ガス", "ｶﾞｽ", "カ\u3099ス"),
    ("한글", unicodedata.normalize("NFD", "한글")),
    ("हिन्दी", unicodedata.normalize("NFD", "हिन्दी")),
]


@pytest.mark.parametrize("tokenizer", ["porter", "standard"])
@pytest.mark.parametrize("spellings", SPELLINGS)
def test_spellings_of_a_word_have_one_term(spellings, tokenizer):
    first, *others = (query_terms(each, tokenizer) for each in spellings)
    assert first
    assert others == [first] * len(others)
    for document in spellings:
        for query in spellings:
            assert set(query_terms(query, tokenizer)) <= set(document_terms(f"({document})", tokenizer))


@pytest.mark.parametrize(
    ("one", "other"), [("мой", "мои"), ("हिन्दी", "हन्दी"), ("が", "か"), ("ข้าว", "ขาว"), ("word", "ward"), ("x2", "x²3")]
)
def test_other_words_have_other_terms(one, other):
    assert query_terms(one, "standard") != query_terms(other, "standard")


def test_endings_of_english_words_count_for_one_tokenizer():
    assert query_terms("running runs", "porter") == {"run": 2}
    assert list(query_terms("running runs", "standard")) == ["running", "runs"]


UNSPACED = {
    "我们在北京大学学习数据库检索系统。": ["北京大学", "数据库", "学习", "库"],
    "東京タワーに登った後、図書館へ行きました。": ["図書館", "タワー", "東京"],
    "ฉันชอบกินข้าวผัดที่ตลาด": ["ข้าวผัด", "ตลาด", "กิน"],
    "ຂ້ອຍຮັກພາສາລາວ": ["ພາສາ"],
    "ខ្ញុំរៀនភាសាខ្មែរ": ["ភាសា"],
    "မြန်မာဘာသာစကား": ["ဘာသာ"],
    "도서관에서 책을 읽었다": ["도서관", "책"],
    "步2 重跑gen-itgc后50条悬空引用清零": ["itgc", "悬空", "gen", "50", "步"],
    "API設計v2です": ["api", "設計", "V2"],
}


@pytest.mark.parametrize("text", UNSPACED)
def test_words_within_sentences_without_spaces_are_found(text):
    terms = set(document_terms(text, "porter"))
    for query in UNSPACED[text]:
        asked = query_terms(query, "porter")
        assert asked
        assert set(asked) <= terms, query
    others = [query for other in UNSPACED if other != text for query in UNSPACED[other]]
    assert not any(terms.issuperset(query_terms(query, "porter")) for query in others)


def test_pairs_of_characters_are_terms_and_single_ones_of_documents_too():
    assert list(query_terms("数据库", "porter")) == ["数据", "据库"]
    assert document_terms("数据库", "porter") == ["数", "据", "库", "数据", "据库"]
    assert list(query_terms("数", "porter")) == document_terms("数", "porter") == ["数"]


def test_identifiers_are_also_indexed_by_their_parts():
    assert document_terms("parseHTTPHeader PDFs", "standard") == ["parsehttpheader", "parse", "http", "header", "pdfs"]
    assert list(query_terms("parseHTTPHeader", "standard")) == ["parsehttpheader"]
    assert list(query_terms("parse_http_header", "standard")) == ["parse", "http", "header"]


@pytest.mark.parametrize("cut", ["inter-\nnational", "inter\u00ad\r\n  national", "Inter\u2010 \nnational"])
def test_a_word_that_the_end_of_a_line_cuts_is_found_whole_and_in_parts(cut):
    for query in ("international", "inter", "national", cut):
        assert set(query_terms(query, "porter")) <= set(document_terms(f"the {cut} law", "porter"))
    start, end = matched_ranges("international", [f"the {cut} law"], "porter")[0][0]
    assert f"the {cut} law"[start:end] == cut
    assert document_terms("Anglo-\nSaxon", "standard") == ["anglo", "saxon"]
    assert document_terms("a-\nb-\nc", "standard") == ["a", "b", "c", "ab", "bc"]


MATCHES = [
    ("strasse", "Die Straße ist lang", ["Straße"]),
    ("file", "a ﬁle, the fi\u00adles", ["ﬁle", "fi\u00adles"]),
    ("数据库", "学习数据库检索", ["数据库"]),
    ("itgc", "重跑gen-itgc后", ["itgc"]),
    ("ガ", "ｶﾞｽの", ["ｶﾞ"]),
    ("كتاب", "هذا كِتَاب جيد", ["كِتَاب"]),
    ("http", "parseHTTPHeader", ["HTTP"]),
    ("half 2", "½ of it", ["½"]),
    ("nothing", "here", []),
]


@pytest.mark.parametrize(("query", "text", "parts"), MATCHES)
def test_ranges_are_those_of_the_characters_that_matched(query, text, parts):
    [ranges] = matched_ranges(query, [text], "porter")
    assert [text[start:end] for start, end in ranges] == parts


def test_words_of_a_query_are_told_as_they_are_spelled():
    assert query_words("The Straße, the STRASSE") == ["The", "Straße"]
    assert query_words(" .,;!? \u200b") == []


def test_a_query_has_a_limit_of_terms():
    words = [f"w{i}" for i in range(MAX_TERMS)]
    assert list(query_terms(" ".join([*words, "more"]), "porter")) == words
    assert list(query_terms(" ".join([*words[1:], *words[1:], "more"]), "standard")) == [*words[1:], "more"]
    assert list(query_terms("x" * 1_000_000, "porter")) == document_terms("x" * 300_000, "porter")


@given(st.text(max_size=80))
@settings(max_examples=300, deadline=None)
@example("ǅ İ ŉ ﷺ \u0958 \U0001d15e \u200d\u0301")
@example("a\u0301\u200b\u0302b\u00ad\nc")
def test_any_text_is_found_by_itself(text):
    for tokenizer in ("porter", "standard"):
        terms = document_terms(text, tokenizer)
        assert set(query_terms(text, tokenizer)) <= set(terms)
        assert all(term and not set(term) & set(' \n"\0') for term in terms)
        [ranges] = matched_ranges(text, [text], tokenizer)
        assert bool(ranges) == bool(terms)
        assert all(start < end for start, end in ranges)
        for form in ("NFC", "NFD"):
            assert set(query_terms(unicodedata.normalize(form, text), tokenizer)) == set(query_terms(text, tokenizer))
