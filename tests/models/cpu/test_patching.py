"""Pickles and copies of modules, made while threads encode with them, hold nothing that is patched."""

import copy
import pickle
from threading import Event, Thread

import pytest
import torch
from torch import nn

from latelier.models import ColBERT
from latelier.models.cpu.patching import replaced_forwards

TEXTS = ["pear", "a longer text, which says more about pears!"]


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def patched(module):
    return [name for name, each in module.named_modules() if "forward" in each.__dict__]


@pytest.fixture(params=["torch", "onnx"])
def model(tiny, request):
    if request.param == "onnx":
        pytest.importorskip("onnxscript", reason="needs the extra onnx")
    return ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend=request.param)


@pytest.mark.parametrize("make", [pickled, copy.deepcopy])
def test_a_model_is_copied_while_threads_encode(model, make):
    expected, stop = model.encode_document(TEXTS), Event()

    def encode():
        while not stop.is_set():
            model.encode_document(TEXTS)

    threads = [Thread(target=encode) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        copies = [make(model) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [patched(each) for each in copies] == [[]] * len(copies)
    for each in copies:
        for row, other in zip(each.encode_document(TEXTS), expected, strict=True):
            torch.testing.assert_close(row, other, rtol=0, atol=1e-5)


class Shaped(nn.Linear):
    """A layer that is pickled in a way of its own: by its shape."""

    def __reduce__(self):
        return Shaped, (self.in_features, self.out_features)


@pytest.mark.parametrize("make", [pickled, copy.deepcopy, copy.copy])
def test_what_is_patched_is_left_out_and_all_else_is_kept(make):
    layer, other, x = nn.Linear(2, 2), Shaped(2, 3), torch.ones(1, 2)
    layer.note, own = "mine", layer(x)
    with replaced_forwards({layer: torch.neg, other: torch.neg}):
        copied, reshaped, twice = make(layer), make(other), make(nn.ModuleList([layer, layer]))
        assert torch.equal(layer(x), -x)
    assert (copied.note, patched(copied), patched(reshaped), reshaped.weight.shape) == ("mine", [], [], (3, 2))
    assert twice[0] is twice[1]
    assert torch.equal(copied(x), own)
    assert torch.equal(make(layer)(x), own)
