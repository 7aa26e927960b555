"""Maps over a page that was encoded as a picture: how similar each of its patches is to each word of a query."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from latelier.errors import LatelierError
from latelier.retrieve.images import check_size, load_image
from latelier.retrieve.model import QueryModel
from latelier.utils.checks import cut, is_count, printable
from latelier.utils.misc import Markup, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of the picture of a page, in pixels, and of the JPEG that it becomes.
LONGEST_SIDE = 1200
_QUALITY = 80
_COLOUR = (217, 72, 15)
_STRONGEST = 0.6
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


def is_picture(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a document was encoded as a picture, by the metadata that `Retriever.add` gives it."""
    sizes = [(metadata or {}).get(name) for name in ("width", "height")]
    return all(is_count(size) for size in sizes) and isinstance((metadata or {}).get("checksum"), str)


def page_tokens(model: QueryModel, metadata: Mapping[str, Any], count: int) -> tuple[list[str], PageMap]:
    """Return the names of the `count` vectors of a page, and where they lie on it."""
    width = metadata["width"]
    height = metadata["height"]
    tokens = [f"vector {i}" for i in range(count)]
    patches = None
    reason = ""
    try:
        check_size(width, height)  # an index may come from anybody
        found = model.loading.picture_tokens(width, height)
        reason = found.reason
        if len(found.tokens) == count:
            tokens = [_name(model, token) for token in found.tokens]
            patches = found.patches
        else:
            reason = f"it has {count:,} vectors, and {len(found.tokens):,} before they were pooled"
    except LatelierError as error:  # the model pools pictures itself, or the size is no picture's
        reason = str(error)
    for (row, column), place in np.ndenumerate(patches) if patches is not None else ():
        tokens[place] = f"patch {row + 1}, {column + 1}"
    return tokens, PageMap(metadata, patches, reason)


def _name(model: QueryModel, token: str) -> str:
    """Return the name of a token: one of the prompt that stands around each picture, unless it is a patch."""
    if token in model.encoder.special_tokens:
        return token
    return f"prompt: {model.encoder.join([token]).strip() or '␣'}"


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


STYLE = """
.latelier .sheet { position: relative; width: fit-content; margin-top: .6em;
  border: 1px solid rgba(128, 128, 128, .5) }
.latelier .sheet img { display: block; max-width: min(100%, 60em); max-height: 90vh }
.latelier .sheet .map { display: none; position: absolute; inset: 0; width: 100%; height: 100%; max-width: none;
  max-height: none; image-rendering: pixelated }
.latelier .page label { padding: .1em .5em .1em 0; overflow-wrap: anywhere }
"""


def page_html(page: PageMap, maps: list[WordMap], key: str) -> Markup:
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
    pixels[..., 3] = np.round(255 * _STRONGEST * tint)
    return Image.fromarray(pixels)


def _image(image: Any, format: str, alt: str, kind: str = "", **options: Any) -> str:
    data = b64encode(_file(image, format, **options)).decode()
    return f'<img class="{kind}" alt="{escape(alt)}" src="data:image/{format.lower()};base64,{data}">'


def draw_page(page: PageMap, maps: list[WordMap], ax: Axes | None, figure_class: Any) -> Any:
    """Draw the page with the first map, and beside it, in a new figure, with the others."""
    sheet, missing = _sheet(page)
    if ax is None:
        shown = maps[: _MOST_FIGURES + 1]
        columns = min(4, len(shown))
        rows = -(-len(shown) // columns)
        height = 3.2 * min(max(sheet.height / sheet.width, 0.3), 3)
        figure = figure_class(figsize=(3.2 * columns, (height + 0.4) * rows), layout="constrained")
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
    return figure.figure
