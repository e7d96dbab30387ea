"""Storages in NumPy: rounding and saturation."""

from __future__ import annotations

import numpy as np
import torch

from narrowcast.backends.cpu.arrays import decode_array, encode_array
from narrowcast.precision import BFLOAT16, FLOAT32, QParams, Storage


def test_bfloat16_rounds_to_nearest_even_as_pytorch_does() -> None:
    x = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    x[:6] = [1.00390625, 1.01171875, np.inf, -np.inf, 3.4e38, 0.0]
    expected = torch.tensor(x).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode_array(encode_array(x, BFLOAT16), BFLOAT16), expected)


def test_bfloat16_keeps_nan() -> None:
    assert np.isnan(decode_array(encode_array(np.array([np.nan], np.float32), BFLOAT16), BFLOAT16)).all()


def test_uint8_rounds_half_to_even_and_saturates() -> None:
    storage = Storage("uint8", QParams(0.5, 10))
    x = np.array([0.25, 0.75, -0.25, 1000.0, -1000.0], np.float32)
    np.testing.assert_array_equal(encode_array(x, storage), [10, 12, 10, 255, 0])
    np.testing.assert_array_equal(decode_array(encode_array(x, storage), storage), [0.0, 1.0, 0.0, 122.5, -5.0])


def test_float32_is_left_alone() -> None:
    x = np.array([1.0], np.float32)
    assert encode_array(x, FLOAT32) is x
