"""Cells: groups of similar tokens around centroids, and which documents have a token in each.

Centroids come in two levels. A token belongs to the nearest of the few groups, and there to the nearest cell. Postings
name documents by their place in `numbers`, the documents' numbers in the catalog. A number stands for the same vectors
for ever, so cells stay true whatever happens to segments; documents that came later are simply not in them yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.kernels.codes import byte_width
from latelier.indexes.ivf.kernels.probing import NO_LANE
from latelier.kernels.simd import LANES

__all__ = ["Cells", "Centroids", "pack_centroids"]


class Centroids(NamedTuple):
    """Two levels of centroids, in lanes as kernels read them; a cell's number is that of its lane.

    Attributes
    ----------
    top, top_start
        ``(groups / 16, width / 4, 16, 4)`` int8, and what their sums start with ``(.., 16)`` int32.
    cells, cell_start
        The same for cells; each group begins a new row of lanes.
    ranges
        ``(groups + 1,)`` int64: which rows of lanes hold the cells of a group.
    fit
        ``(4,)`` float64: how many tokens there were at training, how similar they were to the centroids of their cells
        on average, and the same for the documents that have been added since; and the dim.
    """

    top: np.ndarray
    top_start: np.ndarray
    cells: np.ndarray
    cell_start: np.ndarray
    ranges: np.ndarray
    fit: np.ndarray

    @property
    def lanes(self) -> int:
        """Lanes of cells, those included that hold none."""
        return self.cell_start.size


class Cells(NamedTuple):
    """Centroids and postings.

    Attributes
    ----------
    centroids
        See `Centroids`.
    numbers
        ``(documents,)`` int64: the documents' numbers in the catalog, ascending.
    offsets, documents
        Where each cell's postings begin ``(lanes + 1,)`` int64, and the postings: places in `numbers`,
        uint16 where that is enough, else int32.
    """

    centroids: Centroids
    numbers: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray

    def fits(self, dim: int) -> bool:
        """Whether the cells are of tokens of this dim."""
        return int(self.centroids.fit[3]) == dim

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, to be stored."""
        own = {name: array for name, array in self._asdict().items() if name != "centroids"}
        return {**own, **{f"centroids_{name}": array for name, array in self.centroids._asdict().items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Cells:
        """Return what `arrays` was made of.

        This is where bytes from the disk become trusted. From here on kernels use offsets and ranges as addresses,
        unchecked; they expect nothing of centroids and postings, whatever numbers these hold.

        Raises
        ------
        CorruptedIndexError
            If an array is missing or of another form, or offsets and ranges lead elsewhere.
        """
        for name, (dtypes, shape) in _LAYOUT.items():
            array = arrays.get(name)
            if array is None or not _is_like(array, dtypes, shape):
                found = "missing" if array is None else f"{array.dtype} {array.shape}"
                raise CorruptedIndexError(f"{name}.npy is {found}, not {' or '.join(dtypes)} of shape {shape}")
        # Read, not mapped: what is checked must not change in the file afterwards.
        arrays = {**arrays, **{name: np.array(arrays[name]) for name in ("centroids_ranges", "numbers", "offsets")}}
        centroids = Centroids(*(arrays[f"centroids_{name}"] for name in Centroids._fields))
        cells = cls(centroids, arrays["numbers"], arrays["offsets"], arrays["documents"])
        wrong = next((name for name, right in _relations(cells) if not right), None)
        if wrong:
            raise CorruptedIndexError(f"its {wrong} are not what an index writes")
        return cells


# Of stored arrays; None stands for any number.
_LAYOUT: dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]] = {
    "centroids_top": (("int8",), (None, None, LANES, 4)),
    "centroids_top_start": (("int32",), (None, LANES)),
    "centroids_cells": (("int8",), (None, None, LANES, 4)),
    "centroids_cell_start": (("int32",), (None, LANES)),
    "centroids_ranges": (("int64",), (None,)),
    "centroids_fit": (("float64",), (4,)),
    "numbers": (("int64",), (None,)),
    "offsets": (("int64",), (None,)),
    "documents": (("uint16", "int32"), (None,)),
}


def _is_like(array: np.ndarray, dtypes: Sequence[str], shape: Sequence[int | None]) -> bool:
    """Whether an array has one of these dtypes and this shape, its rows one after the other."""
    same = len(array.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(array.shape, shape, strict=True)
    )
    return same and array.dtype in map(np.dtype, dtypes) and array.flags.c_contiguous


def _relations(cells: Cells) -> Iterator[tuple[str, bool]]:
    """Yield what has to be true, with the name of what is wrong if it is not; each relies on those before it."""
    top, top_start, own, own_start, ranges, fit = cells.centroids
    yield "training statistics", bool(np.isfinite(fit).all())
    width = byte_width(int(fit[3]))
    yield "centroids", 4 * top.shape[1] == 4 * own.shape[1] == width > 0
    yield "centroids", len(top) == len(top_start) and len(own) == len(own_start) and own_start.size < 1 << 31
    yield "ranges of centroids", 2 <= len(ranges) <= top_start.size + 1 and _leads(ranges, len(own))
    yield "ranges of centroids", bool((ranges[1:] > ranges[:-1]).all())  # every group has a cell
    yield "offsets of postings", len(cells.offsets) == own_start.size + 1
    yield "offsets of postings", _leads(cells.offsets, len(cells.documents))
    yield "numbers of documents", bool((cells.numbers[1:] > cells.numbers[:-1]).all())


def _leads(offsets: np.ndarray, end: int) -> bool:
    """Whether offsets begin with 0, never fall and end where they should; neighbours are compared, not subtracted."""
    return bool(offsets[0] == 0 and offsets[-1] == end and (offsets[1:] >= offsets[:-1]).all())


def pack_centroids(centroids: np.ndarray, width: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Arrange centroids in lanes.

    Parameters
    ----------
    centroids
        ``(n, dim)`` float32.
    width
        Bytes per token, at least the dim; the rest is zero.
    scale
        What a code of 1 stands for: common to all centroids that are to be compared.

    Returns
    -------
    tuple of numpy.ndarray
        Lanes ``(n / 16, width / 4, 16, 4)`` int8, and their starting sums ``(n / 16, 16)`` int32, lower than any dot
        product in lanes that hold no centroid.

    Examples
    --------
    >>> lanes, start = pack_centroids(np.array([[1.0, 0.5]]), width=4, scale=0.01)
    >>> lanes[0, 0, 0].tolist(), start[0, :2].tolist() == [-128 * 150, NO_LANE]
    ([100, 50, 0, 0], True)
    """
    rows = -(-len(centroids) // LANES)
    codes = np.zeros((rows * LANES, width), dtype="int8")
    codes[: len(centroids), : centroids.shape[1]] = np.rint(centroids / scale).clip(-127, 127)
    start = -128 * codes.sum(axis=1, dtype="int32")
    start[len(centroids) :] = NO_LANE
    lanes = codes.reshape(rows, LANES, width // 4, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(lanes), start.reshape(rows, LANES)
