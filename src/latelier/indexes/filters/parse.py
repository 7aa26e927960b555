"""Parsing: an expression becomes a tree of the nodes below, of which `sql` and Qdrant's conditions are made.

The nodes hold only operators, functions and types that are listed here, names of fields, literals and the numbers of
parameters, so nothing of the user's text reaches a statement. The operators bind as in SQLite, strongest last
(`_LEVELS`); chains of one level stand in one node, so a tree is as deep as its parentheses, whatever its length.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.options import Parameters
from latelier.utils.checks import short

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
    """One token of an expression.

    `kind`: ``"word"``, ``"name"`` (one in quotes), ``"string"``, ``"blob"``, ``"number"``, ``"parameter"``, ``"mark"``
    or ``"end"``. `text`: a word in lower case; a string or a name without its quotes. `source`: as the user wrote it.
    """

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
    """Operands joined from left to right by operators of one level: a + b - c, or a BETWEEN b AND c."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Prefix:
    """NOT, + or - before its operand."""

    operator: str
    operand: Node


@dataclass(frozen=True)
class NoCase:
    """An operand COLLATE NOCASE."""

    operand: Node


@dataclass(frozen=True)
class Elements:
    """SELECT column FROM json_each(arguments) WHERE where; stands for EXISTS of it, but in `In`."""

    number: int
    column: str
    arguments: tuple[Node, ...]
    where: Node | None


@dataclass(frozen=True)
class In:
    """IN a list of values, or a column of elements."""

    operand: Node
    values: tuple[Node, ...] | Elements


@dataclass(frozen=True)
class Case:
    """CASE base WHEN condition THEN value ... ELSE otherwise END."""

    base: Node | None
    cases: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


@dataclass(frozen=True)
class Call:
    """The call of a function; of CAST with the type."""

    name: str
    arguments: tuple[Node, ...]
    type: str = ""


Node: TypeAlias = "Literal | Parameter | Field | ListColumn | Operation | Prefix | NoCase | Elements | In | Case | Call"


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


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all below it."""
    yield node
    for own in fields(node):
        value = getattr(node, own.name)
        for part in value if isinstance(value, tuple) else (value,):
            for each in part if isinstance(part, tuple) else (part,):
                if is_dataclass(each):
                    yield from walk(each)


FUNCTIONS = (
    *("abs", "coalesce", "date", "datetime", "ifnull", "iif", "instr", "json_extract", "json_valid", "julianday"),
    *("length", "lower", "max", "min", "nullif", "replace", "round", "substr", "trim", "typeof", "unixepoch", "upper"),
)
TIME_FUNCTIONS = ("date", "datetime", "julianday", "unixepoch")
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
LEVEL = {operator: level for level, row in enumerate(_LEVELS) for operator in row}
NOT_LEVEL, COMPARISON = 2, LEVEL["="]
_CONSTANTS = {"true": Literal("TRUE", 1), "false": Literal("FALSE", 0), "null": Literal("NULL", None)}
_WORDS = {name for name in LEVEL if name.isalpha()} | {*_CONSTANTS, "escape", "exists", "case", "when", "then", "else"}
_WORDS |= {"end", "cast", "collate", "as", "select", "from", "where", "distinct"}
_LIST_COLUMNS = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
_QUERIES = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)
_PASS_LIST = "pass many values as one parameter: id IN (SELECT value FROM json_each(?))"

_MOST_CHARACTERS, _MOST_TOKENS = 100_000, 20_000
# SQLite holds all values of an expression at once, and each may be as long as the limit of `sql` lets it.
_MOST_GROWING = 16
_MOST_PARAMETERS = 32_766  # SQLite's limit
_MOST_DEPTH = 20  # the stack of SQLite's parser holds about 100 rules, and a function call takes five of them


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Return the parsed filter of a user, and the value of each of its parameters."""
    expressions = expression if isinstance(expression, (list, tuple)) else [expression]
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
            named = shorten(", ".join(map(repr, given)) or "no name", 200)
            wanted = "a ? needs a tuple of values" if None in missing else f"no value for {shorten(str(missing[0]))!r}"
            raise failed(filter, f"received values for {named}, but {wanted}")
        given = [given[slot] for slot in slots if slot is not None]
    if len(given) != len(slots):
        raise failed(filter, f"received {len(given)} values, but expected {len(slots)}")
    return filter, tuple(_plain(filter, value) for value in given)


