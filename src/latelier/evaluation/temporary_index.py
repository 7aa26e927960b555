"""An index in a temporary folder, filled by a model and searched, to measure the model and the index together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.indexes import Index
from latelier.utils.checks import describe

__all__ = ["MakeIndex", "describe_index", "fill_index", "search_index", "temporary_index"]

MakeIndex: TypeAlias = Callable[[Path], Index]

# Texts encoded and stored at once: memory depends on these.
_CHUNK = 2048


@contextmanager
def temporary_index(make: MakeIndex) -> Iterator[Index]:
    """Yield a new index in a temporary folder, which is removed afterwards.

    Parameters
    ----------
    make
        Makes the index in a folder: `Flat`, `IVF`, ``functools.partial(IVF, nbits=4)``, ...

    Raises
    ------
    InvalidArgumentError
        If it is not callable, or returns something else than an index.
    """
    if not callable(make):
        raise InvalidArgumentError(
            f"received {describe(make)} as index; expected what makes one in a folder, such as indexes.IVF or "
            "functools.partial(indexes.IVF, nbits=4)."
        )
    with TemporaryDirectory(prefix="latelier-index-", ignore_cleanup_errors=True) as folder:
        index = make(Path(folder) / "index")
        if not isinstance(index, Index):
            raise InvalidArgumentError(f"index returned {describe(index)}; expected an index.")
        with index:
            yield index


def fill_index(index: Index, documents: Iterable[tuple[str, str]], encode: Callable[[list[str]], Any]) -> None:
    """Encode texts and add them to an index, 2,048 at a time.

    Parameters
    ----------
    index
        The index.
    documents
        Ids and texts.
    encode
        Returns one ``(tokens, dim)`` matrix per text.
    """
    remaining = iter(documents)
    while chunk := list(islice(remaining, _CHUNK)):
        index.add([id_ for id_, _ in chunk], encode([text for _, text in chunk]))


def search_index(
    index: Index,
    queries: Mapping[str, str],
    encode: Callable[[list[str]], Any],
    k: int,
    options: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Return the run of queries.

    Parameters
    ----------
    index
        The index.
    queries
        Query id to text.
    encode
        Returns one ``(tokens, dim)`` matrix per text.
    k
        Documents per query.
    options
        Further arguments of the index's `search`.

    Returns
    -------
    dict
        Query id to document id to score.
    """
    if not queries:
        return {}
    found = index.search(encode(list(queries.values())), k, **options)
    return {query: {str(hit.id): hit.score for hit in hits} for query, hits in zip(queries, found, strict=True)}


def describe_index(make: MakeIndex, options: Mapping[str, Any]) -> dict[str, str | float]:
    """Return what makes an index and the options of its search as JSON values, for reports.

    Parameters
    ----------
    make
        Makes the index.
    options
        Arguments of the index's `search`.

    Examples
    --------
    >>> from latelier.indexes import IVF
    >>> describe_index(partial(IVF, nbits=4), {"effort": "fast"})
    {'index': 'IVF', 'nbits': 4, 'effort': 'fast'}
    """
    settings: dict[str, Any] = dict(options)
    while isinstance(make, partial):
        settings = {**make.keywords, **settings}
        make = make.func
    settings = {"index": getattr(make, "__name__", type(make).__name__), **settings}
    return {key: value if isinstance(value, (int, float, str)) else repr(value) for key, value in settings.items()}
