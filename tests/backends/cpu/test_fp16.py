"""FP16 kernels, their multiply-adds emulated, against float64; what they store, with the hardware's conversions."""

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
from narrowcast.backends.cpu.movement import build_movement
from narrowcast.precision import FLOAT16, FLOAT32, FP16_BLOCK, Precision

from .fp16 import FP16_TARGET, emulated_fp16  # noqa: F401
from .groups import execute, group_of
from .test_attention import Case
from .test_attention import check as check_attention
from .test_batched_matmul import check as check_two_tensors
from .test_convolution import Conv, depthwise
from .test_convolution import check as check_convolution
from .test_gemm import check as check_product

pytestmark = [pytest.mark.isa("avx512_bf16"), pytest.mark.usefixtures("emulated_fp16")]
FP16 = Precision.FP16


@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 40), depth=st.integers(1, 150), columns=st.integers(1, 130))
def test_any_product(rows: int, depth: int, columns: int) -> None:
    check_product(FP16, (rows, depth), columns, FP16_TARGET)


@pytest.mark.parametrize("conv", [
    Conv(2, (9, 7), 3, 20, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    Conv(1, (14, 14), 64, 64, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, (9, 7), 6, 20, (3, 2), strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 2), groups=2),
    Conv(2, (4, 7, 9), 6, 20, (3, 2, 3), strides=(1, 2, 1), padding=(1, 1, 1, 0, 1, 1))], ids=str)
def test_convolution(conv: Conv) -> None:
    check_convolution(build_conv, FP16, conv, FP16_TARGET)


@pytest.mark.parametrize("conv", [
    depthwise(21, batch=2, strides=(2, 2), padding=(1, 0, 2, 1)), depthwise(40, kernel=(5, 5), padding=(2, 2, 2, 2))],
    ids=str)
def test_depthwise(conv: Conv) -> None:
    check_convolution(build_depthwise, FP16, conv, FP16_TARGET)


@settings(max_examples=4, deadline=None)
@given(batch=st.integers(1, 3), rows=st.integers(1, 30), depth=st.integers(1, 140), columns=st.integers(1, 70))
def test_any_product_of_two_tensors(batch: int, rows: int, depth: int, columns: int) -> None:
    check_two_tensors(FP16, (batch, rows, depth), (batch, depth, columns), FP16_TARGET)


@pytest.mark.parametrize("case", [
    Case(1, 19, 21, 2, 12, 20, (1, 1, 19, 21)), Case(2, 40, 40, 3, 33, 33),
    Case(1, 7, 50, 2, 64, 32, causal="BottomRight")], ids=str)
def test_attention(case: Case) -> None:
    check_attention(FP16, case, FP16_TARGET)


def test_sums_are_of_blocks() -> None:
    """2048 + 1 is 2048 in float16: a block that begins with 2048 loses its ones, the others keep theirs."""
    depth = 4 * FP16_BLOCK
    x = np.ones((1, depth), np.float32)
    x[0, 0] = 2048
    group = group_of("matmul", [(1, depth)], lambda b, p: b.emit(
        relax.op.matmul(p[0], ir.constant(np.ones((depth, 3), np.float32))), "layer"))
    request = KernelRequest(group, FP16, (FLOAT16,), (FLOAT32,))
    (actual,) = execute(build_matmul, request, [x], FP16_TARGET)
    np.testing.assert_array_equal(actual, 2048 + 3 * FP16_BLOCK)


def test_noise_of_sums_is_as_predicted() -> None:
    """``1 + (16 + 1) / 4`` times that of rounding the operands, on random data."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((64, 512), (512, 64)))
    group = group_of("matmul", [x.shape], lambda b, p: b.emit(relax.op.matmul(p[0], ir.constant(w)), "layer"))
    (actual,) = execute(build_matmul, KernelRequest(group, FP16, (FLOAT16,), (FLOAT32,)), [x], FP16_TARGET)
    exact = x.astype(np.float64) @ w
    rounded = x.astype(np.float16).astype(np.float64) @ w.astype(np.float16)
    ratio = np.square(actual - exact).mean() / np.square(rounded - exact).mean()
    assert 0.5 < ratio / (1 + (FP16_BLOCK + 1) / 4) < 2, ratio


def test_storage_rounds_to_even_and_overflows_to_infinity() -> None:
    x = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1e-8, 3e-8, 65504, 65520, -1e9, np.nan]], np.float32)
    group = group_of("movement", [x.shape], lambda b, p: b.emit(relax.op.permute_dims(p[0]), "layer"))
    (actual,) = execute(build_movement, KernelRequest(group, Precision.FP32, (FLOAT16,), (FLOAT16,)), [x], FP16_TARGET)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(actual, x.astype(np.float16).astype(np.float32).T)
