"""The same model on every device that this machine has."""

import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.utils import resolve_device

AVAILABLE = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
QUERIES = ["Berlin", "Paris"]
DOCUMENTS = ["Berlin is the capital of Germany", "Paris is the capital of France and France is in Europe"]


@pytest.mark.parametrize("device", AVAILABLE)
def test_scores_and_embeddings_on(device, shallow):
    if not AVAILABLE[device]:
        pytest.skip(f"this machine has no {device}")
    model = ColBERT(shallow, device=device)
    assert model.device.type == device
    assert model.encode_query(QUERIES)[0].device.type == device
    scores = model.scores(QUERIES, DOCUMENTS, tqdm_bar=False)
    assert scores.device.type == device
    expected = ColBERT(shallow, device="cpu").scores(QUERIES, DOCUMENTS, tqdm_bar=False)
    torch.testing.assert_close(scores.cpu(), expected, rtol=1e-3, atol=1e-2)


def test_no_device_given_takes_the_best_there_is(shallow):
    assert ColBERT.from_dense(shallow).device.type == resolve_device().type


def test_devices_that_hold_no_numbers():
    with pytest.raises(InvalidArgumentError, match="nothing can be computed on device 'meta' here"):
        resolve_device("meta")
