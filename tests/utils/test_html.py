"""HTML for notebooks: nothing of a hostile text is markup, and numbers are shown as numbers."""

import re

import pytest

from latelier.utils.misc import Markup, bar, escape, fragment, table

HOSTILE = '</td><script>alert(1)</script><img src=x onerror="a()">\u202egnp\u2066\x00\x1b[31m\ud800'


def test_hostile_texts_are_shown_and_not_run():
    shown = fragment(HOSTILE, table([HOSTILE], [[HOSTILE, HOSTILE]], caption=HOSTILE), bar(HOSTILE, 0.5))
    tags = set(re.findall(r"</?([a-z]+)", shown))
    assert tags == {"style", "div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
    assert shown.count("&lt;script&gt;") == 6
    assert not re.search("[\u202e\u2066\x00\x1b\ud800]", shown)
    assert shown.count(r"\u202egnp\u2066\x00\x1b[31m\ud800") == 6


def test_what_people_write_stays():
    for text in ("naïve 日本語 🙂", "two\nlines", "a‍b"):  # the last holds a joiner
        assert escape(text) == text
    assert escape("a\tb\r\nc") == "a    b\nc"


def test_cells_are_aligned_and_rounded_by_their_type():
    cells = re.findall(
        r"<td.*?</td>", table(["a", *"bcdefg"], [[1, 1234, 0.12345, "1", None, True, Markup("<i>x</i>")]])
    )
    assert cells == [
        '<td class="number">1,234</td>',
        '<td class="number">0.123</td>',
        "<td>1</td>",
        "<td></td>",
        "<td>True</td>",
        "<td><i>x</i></td>",
    ]


@pytest.mark.parametrize(("fraction", "percent"), [(-1, 0), (0.256, 26), (7, 100), (float("nan"), 0)])
def test_bars_stay_inside_their_cell(fraction, percent):
    assert f"--part: {percent}%" in bar("x", fraction)
