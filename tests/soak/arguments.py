"""Arguments: token matrices in every form in which they may be given, ways to spoil them, and nonsense."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings

Draw = Callable[[Any], Any]

_TEXTS = st.one_of(
    st.text(max_size=20), st.text(st.characters(), max_size=5), st.sampled_from(["\ud800", "\0", "a" * 9999])
)
NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    _TEXTS,
    st.binary(max_size=9),
    st.lists(st.one_of(st.integers(), st.floats(), st.none(), _TEXTS), max_size=3),
    st.dictionaries(_TEXTS, st.integers(), max_size=2),
    st.builds(object),
    st.builds(lambda: iter([])),
    st.builds(lambda: {1, 2}),
    st.builds(range, st.integers(0, 5)),
    st.complex_numbers(),
    st.sampled_from([[[]], [[[]]], [None], [[None]], [[["x"]]], [1, [2]], [[1.0], [1.0, 2.0]], np, print, 10**400]),
    st.builds(np.zeros, st.sampled_from([0, (0, 3), (2, 0), (2, 3, 0), (2, 2, 2, 2, 2), (1, 3), ()])),
    st.builds(torch.zeros, st.sampled_from([0, (0, 3), (2, 0), (2, 3, 0), (2, 2, 2, 2, 2), (1, 3), ()])),
)
COUNTS = st.one_of(
    st.integers(1, 5),
    st.sampled_from([0, -1, 2**31, 2**63, 10**30, 1.0, 1.5, True, None, "3", float("nan"), np.int8(3)]),
)


class Texts(NamedTuple):
    """Token matrices as a function may get them: what they are, and what stands for them."""

    matrices: list[np.ndarray]
    value: Any
    mask: Any = None
    tolerance: float = 1e-3


def matrices(draw: Draw, count: int, dim: int, least: int = 1, most: int = 6) -> list[np.ndarray]:
    """Return matrices of eighths, which every floating type holds exactly; no row is all zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = [
        rng.integers(-16, 17, size=(rng.integers(least, most + 1), dim)).astype("float32") / 8 for _ in range(count)
    ]
    for matrix in made:
        matrix[:, :1][matrix[:, :1] == 0] = 0.125
    return made


def dress(draw: Draw, given: list[np.ndarray], forms: tuple[str, ...] = ()) -> Texts:
    """Give matrices one of the forms that functions take."""
    form = draw(st.sampled_from(forms or tuple(_FORMS)))
    return _FORMS[form](draw, given)


def spoil(draw: Draw, texts: Texts) -> Texts:
    """Change one thing about valid matrices; that may leave them valid."""
    return draw(st.sampled_from(_WAYS))(draw, texts)


def any_matrix(draw: Draw) -> Any:
    """Return an array of any shape, type, layout and content."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    dtype = draw(
        st.sampled_from(["<f4", "<f8", "<f2", ">f4", "i1", "u1", "i8", "?", "c8", "O", "U3", "M8[s]", "f4,f4"])
    )
    array = np.asarray(rng.standard_normal(shape) * 4, dtype="float32")
    array = np.asarray(array.astype(dtype)) if dtype != "f4,f4" else np.zeros(shape, dtype)
    special = draw(st.sampled_from([None] * 4 + [np.nan, np.inf, -np.inf, 3e38, 1e-45]))
    if special is not None and array.size and array.dtype.kind == "f":
        array.reshape(-1)[rng.integers(array.size)] = special
    layout = draw(st.sampled_from(["C", "F", "backwards", "read-only", "strided", "torch"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "backwards":
        return array[::-1] if array.ndim else array
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if layout == "read-only":
        array.flags.writeable = False
    if layout == "torch" and dtype in ("<f4", "<f8", "<f2", "i1", "u1", "i8", "?", "c8"):
        return torch.from_numpy(array.copy())
    return array


def _padded(draw: Draw, given: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    width = max((len(matrix) for matrix in given), default=0) + draw(st.integers(0, 2))
    padded = np.zeros((len(given), width, given[0].shape[1] if given else 3), dtype="float32")
    for row, matrix in zip(padded, given, strict=True):
        row[: len(matrix)] = matrix
    return padded, np.arange(width) < np.array([len(matrix) for matrix in given], dtype="int64")[:, None]


def _padded_numpy(draw: Draw, given: list[np.ndarray]) -> Texts:
    padded, mask = _padded(draw, given)
    return Texts(
        given,
        padded.astype(draw(st.sampled_from(["float32", "float64", "float16"]))),
        mask.astype(draw(st.sampled_from(["bool", "int64", "float32"]))),
    )


def _padded_torch(draw: Draw, given: list[np.ndarray]) -> Texts:
    padded, mask = _padded(draw, given)
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    tensor = torch.from_numpy(padded).to(dtype)
    form = draw(st.sampled_from([torch.from_numpy(mask), torch.from_numpy(mask).long(), mask.tolist(), None]))
    return Texts(given, tensor.requires_grad_(draw(st.booleans())), form)


def _packed(draw: Draw, given: list[np.ndarray]) -> Texts:
    target = draw(st.sampled_from(["float32", "float16", "bfloat16", "torch", "int8"]))
    value = TokenEmbeddings.from_list(given, dim=given[0].shape[1] if given else 3).to(target)
    exact = value.to("float32").to("numpy")
    return Texts([np.asarray(matrix) for matrix in exact], value, None, 2e-2 if target == "int8" else 1e-3)


_FORMS: dict[str, Callable[[Draw, list[np.ndarray]], Texts]] = {
    "numpy": lambda draw, given: Texts(
        given, [m.astype(draw_dtype(draw)) for draw_dtype in [_dtype_of(draw)] for m in given]
    ),
    "torch": lambda draw, given: Texts(given, [torch.from_numpy(m.copy()).to(torch.bfloat16) for m in given]),
    "tuple": lambda draw, given: Texts(given, tuple(torch.from_numpy(m.copy()) for m in given)),
    "nested": lambda draw, given: Texts(given, [m.tolist() for m in given]),
    "strided": lambda draw, given: Texts(given, [np.asfortranarray(m)[::-1][::-1] for m in given]),
    "packed": _packed,
    "padded numpy": _padded_numpy,
    "padded torch": _padded_torch,
}


def _dtype_of(draw: Draw) -> Callable[[Draw], str]:
    dtype = draw(st.sampled_from(["float32", "float16", "float64"]))
    return lambda _: dtype


def _spoil_mask(draw: Draw, texts: Texts) -> Texts:
    return texts._replace(
        mask=draw(st.one_of(NONSENSE, st.just(np.ones((3, 2))), st.just(torch.full((2, 3), torch.nan))))
    )


def _spoil_one(draw: Draw, texts: Texts) -> Texts:
    listed = list(texts.matrices)
    if listed:
        listed[draw(st.integers(0, len(listed) - 1))] = any_matrix(draw)
    return Texts([], listed, None)


def _spoil_number(draw: Draw, texts: Texts) -> Texts:
    listed = [matrix.copy() for matrix in texts.matrices]
    number = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38]))
    if listed and listed[0].size:
        listed[0].reshape(-1)[0] = number
    return Texts([], listed, None)


_WAYS = (
    _spoil_mask,
    _spoil_one,
    _spoil_number,
    lambda draw, texts: Texts([], draw(NONSENSE)),
    lambda draw, texts: Texts([], any_matrix(draw)),
    lambda draw, texts: Texts([], [any_matrix(draw) for _ in range(draw(st.integers(0, 3)))]),
    lambda draw, texts: Texts([], [*texts.matrices, draw(NONSENSE)]),
)
