"""Grammar of filters.

Nothing is copied from the user's expression: words and operators come from the grammar, literals are quoted again, and
parameters are numbered. A `Filter` holds SQL with gaps for its fields, since each index has its own columns for them.

`parse_filter` reads one expression and writes new SQL, which contains only the words, operators and functions listed
here. Names become columns of the index, and literals are quoted again. The order and the parentheses are kept, so
SQLite's precedence applies. No expression can therefore end the statement that contains it, or read another table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, NoReturn

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.store.rows import fold_name

__all__ = [
    "FUNCTIONS",
    "MOST_REPLACEMENT",
    "SUBQUERY",
    "FieldName",
    "Filter",
    "Function",
    "SqlWriter",
    "Token",
    "TokenReader",
    "join_filters",
    "parse_filter",
    "rejection",
    "shorten",
    "tokenize",
]

_MOST_CHARACTERS = 100_000
_MOST_TOKENS = 20_000
_SHOWN = 60  # characters on each side of an error in a long filter

# SQLite treats every character outside ASCII as a letter, even spaces and digits.
_LETTER, _REST = r"[A-Za-z_\x80-\U0010ffff]", r"[A-Za-z0-9_$\x80-\U0010ffff]"
_TOKEN = rf"""
    (?P<space>[ \t\n\f\r]+ | --[^\n]* | /\*.*?\*/)
    | (?P<blob>[xX]'(?:[0-9A-Fa-f]{{2}})*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>"(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\])
    | (?P<word>{_LETTER}{_REST}*)
    | (?P<number>(?:0[xX][0-9A-Fa-f]+ | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?!{_REST}))
    | (?P<parameter>\?[0-9]* | [:@$]{_REST}+)
    | (?P<mark>->>|->|\|\||<<|>>|<=|>=|<>|==|!=|[-+*%&|~<>=(),.]|/(?!\*))
"""
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNEXPECTED = {"'": "the string has no end", "/*": "the comment has no end", ";": "a filter is one expression"}
_UNEXPECTED |= dict.fromkeys('"`[', "the name has no end")


class Token(NamedTuple):
    """One token of an expression.

    `kind`: ``"word"``, ``"name"`` (one in quotes), ``"string"``, ``"blob"``, ``"number"``, ``"parameter"``, ``"mark"``
    or ``"end"``. `text`: a word in lower case; a string or a name without its quotes; all others as in the expression.
    `position`: index of its first character in the expression. `source`: its characters in the expression.
    """

    kind: str
    text: str
    position: int
    source: str


class TokenReader:
    """Reads the tokens of an expression one by one."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._tokens = tokenize(expression)
        self._next = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Read and return the next token; at the end of the expression, always return the token ``"end"``."""
        token = self.token
        self._next += token.kind != "end"
        return token

    def sees(self, *texts: str) -> bool:
        """Whether the next token is one of these words or marks."""
        return self.token.kind in ("word", "mark") and self.token.text in texts

    def skip(self, *texts: str) -> bool:
        """Read the next token if it is one of these words or marks; return whether it is."""
        seen = self.sees(*texts)
        self._next += seen
        return seen

    def is_call(self) -> bool:
        """Whether a parenthesis follows the next token."""
        following = self._tokens[self._next + 1 : self._next + 2]
        return bool(following) and following[0].kind == "mark" and following[0].text == "("

    def read(self, count: int) -> list[Token]:
        """Return the last `count` tokens that were read."""
        return self._tokens[max(0, self._next - count) : self._next]


def tokenize(expression: str) -> list[Token]:
    """Return the tokens of an expression; the last one is its end.

    Raises
    ------
    InvalidArgumentError
        If the expression has too many characters or tokens, or holds something that is not a token.

    Examples
    --------
    >>> [token.text for token in tokenize("Year >= ? -- a comment")]
    ['year', '>=', '?', '']
    """
    if len(expression) > _MOST_CHARACTERS:
        raise InvalidArgumentError(
            f"the filter {expression[:_SHOWN]!r}... is rejected: it has {len(expression):,} characters, and the limit "
            f"is {_MOST_CHARACTERS:,}. Pass many values as one parameter: id IN (SELECT value FROM json_each(?))."
        )
    broken = _SURROGATE.search(expression)
    if broken:
        token = Token("", broken[0], broken.start(), broken[0])
        raise rejection(expression, token, "a lone surrogate is not a character")
    pattern = re.compile(_TOKEN, re.VERBOSE | re.DOTALL)  # kept by re; at import it would take 10 ms of every process
    tokens, position = [], 0
    while position < len(expression):
        found = pattern.match(expression, position)
        if found is None:
            raise _unreadable(expression, position)
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), _token_text(str(found.lastgroup), found[0]), position, found[0]))
        position = found.end()
    if len(tokens) > _MOST_TOKENS:
        raise rejection(
            expression,
            tokens[_MOST_TOKENS],
            f"it has {len(tokens):,} names, values and operators, and the limit is {_MOST_TOKENS:,}; pass many values "
            "as one parameter: id IN (SELECT value FROM json_each(?))",
        )
    return [*tokens, Token("end", "", position, "")]


def rejection(expression: str, token: Token, reason: str) -> InvalidArgumentError:
    """Return the error for a token of a filter: where it is and what is wrong."""
    first = max(0, token.position - _SHOWN)
    last = token.position + len(token.source) + _SHOWN
    shown = f"{'...' if first else ''}{expression[first:last]}{'...' if last < len(expression) else ''}"
    where = "its end" if token.kind == "end" else f"{shorten(token.source)!r} (character {token.position})"
    return InvalidArgumentError(f"the filter {shorten(shown, 4 * _SHOWN)!r} is rejected at {where}: {reason}.")


def _unreadable(expression: str, position: int) -> InvalidArgumentError:
    start = expression[position : position + 2]
    start = start if start == "/*" else start[:1]
    if start.isascii() and start.isdigit():
        start, reason = expression[position:].split()[0], "this is neither a number nor a name"
    elif start in ("?", ":", "@", "$"):
        reason = "a parameter is written ?, ?1 or :name"
    else:
        expected = "write names in double quotes, strings in single ones"
        reason = _UNEXPECTED.get(start, f"a filter cannot hold this character; {expected}")
    return rejection(expression, Token("", start, position, start), reason)


def _token_text(kind: str, source: str) -> str:
    if kind == "word":
        return fold_name(source)
    if kind == "string" or (kind == "name" and source[0] != "["):
        return source[1:-1].replace(source[0] * 2, source[0])
    return source[1:-1] if kind == "name" else source


def shorten(text: str, most: int = _SHOWN) -> str:
    """Return a text, cut to its first `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


# Maximum length of the third argument of replace(), which may take the place of every single character.
MOST_REPLACEMENT = 16
_MOST_ARGUMENTS = 100


class Function(NamedTuple):
    """The signature of a function, and a bound of the length of its value.

    `least`, `most`: minimum and maximum number of arguments. `growth`:
    ``len(value) <= growth * (sum of the lengths of the arguments)``; 0 if no value is longer than the longest argument.
    `depends_on_time`: whether the value may depend on the current time.
    """

    least: int
    most: int = _MOST_ARGUMENTS
    growth: int = 0
    depends_on_time: bool = False


_BY_SIGNATURE = {
    Function(1, 1): "abs json length lower sign typeof unicode upper",
    Function(1, 2): "json_array_length json_type json_valid ltrim round rtrim trim",
    Function(2, 2): "glob ifnull instr nullif",
    Function(2, 3): "like substr substring",
    Function(3, 3): "iif",
    Function(2): "coalesce json_extract max min",
    Function(0): "char",
    Function(1, 1, growth=2): "hex quote",  # two hexadecimal digits per byte; two quotes per quote
    Function(0, growth=6): "json_array json_object",  # a control character becomes \u0000
    Function(3, 3, growth=MOST_REPLACEMENT): "replace",
    Function(0, depends_on_time=True): "date datetime julianday time unixepoch",
    Function(1, growth=16, depends_on_time=True): "strftime",  # %J alone has 16 digits
    Function(2, 2, depends_on_time=True): "timediff",
}
FUNCTIONS = {name: function for function, names in _BY_SIGNATURE.items() for name in names.split()}


SUBQUERY = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)
_MOST_PARAMETERS = 32_766  # SQLite's limit


class FieldName(NamedTuple):
    """A gap in the SQL of a filter: the name of a field, and the expression that names it."""

    token: Token
    expression: str


class Filter(NamedTuple):
    """A parsed filter.

    `expression`: as the user gave it. `pieces`: pieces of SQL, with the names of fields between them. `slots`: the name
    of each parameter in order; ``None`` for a ``?``. `replacements`: the slots of parameters that are replacements in
    replace(), and so must be short. `depends_on_time`: whether the selected documents may depend on the current time.
    `normalized`: the SQL with the names of the fields; equal for expressions that differ only in spelling.
    """

    expression: str
    pieces: tuple[str | FieldName, ...]
    slots: tuple[str | None, ...]
    replacements: frozenset[int]
    depends_on_time: bool
    normalized: str

    def bind(self, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the value of each slot; numpy's numbers become Python's."""
        if isinstance(parameters, Mapping):
            missing = [slot for slot in dict.fromkeys(self.slots) if slot not in parameters]
            if missing:
                given = shorten(", ".join(map(repr, parameters)) or "no name", 200)
                wanted = (
                    "a ? needs a tuple of values" if None in missing else f"no value for {shorten(str(missing[0]))!r}"
                )
                raise self._bind_error(f"received values for {given}, but {wanted}")
            values = tuple(parameters[slot] for slot in self.slots if slot is not None)
        else:
            values = tuple(parameters)
            if len(values) != len(self.slots):
                raise self._bind_error(f"received {len(values)} values, but expected {len(self.slots)}")
        values = tuple(map(self._plain, values))
        for slot in self.replacements:
            if isinstance(values[slot], (str, bytes)) and len(values[slot]) > MOST_REPLACEMENT:
                raise self._bind_error(f"the replacement of replace() has at most {MOST_REPLACEMENT} characters")
        return values

    def _plain(self, value: Any) -> Any:
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
            value = value.item()
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._bind_error("received an integer beyond 64 bits, sign included, as a value; give a float")
        if isinstance(value, float) and math.isnan(value):
            raise self._bind_error("received NaN as a value, which no document has; IS NULL finds those without one")
        if value is None or isinstance(value, (int, float, str, bytes)):
            return value
        # Arrays SQLite would take as BLOBs, which are greater than any number and any text.
        raise self._bind_error(
            f"received {type(value).__name__} as a value; give a number, a str or None, a date as the text that is "
            "stored, and one ? for each value of a list: x IN (?, ?)"
        )

    def _bind_error(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the filter {shorten(self.expression, 200)!r} cannot be evaluated: {reason}.")


def join_filters(filters: Sequence[Filter]) -> Filter:
    """Return the conjunction of filters; the parameters of each follow those of the filter before it."""
    if len(filters) == 1:
        return filters[0]
    pieces: list[str | FieldName] = []
    replacements: set[int] = set()
    first = 0
    for filter in filters:
        pieces += ["AND (" if pieces else "(", *filter.pieces, ")"]
        replacements.update(first + slot for slot in filter.replacements)
        first += len(filter.slots)
    return Filter(
        expression=" AND ".join(f"({filter.expression})" for filter in filters),
        pieces=tuple(pieces),
        slots=tuple(slot for filter in filters for slot in filter.slots),
        replacements=frozenset(replacements),
        depends_on_time=any(filter.depends_on_time for filter in filters),
        normalized=" AND ".join(f"({filter.normalized})" for filter in filters),
    )


class SqlWriter(TokenReader):
    """Reads the tokens of an expression and writes its SQL.

    `first`: number of parameters that precede those of this expression in the statement.
    """

    def __init__(self, expression: str, first: int) -> None:
        super().__init__(expression)
        self.written: list[str | FieldName] = []
        self.replacements: set[int] = set()
        self.parameter = 0  # the slot of the parameter read last
        self.depends_on_time = False
        self._first = first
        self._slots: list[str | None] = []
        self._named: dict[str, int] = {}

    def filter(self) -> Filter:
        """Return the filter, after all tokens have been read."""
        pieces: list[str | FieldName] = []
        for is_sql, group in groupby(self.written, key=lambda piece: isinstance(piece, str)):
            run = list(group)
            pieces += [" ".join(map(str, run))] if is_sql else run
        return Filter(
            self.expression,
            tuple(pieces),
            tuple(self._slots),
            frozenset(self.replacements),
            self.depends_on_time,
            normalized=" ".join(piece if isinstance(piece, str) else _quote(piece) for piece in pieces),
        )

    def accept(self, *texts: str) -> bool:
        """Read and write the next token if it is one of these words or marks."""
        if not self.sees(*texts):
            return False
        self.written.append(self.take().text.upper())
        return True

    def expect(self, *texts: str) -> None:
        """Read and write the next token, which has to be one of these words or marks."""
        if not self.accept(*texts):
            self.reject(f"expected {' or '.join(map(repr, texts)).upper()}")

    def reject(self, reason: str, token: Token | None = None) -> NoReturn:
        """Raise the error for a token, the next one by default."""
        token = token or self.token
        if token.text == "select" and token.kind == "word":
            reason = SUBQUERY
        elif token.text == "," and token.kind == "mark":
            reason += "; several values are allowed only after IN and in the call of a function"
        raise rejection(self.expression, token, reason)

    def write_literal(self) -> None:
        """Read a number, a string or a blob, and write it."""
        token = self.take()
        self.written.append(_literal(token) or self.reject("the number has too many digits", token))

    def write_parameter(self) -> None:
        """Read a parameter, and write its number."""
        self.parameter = self._slot(self.take())
        self.written.append(f"?{self._first + self.parameter + 1}")

    def _slot(self, token: Token) -> int:
        """Return the slot of a parameter; as in SQLite, a name has one slot wherever it is used."""
        if token.text in self._named:
            return self._named[token.text]
        index = len(self._slots)
        if token.text[0] == "?" and len(token.text) > 1:
            index = int(token.text[1:6]) - 1
            if not 0 <= index < _MOST_PARAMETERS or len(token.text) > 6:
                self.reject(f"the numbers of parameters go from 1 to {_MOST_PARAMETERS}", token)
        self._slots += [None] * (index + 1 - len(self._slots))
        if token.text[0] != "?":
            self._slots[index] = token.text[1:]
            self._named[token.text] = index
        return index


def _quote(name: FieldName) -> str:
    return '"' + fold_name(name.token.text).replace('"', '""') + '"'


def _literal(token: Token) -> str:
    """Return a literal as SQL; empty for a hexadecimal number with too many digits."""
    text = token.text
    if token.kind == "blob":
        return f"x'{text[2:-1]}'"
    if token.kind == "string":
        return "'" + text.replace("'", "''") + "'"
    if text[:2] in ("0x", "0X"):
        return text.lower() if len(text) <= 18 else ""
    if text.isdigit():
        return text.lstrip("0") or "0"
    number = float(text)
    return repr(number) if number < float("inf") else "9e999"


# The stack of SQLite's parser holds about 100 rules, and a function call takes five of them.
_MOST_DEPTH = 20
# (sum of the lengths of all computed values) <= _MOST_GROWTH * (length of the longest value stored or given).
_MOST_GROWTH = 256

# The operators by precedence, the weakest first; `_comparison` reads those of the fourth row.
_PRECEDENCE = (
    ("or",),
    ("and",),
    (),  # NOT before a value
    ("=", "==", "<>", "!=", "is", "isnull", "notnull", "not", "like", "glob", "between", "in"),
    ("<", "<=", ">", ">="),
    ("&", "|", "<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("||", "->", "->>"),
)
_POWER = {operator: power for power, row in enumerate(_PRECEDENCE) for operator in row}
_COMPARISON = _POWER["="]
_RESERVED = {name for name in _POWER if name.isalpha()}
_RESERVED |= {"escape", "null", "true", "false", "exists", "case", "when", "then", "else", "end", "cast", "collate"}
_RESERVED |= {"as", "select", "from", "where", "distinct"}
_TYPES = {"int": "INTEGER", "integer": "INTEGER", "real": "REAL", "float": "REAL", "text": "TEXT", "blob": "BLOB"}
_TYPES |= {"numeric": "NUMERIC", "double": "REAL", "varchar": "TEXT", "bigint": "INTEGER"}
_COLLATIONS = ("binary", "nocase", "rtrim")
_TABLE_FUNCTIONS = ("json_each", "json_tree")
_LIST_COLUMNS = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
_AGGREGATES = ("avg", "count", "group_concat", "sum", "total")


@lru_cache(maxsize=64)
def parse_filter(expression: str, first: int = 0) -> Filter:
    """Parse one expression.

    `first`: number of parameters that precede those of this expression in the statement; returns: its SQL, still
    without the columns of an index, and its parameters.
    """
    return _Parser(expression, first).parse()


class _Parser(SqlWriter):
    """A recursive-descent parser that writes SQL while it reads.

    The methods that read a value return an upper bound of its length, in units of the longest stored value or
    parameter.
    """

    def __init__(self, expression: str, first: int) -> None:
        super().__init__(expression, first)
        # The enclosing calls of json_each, outermost first: the name of each in the expression and in the SQL.
        self.scopes: list[tuple[str, str]] = []
        self.lists = self.depth = self.grown = 0

    def parse(self) -> Filter:
        self._value()
        if self.token.kind != "end":
            self.reject("expected an operator or the end")
        return self.filter()

    # Values and operators.

    def _value(self) -> int:
        """Read a value one level deeper."""
        self._deepen()
        size = self._operation(0)
        self.depth -= 1
        return size

    def _deepen(self) -> None:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.reject(f"it is nested more than {_MOST_DEPTH} deep")

    def _operation(self, weakest: int) -> int:
        """Read operands and the operators between them, up to an operator that is weaker than `weakest`."""
        if self.sees("not") and weakest < _COMPARISON:
            while self.accept("not"):
                pass
            size = self._operation(_COMPARISON)
        else:
            size = self._operand()
        joined = 0  # the part of `size` that _grow has counted already: a chain of || is counted once
        while True:
            power = _POWER.get(self.token.text, -1) if self.token.kind in ("word", "mark") else -1
            if power < weakest:
                return size
            if self.accept("||"):
                size += self._operation(power + 1)
                self._grow(size - joined)
                joined = size
                continue
            joined = 0
            if power == _COMPARISON:
                self._comparison()
                size = 1
            elif self.accept("->", "->>"):  # the result is part of the left operand, so `size` stays
                self._operation(power + 1)
            else:
                self.accept(*_PRECEDENCE[power])
                self._operation(power + 1)
                size = 1

    def _comparison(self) -> None:
        """Read a comparison from its operator on."""
        if self.skip("is"):
            negated = self.skip("not")
            if self.skip("distinct"):
                if not self.skip("from"):
                    self.reject("expected FROM")
                negated = not negated
            self.written.append("IS NOT" if negated else "IS")
            self._operation(_COMPARISON + 1)
        elif self.accept("isnull", "notnull"):
            pass
        elif self.accept("=", "==", "<>", "!="):
            self._operation(_COMPARISON + 1)
        else:
            negated = self.accept("not")
            if negated and self.accept("null"):
                return
            self._match()

    def _match(self) -> None:
        if self.accept("like", "glob"):
            self._operation(_COMPARISON + 1)
            if self.accept("escape"):
                self._operation(_COMPARISON + 1)
        elif self.accept("between"):
            self._operation(_COMPARISON + 1)
            self.expect("and")
            self._operation(_COMPARISON + 1)
        elif self.accept("in"):
            self.expect("(")
            if self.sees("select"):
                self._subquery(exists=False)
            elif not self.accept(")"):
                self._list()
        else:
            self.reject("expected LIKE, GLOB, BETWEEN or IN")

    def _operand(self) -> int:
        while self.accept("-", "+", "~"):
            pass
        size = self._primary()
        while self.accept("collate"):
            if not self.sees(*_COLLATIONS):
                self.reject(f"expected one of the collations {', '.join(_COLLATIONS)}")
            self.accept(*_COLLATIONS)
        return size

    def _primary(self) -> int:
        token = self.token
        if token.kind in ("number", "string", "blob"):
            self.write_literal()
        elif token.kind == "parameter":
            self.write_parameter()
        elif self.accept("("):
            size = self._value()
            self.expect(")")
            return size
        elif token.kind == "word" and self.is_call() and self._is_function(token):
            return self._call()
        elif token.kind == "name" or (token.kind == "word" and token.text not in _RESERVED):
            self.written.append(self._name())
        else:
            return self._keyword()
        return 1

    def _keyword(self) -> int:
        if self.accept("case"):
            return self._case()
        if self.accept("cast"):
            return self._cast()
        if self.accept("exists"):
            self.expect("(")
            self._subquery(exists=True)
        elif self.sees("not"):
            self.reject("put NOT and its operand in parentheses")
        elif not self.accept("true", "false", "null"):
            self.reject("expected a field, a value, ? or '('")
        return 1

    def _list(self) -> list[int]:
        """Read values and the closing parenthesis."""
        sizes = [self._value()]
        while self.accept(","):
            sizes.append(self._value())
        self.expect(")")
        return sizes

    def _case(self) -> int:
        sizes = [] if self.sees("when") else [self._value()]
        self.expect("when")
        while True:
            sizes.append(self._value())
            self.expect("then")
            sizes.append(self._value())
            if not self.accept("when"):
                break
        if self.accept("else"):
            sizes.append(self._value())
        self.expect("end")
        return max(sizes)

    def _cast(self) -> int:
        self.expect("(")
        size = self._value()
        self.expect("as")
        if not self.sees(*_TYPES):
            self.reject(f"expected one of the types {', '.join(_TYPES)}")
        self.written.append(_TYPES[self.take().text])
        self.expect(")")
        return size

    # Functions.

    def _is_function(self, token: Token) -> bool:
        if token.text in FUNCTIONS:
            return True
        if token.text in _TABLE_FUNCTIONS:
            self.reject(SUBQUERY)
        if token.text in _AGGREGATES:
            self.reject(f"{token.text}() is an aggregate function, but a filter is evaluated for each document alone")
        if token.text not in _RESERVED:
            self.reject(f"unknown function; filters may call {', '.join(sorted(FUNCTIONS))}")
        return False

    def _call(self) -> int:
        token = self.take()
        name, function = token.text, FUNCTIONS[token.text]
        self.written.append(name)
        self.expect("(")
        sizes = [] if self.accept(")") else self._list()
        if not function.least <= len(sizes) <= function.most:
            takes = f"{function.least} to {function.most}" if function.most > function.least else f"{function.least}"
            self.reject(f"{name}() takes {takes} value{'s' * (function.most > 1)}, not {len(sizes)}", token)
        if name == "replace":
            self._check_replacement()
        self.depends_on_time |= function.depends_on_time
        growth = len(sizes) if name == "json_extract" and len(sizes) > 2 else function.growth
        if not growth:
            return max(sizes, default=1)
        self._grow(growth * sum(sizes))
        return growth * sum(sizes)

    def _check_replacement(self) -> None:
        """Reject a replacement that is neither a short literal nor a parameter, since it may replace every character.

        A parameter is checked when its value is bound.
        """
        comma, token, _ = self.read(3)
        alone = comma.kind == "mark" and comma.text == ","
        if alone and token.kind == "parameter":
            self.replacements.add(self.parameter)
        elif not (alone and token.kind in ("string", "number") and len(token.text) <= MOST_REPLACEMENT):
            expected = f"a string of at most {MOST_REPLACEMENT} characters, or a parameter"
            self.reject(f"the replacement of replace() must be {expected}", token)

    def _grow(self, size: int) -> None:
        self.grown += size
        if self.grown > _MOST_GROWTH:
            self.reject(
                f"the values computed up to here may be {self.grown} times as long as those of a document, and the "
                f"limit is {_MOST_GROWTH}; nest fewer calls of functions such as hex()"
            )

    # Names, parameters and lists.

    def _name(self) -> str | FieldName:
        token = self.take()
        if self.skip("."):
            columns = {name: sql for name, sql in self.scopes}
            folded, column = fold_name(token.text), fold_name(self.take().text)
            if folded not in columns or column not in _LIST_COLUMNS:
                self.reject("a dot is allowed only between json_each, or its alias, and one of its columns", token)
            return f"{columns[folded]}.{column}"
        if self.scopes and fold_name(token.text) in _LIST_COLUMNS:
            return f"{self.scopes[-1][1]}.{fold_name(token.text)}"
        return FieldName(token, self.expression)

    def _subquery(self, *, exists: bool) -> None:
        """Read a query over json_each, from SELECT to the closing parenthesis."""
        self._deepen()
        self.expect("select")
        selected = [self.take()]
        if self.skip("."):
            selected.append(self.take())
        self.lists += 1
        sql = f"list{self.lists}"
        if selected[-1].kind in ("word", "name") and fold_name(selected[-1].text) in _LIST_COLUMNS:
            self.written.append(f"{sql}.{fold_name(selected[-1].text)}")
        elif exists and len(selected) == 1 and selected[0].text in ("*", "1"):
            self.written.append("1")
        else:
            self.reject(SUBQUERY, selected[-1])
        self.expect("from")
        name = self._table()
        if len(selected) == 2 and fold_name(selected[0].text) != name:
            self.reject(f"the list is called {name!r} here", selected[0])
        self.written.append(f"AS {sql}")
        self.scopes.append((name, sql))
        if self.accept("where"):
            self._value()
        self.scopes.pop()
        self.expect(")")
        self.depth -= 1

    def _table(self) -> str:
        """Read a call of json_each or json_tree and return its alias, or its own name if it has none."""
        token = self.token
        if not self.sees(*_TABLE_FUNCTIONS):
            self.reject(SUBQUERY)
        self.written.append(self.take().text)
        self.expect("(")
        if len(self._list()) > 2:
            self.reject(f"{token.text}() takes a list and a path", token)
        named = self.skip("as")
        if self.token.kind == "name" or (self.token.kind == "word" and self.token.text not in _RESERVED):
            token = self.take()
        elif named:
            self.reject("expected a name")
        return fold_name(token.text)
