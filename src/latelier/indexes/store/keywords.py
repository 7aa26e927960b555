"""The keyword index of an index: whether it has one, with which tokenizer, and the errors about it."""

from __future__ import annotations

from typing import Any

from latelier.errors import CorruptedIndexError, InvalidArgumentError, LatelierError
from latelier.indexes.store.integrity import damaged
from latelier.indexes.words import DEFAULT_TOKENIZER, TOKENIZERS
from latelier.utils.checks import check_choice
from latelier.utils.values import plain_str


def check_compaction(keywords: object, tokenizer: object) -> None:
    """Check the arguments of `Index.compact` that are about keywords; see `check_options`."""
    check_options(keywords if tokenizer is None else bool(keywords), tokenizer)


def check_expected(where: str, stored: str | None, keywords: bool | None, tokenizer: str | None) -> None:
    """Raise an error if the keyword index is not what a user expects, who gives one of the last two arguments.

    `stored`: its tokenizer; None if it has no keyword index. `keywords`, `tokenizer`: from `check_options`.
    """
    if (stored is None) != (keywords is False) or tokenizer not in (None, stored):
        raise InvalidArgumentError(
            f"{where} has {f'the tokenizer {stored!r}' if stored else 'no keyword index'}; leave out keywords and "
            "tokenizer, and call compact(keywords=..., tokenizer=...) to change it."
        )


def check_options(keywords: object, tokenizer: object) -> str | None:
    """Return the tokenizer of a new index; None for one without a keyword index.

    `keywords`: False for none. `tokenizer`: a name of `TOKENIZERS`; None for the default.
    """
    check_choice("tokenizer", tokenizer, TOKENIZERS, optional=True)
    if tokenizer is not None and keywords is False:
        raise InvalidArgumentError("received a tokenizer without a keyword index; give keywords=True, or omit it.")
    if keywords is False:
        return None
    if isinstance(tokenizer, str):
        return plain_str(tokenizer)
    return DEFAULT_TOKENIZER


def checked_tokenizer(stored: Any) -> str | None:
    """Return the tokenizer that is stored in an index; None if it has no keyword index."""
    if stored is None or stored in TOKENIZERS:
        return stored
    raise damaged(f"its tokenizer is {stored!r:.60}")


def without_keywords() -> LatelierError:
    """Return the error for a search by keywords in an index that has no keyword index."""
    return LatelierError(
        "this index has no keyword index of its texts: compact(keywords=True) makes one, or search with mode='vectors'."
    )


def without_texts() -> LatelierError:
    """Return the error for a search by keywords in an index of documents without texts."""
    return LatelierError(
        "no document of this index has a text, so keywords cannot find any; add documents with texts=, or search with "
        "mode='vectors'."
    )


def keyword_damage(reason: str) -> CorruptedIndexError:
    """Return the error for a damaged keyword index."""
    return CorruptedIndexError(
        f"the keyword index is damaged: {reason}. No document is affected: compact(keywords=True) makes it again, "
        "and a search with mode='vectors' does not need it."
    )
