"""How explanations are made: the texts are encoded again, aligned with the stored vectors, and grouped into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import LatelierError
from latelier.indexes import Hit, Id, Index, Record
from latelier.reading.images import check_size
from latelier.retrieve.documents import passage_at
from latelier.retrieve.drawing import PageMap
from latelier.retrieve.explanation import Explanation, TokenMatch, Word
from latelier.retrieve.queries import Query
from latelier.retrieve.query_model import QueryModel
from latelier.scores.maxsim import Alignment, align
from latelier.utils.checks import is_count
from latelier.utils.values import as_ids


def explain_documents(
    model: QueryModel,
    index: Index,
    query: Query,
    ids: Sequence[Id],
    *,
    starts: Sequence[int | None] | None = None,
) -> list[Explanation]:
    """Explain documents for one query; of passages, the one that begins where `starts` says, or else the best."""
    model = model.reading(query.text, whole=query.is_whole)
    wanted = as_ids(ids)
    vectors = query.vectors
    asked = TokenizedText.of(model, query.text, is_query=True)
    with index.snapshot():
        records = index.get(wanted)
        if starts is None:
            starts = [None] * len(wanted)
        hits = [_passage(index, vectors, record, start) for record, start in zip(records, starts, strict=True)]
        documents = index.get_embeddings(wanted, [(hit.start, hit.end) for hit in hits])
    explanations = []
    for id, hit, document, record in zip(wanted, hits, documents, records, strict=True):
        if is_picture(record.metadata):
            explanations.append(
                _explain_page(model, id, record.text or "", record.metadata, asked, align(vectors, document))
            )
            continue
        if record.text is None:
            raise LatelierError(f"document {id!r} was stored without its text, so its tokens are unknown.")
        passage = passage_at(record, hit.start, hit.end)
        text = record.text if passage is None else passage.text_in(record.text)
        found = TokenizedText.of(model, text, is_query=False)
        if len(found.tokens) != len(document):
            raise LatelierError(
                f"document {id!r} has {len(document)} rows, but its text has {len(found.tokens)} tokens for this "
                "model; documents with pooled tokens cannot be explained."
            )
        explanation = explain_alignment(
            id, align(vectors, document), asked, found, model.queries.special_tokens, model.queries.join
        )
        explanations.append(replace(explanation, start=hit.start, end=hit.end))
    return explanations


def _explain_page(
    model: QueryModel, id: Id, caption: str, metadata: Mapping[str, Any], query: TokenizedText, alignment: Alignment
) -> Explanation:
    """Explain the score of a document that was encoded as a picture; each of its vectors is a word of its own."""
    names, page = _page_tokens(model, metadata, alignment.matrix.shape[1])
    document = TokenizedText(caption, names, [None] * len(names))
    explanation = explain_alignment(id, alignment, query, document, model.queries.special_tokens, model.queries.join)
    words = tuple(Word(name, (i,), None) for i, name in enumerate(names))
    return replace(explanation, document_words=words, page=page)


def _passage(index: Index, query: Any, record: Record, start: int | None) -> Hit:
    """Return the passage of a document that begins at a character, or else its best one."""
    for passage in record.passages:
        if passage.start == start:
            return Hit(record.id, 0.0, passage.start, passage.end)
    return best_passage(index, query, record)


def best_passage(index: Index, query: Any, record: Record) -> Hit:
    """Return a document as a hit for the vectors of a query: with the range of its best passage."""
    scores = [float(align(query, document).similarities.sum()) for document in index.get_embeddings([record.id])]
    best = int(np.argmax(scores))
    if not record.passages:
        return Hit(record.id, scores[best])
    start, end = record.passages[best][:2]
    return Hit(record.id, scores[best], start, end)


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


def word_begins(tokens: Iterable[str]) -> list[str]:
    """Return those tokens that words begin with, without the sign for it."""
    tokens = list(tokens)
    if any(token.startswith(_BEGINS) for token in tokens):
        return [token[1:] for token in tokens if token.startswith(_BEGINS)]
    return [token for token in tokens if not token.startswith("##")]


# Letters of scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Their
# tokens are shown one by one, as a sentence of them would be one word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def group_words(
    text: TokenizedText, special: Collection[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[Word, ...]:
    """Join tokens into words; `marks_begin`: the tokenizer marks the first token of a word, not all others."""
    groups: list[list[int]] = []
    for position, token in enumerate(text.tokens):
        if marks_begin:
            continues = not token.startswith(_BEGINS)
        else:
            continues = token.startswith("##")
        follows_word = bool(groups) and token not in special and text.tokens[position - 1] not in special
        if continues and follows_word and not _is_unspaced(text, position):
            groups[-1].append(position)
        else:
            groups.append([position])
    words = []
    for group in groups:
        tokens = [text.tokens[i] for i in group]
        ranges = [each for each in (text.ranges[i] for i in group) if each is not None]
        if tokens[0] in special:
            name = tokens[0]
        else:
            name = join(tokens).strip().removeprefix("##") or "␣"
        words.append(Word(name, tuple(group), (ranges[0][0], ranges[-1][1]) if ranges else None))
    return tuple(words)


def _is_unspaced(text: TokenizedText, position: int) -> bool:
    """Whether a token and the one before it are separate characters of a script without spaces."""
    before = text.ranges[position - 1]
    here = text.ranges[position]
    if before is None or here is None or here[0] < before[1]:  # bytes of one character overlap
        return False
    return any(_UNSPACED.match(text.text[start:end]) for start, end in (before, here))


def is_picture(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a document was encoded as a picture, by the metadata that `Retriever.add` gives it."""
    sizes = [(metadata or {}).get(name) for name in ("width", "height")]
    return all(is_count(size) for size in sizes) and isinstance((metadata or {}).get("checksum"), str)


def _page_tokens(model: QueryModel, metadata: Mapping[str, Any], count: int) -> tuple[list[str], PageMap]:
    """Return the names of the `count` vectors of a page, and where they lie on it."""
    width = metadata["width"]
    height = metadata["height"]
    tokens = [f"vector {i}" for i in range(count)]
    patches = None
    reason = ""
    try:
        check_size(width, height)  # an index may come from anybody
        found = model.model.picture_tokens(width, height)
        reason = found.reason
        if len(found.tokens) == count:
            tokens = [_vector_name(model, token) for token in found.tokens]
            patches = found.patches
        else:
            reason = f"it has {count:,} vectors, and {len(found.tokens):,} before they were pooled"
    except LatelierError as error:  # the model pools pictures itself, or the size is no picture's
        reason = str(error)
    for (row, column), place in np.ndenumerate(patches) if patches is not None else ():
        tokens[place] = f"patch {row + 1}, {column + 1}"
    return tokens, PageMap(metadata, patches, reason)


def _vector_name(model: QueryModel, token: str) -> str:
    """Return the name of a token: one of the prompt that stands around each picture, unless it is a patch."""
    if token in model.queries.special_tokens:
        return token
    return f"prompt: {model.queries.join([token]).strip() or '␣'}"
