"""Training with several processes: real ones, that exchange gradients by gloo, against one that has the whole batch."""

import copy
import multiprocessing
import socket
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from naive_losses import Lexicon, features, vocabulary_texts
from torch.nn.parallel import DistributedDataParallel

from latelier.errors import InvalidArgumentError
from latelier.losses import CachedContrastive, Contrastive
from latelier.models import ColBERT

# Rows of each process: batches need not be equal.
SHARES = {"equal": [(0, 2), (2, 4)], "unequal": [(0, 3), (3, 4)]}
LOSSES = {
    "mean": (Contrastive, {}),
    "sum": (Contrastive, {"size_average": False}),
    "cached": (CachedContrastive, {"mini_batch_size": 1}),
    "dims": (Contrastive, {"dims": (6, 3), "temperature": 0.5}),
    "unmasked": (Contrastive, {"mask_duplicates": False}),
}


def columns(first, last):
    """Rows of a batch of four: a query, its positive, a hard negative; one query and one text come twice."""
    queries = vocabulary_texts(4, 0, lowest=4)
    queries[3] = queries[0]
    positives, negatives = vocabulary_texts(4, 1), vocabulary_texts(4, 2)
    negatives[2] = positives[1]
    return [
        features(queries[first:last], "query"),
        features(positives[first:last], "document"),
        features(negatives[first:last], "document"),
    ]


def value_and_gradient(loss, model, batch):
    value = loss(batch)
    value.backward()
    return value.item(), model.table.weight.grad.clone()


def make_model():
    torch.manual_seed(3)
    return Lexicon()


# Encoders of transformers have buffers and a pooler. The later texts are long: their process needs more forward passes.
REAL = {
    "BERT, cached": (CachedContrastive, {"mini_batch_size": 2}, (3, 2)),
    "BERT, long texts": (Contrastive, {"mini_batch_tokens": 64}, (2, 2)),
}


def texts_of_a_batch(bert, first, last):
    texts = [
        f"{word} pear trees grow in gardens " * (1 if i < 2 else 8)
        for i, word in enumerate(("a", "my", "no", "2", "3"))
    ]
    queries = [f"where do {i} pears grow?" for i in range(5)]
    return [bert.tokenize(queries[first:last], is_query=True), bert.tokenize(texts[first:last], is_query=False)]


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def run_process(rank, port, shares, results, bert):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {}
    for share, rows in shares.items():
        for name, (kind, options) in LOSSES.items():
            model = make_model()
            loss = kind(DistributedDataParallel(model), gather_across_devices=True, **options)
            found[share, name] = value_and_gradient(loss, model, columns(*rows[rank]))
    for name, (kind, options, sizes) in REAL.items():
        loss = kind(DistributedDataParallel(copy.deepcopy(bert)), gather_across_devices=True, **options)
        first = sum(sizes[:rank])
        loss(texts_of_a_batch(bert, first, first + sizes[rank])).backward()
        found[name] = gradients(loss.model.module)
    poolers = [weight.requires_grad_() for name, weight in bert.named_parameters() if ".pooler." in name]
    with pytest.raises(InvalidArgumentError, match=r"such as .*pooler.*find_unused_parameters=True"):
        Contrastive(DistributedDataParallel(bert))(texts_of_a_batch(bert, 0, 2))
    assert poolers
    alone = make_model()
    found["alone"] = value_and_gradient(
        Contrastive(DistributedDataParallel(alone)), alone, columns(2 * rank, 2 * rank + 2)
    )
    torch.save(found, results / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def bert(tiny):
    return ColBERT(tiny, 16, "cpu", max_length_query=12).eval()


@pytest.fixture(scope="module")
def results(tmp_path_factory, bert):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    method = "spawn" if sys.platform == "win32" else "forkserver"
    multiprocessing.set_forkserver_preload(["latelier.losses"])
    mp.start_processes(run_process, args=(port, SHARES, folder, bert), nprocs=2, start_method=method)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_one_process_with_the_whole_batch(results, share, name):
    kind, options = LOSSES[name]
    model = make_model()
    expected, wanted = value_and_gradient(kind(model, **options), model, columns(0, 4))
    assert wanted.abs().max() > 1e-2
    values = [found[share, name][0] for found in results]
    assert sum(values) / 2 == pytest.approx(expected, rel=1e-5)
    for found in results:
        torch.testing.assert_close(found[share, name][1], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", REAL)
def test_processes_may_need_different_numbers_of_forward_passes_of_a_real_encoder(results, bert, name):
    kind, options, sizes = REAL[name]
    alone = copy.deepcopy(bert)
    kind(alone, **options)(texts_of_a_batch(bert, 0, sum(sizes))).backward()
    wanted = gradients(alone)
    assert wanted.keys() == results[0][name].keys() == results[1][name].keys()
    for found in results:
        for weight, gradient in found[name].items():
            torch.testing.assert_close(gradient, wanted[weight], rtol=1e-3, atol=1e-6)


def test_processes_that_do_not_gather_have_their_own_negatives(results):
    models = [make_model(), make_model()]
    parts = [value_and_gradient(Contrastive(model), model, columns(2 * i, 2 * i + 2)) for i, model in enumerate(models)]
    assert [found["alone"][0] for found in results] == pytest.approx([value for value, _ in parts], rel=1e-5)
    torch.testing.assert_close(results[0]["alone"][1], (parts[0][1] + parts[1][1]) / 2, rtol=1e-4, atol=1e-6)
