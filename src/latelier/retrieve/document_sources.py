"""`read_documents`: the documents of a file or of a folder, for `Retriever.add`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError
from latelier.retrieve.document_fields import as_fields
from latelier.retrieve.document_files import DocumentFormat, check_format, read_document_file
from latelier.retrieve.whole_files import DocumentFolder
from latelier.utils.files import as_path, is_folder

if TYPE_CHECKING:
    from latelier.retrieve.documents import InputDocument

__all__ = ["read_documents"]


def read_documents(
    path: str | os.PathLike[str],
    *,
    format: DocumentFormat = "auto",
    id: str | None = None,
    text: str | Sequence[str] | None = None,
    title: str | None = None,
    metadata: str | Sequence[str] | None = None,
    glob: str | Sequence[str] = (),
) -> Iterable[InputDocument]:
    r"""Return the documents of a file or a folder, which are read one by one while the result is iterated.

    Parameters
    ----------
    path
        A file: JSONL, CSV (tabs in ``.tsv``), Parquet, text or Markdown; ``.gz`` is decompressed, except for Parquet.
        Or a folder: each of its text and Markdown files is one document, see `DocumentFolder`.
    format
        ``"jsonl"``: a record per line, with ``text``, optionally ``id`` and ``title``, and metadata under any other
        key. ``"csv"``, ``"parquet"``: columns of these names. ``"txt"``: a text per line. ``"whole"``: the file is one
        text, its name the id. ``"auto"``: by the file's extension, where ``.md`` is ``"whole"``; if that is unknown,
        by the first line.
    id, text, title, metadata
        Names of the fields of JSONL, CSV and Parquet files to take instead: of the id, of the text (several are joined
        by line ends), of the title, and of the metadata. Without `metadata`, all other fields are metadata.
    glob
        Patterns of the files of a folder, such as ``"*.rst"``; default: text and Markdown files.

    Returns
    -------
    iterable of InputDocument
        For `Retriever.add` and `Retriever.update`; of a file, it can be iterated once.

    Raises
    ------
    InvalidArgumentError
        If there is no such file or folder, or an option does not fit it; while reading, at a faulty line or row.
    MissingExtraError
        For a Parquet file, if pyarrow is not installed.
    StorageError
        If a file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("films.csv").write_text("no,plot,year\n7,A shark bites.,1975\n")
    >>> [film] = read_documents("films.csv", id="no", text="plot")
    >>> film.id, film.text, film.metadata
    ('7', 'A shark bites.', {'year': 1975})
    """
    source, fields = as_path(path), as_fields(id, text, title, metadata)
    check_format(format)
    if not is_folder(source):
        if glob:
            raise InvalidArgumentError(f"received glob for {str(source)!r}, which is not a folder; name the file only.")
        return read_document_file(os.fspath(path), format, fields=fields)
    received: list[tuple[str, Any]] = [("names of fields", fields.are_named)]
    received.append((f"format={format!r}", format not in ("auto", "whole")))
    for name, is_given in received:
        if is_given:
            raise InvalidArgumentError(
                f"received {name} for the folder {str(source)!r}, of which each file is one text; give files of "
                "records one by one."
            )
    return DocumentFolder(source, glob)