def _plain(filter: Filter, value: Any) -> Any:
    """Return a value as Python's own number, str or None, which SQLite and Qdrant can take."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise failed(filter, "received an integer beyond 64 bits, sign included, as a value; give a float")
    if isinstance(value, float) and math.isnan(value):
        raise failed(filter, "received NaN as a value, which no document has; IS NULL finds those without one")
    if value is not None and not isinstance(value, (int, float, str, bytes)):
        # Arrays SQLite would take as BLOBs, which are greater than any number and any text.
        raise failed(
            filter,
            f"received {type(value).__name__} as a value; give a number, a str or None, a date as the text that is "
            "stored, and one ? for each value of a list: x IN (?, ?)",
        )
    return value


def failed(filter: Filter, reason: str) -> InvalidArgumentError:
    """Return the error of a filter that is right, and cannot be evaluated with these values."""
    return InvalidArgumentError(f"the filter {shorten(filter.expression, 200)!r} cannot be evaluated: {reason}.")


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
    every = Operation(("AND",) * (len(trees) - 1), tuple(trees))
    return Filter(" AND ".join(f"({each})" for each in expressions), every, tuple(slots))


class _Parser:
    """A recursive-descent parser of one expression, whose first parameter has the index `first`."""

    def __init__(self, expression: str, first: int) -> None:
        self.expression = expression
        self.slots: list[str | None] = []
        self._tokens, self._next = tokenize(expression), 0
        self._first = first
        self._named: dict[str, int] = {}
        # The enclosing calls of json_each, outermost first: the name that the expression gives each, and its number.
        self._scopes: list[tuple[str, int]] = []
        self._lists = self._depth = self._growing = 0

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

    def _skip(self, *texts: str) -> bool:
        seen = self._sees(*texts)
        self._next += seen
        return seen

    def _expect(self, text: str) -> None:
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
            raise rejection(self.expression, self._token, f"it is nested more than {_MOST_DEPTH} deep")

    def _grow(self) -> None:
        self._growing += 1
        if self._growing > _MOST_GROWING:
            self._reject(f"it makes long texts with more than {_MOST_GROWING} || and replace()")

    def _operation(self, weakest: int) -> Node:
        """Read operands and the operators between them, up to an operator that binds weaker than `weakest`."""
        depth = self._depth
        if weakest <= NOT_LEVEL and self._skip("not"):
            self._deepen()
            node: Node = Prefix("NOT", self._operation(NOT_LEVEL))
        else:
            node = self._operand()
        while True:
            level = LEVEL.get(self._token.text, -1) if self._token.kind in ("word", "mark") else -1
            if level < weakest:
                self._depth = depth
                return node
            if level == COMPARISON:
                self._deepen()
                node = self._comparison(node)
                continue
            operators, operands = [], [node]
            while self._sees(*_LEVELS[level]):
                operators.append(self._take().text.upper())
                if operators[-1] == "||":
                    self._grow()
                operands.append(self._operation(level + 1))
            node = Operation(tuple(operators), tuple(operands))

    def _comparison(self, left: Node) -> Node:
        """Read a comparison from its operator on."""
        operator = self._take().text
        if operator == "is":
            negated = self._skip("not")
            if self._skip("distinct"):
                self._expect("from")
                negated = not negated
            return Operation(("IS NOT" if negated else "IS",), (left, self._compared()))
        if operator == "isnull":
            return Operation(("IS",), (left, _CONSTANTS["null"]))
        if operator == "notnull" or (operator == "not" and self._skip("null")):
            return Operation(("IS NOT",), (left, _CONSTANTS["null"]))
        if operator == "not":
            if not self._sees("like", "glob", "between", "in"):
                self._reject("expected LIKE, GLOB, BETWEEN or IN")
            return Prefix("NOT", self._comparison(left))
        if operator == "in":
            return self._in(left)
        if operator == "between":
            low = self._compared()
            self._expect("and")
            return Operation(("BETWEEN", "AND"), (left, low, self._compared()))
        operator = {"==": "=", "!=": "<>"}.get(operator, operator.upper())
        right = self._compared()
        if operator in ("LIKE", "GLOB") and self._skip("escape"):
            return Operation((operator, "ESCAPE"), (left, right, self._compared()))
        return Operation((operator,), (left, right))

    def _compared(self) -> Node:
        return self._operation(COMPARISON + 1)

    def _in(self, left: Node) -> Node:
        self._expect("(")
        if self._sees("select"):
            return In(left, self._query(exists=False))
        return In(left, () if self._skip(")") else self._list())

    def _operand(self) -> Node:
        depth, signs = self._depth, []
        while self._sees("-", "+"):
            self._deepen()
            signs.append(self._take().text)
        node = self._primary()
        for sign in reversed(signs):
            node = Prefix(sign, node)
        self._depth = depth
        if not self._sees("collate"):
            return node
        while self._skip("collate"):
            if not self._skip("nocase"):
                self._reject("expected the collation NOCASE")
        return NoCase(node)

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
        return self._query(exists=True)

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
        base = None if self._sees("when") else self._value()
        cases: list[tuple[Node, Node]] = []
        while not cases or self._sees("when"):
            self._expect("when")
            condition = self._value()
            self._expect("then")
            cases.append((condition, self._value()))
        otherwise = self._value() if self._skip("else") else None
        self._expect("end")
        return Case(base, tuple(cases), otherwise)

    def _cast(self) -> Node:
        self._expect("(")
        operand = self._value()
        self._expect("as")
        if not self._sees(*_TYPES):
            self._reject(f"expected one of the types {', '.join(_TYPES)}")
        node = Call("CAST", (operand,), self._take().text.upper())
        self._expect(")")
        return node

    def _call(self) -> Node:
        token = self._take()
        if token.text not in FUNCTIONS:
            self._reject(f"unknown function; filters may call {', '.join(FUNCTIONS)}; {_QUERIES}", token)
        if token.text == "replace":
            self._grow()
        self._expect("(")
        return Call(token.text, () if self._skip(")") else self._list())

    def _sees_name(self) -> bool:
        return self._token.kind == "name" or (self._token.kind == "word" and self._token.text not in _WORDS)

    def _name(self) -> Node:
        token = self._take()
        folded, lists = fold_name(token.text), dict(self._scopes)
        if self._skip("."):
            column = fold_name(self._take().text)
            if folded not in lists or column not in _LIST_COLUMNS:
                self._reject("a dot is allowed only between json_each, or its alias, and one of its columns", token)
            return ListColumn(lists[folded], column)
        if lists and folded in _LIST_COLUMNS:
            return ListColumn(self._scopes[-1][1], folded)
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
        self._lists += 1
        number = self._lists
        self._scopes.append((name, number))
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
_LETTER, _REST = r"[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff]", r"[A-Za-z0-9_$\x80-\ud7ff\ue000-\U0010ffff]"
_TOKEN = rf"""
    (?P<space>[ \t\n\f\r]+ | --[^\n]* | /\*.*?\*/)
    | (?P<blob>[xX]'(?:[0-9A-Fa-f]{{2}})*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\])
    | (?P<word>{_LETTER}{_REST}*)
    | (?P<number>(?:0[xX][0-9A-Fa-f]{{1,16}} | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?!{_REST}))
    | (?P<parameter>\?[0-9]* | [:@$]{_REST}+)
    | (?P<mark>->>|->|\|\||<=|>=|<>|==|!=|[-+*%<>=(),.]|/(?!\*))
"""
_SURROGATE = re.compile("[\ud800-\udfff]")
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
            f"is {_MOST_CHARACTERS:,}; {_PASS_LIST}."
        )
    pattern = re.compile(_TOKEN, re.VERBOSE | re.DOTALL)  # kept by re; at import it would take 10 ms of every process
    tokens, position = [], 0
    while position < len(expression):
        found = pattern.match(expression, position)
        if found is None or _SURROGATE.search(found[0]):
            start = found[0] if found else re.findall(r"\w+|.", expression[position : position + _SHOWN], re.DOTALL)[0]
            raise rejection(expression, Token("", start, position, start), _SPELLING)
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), _token_text(str(found.lastgroup), found[0]), position, found[0]))
        position = found.end()
    if len(tokens) > _MOST_TOKENS:
        reason = f"it has {len(tokens):,} names, values and operators, and the limit is {_MOST_TOKENS:,}; {_PASS_LIST}"
        raise rejection(expression, tokens[_MOST_TOKENS], reason)
    return [*tokens, Token("end", "", position, "")]


def _token_text(kind: str, source: str) -> str:
    if kind == "word":
        return fold_name(source)
    if kind == "string" or (kind == "name" and source[0] != "["):
        return source[1:-1].replace(source[0] * 2, source[0])
    return source[1:-1] if kind == "name" else source


def rejection(expression: str, token: Token, reason: str) -> InvalidArgumentError:
    """Return the error for a token of a filter: where it is and what is wrong."""
    first = max(0, token.position - _SHOWN)
    last = token.position + len(token.source) + _SHOWN
    shown = f"{'...' if first else ''}{expression[first:last]}{'...' if last < len(expression) else ''}"
    where = "its end" if token.kind == "end" else f"{shorten(token.source)!r} (character {token.position})"
    return InvalidArgumentError(f"the filter {shorten(shown, 4 * _SHOWN)!r} is rejected at {where}: {reason}.")


def shorten(text: str, most: int = _SHOWN) -> str:
    """Return a text, cut to its first `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."
