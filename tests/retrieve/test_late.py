"""Late passages: vectors that were encoded in windows, cut where passages are cut."""

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve import Passages, Retriever, read_documents

WORDS = ["pears", "ripen", "in", "autumn", "and", "figs", "dry", "on", "the", "roof", "while", "moon", "is", "far"]


def long_text(seed, words):
    chosen = np.random.default_rng(seed).choice(WORDS, words)
    return "".join(f"{word}{'. ' if i % 7 == 6 else ' '}" for i, word in enumerate(chosen)).strip()


def unchanged(retriever, texts, passages, **options):
    """Passages of an index, each with its vectors."""
    retriever.add([{"id": id, **fields} for id, fields in texts.items()], passages=passages, **options)
    found = {}
    for id in retriever.documents:
        record = retriever.documents[id]
        for passage, rows in zip(record.passages, retriever.index.get_embeddings([id]), strict=True):
            found[id, passage.start] = (passage.text_in(record.text), rows)
    return found


def test_a_text_that_fits_is_one_window_and_its_passages_are_rows_of_it(minilm):
    text = long_text(1, 120)
    retriever = Retriever(minilm)
    found = unchanged(retriever, {"a": {"text": text, "title": "Fruit"}}, Passages(40, 0, late=True))
    whole = f"Fruit {text}"
    vectors = retriever.query_model.encode_documents([whole], batch_size=1).to("numpy")[0]
    ranges = retriever.query_model.token_ranges(whole, is_query=False)
    assert len(found) > 3
    at = 0
    for stored, rows in found.values():
        own = stored.removeprefix("Fruit ")
        start = whole.index(own, at)
        at = start + len(own)
        kept = [i for i, each in enumerate(ranges) if each is None or each[0] < 6 or start <= each[0] < at]
        np.testing.assert_array_equal(rows, vectors[kept])


def test_passages_of_several_windows_have_the_rows_of_their_own_tokens(minilm):
    texts = {
        "a": {"text": long_text(1, 900), "title": "Fruit"},
        "b": {"text": "Short."},
        1: {"text": long_text(2, 400)},
    }
    late, plain = Retriever(minilm), Retriever(minilm)
    found = unchanged(late, texts, Passages(64, late=True))
    alone = unchanged(plain, texts, Passages(64))
    assert found.keys() == alone.keys()
    for id, (text, rows) in found.items():
        own = alone[id][1]
        assert (text, rows.shape) == (alone[id][0], own.shape)
        similarity = (rows * own).sum(axis=1)  # of the same token in other surroundings
        assert similarity.mean() > 0.7
    assert any(not np.allclose(rows, alone[id][1], atol=1e-3) for id, (_, rows) in found.items())
    [result] = late.search("figs dry on the roof", k=1, mode="vectors")
    explanation = late.explain("figs dry on the roof", result.id)
    assert explanation.score == pytest.approx(result.score, abs=1e-3)
    assert explanation.text == result.text
    assert late.search("Short.", k=1)[0].id == "b"
    late.update([{"id": "a", **texts["a"]}], skip_unchanged=True)
    assert len(late) == len(texts)


def test_chunks_pooling_and_precision_change_nothing_else(tiny):
    texts = {"a": {"text": long_text(3, 300)}, "b": {"text": long_text(4, 200)}}
    passages = Passages(32, late=True)
    expected = unchanged(Retriever(tiny, device="cpu"), texts, passages)
    in_parts = unchanged(Retriever(tiny, device="cpu"), texts, passages, chunk_size=2, batch_size=1)
    assert expected.keys() == in_parts.keys()
    for id, (_, rows) in expected.items():
        np.testing.assert_allclose(in_parts[id][1], rows, atol=1e-5)
    pooled = unchanged(Retriever(tiny, device="cpu"), texts, passages, pool_factor=2, precision="float16")
    for id, (_, rows) in expected.items():
        assert len(pooled[id][1]) < 0.7 * len(rows)


def test_a_word_that_is_cut_is_encoded_by_itself(minilm):
    retriever = Retriever(minilm)
    text = "antidisestablishmentarianism" * 40
    for stored, rows in unchanged(retriever, {"a": {"text": text}}, Passages(32, late=True)).values():
        assert len(rows) == len(retriever.query_model.tokens(stored, is_query=False))


def test_files_keep_their_pages_and_the_index_its_form(tmp_path, minilm):
    (tmp_path / "fruit.md").write_text(
        "---\ntitle: On fruit\n---\n# Figs\n\n" + long_text(5, 300) + "\n\n## Pears\n\nRipe."
    )
    retriever = Retriever(minilm, index=tmp_path / "index")
    retriever.synchronise(read_documents(tmp_path / "fruit.md", format="whole"), passages=Passages(late=True))
    [record] = retriever.documents.get(retriever.documents)
    assert record.text.startswith("---\ntitle:")  # it is kept, and not searched
    assert all("title:" not in passage.text_in(record.text) for passage in record.passages)
    with pytest.raises(InvalidArgumentError, match="late passages of 116 tokens"):
        retriever.add([("b", "More.")], passages=116)
    retriever.add([("b", "More.")], passages=Passages(late=True))
    assert len(retriever) == 2
