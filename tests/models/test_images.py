"""Models that read pictures: vectors and patches as sentence-transformers has them, in the layout of each family."""

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.interpretability import get_n_patches, maxsim_similarity_map
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from image_models import IMAGE_MODELS, pictures, save_image_model
from latelier import indexes
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models import ColBERT
from latelier.retrieve import Retriever

QUERIES = ["A table of profits", "a cat"]


@pytest.mark.parametrize("patches_only", [False, True], ids=["all tokens", "patches"])
@pytest.mark.parametrize("family", IMAGE_MODELS)
def test_pictures_and_queries_are_encoded_as_by_sentence_transformers(family, patches_only, tmp_path):
    folder = save_image_model(family, tmp_path / "model", patches_only=patches_only)
    ours, theirs = (kind(folder, device="cpu") for kind in (ColBERT, MultiVectorEncoder))
    found = [*ours.encode_query(QUERIES), *ours.encode_document(pictures())]
    expected = [*theirs.encode_query(QUERIES), *theirs.encode_document(pictures())]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert min(len(each) for each in found[2:]) >= 16


@pytest.fixture
def explain(tmp_path):
    def explained(family, *, pool_factor=1, **options):
        path = tmp_path / "page.png"
        pictures()[0].save(path)
        model = ColBERT(save_image_model(family, tmp_path / "model", **options), device="cpu")
        retriever = Retriever(model, indexes.Flat())
        retriever.add([{"id": "page", "image": path}], pool_factor=pool_factor)
        return retriever.explain(QUERIES[0], "page"), model

    return explained


@pytest.mark.parametrize("patches_only", [False, True], ids=["all tokens", "patches"])
@pytest.mark.parametrize(("family", "shape"), [("colpali", (4, 4)), ("colqwen2", (4, 5)), ("colqwen2.5", (4, 5))])
def test_the_map_of_a_page_is_that_of_sentence_transformers(family, shape, patches_only, explain):
    explanation, model = explain(family, patches_only=patches_only)
    query, page = model.encode_query(QUERIES[0]), model.encode_document(pictures()[:1])[0]
    ids = model.preprocess(pictures()[:1], task="document")["input_ids"][0]
    is_patch = None if patches_only else ids == model.tokenizer.convert_tokens_to_ids(model.processor.image_token)
    size = get_n_patches(model, pictures()[0].size)
    expected = maxsim_similarity_map(query, page, size, is_patch)
    found = torch.from_numpy(explanation.similarity_map)
    assert found.shape[1:] == shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert explanation.score == pytest.approx(float((query @ page.T).amax(dim=1).sum()), abs=1e-5)


def test_a_page_is_shown_with_a_map_for_each_word(explain, tmp_path):
    explanation, _ = explain("colqwen2.5", patches_only=True)
    assert [word.text for word in explanation.query_words if word.range] == ["A", "table", "of", "profits"]
    row, column = np.unravel_index(explanation.similarity_map[3].argmax(), (4, 5))
    assert explanation.tokens[3].matched == f"patch {row + 1}, {column + 1}"
    page = explanation.to_html()
    assert page.count('type="radio"') == page.count("data:image/png;base64,") == 5
    assert f'alt="A: strongest in row {row + 1}, column {column + 1} of 4 x 5 patches"' in page
    assert page.count("data:image/jpeg;base64,") == 1
    assert "<script" not in page
    figure = explanation.figure()
    assert [axes.get_title() for axes in figure.axes] == ["(whole query)", "A", "table", "of", "profits"]
    own = figure.add_subfigure(figure.add_gridspec()[0]).add_subplot()
    assert (explanation.figure(own), own.get_title()) == (figure, "(whole query)")
    assert explanation._repr_html_().count('type="radio"') == 5
    (tmp_path / "page.png").unlink()
    assert "was moved or removed since" in explanation.to_html()


@pytest.mark.parametrize(
    ("family", "pool_factor", "vectors", "reason"),
    [
        ("colmodernvbert", 1, 47, "the model splits a picture into tiles"),
        ("colqwen2", 3, 11, "it has 11 vectors, and 31 before they were pooled"),
    ],
)
def test_where_the_patches_are_unknown_that_is_said(family, pool_factor, vectors, reason, explain):
    explanation, model = explain(family, pool_factor=pool_factor)
    expected = maxsim_similarity_map(
        model.encode_query(QUERIES[0]), model.encode_document(pictures()[:1], pool_factor=pool_factor)[0], (vectors, 1)
    )
    torch.testing.assert_close(torch.from_numpy(explanation.similarities), expected[:, 0], rtol=0, atol=1e-5)
    assert f"Which part of the page matched cannot be shown: {reason}" in explanation.to_html()
    with pytest.raises(LatelierError, match=f"document 'page' has no map: {reason}"):
        _ = explanation.similarity_map


def test_an_encoder_with_a_head_that_keeps_patches_alone_fills_an_index(tmp_path):
    whole, processor = IMAGE_MODELS["colmodernvbert"]()
    whole.vlm.save_pretrained(tmp_path / "encoder")
    processor.save_pretrained(tmp_path / "encoder")
    where = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    mask = MultiVectorMask(keep_only_token_ids=[processor.tokenizer.convert_tokens_to_ids("<image>")])
    modules = [Transformer(str(tmp_path / "encoder")), Dense(32, 16, bias=False, **where), Normalize(**where), mask]
    MultiVectorEncoder(modules=modules, device="cpu").save(str(tmp_path / "model"), create_model_card=False)
    theirs = MultiVectorEncoder(str(tmp_path / "model"), device="cpu")
    expected = theirs.similarity(theirs.encode_query(QUERIES[0]), theirs.encode_document(pictures()))[0]
    retriever = Retriever(tmp_path / "model", indexes.Flat(), device="cpu")
    retriever.add([{"id": i, "image": each} for i, each in enumerate(pictures())])
    found = {hit.id: hit.score for hit in retriever.search(QUERIES[0])}
    assert [found[0], found[1]] == pytest.approx(expected.tolist(), abs=1e-5)
    assert retriever.search(QUERIES[0]).mode == "vectors"
    retriever.index.add("text", np.ones((1, 16)), "A table of profits")
    assert (retriever.search(QUERIES[0]).mode, retriever.search(pictures()[0]).mode) == ("hybrid", "vectors")
    assert retriever.search(pictures()[0], min_score=-99)
    with pytest.raises(InvalidArgumentError, match="texts"):
        retriever.search(pictures()[0], weights=(0.5, 0.5))
