"""The copy that encodes on a CPU computes what the model computes, follows its weights, and never changes it."""

import copy
import gc
import pickle
import platform
import subprocess
import sys
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident

import pytest
import torch
from torch import nn

from latelier.models import ColBERT, encoding

pytestmark = pytest.mark.processor

TEXTS = ["pear", "a longer text, which says more about pears!", "", "un-hyphenated words " * 12]
MANY = [f"{'pear ' * (number % 13)}{number}" for number in range(150)]

needs_layout = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or platform.machine().lower() not in ("x86_64", "amd64"),
    reason="weights are laid out for oneDNN, and its instructions here are those of x86",
)


@pytest.fixture
def own(tiny):
    return ColBERT(tiny, embedding_size=16, device="cpu")


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def plain(model, texts, task="document"):
    raw = model.encode(texts, task=task, output_value=None)
    return [item["token_embeddings"][item["attention_mask"].bool()] for item in raw]


def assert_same(model, texts=TEXTS, task="document"):
    for row, expected in zip(model.encode(texts, task=task), plain(model, texts, task), strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["query", "document"])
def test_the_numbers_are_those_of_the_layers(fresh, dense, encoder_folder, task):
    for model in (fresh, dense, ColBERT(encoder_folder, embedding_size=16, device="cpu")):
        assert_same(model, task=task)


@needs_layout
def test_weights_are_laid_out_once_and_the_model_is_left_alone(own, monkeypatch):
    copy.deepcopy(own).encode_document("pear")  # the first model of a process tries whether weights can be laid out
    multiplied = []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda w, n: multiplied.append(w.shape) or reorder(w, n)
    )
    before = {name: id(module) for name, module in own.named_modules()}
    for _ in range(3):
        own.encode_document("pear")
    # Two layers of four products each, and the head.
    assert multiplied == [(144, 48), (48, 48), (64, 48), (48, 64)] * 2 + [(16, 48)]
    assert {name: id(module) for name, module in own.named_modules()} == before
    assert not any("forward" in module.__dict__ for module in own.modules())


def layer(model, i=0):
    return model[0].model.encoder.layer[i]


