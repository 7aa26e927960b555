"""Filters: an SQL expression over the metadata of documents, such as ``year >= 2020 AND lang = ?``.

The columns are ``id``, ``text``, ``metadata`` (the exact JSON) and the keys of the metadata. A document without a key
has NULL in its column, so ``year >= 2020`` leaves the document out and ``year IS NULL`` finds it. Booleans are 0 and 1.
Lists and dicts are JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)``.

As in SQL, the case of ASCII letters in a key does not matter: ``lang`` and ``Lang`` are one column. If a document has
both, the column holds the first. The keys ``id``, ``text``, ``metadata``, ``true`` and ``false`` get no column, and at
most 500 keys get one. Any other value can be read from the JSON: ``metadata ->> '$.Lang'``.

Expressions may come from untrusted users. The parser accepts a part of SQL: comparisons, AND, OR and NOT, IN, BETWEEN,
IS NULL, LIKE and GLOB, arithmetic, ``||``, ``->`` and ``->>``, queries over json_each, CAST, CASE, COLLATE NOCASE, and
the functions abs, coalesce, date, datetime, ifnull, iif, instr, json_extract, json_valid, julianday, length, lower,
max, min, nullif, replace, round, substr, trim, typeof, unixepoch and upper. Literals are written anew and parameters
are bound. The evaluation has a time limit, a value may have up to 16 MiB, and less where one step would take long (on
Python 3.10, SQLite's own 1 GB), and SQLite denies everything except reading documents.

An expression becomes a tree of the nodes below, of which the SQL and Qdrant's conditions are made. The nodes hold only
words of SQL that this module writes, names of fields, literals and the numbers of parameters, so nothing of the user's
text reaches a statement. The operators bind as in SQLite, strongest last (`_LEVELS`); chains of one level stand in one
node, so a tree is as deep as its parentheses, whatever its length.
"""

from __future__ import annotations

import difflib
import math
import re
import sqlite3
import string
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes.options import Parameters
from latelier.utils.checks import cut, short

RESERVED = ("id", "text", "metadata")
_NOT_NAMEABLE = {*RESERVED, "true", "false"}  # SQLite reads the last two as constants in a subquery, even in quotes
MOST_FIELDS = 500
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold_name(name: str) -> str:
    """Return the form in which SQL compares names: ASCII letters in lower case, all others unchanged."""
    return name.translate(_FOLD)


def is_nameable(folded: str) -> bool:
    """Whether filters can name a key of the metadata, given as `fold_name` returns it."""
    # A null character would end the statement.
    return folded not in _NOT_NAMEABLE and "\0" not in folded


