"""Sliding windows over channels-last tensors: their geometry, and maximum pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf

import tvm
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_less, is_one, product_of, simplified
from ...errors import UnsupportedOperatorError
from ...ir import op_name
from ...precision import Storage
from .loops import Loops, for_vectors, task_loop
from .vector_math import Vector, splat
from .vector_memory import Index, decode, encode, load, store


@dataclass(frozen=True)
class Axis:
    """A window along one spatial axis.

    adaptive : window ``i`` covers ``floor(i * extent / result)`` to ``ceil((i + 1) * extent / result)``.
    """

    extent: Dim
    result: Dim
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    adaptive: bool = False

    def start(self, output: Index) -> Index:
        """The first position of a window; negative in the padding."""
        if self.adaptive:
            return T.floordiv(output * self.extent, self.result)
        return output * self.stride - self.before

    def taps(self, output: Index) -> tuple[Index, Index]:
        """First and end of the window's taps that lie inside the tensor."""
        start = self.start(output)
        if self.adaptive:
            return 0, T.floordiv((output + 1) * self.extent + self.result - 1, self.result) - start
        reach = (self.result - 1) * self.stride + (self.kernel - 1) * self.dilation
        if self.before == 0 and is_less(reach, self.extent):
            return 0, self.kernel
        low = T.max(T.floordiv(self.dilation - 1 - start, self.dilation), 0)
        return low, T.min(self.kernel, T.floordiv(self.extent - start + self.dilation - 1, self.dilation))

    def padded_taps(self, output: Index) -> Index:
        """How many taps lie inside the tensor or its padding (a window may reach beyond, with ``ceil_mode``)."""
        if self.adaptive:
            first, end = self.taps(output)
            return end - first
        room = self.extent + self.after - self.start(output) + self.dilation - 1
        return T.min(self.kernel, T.floordiv(room, self.dilation))


@dataclass(frozen=True)
class Window:
    """A pooling operator's geometry: [batch, spatial..., channels] in, the same with other extents out."""

    batch: Dim
    axes: tuple[Axis, ...]
    channels: int

    @classmethod
    def of(cls, call: relax.Call, shape: Sequence[Dim], result: Sequence[Dim], layer: str) -> Window:
        """The geometry of a relax pool. Channels-first layouts become one channel with a larger batch.

        UnsupportedOperatorError for a blocked layout.
        """
        layout, rank = str(call.attrs.layout), len(shape)
        if len(layout) != rank or layout[0] != "N" or "C" not in (layout[1], layout[-1]):
            raise UnsupportedOperatorError("this layout of a pool has no kernel", layer=layer, found=layout)
        last = layout[-1] == "C"
        spatial = range(1, rank - 1) if last else range(2, rank)
        axes = tuple(_axis(call, i, shape[d], result[d]) for i, d in enumerate(spatial))
        return cls(shape[0] if last else shape[0] * shape[1], axes, shape[-1] if last else 1)

    @property
    def positions(self) -> Dim:
        """Windows of one image."""
        return product_of(axis.result for axis in self.axes)

    def digits(self, row: Index) -> tuple[Index, list[Index]]:
        """Image and spatial position of a flattened output row."""
        digits: list[Index] = []
        for axis in reversed(self.axes):
            digits.insert(0, T.floormod(row, axis.result))
            row = T.floordiv(row, axis.result)
        return row, digits

    def scan(self, row: Index, body: Callable[[Index], None]) -> None:
        """Call ``body(index)`` to emit the work on every input row under the window of an output row.

        Where extents are symbolic, loops start at 0. For the end of one that does not, TVM's code generator simplifies
        ``first + (end - first)`` and puts the values of variables into it: a division by an extent of unknown sign,
        a ``Let`` by then, would be in the code twice, simplified and not, which it refuses.
        """
        image, digits = self.digits(row)
        symbolic = not all(isinstance(d, int) for axis in self.axes for d in (axis.extent, axis.result))
        source = image
        with ExitStack() as stack:
            for axis, digit in zip(self.axes, digits, strict=True):
                first, end = axis.taps(digit)
                loop, skipped = (T.serial(end - first), first) if symbolic else (T.serial(first, end), 0)
                tap = stack.enter_context(loop) + skipped
                source = source * axis.extent + axis.start(digit) + tap * axis.dilation
            body(source)


def _axis(call: relax.Call, i: int, extent: Dim, result: Dim) -> Axis:
    attrs = call.attrs
    if "adaptive" in (op_name(call) or ""):
        if not isinstance(extent, int) or not isinstance(result, int) or extent % result:
            return Axis(extent, result, 1, 1, 1, 0, 0, adaptive=True)
        return Axis(extent, result, extent // result, extent // result, 1, 0, 0)
    padding, rank = [int(p) for p in attrs.padding], len(attrs.pool_size)
    return Axis(extent, result, int(attrs.pool_size[i]), int(attrs.strides[i]), int(attrs.dilation[i]), padding[i],
                padding[i + rank])


def for_each_output(window: Window, lanes: int, loops: Loops, body: Callable[[Index, Index, Index], None]) -> None:
    """Call ``body(row, column, valid)`` for every vector of channels of every window, on all threads."""
    rows = simplified(window.batch * window.positions)
    work = rows * window.channels * product_of(axis.extent if axis.adaptive else axis.kernel for axis in window.axes)
    with task_loop(rows, work, loops) as row:
        for_vectors(window.channels, lanes, lambda column, valid: body(row, column, valid))


def emit_max_pool(source: tvm.ir.Expr, target: tvm.ir.Expr, window: Window, storage: Storage,
                  loops: Loops) -> None:
    """Emit a maximum pool on stored elements: uint8 compare as they are (the scale is positive), padding never wins."""
    raw = storage.qparams is not None
    dtype = "uint8" if raw else "float32"
    lanes = 1 if is_one(window.channels) else loops.vector_bytes if raw else loops.vector_bytes // 4

    def pool(row: Index, column: Index, valid: Index) -> None:
        slot = T.alloc_buffer((lanes,), dtype)
        store(slot, 0, splat(0 if raw else -inf, lanes, dtype), lanes)

        def compare(index: Index) -> None:
            value = load(source, index * window.channels + column, lanes, valid)
            store(slot, 0, _greater(load(slot, 0, lanes, lanes), value if raw else decode(value, storage)), lanes)

        window.scan(row, compare)
        result = load(slot, 0, lanes, lanes)
        if not raw:
            result = encode(result, storage, frozenset())
        store(target, row * window.channels + column, result, valid)

    for_each_output(window, lanes, loops, pool)


def _greater(a: Vector, b: Vector) -> Vector:
    return T.Select(a < b, b, a)
