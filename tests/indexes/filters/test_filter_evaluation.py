"""Filters over every kind of index: what they find, what is cached, and how they say what is wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import matrices

from latelier import indexes
from latelier.errors import InvalidArgumentError

ROWS = {
    "a": {"year": 2019, "lang": "en", "open": True, "tags": ["x", "y"], "score": 0.5},
    "b": {"year": 2020, "lang": "de", "open": False, "author": {"name": "Ada", "born": 1815}},
    "c": {"year": 2021, "lang": "EN", "big": 2**70, "id": "metadata", "Text": "metadata"},
    4: {"year": "2021", 'odd "name" é': 1, "number": 9, "number_": 8, "rowid": 7, "f0": 6, "select": 5, "": None},
    "e": None,
}
del ROWS[4][""]


@pytest.fixture
def index(index):
    texts = ["plain", None, "it's", "four", "x"]
    index.add(list(ROWS), matrices([1] * len(ROWS)), texts=texts, metadata=list(ROWS.values()))
    return index


def found(index, filter, parameters=()):
    hits = index.search(matrices([1])[0], filter=filter, parameters=parameters)[0]
    return sorted((hit.id for hit in hits), key=str)


@pytest.mark.parametrize(
    ("filter", "parameters", "ids"),
    [
        ("year >= 2020 AND lang = ?", ("de",), ["b"]),
        ("year >= :from AND year < :to", {"from": 2019, "to": 2021}, ["a", "b"]),
        ("YEAR = ?", (np.int64(2019),), ["a"]),
        ("year = '2021'", (), [4]),
        ("lang LIKE 'en'", (), ["a", "c"]),
        ("open", (), ["a"]),
        ("open = ?", (False,), ["b"]),
        ("NOT open OR score BETWEEN 0.4 AND 0.6", (), ["a", "b"]),
        ("big > 1e20", (), ["c"]),
        ("id IN ('a', 4, '5')", (), [4, "a"]),
        ("text = 'it''s'", (), ["c"]),
        ("text IS NULL", (), ["b"]),
        ("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", ("y",), ["a"]),
        ("json_extract(author, '$.born') < 1900", (), ["b"]),
        ("metadata ->> '$.id' = 'metadata' AND json_extract(metadata, '$.Text') = 'metadata'", (), ["c"]),
        ('"odd ""name"" é" = 1', (), [4]),
        ("number = 9 AND number_ = 8 AND rowid = 7 AND f0 = 6", (), [4]),
        ("lower(lang) = 'en' /* ; ) */ AND ';)' <> '('", (), ["a", "c"]),
        ("NULL", (), []),
    ],
)
def test_filters_find_what_sql_would(index, filter, parameters, ids):
    assert found(index, filter, parameters) == ids


def test_names_ignore_case_and_the_first_spelling_in_a_document_counts(index):
    both = {"LANG": "fr", "lang": "it"}
    index.add(["both", "other"], matrices([1, 1]), metadata=[both, {"Lang": "fr"}])
    assert found(index, "lang = 'fr'") == ["both", "other"]
    assert found(index, "metadata ->> '$.lang' = 'it'") == ["both"]
    assert index.get("both").metadata == both


def test_filters_follow_updates_and_removals(index):
    index.update("a", matrices([1])[0], metadata={"year": 1900, "fresh": 1})
    index.remove("b")
    assert found(index, "year < 2021") == ["a"]
    assert found(index, "fresh") == ["a"]
    index.compact()
    assert found(index, "year <= 2021") == ["a", "c"]


def test_more_keys_than_columns_are_reached_through_the_json():
    index = indexes.Flat()
    index.add("a", matrices([1])[0], metadata={f"k{i}": i for i in range(600)} | {"an odd key": 1})
    assert found(index, "k499 = 499 AND metadata ->> '$.k599' = 599") == ["a"]
    assert found(index, """metadata ->> '$."an odd key"' = 1""") == ["a"]
    with pytest.raises(InvalidArgumentError, match=r"first 500 keys .*metadata ->> '\$\.key'"):
        found(index, "k599 = 599")


@pytest.mark.parametrize(
    ("filter", "parameters", "message"),
    [
        ("yaer > 2020", (), "'yaer'. Did you mean 'year'.*fields are: year, lang"),
        ("year > ?", (), "received 0 values, but expected 1"),
        ("year > :x", {"y": 1}, "values for 'y', but no value for 'x'"),
        ("json_extract(lang, '$.x')", (), "cannot be evaluated: malformed JSON"),
        ("", (), "received '' as a filter"),
    ],
)
def test_what_is_wrong_with_a_filter_is_said(index, filter, parameters, message):
    with pytest.raises(InvalidArgumentError, match=message):
        found(index, filter, parameters)


KEYWORDS = ["true", "FALSE", "null", "id", "Metadata", "rowid", "oid", "select", "number", "current_time", "f1", "\0"]
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(KEYWORDS)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(names, values, min_size=1, max_size=4))
def test_any_key_can_be_named_and_any_value_found(metadata):
    """Of keys that differ by ASCII case the first one counts; a few names are SQL's or the document's own."""
    index = indexes.Flat()
    index.add(["it", "other"], matrices([1, 1]), metadata=[metadata, None])
    assert index.get("it").metadata == metadata
    seen = {"id", "text", "metadata", "true", "false"}
    for key, value in metadata.items():
        folded = "".join(c.lower() if c.isascii() else c for c in key)
        if folded not in seen and "\0" not in key:
            name = '"' + key.replace('"', '""') + '"'
            assert found(index, f"{name} IS ?", (value,)) == (["it", "other"] if value is None else ["it"])
        seen.add(folded)


@pytest.mark.parametrize("filter", ["tags = 'x'", "year > 2000 AND 'x' = Tags", "tags IN ('x', 'z')", "tags = ?"])
def test_a_list_that_is_compared_with_a_value_is_told_with_how_to_ask(filter, recwarn):
    index = indexes.Flat()
    index.add(["a", "b"], matrices([1, 1]), metadata=[{"tags": ["x", "y"], "year": 2019}, {"year": 2020}])
    assert found(index, filter, ("x",) if "?" in filter else ()) == []
    told = [str(each.message) for each in recwarn]
    assert len(told) == 1
    assert "tags holds lists" in told[0]
    asked = told[0].rpartition(": ")[2]
    assert found(index, asked) == ["a"]
    recwarn.clear()
    assert found(index, "year = 2021") == []
    assert found(index, 'tags = \'["x","y"]\'') == ["a"]
    assert not recwarn.list
