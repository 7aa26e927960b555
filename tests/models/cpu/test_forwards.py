"""Patched forwards compute what the modules compute, follow changed weights, and leave nothing behind."""

import os
import platform
import subprocess
import sys
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.models.cpu.forwards import patched_forwards
from latelier.models.cpu.prepacked import PrepackedLinear, can_prepack
from latelier.models.encoding import inference

pytestmark = pytest.mark.processor

TEXTS = ["pear", "a longer text, which says more about pears!", "", "un-hyphenated words " * 12]
CPU = torch.device("cpu")

needs_prepacking = pytest.mark.skipif(
    not can_prepack(torch.float32), reason="this build of torch has no oneDNN operators for linear layers"
)


@pytest.fixture
def own(shallow):
    """A model that a test may change."""
    return ColBERT(shallow, embedding_size=16, device="cpu")


def plain(model, texts, task="document"):
    """What the layers themselves compute: raw outputs do not go through our loop."""
    raw = model.encode(texts, task=task, output_value=None)
    return [item["token_embeddings"][item["attention_mask"].bool()] for item in raw]


def assert_same(model, texts=TEXTS, task="document", atol=1e-5):
    for encoded, expected in zip(model.encode(texts, task=task), plain(model, texts, task), strict=True):
        torch.testing.assert_close(encoded, expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("task", ["query", "document"])
def test_the_numbers_are_those_of_the_layers(fresh, dense, task):
    assert_same(fresh, task=task)
    assert_same(dense, task=task)


def test_a_variable_of_the_environment_turns_them_off(fresh, dense, monkeypatch):
    patched = [model.encode_document(TEXTS) for model in (fresh, dense)]
    monkeypatch.setenv("LATELIER_CPU_FORWARD", "0")
    with patched_forwards(dense):
        assert not any("forward" in module.__dict__ for module in dense.modules())
    for model, expected in zip((fresh, dense), patched, strict=True):
        for rows, exact in zip(model.encode_document(TEXTS), expected, strict=True):
            torch.testing.assert_close(rows, exact, rtol=1e-4, atol=1e-5)


def test_another_value_of_the_variable_raises(dense, monkeypatch):
    monkeypatch.setenv("LATELIER_CPU_FORWARD", "false")
    with pytest.raises(InvalidArgumentError, match="LATELIER_CPU_FORWARD='false'; expected 0"):
        dense.encode_document(TEXTS)


def test_the_last_hidden_states_can_be_trained_on(dense):
    features = dense.preprocess(TEXTS, task="document")
    with torch.no_grad(), patched_forwards(dense):
        hidden = dense[0]({**features})["token_embeddings"]
    weight = torch.ones(hidden.shape[-1], requires_grad=True)
    (hidden * weight).sum().backward()
    torch.testing.assert_close(weight.grad, hidden.sum(dim=(0, 1)))


@needs_prepacking
def test_the_stack_of_bert_is_replaced_as_a_whole(dense):
    bert = dense[0].model
    with patched_forwards(dense):
        [forward] = bert.__dict__["forward"].by_thread.values()
        assert type(forward._forward).__name__ == "_BertForward"
        assert "forward" not in bert.encoder.layer[0].output.dense.__dict__
    assert "forward" not in bert.__dict__


@needs_prepacking
def test_other_encoders_have_their_linear_layers_replaced():
    model = nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 4, bias=False)))
    rows = torch.linspace(-2, 2, 18).reshape(3, 6)
    expected = model(rows).detach()
    with patched_forwards(model), torch.no_grad():
        patched = model[1][0].__dict__["forward"].by_thread
        assert [type(each).__name__ for each in patched.values()] == ["_LinearForward"]
        torch.testing.assert_close(model(rows), expected)
        torch.testing.assert_close(model(rows[0]), expected[0])
        assert model(rows[:0]).shape == (0, 4)
    assert "forward" not in model[1][0].__dict__


def test_an_error_inside_leaves_nothing_behind(dense):
    with pytest.raises(KeyError, match="stop"), patched_forwards(dense):
        raise KeyError("stop")
    assert not any("forward" in module.__dict__ for module in dense.modules())


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.mul_(1.5),
        lambda weight: weight.data.mul_(1.5),  # leaves no trace in the version counter
        lambda weight: weight.data.mul_(2),  # nor in the last bytes
        lambda weight: setattr(weight, "data", weight.data * 1.5),
    ],
    ids=["in place", "through data", "exponents", "another tensor"],
)
def test_changed_weights_are_followed(own, change):
    before = own.encode_document("pear")
    with torch.no_grad():
        change(own[0].model.encoder.layer[1].intermediate.dense.weight)
    assert not torch.allclose(own.encode_document("pear"), before, atol=1e-3)
    assert_same(own)


@pytest.mark.parametrize(
    "parametrize",
    [lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5), nn.utils.weight_norm, weight_norm],
    ids=["pruned", "weight norm", "parametrization"],
)
def test_weights_that_a_hook_computes_are_used(own, parametrize):
    before = own.encode_document("pear")
    layer = own[0].model.encoder.layer[0].output.dense
    parametrize(layer)
    if hasattr(layer, "weight_g"):
        with torch.no_grad():
            layer.weight_g.mul_(1.5)
    assert_same(own)
    if hasattr(layer, "weight_orig") or hasattr(layer, "weight_g"):
        assert not torch.allclose(own.encode_document("pear"), before, atol=1e-3)


