"""`TokenEmbeddings`: made, cut, converted, written and read again, also from damaged files."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from soak.arguments import NONSENSE, any_matrix, dress, matrices, spoil
from soak.caller import REFUSED, Caller, close
from soak.cases import Wrong

_TARGETS = st.sampled_from(
    ["float32", "float16", "bfloat16", "int8", "numpy", "torch", "cpu", torch.float16, torch.int8]
)
_OFFSETS = st.lists(
    st.one_of(st.integers(0, 9), st.sampled_from([2**63 - 1, -(2**63), -2, 2**62, 2**31, 2**64, 0.5, None, "1"])),
    max_size=5,
)


def construct(call: Caller, scratch: Path) -> None:
    """The constructor: what it accepts, it can hand out again."""
    draw = call.draw
    vectors = any_matrix(draw) if draw(st.booleans()) else np.ones((9, 2), dtype="float32")
    offsets = draw(st.one_of(_OFFSETS, st.just([0, 4, 9]), st.just([0, 9, 4, 9]), _OFFSETS.map(_array), NONSENSE))
    scales = draw(st.one_of(st.none(), st.none(), NONSENSE, st.just(np.ones(9)), st.just(torch.ones(9))))
    found = call(TokenEmbeddings, vectors, offsets, scales)
    if found is not REFUSED:
        _use(call, found)
        if found.num_tokens != sum(found.lengths) or (found.lengths < 0).any():
            raise Wrong(f"lengths {found.lengths} of {found.num_tokens} tokens")


def pack(call: Caller, scratch: Path) -> None:
    """``from_list``, ``from_padded`` and ``concatenate``."""
    draw = call.draw
    given = matrices(draw, draw(st.integers(1, 4)), draw(st.integers(1, 5)), least=0)
    valid = draw(st.booleans())
    texts = dress(draw, given, ("numpy", "torch", "tuple", "nested") if all(map(len, given)) else ("numpy", "tuple"))
    texts = texts if valid else spoil(draw, texts)
    found = call(TokenEmbeddings.from_list, texts.value, valid=valid)
    if valid:
        _compare(found, texts.matrices)
        both = call(TokenEmbeddings.concatenate, [found, found], valid=True)
        _compare(both, texts.matrices * 2)
    padded = dress(draw, given, ("padded numpy", "padded torch"))
    mask = padded.mask if valid and padded.mask is not None else draw(NONSENSE)
    found = call(TokenEmbeddings.from_padded, padded.value if draw(st.booleans()) else draw(NONSENSE), mask)
    if found is not REFUSED:
        _use(call, found)
    call(TokenEmbeddings.concatenate, draw(st.one_of(NONSENSE, st.lists(NONSENSE, max_size=2))))


def cut(call: Caller, scratch: Path) -> None:
    """Indexing: as a list of matrices is indexed."""
    draw, index = call.draw, None
    given = matrices(draw, draw(st.integers(0, 4)), 3, least=0)
    made = TokenEmbeddings.from_list(given, dim=3).to(draw(_TARGETS))
    exact = made.to("float32").to("numpy")
    small = st.integers(-6, 6)
    index = draw(
        st.one_of(
            small,
            st.slices(5),
            st.lists(small, max_size=4),
            st.lists(small, max_size=4).map(lambda x: np.array(x, dtype="int64")),
            st.lists(st.booleans(), max_size=5).map(np.array),
            st.sampled_from(
                [10**30, -(2**63), 1.0, None, "0", [1.5], [None], [[0]], np.int8(0), (0, 1), ..., np.array(0)]
            ),
            NONSENSE,
        )
    )
    found = call(made.__getitem__, index, may=(IndexError,))
    if found is REFUSED or isinstance(index, (bool, np.bool_)):
        return
    if isinstance(index, (int, np.integer)):
        close(torch.as_tensor(found).float(), exact[int(index)], "matrix")
    elif isinstance(index, slice):
        _compare(found, [np.asarray(exact[i]) for i in range(*index.indices(len(exact)))])
    elif isinstance(index, list) and all(type(i) is int for i in index):
        _compare(found, [np.asarray(exact[i]) for i in index])


def convert(call: Caller, scratch: Path) -> None:
    """``to``, ``pad`` and comparison."""
    draw = call.draw
    given = matrices(draw, draw(st.integers(0, 3)), draw(st.integers(1, 4)), least=0)
    made = TokenEmbeddings.from_list(given, dim=2)
    target = draw(_TARGETS)
    found = call(made.to, target, valid=True)
    _use(call, found)
    if "int8" not in str(target):
        _compare(found, given)
    call(
        found.to, draw(st.one_of(NONSENSE, st.sampled_from(["cuda", "mps", "float64", "xpu:99", torch.int32, "cpu:9"])))
    )


def store(call: Caller, scratch: Path) -> None:
    """``save`` and ``load``; a damaged file is refused, or holds what can be used."""
    draw, path = call.draw, scratch / "embeddings.safetensors"
    given = matrices(draw, draw(st.integers(0, 3)), 3, least=0)
    made = TokenEmbeddings.from_list(given, dim=3).to(draw(_TARGETS))
    call(made.save, path, valid=True)
    if call(TokenEmbeddings.load, path, valid=True) != made:
        raise Wrong("loaded other embeddings than were saved")
    rng = random.Random(draw(st.integers(0, 2**32)))
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3])):
        data[rng.randrange(min(len(data), rng.choice([8, 200, len(data)])))] ^= 1 << rng.randrange(8)
    path.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
    found = call(TokenEmbeddings.load, path)
    if found is not REFUSED:
        _use(call, found)


def _use(call: Caller, embeddings: TokenEmbeddings) -> None:
    """Read all of embeddings that were accepted."""
    call(repr, embeddings)
    for matrix in embeddings:
        np.asarray(torch.as_tensor(matrix).detach().float()).sum()
    if embeddings.num_tokens < 10**6 and len(embeddings) < 1000:
        call(embeddings.pad)
        call(embeddings.to, "float16")


def _compare(found: Any, given: list[np.ndarray]) -> None:
    if len(found) != len(given):
        raise Wrong(f"{len(found)} texts, expected {len(given)}")
    for matrix, wanted in zip(found.to("float32").to("numpy"), given, strict=True):
        close(matrix, wanted, "matrix")


def _array(values: list[Any]) -> Any:
    try:
        return np.array(values, dtype="int64")
    except (TypeError, ValueError, OverflowError):
        return np.array(values, dtype=object)


TARGETS = (construct, pack, cut, convert, store)
