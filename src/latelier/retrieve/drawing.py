"""How an explanation is drawn, as HTML and with matplotlib: marked text, a heat map of tokens, maps over a page."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from latelier.errors import LatelierError
from latelier.reading.images import load_image
from latelier.utils.checks import cut, printable
from latelier.utils.misc import Markup, bar, escape, fragment, needs_extra, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A text of 100,000 letters without a space is one word, which the text itself shows whole.
LONGEST_WORD = 60
# Columns that fit a page and a figure with labels that can be read.
_MOST_COLUMNS = 60


class HeatMap(NamedTuple):
    """The similarities of tokens."""

    rows: list[str]
    columns: list[str]
    values: np.ndarray  # (rows, columns) float32
    best: list[int]  # of each row, the column that it matches

    def shown_columns(self) -> list[int]:
        """Return the columns that add most to the score, and their neighbours, in order."""
        count = len(self.columns)
        if count <= _MOST_COLUMNS:
            return list(range(count))
        added = dict.fromkeys(self.best, 0.0)
        for row, column in enumerate(self.best):
            added[column] += float(self.values[row, column])
        strongest = sorted(added, key=lambda column: (-added[column], column))

        def place(i: int) -> tuple[int, int]:
            return min((abs(i - column), rank) for rank, column in enumerate(strongest))

        return sorted(sorted(range(count), key=place)[:_MOST_COLUMNS])


_LEVELS = 10
# With this opacity of the tint, black text on white and light text on black keep a contrast above 7 to 1.
_STRONGEST = 0.55
_LONGEST_UNREAD = 300
_TINTS = "\n".join(
    f".latelier.latelier .t{i} {{ background: rgba(59, 130, 246, {_STRONGEST * i / _LEVELS:.2f}) }}"
    for i in range(1, _LEVELS + 1)
)
STYLE = f"""
.latelier .text {{ white-space: pre-wrap; overflow-wrap: anywhere; max-width: 48em; line-height: 1.7 }}
.latelier mark {{ color: inherit; background: none; border-bottom: 2px solid currentColor; border-radius: .2em }}
.latelier mark sub {{ font-size: .65em; line-height: 1; padding: 0 .15em; font-variant-numeric: tabular-nums }}
.latelier .unread {{ opacity: .75; text-decoration: line-through }}
.latelier .scroll {{ overflow-x: auto; max-width: 100% }}
.latelier .heat {{ font-size: .75em; line-height: 1.2; border-collapse: separate; border-spacing: 1px }}
.latelier .note {{ font-size: .85em; margin: .4em 0 }}
.latelier .heat td {{ padding: .35em .25em; min-width: 1.9em; text-align: center; border: 0; white-space: nowrap;
  font-variant-numeric: tabular-nums }}
.latelier .heat th {{ padding: .25em .4em; border: 0; font-weight: normal; white-space: pre; overflow-wrap: normal }}
.latelier .heat thead th {{ vertical-align: bottom; text-align: center }}
.latelier .heat thead span {{ writing-mode: vertical-rl; transform: rotate(180deg);
  max-height: 12em; overflow: hidden }}
.latelier .heat tbody th {{ text-align: end }}
.latelier .heat .best {{ font-weight: bold; outline: 2px solid currentColor; outline-offset: -2px }}
.latelier .heat .gap {{ min-width: 0; padding: 0 .2em; opacity: .7 }}
.latelier .sheet {{ position: relative; width: fit-content; margin-top: .6em;
  border: 1px solid rgba(128, 128, 128, .5) }}
.latelier .sheet img {{ display: block; max-width: min(100%, 60em); max-height: 90vh }}
.latelier .sheet .map {{ display: none; position: absolute; inset: 0; width: 100%; height: 100%; max-width: none;
  max-height: none; image-rendering: pixelated }}
.latelier .page label {{ padding: .1em .5em .1em 0; overflow-wrap: anywhere }}
{_TINTS}
"""
_PAGE_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24 }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e6e8eb } }
body { margin: 2em auto; padding: 0 1.2em; max-width: 76em; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.35em; overflow-wrap: anywhere } h2 { font-size: 1.1em; margin-top: 1.8em }
.latelier .heat tbody th { position: sticky; inset-inline-start: 0; background: var(--ground) }
summary { cursor: pointer; margin: 1em 0 }
:focus-visible { outline: 2px solid currentColor; outline-offset: 2px }
"""


