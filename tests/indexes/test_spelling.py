"""Words that no document has: which ones are asked about, and what they are nearly spelled as."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.spelling import asked_terms, edits, nearest_term, spelling

KNOWN = {
    "garlic": 3,
    "garden": 9,
    "onion": 2,
    "databas": 4,
    "intern": 1,
    "retriev": 5,
    "strasse": 1,
    "sailor": 2,
    "tailor": 7,
}


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("galric", "garlic"),
        ("garlik", "garlic"),
        ("garlicc", "garlic"),
        ("onoin", "onion"),
        ("databse", None),  # of a text; its term is databs
        ("databs", "databas"),
        ("failor", None),  # begins differently
        ("moonlight", None),
        ("", None),
    ],
)
def test_the_nearest_term_begins_alike_and_is_an_edit_away(term, expected):
    found = nearest_term(term, term, KNOWN)
    assert (found and found[1]) == expected


def test_long_words_may_have_two_edits_and_frequent_terms_come_first():
    known = {"international": 1, "aeroplane": 1, "aeroplans": 5}
    assert nearest_term("interantional", "interantional", known) == (1, "international")
    assert nearest_term("intrnatonal", "intrnatonal", known) == (2, "international")
    assert nearest_term("aeroplan", "aeroplan", known) == (1, "aeroplans")


def test_words_that_are_short_and_what_is_no_word_are_not_asked_about():
    text = "Galric in the onions: E4711x, xyz9999, 図書館にある, moon"
    assert asked_terms(text, "porter") == {"Galric": "galric", "onions": "onion"}


def test_a_term_is_shown_as_a_document_spells_it():
    assert spelling("databas", "All Databases here", "porter") == "databases"
    assert spelling("strasse", "Die Straße", "standard") == "straße"
    assert spelling("absent", "Die Straße", "standard") == "absent"


@given(st.text("abc", max_size=6), st.text("abc", max_size=6), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_edits_are_those_of_the_recursion(one, other, most):
    @cache
    def naive(i, j):
        if not i or not j:
            return i + j
        ways = [naive(i - 1, j) + 1, naive(i, j - 1) + 1, naive(i - 1, j - 1) + (one[i - 1] != other[j - 1])]
        if i > 1 and j > 1 and (one[i - 2], one[i - 1]) == (other[j - 1], other[j - 2]):
            ways.append(naive(i - 2, j - 2) + 1)
        return min(ways)

    expected = naive(len(one), len(other))
    assert min(edits(one, other, most), most + 1) == min(expected, most + 1)
