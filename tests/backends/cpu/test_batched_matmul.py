"""Products of two tensors, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.gemm import build_batched_matmul
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, assert_close, execute, group_of, storage_for, stored
from .precisions import EVERY_PRECISION

OUTPUTS = (FLOAT32, Storage("uint8", QParams(0.1, 120)), BFLOAT16)


def check(precision: Precision, left: tuple[int, ...], right: tuple[int, ...], target: Target = NATIVE) -> None:
    """0.5 · (a · b), both sides off centre so that both zero points matter."""
    rng = np.random.default_rng(3)
    a = rng.standard_normal(left).astype(np.float32) + np.float32(0.3)
    b = rng.standard_normal(right).astype(np.float32) - np.float32(0.2)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], params[1]), "layer")
        return builder.emit(relax.op.multiply(y, relax.const(0.5, "float32")), "half")

    storages = (storage_for(precision, a), storage_for(precision, b))
    request = KernelRequest(group_of("batched_matmul", [left, right], body), precision, storages, OUTPUTS)
    x, y = (stored(v, s).astype(np.float64) for v, s in zip((a, b), storages, strict=True))
    for got, storage in zip(execute(build_batched_matmul, request, [a, b], target), OUTPUTS, strict=True):
        assert_close(got, 0.5 * (x @ y), np.abs(x) @ np.abs(y), storage, left[-1], precision)


@EVERY_PRECISION
@pytest.mark.parametrize(("left", "right"), [
    ((2, 3, 8, 16), (2, 3, 16, 32)), ((5, 7), (7, 9)), ((3, 1, 13, 33), (4, 33, 70)), ((3, 5, 6), (6, 17)),
    ((2, 2, 1, 129), (1, 1, 129, 5)), ((1, 150, 130), (1, 130, 300)),
    ((1, 1500, 130), (1, 130, 8))])
def test_batched_matmul(precision: Precision, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(precision, left, right)


@EVERY_PRECISION
@settings(max_examples=3, deadline=None)
@given(batch=st.integers(1, 3), rows=st.integers(1, 30), depth=st.integers(1, 140), columns=st.integers(1, 70))
def test_any_shape(precision: Precision, batch: int, rows: int, depth: int, columns: int) -> None:
    check(precision, (batch, rows, depth), (batch, depth, columns))
