"""Arguments: the recipe, the names that other libraries have, texts in lists, lists of lists and streams.

The recipe adds markers that tell queries from documents, query expansion with [MASK] tokens, and a skiplist of
punctuation. Without training they only harm: they lowered nDCG@10 of all-MiniLM-L6-v2 on SciFact from 0.72 to 0.65, and
to 0.59 with attention to the expansion. So `UNTRAINED` has none of them.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_choice, check_count, check_unicode, describe, short

# Maximum numbers of tokens, markers and special tokens included, unless a checkpoint or the user says otherwise.
DEFAULT_QUERY_LENGTH = 32
DEFAULT_DOCUMENT_LENGTH = 350
_PROJECTIONS = ("learned", "orthogonal", "pca")


@dataclass(frozen=True)
class Recipe:
    """The ColBERT recipe; the defaults are those of the paper and of PyLate.

    Parameters
    ----------
    query_marker, document_marker
        Texts put before every query and document, each one token of its own; ``""`` for none.
    query_expansion
        Expand every query to its length cap with [MASK] tokens, which are scored too. ``"min"``: to 32 tokens, and read
        longer queries whole, up to their length cap, which is then the encoder's own by default.
    attend_to_expansion
        Let the encoder attend to those tokens.
    skiplist
        Document tokens that are not scored (the encoder still reads them).
    projection
        ``"learned"``: a linear head to train, orthogonal at first; ``"orthogonal"``: the same head, used without
        training; ``"pca"``: a head fitted on texts (`ColBERT.fit_projection`); None: no head, the encoder's dimension.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> recipe = Recipe(query_expansion=False, skiplist=(".",))
    >>> model = ColBERT("all-MiniLM-L6-v2", device="cpu", recipe=recipe)
    >>> model.tokens("a pear, a fig.")
    ['[CLS]', '[Q] ', 'a', 'pear', ',', 'a', 'fig', '.', '[SEP]']
    >>> model.tokens("a pear, a fig.", is_query=False)[-3:]
    ['a', 'fig', '[SEP]']
    """

    query_marker: str = "[Q] "
    document_marker: str = "[D] "
    query_expansion: bool | Literal["min"] = True
    attend_to_expansion: bool = False
    skiplist: tuple[str, ...] = tuple(string.punctuation)
    projection: Literal["learned", "orthogonal", "pca"] | None = "learned"

    def __post_init__(self) -> None:
        if isinstance(self.skiplist, str):
            raise InvalidArgumentError(f"received skiplist={short(self.skiplist)}; expected a tuple of str.")
        object.__setattr__(self, "skiplist", tuple(self.skiplist))  # an iterator is read once, a list could be changed
        if not isinstance(self.query_expansion, bool):
            check_choice("query_expansion", self.query_expansion, ["min"])
        check_choice("projection", self.projection, _PROJECTIONS, optional=True)


UNTRAINED = Recipe(query_marker="", document_marker="", query_expansion=False, skiplist=(), projection=None)
"""The recipe of `ColBERT.from_dense`: the token vectors of the encoder as they are."""


def untrained_recipe(projection: Any, size: int | None) -> Recipe:
    """Return `UNTRAINED` with a projection; `size`: the dimensions after it that were asked for, or None."""
    check_choice("projection", projection, ["orthogonal", "pca"], optional=True)
    if projection is None and size is not None:
        raise InvalidArgumentError(f"received embedding_size={short(size)} without a projection='orthogonal' or 'pca'.")
    return replace(UNTRAINED, projection=projection)


# Arguments of other libraries, or of other methods, and what to give here instead.
_INSTEAD = {
    "attend_to_expansion_tokens": "give recipe=Recipe(attend_to_expansion=...).",
    "bias": "heads are linear maps without one.",
    "do_query_expansion": "give recipe=Recipe(query_expansion=...).",
    "document_length": "give max_length_document=...",
    "document_prefix": "give recipe=Recipe(document_marker=...).",
    "is_query": 'say task="query" or task="document".',
    "pad": "features are padded to the longest text, and model(texts=...) pads to the length cap.",
    "padding": "encode(..., packed=True).pad() gives padded vectors and their mask.",
    "query_length": "give max_length_query=...",
    "query_mode": 'say task="query" or task="document".',
    "query_prefix": "give recipe=Recipe(query_marker=...).",
    "skiplist_words": "give recipe=Recipe(skiplist=...).",
    "tokenizer_kwargs": "give processor_kwargs=...",
    "use_auth_token": "give token=...",
}


def one_name(spellings: Mapping[str, Any], what: str) -> Any:
    """Return the value of an argument that has several names and must be given under exactly one; None: not given."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) != 1:
        raise InvalidArgumentError(f"received {' and '.join(given) or 'no'} {what}; give {' or '.join(spellings)}.")
    return next(iter(given.values()))


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's or a class's parameters."""
    return set(inspect.signature(function).parameters)


def check(method: str, given: Iterable[str], known: Iterable[str], function: Callable[..., Any] | None = None) -> None:
    """Raise an error for names in a method's ``**kwargs`` that it does not have.

    `function`: the method itself, so that the message suggests names from its signature too.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        accepted = (known if function is None else known | parameters_of(function)) - {"kwargs"}
        if elsewhere := get_close_matches(name, _INSTEAD, 1, cutoff=0.9):
            hint = _INSTEAD[elsewhere[0]]
        elif close := get_close_matches(name, accepted, 1):
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = f"it takes {', '.join(sorted(accepted))}."
        raise InvalidArgumentError(f"{method} has no argument {name!r}; {hint}")


