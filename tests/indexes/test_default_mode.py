"""The mode of a search that names none, on every index: hybrid for texts where texts are stored, else vectors."""

import pytest
from index_helpers import matrices

from latelier import indexes
from latelier.errors import InvalidArgumentError, LatelierError

QUERY = matrices([3], seed=5)[0]
TEXT = "shock wave"
TEXTS = ["a wing", "shock", None, "a shock wave", "drag"]


@pytest.fixture
def filled(index):
    index.add(list(range(5)), matrices([2, 1, 3, 2, 4]), TEXTS)
    return index


def found(index, texts=TEXT, **options):
    return index.search([QUERY], 4, texts=texts, **options)


def test_a_text_is_searched_by_words_too(filled):
    assert filled.has_words
    assert found(filled) == found(filled, mode="hybrid") != found(filled, mode="vectors")
    assert found(filled, mode=None) == found(filled, mode="hybrid")
    assert found(filled, fusion="rrf") == found(filled, mode="hybrid", fusion="rrf")
    assert found(filled, texts=None) == found(filled, mode="vectors")
    assert found(filled, min_mean_score=0.1) == found(filled, mode="hybrid", min_mean_score=0.1)


def test_documents_without_texts_are_searched_by_vectors(index):
    index.add(list(range(5)), matrices([2, 1, 3, 2, 4]))
    assert not index.has_words
    assert found(index) == found(index, mode="vectors")
    assert found(index, min_score=-99) == found(index, mode="vectors")
    for asked in ({"weights": (0.5, 0.5)}, {"depth": 3}, {"fusion": "relative"}):  # these are of words
        with pytest.raises(LatelierError, match="text"):
            found(index, **asked)
    index.update([0], matrices([2]), ["..."])  # as is "", of a picture
    assert not index.has_words
    index.update([0], matrices([2]), [TEXT])
    assert found(index) == found(index, mode="hybrid")


def test_an_index_without_keywords_is_searched_by_vectors(filled):
    assert filled.has_words
    filled.compact(keywords=False)
    assert not filled.has_words
    assert found(filled) == found(filled, mode="vectors")
    filled.compact(keywords=True)
    assert found(filled) == found(filled, mode="hybrid")


def test_an_empty_index_is_searched_as_it_will_be(index):
    assert index.has_words
    assert found(index) == [[]]
    with pytest.raises(InvalidArgumentError, match="min_score"):
        found(index, min_score=1.0)
    index.compact(keywords=False)
    assert not index.has_words


def test_texts_that_were_removed_count_no_longer(filled):
    assert filled.has_words
    filled.remove([0, 1, 3, 4])
    if isinstance(filled, indexes.Qdrant):
        assert filled.has_words  # it does not count them
    else:
        assert not filled.has_words
        assert found(filled) == found(filled, mode="vectors")


def test_a_least_score_needs_a_mode_where_scores_depend_on_it(filled):
    for asked in ({}, {"weights": (0.5, 0.5)}):
        with pytest.raises(InvalidArgumentError, match=r"min_score=0\.5.*mode"):
            found(filled, min_score=0.5, **asked)
    [by_both] = found(filled, min_score=0.5, mode="hybrid")
    [by_vectors] = found(filled, min_score=0.5, mode="vectors")
    assert by_both == [hit for hit in found(filled)[0] if hit.score >= 0.5]
    assert by_vectors == [hit for hit in found(filled, mode="vectors")[0] if hit.score >= 0.5]
    assert found(filled, texts=None, min_score=0.5) == [by_vectors]


def test_a_query_of_vectors_cannot_have_options_of_words(filled):
    with pytest.raises(InvalidArgumentError, match="texts="):
        found(filled, texts=None, weights=(0.5, 0.5))
    with pytest.raises(InvalidArgumentError, match="hybrid"):
        filled.why_not(QUERY, 2, weights=(0.5, 0.5))
    assert filled.why_not(QUERY, 2).mode == "vectors"


def test_other_connections_see_the_first_text(disk_index, tmp_path):
    disk_index.add([0], matrices([2]))
    if isinstance(disk_index, indexes.Sharded):
        pytest.skip("one connection has all processes")
    with indexes.open(tmp_path / "index") as other:
        assert not other.has_words
        disk_index.add([1], matrices([2]), [TEXT])
        assert other.has_words
