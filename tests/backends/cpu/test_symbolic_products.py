"""Products whose extents only running tells: each kernel is compiled once and must be right at every extent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.target import Target
from narrowcast.dims import Dim
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.precision import Precision

from .groups import NATIVE
from .precisions import EVERY_PRECISION, FEATURES
from .symbolic import SymbolicKernel, symbol, symbolic_group

EXTENT = st.sampled_from([1, 2, 3, 7, 16, 33])


def weights(*shape: int) -> ir.Expr:
    return ir.constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def linear(precision: Precision, depth: int, columns: int, typical: Mapping[str, int],
           target: Target = NATIVE) -> SymbolicKernel:
    """relu(x · w + bias + residual) for x [batch, seq, depth] and a residual [batch, 1, columns]."""
    batch, seq = symbol("batch"), symbol("seq")
    w, bias = weights(depth, columns), weights(columns)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], w), "layer")
        y = builder.emit(relax.op.add(y, bias), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    group = symbolic_group("matmul", [(batch, seq, depth), (batch, 1, columns)], body)
    return SymbolicKernel(group, precision, typical, target=target)


@EVERY_PRECISION
@pytest.mark.parametrize(("depth", "columns", "typical"), [
    (37, 70, {"batch": 2, "seq": 16}), (16, 33, {"batch": 1, "seq": 1}), (3, 5, {"batch": 4, "seq": 300})])
def test_matmul_of_any_number_of_rows(precision: Precision, depth: int, columns: int,
                                      typical: Mapping[str, int]) -> None:
    kernel = linear(precision, depth, columns, typical)
    kernel.check(typical)
    kernel.check({"batch": 1, "seq": 2500})

    @settings(max_examples=3, deadline=None)
    @given(batch=EXTENT, seq=EXTENT)
    def check(batch: int, seq: int) -> None:
        kernel.check({"batch": batch, "seq": seq})

    check()
    kernel.check({"batch": 1, "seq": 1})


def test_rows_that_come_in_windows() -> None:
    """Rows that are none where the image is smaller than a window: TVM follows that case too."""
    batch, height = symbol("batch"), symbol("height")
    group = symbolic_group("matmul", [(height // 4 * batch * 3, 16, 8)], lambda builder, params: builder.emit(
        relax.op.matmul(params[0], weights(8, 8)), "layer"))
    kernel = SymbolicKernel(group, Precision.FP32, {"batch": 2, "height": 8})
    for extents in ({"batch": 2, "height": 8}, {"batch": 1, "height": 5}, {"batch": 3, "height": 64}):
        kernel.check(extents)


B, H, M, K, N = (symbol(name) for name in "bhmkn")
PRODUCTS = {
    "nothing known": ((B, H, M, K), (B, H, K, N)),
    "scores": ((B, 4, M, 24), (B, 4, 24, N)),
    "values": ((B, 4, M, K), (B, 4, K, 40)),
    "broadcast batches": ((B, 1, M, 19), (H, 19, N)),
    "one matrix on the right": ((B, M, K), (1, K, 17)),
    "only the batch": ((B, 9, 19), (B, 19, 40)),
}


@EVERY_PRECISION
@pytest.mark.parametrize(("left", "right"), PRODUCTS.values(), ids=PRODUCTS)
def test_products_of_two_tensors(precision: Precision, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> None:
    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], params[1]), "layer")
        return builder.emit(relax.op.multiply(y, relax.const(0.5, "float32")), "half")

    typical = {"b": 2, "h": 3, "m": 20, "k": 34, "n": 100}
    kernel = SymbolicKernel(symbolic_group("batched_matmul", [left, right], body), precision, typical, exact=2)
    kernel.check(typical)

    @settings(max_examples=3, deadline=None)
    @given(st.tuples(*[st.integers(1, 3)] * 2, *[st.sampled_from([1, 2, 5, 15, 16, 67, 130])] * 3))
    def check(extents: tuple[int, ...]) -> None:
        kernel.check(dict(zip(typical, extents, strict=True)))

    check()
    kernel.check(dict.fromkeys(typical, 1))


ATTENTIONS = {
    "nothing known": ([(B, M, H, 24), (B, K, H, 24), (B, K, H, 33)], None),
    "causal": ([(B, M, 3, 7)] * 3, "TopLeft"),
    "mask": ([(B, M, 2, 16), (B, K, 2, 16), (B, K, 2, 16), (B, 1, 1, K)], None),
    "bias": ([(B, M, H, 16), (B, K, H, 16), (B, K, H, 16), (1, H, M, K)], None),
    "cache": ([(B, M, 2, 16), (B, M + K, 2, 16), (B, M + K, 2, 16)], "BottomRight"),
    "one query": ([(B, 1, H, 16), (B, K, H, 16), (B, K, H, 16), (B, H, 1, 1)], None),
    "only the batch": ([(B, 19, 2, 16), (B, 21, 2, 16), (B, 21, 2, 16)], "TopLeft"),
}


@pytest.mark.parametrize("precision", [
    pytest.param(p, marks=pytest.mark.isa(FEATURES[p]), id=str(p)) for p in (Precision.FP32, Precision.BF16)])
@pytest.mark.parametrize(("shapes", "causal"), ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention(precision: Precision, shapes: list[tuple[Dim, ...]], causal: str | None) -> None:
    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.nn.attention(*params, scale=0.3, causal_mask=causal), "layer")
        return builder.emit(relax.op.multiply(y, relax.const(2.0, "float32")), "double")

    typical = {"b": 2, "h": 3, "m": 20, "k": 50}
    kernel = SymbolicKernel(symbolic_group("attention", shapes, body), precision, typical, exact=3)
    kernel.check(typical)

    @settings(max_examples=3, deadline=None)
    @given(st.tuples(*[st.integers(1, 3)] * 2, *[st.sampled_from([1, 2, 5, 16, 33, 130])] * 2))
    def check(extents: tuple[int, ...]) -> None:
        kernel.check(dict(zip(typical, extents, strict=True)))

    check()
    kernel.check(dict.fromkeys(typical, 1))


def test_heads_of_a_symbolic_size_are_refused() -> None:
    group = symbolic_group("attention", [(B, M, 2, K)] * 3, lambda b, p: b.emit(relax.op.nn.attention(*p), "layer"))
    with pytest.raises(UnsupportedOperatorError, match=r"layer: .*symbolic size"):
        SymbolicKernel(group, Precision.FP32, {"b": 1, "m": 1, "k": 8}, exact=3)


def test_macs_are_those_of_the_typical_extents() -> None:
    assert linear(Precision.FP32, 4, 6, {"batch": 2, "seq": 5}).kernel.macs == 2 * 5 * 4 * 6
