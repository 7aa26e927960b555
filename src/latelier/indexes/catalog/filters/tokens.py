"""Tokens of filters: SQLite's words, names, literals, parameters and operators; and errors that point at a token."""

from __future__ import annotations

import re
from typing import NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.metadata import fold_name

__all__ = ["Token", "TokenReader", "rejection", "shorten", "tokenize"]

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

    Attributes
    ----------
    kind
        ``"word"``, ``"name"`` (one in quotes), ``"string"``, ``"blob"``, ``"number"``, ``"parameter"``, ``"mark"`` or
        ``"end"``.
    text
        A word in lower case; a string or a name without its quotes; all others as in the expression.
    position
        Index of its first character in the expression.
    source
        Its characters in the expression.
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