def resolve_task(query_mode: bool | None, is_query: bool | None, task: str | None, default: Any = "query") -> Any:
    """Return ``"query"`` or ``"document"`` from its three spellings, or a default if none is given."""
    check_choice("task", task, ["query", "document"], optional=True)
    spelled = {flag for flag in (query_mode, is_query, None if task is None else task == "query") if flag is not None}
    if len(spelled) > 1:
        raise InvalidArgumentError(
            f"query_mode={query_mode}, is_query={is_query}, task={task!r} contradict each other."
        )
    if not spelled:
        return default
    if spelled.pop():
        return "query"
    return "document"


def resolve_truncation(truncate_dim: Any, default: int | None, embedding_size: int) -> int | None:
    """Return how many of the first numbers of each vector to keep, None for all."""
    if truncate_dim is None:
        return default
    return check_count("truncate_dim", truncate_dim, most=embedding_size)


class Inputs(NamedTuple):
    """Inputs in one flat list.

    `group_sizes`: number of inputs in each group (the candidates of a query); None if there were no groups. `single`:
    whether one input was given rather than a list.
    """

    rows: list[Any]
    group_sizes: list[int] | None
    single: bool

    def regroup(self, encoded: Any) -> Any:
        """Split the encoded inputs, a list or `TokenEmbeddings`, into the groups that were given."""
        if self.group_sizes is None:
            return encoded
        ends = list(accumulate(self.group_sizes))
        return [encoded[end - size : end] for size, end in zip(self.group_sizes, ends, strict=True)]


def read_inputs(given: Any, is_single: Callable[[Any], bool]) -> Inputs:
    """Return the inputs of `ColBERT.encode` as a flat list.

    A list of lists holds groups, as in PyLate. Two texts that the encoder reads as one input are a tuple, as in
    sentence-transformers. `is_single` tells one input from a list.
    """
    if isinstance(given, Iterator):
        raise InvalidArgumentError("received a generator; encode takes a list, encode_stream reads generators.")
    single = is_single(given)
    rows = [given] if single else list(given)
    grouped = [is_group(row) for row in rows]
    if not any(grouped):
        check_texts(rows)
        return Inputs(rows, None, single)
    if not all(grouped):
        group = grouped.index(True)
        text = grouped.index(False)
        raise InvalidArgumentError(f"texts[{group}] is a list and texts[{text}] is none; give texts or lists of texts.")
    for i, row in enumerate(rows):
        check_texts(row, f"texts[{i}]")
    return Inputs([text for row in rows for text in row], [len(row) for row in rows], single)


def is_group(row: object) -> bool:
    """Whether a row is a list of texts; a list of messages is a conversation, which is one input."""
    return isinstance(row, list) and not (row and isinstance(row[0], Mapping))


def are_texts(rows: Iterable[Any]) -> bool:
    """Whether all inputs are plain texts, as our encoding loop requires."""
    return all(isinstance(row, str) for row in rows)


def check_texts(rows: Iterable[Any], name: str = "texts") -> None:
    """Raise an error, with the position, for a row that cannot be an input of any kind or is not valid Unicode."""
    for i, row in enumerate(rows):
        if row is None or isinstance(row, (int, float, bytes)):
            raise InvalidArgumentError(f"{name}[{i}] is {describe(row)}; expected str.")
        if isinstance(row, str):
            check_unicode(row, f"{name}[{i}]")


def checked_stream(texts: Any) -> Iterator[str]:
    """Return an iterator over texts; the first row that is not a text raises an error that names its position."""
    if isinstance(texts, (str, bytes)):
        raise InvalidArgumentError(f"received {describe(texts)} as texts; expected a list or a generator of str.")

    def check() -> Iterator[str]:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"texts[{i}] is {describe(text)}; expected str.")
            check_unicode(text, f"texts[{i}]")
            yield text

    return check()


def check_text_pairs(queries: Sequence[str], documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return queries and documents as lists of equal length."""
    left, right = ([texts] if isinstance(texts, str) else list(texts) for texts in (queries, documents))
    if len(left) != len(right):
        raise InvalidArgumentError(f"received {len(left)} queries and {len(right)} documents; expected pairs.")
    return left, right