CHANGES = {
    "in place": lambda model: layer(model, 1).intermediate.dense.weight.mul_(1.5),
    "data": lambda model: setattr(layer(model, 1).output.dense.weight, "data", torch.ones(48, 64)),
    "a layer": lambda model: setattr(layer(model).attention.self, "query", nn.Linear(48, 48)),
    "embeddings": lambda model: setattr(model[0].model.embeddings, "word_embeddings", nn.Embedding(31_000, 48)),
    "no layer": lambda model: model[0].model.encoder.layer.__delitem__(1),
    "state": lambda model: model.load_state_dict({name: x * 1.1 for name, x in model.state_dict().items()}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_followed(own, change):
    before = own.encode_document("pear")
    with torch.no_grad():
        change(own)
    assert not torch.allclose(own.encode_document("pear"), before, atol=1e-3)
    assert_same(own)


@pytest.mark.parametrize("see", [nn.Module.eval, nn.Module.train])
def test_changes_that_torch_does_not_count_are_seen_after_eval_or_train(own, see):
    before = own.encode_document("pear")
    layer(own, 1).intermediate.dense.weight.data.mul_(1.5)
    see(own)
    assert not torch.allclose(own.encode_document("pear"), before, atol=1e-3)
    assert_same(own)


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
def test_steps_of_an_optimiser_are_followed(own, options):
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.1, **options)
    own.eval()
    for _ in range(2):
        own.encode_document("pear")
        own(texts=["pear"], is_query=False)["embeddings"].sum().backward()
        optimizer.step()
        assert_same(own)


@pytest.mark.parametrize("find", [lambda bert: bert.encoder.layer[1], lambda bert: bert.embeddings.word_embeddings])
def test_hooks_inside_are_called(own, find):
    own.encode_document("pear")
    seen = []
    handle = find(own[0].model).register_forward_hook(lambda *_: seen.append(1))
    own.encode_document("pear")
    handle.remove()
    own.encode_document("pear")
    find(own[0].model)._forward_hooks = OrderedDict({1: lambda *_: seen.append(2)})
    own.encode_document("pear")
    assert seen == [1, 2]


def test_copies_pickles_shared_memory_and_the_end_of_a_model(own):
    expected = own.encode_document("pear")
    for other in (copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        torch.testing.assert_close(other.encode_document("pear"), expected)
    other = copy.deepcopy(own)
    with torch.no_grad():
        CHANGES["in place"](other)
    torch.testing.assert_close(own.encode_document("pear"), expected)
    encoder = weakref.ref(other[0].model)
    del other
    gc.collect()
    assert encoder() is None
    own.share_memory()
    torch.testing.assert_close(own.encode_document("pear"), expected)


@pytest.mark.parametrize(
    ("backend", "dtype"), [("torch", "float32"), ("torch", "bfloat16"), ("onnx", "float32"), ("onnx", "int8")]
)
def test_each_thread_encodes_batches_of_its_own(tiny, monkeypatch, two_threads, backend, dtype):
    if backend == "onnx":
        pytest.importorskip("onnxscript", reason="needs the extra onnx")
    seen, together = [], Barrier(2, timeout=60)
    encode = encoding._Forward.encode_batch

    def noting(self, features, used, rows, *others):
        seen.append((get_ident(), len(rows), torch.get_num_threads()))
        if len(seen) <= 2:
            together.wait()  # one thread alone would wait in vain
        return encode(self, features, used, rows, *others)

    monkeypatch.setattr(encoding._Forward, "encode_batch", noting)
    model = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend=backend)
    apart = model.encode_document(MANY, compute_dtype=dtype)
    threads, rows, allowed = zip(*seen, strict=True)
    assert (len(set(threads)), sum(rows), set(allowed)) == (2, len(MANY), {1})
    assert get_ident() not in threads
    assert torch.get_num_threads() == 2
    for row, exact in zip(apart, plain(model, MANY), strict=True):
        torch.testing.assert_close(row, exact, rtol=0, atol=1e-5 if dtype == "float32" else 0.2)
    monkeypatch.setattr(encoding._Forward, "encode_batch", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        model.encode_document(MANY)
    assert torch.get_num_threads() == 2


def test_callers_in_several_threads(own, two_threads):
    expected = own.encode_document(MANY)
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(own.encode_document, [MANY] * 8):
            for row, other in zip(rows, expected, strict=True):
                torch.testing.assert_close(row, other, rtol=0, atol=1e-5)


class OtherLinear(nn.Linear):
    def forward(self, inputs):
        self.seen.add((get_ident(), torch.get_num_threads()))
        return super().forward(inputs)


def test_code_of_other_packages_is_called_by_one_thread(own, two_threads):
    dense = layer(own).intermediate.dense
    dense.__class__, dense.seen = OtherLinear, set()
    own.encode_document(MANY)
    assert dense.seen == {(get_ident(), 2)}


STARTED = """
import os, sys
import torch
from latelier.models import ColBERT
torch.set_num_threads(2)
model = ColBERT.from_dense(sys.argv[1], device="cpu")
texts = [f"{'pear ' * (number % 13)}{number}" for number in range(150)]
model.encode_document(texts)
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    model.encode_document(texts)
print(len(os.listdir("/proc/self/task")) - before, torch.get_num_threads(), flush=True)
if os.fork() == 0:
    torch.set_num_threads(2)
    model.encode_document(texts)
    print("child", flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux shows them")
def test_no_threads_are_left_behind_and_a_forked_process_has_its_own(tiny):
    done = subprocess.run([sys.executable, "-c", STARTED, tiny], capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n") == ["0 2", "child", ""], done.stderr
