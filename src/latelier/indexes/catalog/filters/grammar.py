"""The grammar of filters, a subset of SQL's: an expression outside of it is rejected before it reaches SQLite.

`parse_filter` reads one expression and writes new SQL, which contains only the words, operators and functions listed
here. Names become columns of the index, and literals are quoted again. The order and the parentheses are kept, so
SQLite's precedence applies. No expression can therefore end the statement that contains it, or read another table.
"""

from __future__ import annotations

from functools import lru_cache

from latelier.indexes.catalog.filters.functions import FUNCTIONS, MOST_REPLACEMENT
from latelier.indexes.catalog.filters.sql import SUBQUERY, FieldName, Filter, SqlWriter
from latelier.indexes.catalog.filters.tokens import Token
from latelier.indexes.catalog.metadata import fold_name

__all__ = ["parse_filter"]

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

    Parameters
    ----------
    expression
        As the user gave it.
    first
        Number of parameters that precede those of this expression in the statement.

    Returns
    -------
    Filter
        Its SQL, still without the columns of an index, and its parameters.

    Raises
    ------
    InvalidArgumentError
        If it is not an expression of this grammar.

    Examples
    --------
    >>> parsed = parse_filter("year>=:from /* inclusive */ AND 'a' IS NOT NULL")
    >>> field, sql = parsed.pieces
    >>> field.token.text, sql
    ('year', ">= ?1 AND 'a' IS NOT NULL")
    >>> parsed.bind({"from": 2020})
    (2020,)
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
