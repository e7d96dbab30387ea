"""Quantized operators of ONNX Runtime's own domain give its levels, to one step where a value lies on the border."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .contributed import check

RNG = np.random.default_rng(0)


def levels(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def zero(value: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(value, dtype)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(op: str, dtype: type, known: bool) -> None:
    inputs = [levels(3, 1, 7, dtype=dtype), scale(0.03), zero(5, dtype), levels(4, 7, dtype=dtype), scale(0.02),
              zero(100, dtype), scale(0.07), zero(9, dtype)]
    check(op, inputs, (1, 2, 4, 5, 6, 7) if known else (), levels=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op, attributes", [
    ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2}), ("QLinearSoftmax", {"opset": 13, "axis": 1}),
    ("QLinearSoftmax", {"opset": 11, "axis": 1}),
])
def test_unary(op: str, attributes: dict[str, object], dtype: type) -> None:
    inputs = [levels(3, 5, 7, dtype=dtype), scale(0.05), zero(20, dtype), scale(1 / 256),
              zero(np.iinfo(dtype).min, dtype)]
    check(op, inputs, (1, 2, 3, 4), levels=1, **attributes)


@pytest.mark.parametrize("last", [0, 1])
def test_pools(last: int) -> None:
    inputs = [levels(2, 3, 9, 7), scale(0.05), zero(20), scale(0.04), zero(10)]
    check("QLinearAveragePool", inputs, (1, 2, 3, 4), levels=1, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1],
          channels_last=last, count_include_pad=1 - last)
    check("QLinearGlobalAveragePool", inputs, (1, 2, 3, 4), levels=1, channels_last=last)


def test_concat() -> None:
    inputs = [scale(0.06), zero(7), levels(2, 3), scale(0.05), zero(20), levels(2, 5), scale(0.03), zero(1)]
    check("QLinearConcat", inputs, (0, 1, 3, 4, 6, 7), levels=1, axis=1)


def test_where() -> None:
    inputs = [RNG.random((4, 3)) < 0.5, levels(4, 3), scale(0.05), zero(20), levels(4, 3), scale(0.03), zero(1),
              scale(0.06), zero(7)]
    check("QLinearWhere", inputs, (2, 3, 5, 6, 7, 8), levels=1)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_convolution(dtype: type, known: bool) -> None:
    inputs = [levels(1, 3, 7, 5), scale(0.05), zero(20), levels(4, 3, 3, 3, dtype=dtype),
              np.array([0.01, 0.02, 0.005, 0.015], np.float32), np.zeros(4, dtype), scale(0.3), zero(128),
              RNG.integers(-500, 500, 4).astype(np.int32)]
    check("QLinearConv", inputs, (1, 2, 3, 4, 5, 6, 7, 8) if known else (3, 5, 8), levels=1, pads=[1, 1, 1, 1])


@pytest.mark.parametrize("result", ["uint8", "float"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int, result: str) -> None:
    b = levels(6, 5, dtype=np.int8) if transposed else levels(5, 6, dtype=np.int8)
    inputs = [levels(4, 5), scale(0.05), zero(20), b, np.linspace(0.01, 0.02, 6, dtype=np.float32),
              np.zeros(6, np.int8), RNG.integers(-500, 500, 6).astype(np.int32),
              *([scale(0.2), zero(128)] if result == "uint8" else [])]
    check("QGemm", inputs, tuple(range(1, len(inputs))), levels=1, transB=transposed, alpha=1.0)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 700), st.sampled_from([np.int8, np.uint8]), st.booleans(), st.booleans())
def test_integer_products_are_exact(length: int, dtype: type, known: bool, per_column: bool) -> None:
    """Beyond 258 the sums no longer fit into the mantissa of float32."""
    points = levels(7, dtype=dtype) if per_column else zero(3, dtype)
    inputs = [levels(3, length), levels(length, 7, dtype=dtype), scale(0.05), scale(0.01), zero(250), points]
    check("MatMulIntegerToFloat", inputs, (1, 5) if known else (), tolerance=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_dynamically_quantized_product(known: bool) -> None:
    inputs = [RNG.standard_normal((2, 3, 65), dtype=np.float32), levels(65, 7, dtype=np.int8),
              np.linspace(0.01, 0.02, 7, dtype=np.float32), np.zeros(7, np.int8), np.ones(7, np.float32)]
    check("DynamicQuantizeMatMul", inputs, (1, 2, 3, 4) if known else (), tolerance=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "float"])
@pytest.mark.parametrize("rows", [64, 80])
def test_product_with_packed_weights(bits: int, points: str, rows: int) -> None:
    if points == "float" and bits == 8:
        pytest.skip("ONNX Runtime takes packed zero points of 8 bits only")
    block, columns = 32, 6
    blocks = -(-rows // block)
    inputs: list[np.ndarray | None] = [
        RNG.standard_normal((3, rows), dtype=np.float32), levels(columns, blocks, block * bits // 8),
        RNG.random((columns, blocks), dtype=np.float32) / 2 ** bits]
    if points == "packed":
        inputs.append(levels(columns, -(-blocks * bits // 8)))
    elif points == "float":
        inputs.append(RNG.integers(0, 16, (columns, blocks)).astype(np.float32))
    check("MatMulNBits", inputs, tuple(range(1, len(inputs))), tolerance=1e-4, K=rows, N=columns, bits=bits,
          block_size=block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", [True, False])
def test_rows_of_a_packed_table(bits: int, points: bool) -> None:
    """The blocks lie along the second axis; 80 numbers are two and a half blocks."""
    inputs: list[np.ndarray] = [levels(5, 80 * bits // 8), np.array([[3, 0], [1, 4]]),
                                RNG.random((5, 3), dtype=np.float32)]
    inputs += [levels(5, -(-3 * bits // 8))] if points else []
    check("GatherBlockQuantized", inputs, (0, 2, 3) if points else (0, 2), bits=bits, block_size=32, quantize_axis=1,
          gather_axis=0)
