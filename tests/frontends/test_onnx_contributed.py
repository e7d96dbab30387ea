"""Fused operators of ONNX Runtime's own domain mean what they mean there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import UnsupportedOperatorError

from .contributed import check, expected, imported, model

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelus(op: str) -> None:
    check(op, [4 * normal(3, 17)])


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelus_after_a_bias(op: str) -> None:
    check(op, [normal(2, 3, 7), normal(7)], (1,))


def test_bias_split_gelu_and_bias_add() -> None:
    """These have no CPU kernels in ONNX Runtime; the expected values follow their definitions."""
    from math import erf
    x, bias, skip = normal(2, 3, 10), normal(10), normal(2, 3, 10)
    (got,) = imported(model("BiasSplitGelu", [x, bias]), [x, bias])
    left, right = np.split((x + bias).astype(np.float64), 2, axis=-1)
    np.testing.assert_allclose(got, left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2))), atol=1e-5)
    (got,) = imported(model("BiasAdd", [x, bias, skip]), [x, bias, skip])
    np.testing.assert_allclose(got, x + bias + skip, atol=1e-6)


@pytest.mark.parametrize("activation, parameters", [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.75]),
    ("HardSigmoid", [0.3, 0.4]),
])
def test_fused_convolution(activation: str, parameters: list[float]) -> None:
    check("FusedConv", [normal(1, 3, 7, 5), normal(4, 3, 3, 3), normal(4)], (1, 2), pads=[1, 1, 1, 1],
          activation=activation, **({"activation_params": parameters} if parameters else {}))


def test_fused_convolution_with_a_residual() -> None:
    check("FusedConv", [normal(1, 3, 7, 5), normal(4, 3, 1, 1), normal(4), normal(1, 4, 7, 5)], (1, 2),
          activation="Relu")


def test_channels_last_convolution() -> None:
    x, w, bias = normal(1, 7, 5, 3), normal(4, 3, 3, 3), normal(4)
    (got,) = imported(model("NhwcConv", [x, w, bias], (1, 2)), [x, w, bias], (1, 2))
    first = [x.transpose(0, 3, 1, 2).copy(), w, bias]
    (want,) = expected(model("FusedConv", first, (1, 2)), first, (1, 2))
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), want, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_channels_last_pool_of_integers(dtype: type) -> None:
    x = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (2, 7, 5, 3)).astype(dtype)
    check("NhwcMaxPool", [x], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])


@settings(max_examples=12, deadline=None)
@given(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_fused_matmul(left: bool, right: bool, batch_left: bool, batch_right: bool, known: bool) -> None:
    def operand(rows: int, columns: int, transposed: bool, batch: bool) -> np.ndarray:
        x = normal(2, 3, rows, columns)
        x = x.swapaxes(-1, -2) if transposed else x
        return np.ascontiguousarray(x.transpose(2, 0, 1, 3) if batch else x)

    a, b = operand(4, 5, left, batch_left), operand(5, 6, right, batch_right)
    check("FusedMatMul", [a, b], (1,) if known else (), transA=int(left), transB=int(right),
          transBatchA=int(batch_left), transBatchB=int(batch_right), alpha=0.5)


def test_fused_gemm() -> None:
    check("FusedGemm", [normal(4, 5), normal(6, 5), normal(6)], (1, 2), transB=1, alpha=0.5, beta=2.0,
          activation="LeakyRelu", activation_alpha=0.25)


def test_fused_matmul_activation() -> None:
    """ONNX Runtime has it for other devices only."""
    a, b = normal(2, 4, 5), normal(5, 6)
    (got,) = imported(model("FusedMatMulActivation", [a, b], activation="Relu", alpha=2.0), [a, b])
    np.testing.assert_allclose(got, np.maximum(2 * a @ b, 0), atol=1e-5)


def test_bias_softmax() -> None:
    """ONNX Runtime has it for other devices only."""
    x, bias = normal(2, 3, 4, 5), normal(2, 1, 1, 5)
    (got,) = imported(model("BiasSoftmax", [x, bias], axis=3, is_inner_broadcast=1), [x, bias])
    powers = np.exp((x + bias).astype(np.float64))
    np.testing.assert_allclose(got, powers / powers.sum(axis=-1, keepdims=True), atol=1e-6)


def test_older_forms_of_onnx_operators() -> None:
    check("Pad", [normal(3, 4), np.array([[0, 1, 2, 0]]), np.array([1.5], np.float32)], (1, 2))
    check("ExpandDims", [normal(3, 4), np.array(-1, np.int32)], (1,))
    check("Trilu", [normal(2, 4, 4), np.array(1)], (1,), upper=0)
    check("GridSample", [normal(1, 2, 5, 6), RNG.uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)],
          padding_mode="border")
    check("GatherND", [normal(3, 4, 5), np.array([[0, 1], [2, 3]])], (1,))


def test_products_of_integers() -> None:
    a, b = RNG.integers(0, 256, (3, 5)).astype(np.uint8), RNG.integers(0, 256, (3, 5)).astype(np.uint8)
    operands = [a, np.array(3, np.uint8), b, np.array(200, np.uint8)]
    (got,) = imported(model("MulInteger", operands, (1, 3)), operands, (1, 3))
    np.testing.assert_array_equal(got, (a.astype(np.int32) - 3) * (b.astype(np.int32) - 200))
    wide = RNG.integers(-3000, 3000, (4, 5)).astype(np.int16)
    (got,) = imported(model("MatMulInteger16", [wide, wide.T.copy()]), [wide, wide.T.copy()])
    np.testing.assert_array_equal(got, wide.astype(np.int32) @ wide.T.astype(np.int32))
    (got,) = imported(model("ReduceSumInteger", [a], axes=[1], keepdims=0), [a])
    np.testing.assert_array_equal(got, a.astype(np.int32).sum(axis=1))


@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(activation: int) -> None:
    """ONNX Runtime has it for other devices only."""
    x, gamma, beta, skip, bias = normal(2, 3, 5, 8), normal(8), normal(8), normal(2, 8), normal(8)
    inputs = [x, gamma, beta, skip, bias]
    y, total = imported(model("SkipGroupNorm", inputs, (1, 2), 2, groups=2, activation=activation), inputs, (1, 2))
    s = x + skip[:, None, None] + bias
    np.testing.assert_allclose(total, s, atol=1e-6)
    grouped = s.reshape(2, 15, 2, 4).astype(np.float64)
    mean, variance = grouped.mean(axis=(1, 3), keepdims=True), grouped.var(axis=(1, 3), keepdims=True)
    want = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(s.shape) * gamma + beta
    np.testing.assert_allclose(y, want / (1 + np.exp(-want)) if activation else want, atol=1e-5)


def test_an_unknown_activation_is_refused() -> None:
    inputs = [normal(1, 3, 4, 4), normal(4, 3, 1, 1)]
    with pytest.raises(UnsupportedOperatorError, match="Softsign"):
        imported(model("FusedConv", inputs, (1,), activation="Softsign"), inputs, (1,))
