"""The grammar of filters, stricter than SQL: what is not in it never reaches SQLite.

`parse_filter` reads one expression and writes it anew, from words, operators and functions that are named here;
names become columns of ours, and literals are quoted again. Since what is written has the order and the parentheses
of what was read, SQLite's own precedence applies. Nothing of a filter can therefore end it, or read another table.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import NoReturn

from latelier.indexes.filter_functions import FUNCTIONS
from latelier.indexes.filter_query import MOST_REPLACEMENT, Filter, Name
from latelier.indexes.filter_tokens import Reader, Token, refusal
from latelier.indexes.values import fold_name

__all__ = ["parse_filter"]

_MOST_DEPTH = 20  # SQLite's parser has room for about a hundred unfinished rules, and a function's call takes five
# Values may grow to so many times the longest one that a document or a parameter holds, all of a filter together.
_MOST_GROWTH = 256
_MOST_PARAMETER = 32_766  # as SQLite has it

# From weak to strong; `_compared` reads those of the fourth row.
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
_COMPARED = _POWER["="]
_RESERVED = {name for name in _POWER if name.isalpha()}
_RESERVED |= {"escape", "null", "true", "false", "exists", "case", "when", "then", "else", "end", "cast", "collate"}
_RESERVED |= {"as", "select", "from", "where", "distinct"}
_TYPES = {"int": "INTEGER", "integer": "INTEGER", "real": "REAL", "float": "REAL", "text": "TEXT", "blob": "BLOB"}
_TYPES |= {"numeric": "NUMERIC", "double": "REAL", "varchar": "TEXT", "bigint": "INTEGER"}
_COLLATIONS = ("binary", "nocase", "rtrim")
_LISTS = ("json_each", "json_tree")
_LIST_COLUMNS = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
_AGGREGATES = ("avg", "count", "group_concat", "sum", "total")
_SUBQUERY = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)


@lru_cache(maxsize=64)
def parse_filter(expression: str, first: int = 0) -> Filter:
    """Read a filter.

    Parameters
    ----------
    expression
        As the user gave it.
    first
        How many parameters stand before its own.

    Raises
    ------
    InvalidArgumentError
        If it is not an expression of this grammar.

    Examples
    --------
    >>> parsed = parse_filter("year>=:from /* inclusive */ AND 'it''s' IS NOT NULL")
    >>> [piece if isinstance(piece, str) else piece.token.text for piece in parsed.pieces]
    ['year', ">= ?1 AND 'it''s' IS NOT NULL"]
    >>> parsed.bind({"from": 2020})
    (2020,)
    """
    return _Parser(expression, first).parse()


class _Parser(Reader):
    """A recursive-descent parser, which writes as it reads.

    The methods that read a value return how long it may be: 1 for one as it is stored, or as a parameter.
    """

    def __init__(self, expression: str, first: int) -> None:
        super().__init__(expression)
        self.first = first
        self.written: list[str | Name] = []
        self.slots: list[str | None] = []
        self.named: dict[str, int] = {}
        self.replacements: set[int] = set()
        self.scopes: list[tuple[str, str]] = []  # of json_each: its name here, and in the SQL
        self.lists = self.depth = self.grown = self.latest = 0
        self.asks_time = False

    def parse(self) -> Filter:
        self._value()
        if self.token.kind != "end":
            self._refuse("expected an operator or the end")
        pieces: list[str | Name] = []
        for is_sql, group in groupby(self.written, key=lambda piece: isinstance(piece, str)):
            run = list(group)
            pieces += [" ".join(map(str, run))] if is_sql else run
        return Filter(
            self.expression,
            tuple(pieces),
            tuple(self.slots),
            frozenset(self.replacements),
            self.asks_time,
            question="".join(p if isinstance(p, str) else f'"{fold_name(p.token.text)}"' for p in pieces),
        )

    def _accept(self, *texts: str) -> bool:
        """Read a word or a mark, if it stands here, and write it."""
        if not self.sees(*texts):
            return False
        self.written.append(self.take().text.upper())
        return True

    def _expect(self, *texts: str) -> None:
        if not self._accept(*texts):
            self._refuse(f"expected {' or '.join(map(repr, texts)).upper()}")

    def _refuse(self, reason: str, token: Token | None = None) -> NoReturn:
        token = token or self.token
        if token.text == "select" and token.kind == "word":
            reason = _SUBQUERY
        elif token.text == "," and token.kind == "mark":
            reason += "; several values stand only after IN and in the call of a function"
        raise refusal(self.expression, token, reason)

    # Values and operators.

    def _value(self) -> int:
        """Read one value that begins a new level."""
        self._deepen()
        size = self._operation(0)
        self.depth -= 1
        return size

    def _deepen(self) -> None:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self._refuse(f"it is nested more than {_MOST_DEPTH} deep")

    def _operation(self, weakest: int) -> int:
        """Read operands and the operators between them that bind no weaker than some."""
        if self.sees("not") and weakest < _COMPARED:
            while self._accept("not"):
                pass
            size = self._operation(_COMPARED)
        else:
            size = self._operand()
        joined = 0  # how long what || has put together may be
        while True:
            power = _POWER.get(self.token.text, -1) if self.token.kind in ("word", "mark") else -1
            if power < weakest:
                self.grown += joined
                self._bound_growth()
                return size
            if power == _COMPARED:
                self._compared()
                size = 1
            elif self._accept("||"):
                size = joined = size + self._operation(power + 1)
            elif self._accept("->", "->>"):  # a part of what stands before
                self._operation(power + 1)
            else:
                self._accept(*_PRECEDENCE[power])
                self._operation(power + 1)
                size = 1

    def _compared(self) -> None:
        """Read a comparison from its operator on."""
        if self.skip("is"):
            negated = self.skip("not")
            if self.skip("distinct"):
                if not self.skip("from"):
                    self._refuse("expected FROM")
                negated = not negated
            self.written.append("IS NOT" if negated else "IS")
            self._operation(_COMPARED + 1)
        elif self._accept("isnull", "notnull"):
            pass
        elif self._accept("=", "==", "<>", "!="):
            self._operation(_COMPARED + 1)
        else:
            negated = self._accept("not")
            if negated and self._accept("null"):
                return
            self._matched()

    def _matched(self) -> None:
        if self._accept("like", "glob"):
            self._operation(_COMPARED + 1)
            if self._accept("escape"):
                self._operation(_COMPARED + 1)
        elif self._accept("between"):
            self._operation(_COMPARED + 1)
            self._expect("and")
            self._operation(_COMPARED + 1)
        elif self._accept("in"):
            self._expect("(")
            if self.sees("select"):
                self._subquery(exists=False)
            elif not self._accept(")"):
                self._list()
        else:
            self._refuse("expected LIKE, GLOB, BETWEEN or IN")

    def _operand(self) -> int:
        while self._accept("-", "+", "~"):
            pass
        size = self._primary()
        while self._accept("collate"):
            if not self.sees(*_COLLATIONS):
                self._refuse(f"expected one of the collations {', '.join(_COLLATIONS)}")
            self._accept(*_COLLATIONS)
        return size

    def _primary(self) -> int:
        token = self.token
        if token.kind in ("number", "string", "blob"):
            self.written.append(_literal(self.take()) or self._refuse("the number has too many digits", token))
        elif token.kind == "parameter":
            self.latest = self._slot(self.take())
            self.written.append(f"?{self.first + self.latest + 1}")
        elif self._accept("("):
            size = self._value()
            self._expect(")")
            return size
        elif token.kind == "word" and self.is_call() and self._is_function(token):
            return self._call()
        elif token.kind == "name" or (token.kind == "word" and token.text not in _RESERVED):
            self.written.append(self._name())
        else:
            return self._keyword()
        return 1

    def _keyword(self) -> int:
        if self._accept("case"):
            return self._case()
        if self._accept("cast"):
            return self._cast()
        if self._accept("exists"):
            self._expect("(")
            self._subquery(exists=True)
        elif self.sees("not"):
            self._refuse("put the NOT and what it negates in parentheses")
        elif not self._accept("true", "false", "null"):
            self._refuse("expected a field, a value, ? or '('")
        return 1

    def _list(self) -> list[int]:
        """Read values up to the closing parenthesis."""
        sizes = [self._value()]
        while self._accept(","):
            sizes.append(self._value())
        self._expect(")")
        return sizes

    def _case(self) -> int:
        sizes = [] if self.sees("when") else [self._value()]
        self._expect("when")
        while True:
            sizes.append(self._value())
            self._expect("then")
            sizes.append(self._value())
            if not self._accept("when"):
                break
        if self._accept("else"):
            sizes.append(self._value())
        self._expect("end")
        return max(sizes)

    def _cast(self) -> int:
        self._expect("(")
        size = self._value()
        self._expect("as")
        if not self.sees(*_TYPES):
            self._refuse(f"expected one of the types {', '.join(_TYPES)}")
        self.written.append(_TYPES[self.take().text])
        self._expect(")")
        return size

    # Functions.

    def _is_function(self, token: Token) -> bool:
        if token.text in FUNCTIONS:
            return True
        if token.text in _LISTS:
            self._refuse(_SUBQUERY)
        if token.text in _AGGREGATES:
            self._refuse(f"{token.text}() needs many documents, and a filter sees one at a time")
        if token.text not in _RESERVED:
            self._refuse(f"there is no such function here; there are {', '.join(sorted(FUNCTIONS))}")
        return False

    def _call(self) -> int:
        token = self.take()
        name, function = token.text, FUNCTIONS[token.text]
        self.written.append(name)
        self._expect("(")
        sizes = [] if self._accept(")") else self._list()
        if not function.least <= len(sizes) <= function.most:
            takes = f"{function.least} to {function.most}" if function.most > function.least else f"{function.least}"
            self._refuse(f"{name}() takes {takes} values, not {len(sizes)}", token)
        if name == "replace":
            self._check_replacement()
        self.asks_time |= function.asks_time
        growth = len(sizes) if name == "json_extract" and len(sizes) > 2 else function.growth
        if not growth:
            return max(sizes, default=1)
        size = growth * sum(sizes)
        self.grown += size
        self._bound_growth()
        return size

    def _check_replacement(self) -> None:
        """Refuse a text of unknown length in the place of every character."""
        comma, token, _ = self.read(3)
        alone = comma.kind == "mark" and comma.text == ","
        if alone and token.kind == "parameter":
            self.replacements.add(self.latest)
        elif not (alone and token.kind in ("string", "number") and len(token.text) <= MOST_REPLACEMENT):
            self._refuse(f"replace() puts in a string of at most {MOST_REPLACEMENT} characters, or a parameter", token)

    def _bound_growth(self) -> None:
        if self.grown > _MOST_GROWTH:
            self._refuse(
                f"by here its values may grow to {self.grown} times those of a document, of at most {_MOST_GROWTH}; "
                "call fewer functions such as hex() on the values of one another"
            )

    # Names, parameters and lists.

    def _slot(self, token: Token) -> int:
        """Return the index of a parameter, counted as SQLite does."""
        if token.text in self.named:
            return self.named[token.text]
        index = len(self.slots)
        if token.text[0] == "?" and len(token.text) > 1:
            index = int(token.text[1:6]) - 1
            if not 0 <= index < _MOST_PARAMETER or len(token.text) > 6:
                self._refuse(f"the numbers of parameters go from 1 to {_MOST_PARAMETER}", token)
        self.slots += [None] * (index + 1 - len(self.slots))
        if token.text[0] != "?":
            self.slots[index] = token.text[1:]
            self.named[token.text] = index
        return index

    def _name(self) -> str | Name:
        token = self.take()
        if self.skip("."):
            columns = {name: sql for name, sql in self.scopes}
            folded, column = fold_name(token.text), fold_name(self.take().text)
            if folded not in columns or column not in _LIST_COLUMNS:
                self._refuse("a point stands only between json_each, or its name, and one of its columns", token)
            return f"{columns[folded]}.{column}"
        if self.scopes and fold_name(token.text) in _LIST_COLUMNS:
            return f"{self.scopes[-1][1]}.{fold_name(token.text)}"
        return Name(token, self.expression)

    def _subquery(self, *, exists: bool) -> None:
        """Read a query over json_each from its SELECT on, and the parenthesis that ends it."""
        self._deepen()
        self._expect("select")
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
            self._refuse(_SUBQUERY, selected[-1])
        self._expect("from")
        name = self._table()
        if len(selected) == 2 and fold_name(selected[0].text) != name:
            self._refuse(f"the list is called {name!r} here", selected[0])
        self.written.append(f"AS {sql}")
        self.scopes.append((name, sql))
        if self._accept("where"):
            self._value()
        self.scopes.pop()
        self._expect(")")
        self.depth -= 1

    def _table(self) -> str:
        """Read the call of json_each or json_tree, and return what it is called from then on."""
        token = self.token
        if not self.sees(*_LISTS):
            self._refuse(_SUBQUERY)
        self.written.append(self.take().text)
        self._expect("(")
        if len(self._list()) > 2:
            self._refuse(f"{token.text}() takes a list and a path", token)
        named = self.skip("as")
        if self.token.kind == "name" or (self.token.kind == "word" and self.token.text not in _RESERVED):
            token = self.take()
        elif named:
            self._refuse("expected a name")
        return fold_name(token.text)


def _literal(token: Token) -> str:
    """Return a literal as SQL, or nothing if it is none."""
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
