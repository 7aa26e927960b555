"""The copy that encodes on a CPU computes what the model computes, follows its weights, and never changes it."""

import copy
import gc
import os
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
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from latelier.errors import InvalidArgumentError
from latelier.kernels.threads import limited_threads
from latelier.models import ColBERT
from latelier.models.frozen import can_lay_out

pytestmark = pytest.mark.processor

TEXTS = ["pear", "a longer text, which says more about pears!", "", "un-hyphenated words " * 12]
MANY = [f"{'pear ' * (number % 13)}{number}" for number in range(150)]

needs_layout = pytest.mark.skipif(
    not can_lay_out(torch.float32), reason="this build of torch has no oneDNN operators for linear layers"
)


@pytest.fixture
def own(tiny):
    """A model that a test may change."""
    return ColBERT(tiny, embedding_size=16, device="cpu")


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def plain(model, texts, task="document"):
    """What the layers themselves compute: raw outputs do not go through our loop."""
    raw = model.encode(texts, task=task, output_value=None)
    return [item["token_embeddings"][item["attention_mask"].bool()] for item in raw]


def assert_same(model, texts=TEXTS, task="document", **options):
    encoded = model.encode(texts, task=task, **options)
    for row, expected in zip(encoded, plain(model, texts, task), strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["query", "document"])
def test_the_numbers_are_those_of_the_layers(fresh, dense, task):
    assert_same(fresh, task=task)
    assert_same(dense, task=task)


def test_other_encoders(encoder_folder):
    assert_same(ColBERT(encoder_folder, embedding_size=16, device="cpu"))


@needs_layout
def test_laid_out_weights_are_used_and_the_model_is_left_alone(own, monkeypatch):
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


def test_a_variable_of_the_environment_turns_it_off(dense, monkeypatch):
    monkeypatch.setenv("LATELIER_CPU_FORWARD", "0")
    monkeypatch.setattr("latelier.models.frozen._copy_model", None)
    assert_same(copy.deepcopy(dense))
    monkeypatch.setenv("LATELIER_CPU_FORWARD", "false")
    with pytest.raises(InvalidArgumentError, match="LATELIER_CPU_FORWARD='false'; expected 0"):
        dense.encode_document(TEXTS)


def test_embeddings_can_be_trained_on(dense):
    vectors = dense.encode_document("pear")
    weight = torch.ones(vectors.shape[-1], requires_grad=True)
    (vectors * weight).sum().backward()
    torch.testing.assert_close(weight.grad, vectors.sum(dim=0))


def change_in_place(model):
    model[0].model.encoder.layer[1].intermediate.dense.weight.mul_(1.5)


def change_data(model):
    weight = model[0].model.encoder.layer[1].intermediate.dense.weight
    weight.data = weight.data * 1.5


def replace_a_layer(model):
    model[0].model.encoder.layer[0].attention.self.query = nn.Linear(48, 48)


def replace_a_layer_by_another_kind(model):
    adapter = type("Adapter", (nn.Linear,), {"forward": lambda self, x: 0.5 * nn.Linear.forward(self, x)})
    model[0].model.encoder.layer[0].attention.self.query = adapter(48, 48)


def replace_embeddings(model):
    embeddings = model[0].model.embeddings
    embeddings.word_embeddings = nn.Embedding(embeddings.word_embeddings.num_embeddings, 48)


def delete_a_layer(model):
    del model[0].model.encoder.layer[1]


def load_other_weights(model):
    model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})


CHANGES = [change_in_place, change_data, replace_a_layer, replace_a_layer_by_another_kind, replace_embeddings]
CHANGES += [delete_a_layer, load_other_weights]
CHANGES += [
    lambda model: prune.l1_unstructured(model[0].model.encoder.layer[0].output.dense, "weight", amount=0.5),
    lambda model: weight_norm(model[0].model.encoder.layer[0].output.dense).weight,
]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_followed(own, change):
    own.encode_document("pear")
    with torch.no_grad():
        change(own)
    assert_same(own)


@pytest.mark.parametrize("see", [nn.Module.eval, nn.Module.train])
def test_changes_that_torch_does_not_count_are_seen_after_eval_or_train(own, see):
    before = own.encode_document("pear")
    own[0].model.encoder.layer[1].intermediate.dense.weight.data.mul_(1.5)
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


def test_weights_that_move_to_shared_memory(own):
    before = own.encode_document("pear")
    own.share_memory()
    torch.testing.assert_close(own.encode_document("pear"), before)


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


def test_gradients_after_encoding(own):
    gradients = []
    for model in (copy.deepcopy(own), own):
        if model is own:
            own.encode_document("pear")
        model.eval()
        model(texts=TEXTS, is_query=False)["embeddings"].square().sum(dim=-1).sum().backward()
        gradients.append(model[0].model.encoder.layer[0].attention.self.key.weight.grad)
    torch.testing.assert_close(*gradients)


