"""Each thread encodes batches of its own, with the vectors of one thread, and starts no threads of torch's."""

import subprocess
import sys
from threading import Barrier, Thread, get_ident

import pytest
import torch
from torch import nn

from latelier.kernels.threads import limited_threads
from latelier.models import ColBERT, encoding
from latelier.models.cpu.held_threads import held_threads, runs_in_threads
from latelier.models.cpu.patching import replaced_forwards

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("two_threads")]

TEXTS = [f"{'pear ' * (number % 13)}{number}" for number in range(150)]


@pytest.fixture(scope="module")
def dense(tiny):
    return ColBERT.from_dense(tiny, "orthogonal", 16, "cpu")


@pytest.fixture
def batches(monkeypatch):
    """The thread and the texts of each batch; the first two are encoded at the same time."""
    seen, together, encode = [], Barrier(2, timeout=60), encoding._encode_batch

    def noting(model, features, used, rows, *others):
        seen.append((get_ident(), len(rows), torch.get_num_threads()))
        if len(seen) <= 2:
            together.wait()
        return encode(model, features, used, rows, *others)

    monkeypatch.setattr(encoding, "_encode_batch", noting)
    return seen


@pytest.mark.parametrize("options", [{}, {"backend": "onnx"}], ids=["torch", "onnx"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_each_thread_encodes_batches_of_its_own(tiny, dense, batches, options, dtype):
    if dtype == "int8" and not options:
        pytest.skip("torch does not compute in int8")
    if options:
        pytest.importorskip("onnxscript", reason="needs the extra onnx")
    model = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", **options)
    apart = model.encode_document(TEXTS, compute_dtype=dtype)
    threads, rows, allowed = zip(*batches, strict=True)
    assert (len(set(threads)), sum(rows), set(allowed)) == (2, len(TEXTS), {1})
    assert torch.get_num_threads() == 2
    with limited_threads(1):
        alone = model.encode_document(TEXTS, compute_dtype=dtype)
        exact = dense.encode_document(TEXTS, compute_dtype="float32")
    assert {(thread, allowed) for thread, _, allowed in batches[len(rows) :]} == {(get_ident(), 1)}
    for row, other, expected in zip(apart, alone, exact, strict=True):
        torch.testing.assert_close(row, other, rtol=0, atol=1e-5 if dtype == "float32" else 0.2)
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-5 if dtype == "float32" else 0.2)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_vectors_of_other_encoders_are_those_of_one_thread(encoder_folder):
    model = ColBERT(encoder_folder, embedding_size=16, device="cpu")
    assert runs_in_threads(model)
    with limited_threads(1):
        alone = model.encode_document(TEXTS)
    for _ in range(5):
        for row, other in zip(model.encode_document(TEXTS), alone, strict=True):
            torch.testing.assert_close(row, other, rtol=0, atol=1e-5)


def test_an_error_in_a_thread_is_raised(dense, monkeypatch):
    def fail(*others):
        raise RuntimeError("no memory")

    monkeypatch.setattr(encoding, "_encode_batch", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        dense.encode_document(TEXTS)
    assert not any("forward" in module.__dict__ for module in dense.modules())
    assert torch.get_num_threads() == 2


class OtherLinear(nn.Linear):
    """A layer of another package."""


@pytest.mark.parametrize("kind", ["hook", "hook before", "class", "forward", "compiled"])
def test_other_code_inside_is_called_by_the_calling_thread_alone(shallow, kind):
    model, seen = ColBERT(shallow, embedding_size=16, device="cpu"), set()
    layer = model[0].model.encoder.layer[0]
    own = layer.forward

    def note(*inputs):
        seen.add((get_ident(), torch.get_num_threads()))

    if kind == "hook":
        layer.register_forward_hook(note)
    elif kind == "hook before":
        layer.register_forward_pre_hook(note)
    elif kind == "class":
        layer.intermediate.dense.__class__ = OtherLinear
        OtherLinear.forward = lambda self, inputs: note() or nn.functional.linear(inputs, self.weight, self.bias)
    elif kind == "forward":
        layer.forward = lambda *inputs, **options: note() or own(*inputs, **options)
    else:
        layer.compile(backend=lambda graph, inputs: lambda *given: note() or graph(*given))
    assert not runs_in_threads(model)
    model.encode_document(TEXTS)
    assert seen == {(get_ident(), 2)}


@pytest.mark.parametrize("rope", ["dynamic", "longrope", {"full": "dynamic"}])
def test_rotary_embeddings_that_change_are_of_one_thread(rope):
    model = nn.Sequential(nn.Linear(2, 2))
    assert runs_in_threads(model)
    model[0].rope_type = "default"
    assert runs_in_threads(model)
    model[0].rope_type = rope
    assert not runs_in_threads(model)


def test_other_threads_keep_their_number():
    seen = []
    with held_threads(1):
        thread = Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        with pytest.raises(KeyError, match="left"), held_threads(1):
            raise KeyError("left")
        assert torch.get_num_threads() == 1
    assert (seen, torch.get_num_threads()) == ([2], 2)


def test_forwards_are_replaced_in_one_thread():
    linear, x, seen = nn.Linear(2, 2), torch.ones(1, 2), []
    own = linear(x)
    with replaced_forwards({linear: torch.neg}):
        with replaced_forwards({linear: torch.abs}):
            assert torch.equal(linear(x), x)
        assert torch.equal(linear(x), -x)
        thread = Thread(target=lambda: seen.append(linear(x)))
        thread.start()
        thread.join()
        linear.forward = kept = lambda given: given  # by somebody else meanwhile
    assert torch.equal(seen[0], own)
    assert linear.__dict__["forward"] is kept


STARTED = """
import os, threading
import torch
from latelier.models.cpu.held_threads import held_threads
torch.set_num_threads(2)  # of MKL too
x = torch.randn(512, 512)
started = []
def compute():
    with held_threads(1):
        before = len(os.listdir("/proc/self/task"))
        x @ x, torch.layer_norm(x, (512,))
        torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 8, 512, 64)] * 3)
        # The thread before may end only now: it counts as none.
        started.append(max(0, len(os.listdir("/proc/self/task")) - before))
for _ in range(2):
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
print(started)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux shows them")
def test_torch_starts_no_threads_where_it_is_held():
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[0, 0]\n", done.stderr
