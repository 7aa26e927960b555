"""Late interaction without training: the dense model's own token vectors, as they are or projected."""

import pytest
import torch
from folders import by_hand

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models import ColBERT
from latelier.utils import resolve_device

TEXTS = ["Fruits, like pears, are good for health.", "What is a pear?", "x", " ".join(["pear"] * 100)]


def test_no_markers_no_expansion_no_skiplist(dense, shallow):
    for encode in (dense.encode_query, dense.encode_document):
        for text, rows in zip(TEXTS, encode(TEXTS), strict=True):
            torch.testing.assert_close(rows, by_hand(shallow, text, marker_id=None, weight=None), rtol=1e-5, atol=2e-6)


def test_orthogonal_projection_is_seeded_and_keeps_lengths_on_average(shallow, dense):
    model = ColBERT.from_dense(shallow, "orthogonal", 128, device="cpu")
    again = ColBERT.from_dense(shallow, "orthogonal", 128, device="cpu")
    assert torch.equal(model.encode_document(TEXTS[0]), again.encode_document(TEXTS[0]))
    weight = model[1].linear.weight.detach()
    expected = by_hand(shallow, TEXTS[0], marker_id=None, weight=weight)
    torch.testing.assert_close(model.encode_document(TEXTS[0]), expected, rtol=1e-5, atol=2e-6)
    full = dense.encode_document(TEXTS[0])
    kept = model.encode_document(TEXTS[0])
    assert (full @ full.T - kept @ kept.T).abs().max() < 0.25


def test_pca_keeps_what_the_best_subspace_keeps(shallow, dense, tmp_path):
    model = ColBERT.from_dense(shallow, "pca", 8, device="cpu")
    assert model.fit_projection(iter(TEXTS), batch_size=2) is model
    vectors = torch.cat(dense.encode_document(TEXTS))
    # Eckart-Young: no 8-dimensional subspace keeps more than the leading right singular vectors do.
    _, values, directions = torch.linalg.svd(vectors.double(), full_matrices=False)
    weight = model[1].linear.weight.detach().double()
    torch.testing.assert_close((vectors.double() @ weight.T).square().sum(), values[:8].square().sum())
    torch.testing.assert_close(weight @ directions[:8].T @ directions[:8], weight, rtol=0, atol=1e-4)
    model.save_pretrained(tmp_path / "fitted")
    again = ColBERT(tmp_path / "fitted", device="cpu")
    torch.testing.assert_close(again.encode_query("pear"), model.encode_query("pear"))
    assert again.tokens("pear") == ["[CLS]", "pear", "[SEP]"]


def test_an_unfitted_pca_refuses_to_encode_and_to_be_saved(shallow, tmp_path):
    model = ColBERT.from_dense(shallow, "pca", 8, device="cpu")
    for use in (
        lambda: model.encode_query("pear"),
        lambda: model(texts=["pear"]),
        lambda: model.scores(["a"], ["b"], tqdm_bar=False),
        lambda: model.save_pretrained(tmp_path / "unfitted"),
    ):
        with pytest.raises(LatelierError, match=r"not fitted yet; call fit_projection\(texts\)"):
            use()
    with pytest.raises(InvalidArgumentError, match="too few to fit 8 dimensions"):
        model.fit_projection(["x"])
    with pytest.raises(InvalidArgumentError, match="the texts have 0 tokens"):
        model.fit_projection([])
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] is 3"):
        model.fit_projection([3])
    with pytest.raises(InvalidArgumentError, match="this model has no PCA projection"):
        ColBERT.from_dense(shallow, device="cpu").fit_projection(TEXTS)


def test_lengths_are_the_encoders_or_those_given(dense, shallow):
    assert (dense.max_length_query, dense.max_length_document) == (512, 350)
    long = " ".join(["pear"] * 600)
    assert dense.encode_query(long).shape == (512, 384)
    model = ColBERT.from_dense(shallow, max_length_document=10, max_length_query=6, device="cpu")
    assert model.encode_document(long).shape == (10, 384)
    assert model.encode_query(long).shape == (6, 384)
    assert ColBERT.from_dense(shallow).device.type == resolve_device().type
