"""Losses by hand, on an encoder of random tables: against loops, and with labels and options that are odd."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from naive_losses import Lexicon, features, naive_contrastive, naive_distillation, score_each, vocabulary_texts

from latelier import losses
from soak.arguments import COUNTS, NONSENSE
from soak.caller import REFUSED, Caller, close
from soak.cases import Wrong

_KINDS = (losses.Distillation, losses.MarginMSE, losses.Contrastive, losses.CachedContrastive)
_NUMBERS = st.one_of(COUNTS, NONSENSE, st.floats())
_OPTIONS = {
    losses.Distillation: ("temperature", "teacher_temperature", "in_batch_weight", "dims", "mini_batch_tokens"),
    losses.MarginMSE: ("dims", "mini_batch_tokens"),
    losses.Contrastive: ("temperature", "dims", "mini_batch_tokens"),
    losses.CachedContrastive: ("temperature", "mini_batch_size", "dims"),
}


def compute(call: Caller, scratch: Path) -> None:
    """The value of a loss, finite as its gradient is, and that of a loop."""
    draw, model = call.draw, Lexicon()
    torch.nn.init.normal_(model.table.weight, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    kind, columns, rows = draw(st.sampled_from(_KINDS)), draw(st.integers(2, 4)), draw(st.integers(1, 4))
    queries = vocabulary_texts(rows, draw(st.integers(0, 2**31)), lowest=4)
    documents = [vocabulary_texts(columns, draw(st.integers(0, 2**31))) for _ in range(rows)]
    batch = [features(queries, "query"), *(features([row[j] for row in documents], "document") for j in range(columns))]
    labels = torch.tensor([[float(j % 3) for j in range(columns)] for _ in range(rows)])
    if kind in (losses.Contrastive, losses.CachedContrastive):
        loss = kind(model, mask_duplicates=False)
        found = call(loss, batch, valid=True)
    else:
        loss = kind(model)
        found = call(loss, batch, labels, valid=True)
    _check(found, model)
    per_query = [
        score_each(model.one(q, "query"), [model.one(d, "document") for d in row])
        for q, row in zip(queries, documents, strict=True)
    ]
    spread = min(max(map(float, row)) - min(map(float, row)) for row in per_query)
    if kind is losses.Distillation and spread > 0.02:  # less of it teaches less
        close(found, naive_distillation(per_query, labels.tolist()).detach(), "loss")
    if kind in (losses.Contrastive, losses.CachedContrastive):
        everyone = [model.one(document, "document") for row in documents for document in row]
        scores = [score_each(model.one(query, "query"), everyone) for query in queries]
        close(found, naive_contrastive(scores, columns).detach(), "loss")


def spoil(call: Caller, scratch: Path) -> None:
    """Labels, features and options that are none."""
    draw, model = call.draw, Lexicon()
    kind = draw(st.sampled_from(_KINDS))
    columns = [features(vocabulary_texts(2, seed), "document" if seed else "query") for seed in range(3)]
    labels: Any = draw(
        st.one_of(
            NONSENSE,
            st.just([[1.0, math.nan], [0.0, 1.0]]),
            st.just([[math.inf, 0.0], [0.0, 1.0]]),
            st.just(np.ones((2, 2), dtype="float16")),
            st.just([[10**400, 1], [1, 2]]),
            st.just(torch.ones(2, 2, dtype=torch.bool)),
        )
    )
    found = call(kind(model), columns, labels)
    if found is not REFUSED:
        _check(found, model)
    call(kind, draw(st.one_of(st.just(model), NONSENSE)), **{draw(st.sampled_from(_OPTIONS[kind])): draw(_NUMBERS)})
    call(kind, model, draw(NONSENSE))
    call(kind(model), draw(st.one_of(NONSENSE, st.lists(st.sampled_from([{}, None, columns[0]]), max_size=3))), labels)


def _check(loss: Any, model: Lexicon) -> None:
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.isfinite():
        raise Wrong(f"the loss is {loss}")
    if loss.requires_grad:
        loss.backward()
        if model.table.weight.grad is not None and not model.table.weight.grad.isfinite().all():
            raise Wrong("its gradient is not finite")


TARGETS = (compute, spoil)
