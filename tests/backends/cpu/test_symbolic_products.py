"""Products whose extents only running tells: each kernel is compiled once and must be right at every extent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.precision import Precision

from .precisions import EVERY_PRECISION
from .symbolic import SymbolicKernel, symbol, symbolic_group

EXTENT = st.sampled_from([1, 2, 3, 7, 16, 33])


def weights(*shape: int) -> ir.Expr:
    return ir.constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def linear(precision: Precision, depth: int, columns: int, typical: Mapping[str, int]) -> SymbolicKernel:
    """relu(x · w + bias + residual) for x [batch, seq, depth] and a residual [batch, 1, columns]."""
    batch, seq = symbol("batch"), symbol("seq")
    w, bias = weights(depth, columns), weights(columns)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], w), "layer")
        y = builder.emit(relax.op.add(y, bias), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    group = symbolic_group("matmul", [(batch, seq, depth), (batch, 1, columns)], body)
    return SymbolicKernel(group, precision, typical)


@EVERY_PRECISION
@pytest.mark.parametrize(("depth", "columns", "typical"), [
    (37, 70, {"batch": 2, "seq": 16}), (16, 33, {"batch": 1, "seq": 1}), (3, 5, {"batch": 4, "seq": 300})])
def test_matmul_of_any_number_of_rows(precision: Precision, depth: int, columns: int,
                                      typical: Mapping[str, int]) -> None:
    kernel = linear(precision, depth, columns, typical)
    kernel.check(typical)
    kernel.check({"batch": 1, "seq": 2500})

    @settings(max_examples=5, deadline=None)
    @given(batch=EXTENT, seq=EXTENT)
    def check(batch: int, seq: int) -> None:
        kernel.check({"batch": batch, "seq": seq})

    check()
    kernel.check({"batch": 1, "seq": 1})


def test_macs_are_those_of_the_typical_extents() -> None:
    assert linear(Precision.FP32, 4, 6, {"batch": 2, "seq": 5}).kernel.macs == 2 * 5 * 4 * 6
