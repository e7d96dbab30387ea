"""Pooling. Rounding up is written as padding at the end, so that one form of pooling is left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...dims import Dim
from ...ir import Expr
from .convolutions import padding, spatial_attribute
from .node import OnnxNode, Results, operator
from .unfolding import max_with_places

_MAX = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}

_ADAPTIVE = {1: relax.op.nn.adaptive_avg_pool1d, 2: relax.op.nn.adaptive_avg_pool2d, 3: relax.op.nn.adaptive_avg_pool3d}


@dataclass(frozen=True)
class _Window:
    """A pooling window; ``pads`` are what the model asks for, ``extra`` is what rounding up adds at the ends."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    extra: list[int]

    @property
    def all_pads(self) -> list[int]:
        count = len(self.kernel)
        return [*self.pads[:count], *(p + e for p, e in zip(self.pads[count:], self.extra, strict=True))]


def _window(node: OnnxNode) -> _Window:
    extents = node.dims(0)[2:]
    count = len(extents)
    if not 1 <= count <= 3:
        raise node.unsupported(f"of {count + 2} dimensions")
    kernel, strides, dilations = (spatial_attribute(node, n, count) for n in ("kernel_shape", "strides", "dilations"))
    if "kernel_shape" not in node.attributes:
        raise node.fault("the attribute kernel_shape is missing")
    pads = padding(node, extents, kernel, strides, dilations)
    extra = [0] * count
    if node.attribute("ceil_mode", 0):
        for i, (extent, k, s, d) in enumerate(zip(extents, kernel, strides, dilations, strict=True)):
            start, end, reach = pads[i], pads[count + i], (k - 1) * d + 1
            if not isinstance(extent, int):
                extra[i] = _rounding_up(node, extent, s, reach - end)
                continue
            windows = -(-(extent + start + end - reach) // s) + 1
            windows -= (windows - 1) * s >= extent + start
            extra[i] = max((windows - 1) * s + reach - extent - start, 0) - end
    if any(p >= (k - 1) * d + 1 for p, k, d in zip(pads, kernel * 2, dilations * 2, strict=True)):
        raise node.fault("the padding is not smaller than the window", found=pads, expected=f"below {kernel}")
    return _Window(kernel, strides, dilations, pads, extra)


def _rounding_up(node: OnnxNode, extent: Dim, stride: int, own: int) -> int:
    """What rounding up adds at the end of a symbolic axis.

    As much as one stride lacks; where a window reaches back over it and its padding, no window starts beyond the input.
    """
    if stride > own:
        node.numbers([extent], "the input, of which the last window takes what is left,")
    return stride - 1


@operator("MaxPool")
def max_pool(node: OnnxNode) -> Results:
    w = _window(node)
    if any(node.outputs[1:]):
        return _with_indices(node, w)
    return node.emit(_MAX[len(w.kernel)](node.expr(0), pool_size=w.kernel, strides=w.strides, padding=w.all_pads,
                                         dilation=w.dilations))


def _with_indices(node: OnnxNode, w: _Window) -> Results:
    extents, pads, rank = node.shape(0)[2:], w.all_pads, len(w.kernel)
    counts = [(e + pads[i] + pads[rank + i] - (k - 1) * d - 1) // s + 1
              for i, (e, k, s, d) in enumerate(zip(extents, w.kernel, w.strides, w.dilations, strict=True))]
    return max_with_places(node, counts, w.kernel, w.strides, w.dilations, pads[:rank])


@operator("AveragePool")
def average_pool(node: OnnxNode) -> Results:
    """Elements that rounding up adds never count; those of the model's own padding where it says so."""
    return _average(node, node.expr(0), _window(node), counts_padding=bool(node.attribute("count_include_pad", 0)))


def _average(node: OnnxNode, x: Expr, w: _Window, *, counts_padding: bool) -> relax.Var:
    pads, count = w.all_pads, len(w.kernel)
    if counts_padding and any(w.extra):
        own = [*w.pads[:count], *(p + min(e, 0) for p, e in zip(w.pads[count:], w.extra, strict=True))]
        widths = [0, 0, 0, 0] + [p for i in range(count) for p in (own[i], own[count + i])]
        x = node.emit(relax.op.nn.pad(x, widths), "padded")
        pads, counts_padding = [0] * count + [max(e, 0) for e in w.extra], False
    return node.emit(_AVERAGE[count](x, pool_size=w.kernel, strides=w.strides, padding=pads, dilation=w.dilations,
                                     count_include_pad=counts_padding))


@operator("LpPool")
def lp_pool(node: OnnxNode) -> Results:
    """``(Σ |x|^p)^(1/p)`` of each window: an average over windows that count their padding, times their size."""
    p, w = float(node.attribute("p", 2)), _window(node)
    powers = node.emit(relax.op.power(node.emit(relax.op.abs(node.expr(0)), "powers"), node.constant(np.float32(p))),
                       "powers")
    pads = w.all_pads
    plain = _Window(w.kernel, w.strides, w.dilations, pads, [0] * len(w.kernel))
    mean = _average(node, powers, plain, counts_padding=True)
    total = node.emit(relax.op.multiply(mean, node.constant(np.float32(math.prod(w.kernel)))))
    return node.emit(relax.op.power(total, node.constant(np.float32(1 / p))))


@operator("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Results:
    """Adaptive pooling to one element, as the PyTorch frontend writes it."""
    return whole_average(node) if node.rank(0) <= 5 else node.emit(
        relax.op.mean(node.expr(0), axis=_spatial(node), keepdims=True))


def whole_average(node: OnnxNode) -> relax.Var:
    """The mean over all of one, two or three spatial dimensions, which stay as ones."""
    count = len(_spatial(node))
    return node.emit(_ADAPTIVE[count](node.expr(0), (1,) * count))


@operator("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Results:
    return node.emit(relax.op.max(node.expr(0), axis=_spatial(node), keepdims=True))


@operator("GlobalLpPool")
def global_lp_pool(node: OnnxNode) -> Results:
    p = float(node.attribute("p", 2))
    powers = node.emit(relax.op.power(node.emit(relax.op.abs(node.expr(0)), "powers"), node.constant(np.float32(p))),
                       "powers")
    total = node.emit(relax.op.sum(powers, axis=_spatial(node), keepdims=True))
    return node.emit(relax.op.power(total, node.constant(np.float32(1 / p))))


def _spatial(node: OnnxNode) -> list[int]:
    rank = node.rank(0)
    if rank < 3:
        raise node.fault("the input has no spatial dimensions", found=f"{rank} dimensions")
    return list(range(2, rank))