def new_fields(known: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return those of some metadata keys that become fields beside the known ones, up to 500 in all."""
    folded = {fold_name(key) for key in known}
    found = []
    for key in dict.fromkeys(keys):
        name = fold_name(key)
        if name not in folded and is_nameable(name) and len(folded) < MOST_FIELDS:
            folded.add(name)
            found.append(key)
    return found


class Token(NamedTuple):
    """One token of an expression: `text` is folded or without its quotes, `source` as the user wrote it."""

    kind: str
    text: str
    position: int
    source: str


# The nodes.


@dataclass(frozen=True)
class Literal:
    """A number, string, blob, TRUE, FALSE or NULL: `sql` is its one spelling."""

    sql: str
    value: Any


@dataclass(frozen=True)
class Parameter:
    """The value of the parameter with this index."""

    index: int


@dataclass(frozen=True)
class Field:
    """A column of the documents, by its folded name; `token` and `expression` say where the user named it."""

    name: str
    token: Token
    expression: str


@dataclass(frozen=True)
class ListColumn:
    """A column of the json_each with this number: its ``value``, ``key``, ..."""

    number: int
    column: str


@dataclass(frozen=True)
class Operation:
    """Operands, and the words of SQL before, between and behind them: one more than operands, empty ones included."""

    words: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Elements:
    """The query SELECT column FROM json_each(operands) WHERE where; of IN or EXISTS."""

    number: int
    column: str
    operands: tuple[Node, ...]
    where: Node | None


Node: TypeAlias = "Literal | Parameter | Field | ListColumn | Operation | Elements"


@dataclass(frozen=True)
class Filter:
    """A parsed filter: as the user gave it, its tree, and the name of each parameter, None for a ``?``."""

    expression: str
    tree: Node = field(hash=False)
    slots: tuple[str | None, ...]

    @property
    def fields(self) -> list[str]:
        """The folded names that it uses."""
        return list(dict.fromkeys(node.name for node in walk(self.tree) if isinstance(node, Field)))


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    yield node
    if isinstance(node, (Operation, Elements)):
        for operand in node.operands:
            yield from walk(operand)
    if isinstance(node, Elements) and node.where is not None:
        yield from walk(node.where)


FUNCTIONS = (
    *("abs", "coalesce", "date", "datetime", "ifnull", "iif", "instr", "json_extract", "json_valid", "julianday"),
    *("length", "lower", "max", "min", "nullif", "replace", "round", "substr", "trim", "typeof", "unixepoch", "upper"),
)
_TYPES = ("int", "integer", "bigint", "real", "float", "double", "numeric", "text", "varchar", "blob")
# The operators, the weakest first; `_comparison` reads those of the fourth row.
_LEVELS = (
    ("or",),
    ("and",),
    (),  # NOT before a value
    ("=", "==", "<>", "!=", "is", "isnull", "notnull", "not", "like", "glob", "between", "in"),
    ("<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
    ("||", "->", "->>"),
)
_LEVEL = {operator: level for level, row in enumerate(_LEVELS) for operator in row}
_NOT_LEVEL = 2
_COMPARISON = _LEVEL["="]
_CONSTANTS = {"true": Literal("TRUE", 1), "false": Literal("FALSE", 0), "null": Literal("NULL", None)}
_WORDS = {name for name in _LEVEL if name.isalpha()} | {*_CONSTANTS, "escape", "exists", "case", "when", "then", "else"}
_WORDS |= {"end", "cast", "collate", "as", "select", "from", "where", "distinct"}
_LIST_COLUMNS = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
_QUERIES = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)

_MOST_CHARACTERS = 100_000
_MOST_PARAMETERS = 32_766  # SQLite's limit
_MOST_DEPTH = 20  # the stack of SQLite's parser holds about 100 rules, and a function call takes five of them


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Return the parsed filter of a user, and the value of each of its parameters."""
    if isinstance(expression, (list, tuple)):
        expressions = expression
    else:
        expressions = [expression]
    if not expressions or not all(isinstance(each, str) and each.strip() for each in expressions):
        raise InvalidArgumentError(
            f"received {short(expression)} as a filter; give an SQL expression such as "
            "\"year >= 2020 AND lang = 'en'\", or a list of expressions that must all hold."
        )
    # A set has no order, in which its values could be given to several ?.
    if isinstance(parameters, (str, bytes, set, frozenset)) or not isinstance(parameters, Iterable):
        raise InvalidArgumentError(
            f"received {type(parameters).__name__} as the filter's parameters; give a tuple of values, or a dict for "
            ":name."
        )
    filter = parse_filter(*expressions)
    slots, given = filter.slots, parameters if isinstance(parameters, Mapping) else list(parameters)
    if isinstance(given, Mapping):
        missing = [slot for slot in slots if slot not in given]
        if missing:
            named = cut(", ".join(map(repr, given)) or "no name", 200)
            if None in missing:
                wanted = "a ? needs a tuple of values"
            else:
                wanted = f"no value for {cut(str(missing[0]))!r}"
            raise failed(filter, f"received values for {named}, but {wanted}")
        given = [given[slot] for slot in slots if slot is not None]
    if len(given) != len(slots):
        raise failed(filter, f"received {len(given)} values, but expected {len(slots)}")
    return filter, tuple(_plain(filter, value) for value in given)


def _plain(filter: Filter, value: Any) -> Any:
    """Return a value as Python's own number, str or None, which SQLite and Qdrant can take."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    is_nan = isinstance(value, float) and math.isnan(value)
    if is_nan or not (value is None or isinstance(value, (int, float, str, bytes))):
        # Arrays SQLite would take as BLOBs, which are greater than any number and any text.
        raise failed(
            filter,
            f"received {'NaN' if is_nan else type(value).__name__} as a value; give a number, a str or None, a date as "
            "the text that is stored, and one ? for each value of a list: x IN (?, ?)",
        )
    return value


def failed(filter: Filter, reason: str) -> InvalidArgumentError:
    """Return the error of a filter that is right, and cannot be evaluated with these values."""
    return InvalidArgumentError(f"the filter {cut(filter.expression, 200)!r} cannot be evaluated: {reason}.")


@lru_cache(maxsize=64)
def parse_filter(*expressions: str) -> Filter:
    """Parse expressions that must all hold; the parameters of each follow those of the expression before it."""
    trees: list[Node] = []
    slots: list[str | None] = []
    for each in expressions:
        parser = _Parser(each, len(slots))
        trees.append(parser.parse())
        slots += parser.slots
    if len(trees) == 1:
        return Filter(expressions[0], trees[0], tuple(slots))
    return Filter(" AND ".join(f"({each})" for each in expressions), _chain(trees, "AND"), tuple(slots))


def _chain(operands: Sequence[Node], *operators: str) -> Operation:
    """Return operands with operators between them; one operator stands for all."""
    if len(operators) == len(operands) - 1:
        between = operators
    else:
        between = operators * (len(operands) - 1)
    return Operation(("", *between, ""), tuple(operands))


def _call_words(name: str, count: int) -> tuple[str, ...]:
    if count:
        return (f"{name}(", *[","] * (count - 1), ")")
    return (f"{name}()",)


class _Parser:
    """A recursive-descent parser of one expression, whose first parameter has the index `first`."""

    def __init__(self, expression: str, first: int) -> None:
        self.expression = expression
        self.slots: list[str | None] = []
        self._tokens = tokenize(expression)
        self._next = 0
        self._first = first
        self._named: dict[str, int] = {}
        self._scopes: list[str] = []  # the names of the enclosing calls of json_each, outermost first
        self._depth = 0

    def parse(self) -> Node:
        tree = self._value()
        if self._token.kind != "end":
            self._reject("expected an operator or the end")
        return tree

    # Tokens.

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        """Read the next token; at the end, the token ``"end"`` again and again."""
        token = self._token
        self._next += token.kind != "end"
        return token

    def _sees(self, *texts: str) -> bool:
        return self._token.kind in ("word", "mark") and self._token.text in texts

    def _sees_name(self) -> bool:
        return self._token.kind == "name" or (self._token.kind == "word" and self._token.text not in _WORDS)

    def _skip(self, *texts: str) -> bool:
        seen = self._sees(*texts)
        self._next += seen
        return seen

    def _expect(self, *texts: str) -> None:
        for text in texts:
            if not self._skip(text):
                self._reject(f"expected {text.upper()!r}")

    def _reject(self, reason: str, token: Token | None = None) -> NoReturn:
        token = token or self._token
        if token.text == "select" and token.kind == "word":
            reason = _QUERIES
        elif token.text == "," and token.kind == "mark":
            reason += "; several values are allowed only after IN and in the call of a function"
        raise rejection(self.expression, token, reason)

    # Operators.

    def _value(self) -> Node:
        """Read an expression one level deeper."""
        self._deepen()
        node = self._operation(0)
        self._depth -= 1
        return node

    def _deepen(self) -> None:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            self._reject(f"it is nested more than {_MOST_DEPTH} deep")

    def _operation(self, weakest: int) -> Node:
        """Read operands and the operators between them, up to an operator that binds weaker than `weakest`."""
        depth = self._depth
        if weakest <= _NOT_LEVEL and self._skip("not"):
            self._deepen()
            node: Node = Operation(("NOT", ""), (self._operation(_NOT_LEVEL),))
        else:
            node = self._operand()
        while (level := _LEVEL.get(self._token.text, -1) if self._token.kind in ("word", "mark") else -1) >= weakest:
            if level == _COMPARISON:
                self._deepen()
                node = self._comparison(node)
                continue
            operators = []
            operands = [node]
            while self._sees(*_LEVELS[level]):
                operators.append(self._take().text.upper())
                operands.append(self._operation(level + 1))
            node = _chain(operands, *operators)
        self._depth = depth
        return node

    def _comparison(self, left: Node) -> Node:
        """Read a comparison from its operator on."""
        operator = self._take().text
        if operator == "is":
            negated = self._skip("not")
            if self._skip("distinct"):
                self._expect("from")
                negated = not negated
            return _chain((left, self._compared()), "IS NOT" if negated else "IS")
        if operator in ("isnull", "notnull") or (operator == "not" and self._skip("null")):
            return _chain((left, _CONSTANTS["null"]), "IS" if operator == "isnull" else "IS NOT")
        if operator == "not":
            if not self._sees("like", "glob", "between", "in"):
                self._reject("expected LIKE, GLOB, BETWEEN or IN")
            return Operation(("NOT", ""), (self._comparison(left),))
        if operator == "in":
            self._expect("(")
            if self._sees("select"):
                return _chain((left, self._query(exists=False)), "IN")
            values = () if self._skip(")") else self._list()
            return Operation(("", *_call_words("IN ", len(values))), (left, *values))
        right = self._compared()
        if operator == "between":
            self._expect("and")
            return _chain((left, right, self._compared()), "BETWEEN", "AND")
        operator = {"==": "=", "!=": "<>"}.get(operator, operator.upper())
        if operator in ("LIKE", "GLOB") and self._skip("escape"):
            return _chain((left, right, self._compared()), operator, "ESCAPE")
        return _chain((left, right), operator)

    def _compared(self) -> Node:
        return self._operation(_COMPARISON + 1)

    def _operand(self) -> Node:
        depth = self._depth
        signs = []
        while self._sees("-", "+"):
            self._deepen()
            signs.append(self._take().text)
        node = self._primary()
        for sign in reversed(signs):
            node = Operation((sign, ""), (node,))
        self._depth = depth
        if self._sees("collate"):
            while self._skip("collate"):
                self._expect("nocase")
            node = Operation(("", "COLLATE NOCASE"), (node,))
        return node

    def _primary(self) -> Node:
        token = self._token
        if token.kind in ("number", "string", "blob"):
            return _literal(self._take())
        if token.kind == "parameter":
            return Parameter(self._first + self._slot(self._take()))
        if token.kind == "word" and token.text not in _WORDS and self._tokens[self._next + 1].source == "(":
            return self._call()
        if self._sees_name():
            return self._name()
        if self._sees(*_CONSTANTS):
            return _CONSTANTS[self._take().text]
        if self._skip("("):
            node = self._value()
            self._expect(")")
            return node
        if self._skip("case"):
            return self._case()
        if self._skip("cast"):
            return self._cast()
        if not self._skip("exists"):
            self._reject("put NOT and its operand in parentheses" if self._sees("not") else _EXPECTED)
        self._expect("(")
        return Operation(("EXISTS", ""), (self._query(exists=True),))

    def _slot(self, token: Token) -> int:
        """Return the slot of a parameter; as in SQLite, a name has one slot wherever it is used."""
        if token.text in self._named:
            return self._named[token.text]
        index = len(self.slots)
        if token.text[0] == "?" and len(token.text) > 1:
            index = int(token.text[1:6]) - 1
            if not 0 <= index < _MOST_PARAMETERS or len(token.text) > 6:
                self._reject(f"the numbers of parameters go from 1 to {_MOST_PARAMETERS}", token)
        self.slots += [None] * (index + 1 - len(self.slots))
        if token.text[0] != "?":
            self.slots[index] = token.text[1:]
            self._named[token.text] = index
        return index

    def _list(self) -> tuple[Node, ...]:
        """Read values and the closing parenthesis."""
        values = [self._value()]
        while self._skip(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _case(self) -> Node:
        words = ["CASE"]
        operands = []
        if not self._sees("when"):
            operands.append(self._value())
        while self._sees("when") or len(operands) < 2:
            self._expect("when")
            words += ["WHEN", "THEN"]
            operands.append(self._value())
            self._expect("then")
            operands.append(self._value())
        if self._skip("else"):
            words.append("ELSE")
            operands.append(self._value())
        self._expect("end")
        if len(words) > len(operands):  # no operand between CASE and WHEN
            words[:2] = ["CASE WHEN"]
        return Operation((*words, "END"), tuple(operands))

    def _cast(self) -> Node:
        self._expect("(")
        operand = self._value()
        self._expect("as")
        if not self._sees(*_TYPES):
            self._reject(f"expected one of the types {', '.join(_TYPES)}")
        node = Operation(("CAST(", f"AS {self._take().text.upper()})"), (operand,))
        self._expect(")")
        return node

    def _call(self) -> Node:
        token = self._take()
        if token.text not in FUNCTIONS:
            self._reject(f"unknown function; filters may call {', '.join(FUNCTIONS)}; {_QUERIES}", token)
        self._expect("(")
        arguments = () if self._skip(")") else self._list()
        return Operation(_call_words(token.text, len(arguments)), arguments)

    def _name(self) -> Node:
        token = self._take()
        folded = fold_name(token.text)
        lists = {name: number for number, name in enumerate(self._scopes)}
        if self._skip("."):
            column = self._take()
            if folded not in lists or fold_name(column.text) not in _LIST_COLUMNS:
                text = cut(f"{token.source}.{column.source}")
                self._reject(
                    f"write a text in single quotes, as '{text}'; a dot is allowed only between json_each, or its "
                    "alias, and one of its columns",
                    token,
                )
            return ListColumn(lists[folded], fold_name(column.text))
        if lists and folded in _LIST_COLUMNS:
            return ListColumn(len(self._scopes) - 1, folded)
        return Field(folded, token, self.expression)

    def _query(self, *, exists: bool) -> Elements:
        """Read a query over json_each, from SELECT to the closing parenthesis."""
        self._deepen()
        self._expect("select")
        selected = [self._take()]
        if self._skip("."):
            selected.append(self._take())
        column = fold_name(selected[-1].text)
        is_column = selected[-1].kind in ("word", "name") and column in _LIST_COLUMNS
        if not is_column and not (exists and len(selected) == 1 and column in ("*", "1")):
            self._reject(_QUERIES, selected[-1])
        self._expect("from")
        table = self._token
        if not self._skip("json_each"):
            self._reject(_QUERIES)
        self._expect("(")
        arguments = self._list()
        if self._skip("as") and not self._sees_name():
            self._reject("expected a name")
        name = fold_name(self._take().text if self._sees_name() else table.text)
        if len(selected) == 2 and fold_name(selected[0].text) != name:
            self._reject(f"the list is called {name!r} here", selected[0])
        number = len(self._scopes)
        self._scopes.append(name)
        where = self._value() if self._skip("where") else None
        self._scopes.pop()
        self._expect(")")
        self._depth -= 1
        return Elements(number, column if is_column else "value", arguments, where)


def _literal(token: Token) -> Literal:
    text = token.text
    if token.kind == "blob":
        return Literal(f"x'{text[2:-1]}'", bytes.fromhex(text[2:-1]))
    if token.kind == "string":
        return Literal("'" + text.replace("'", "''") + "'", text)
    if text[:2] in ("0x", "0X"):
        value = int(text, 16)
        return Literal(text.lower(), value - 2**64 if value >= 2**63 else value)
    if text.isdigit():
        whole = text.lstrip("0") or "0"
        return Literal(whole, int(whole) if len(whole) < 20 and int(whole) < 2**63 else float(whole))
    number = float(text)
    return Literal(repr(number) if number < float("inf") else "9e999", number)


# Tokens. SQLite treats every character outside ASCII as a letter, even spaces and digits.
_LETTER = r"[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff]"
_REST = r"[A-Za-z0-9_$\x80-\ud7ff\ue000-\U0010ffff]"
_TOKEN = rf"""
    (?P<space>[ \t\n\f\r]+ | --[^\n]* | /\*.*?\*/)
    | (?P<blob>[xX]'(?:[0-9A-Fa-f]{{2}})*')
    | (?P<string>'(?:[^'\ud800-\udfff]|'')*')
    | (?P<name>"(?:[^"\ud800-\udfff]|"")*" | `(?:[^`\ud800-\udfff]|``)*` | \[[^\]\ud800-\udfff]*\])
    | (?P<word>{_LETTER}{_REST}*)
    | (?P<number>(?:0[xX][0-9A-Fa-f]{{1,16}} | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?!{_REST}))
    | (?P<parameter>\?[0-9]* | [:@$]{_REST}+)
    | (?P<mark>->>|->|\|\||<=|>=|<>|==|!=|[-+*%<>=(),.]|/(?!\*))
