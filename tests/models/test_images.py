"""Models that read pictures: vectors and patches as sentence-transformers has them, in the layout of each family."""

import pytest
import torch
from PIL import Image
from sentence_transformers import MultiVectorEncoder

from image_models import IMAGE_MODELS, save_image_model
from latelier.models import ColBERT

QUERIES = ["A table of profits", "a cat"]


def pictures():
    """Return a wide and a tall picture that differ in every patch."""
    noise = torch.randint(0, 256, (200, 140, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return [Image.fromarray(each.numpy()) for each in (noise.transpose(0, 1).contiguous(), noise)]


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
