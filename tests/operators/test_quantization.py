"""Grids of tensors and of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from narrowcast.operators import fake_quantize
from narrowcast.operators.quantization import Grid, grid_of, quantize_weights, scale_and_offset, sum_factors
from narrowcast.operators.reference import evaluate_tensor
from narrowcast.precision import QParams

X = relax.Var("x", relax.TensorType((64,), "float32"))


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("zero_point", "low", "high"), [(0, 0, 255), (-3, -128, 127), (128, 0, 255), (5, 0, 127),
                                                         (100, -2**15, 2**15 - 1)])
def test_fake_quantize_is_what_pytorch_computes(zero_point: int, low: int, high: int) -> None:
    x = torch.from_numpy(values(0, 64)) * 4
    call = fake_quantize(X, scale=0.03, zero_point=zero_point, low=low, high=high)
    expected = torch.fake_quantize_per_tensor_affine(x, 0.03, zero_point, low, high)
    torch.testing.assert_close(evaluate_tensor(call, [x]), expected, rtol=0, atol=1e-7)


def test_fake_quantize_passes_the_gradient_where_nothing_saturates() -> None:
    x = torch.tensor([-1.0, 0.1, 2.0, 50.0], requires_grad=True)
    evaluate_tensor(fake_quantize(X, scale=0.1, zero_point=0, low=0, high=255), [x]).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_calls_compare_by_their_grids() -> None:
    one, same, other = (fake_quantize(X, scale=0.1, zero_point=z, low=0, high=255) for z in (3, 3, 4))
    assert tvm_ffi.structural_equal(one, same) and not tvm_ffi.structural_equal(one, other)
    assert grid_of(one) == Grid(0.1, 3, 0, 255) and grid_of(relax.op.nn.relu(X)) is None


def test_int8_grids_are_shifted_to_unsigned_storage() -> None:
    assert Grid(0.5, -3, -128, 127).qparams == QParams(0.5, 125)
    assert Grid(0.5, -3, -128, 127).fills_storage and not Grid(0.5, 0, 0, 127).fills_storage
    assert Grid(0.5, 0, -2**15, 2**15 - 1).qparams is None


def test_other_weights_are_quantized_by_their_largest() -> None:
    weights = np.array([[1.0, 0.0], [-2.0, 0.0], [0.3, 0.0], [0.77, 0.0]], np.float32)
    levels, scales = quantize_weights(weights, per_channel=True)
    np.testing.assert_array_equal(levels, [[64, 0], [-127, 0], [19, 0], [49, 0]])
    np.testing.assert_array_equal(scales, np.float32([2.0 / 127, 1.0]))
    assert quantize_weights(weights, per_channel=False)[1].tolist() == [np.float32(2.0 / 127)] * 2


@given(seed=st.integers(0, 2**32 - 1), largest=st.integers(1, 127), rows=st.integers(1, 40), columns=st.integers(1, 8),
       axis=st.sampled_from([0, -1]), folded=st.booleans())
def test_given_weights_keep_their_values(seed: int, largest: int, rows: int, columns: int, axis: int,
                                         folded: bool) -> None:
    generator = np.random.default_rng(seed)
    given_levels = generator.integers(-largest - (largest == 127), largest + 1, size=(rows, columns))
    given_scales = generator.uniform(1e-4, 1.0, size=columns).astype(np.float32)
    weights = (given_levels * given_scales).astype(np.float32)
    if folded:  # A pass has multiplied channels with constants.
        weights *= generator.uniform(0.5, 2.0, size=columns).astype(np.float32)
    levels, scales = quantize_weights(weights if axis else weights.T, axis, per_channel=True)
    held = (levels if axis else levels.T) * scales
    bound = np.float32(2.0**-22) * np.abs(weights).max(axis=0)
    assert (np.abs(held - weights) <= bound).all()
    assert levels.dtype == np.int8


def test_the_given_scale_itself_is_found() -> None:
    levels = np.random.default_rng(0).integers(-127, 128, size=(256, 16))
    levels[0] = 127
    scales = np.random.default_rng(1).uniform(1e-3, 1.0, size=16).astype(np.float32)
    found_levels, found = quantize_weights((levels * scales).astype(np.float32), per_channel=True)
    np.testing.assert_array_equal(found_levels, levels)
    np.testing.assert_allclose(found, scales, rtol=2.0**-23)


def test_one_channel_off_every_grid_means_that_nothing_was_given() -> None:
    weights = np.random.default_rng(0).integers(-100, 101, size=(50, 2)).astype(np.float32)
    weights[:, 1] += values(1, 50)
    np.testing.assert_array_equal(quantize_weights(weights, per_channel=True)[1], np.abs(weights).max(axis=0) / 127)


def test_offset_removes_the_zero_point_and_adds_the_bias() -> None:
    quantized = np.array([[1, -3], [2, 5]], np.int8)
    scale, offset = scale_and_offset(quantized, np.float32([0.5, 0.25]), QParams(0.1, 7), np.float32([1, 2]))
    np.testing.assert_allclose(scale, [0.05, 0.025], rtol=1e-7)
    np.testing.assert_allclose(offset, [1 - 0.05 * 7 * 3, 2 - 0.025 * 7 * 2], rtol=1e-6)


def test_a_bias_in_units_of_the_accumulator_is_added_to_it() -> None:
    levels, scales, data = np.array([[1, -3], [2, 5]], np.int8), np.float32([0.5, 0.25]), QParams(0.1, 7)
    grid = Grid(0.2, 3, 0, 255)
    bias = (np.float32([900, -12]) * (np.float32(0.1) * scales)).astype(np.float32)
    scale, offset = scale_and_offset(levels, scales, data, bias, (), grid)
    np.testing.assert_array_equal(offset, np.int32([900 - 7 * 3, -12 - 7 * 2]))
    np.testing.assert_array_equal(scale, np.float32(0.1) * scales / np.float32(0.2))
    scale, offset = scale_and_offset(levels, scales, data, bias + np.float32(0.013), (), grid)
    assert offset.dtype == np.float32
    np.testing.assert_allclose(offset, (bias + 0.013 - 0.1 * 7 * scales * [3, 2]) / 0.2, rtol=1e-6)


def test_sums_of_levels_are_in_levels_of_the_result() -> None:
    a, b, grid = QParams(0.1, 7), QParams(0.03, 200), Grid(0.11, -20, -128, 127)
    left, right, fixed = sum_factors(a, b, grid)
    total = 0.1 * (50 - 7) + 0.03 * (90 - 200)
    assert np.isclose(left * 50 + right * 90 + fixed, total / 0.11 + 108, rtol=1e-6)
