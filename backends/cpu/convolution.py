"""Convolution as a matrix product over gathered rows: no im2col, every row of the product is an address.

Activations are channels-last, so the window of one kernel row is contiguous (unless dilated or grouped) and is one
tap of ``kernel width · channels`` elements. Padding is copied in, once per task, into a buffer in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from ...errors import VerificationError
from ...ir import constant_value, op_name, shape_of
from ..target import Capabilities
from .gemm import build_product
from .isa import Arithmetic, bind, copy_run, fill_run, named
from .kernel import Kernel, KernelRequest
from .left_rows import MatrixRows, OpenLeft, Rows
from .microkernel import Left, Reduction, Tasks
from .vector_memory import Index


@dataclass(frozen=True)
class Geometry:
    """A 2-D convolution of NHWC data (1-D: height 1).

    padding : top, left, bottom, right.
    """

    batch: int
    size: tuple[int, int]
    channels: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width with padding."""
        top, left, bottom, right = self.padding
        return self.size[0] + top + bottom, self.size[1] + left + right

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the output."""
        height, width = ((p - (k - 1) * d - 1) // s + 1 for p, k, d, s
                         in zip(self.padded, self.kernel, self.dilation, self.strides, strict=True))
        return height, width

    @classmethod
    def of(cls, call: Expr, layer: str) -> Geometry:
        """The geometry of a conv1d or conv2d call in channels-last layout."""
        attrs, data, weight = call.attrs, shape_of(call.args[0]), shape_of(call.args[1])
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
    """Rows of a convolution: row ``(image · height + oh) · width + ow`` is the window of that output pixel."""

    geometry: Geometry

    @property
    def count(self) -> int:
        return self.geometry.batch * self.geometry.result[0] * self.geometry.result[1]

    @property
    def is_contiguous(self) -> bool:
        """Whether the window of a kernel row is one run of memory."""
        return self.geometry.groups == 1 and self.geometry.dilation[1] == 1

    @property
    def pitch(self) -> int:
        """Elements of a padded row of the image."""
        return self.geometry.padded[1] * self.geometry.channels

    @property
    def reduction(self) -> Reduction:
        g = self.geometry
        down = (g.kernel[0], g.dilation[0] * self.pitch)
        if self.is_contiguous:
            return Reduction((down,), g.kernel[1] * g.channels)
        return Reduction((down, (g.kernel[1], g.dilation[1] * g.channels)), g.channels // g.groups)

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        return self.pitch * self.geometry.strides[0] * arithmetic.operand_bytes / self.geometry.result[1]

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        if not any(self.geometry.padding) and self.reduction.depth % arithmetic.depth == 0:
            return lambda first, last: Left.by_row(source, lambda row, group: self._base(row, group, 0), self.reduction)
        height = max(self._image_row(last - 1) + self._reach - self._image_row(first)
                     for first, last in map(tasks.row_range, range(tasks.parts)))

        def open_part(first: Index, last: Index) -> Left:
            size = height * self.pitch
            slab = named("padded", T.alloc_buffer((size + arithmetic.depth,), arithmetic.operand))
            top = bind("top", self._image_row(first))
            self._copy(slab, source, top, height, padding)
            fill_run(slab, size, 0, arithmetic.depth)
            return Left.by_row(slab, lambda row, group: self._base(row, group, top), self.reduction)
        return open_part

    @property
    def _reach(self) -> int:
        """Image rows that a window covers."""
        return (self.geometry.kernel[0] - 1) * self.geometry.dilation[0] + 1

    def _image_row(self, row: Index) -> Index:
        """First row of the padded images, counted through the batch, that the window of ``row`` covers."""
        height, width = self.geometry.result
        if self.geometry.batch == 1:
            return row // width * self.geometry.strides[0]
        image, line = row // (height * width), row % (height * width) // width
        return image * self.geometry.padded[0] + line * self.geometry.strides[0]

    def _base(self, row: Index, group: Index, top: Index) -> Index:
        g = self.geometry
        across = row % g.result[1] * (g.strides[1] * g.channels)
        base = (self._image_row(row) - top) * self.pitch + across
        return base + group * (g.channels // g.groups) if g.groups > 1 else base

    def _copy(self, slab: tirx.Buffer, source: tirx.Buffer, top: Index, height: int, padding: int) -> None:
        """Copy padded image rows ``top``…``top + height`` of the batch into ``slab``."""
        g = self.geometry
        run, before = g.size[1] * g.channels, g.padding[1] * g.channels
        after = self.pitch - run - before
        with T.serial(height) as line:
            at = bind("at", named("line", line) * self.pitch)
            y = bind("y", (top + line) % g.padded[0] - g.padding[0])
            image = bind("image", (top + line) // g.padded[0])
            with T.If(T.And(T.And(y >= 0, y < g.size[0]), image < g.batch)):
                with T.Then():
                    fill_run(slab, at, padding, before)
                    copy_run(slab, at + before, source, (image * g.size[0] + y) * run, run)
                    fill_run(slab, at + before + run, padding, after)
                with T.Else():
                    fill_run(slab, at, padding, self.pitch)


def build_conv(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a convolution group (1-D or 2-D, any stride, padding, dilation, groups) with its epilogue."""
    call = request.group.anchor.value
    geometry = Geometry.of(call, request.group.name)
    weights = _by_group(constant_value(call.args[1]), geometry)
    rows: Rows = WindowRows(geometry)
    if geometry.kernel == geometry.strides == (1, 1) and not any(geometry.padding) and geometry.groups == 1:
        rows = MatrixRows(geometry.batch * geometry.size[0] * geometry.size[1], geometry.channels)
    return build_product(request, capabilities, threads, weights, rows)


def _by_group(weights: np.ndarray, geometry: Geometry) -> np.ndarray:
    """O(H)WI weights as [groups, taps, depth, columns] in the taps of ``WindowRows``."""
    g, (height, width) = geometry.groups, geometry.kernel
    depth = geometry.channels // g
    split = weights.reshape(g, geometry.outputs // g, height, width, depth)
    if WindowRows(geometry).is_contiguous:
        split = split.reshape(g, geometry.outputs // g, height, width * depth)
    else:
        split = split.reshape(g, geometry.outputs // g, height * width, depth)
    return split.transpose(0, 2, 3, 1)
