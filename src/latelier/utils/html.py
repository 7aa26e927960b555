"""HTML for notebooks: escaped text, tables and bars that are readable in light and in dark themes.

Colours are the theme's own (``currentColor``) and transparent tints. There are no scripts and no external resources.
"""

from __future__ import annotations

import html
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from latelier.utils.control_characters import printable

__all__ = ["Markup", "bar", "escape", "fragment", "table"]

# Every rule is about the class of `fragment`, so that a notebook's own elements keep their style.
_STYLE = """
.latelier { overflow-x: auto }
.latelier table { border-collapse: collapse; margin: .4em 0; font-size: .9em; color: inherit; background: none }
.latelier caption { text-align: start; caption-side: top; padding: .2em 0; color: inherit }
.latelier th, .latelier td { padding: .25em .7em; text-align: start; vertical-align: top; background: none;
  border-bottom: 1px solid rgba(128, 128, 128, .35); max-width: 48em; overflow-wrap: break-word; white-space: pre-wrap }
.latelier .number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap }
.latelier-bar { display: block; min-width: 7em; padding: 0 .3em; text-align: end;
  background: linear-gradient(to right, rgba(59, 130, 246, .4) var(--part), rgba(128, 128, 128, .12) var(--part)) }
"""


class Markup(str):
    """HTML text, which `table` and `fragment` insert as it is; everything else they escape."""

    __slots__ = ()


def escape(value: object) -> Markup:
    r"""Return a value as HTML text; control characters and bidirectional overrides are shown as escapes.

    Parameters
    ----------
    value
        A text, or anything with a `str`; line ends are kept, tabs become four spaces.

    Examples
    --------
    >>> print(escape("<b> & \u202e"))
    &lt;b&gt; &amp; \u202e
    """
    text = str(value).replace("\r\n", "\n").replace("\t", "    ")
    return Markup(html.escape(printable(text, lines=True)))


def bar(text: str, fraction: float) -> Markup:
    """Return a text on a horizontal bar.

    Parameters
    ----------
    text
        What to write, such as the number that the bar shows.
    fraction
        Length of the bar, 0 to 1; values outside are clipped, and NaN is 0.

    Examples
    --------
    >>> bar("0.50", 0.5)
    '<span class="latelier-bar" style="--part: 50%">0.50</span>'
    """
    percent = round(100 * min(max(fraction, 0.0), 1.0)) if fraction == fraction else 0
    return Markup(f'<span class="latelier-bar" style="--part: {percent}%">{escape(text)}</span>')


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: Any = "") -> Markup:
    """Return a table.

    Parameters
    ----------
    header
        The names of the columns.
    rows
        One cell per column; numbers are aligned at their ends, floats have three decimals. The first cell is the
        header of its row.
    caption
        What stands above the table.

    Examples
    --------
    >>> print(table(["id", "score"], [["<a>", 0.5]]))
    <table><thead><tr><th scope="col">id</th><th scope="col">score</th></tr></thead><tbody>
    <tr><th scope="row">&lt;a&gt;</th><td class="number">0.500</td></tr>
    </tbody></table>
    """
    above = f"<caption>{_cell(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{_cell(name)}</th>' for name in header)
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return Markup(f"<table>{above}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>")


def fragment(*parts: Any, style: str = "") -> str:
    """Return what a ``_repr_html_`` returns: the parts in one element, with the style that they need.

    Parameters
    ----------
    *parts
        `Markup` is inserted as it is; anything else becomes an escaped paragraph.
    style
        Further CSS rules, about the class ``latelier``.

    Examples
    --------
    >>> fragment("2 < 3", table(["a"], [[1]])).count("2 &lt; 3")
    1
    """
    inner = "\n".join(part if isinstance(part, Markup) else f"<p>{escape(part)}</p>" for part in parts)
    return f'<style>{_STYLE}{style}</style>\n<div class="latelier">\n{inner}\n</div>'


def _row(cells: Sequence[Any]) -> str:
    first, *others = cells
    return f'<th scope="row">{_cell(first)}</th>' + "".join(
        f'<td class="number">{_cell(cell)}</td>' if _is_number(cell) else f"<td>{_cell(cell)}</td>" for cell in others
    )


def _cell(value: Any) -> Markup:
    if isinstance(value, Markup):
        return value
    if _is_number(value):
        return Markup(f"{value:,}" if isinstance(value, numbers.Integral) else f"{value:.3f}")
    return escape("" if value is None else value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
