"""Show the control characters of texts from untrusted sources as escapes.

Control characters can move a terminal's cursor, rename its window or clear it; bidirectional overrides can make a line
look different from what it holds.
"""

from __future__ import annotations

import re

__all__ = ["escape_json", "printable"]

# C0, DEL and C1 controls, directional marks and overrides, line separators, and lone UTF-16 surrogates. The joiners
# that Persian and emoji need are not among them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text with its control characters escaped.

    Parameters
    ----------
    text
        Any text.
    lines
        Keep line ends, for messages of several lines.

    Examples
    --------
    >>> print(printable("red \x1b[31m and \u202egnp.exe"))
    red \x1b[31m and \u202egnp.exe
    """

    def escape(found: re.Match[str]) -> str:
        return found[0].encode("unicode_escape").decode("ascii")

    return (_CONTROL_BUT_NEWLINE if lines else _CONTROL).sub(escape, text)


def escape_json(text: str) -> str:
    r"""Escape the control characters in a JSON text that JSON allows in strings; the parsed value stays the same.

    Examples
    --------
    >>> print(escape_json('{"text": "\u202e\x9b"}'))
    {"text": "\u202e\u009b"}
    """
    return _CONTROL_BUT_NEWLINE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
