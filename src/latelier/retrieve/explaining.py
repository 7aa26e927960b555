"""From the vectors and the tokens of a query and a document to an `Explanation`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id, Index
from latelier.indexes.values import as_ids
from latelier.retrieve.explanation import Explanation, TokenMatch, Word
from latelier.retrieve.model import QueryModel, checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.scores.topk import Alignment, align
from latelier.utils.checks import describe


def explain_documents(model: QueryModel, index: Index, query: str, ids: Sequence[Id]) -> list[Explanation]:
    """Explain the scores of some documents for one query, which is encoded once; see `Retriever.explain`.

    Of a document that is stored as passages, the best passage is explained.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} to explain; expected one query, a text.")
    wanted, vectors = as_ids(ids), model.encode_queries(checked_queries(query))[0]
    asked = TokenizedText.of(model, query, is_query=True)
    with index.snapshot():
        stored = StoredDocuments(index)
        parts = [best_part(stored, vectors, id) for id in wanted]
        documents, records = index.get_embeddings(parts), index.get(parts)
    explanations = []
    for id, document, record in zip(wanted, documents, records, strict=True):
        if record.text is None:
            raise LatelierError(f"document {id!r} was stored without its text, so its tokens are unknown.")
        found = TokenizedText.of(model, record.text, is_query=False)
        if len(found.tokens) != len(document):
            raise LatelierError(
                f"document {id!r} has {len(document)} rows, but its text has {len(found.tokens)} tokens for this "
                "model; documents with pooled tokens cannot be explained."
            )
        explanations.append(
            explain_alignment(id, align(vectors, document), asked, found, model.special_tokens, model.join)
        )
    return explanations


def best_part(stored: StoredDocuments, query: Any, id: Id) -> Id:
    """Return the id under which a document is stored, or its best passage for the vectors of a query.

    An id that is not in the index is returned as it is.
    """
    parts = stored.parts(id)
    if len(parts) <= 1:
        return parts[0] if parts else id
    scores = [float(align(query, document).similarities.sum()) for document in stored.index.get_embeddings(parts)]
    return parts[int(np.argmax(scores))]


class TokenizedText(NamedTuple):
    """A text, its tokens that have a vector, and the characters that each stands for; None: for no character."""

    text: str
    tokens: Sequence[str]
    ranges: Sequence[tuple[int, int] | None]

    @classmethod
    def of(cls, model: QueryModel, text: str, *, is_query: bool) -> TokenizedText:
        """Tokenize a text as the model encodes it."""
        return cls(text, model.tokens(text, is_query=is_query), model.token_ranges(text, is_query=is_query))


def explain_alignment(
    id: Id,
    alignment: Alignment,
    query: TokenizedText,
    document: TokenizedText,
    special: Collection[str],
    join: Callable[[list[str]], str],
) -> Explanation:
    """Build the explanation of an alignment; `special` and `join` are those of the tokenizer."""
    matches = tuple(
        TokenMatch(token, document.tokens[position], int(position), float(similarity))
        for token, position, similarity in zip(query.tokens, alignment.positions, alignment.similarities, strict=True)
    )
    marks_begin = any(token.startswith(_BEGINS) for text in (query, document) for token in text.tokens)
    return Explanation(
        id,
        query.text,
        document.text,
        matches,
        tuple(document.tokens),
        tuple(query.ranges),
        tuple(document.ranges),
        alignment.matrix,
        group_words(query, special, marks_begin, join),
        group_words(document, special, marks_begin, join),
        frozenset(special),
    )


# GPT's and SentencePiece's tokenizers mark the first token of a word, BERT's mark the others.
_BEGINS = ("Ġ", "▁")
# Letters of scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Their
# tokens are shown one by one, as a sentence of them would be one word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def group_words(
    text: TokenizedText, special: Collection[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[Word, ...]:
    """Join the tokens of a text into words; each special token is one.

    `marks_begin`: whether the tokenizer marks the first token of a word rather than all others.
    """
    groups: list[list[int]] = []
    for position, token in enumerate(text.tokens):
        continues = not token.startswith(_BEGINS) if marks_begin else token.startswith("##")
        follows_word = bool(groups) and token not in special and text.tokens[position - 1] not in special
        if continues and follows_word and not _is_unspaced(text, position):
            groups[-1].append(position)
        else:
            groups.append([position])
    words = []
    for group in groups:
        tokens = [text.tokens[i] for i in group]
        ranges = [each for each in (text.ranges[i] for i in group) if each is not None]
        name = tokens[0] if tokens[0] in special else join(tokens).strip().removeprefix("##")
        words.append(Word(name, tuple(group), (ranges[0][0], ranges[-1][1]) if ranges else None))
    return tuple(words)


def _is_unspaced(text: TokenizedText, position: int) -> bool:
    """Whether a token and the one before it are separate characters of a script without spaces."""
    before, here = text.ranges[position - 1], text.ranges[position]
    if before is None or here is None or here[0] < before[1]:  # bytes of one character overlap
        return False
    return any(_UNSPACED.match(text.text[start:end]) for start, end in (before, here))
