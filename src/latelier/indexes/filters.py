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

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.fields import fold_name
from latelier.indexes.options import Parameters
from latelier.utils.checks import cut, short


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
