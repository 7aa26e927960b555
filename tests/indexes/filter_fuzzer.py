"""Random filters: valid ones, valid ones with a flaw, and tokens in no order, as a stranger might send them."""

import random


def words(text):
    return text.split()


FIELDS = ["tenant", "year", "lang", "score", "open", "tags", "author", "id", "text", "metadata", '"odd ""name"" é"']
ROWS = [
    {
        "tenant": f"t{i % 3}",
        "year": 2000 + i if i % 4 else str(2000 + i),
        "lang": ["en", "EN", "de", "it's", None][i % 5],
        "score": i / 4 - 2,
        "open": bool(i % 2),
        "tags": [["x", "y"], [], ["y", 1, None], "x"][i % 4],
        "author": {"name": "Ada", "born": 1815 + i, "names": ["A", {"B": [1, 2]}]},
        'odd "name" é': i,
    }
    for i in range(24)
]
_BINARY = words("= == <> != < <= > >= IS AND OR + - * / % || LIKE GLOB -> ->> and Or")
_CALLS = {
    1: words("abs length lower typeof upper json_valid date datetime julianday unixepoch trim round"),
    2: words("coalesce ifnull instr max min nullif round trim json_extract substr"),
    3: words("coalesce iif max min replace substr"),
}
_PATHS = ["'$.born'", "'$.names[1].B'", "'$'", "'$[0]'", "1", "'"]
_HOSTILE = [
    *words("( ) ( ) , ; . ' \" ` [ ] -- /* */ \\ # ! $ : @ ? ?1 ?2 ?0 ?32766 ?99999 :a @a $a :a::b $a(x)"),
    *words("\0 \x1a \ud800 \u0130"),
    *words("UNION ALL SELECT FROM WHERE document content segment setting field sqlite_master json_each json_tree"),
    *words("pragma_database_list number rowid oid f0 f1 document.tenant content.text WITH RECURSIVE AS VALUES LIMIT"),
    *words("ORDER BY GROUP HAVING JOIN ON EXISTS IN NOT NULL ISNULL NOTNULL BETWEEN ESCAPE COLLATE NOCASE CAST CASE"),
    *words("WHEN THEN ELSE END DISTINCT TRUE FALSE ATTACH PRAGMA DROP TABLE DELETE INSERT UPDATE RAISE MATCH REGEXP"),
    *words("count(*) hex( strftime( ~ & | << >> load_extension( randomblob(1e9) zeroblob( printf( current_time"),
    *words("writefile( fts3_tokenizer("),
    *words("1 0 -1 1.5 .5 1e999 0x7f 0xffffffffffffffffff 9223372036854775808 x'00' x'0' 1_000 '' 't2' 'a''b'"),
    "SELECT number FROM document",
    "$b('))) UNION SELECT number FROM document /* ')",
    ") OR (1",
    "1) UNION SELECT number FROM document --",
    "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = 'x')",
    "IN (SELECT value FROM json_each(",
    "OR 1 = 1",
    "OR tenant = 't2'",
    "\n",
    "\t",
]
_VALUES = [0, 1, -1, 2010, 2**63 - 1, 2**70, 1.5, float("nan"), float("inf"), "", "en", "t2", "%", "$.born"]
_VALUES += ['["t1", "t2"]', None, True, b"x", "\ud800", [1], "') OR 1 = 1 --", "a" * 1000]


def random_filter(rng: random.Random) -> tuple[str, object]:
    kind = rng.random()
    expression = _soup(rng) if kind < 0.3 else _expression(rng, rng.randrange(1, 5))
    for _ in range(rng.randrange(1, 4) if kind > 0.65 else 0):
        expression = _flawed(rng, expression)
    values = [rng.choice(_VALUES) for _ in range(expression.count("?") if rng.random() < 0.9 else rng.randrange(4))]
    return expression, {"a": rng.choice(_VALUES), "b": 1} if rng.random() < 0.2 else tuple(values)


def _soup(rng: random.Random) -> str:
    tokens = rng.choices(_HOSTILE + FIELDS + _BINARY, k=rng.randrange(1, 14))
    return rng.choice(["", " "]).join(tokens) if rng.random() < 0.3 else " ".join(tokens)


def _flawed(rng: random.Random, expression: str) -> str:
    first, last = sorted(rng.randrange(len(expression) + 1) for _ in range(2))
    middle = rng.choice(["", rng.choice(_HOSTILE), f" {rng.choice(_HOSTILE)} ", expression[first:last] * 2])
    return expression[:first] + middle + expression[last if rng.random() < 0.5 else first :]


def _expression(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return _operand(rng)
    first, second, third = (_expression(rng, depth - rng.randrange(1, depth + 1)) for _ in range(3))
    no = rng.choice(["", "NOT "])
    count = rng.randrange(1, 4)
    return rng.choice(
        [
            f"{first} {rng.choice(_BINARY)} {second}",
            f"({first})",
            f"({first}) AND ({second})",
            f"NOT ({first})",
            f"{rng.choice('-+')}({first})",
            f"({first}) {no}IN ({second}, {third})",
            f"({first}) {no}BETWEEN ({second}) AND ({third})",
            f"({first}) {no}LIKE {_operand(rng)} ESCAPE '!'",
            f"({first}) IS {no}DISTINCT FROM ({second})",
            f"({first}) {rng.choice(['ISNULL', 'NOT NULL', 'IS TRUE', 'COLLATE NOCASE'])}",
            f"CASE WHEN {first} THEN {second} ELSE {third} END",
            f"CAST({first} AS {rng.choice(['TEXT', 'integer', 'REAL', 'BLOB', 'date'])})",
            f"{rng.choice(_CALLS[count])}({', '.join([first, second, third][:count])})",
            f"{rng.choice(['metadata', 'author', 'tags'])} {rng.choice(['->', '->>'])} {rng.choice(_PATHS)}",
            _subquery(rng, first, second),
        ]
    )


def _subquery(rng: random.Random, first: str, second: str) -> str:
    table = "json_each" if rng.random() < 0.95 else "json_tree"
    source = rng.choice(["tags", "metadata", "author, '$.names'", "?", "'[1, 2]'", first])
    alias = rng.choice(["", " AS item", " item"])
    column = rng.choice(["value", "key", "atom", "type", "fullkey", f"{'item' if alias else table}.value"])
    where = rng.choice(["", f" WHERE {column} = {_operand(rng)}", f" WHERE {second}"])
    if rng.random() < 0.5:
        selected = rng.choice(["1", "*", column])
        return f"{rng.choice(['', 'NOT '])}EXISTS (SELECT {selected} FROM {table}({source}){alias}{where})"
    return f"({first}) IN (SELECT {column} FROM {table}({source}){alias}{where})"


def _operand(rng: random.Random) -> str:
    literals = ["'en'", "'it''s'", "'%e%'", "0", "1", "2010", "1.5", "NULL", "TRUE", "x'6162'", "''", "'t1'", "'t2'"]
    return rng.choice([*FIELDS, *literals, "?", "?", ":a", "value", "year /* ) */", "lang -- '\n"])
