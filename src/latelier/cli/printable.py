"""Text of others on its way to a terminal: what would act on the terminal is written out instead.

Documents, ids, metadata and names of files are anybody's. Control characters in them move the cursor, rename the
window or clear the screen; bidirectional overrides make a line read as something else.
"""

from __future__ import annotations

import re

__all__ = ["escape_json", "printable"]

# C0, DEL and C1 controls, marks and overrides of direction, separators of lines, and halves of UTF-16 pairs. The
# joiners that Persian and emoji need are none of them.
_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")
_ACTING_BUT_LINES = re.compile(_ACTING.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text whose control characters are written out.

    Parameters
    ----------
    text
        Anything.
    lines
        Keep line ends, as messages have them.

    Examples
    --------
    >>> print(printable("red \x1b[31m and \u202egnp.exe"))
    red \x1b[31m and \u202egnp.exe
    """
    return (_ACTING_BUT_LINES if lines else _ACTING).sub(lambda found: _escape(found[0]), text)


def escape_json(text: str) -> str:
    r"""Return the same JSON with control characters in its strings escaped, those that JSON itself lets through.

    Examples
    --------
    >>> print(escape_json('{"text": "\u202e\x9b"}'))
    {"text": "\u202e\u009b"}
    """
    return _ACTING_BUT_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
