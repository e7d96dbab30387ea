"""INT8 without AVX-512 VNNI, run: exact sums of 8-bit products by vpmaddwd, and by vpdpbusd on 256 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.convolution import build_conv
from narrowcast.backends.cpu.depthwise import build_depthwise
from narrowcast.backends.cpu.gemm import build_matmul
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.precision import FLOAT32, Precision, QParams, Storage

from .groups import execute, group_of
from .test_batched_matmul import check as check_two_tensors
from .test_convolution import Conv, depthwise
from .test_convolution import check as check_convolution
from .test_gemm import check as check_product
from .tiers import INT8_TIERS

INT8 = Precision.INT8


@INT8_TIERS
@settings(max_examples=5, deadline=None)
@given(rows=st.integers(1, 40), depth=st.integers(1, 150), columns=st.integers(1, 130))
def test_any_product(target: Target, rows: int, depth: int, columns: int) -> None:
    check_product(INT8, (rows, depth), columns, target)


@INT8_TIERS
@pytest.mark.parametrize("conv", [
    Conv(2, (9, 7), 3, 20, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    Conv(1, (14, 14), 64, 64, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, (9, 7), 6, 20, (3, 2), strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 2), groups=2),
    Conv(2, (4, 7, 9), 6, 20, (3, 2, 3), strides=(1, 2, 1), padding=(1, 1, 1, 0, 1, 1))], ids=str)
def test_convolution(target: Target, conv: Conv) -> None:
    check_convolution(build_conv, INT8, conv, target)


@INT8_TIERS
@pytest.mark.parametrize("conv", [
    depthwise(21, batch=2, strides=(2, 2), padding=(1, 0, 2, 1)), depthwise(40, kernel=(5, 5), padding=(2, 2, 2, 2)),
    depthwise(1, size=(40, 40), kernel=(23, 23))], ids=str)
def test_depthwise(target: Target, conv: Conv) -> None:
    check_convolution(build_depthwise, INT8, conv, target)


@INT8_TIERS
@settings(max_examples=4, deadline=None)
@given(batch=st.integers(1, 3), rows=st.integers(1, 30), depth=st.integers(1, 140), columns=st.integers(1, 70))
def test_any_product_of_two_tensors(target: Target, batch: int, rows: int, depth: int, columns: int) -> None:
    check_two_tensors(INT8, (batch, rows, depth), (batch, depth, columns), target)


@INT8_TIERS
@pytest.mark.parametrize("depth", [32, 33, 34, 35, 36, 66, 67])
def test_rows_that_fill_vectors_and_a_few_bytes(target: Target, depth: int) -> None:
    """Masked loads of 2 and 3 bytes gave wrong sums of rows on AVX2."""
    check_two_tensors(INT8, (1, 3, depth), (1, depth, 5), target)


@INT8_TIERS
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_products_do_not_saturate(target: Target, sign: float) -> None:
    """255 · 127 in every product: a sum of two of them is beyond 16 bits."""
    depth = 64
    weights = np.full((depth, 24), sign * 127.0, np.float32)
    group = group_of("matmul", [(5, depth)], lambda b, p: b.emit(relax.op.matmul(p[0], ir.constant(weights)), "layer"))
    request = KernelRequest(group, INT8, (Storage("uint8", QParams(1.0, 0)),), (FLOAT32,))
    (actual,) = execute(build_matmul, request, [np.full((5, depth), 255.0, np.float32)], target)
    np.testing.assert_array_equal(actual, sign * 255 * 127 * depth)
