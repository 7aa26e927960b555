"""Rows converted for the multiplication, with the instructions of this processor or without."""

import numpy as np
import pytest

from latelier.kernels.conversion import BFLOAT16, FLOAT16, INT8, WIDE_INT8, convert_rows

pytestmark = pytest.mark.processor


def convert(rows, kind, words):
    out = np.zeros((8, words), dtype="int32")
    convert_rows(rows.ctypes.data, len(rows), (kind, rows.shape[1], rows.strides[0]), out)
    return out


def test_every_float16_keeps_its_value():
    halves = np.arange(1 << 16, dtype="uint16").view("float16").reshape(8, -1)
    found = convert(halves, FLOAT16, halves.shape[1]).view("float32")
    assert np.array_equal(found, halves.astype("float32"), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(halves))


def test_rows_are_padded_and_repeated():
    values = np.array([[1.5, -2.0, 0.25], [3.0, -0.5, 64.0]], dtype="float32")
    upper_halves = np.ascontiguousarray(values.view("uint16")[:, 1::2])
    found = convert(upper_halves, BFLOAT16, 4).view("float32")
    assert found.tolist() == [[1.5, -2.0, 0.25, 0.0], *[[3.0, -0.5, 64.0, 0.0]] * 7]


def test_signed_bytes_are_shifted():
    codes = np.arange(-127, 128, dtype="int8").reshape(1, -1)
    for kind, dtype in ((INT8, "uint8"), (WIDE_INT8, "uint16")):
        found = convert(codes, kind, 128).view(dtype)
        assert found[0, :255].tolist() == found[7, :255].tolist() == list(range(1, 256))