def web_page(title: Markup, matches: Markup, words: Markup, heat: HeatMap, *, is_picture: bool) -> str:
    """Return a page of HTML that needs no other file: see `Explanation.to_html`."""
    shown = heat.shown_columns()
    parts = [
        Markup(f"<h1>{title}</h1>"),
        Markup("<h2>Matched parts of the page</h2>" if is_picture else "<h2>Matched words of the document</h2>"),
        matches,
        Markup("<h2>Words of the query</h2>"),
        words,
        Markup("<h2>Similarities of tokens</h2>"),
        heat_map_html(heat, shown),
    ]
    count = len(heat.columns)
    if len(shown) < count and not is_picture:
        whole = heat_map_html(heat, range(count))
        parts.append(Markup(f"<details><summary>All {count} tokens of the document</summary>{whole}</details>"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n</head>\n<body>\n"
        f"<main>{fragment(*parts, style=STYLE + _PAGE_STYLE)}</main>\n</body>\n</html>\n"
    )


def marked_text(text: str, spans: Sequence[tuple[int, int, float]], ranges: Sequence[tuple[int, int] | None]) -> Markup:
    """Return a text with its spans marked, and what of it no token stands for, by their `ranges`, struck through."""
    most = max((contribution for _, _, contribution in spans), default=0.0)
    read = [each for each in ranges if each is not None]
    if read:
        first = read[0][0]
        last = read[-1][1]
    else:
        first = 0
        last = len(text)
    if not any(map(str.isalnum, text[last:])):  # only punctuation, which some models skip
        last = len(text)
    if not any(map(str.isalnum, text[:first])):
        first = 0
    pieces = [_unread(text[:first])]
    at = first
    for start, end, contribution in spans:
        words = escape(text[start:end])
        mark = f'<mark class="t{_level(contribution, most)}">{words}<sub>{contribution:.2f}</sub></mark>'
        pieces += [escape(text[at:start]), mark]
        at = end
    pieces += [escape(text[at:last]), _unread(text[last:])]
    if (first, last) == (0, len(text)):
        note = ""
    else:
        note = "<p>The model did not read the text that is struck through.</p>"
    return Markup(f'<p class="text">{"".join(pieces)}</p>{note}')


def _unread(text: str) -> str:
    if not text:
        return ""
    more = len(text) - _LONGEST_UNREAD
    if more > 0:
        rest = f" ({more:,} more characters)"
    else:
        rest = ""
    return f'<s class="unread">{escape(text[:_LONGEST_UNREAD])}</s>{rest}'


def word_table(rows: Sequence[tuple[str, str, float]]) -> Markup:
    """Return the table of the words of a query, the words that they match, and what this adds to the score."""
    most = max((contribution for _, _, contribution in rows), default=0.0)
    cells = [
        [
            cut(word, LONGEST_WORD),
            cut(matched, LONGEST_WORD),
            bar(f"{contribution:.3f}", contribution / most if most > 0 else 0),
        ]
        for word, matched, contribution in rows
    ]
    return table(["query", "document", "contribution"], cells)


def heat_map_html(heat: HeatMap, columns: Sequence[int]) -> Markup:
    """Return the table of similarities; a column of dots stands for document tokens that are left out."""
    labels = heat.columns
    most = float(heat.values.max(initial=0.0))
    gaps = [i > 0 and columns[i - 1] != position - 1 for i, position in enumerate(columns)]
    dots = '<td class="gap">⋯</td>'
    head = "".join(
        f'{dots if gap else ""}<th scope="col"><span>{escape(cut(labels[position], LONGEST_WORD))}</span></th>'
        for gap, position in zip(gaps, columns, strict=True)
    )
    rows = []
    for name, best, row in zip(heat.rows, heat.best, heat.values, strict=True):
        cells = "".join(
            f'{dots if gap else ""}<td class="t{_level(row[position], most)}{" best" * (position == best)}">'
            f"{_decimals(row[position])}</td>"
            for gap, position in zip(gaps, columns, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(cut(name, LONGEST_WORD))}</th>{cells}</tr>')
    note = "Rows are tokens of the query, columns tokens of the document; the highest of each row is framed."
    if len(columns) < len(labels):
        note += f" {len(columns)} of {len(labels)} columns: those that matched, and their neighbours."
    return Markup(
        f'<p class="note">{note}</p>\n<div class="scroll" role="region" aria-label="Heat map" tabindex="0">'
        f'<table class="heat"><thead><tr><td></td>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _level(value: float, most: float) -> int:
    """Return the strength of a tint, 0 to 10, in proportion to `most`."""
    if most > 0:
        return min(max(round(_LEVELS * float(value) / most), 0), _LEVELS)
    return 0


def _decimals(value: float) -> str:
    """Return a number with two decimals and no zero before the point: ``.52``, ``-.04``."""
    return f"{round(float(value), 2) + 0.0:.2f}".replace("0.", ".", 1)  # + 0.0: no -.00


_LONGEST_LABEL = 18
_LONGEST_TITLE = 70
# Inches for each row and column, and for what stands around them.
_CELL = 0.26
_AROUND = (2.6, 2.0)
# Of a picture, per inch.
DOTS = 150
_NOTEBOOK_DOTS = 80


def draw_heat_map(heat: HeatMap, title: str, ax: Axes | None) -> Figure:
    """Draw a heat map with matplotlib, see `Explanation.figure`."""
    columns = heat.shown_columns()
    rows = heat.rows
    labels = heat.columns
    if ax is None:
        size = _CELL * len(columns) + _AROUND[0], _CELL * len(rows) + _AROUND[1]
        # Not by pyplot, which would keep the figure, and in a notebook show it twice.
        ax = _figure_class()(figsize=size, layout="constrained").add_subplot()
    values = heat.values[:, columns]
    image = ax.imshow(values, cmap="Blues", vmin=min(0.0, float(values.min(initial=0.0))), aspect="auto")
    place = {position: i for i, position in enumerate(columns)}
    best = [(place[column], i) for i, column in enumerate(heat.best) if column in place]
    ax.scatter([x for x, _ in best], [y for _, y in best], s=14, c="#d9480f", zorder=2)
    names = [_label(labels[i]) for i in columns]
    if len(columns) < len(labels):
        names = [f"{name} {position}" for name, position in zip(names, columns, strict=True)]
        for i in range(1, len(columns)):
            if columns[i] != columns[i - 1] + 1:  # tokens are left out here
                ax.axvline(i - 0.5, color="0.35", linewidth=1, linestyle=":")
    ax.set_xticks(range(len(columns)), names, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), [_label(name) for name in rows], parse_math=False)
    ax.tick_params(length=0, labelsize="small")
    ax.set_title(printable(cut(title, _LONGEST_TITLE)), fontsize="medium", parse_math=False)
    figure: Any = ax.figure  # or a part of it, of the user's
    figure.colorbar(image, ax=ax, label="similarity", fraction=0.02, pad=0.01)
    whole: Figure = figure.figure  # that of a part is the figure, and that of a figure itself
    return whole


def _figure_class() -> type[Figure]:
    """Return matplotlib's figure, shown in a notebook even if pyplot has not been imported."""
    with needs_extra("Drawing an explanation", "plot"):
        from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            self.savefig(written, format="png", dpi=_NOTEBOOK_DOTS)
            return written.getvalue()

    return NotebookFigure


def _label(text: str) -> str:
    return cut(printable(text), _LONGEST_LABEL)


# Of the picture of a page, in pixels, and of the JPEG that it becomes.
LONGEST_SIDE = 1200
_QUALITY = 80
_COLOUR = (217, 72, 15)
_STRONGEST_PATCH = 0.6
_MOST_FIGURES = 11
_LONGEST_NAME = 40


@dataclass(frozen=True)
class PageMap:
    """Where the vectors of a page lie on it.

    Parameters
    ----------
    metadata
        What is stored about the picture: ``image`` (its path), ``page``, ``width``, ``height``, ``checksum``.
    patches
        For each row and column of the page, the place of its patch among the document's vectors, ``(rows, columns)``;
        None if it cannot be known.
    reason
        Why it cannot be known.

    Examples
    --------
    >>> PageMap({"image": "report.pdf", "page": 3}, None, "its vectors were pooled").name
    'report.pdf, page 3'
    """

    metadata: Mapping[str, Any]
    patches: np.ndarray | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The path of the picture, and the page."""
        path = self.metadata.get("image", "a picture without a file")
        page = self.metadata.get("page")
        if page is None:
            return str(path)
        return f"{path}, page {page}"


class WordMap(NamedTuple):
    """The similarities of a word, or of the whole query, with each patch, ``(rows, columns)``."""

    name: str
    values: np.ndarray

    @property
    def best(self) -> tuple[int, int]:
        """The row and the column of the patch with the highest similarity, from 1 on."""
        row, column = np.unravel_index(int(self.values.argmax()), self.values.shape)
        return int(row) + 1, int(column) + 1


def page_jpeg(source: Any, longest: int = LONGEST_SIDE, page: int | None = None) -> bytes:
    """Return a stored picture, or a page of a file of PDF, as a JPEG of so many pixels at most; see `load_image`."""
    return _file(_reduced(load_image(source, page), longest), "JPEG", quality=_QUALITY)


def _reduced(image: Any, longest: int) -> Any:
    image.thumbnail((longest, longest))
    return image


def _file(image: Any, format: str, **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, format, **options)
    return written.getvalue()


def _sheet(page: PageMap) -> tuple[Any, str]:
    """Return the picture of a page; or a blank one of its form, and why."""
    from PIL import Image

    try:
        return _reduced(load_image(page.metadata), LONGEST_SIDE), ""
    except LatelierError as error:
        sides = page.metadata["width"], page.metadata["height"]
        size = [max(1, round(side * LONGEST_SIDE / max(sides))) for side in sides]
        return Image.new("RGB", (size[0], size[1]), "#ddd"), f"Without the picture: {error}"


def _tints(maps: list[WordMap]) -> list[np.ndarray]:
    """Return the opacity of each patch, 0 to 1; words have one scale, so that weak ones look weak."""
    words = np.stack([each.values for each in maps[1:] or maps])
    ranges = [(maps[0].values.min(), maps[0].values.max())] + [(words.min(), words.max())] * (len(maps) - 1)
    return [((each.values - low) / max(high - low, 1e-9)) ** 2 for each, (low, high) in zip(maps, ranges, strict=True)]


def page_map_html(page: PageMap, maps: list[WordMap], key: str) -> Markup:
    """Return the page with the maps over it, chosen by radio buttons, without scripts; or why there is none.

    `key` tells it from others in one notebook.
    """
    title = Markup(f'<p class="note">{escape(page.name)}</p>')
    sheet, missing = _sheet(page)
    if missing:
        note = Markup(f'<p class="note">{escape(missing)}</p>')
    else:
        note = Markup()
    shown = _image(sheet, "JPEG", f"Picture of {page.name}", quality=_QUALITY)
    if page.patches is None:
        why = f"Which part of the page matched cannot be shown: {page.reason}."
        return Markup(f'{title}<p>{escape(why)}</p>{note}<div class="sheet">{shown}</div>')
    group = f"m{crc32(key.encode()):x}"
    choices = []
    layers = [shown]
    rules = []
    rows, columns = page.patches.shape
    for i, (each, tint) in enumerate(zip(maps, _tints(maps), strict=True)):
        name = escape(cut(each.name, _LONGEST_NAME))
        at = f"{group}-{i}"
        checked = " checked" if i == 0 else ""
        choices.append(f'<input type="radio" name="{group}" id="{at}"{checked}><label for="{at}">{name}</label>')
        best = "{}: strongest in row {}, column {} of {} x {} patches".format(each.name, *each.best, rows, columns)
        layers.append(_image(_overlay(tint), "PNG", best, f"map {at}"))
        rules.append(f".latelier #{at}:checked ~ .sheet .{at} {{ display: block }}")
    return Markup(
        f'{title}{note}<style>{"".join(rules)}</style><div class="page" role="group" aria-label="Word of the query">'
        f'{"".join(choices)}<div class="sheet">{"".join(layers)}</div></div>'
    )


def _overlay(tint: np.ndarray) -> Any:
    from PIL import Image

    pixels = np.empty((*tint.shape, 4), dtype="uint8")
    pixels[..., :3] = _COLOUR
    pixels[..., 3] = np.round(255 * _STRONGEST_PATCH * tint)
    return Image.fromarray(pixels)


def _image(image: Any, format: str, alt: str, kind: str = "", **options: Any) -> str:
    data = b64encode(_file(image, format, **options)).decode()
    return f'<img class="{kind}" alt="{escape(alt)}" src="data:image/{format.lower()};base64,{data}">'


def draw_page(page: PageMap, maps: list[WordMap], ax: Axes | None) -> Figure:
    """Draw the page with the first map, and beside it, in a new figure, with the others."""
    sheet, missing = _sheet(page)
    if ax is None:
        shown = maps[: _MOST_FIGURES + 1]
        columns = min(4, len(shown))
        rows = -(-len(shown) // columns)
        height = 3.2 * min(max(sheet.height / sheet.width, 0.3), 3)
        figure: Any = _figure_class()(figsize=(3.2 * columns, (height + 0.4) * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for empty in axes[len(shown) :]:
            empty.remove()
    else:
        figure = ax.figure
        axes = [ax]
        shown = maps[:1]
    for each, tint, at in zip(shown, _tints(maps), axes, strict=False):
        at.imshow(sheet, extent=(0, 1, 1, 0), aspect=sheet.height / sheet.width)
        at.imshow(_overlay(tint), extent=(0, 1, 1, 0), aspect=sheet.height / sheet.width, interpolation="nearest")
        at.set_title(printable(cut(each.name, _LONGEST_NAME)), fontsize="small", parse_math=False)
        at.set_axis_off()
    if missing and ax is None:
        figure.supxlabel(printable(cut(missing, 120)), fontsize="small", parse_math=False)
    whole: Figure = figure.figure
    return whole
