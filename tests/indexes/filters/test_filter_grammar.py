"""The grammar of filters: what it accepts means what it means in SQL, and what it refuses is named."""

import itertools
import json
import random
import re
import sqlite3

import numpy as np
import pytest
from filter_fuzzer import ROWS, random_filter, words
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from latelier import indexes
from latelier.errors import InvalidArgumentError

QUERY = np.ones((1, 2))
IDS = [f"d{i}" for i in range(len(ROWS))]
TEXTS = [None if i % 7 == 0 else f"Text {i}% it's" for i in range(len(ROWS))]


@pytest.fixture(scope="module")
def index():
    index = indexes.Flat()
    index.add(IDS, [np.ones((1, 2))] * len(IDS), texts=TEXTS, metadata=ROWS)
    return index


@pytest.fixture(scope="module")
def plain():
    connection = sqlite3.connect(":memory:")
    names = list(ROWS[0])
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    connection.execute(f"CREATE TABLE plain (id, text TEXT, metadata TEXT, {columns})")
    for id, text, row in zip(IDS, TEXTS, ROWS, strict=True):
        fields = [json.dumps(row[name]) if isinstance(row[name], (list, dict)) else row[name] for name in names]
        values = [id, text, json.dumps(row), *fields]
        connection.execute(f"INSERT INTO plain VALUES ({', '.join('?' * len(values))})", values)
    return connection


def found(index, filter, parameters=(), **options):
    hits = index.search(QUERY, k=100, filter=filter, parameters=parameters, **options)[0]
    return [hit.id for hit in hits]


ACCEPTED = [
    "year <> 2001 AND typeof(year) = 'integer'",
    "score > 1e0 AND NOT score >= 0x2",
    "NOT lang IN ('en', 'de')",
    "lang IS NULL",
    "lang IS DISTINCT FROM 'en'",
    "open IS NOT TRUE",
    "score NOT BETWEEN 0 AND 1",
    "lang LIKE 'e_'",
    "text LIKE '%1!%%' ESCAPE '!'",
    "lang GLOB 'e*'",
    "lang = 'en' COLLATE NOCASE",
    "author ->> '$.born' % 10 = 5",
    "author -> '$.names' ->> '$[0]' = 'A' AND id = 'd1'",
    "json_extract(metadata, '$.tags[0]', '$.lang') = '[\"x\",\"en\"]'",
    "score * 4 + 8 = 3 - -2 * 1",
    "CASE lang WHEN 'en' THEN open WHEN 'EN' THEN 1 ELSE 0 END",
    "max(score, 0) = 0 AND coalesce(lang, 'none') = 'none'",
    "date('2020-01-01', '+1 day') = '2020-01-02' AND open",
    "x'656e' = CAST(lang AS BLOB)",
    '"odd ""name"" é" = 3 OR [odd "name" é] = 4 OR `odd "name" é` = 5',
    "json_valid(tags) AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value = 'y')",
    "json_valid(tags) AND NOT EXISTS (SELECT * FROM json_each(tags))",
    "CASE WHEN json_valid(tags) THEN 'x' IN (SELECT value FROM json_each(tags)) END",
    "2 IN (SELECT value FROM json_each(author, '$.names[1].B') AS b WHERE b.key = 1)",
    "'name' IN (SELECT json_each.key FROM json_each(author)) AND open",
    "EXISTS (SELECT 1 FROM json_each('[2001, 2002]') a WHERE EXISTS "
    "(SELECT 1 FROM json_each('[' || a.value || ']') WHERE value = year))",
    "/* a ) */ open -- ( b\n AND score > 0",
    "9223372036854775807 < 9223372036854775808 AND -9223372036854775808 < 1e999 AND open",
    "OPEN and Not Score < 0",
]


@pytest.mark.parametrize("filter", ACCEPTED)
def test_filters_mean_what_they_mean_in_sql(index, plain, filter):
    if "DISTINCT" in filter and sqlite3.sqlite_version_info < (3, 39):
        pytest.skip("this SQLite has no IS DISTINCT FROM")
    assert found(index, filter) == [id for (id,) in plain.execute(f"SELECT id FROM plain WHERE {filter}\n")]