"""
_EXPECTED = "expected a field, a value, ? or '('"
_SPELLING = (
    "no number, name or operator of filters begins so; strings stand in single quotes, names in double ones, and a "
    "parameter is ?, ?1 or :name"
)
_SHOWN = 60  # characters on each side of an error in a long filter


def tokenize(expression: str) -> list[Token]:
    """Return the tokens of an expression; the last one is its end."""
    if len(expression) > _MOST_CHARACTERS:
        raise InvalidArgumentError(
            f"the filter {expression[:_SHOWN]!r}... is rejected: it has {len(expression):,} characters, and the limit "
            f"is {_MOST_CHARACTERS:,}; pass many values as one parameter: id IN (SELECT value FROM json_each(?))."
        )
    pattern = re.compile(_TOKEN, re.VERBOSE | re.DOTALL)  # kept by re; at import it would take 10 ms of every process
    tokens = []
    position = 0
    while position < len(expression):
        found = pattern.match(expression, position)
        if found is None:
            [start, *_] = re.findall(r"\w+|.", expression[position : position + _SHOWN], re.DOTALL)
            raise rejection(expression, Token("", start, position, start), _SPELLING)
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), _token_text(str(found.lastgroup), found[0]), position, found[0]))
        position = found.end()
    return [*tokens, Token("end", "", position, "")]


def _token_text(kind: str, source: str) -> str:
    if kind == "word":
        return fold_name(source)
    if kind == "string" or (kind == "name" and source[0] != "["):
        return source[1:-1].replace(source[0] * 2, source[0])
    if kind == "name":
        return source[1:-1]
    return source


def rejection(expression: str, token: Token, reason: str) -> InvalidArgumentError:
    """Return the error for a token of a filter: where it is and what is wrong."""
    first = max(0, token.position - _SHOWN)
    last = token.position + len(token.source) + _SHOWN
    shown = f"{'...' if first else ''}{expression[first:last]}{'...' if last < len(expression) else ''}"
    if token.kind == "end":
        where = "its end"
    else:
        where = f"{cut(token.source)!r} (character {token.position})"
    return InvalidArgumentError(f"the filter {cut(shown, 4 * _SHOWN)!r} is rejected at {where}: {reason}.")


# Filters as SQL: their statement, their limits, and the selections that are kept.

# SQLite reports LIKE and GLOB as functions.
_CALLED = {*FUNCTIONS, "like", "glob"}
# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_NEST_LESS = "; nest less, and write many alternatives as x IN (...)"
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def to_sql(node: Node, column: Callable[[Field], str]) -> str:
    """Return the SQL of a tree, in which `column` gives the SQL of a field."""
    match node:
        case Literal():
            return node.sql
        case Parameter():
            return f"?{node.index + 1}"
        case Field():
            return column(node)
        case ListColumn():
            return f"list{node.number}.{node.column}"
        case Elements():
            arguments = ", ".join(to_sql(each, column) for each in node.operands)
            if node.where is None:
                where = ""
            else:
                where = f" WHERE {to_sql(node.where, column)}"
            name = f"list{node.number}"
            return f"(SELECT {name}.{node.column} FROM json_each({arguments}) AS {name}{where})"
    written = node.words[0]
    for operand, word in zip(node.operands, node.words[1:], strict=True):
        sql = to_sql(operand, column)
        if not written or written.endswith("("):
            written += ""
        else:
            written += " "
        if _is_open(node) and _is_open(operand):
            written += f"({sql})"
        else:
            written += sql
        written += word if word in ("", ",", ")") else f" {word}"
    return written


def _is_open(node: Node) -> bool:
    """Whether a tree begins or ends with an operand, which an operator beside it could take."""
    return isinstance(node, Operation) and not (node.words[0] and node.words[-1])


# Evaluation.


def matching_rows(
    connection: sqlite3.Connection,
    filter: Filter,
    values: tuple[Any, ...],
    timeout: float | None,
    fields: Sequence[tuple[str, str, str]],
    restricted_to: Callable[[Collection[str]], AbstractContextManager[None]],
) -> np.ndarray:
    """Return the row ids of the documents that a filter selects, ascending; raise `FilterTimeoutError` if late."""
    columns = {folded: f"document.{name}" for folded, _, name in fields} | _DOCUMENT_COLUMNS

    def column(field: Field) -> str:
        found = columns.get(field.name)
        return found or reject_field(field, [spelling for _, spelling, _ in fields])

    query = f"SELECT number FROM document WHERE {to_sql(filter.tree, column)}"
    with restricted_to(_CALLED), bounded(connection, filter, values, timeout):
        return np.sort(np.fromiter((number for (number,) in connection.execute(query, values)), dtype="int64"))


def reject_field(field: Field, fields: Sequence[str]) -> NoReturn:
    """Raise the error for a field that is not among those of the index, which are given as documents spell them."""
    if field.token.kind == "word":
        spelled = field.token.source
    else:
        spelled = field.token.text
    spellings = {fold_name(each): each for each in (*fields, *RESERVED)}
    near = difflib.get_close_matches(field.name, spellings, n=1)
    if near:
        hint = f". Did you mean {spellings[near[0]]!r}?"
    else:
        hint = "."
    if len(fields) >= MOST_FIELDS:
        hint += f" Only the first {MOST_FIELDS} keys of the metadata are fields; read others as metadata ->> '$.key'."
    if field.token.kind == "name" or not near:
        hint += " Write strings in single quotes."
    shown = ", ".join([*fields[:30], *RESERVED]) + (f" and {len(fields) - 30} more" if len(fields) > 30 else "")
    raise rejection(field.expression, field.token, f"unknown field {cut(spelled)!r}{hint} The fields are: {shown}")


# Limits. The clock is looked at between steps of SQLite's virtual machine, and one step calls at most one function: the
# lengths of values are limited so that this takes 0.2 seconds at most, and that all values together fit into memory.

# Bytes of one value, and of all together; pairs of bytes that a step may compare.
_MOST_BYTES = 1 << 24
_MOST_MEMORY = 1 << 28
_MOST_PAIRS = 1 << 25
_MOST_PATTERN = 1000
# instr() and replace() compare this many bytes in the time of one in LIKE and trim(); parsing a byte of JSON takes that
# of some.
_FAST = 64
_JSON = 4
# Steps between two looks at the clock: about 2 microseconds. Fewer, if one of them may take long.
_STEPS = 100
_FEW_STEPS = 20


@contextmanager
def bounded(
    connection: sqlite3.Connection, filter: Filter, values: Sequence[Any], timeout: float | None
) -> Iterator[None]:
    """Limit the time and the memory of a filter's statement in a ``with`` block; explain its errors.

    It ends after `timeout` seconds with `FilterTimeoutError`, and when a signal handler raises an exception. Before
    Python 3.11, SQLite's own limits of lengths hold. `connection`: no other thread may be using it.
    """
    if timeout is None:
        end = math.inf
    else:
        end = time.monotonic() + timeout

    def check_time() -> None:
        if time.monotonic() > end:
            raise FilterTimeoutError(
                f"the filter {cut(filter.expression, 200)!r} has not finished within {timeout:g} seconds.",
                advice="filter-timeout",
            )

    errors: list[BaseException] = []
    watch = _watch(check_time, errors)
    next(watch)
    most = _most_bytes(filter, values)
    limits = {"SQLITE_LIMIT_LENGTH": most, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": _MOST_PATTERN}
    before = {}
    try:
        try:
            if hasattr(connection, "setlimit"):
                before = {name: connection.setlimit(getattr(sqlite3, name), limit) for name, limit in limits.items()}
            connection.set_progress_handler(watch.__next__, _STEPS if most == _MOST_BYTES else _FEW_STEPS)
            yield
        finally:
            connection.set_progress_handler(None, 0)
            for name, limit in before.items():
                connection.setlimit(getattr(sqlite3, name), limit)  # type: ignore[attr-defined]
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        reason = str(error)
        if not errors and reason.startswith(_FILE_ERRORS):
            raise
        if not errors:
            cures = {
                "too big": f"; a value may have up to {most:,} bytes in this filter",
                "stack overflow": _NEST_LESS,
                "too large (maximum depth": _NEST_LESS,
            }
            cure = next((cure for sign, cure in cures.items() if sign in reason), "")
            raise failed(filter, cut(reason, 300) + cure) from error
    if errors:
        raise errors[0]
    check_time()


def _watch(check_time: Callable[[], None], errors: list[BaseException]) -> Iterator[bool]:
    """Yield whether to interrupt the statement, and append the reason to `errors`.

    Python runs signal handlers when SQLite calls the progress handler, and `sqlite3` discards an exception that leaves
    this callback. Here a ``try`` catches it. This is a generator, since it resumes inside of its ``try``; a function
    could be interrupted before it enters one.
    """
    try:
        # Python also runs signal handlers when a loop jumps back: the whole loop is inside of the ``try``.
        while not errors:
            yield False
            check_time()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (`bounded` raises it when SQLite has stopped)
        errors.append(error)
    while True:
        yield True


def _most_bytes(filter: Filter, values: Sequence[Any]) -> int:
    """Return how long a value may be while a filter is evaluated."""
    most = _MOST_BYTES
    copies = 1
    for node in walk(filter.tree):
        if isinstance(node, Operation):
            copies += node.words[0].endswith("(") + sum(word in ("||", "->", "->>") for word in node.words)
        most = min(most, _most_of(node, values))
    return min(most, _MOST_MEMORY // copies)


def _most_of(node: Node, values: Sequence[Any]) -> int:
    """Return how long the operands of one node may be."""
    if isinstance(node, Elements):
        return _MOST_PAIRS // _JSON
    if not isinstance(node, Operation):
        return _MOST_BYTES
    match node.words:
        case ("", "LIKE" | "GLOB", *_):
            return _MOST_PAIRS // max(1, min(_MOST_PATTERN, _longest(node.operands[1], values)))
        case ("trim(", ",", ")"):
            pairs = _MOST_PAIRS
        case ("instr(" | "replace(", ",", *_):
            pairs = _FAST * _MOST_PAIRS
        case ("json_extract(" | "json_valid(", *_) | ("", "->" | "->>", *_):
            return _MOST_PAIRS // _JSON
        case _:
            return _MOST_BYTES
    # The second operand is a value too: both may have the root.
    return max(math.isqrt(pairs), pairs // max(1, _longest(node.operands[1], values)))


def _longest(node: Node, values: Sequence[Any]) -> int:
    """Return the most bytes that an operand can have."""
    match node:
        case Literal():
            return len(node.sql)
        case Parameter():
            value = values[node.index]
            if isinstance(value, bytes):
                return len(value)
            return len(str(value).encode(errors="replace"))
        case Operation(words=("", *operators, "")) if set(operators) == {"||"}:
            return sum(_longest(each, values) for each in node.operands)
    return _MOST_BYTES


# Selections of one commit that are kept.

# Capacity in bytes, and the size of an entry in addition to its row ids.
_CAPACITY = 1 << 24
_OVERHEAD = 1 << 10
# Types of parameters that can be part of a key.
_KEY_TYPES = frozenset({str, bytes, int, float, bool, type(None)})
_TIME_FUNCTIONS = ("date(", "datetime(", "julianday(", "unixepoch(")


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return the key of a filter, equal for filters that differ only in spelling; None if it must not be cached."""
    normalized = _normalized(filter)
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    if normalized is not None and _KEY_TYPES.issuperset(types):
        return (normalized, types, values)
    return None


@lru_cache(maxsize=64)
def _normalized(filter: Filter) -> str | None:
    """Return the SQL of a filter with the names of its fields; None if it may ask for the time."""
    if any(isinstance(node, Operation) and node.words[0].startswith(_TIME_FUNCTIONS) for node in walk(filter.tree)):
        return None
    return to_sql(filter.tree, lambda field: '"' + field.name.replace('"', '""') + '"')


class SelectionCache:
    """A least-recently-used cache of the row ids of selected documents."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        # Never waited for: in a forked child, nobody might release it.
        self._lock = threading.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached row ids of a key; if there are none, select and cache them."""
        found = self._kept.get(key)
        if found is None:
            found = select()
        if self._lock.acquire(blocking=False):
            try:
                self._keep(key, found)
            finally:
                self._lock.release()
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        if key in self._kept:
            self._kept.move_to_end(key)
        elif found.nbytes + _OVERHEAD <= _CAPACITY:
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _CAPACITY:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
