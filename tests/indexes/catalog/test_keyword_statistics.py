"""BM25 of a part of a collection, with the statistics of the whole collection, beside FTS5's of all documents."""

import numpy as np
import pytest

from latelier import indexes
from latelier.errors import CorruptedIndexError
from latelier.indexes.results import Ranking
from latelier.indexes.store.keywords import KeywordStatistics, read_length

# "common" is in almost all documents, which gives it the least idf; "rare" in few of them.
WORDS = ["common"] * 6 + ["wing", "shock", "layer", "rare"]
QUERIES = ["common", "rare wing", "wing common rare absent", "layer shock layer", "ommo ayer", "!?"]


def texts(count):
    """Return texts of one word up to 400 words, whose lengths take one or two bytes."""
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(WORDS, size=int(rng.choice([1, 5, 90, 400])))) for _ in range(count)]


def filled(tokenizer, numbers):
    index, all_texts = indexes.Flat(tokenizer=tokenizer), texts(60)
    index.add(numbers, [np.ones((1, 2))] * len(numbers), [all_texts[number] for number in numbers])
    return index.storage


@pytest.mark.parametrize("tokenizer", ["porter", "unicode61", "trigram"])
@pytest.mark.parametrize("k", [3, 100])
def test_parts_of_a_collection_score_as_the_collection(tokenizer, k):
    whole = filled(tokenizer, list(range(60)))
    halves = [list(range(0, 60, 2)), list(range(1, 60, 2))]
    parts = [filled(tokenizer, numbers) for numbers in halves]
    total = KeywordStatistics.total(part.keyword_statistics(QUERIES) for part in parts)
    assert total == whole.keyword_statistics(QUERIES)
    for text, expected in zip(QUERIES, whole.rank_by_keywords(QUERIES, k, None), strict=True):
        found = [part.rank_by_keywords([text], k, None, total)[0] for part in parts]
        # The documents of a half are numbered 0, 1, 2, ... there.
        numbers = [np.array(own, "int64")[each.numbers] for own, each in zip(halves, found, strict=True)]
        merged = Ranking.sorted(np.concatenate(numbers), np.concatenate([each.scores for each in found]), k)
        np.testing.assert_array_equal(merged.numbers, expected.numbers)
        np.testing.assert_array_equal(merged.scores, expected.scores)


def test_a_length_that_fts5_does_not_write_is_damage():
    assert [read_length(bytes(size)) for size in ([0], [127], [0x81, 0x00], [0xFF] * 9)] == [0, 127, 128, 2**64 - 1]
    for damaged in ("7", b"", b"\x81", None):
        with pytest.raises(CorruptedIndexError, match="the keyword index is damaged"):
            read_length(damaged)