@pytest.mark.parametrize(
    ("filter", "parameters", "ids"),
    [
        ("id = ?2 OR id = ?1", ("d1", "d2"), ["d1", "d2"]),
        ("id = ?2 OR id = ?", ("d1", "d2", "d3"), ["d2", "d3"]),
        ("id = ? OR id = :other OR id = ?", ("d1", "d2", "d3"), ["d1", "d2", "d3"]),
        ("id = :a OR id = @b OR id = $c", {"a": "d1", "b": "d2", "c": "d3", "unused": 0}, ["d1", "d2", "d3"]),
        (":é$1 = id OR :é$1 = text", {"é$1": "d1"}, ["d1"]),
        ("id IN (SELECT value FROM json_each(?))", ('["d1", "d5", "t2"]',), ["d1", "d5"]),
        (["id > 'd'", "id = ? OR id = ?", "id <> ?"], ("d1", "d2", "d2"), ["d1"]),
        (("id = ?2 OR id = ?1", "id <> ?1"), ("d1", "d2", "d2"), ["d1"]),
        (["id = :a OR id = :b", "id <> :b"], {"a": "d1", "b": "d2"}, ["d1"]),
        (["replace(lang, 'e', ?) = 'een'", "id = ?"], ("ee", "d0"), ["d0"]),
        (["open OR 1 -- all", "id = 'd1'"], (), ["d1"]),
    ],
)
def test_parameters_stand_for_values(index, filter, parameters, ids):
    assert found(index, filter, parameters) == ids


REJECTED = [
    ("year = ", "rejected at its end: expected a field, a value"),
    ("year = NOT 1", "'NOT' .*: put NOT and its operand in parentheses"),
    ("1, 2", "',' .*several values are allowed only after IN"),
    ("CAST(year AS DATE)", "'DATE' .*expected one of the types int"),
    ("year & 1", "'&' .*no number, name or operator of filters"),
    ("max(year) > 1", r"misuse of aggregate"),
    ("(SELECT 1)", "'SELECT' .*the only queries within a filter are EXISTS"),
    ("EXISTS (SELECT 1 FROM document)", "'document' .*the only queries within a filter"),
    ("EXISTS (SELECT 1 FROM json_each(tags) UNION SELECT 1)", "'SELECT'"),
    ("document.year = 1", "'document' .*a dot is allowed only between"),
    ("lang = bisect", "unknown field 'bisect'. Write strings in single quotes"),
    ("year = 1; DROP TABLE document", "';' .*no number, name or operator"),
    ("lang = 'en", 'at "\'" .*strings stand in single quotes'),
    ("year > 12abc", "'12abc' .*no number, name or operator"),
    ("lang = '\ud800'", "is rejected at"),
    ("rowid = 1", "unknown field 'rowid'"),
    ([], r"received \[\] as a filter"),
    (["open", "1) OR (1"], r"'1\) OR \(1' is rejected at '\)' \(character 1\)"),
    (["open", "yeer = 1"], "'yeer = 1' is rejected at 'yeer'"),
]


@pytest.mark.parametrize(("filter", "message"), REJECTED)
def test_rejected_filters_name_the_place_and_the_reason(index, filter, message):
    with pytest.raises(InvalidArgumentError, match=message):
        found(index, filter)


def test_a_question_that_looks_like_an_earlier_one_is_answered_by_itself():
    """What was found is kept by the filter and its values: 1, 1.0 and "1" are others, and so are names and strings."""
    index = indexes.Flat()
    index.add(["a", "b"], [np.ones((1, 2))] * 2, metadata=[{"x": 1, 'x" OR "y': 0}, {"y": 1, 'x" OR "y': 1}])
    for _ in range(2):
        assert found(index, "x OR y") == ["a", "b"]
        assert found(index, '"x"" OR ""y"') == ["b"]
        assert found(index, "'x' = 'y'") == []
        for value, kind in ((1, "integer"), (1.0, "real"), ("1", "text"), (True, "integer")):
            assert found(index, "x IS NOT NULL AND typeof(?) = 'integer'", [value]) == ["a"] * (kind == "integer")


COLUMNS = ["year", "lang", "score", "open", "id", "text", '"odd ""name"" é"']
LITERALS = ["0", "1", "2005", "-1.5", "'en'", "'it''s'", "''", "NULL", "TRUE", "x'656e'", "'%e%'", "'2004'"]
BINARY = [*words("= == <> != < <= > >= IS AND OR + - * / % || LIKE GLOB"), "IS NOT"]
values = st.sampled_from(COLUMNS + LITERALS)
NO = st.sampled_from(["", "NOT "])


