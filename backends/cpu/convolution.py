"""Convolution as a matrix product over gathered rows: no im2col, every row of the product is an address.

Activations are channels-last, so the window of one kernel row is contiguous (unless dilated or grouped) and is one
tap of ``kernel width · channels`` elements. Padding is copied in, once per task, into a buffer in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, product_of, simplified
from ...errors import VerificationError
from ...ir import constant_value, dims_of, op_name
from ..target import Capabilities
from .gemm import build_product
from .isa import Arithmetic, bind, copy_run, fill_run, named
from .kernel import Kernel, KernelRequest
from .left_rows import GatheredRows, MatrixRows, OpenLeft, Rows
from .microkernel import Tasks
from .operands import Left, Reduction
from .vector_math import bound
from .vector_memory import Index, store


@dataclass(frozen=True)
class Geometry:
    """A 2-D convolution of NHWC data (1-D: height 1).

    padding : top, left, bottom, right.
    """

    batch: Dim
    size: tuple[Dim, Dim]
    channels: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def is_static(self) -> bool:
        """Whether all extents are known."""
        return all(isinstance(d, int) for d in (self.batch, *self.size))

    @cached_property
    def padded(self) -> tuple[Dim, Dim]:
        """Height and width with padding."""
        top, left, bottom, right = self.padding
        return self.size[0] + top + bottom, self.size[1] + left + right

    @cached_property
    def result(self) -> tuple[Dim, Dim]:
        """Height and width of the output."""
        height, width = (simplified((p - (k - 1) * d - 1) // s + 1) for p, k, d, s
                         in zip(self.padded, self.kernel, self.dilation, self.strides, strict=True))
        return height, width

    @property
    def is_contiguous(self) -> bool:
        """Whether the window of a kernel row is one run of memory."""
        return self.groups == 1 and self.dilation[1] == 1

    @property
    def image_step(self) -> Dim:
        """Image rows from the first of an image's last windows to that of the next image's first."""
        return self.padded[0] - (self.result[0] - 1) * self.strides[0]

    @property
    def positions(self) -> Dim:
        """Pixels of all outputs."""
        return product_of((self.batch, *self.result))

    @property
    def reach(self) -> int:
        """Image rows that a window covers."""
        return (self.kernel[0] - 1) * self.dilation[0] + 1

    def at(self, typically: Callable[[Dim], int]) -> Geometry:
        """The geometry with the extents that ``typically`` gives."""
        return replace(self, batch=typically(self.batch), size=(typically(self.size[0]), typically(self.size[1])))

    @classmethod
    def of(cls, call: Expr, layer: str) -> Geometry:
        """The geometry of a conv1d or conv2d call in channels-last layout."""
        attrs, data, weight = call.attrs, dims_of(call.args[0]), constant_value(call.args[1]).shape
        flat = {"relax.nn.conv1d": True, "relax.nn.conv2d": False}.get(op_name(call) or "")
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        if flat is None or layouts != (("NWC", "OWI") if flat else ("NHWC", "OHWI")):
            raise VerificationError("a convolution must be channels-last", layer=layer,
                                    found=f"{op_name(call)} {layouts}", expected="NHWC, OHWI (1-D: NWC, OWI)")
        strides, dilation, padding = (tuple(int(v) for v in a) for a in (attrs.strides, attrs.dilation, attrs.padding))
        if flat:
            data, weight = (data[0], 1, *data[1:]), (weight[0], 1, *weight[1:])
            strides, dilation, padding = (1, *strides), (1, *dilation), (0, padding[0], 0, padding[1])
        return cls(batch=data[0], size=(data[1], data[2]), channels=data[3], outputs=weight[0],
                   kernel=(weight[1], weight[2]), strides=(strides[0], strides[1]),
                   padding=(padding[0], padding[1], padding[2], padding[3]), dilation=(dilation[0], dilation[1]),
                   groups=int(attrs.groups))


@dataclass(frozen=True)
class WindowRows:
    """Rows of a convolution: row ``(image · height + oh) · width + ow`` is the window of that output pixel.

    typical : the geometry at the typical extents.
    """

    geometry: Geometry
    typical: Geometry

    @property
    def count(self) -> Dim:
        return self.geometry.positions

    @property
    def pitch(self) -> Dim:
        """Elements of a padded row of the image."""
        return self.geometry.padded[1] * self.geometry.channels

    @property
    def reduction(self) -> Reduction:
        g = self.geometry
        down = (g.kernel[0], g.dilation[0] * self.pitch)
        if g.is_contiguous:
            return Reduction((down,), g.kernel[1] * g.channels)
        return Reduction((down, (g.kernel[1], g.dilation[1] * g.channels)), g.channels // g.groups)

    @property
    def distance(self) -> int:
        return self.geometry.strides[1] * self.geometry.channels

    @property
    def run(self) -> int:
        width = self.geometry.result[1]
        return width if isinstance(width, int) else 1

    def forms(self) -> tuple[Rows, ...]:
        return (self, GatheredRows(self)) if self.geometry.groups == 1 else (self,)

    def copied_bytes(self, at_once: int, arithmetic: Arithmetic) -> float:
        return 0.0

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        g = self.typical
        return g.padded[1] * g.channels * g.strides[0] * arithmetic.operand_bytes / g.result[1]

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        at_once, reduction = tasks.read_at_once(arithmetic), tasks.reading(self.reduction, arithmetic)
        if not any(self.geometry.padding) and self.reduction.depth % at_once == 0:
            return lambda first, last: self._left(source, 0, reduction)
        most = self.most_lines(tasks)

        def open_part(first: Index, last: Index) -> Left:
            slab = named("padded", T.alloc_buffer((most * self.pitch + at_once,), arithmetic.operand))
            top = bind("top", self._image_row(first))
            lines = most
            if not isinstance(self.count, int):
                lines = bind("lines", self._image_row(last - 1) + self.geometry.reach - top)
            self._copy(slab, source, top, lines, padding)
            fill_run(slab, lines * self.pitch, 0, at_once)
            return self._left(slab, top, reduction)
        return open_part

    def _left(self, source: tirx.Buffer, top: Index, reduction: Reduction) -> Left:
        """The rows in a buffer that begins with image row ``top``."""
        if self.geometry.is_static:
            return Left.by_row(source, lambda row, group: self._base(row, group, top), reduction,
                               self.distance)
        return Left(source, lambda row, count, group: self._bases(row, count, group, top), reduction,
                    self.distance)

    def most_lines(self, tasks: Tasks) -> Dim:
        """Image rows that a part covers, at most."""
        g = self.geometry
        if isinstance(self.count, int):
            return max(self._image_row(last - 1) + g.reach - self._image_row(first)
                       for first, last in map(tasks.row_range, range(tasks.parts)))
        height, width = g.result
        further = tirx.min(tasks.part_rows, self.count) - 1
        lines = g.reach + (further + width - 1) // width * g.strides[0]
        if isinstance(g.batch, int) and g.batch == 1:
            return lines
        images = (further + height * width - 1) // (height * width)
        return lines + images * tirx.max(_int64(g.image_step - g.strides[0]), 0)

    def _image_row(self, row: Index) -> Index:
        """First row of the padded images, counted through the batch, that the window of ``row`` covers."""
        g = self.geometry
        height, width = g.result
        if not g.is_static:
            image, line, _ = self._pixel(row)
            return image * g.padded[0] + line * g.strides[0]
        if g.batch == 1:
            return row // width * g.strides[0]
        image, line = row // (height * width), row % (height * width) // width
        return image * g.padded[0] + line * g.strides[0]

    def _base(self, row: Index, group: Index, top: Index) -> Index:
        g = self.geometry
        across = row % g.result[1] * (g.strides[1] * g.channels)
        base = (self._image_row(row) - top) * self.pitch + across
        return base + group * (g.channels // g.groups) if g.groups > 1 else base

    def _bases(self, row: Index, count: int, group: Index, top: Index) -> list[Index]:
        """Addresses of neighbouring rows beside symbols: at most one of them begins a line of the output unless lines
        are shorter than ``count``, where every address takes divisions."""
        width = self.geometry.result[1]
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
        image, line, column = self._pixel(row)
        stride = g.strides[1] * g.channels
        start = bound(self._address(image, line, column, group, top))
        step = T.Select(line + 1 == g.result[0], _int64(g.image_step * self.pitch), _int64(g.strides[0] * self.pitch))
        ahead = bound(step - g.result[1] * stride)
        return [start + i * stride + T.Select(column + i >= g.result[1], ahead, _int64(0)) for i in range(count)]

    def _one_by_one(self, row: Index, count: int, group: Index, top: Index) -> list[Index]:
        return [self._address(*self._pixel(row + i), group, top) for i in range(count)]

    def _address(self, image: Index, line: Index, column: Index, group: Index, top: Index) -> Index:
        g = self.geometry
        above = (image * g.padded[0] + line * g.strides[0] - top) * self.pitch
        base = above + column * (g.strides[1] * g.channels)
        return base + group * (g.channels // g.groups) if g.groups > 1 else base

    def _pixel(self, row: Index) -> tuple[Index, Index, Index]:
        """Image, line and column of an output pixel."""
        height, width = self.geometry.result
        above = bound(tirx.truncdiv(row, width))
        if isinstance(self.geometry.batch, int) and self.geometry.batch == 1:
            return _int64(0), above, bound(row - above * width)
        image = bound(tirx.truncdiv(above, height))
        return image, bound(above - image * height), bound(row - above * width)

    def _copy(self, slab: tirx.Buffer, source: tirx.Buffer, top: Index, height: Dim, padding: int) -> None:
        """Copy padded image rows ``top``…``top + height`` of the batch into ``slab``."""
        g = self.geometry
        run, before, after = (n * g.channels for n in (g.size[1], g.padding[1], g.padding[3]))
        with T.serial(height) as line:
            at = bind("at", named("line", line) * self.pitch)
            rest, quotient = tirx.floormod, tirx.floordiv
            if not g.is_static:
                rest, quotient = tirx.truncmod, tirx.truncdiv  # Nothing is negative, which the compiler cannot tell.
            y = bind("y", rest(top + line, g.padded[0]) - g.padding[0])
            image = bind("image", quotient(top + line, g.padded[0]))
            with T.If(T.And(T.And(y >= 0, y < g.size[0]), image < g.batch)):
                with T.Then():
                    fill_run(slab, at, padding, before)
                    copy_run(slab, at + before, source, (image * g.size[0] + y) * run, run)
                    fill_run(slab, at + before + run, padding, after)
                with T.Else():
                    fill_run(slab, at, padding, self.pitch)


def _int64(value: Dim) -> Expr:
    """An extent as an expression of the type that indices have beside symbols."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def build_conv(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a convolution group (1-D or 2-D, any stride, padding, dilation, groups) with its epilogue."""
    call = request.group.anchor.value
    geometry = Geometry.of(call, request.group.name)
    weights = _by_group(constant_value(call.args[1]), geometry)
    rows: Rows = WindowRows(geometry, geometry.at(request.typically))
    if geometry.kernel == geometry.strides == (1, 1) and not any(geometry.padding) and geometry.groups == 1:
        rows = MatrixRows(geometry.positions, geometry.channels)
    return build_product(request, capabilities, threads, weights, rows)


def _by_group(weights: np.ndarray, geometry: Geometry) -> np.ndarray:
    """O(H)WI weights as [groups, taps, depth, columns] in the taps of ``WindowRows``."""
    g, (height, width) = geometry.groups, geometry.kernel
    depth = geometry.channels // g
    split = weights.reshape(g, geometry.outputs // g, height, width, depth)
    if geometry.is_contiguous:
        split = split.reshape(g, geometry.outputs // g, height, width * depth)
    else:
        split = split.reshape(g, geometry.outputs // g, height * width, depth)
    return split.transpose(0, 2, 3, 1)
