"""Convolutions whose batch, height and width only running tells: each kernel is compiled once and must be right at
every extent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.convolution import Geometry, WindowRows
from narrowcast.backends.cpu.isa import arithmetic
from narrowcast.backends.cpu.microkernel import Tasks
from narrowcast.backends.cpu.tiling import Product, choose
from narrowcast.backends.target import Target
from narrowcast.dims import Dim, evaluate_dim
from narrowcast.precision import Precision

from .groups import NATIVE
from .precisions import EVERY_PRECISION
from .symbolic import SymbolicKernel, symbol, symbolic_group

OPERATORS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
N, H, W = symbol("n"), symbol("h"), symbol("w")
TYPICAL = {"n": 2, "h": 14, "w": 20}


@dataclass(frozen=True)
class Conv:
    """A convolution of channels-last data."""

    data: tuple[Dim, ...]
    outputs: int
    kernel: tuple[int, ...]
    details: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    groups: int = 1

    @property
    def kind(self) -> str:
        return "depthwise" if 1 < self.groups == self.data[-1] == self.outputs else "conv"

    def group(self) -> ir.Group:
        """relu(conv + bias + residual)."""
        rng, spatial = np.random.default_rng(2), "DHW"[-len(self.kernel):]
        shape = (self.outputs, *self.kernel, self.data[-1] // self.groups)
        weights, bias = (rng.standard_normal(s).astype(np.float32) for s in (shape, self.outputs))
        layouts = {"data_layout": f"N{spatial}C", "kernel_layout": f"O{spatial}I"}

        def anchor(data: relax.Var) -> relax.Call:
            return OPERATORS[len(spatial)](data, ir.constant(weights), groups=self.groups, **self.details, **layouts)

        def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
            y = builder.emit(anchor(params[0]), "layer")
            y = builder.emit(relax.op.add(y, ir.constant(bias)), "bias")
            y = builder.emit(relax.op.add(y, params[1]), "sum")
            return builder.emit(relax.op.nn.relu(y), "relu")

        data = relax.Var("data", relax.TensorType(self.data, "float32"))
        result = ir.GraphBuilder([data]).emit(anchor(data), "result")
        return symbolic_group(self.kind, [self.data, ir.dims_of(result)], body)


PADDED = {"padding": (1, 1, 1, 1)}
CONVOLUTIONS = {
    "same size": Conv((N, H, W, 16), 40, (3, 3), PADDED),
    "stem": Conv((N, H, W, 3), 20, (3, 3), {**PADDED, "strides": (2, 2)}),
    "pointwise": Conv((N, H, W, 24), 17, (1, 1)),
    "strided pointwise": Conv((N, H, W, 5), 33, (1, 1), {"strides": (2, 3)}),
    "only the batch": Conv((N, 9, 11, 16), 40, (3, 3), PADDED),
    "only the size": Conv((1, H, W, 16), 24, (5, 3), {"padding": (2, 1, 2, 1), "strides": (3, 1)}),
    "only the width": Conv((1, 48, W, 8), 16, (3, 3), PADDED),
    "groups and dilation": Conv((N, H, W, 6), 20, (3, 2), {"padding": (1, 0, 2, 1), "dilation": (2, 2)}, 2),
    "one dimension": Conv((N, W, 7), 19, (5,), {"padding": (2, 2), "strides": (2,)}),
    "three dimensions": Conv((N, H, 5, W, 9), 20, (3, 2, 3), {"padding": (1, 0, 1, 1, 1, 1), "strides": (2, 1, 1)}),
    "depth and batch": Conv((N, H, 6, 7, 8), 18, (2, 3, 3), {"padding": (0, 1, 1, 1, 1, 1), "dilation": (2, 1, 1)}),
    "plane by plane": Conv((N, H, 5, W, 6), 18, (1, 3, 3), {"padding": (0, 1, 1, 0, 1, 1)}),
    "depthwise": Conv((N, H, W, 32), 32, (3, 3), PADDED, 32),
    "strided depthwise": Conv((N, H, W, 21), 21, (3, 3), {"padding": (1, 0, 2, 1), "strides": (2, 2)}, 21),
    "depthwise of the batch": Conv((N, 9, 11, 20), 20, (7, 7), {"padding": (3, 3, 3, 3)}, 20),
    "depthwise in three dimensions": Conv((N, H, 4, W, 17), 17, (3, 3, 3), {"padding": (1,) * 6}, 17),
    "depthwise in one dimension": Conv((N, W, 17), 17, (9,), {"padding": (4, 4)}, 17),
}


def check_at(kernel: SymbolicKernel, extents: Iterable[int]) -> None:
    """Check at extents of n, h and w, unless the image is smaller than the window."""
    named = dict(zip("nhw", extents, strict=True))
    result = ir.outputs_of(kernel.request.group.function)[0]
    if all(evaluate_dim(d, named) > 0 for d in ir.dims_of(result)):
        kernel.check(named)


@EVERY_PRECISION
@pytest.mark.parametrize("conv", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_any_extents(precision: Precision, conv: Conv) -> None:
    kernel = SymbolicKernel(conv.group(), precision, TYPICAL)
    kernel.check(TYPICAL)

    @settings(max_examples=3, deadline=None)
    @given(batch=st.integers(1, 4), height=st.sampled_from([1, 2, 5, 9, 24]), width=st.sampled_from([1, 3, 6, 17, 31]))
    def check(batch: int, height: int, width: int) -> None:
        check_at(kernel, (batch, height, width))

    check()
    for extents in ((1, 1, 1), (1, 2, 1), (5, 4, 3)):
        check_at(kernel, extents)


@EVERY_PRECISION
@pytest.mark.parametrize("l2_bytes", [2000, 60000])
def test_parts_smaller_than_the_batch(precision: Precision, l2_bytes: int) -> None:
    core = replace(NATIVE.capabilities, l2_bytes=l2_bytes)
    kernel = SymbolicKernel(CONVOLUTIONS["stem"].group(), precision, TYPICAL, core=core)
    for extents in ((1, 40, 50), (9, 5, 7), (1, 64, 3)):
        check_at(kernel, extents)


@settings(max_examples=60, deadline=None)
@given(conv=st.sampled_from([c for c in CONVOLUTIONS.values() if c.kind == "conv"]), batch=st.integers(1, 6),
       height=st.integers(1, 12), width=st.integers(1, 12), l2_bytes=st.sampled_from([500, 5000, 50000]))
def test_a_part_fits_its_buffer(conv: Conv, batch: int, height: int, width: int, l2_bytes: int) -> None:
    geometry = Geometry.of(conv.group().anchor.value, "layer")
    extents = {"n": batch, "h": height, "w": width}

    def known(extent: Dim) -> int:
        return evaluate_dim(extent, extents)

    exact = geometry.at(known)
    if min(exact.result) < 1:
        return
    core = replace(Target("znver4", 2).capabilities, l2_bytes=l2_bytes)
    unit = arithmetic(Precision.INT8, core)
    rows = WindowRows(geometry, geometry.at(lambda extent: evaluate_dim(extent, TYPICAL)))
    product = Product(rows.count, conv.outputs, 9, typical=tuple(TYPICAL.items()))
    tasks = Tasks(product, choose(product, unit, core, 2, rows.bytes_per_row(unit)))

    def first_line(row: int) -> int:
        plane, line = divmod(row // exact.result[2], exact.result[1])
        return plane * exact.padded[1] + line * exact.strides[1]

    count = min(tasks.part_rows, known(rows.count))
    needed = max(first_line(first + count - 1) + exact.reach - first_line(first)
                 for first in range(known(rows.count) - count + 1))
    assert needed <= known(rows.most_lines(tasks))