def test_copies_pickles_and_the_end_of_a_model(own):
    expected = own.encode_document("pear")
    for other in (copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        torch.testing.assert_close(other.encode_document("pear"), expected)
    other = copy.deepcopy(own)
    with torch.no_grad():
        change_in_place(other)
    torch.testing.assert_close(own.encode_document("pear"), expected)
    encoder = weakref.ref(other[0].model)
    del other
    gc.collect()
    assert encoder() is None


def test_compiled_models_run_themselves(own):
    own[0].model.encoder.layer[1].compile(backend=lambda graph, inputs: seen.append(1) or graph)
    seen = []
    own.encode_document("pear")
    assert seen


# Threads.


@pytest.fixture
def batches(monkeypatch, two_threads):
    """The thread of each batch, how many texts it has and how many threads torch may use; the first two wait."""
    from latelier.models import encoding

    seen, together, encode = [], Barrier(2, timeout=60), encoding._Forward.encode_batch

    def noting(self, features, used, rows, *others):
        seen.append((get_ident(), len(rows), torch.get_num_threads()))
        if len(seen) <= 2:
            together.wait()
        return encode(self, features, used, rows, *others)

    monkeypatch.setattr(encoding._Forward, "encode_batch", noting)
    return seen


@pytest.mark.parametrize("options", [{}, {"backend": "onnx"}], ids=["torch", "onnx"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_each_thread_encodes_batches_of_its_own(tiny, batches, options, dtype):
    if dtype == "int8" and not options:
        pytest.skip("torch does not compute in int8")
    if options:
        pytest.importorskip("onnxscript", reason="needs the extra onnx")
    model = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", **options)
    apart = model.encode_document(MANY, compute_dtype=dtype)
    threads, rows, allowed = zip(*batches, strict=True)
    assert (len(set(threads)), sum(rows), set(allowed)) == (2, len(MANY), {1})
    assert get_ident() not in threads
    assert torch.get_num_threads() == 2
    with limited_threads(1):
        alone = model.encode_document(MANY, compute_dtype=dtype)
    assert len({thread for thread, _, _ in batches[len(rows) :]}) == 1
    assert {count for _, _, count in batches[len(rows) :]} == {1}
    for row, other, exact in zip(apart, alone, plain(model, MANY), strict=True):
        torch.testing.assert_close(row, other, rtol=0, atol=1e-5 if dtype == "float32" else 0.2)
        torch.testing.assert_close(row, exact, rtol=0, atol=1e-5 if dtype == "float32" else 0.2)


def test_an_error_in_a_thread_is_raised(own, monkeypatch, two_threads):
    own.encode_document(MANY)
    monkeypatch.setattr("latelier.models.encoding._Forward.encode_batch", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        own.encode_document(MANY)
    assert torch.get_num_threads() == 2


def test_callers_in_several_threads(own, two_threads):
    expected = own.encode_document(MANY)
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(own.encode_document, [MANY] * 8):
            for row, other in zip(rows, expected, strict=True):
                torch.testing.assert_close(row, other, rtol=0, atol=1e-5)


class OtherLinear(nn.Linear):
    """A layer of another package."""


def test_code_of_other_packages_is_called_by_one_thread(own, two_threads, monkeypatch):
    seen = set()
    layer = own[0].model.encoder.layer[0].intermediate.dense
    layer.__class__ = OtherLinear
    compute = nn.Linear.forward

    def forward(self, inputs):
        seen.add((get_ident(), torch.get_num_threads()))
        return compute(self, inputs)

    monkeypatch.setattr(OtherLinear, "forward", forward)
    own.encode_document(MANY)
    assert seen == {(get_ident(), 2)}


STARTED = """
import os, sys, threading
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux shows them")
def test_no_threads_are_left_behind_and_a_forked_process_has_its_own(tiny):
    done = subprocess.run([sys.executable, "-c", STARTED, tiny], capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n") == ["0 2", "child", ""], done.stderr


WITHOUT_BFLOAT16 = """
import sys, torch
from latelier.models import ColBERT
from latelier.models.encoding import prefers_bfloat16
from latelier.models.frozen import can_lay_out
model = ColBERT.from_dense(sys.argv[1], device="cpu")
exact, rounded = (model.encode_document("wings push air down", compute_dtype=d) for d in ("float32", "bfloat16"))
print(can_lay_out(torch.float32), can_lay_out(torch.bfloat16), end=" ")
print(prefers_bfloat16(10**6, torch.device("cpu"), torch.float32), end=" ")
print(torch.cosine_similarity(torch.as_tensor(exact), torch.as_tensor(rounded)).min().item())
"""


@needs_layout
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the instructions are those of x86")
def test_bfloat16_is_computed_by_the_layers_where_it_cannot_be_laid_out(shallow):
    """Where oneDNN has no bfloat16, whatever the processor is called."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", WITHOUT_BFLOAT16, shallow]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    *answers, cosine = done.stdout.split()
    assert answers == ["True", "False", "False"]
    assert 0.99 < float(cosine) < 1