def build(template, *parts):
    return st.builds(template.format, *parts)


# Without any parentheses but SQL's own, so that what binds stronger has to be the same.
expressions = st.deferred(
    lambda: (
        values
        | build("{} {} {}", expressions, st.sampled_from(BINARY), expressions)
        | build("({})", expressions)
        | build("NOT {}", expressions)
        | build("{} {}", st.sampled_from(["-", "+"]), expressions)
        | build("{} {}BETWEEN {} AND {}", values, NO, values, expressions)
        | build("{} {}IN ({}, {})", values, NO, expressions, expressions)
        | build("{} {}", expressions, st.sampled_from(["ISNULL", "NOTNULL", "NOT NULL"]))
        | build("({}) COLLATE NOCASE", expressions)
        | build("CASE {} WHEN {} THEN {} ELSE {} END", expressions, expressions, values, expressions)
        | build("CASE WHEN {} THEN {} END", expressions, expressions)
        | build("CAST({} AS {})", expressions, st.sampled_from(["TEXT", "INTEGER", "REAL"]))
        | build("{}({})", st.sampled_from(["abs", "lower", "typeof", "length", "trim"]), expressions)
        | build("{}({}, {})", st.sampled_from(["max", "coalesce", "nullif", "instr"]), expressions, expressions)
        | build("EXISTS (SELECT 1 FROM json_each(metadata) WHERE {} = value)", values)
        | build("{} IN (SELECT value FROM json_each(author))", values)
    )
)


@settings(max_examples=100, deadline=None)
@given(expressions)
@example("open AND NOT year = 2001 OR lang")
@example("- id COLLATE NOCASE || 1 -> '$'")
def test_what_the_grammar_accepts_finds_what_sqlite_finds(index, plain, filter):
    try:
        got = found(index, filter)
    except InvalidArgumentError as error:
        # Beside its bounds, NOT after another operator is all of these that the grammar refuses.
        if not re.search("put NOT|cannot be evaluated|nested more|follow each other", str(error)):
            raise
        reject()
    assert got == [id for (id,) in plain.execute(f"SELECT id FROM plain WHERE ({filter}) ORDER BY rowid")], filter


OWN = {id for id, row in zip(IDS, ROWS, strict=True) if row["tenant"] == "t1"}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64))
def test_no_filter_finds_the_documents_of_another_tenant(index, seed):
    theirs, parameters = random_filter(random.Random(seed))
    try:
        assert OWN.issuperset(found(index, ["tenant = 't1'", theirs], parameters)), theirs
        # Accepted by itself, it may also stand in parentheses.
        assert OWN.issuperset(found(index, f"tenant = 't1' AND ({theirs}\n)", parameters)), theirs
    except InvalidArgumentError:
        pass


HOLES = [
    "{0}b('))) UNION SELECT number FROM document /* ')",
    "1) UNION SELECT number FROM document -- ",
    "1) OR (1",
    "1)) OR ((1",
    "1\x00) OR (1",
    "{0}a::b(') OR (1)",
    "`1) OR (1",
    "1 OR tenant = 't2') --\n OR (1",
]


@pytest.mark.parametrize("hole", HOLES)
def test_no_parameter_leaves_its_parenthesis(index, hole):
    for mark, parameters in itertools.product(":@$#?", ((), (0,), {"b(')": 0, "b": 0, "a": 0})):
        with pytest.raises(InvalidArgumentError, match=r"(?s)the filter .* is rejected at"):
            found(index, ["tenant = 't1'", hole.format(mark)], parameters)


@pytest.mark.parametrize(
    "filter",
    [
        "1); DROP TABLE document; --",
        "1 UNION SELECT number FROM document",
        "EXISTS (SELECT 1 FROM sqlite_master)",
        "EXISTS (SELECT 1 FROM pragma_database_list)",
        "EXISTS (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 1 FROM c WHERE x < 0)",
        "load_extension('x')",
        "length(randomblob(1000000000)) > 0",
        "(DELETE FROM document)",
        "ATTACH 'other.sqlite' AS other",
    ],
)
def test_hostile_filters_are_rejected(index, filter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"(?s)the filter .* is rejected at"):
        found(index, filter)
    assert index.ids() == IDS
    assert not list(tmp_path.iterdir())
