"""Filters of Qdrant: what is translated selects what SQLite selects, and all else is rejected by name."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latelier import indexes
from latelier.errors import InvalidArgumentError

VALUES = [None, 0, 1, -3, 2, 2.0, 2.5, 2**53, 2**53 + 1, -(2**63), 2**70, True, "", "a", "A", "b*", "1x", "0", "2", "ü"]
ROWS = [
    {"n": value, "s": VALUES[-1 - i], "tags": [value, ["x"], None], 'odd "100%" é.': value}
    for i, value in enumerate(VALUES)
]
ROWS += [{}, {"n": ["a", 2], "tags": {"k": 2.0}}, {"tags": 2}, {"tags": []}, {"N": 7, "n": 8}, {"n": None, "N": 8}]
IDS = [f"d{i}" if i % 2 else i - 5 for i in range(len(ROWS))]
TEXTS = [None if i % 3 == 0 else f"text {i}: wing" for i in range(len(ROWS))]


@pytest.fixture(scope="module")
def both():
    made = [indexes.Flat(), indexes.Qdrant()]
    for index in made:
        index.add(IDS, [np.ones((1, 2))] * len(IDS), TEXTS, ROWS)
    yield made
    for index in made:
        index.close()


def selected(index, filter, parameters=()):
    return [hit.id for hit in index.search(np.ones((1, 2)), 99, filter=filter, parameters=parameters)[0]]


column = st.sampled_from(["n", "s", '"odd ""100%"" é."', "id"])
content = st.sampled_from(["text", "metadata"])
field = st.sampled_from(["n", "s", '"odd ""100%"" é."'])
numeric = ["0", "1", "-3", "2", "2.0", "2.5", "-(-2)", "0x2", "9007199254740993", "-9223372036854775808", "1e19"]
texts = ["''", "'a'", "'A'", "'b*'", "'1x'", "'2'", "'ü'", "'d1'", "'text 1: wing'"]
literal = st.sampled_from([*numeric, *texts, "NULL", "TRUE", "FALSE"])
string = st.sampled_from([*texts, "NULL"])
number = st.sampled_from(["0", "1", "-3", "2.0", "2.5", "1e19", "1e300", "NULL", "9007199254740992"])
negation = st.sampled_from(["", "NOT "])
comparison = st.one_of(
    st.builds("{} {} {}".format, column, st.sampled_from(["=", "<>", "!=", "IS", "IS NOT", "=="]), literal),
    st.builds("{} {} {}".format, literal, st.sampled_from(["=", "<>", "IS"]), column),
    st.builds("{} {} {}".format, content, st.sampled_from(["=", "<>", "IS", "IS NOT"]), string),
    st.builds("{} {}IN ({})".format, content, negation, st.lists(string, max_size=3).map(", ".join)),
    st.builds("{} {}".format, content, st.sampled_from(["IS NULL", "NOTNULL", "GLOB '*wing*'"])),
    st.builds("{} IS {}DISTINCT FROM {}".format, column, negation, literal),
    st.builds("{} {} {}".format, column, st.sampled_from(["<", "<=", ">", ">="]), number),
    st.builds("{} {} {}".format, number, st.sampled_from(["<", "<=", ">", ">="]), column),
    st.builds("{} {}IN ({})".format, column, negation, st.lists(literal, max_size=3).map(", ".join)),
    st.builds("{} {}BETWEEN {} AND {}".format, column, negation, number, number),
    st.builds("{} {}".format, column, st.sampled_from(["IS NULL", "IS NOT NULL", "ISNULL", "NOTNULL", "NOT NULL"])),
    st.builds("{} IS {}".format, field, st.sampled_from(["TRUE", "FALSE", "NOT TRUE", "NOT FALSE"])),
    st.builds("{} {}GLOB {}".format, column, negation, st.sampled_from(["'a*'", "'*wing*'", "'ü'"])),
    st.builds("{}EXISTS (SELECT 1 FROM json_each(tags) WHERE value = {})".format, negation, literal),
    st.builds("{} {} {}".format, literal, st.sampled_from(["=", "<", "<>", "IS"]), literal),
    field,
    literal,
)
expression = st.recursive(
    comparison,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("({}) IS {}".format, inner, st.sampled_from(["NULL", "NOT NULL", "TRUE", "NOT FALSE"])),
    ),
    max_leaves=5,
)


# The order of large integers, and whether an id or a text is true.
REFUSED = (
    r"[<>=] 9007199254740992|9007199254740992 [<>=]|(BETWEEN|AND) 9007199254740992"
    r"|id IS (NOT )?(DISTINCT FROM )?(TRUE|FALSE)"
)


@given(expression)
def test_random_filters_select_what_sqlite_does(both, filter):
    flat, qdrant = both
    found = selected(flat, filter)
    if re.search(REFUSED, filter):
        with pytest.raises(InvalidArgumentError, match="has no condition for"):
            selected(qdrant, filter)
    else:
        assert selected(qdrant, filter) == found


@pytest.mark.parametrize(
    ("filter", "parameters"),
    [
        ("n = :n AND s <> :s", {"s": "a", "n": 2}),
        (["n IN (?, ?)", "NOT tags IS NULL"], (2, "a")),
        ("n IN (SELECT value FROM json_each(?))", ['[2, "a", null]']),
        ("n NOT IN (SELECT value FROM json_each(?))", ['[2, "a"]']),
        ("EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value IN (?, ?, ?))", ("a", 2, '["x"]')),
        ("n < ?", [float("inf")]),
        ("s GLOB '*'", ()),
        ("metadata = '{}'", ()),
        ("n = 1 + ? OR s = lower('A')", [1]),
    ],
)
def test_filters_select_what_sqlite_does(both, filter, parameters):
    flat, qdrant = both
    assert selected(qdrant, filter, parameters) == selected(flat, filter, parameters)


@pytest.mark.parametrize(
    ("filter", "what"),
    [
        ("s < 'b'", "order of strings"),
        ("n > 9007199254740993", r"order of integers beyond 2\^53"),
        ("s LIKE 'a%'", "ignores the case of letters"),
        ("s GLOB '*a'", r"the wildcard is \* at the end"),
        ("text = 5", "text = 5 .*give a str"),
        ("n + 1 = 2", r"n \+ 1"),
        ("length(s) > 2", r"length\(s\)"),
        ("'a' IN (SELECT value FROM json_each(tags))", "for a field, use EXISTS"),
        ("EXISTS (SELECT 1 FROM json_each(tags) WHERE value > 1)", "its condition is value = "),
    ],
)
def test_what_qdrant_has_no_condition_for_is_named(both, filter, what):
    with pytest.raises(InvalidArgumentError, match=f"no condition for .*{what}"):
        selected(both[1], filter)


@pytest.mark.parametrize("value", ["1", "2.0", "'a'", "NULL", "TRUE"])
def test_strings_that_are_json_have_elements(value):
    rows = [{"tags": tags} for tags in ["[1, 2]", '"a"', ' {"k": "a"}', "2", "null", "true", ["a"], 2, "[]"]]
    flat, qdrant = indexes.Flat(), indexes.Qdrant()
    for index in (flat, qdrant):
        index.add(range(len(rows)), [np.ones((1, 2))] * len(rows), metadata=rows)
    for filter in ("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = {})", "tags NOT IN ({}, '2')"):
        found = selected(flat, filter.format(value))
        assert selected(qdrant, filter.format(value)) == found
    assert selected(qdrant, "tags NOT IN (SELECT value FROM json_each(?))", ["null"]) == []


def test_filters_of_fields_that_differ_in_case(both):
    assert selected(both[1], "N = 7") == selected(both[0], "N = 7") == [IDS[-2]]
