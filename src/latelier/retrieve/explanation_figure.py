"""The heat map of an explanation, drawn with matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.retrieve.explanation import Explanation
from latelier.retrieve.heat_map import column_labels, row_labels, shown_columns
from latelier.utils.checks import cut, describe, printable, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "picture"]

_LONGEST_LABEL, _LONGEST_TITLE = 18, 70
# Inches for each row and column, and for what stands around them.
_CELL, _AROUND = 0.26, (2.6, 2.0)
_DOTS, _NOTEBOOK_DOTS = 150, 80  # per inch, of a picture


def draw(explanation: Explanation, ax: Axes | None = None) -> Figure:
    """Draw the heat map of an explanation: see `Explanation.figure`.

    Parameters
    ----------
    explanation
        The explanation.
    ax
        Where to draw; None: a new figure.

    Raises
    ------
    InvalidArgumentError
        If `ax` is no axes.
    MissingExtraError
        If matplotlib is not installed.
    """
    figure_class = _figure_class()
    if ax is not None and not hasattr(ax, "imshow"):
        raise InvalidArgumentError(f"received {describe(ax)} as ax; expected axes of matplotlib, or None.")
    columns, rows = shown_columns(explanation), row_labels(explanation)
    if ax is None:
        size = _CELL * len(columns) + _AROUND[0], _CELL * len(rows) + _AROUND[1]
        # Not by pyplot, which would keep the figure, and in a notebook show it twice.
        ax = figure_class(figsize=size, layout="constrained").add_subplot()
    values = explanation.similarities[:, columns]
    image = ax.imshow(values, cmap="Blues", vmin=min(0.0, float(values.min(initial=0.0))), aspect="auto")
    place = {position: i for i, position in enumerate(columns)}
    best = [(place[match.position], i) for i, match in enumerate(explanation.tokens) if match.position in place]
    ax.scatter([x for x, _ in best], [y for _, y in best], s=14, c="#d9480f", zorder=2)
    labels = column_labels(explanation)
    names = [_label(labels[i]) for i in columns]
    if len(columns) < len(labels):
        names = [f"{name} {position}" for name, position in zip(names, columns, strict=True)]
        for i in range(1, len(columns)):
            if columns[i] != columns[i - 1] + 1:  # tokens are left out here
                ax.axvline(i - 0.5, color="0.35", linewidth=1, linestyle=":")
    ax.set_xticks(range(len(columns)), names, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), [_label(name) for name in rows], parse_math=False)
    ax.tick_params(length=0, labelsize="small")
    title = cut(f"{explanation.id!r} scores {explanation.score:.3f} for {explanation.query!r}", _LONGEST_TITLE)
    ax.set_title(printable(title), fontsize="medium", parse_math=False)
    figure: Any = ax.figure  # or a part of it, of the user's
    figure.colorbar(image, ax=ax, label="similarity", fraction=0.02, pad=0.01)
    whole: Figure = figure.figure  # that of a part is the figure, and that of a figure itself
    return whole


def picture(explanation: Explanation, format: str) -> bytes:
    """Return the contents of a file with the heat map.

    Parameters
    ----------
    explanation
        The explanation.
    format
        A format of matplotlib, such as ``"png"``.

    Raises
    ------
    InvalidArgumentError
        If matplotlib has no such format.
    MissingExtraError
        If matplotlib is not installed.
    """
    figure = draw(explanation, None)
    formats = figure.canvas.get_supported_filetypes()
    if format not in formats:
        raise InvalidArgumentError(
            f"received a file that ends in {short(format)} for a figure; give one that ends in "
            f"{', '.join('.' + name for name in sorted(formats))}."
        )
    return _written(figure, format, _DOTS)


def _figure_class() -> type[Figure]:
    """Return matplotlib's figure, shown in a notebook even if pyplot has not been imported."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Drawing an explanation", "plot") from error

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _written(self, "png", _NOTEBOOK_DOTS)

    return NotebookFigure


def _written(figure: Figure, format: str, dots: int) -> bytes:
    """Return the contents of a file with a figure."""
    written = io.BytesIO()
    figure.savefig(written, format=format, dpi=dots)
    return written.getvalue()


def _label(text: str) -> str:
    return cut(printable(text), _LONGEST_LABEL)