def test_weights_that_move_to_shared_memory_are_followed(own):
    """As for worker processes: the memory that was probed is gone then."""
    before = own.encode_document("pear")
    own.share_memory()
    torch.testing.assert_close(own.encode_document("pear"), before)
    assert_same(own)


def test_replaced_layers_are_followed(own):
    own.encode_document("pear")
    layer = own[0].model.encoder.layer[0].attention.self
    layer.query = nn.Linear(384, 384)
    assert_same(own)
    layer.query = type("Adapter", (nn.Linear,), {"forward": lambda self, x: 0.5 * nn.Linear.forward(self, x)})(384, 384)
    assert_same(own)


def test_replaced_embeddings_are_followed(own):
    own.encode_document("pear")
    embeddings = own[0].model.embeddings
    size = embeddings.word_embeddings.num_embeddings
    embeddings.word_embeddings = nn.Embedding(size, 384)
    assert_same(own)
    scaled = type("Scaled", (nn.Embedding,), {"forward": lambda self, ids: 0.5 * nn.Embedding.forward(self, ids)})
    embeddings.word_embeddings = scaled(size, 384)
    assert_same(own)


def test_a_deleted_layer_is_followed(own):
    before = own.encode_document("pear")
    del own[0].model.encoder.layer[1]
    assert not torch.allclose(own.encode_document("pear"), before, atol=1e-3)
    assert_same(own)


def test_a_module_added_to_a_layer_is_followed(own):
    own.encode_document("pear")
    nn.utils.parametrize.register_parametrization(
        own[0].model.encoder.layer[0].output.dense,
        "weight",
        type("Half", (nn.Module,), {"forward": lambda _, x: x / 2})(),
    )
    assert_same(own)


def test_hooks_in_a_new_dictionary_are_called(own):
    own.encode_document("pear")
    layer, seen = own[0].model.encoder.layer[1], []
    layer._forward_hooks = OrderedDict()
    layer.register_forward_hook(lambda *_: seen.append(1))
    own.encode_document("pear")
    assert seen == [1]


@pytest.mark.parametrize("find", [lambda bert: bert.encoder.layer[1], lambda bert: bert.embeddings.word_embeddings])
def test_hooks_inside_are_called(own, find):
    own.encode_document("pear")
    seen = []
    handle = find(own[0].model).register_forward_hook(lambda *_: seen.append(1))
    own.encode_document("pear")
    handle.remove()
    own.encode_document("pear")
    assert seen == [1]


def test_gradients_flow_beside_encoding(own):
    features = own.tokenize(["pear", "apple"], is_query=False)
    weight = own[0].model.encoder.layer[0].attention.self.key.weight
    gradients = []

    def train():
        own.zero_grad()
        own(dict(features))["token_embeddings"].sum(dim=1).square().sum().backward()
        gradients.append(weight.grad.clone())

    own.eval()
    train()
    with inference(own, CPU, None):
        thread = threading.Thread(target=train)  # the mode without gradients is of a thread
        thread.start()
        thread.join()
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0].abs().sum() > 0


def test_compiled_models_are_left_alone(dense):
    compiled = nn.Sequential(nn.Linear(3, 3))
    compiled.compile(backend="eager")
    with patched_forwards(compiled):
        assert "forward" not in compiled[0].__dict__


def test_checking_the_operators_takes_no_random_numbers():
    state = torch.random.get_rng_state()
    can_prepack.__wrapped__(torch.float32)
    assert torch.equal(torch.random.get_rng_state(), state)


@needs_prepacking
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_layers_side_by_side(dtype):
    if not can_prepack(dtype):
        pytest.skip(f"oneDNN lays out no weights in {dtype} on this processor")
    linears = (nn.Linear(7, 4), nn.Linear(7, 2))
    rows = torch.linspace(-1, 1, 35).reshape(5, 7)
    with torch.no_grad():
        product = PrepackedLinear(*linears).multiply(rows, dtype, linears, "none")
        expected = torch.cat([linear(rows) for linear in linears], dim=1)
    assert product.dtype == dtype
    tolerance = 7 * torch.finfo(dtype).eps  # seven products of numbers up to 1
    torch.testing.assert_close(product.float(), expected, rtol=tolerance, atol=tolerance)


WITHOUT_BFLOAT16 = """
import sys, torch
from latelier.models import ColBERT
from latelier.models.encoding import prefers_bfloat16
from latelier.models.cpu.prepacked import can_prepack
model = ColBERT.from_dense(sys.argv[1], device="cpu")
exact, rounded = (model.encode_document("wings push air down", compute_dtype=d) for d in ("float32", "bfloat16"))
print(can_prepack(torch.float32), can_prepack(torch.bfloat16), end=" ")
print(prefers_bfloat16(10**6, torch.device("cpu"), torch.float32), end=" ")
print(torch.cosine_similarity(torch.as_tensor(exact), torch.as_tensor(rounded)).min().item())
"""


@needs_prepacking
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the instructions are those of x86")
def test_bfloat16_is_computed_by_the_layers_where_it_cannot_be_prepacked(shallow):
    """Where oneDNN has no bfloat16, whatever the processor is called."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", WITHOUT_BFLOAT16, shallow]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    *answers, cosine = done.stdout.split()
    assert answers == ["True", "False", "False"]
    assert 0.99 < float(cosine) < 1
