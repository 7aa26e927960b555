"""Folders that are searched without an index of their own: theirs are in the user's cache; and the command remove.

Each folder has one place there, by its path. What the cache holds can be made again, so it is removed as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from latelier import indexes
from latelier.cli.index import (
    check_has_files,
    export_encoder,
    learn_weak,
    make_compact,
    searchable,
    synchronise,
    tell_languages,
    writing_retriever,
)
from latelier.cli.locations import QdrantLocation, discarded_if_unused, open_index, parse_location
from latelier.cli.options import JsonOption, OptionalIndexArgument, QueryBackend, document_id
from latelier.cli.output import print_json, printable, quiet_loading
from latelier.errors import CorruptedIndexError, IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes.store.integrity import is_segment_name
from latelier.reading.folders import DocumentFolder, read_documents
from latelier.utils.checks import format_bytes, short
from latelier.utils.files import CATALOG, SEGMENTS, cache_folder, is_folder

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

_NAMED = 40  # characters of a folder's name in that of its index
_NO_NAME = re.compile(r"[^\w.-]+")


class CachedIndex(NamedTuple):
    """The index of a folder in the cache: the folder, where it is, and how large it is."""

    folder: str
    place: str
    documents: int
    bytes: int


def files_folder(location: str) -> Path | None:
    """Return the folder of files that a text names; None for an index, and for what is none of both."""
    place = parse_location(location)
    if isinstance(place, QdrantLocation) or not is_folder(place):
        return None
    try:
        names = {path.name for path in place.iterdir()}
    except OSError:  # opening it tells why
        return None
    is_catalog = any(name.startswith(CATALOG) for name in names)
    is_without_catalog = any(is_segment_name(path.name) for path in (place / SEGMENTS).glob("*"))
    if is_catalog or is_without_catalog or {"meta.json", "collection"} <= names:  # the last: Qdrant's local mode
        return None
    return place


def place_of(folder: Path) -> Path:
    """Return where the index of a folder is in the cache: one place for each path, whatever leads there."""
    resolved = folder.resolve()
    digest = hashlib.blake2b(os.fsencode(resolved), digest_size=6).hexdigest()
    name = _NO_NAME.sub("-", resolved.name)[:_NAMED].strip("-.")
    return _cache() / f"{name or 'folder'}-{digest}"


def own_index(location: str) -> str:
    """Return where the index of a folder of files is in the cache, if it has one there; else the place as it is."""
    folder = files_folder(location)
    if folder is not None and (place_of(folder) / CATALOG).is_file():
        return str(place_of(folder))
    return location


def _cache() -> Path:
    return cache_folder() / "indexes"


def cached_indexes() -> list[CachedIndex]:
    """Return the indexes in the cache, by the names of their folders."""
    found = []
    with suppress(OSError):
        for place in sorted(_cache().iterdir()):
            if (place / CATALOG).is_file():
                found.append(_described(place))
    return found


def _described(place: Path) -> CachedIndex:
    size = sum(each.stat().st_size for each in place.rglob("*") if each.is_file())
    try:
        with indexes.open(place, read_only=True) as index:
            roots = [json.loads(source.root) for source in index.origins.sources()]
            return CachedIndex(roots[0] if roots else "", str(place), len(index), size)
    except LatelierError:  # damaged, or of another version
        return CachedIndex("", str(place), 0, size)


@contextmanager
def open_current(
    folder: Path,
    chosen: Path | None,
    *,
    model: str | None,
    device: str | None,
    backend: QueryBackend,
    trust_remote_code: bool,
    max_memory: str | None,
    load_model: bool,
) -> Iterator[Retriever]:
    """Bring the index of a folder up to date, in the cache or at a chosen place, and open it for searching."""
    from latelier.retrieve import Retriever
    from latelier.retrieve.query_model import find_index

    quiet_loading()
    target = chosen or place_of(folder)
    documents = read_documents(folder)
    check_has_files(documents)
    loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}

    def open_or_make() -> Retriever:
        try:
            index = find_index(target, max_memory=max_memory)
        except (CorruptedIndexError, IndexFormatError) as error:
            if chosen is not None:
                raise
            again = f"latelier remove --cache {folder} deletes it, and the next search makes it again."
            raise type(error)(f"the index in your cache {target} cannot be opened: {error.fact} {again}") from error
        if index is not None and index.dim is not None:
            _check_source(index, folder, target)
            return Retriever.open(index, model=model, backend=backend, load_model=load_model, **loading)
        _say_new(folder, documents, target)
        make = partial(make_compact, target, None, False, None, max_memory=max_memory)
        computing = {} if backend == "auto" else {"backend": backend}
        return writing_retriever(index, make, model, device=device, options=computing, trusts_code=trust_remote_code)

    with discarded_if_unused(target, open_or_make) as retriever:
        is_new = retriever.index.dim is None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"(?s).*, as before$")
            report = synchronise(retriever, documents, show_progress=True)
        if is_new and not len(retriever):
            raise InvalidArgumentError(f"nothing to search in {folder}: its files hold no text.")
        if is_new:
            export_encoder(retriever)
        if report.new or report.changed:
            tell_languages(retriever)
            learn_weak(retriever)
        if report.new or report.changed or report.renamed or report.removed:
            size = format_bytes(retriever.index.statistics().bytes or 0)
            held = f"{len(retriever):,} documents ({report}), {searchable(retriever)}; {size}"
            typer.echo(f"{printable(str(folder))}: {held} in {printable(str(target))}", err=True)
        yield retriever


def _say_new(folder: Path, documents: Any, target: Path) -> None:
    files = f"{len(documents):,} files" if isinstance(documents, DocumentFolder) else "files"
    typer.echo(
        f"{printable(str(folder))} is a folder without an index: indexing its {files} in {printable(str(target))}. The "
        "next search reads only what has changed. latelier info lists such indexes, latelier remove --cache deletes "
        "them.",
        err=True,
    )


def _check_source(index: indexes.Index, folder: Path, target: Path) -> None:
    """Check that an index was filled from a folder: that of another one gets no files of this one by a search."""
    from latelier.retrieve.synchronisation import find_source

    if find_source(index.origins.sources(), folder) is None:
        index.close()
        raise InvalidArgumentError(
            f"the index in {target} was not filled from the folder {str(folder)!r}. Search it by its own path; or "
            f"add the folder to it with latelier index {folder} {target}, or name another one with --index."
        )


def remove(
    index: OptionalIndexArgument = None,
    documents: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of documents.")] = None,
    *,
    prefix: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ids that begin with it, such as a folder; repeatable.")
    ] = None,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="Delete the indexes of folders in your cache: of the folder INDEX, or all."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Remove documents from an index, all or none; or indexes of folders from the cache.

    \b
    Example:
      latelier remove ./notes-index drafts/pears.md
      latelier remove ./notes-index --prefix drafts/
      latelier remove --cache
    """  # noqa: D301 (\b keeps the lines of a block apart)
    if cache:
        if documents or prefix:
            raise typer.BadParameter("it deletes whole indexes; leave the ids out.", param_hint="--cache")
        _remove_cached(index, as_json=json_output)
        return
    if index is None:
        raise typer.BadParameter("missing: name an index, or give --cache.", param_hint="INDEX")
    if not documents and not prefix:
        raise typer.BadParameter("missing: name documents, or give --prefix.", param_hint="ID")
    with open_index(index, read_only=False) as opened:
        ids = [document_id(opened, text) for text in documents or ()]
        ids += [id for id in opened.ids() if prefix and str(id).startswith(tuple(prefix)) and id not in ids]
        opened.remove(ids)
        counts = {"index": index, "removed": len(ids), "documents": len(opened)}
    if json_output:
        print_json(counts)
    else:
        typer.echo(f"{printable(index)}: {len(ids):,} removed, {counts['documents']:,} left.")


def _remove_cached(folder: str | None, *, as_json: bool) -> None:
    """Delete the indexes in the cache, or only that of a folder; what holds no index there stays."""
    found = cached_indexes()
    if folder is not None:
        place = str(place_of(Path(folder)))
        found = [each for each in found if each.place == place]
        if not found:
            raise InvalidArgumentError(f"the cache {_cache()} has no index of the folder {short(folder)}.")
    for each in found:
        shutil.rmtree(each.place)
    if as_json:
        print_json({"removed": [each._asdict() for each in found]})
        return
    for each in found:
        typer.echo(f"{printable(each.folder or each.place)}: {format_bytes(each.bytes)} deleted.")
    if not found:
        typer.echo(f"There is no index in {printable(str(_cache()))}.", err=True)
