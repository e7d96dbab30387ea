"""Convolution as a matrix product over gathered rows: no im2col, every row of the product is an address.

Activations are channels-last, so the window of one kernel row is contiguous (unless dilated or grouped) and is one
tap of ``kernel width · channels`` elements. Padding is copied in, once per task, into a buffer in the cache. A window
several planes deep is one of a 2-D convolution: there the rows of these planes are copied side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_one, product_of, simplified
from ...errors import VerificationError
from ...ir import constant_value, dims_of, op_name
from ..target import Capabilities
from .gemm import build_product
from .isa import Arithmetic, bind, copy_run, fill_run, named
from .kernel import Kernel, KernelRequest
from .left_rows import GatheredRows, MatrixRows, OpenLeft, Rows
from .microkernel import Tasks
from .operands import Left, Reduction, emit_taps
from .vector_math import bound
from .vector_memory import Index, store

# Layouts of data and weights by operator.
_LAYOUTS = {"relax.nn.conv1d": ("NWC", "OWI"), "relax.nn.conv2d": ("NHWC", "OHWI"),
            "relax.nn.conv3d": ("NDHWC", "ODHWI")}


@dataclass(frozen=True)
class Geometry:
    """A 3-D convolution of NDHWC data (2-D: depth 1; 1-D: height 1, too).

    size, kernel, strides, before, after, dilation : depth, height, width; ``before`` and ``after`` are the padding.
    """

    batch: Dim
    size: tuple[Dim, Dim, Dim]
    channels: int
    outputs: int
    kernel: tuple[int, int, int]
    strides: tuple[int, int, int]
    before: tuple[int, int, int]
    after: tuple[int, int, int]
    dilation: tuple[int, int, int]
    groups: int

    @property
    def is_static(self) -> bool:
        """Whether all extents are known."""
        return all(isinstance(d, int) for d in (self.batch, *self.size))

    @property
    def is_padded(self) -> bool:
        """Whether some windows reach into padding."""
        return any(self.before) or any(self.after)

    @cached_property
    def padded(self) -> tuple[Dim, Dim, Dim]:
        """The size with padding."""
        depth, height, width = (n + b + a for n, b, a in zip(self.size, self.before, self.after, strict=True))
        return depth, height, width

    @cached_property
    def result(self) -> tuple[Dim, Dim, Dim]:
        """The size of the output."""
        depth, height, width = (simplified((p - (k - 1) * d - 1) // s + 1) for p, k, d, s
                                in zip(self.padded, self.kernel, self.dilation, self.strides, strict=True))
        return depth, height, width

    @property
    def is_contiguous(self) -> bool:
        """Whether the window of a kernel row is one run of memory."""
        return self.groups == 1 and self.dilation[2] == 1

    @property
    def is_planar(self) -> bool:
        """Whether a plane (one depth of an image) of the output is computed from the plane at its place alone."""
        return self.kernel[0] == self.strides[0] == 1 and self.before[0] == self.after[0] == 0

    @property
    def is_pointwise(self) -> bool:
        """Whether every pixel of the output is computed from the pixel at its place alone."""
        return self.kernel == self.strides == (1, 1, 1) and not self.is_padded and self.groups == 1

    @property
    def planes(self) -> Dim:
        """Planes of all outputs."""
        return product_of((self.batch, self.result[0]))

    @property
    def plane_step(self) -> Dim:
        """Lines from the first of a plane's last windows to that of the next plane's first."""
        return self.padded[1] - (self.result[1] - 1) * self.strides[1]

    @property
    def positions(self) -> Dim:
        """Pixels of all outputs."""
        return product_of((self.batch, *self.result))

    @property
    def taps(self) -> int:
        """Elements of a window in a channel."""
        return prod(self.kernel)

    @property
    def reach(self) -> int:
        """Lines that a window covers."""
        return (self.kernel[1] - 1) * self.dilation[1] + 1

    def plane_under(self, plane: Index, tap: Index) -> tuple[Index, Expr]:
        """The plane of the data that is under tap ``tap`` of an output plane, both counted through the batch, and
        whether there is one."""
        if self.is_planar:
            return plane, plane < self.planes
        quotient, rest = (tirx.floordiv, tirx.floormod) if self.is_static else (tirx.truncdiv, tirx.truncmod)
        depth = rest(plane, self.result[0]) * self.strides[0] + tap * self.dilation[0] - self.before[0]
        inside = T.And(T.And(depth >= 0, depth < self.size[0]), plane < self.planes)
        return quotient(plane, self.result[0]) * self.size[0] + depth, inside

    def at(self, typically: Callable[[Dim], int]) -> Geometry:
        """The geometry with the extents that ``typically`` gives."""
        depth, height, width = map(typically, self.size)
        return replace(self, batch=typically(self.batch), size=(depth, height, width))

    @classmethod
    def of(cls, call: Expr, layer: str) -> Geometry:
        """The geometry of a convolution call in channels-last layout."""
        attrs, data, weight = call.attrs, dims_of(call.args[0]), constant_value(call.args[1]).shape
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        if layouts != _LAYOUTS.get(op_name(call) or ""):
            expected = ", ".join(f"{data} with {weight}" for data, weight in _LAYOUTS.values())
            raise VerificationError("a convolution must be channels-last", layer=layer,
                                    found=f"{op_name(call)} {layouts}", expected=expected)
        strides, dilation, padding = (tuple(int(v) for v in a) for a in (attrs.strides, attrs.dilation, attrs.padding))
        return cls(batch=data[0], size=_of_three(data[1:-1], 1), channels=data[-1], outputs=weight[0],
                   kernel=_of_three(weight[1:-1], 1), strides=_of_three(strides, 1),
                   before=_of_three(padding[:len(strides)], 0), after=_of_three(padding[len(strides):], 0),
                   dilation=_of_three(dilation, 1), groups=int(attrs.groups))


def _of_three(spatial: Sequence[Any], missing: int) -> tuple[Any, Any, Any]:
    """Values of depth, height, width from those of the last of these axes."""
    depth, height, width = (missing,) * (3 - len(spatial)) + tuple(spatial)
    return depth, height, width


@dataclass(frozen=True)
class WindowRows:
    """Rows of a convolution: row ``(plane · height + oh) · width + ow`` is the window of that output pixel.

    Lines are the padded rows of the planes under all output planes; a line of a window that is several planes deep has
    that row of each of them, side by side, and is copied together.

    typical : the geometry at the typical extents.
    """

    geometry: Geometry
    typical: Geometry

    @property
    def count(self) -> Dim:
        return self.geometry.positions

    @property
    def breadth(self) -> Dim:
        """Elements of a padded row of a plane."""
        return self.geometry.padded[2] * self.geometry.channels

    @property
    def pitch(self) -> Dim:
        """Elements of a line."""
        return self.geometry.kernel[0] * self.breadth

    @property
    def reduction(self) -> Reduction:
        g = self.geometry
        outer = ((g.kernel[0], self.breadth), (g.kernel[1], g.dilation[1] * self.pitch))
        if g.is_contiguous:
            return Reduction(outer, g.kernel[2] * g.channels)
        return Reduction((*outer, (g.kernel[2], g.dilation[2] * g.channels)), g.channels // g.groups)

    @property
    def distance(self) -> int:
        return self.geometry.strides[2] * self.geometry.channels

    @property
    def run(self) -> int:
        width = self.geometry.result[2]
        return width if isinstance(width, int) else 1

    def forms(self) -> tuple[Rows, ...]:
        return (self, GatheredRows(self)) if self.geometry.groups == 1 else (self,)

    def copied_bytes(self, at_once: int, arithmetic: Arithmetic) -> float:
        return 0.0

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        g = self.typical
        return g.kernel[0] * g.padded[2] * g.channels * g.strides[1] * arithmetic.operand_bytes / g.result[2]

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        at_once, reduction = tasks.read_at_once(arithmetic), tasks.reading(self.reduction, arithmetic)
        is_whole = self.reduction.depth % at_once == 0
        if is_whole and self.geometry.is_planar and not self.geometry.is_padded:
            return lambda first, last: self._left(source, 0, reduction)
        most = self.most_lines(tasks)

        def open_part(first: Index, last: Index) -> Left:
            slab = named("padded", T.alloc_buffer((most * self.pitch + at_once,), arithmetic.operand))
            top = bind("top", self._line(first))
            lines = most
            if not isinstance(self.count, int):
                lines = bind("lines", self._line(last - 1) + self.geometry.reach - top)
            self._copy(slab, source, top, lines, padding)
            fill_run(slab, lines * self.pitch, 0, at_once)
            return self._left(slab, top, reduction)
        return open_part

    def _left(self, source: tirx.Buffer, top: Index, reduction: Reduction) -> Left:
        """The rows in a buffer that begins with line ``top``."""
        if self.geometry.is_static:
            return Left.by_row(source, lambda row, group: self._base(row, group, top), reduction,
                               self.distance)
        return Left(source, lambda row, count, group: self._bases(row, count, group, top), reduction,
                    self.distance)

    def most_lines(self, tasks: Tasks) -> Dim:
        """Lines that a part covers, at most."""
        g = self.geometry
        if isinstance(self.count, int):
            return max(self._line(last - 1) + g.reach - self._line(first)
                       for first, last in map(tasks.row_range, range(tasks.parts)))
        _, height, width = g.result
        further = tirx.min(tasks.part_rows, self.count) - 1
        lines = g.reach + (further + width - 1) // width * g.strides[1]
        if is_one(g.planes):
            return lines
        planes = (further + height * width - 1) // (height * width)
        return lines + planes * tirx.max(_int64(g.plane_step - g.strides[1]), 0)

    def _line(self, row: Index) -> Index:
        """The first line that the window of ``row`` covers."""
        g = self.geometry
        _, height, width = g.result
        if not g.is_static:
            plane, line, _ = self._pixel(row)
            return plane * g.padded[1] + line * g.strides[1]
        if is_one(g.planes):
            return row // width * g.strides[1]
        plane, line = row // (height * width), row % (height * width) // width
        return plane * g.padded[1] + line * g.strides[1]

    def _base(self, row: Index, group: Index, top: Index) -> Index:
        g = self.geometry
        across = row % g.result[2] * (g.strides[2] * g.channels)
        base = (self._line(row) - top) * self.pitch + across
        return base + group * (g.channels // g.groups) if g.groups > 1 else base

    def _bases(self, row: Index, count: int, group: Index, top: Index) -> list[Index]:
        """Addresses of neighbouring rows beside symbols: at most one of them begins a line of the output unless lines
        are shorter than ``count``, where every address takes divisions."""
        width = self.geometry.result[2]
        if isinstance(width, int):
            emit = self._along_a_line if width >= count else self._one_by_one
            bases = emit(row, count, group, top)
            in_slab = not isinstance(top, int)  # Where 32 bits are enough, and quicker to compile for.
            return [T.Cast("int32", base) for base in bases] if in_slab else bases
        if count == 1:
            return self._one_by_one(row, count, group, top)
        slots = [T.alloc_buffer((1,), "int64") for _ in range(count)]
        with T.If(width >= count):
            for branch, emit in ((T.Then, self._along_a_line), (T.Else, self._one_by_one)):
                with branch():
                    for slot, base in zip(slots, emit(row, count, group, top), strict=True):
                        store(slot, 0, base)
        return [slot[0] for slot in slots]

    def _along_a_line(self, row: Index, count: int, group: Index, top: Index) -> list[Index]:
        g = self.geometry
        plane, line, column = self._pixel(row)
        stride = g.strides[2] * g.channels
        start = bound(self._address(plane, line, column, group, top))
        step = T.Select(line + 1 == g.result[1], _int64(g.plane_step * self.pitch), _int64(g.strides[1] * self.pitch))
        ahead = bound(step - g.result[2] * stride)
        return [start + i * stride + T.Select(column + i >= g.result[2], ahead, _int64(0)) for i in range(count)]

    def _one_by_one(self, row: Index, count: int, group: Index, top: Index) -> list[Index]:
        return [self._address(*self._pixel(row + i), group, top) for i in range(count)]

    def _address(self, plane: Index, line: Index, column: Index, group: Index, top: Index) -> Index:
        g = self.geometry
        above = (plane * g.padded[1] + line * g.strides[1] - top) * self.pitch
        base = above + column * (g.strides[2] * g.channels)
        return base + group * (g.channels // g.groups) if g.groups > 1 else base

    def _pixel(self, row: Index) -> tuple[Index, Index, Index]:
        """Plane, line and column of an output pixel."""
        _, height, width = self.geometry.result
        above = bound(tirx.truncdiv(row, width))
        if is_one(self.geometry.planes):
            return _int64(0), above, bound(row - above * width)
        plane = bound(tirx.truncdiv(above, height))
        return plane, bound(above - plane * height), bound(row - above * width)

    def _copy(self, slab: tirx.Buffer, source: tirx.Buffer, top: Index, height: Dim, padding: int) -> None:
        """Copy the lines ``top``…``top + height`` into ``slab``."""
        g = self.geometry
        run, before, after = (n * g.channels for n in (g.size[2], g.before[2], g.after[2]))
        with T.serial(height) as line:
            start = bind("at", named("line", line) * self.pitch)
            rest, quotient = tirx.floormod, tirx.floordiv
            if not g.is_static:
                rest, quotient = tirx.truncmod, tirx.truncdiv  # Nothing is negative, which the compiler cannot tell.
            y = bind("y", rest(top + line, g.padded[1]) - g.before[1])
            plane = bind("plane", quotient(top + line, g.padded[1]))

            def copy_row(tap: Index, offset: Index) -> None:
                at = start + offset
                under, inside = g.plane_under(plane, tap)
                with T.If(T.And(T.And(y >= 0, y < g.size[1]), inside)):
                    with T.Then():
                        fill_run(slab, at, padding, before)
                        copy_run(slab, at + before, source, (under * g.size[1] + y) * run, run)
                        fill_run(slab, at + before + run, padding, after)
                    with T.Else():
                        fill_run(slab, at, padding, self.breadth)

            emit_taps(self.reduction.taps[:1], copy_row)


def _int64(value: Dim) -> Expr:
    """An extent as an expression of the type that indices have beside symbols."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def build_conv(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a convolution group (1-D to 3-D, any stride, padding, dilation, groups) with its epilogue."""
    call = request.group.anchor.value
    geometry = Geometry.of(call, request.group.name)
    weights = _by_group(constant_value(call.args[1]), geometry)
    rows: Rows = WindowRows(geometry, geometry.at(request.typically))
    if geometry.is_pointwise:
        rows = MatrixRows(geometry.positions, geometry.channels)
    return build_product(request, capabilities, threads, weights, rows)


def _by_group(weights: np.ndarray, geometry: Geometry) -> np.ndarray:
    """O(D)(H)WI weights as [groups, taps, depth, columns] in the taps of ``WindowRows``."""
    g, depth = geometry.groups, geometry.channels // geometry.groups
    a_tap = depth * (geometry.kernel[2] if geometry.is_contiguous else 1)
    return weights.reshape(g, geometry.outputs // g, -1, a_tap).transpose(0, 2, 3, 1)
