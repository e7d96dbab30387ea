"""Pools and resizing of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from tvm import relax

from ...dims import Dim, is_equal_dim, simplified
from ...ir import Expr
from ..extents import positions
from .context import (
    UNAVAILABLE,
    Context,
    Handler,
    Value,
    expand_sizes,
    is_exactly,
    is_variable,
    rank,
    require_static,
    shape,
)
from .padding import constant_pad

_op = relax.op
_MAX = {1: _op.nn.max_pool1d, 2: _op.nn.max_pool2d, 3: _op.nn.max_pool3d}
_AVERAGE = {1: _op.nn.avg_pool1d, 2: _op.nn.avg_pool2d, 3: _op.nn.avg_pool3d}
_ADAPTIVE = {1: _op.nn.adaptive_avg_pool1d, 2: _op.nn.adaptive_avg_pool2d, 3: _op.nn.adaptive_avg_pool3d}


@dataclass(frozen=True)
class Window:
    """A pool's geometry per spatial dimension; ``extra`` is what ceil mode reads beyond the end padding."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    extra: Sequence[int]

    @classmethod
    def of(cls, n: int, extents: Sequence[Dim], kernel: Sequence[int], stride: Sequence[int] | None,
           padding: Sequence[int], dilation: Sequence[int], *, ceil_mode: bool) -> Window:
        """ATen's arguments: an empty stride is the kernel; ceil mode drops windows that start in the end padding.

        Where the extent is symbolic, ceil mode reads as far as a window could reach. ValueError where it depends on the
        extent whether such a window counts.
        """
        kernel, stride, padding, dilation = (expand_sizes(v, n) for v in (kernel, stride or kernel, padding, dilation))
        extra = []
        for extent, k, s, p, d in zip(extents, kernel, stride, padding, dilation, strict=True):
            if not isinstance(extent, int):
                if ceil_mode and p + s - d * (k - 1) >= 2:
                    raise ValueError("ceil_mode over a dynamic extent")
                extra.append(s - 1 if ceil_mode else 0)
                continue
            reach = extent + 2 * p - d * (k - 1) - 1
            steps = -(-reach // s) if ceil_mode else reach // s
            if ceil_mode and steps * s >= extent + p:
                steps -= 1
            extra.append(max(steps * s - reach, 0))
        return cls(kernel, stride, padding, dilation, extra)

    def pads(self) -> list[int]:
        """All starts, then all ends."""
        return [*self.padding, *(p + e for p, e in zip(self.padding, self.extra, strict=True))]


def unbatched(n: int, pool: Handler) -> Handler:
    """A pool over ``n`` spatial dimensions that also takes [C, spatial…]."""
    def translate(c: Context, x: Value, *args: Value, **kwargs: Value) -> Value:
        if rank(x) == n + 2:
            return pool(c, x, *args, **kwargs)
        batched = c.emit(_op.expand_dims(c.expr(x), 0), "batched")
        return c.emit(_op.squeeze(pool(c, batched, *args, **kwargs), 0))
    return translate


def max_pool(n: int) -> Handler:
    """``max_poolNd``; the padding is minus infinity."""
    def translate(c: Context, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
                  padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False) -> Value:
        w = Window.of(n, shape(x)[2:], kernel, stride, padding, dilation, ceil_mode=ceil_mode)
        return c.emit(_MAX[n](c.expr(x), w.kernel, strides=w.stride, padding=w.pads(), dilation=w.dilation))
    return unbatched(n, translate)


def with_indices(pool: Handler) -> Handler:
    """A pool that also returns where the maxima were, which has no translation and may not be used."""
    return lambda c, *args, **kwargs: (pool(c, *args, **kwargs), UNAVAILABLE)


def average_pool(n: int) -> Handler:
    """``avg_poolNd``: what ceil mode reads beyond the padding never counts, the padding does where asked for."""
    def translate(c: Context, x: Value, kernel: Sequence[int], stride: Sequence[int] = (),
                  padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
                  divisor: int | None = None) -> Value:
        w = Window.of(n, shape(x)[2:], kernel, stride, padding, [1], ceil_mode=ceil_mode)
        y, pads, include = c.expr(x), w.pads(), count_include_pad or divisor is not None
        if divisor is None and include and any(w.extra) and any(w.padding):
            y = constant_pad(Context(c.builder, f"{c.name}.padded", c.result), x,
                             [p for q in reversed(w.padding) for p in (q, q)])
            pads, include = [*[0] * n, *w.extra], False
        elif divisor is None and (any(w.extra) or not any(w.padding)):
            include = False
        y = c.emit(_AVERAGE[n](y, w.kernel, strides=w.stride, padding=pads, count_include_pad=include))
        if divisor is None:
            return y
        return c.emit(_op.multiply(y, c.expr(math.prod(w.kernel) / divisor)))
    return unbatched(n, translate)


def adaptive_average_pool(n: int) -> Handler:
    """``adaptive_avg_poolNd``."""
    def translate(c: Context, x: Value, size: Sequence[int]) -> Value:
        return c.emit(_ADAPTIVE[n](c.expr(x), tuple(expand_sizes(size, n))))
    return unbatched(n, translate)


def adaptive_max_pool(n: int) -> Handler:
    """``adaptive_max_poolNd`` for sizes that divide the input's."""
    def translate(c: Context, x: Value, size: Sequence[int]) -> Value:
        extents, sizes = shape(x)[2:], expand_sizes(size, n)
        if all(is_exactly(s, 1) for s in sizes):
            return c.emit(_op.max(c.expr(x), axis=list(range(2, n + 2)), keepdims=True))
        require_static(c, extents, "adaptive max pooling to more than one element")
        if any(e % s for e, s in zip(extents, sizes, strict=True)):
            raise c.refuse("adaptive max pooling is supported for output sizes that divide the input's",
                           found=f"{tuple(extents)} to {tuple(sizes)}")
        kernel = [e // s for e, s in zip(extents, sizes, strict=True)]
        return c.emit(_MAX[n](c.expr(x), kernel, strides=kernel))
    return with_indices(unbatched(n, translate))


def _sizes(c: Context, x: Value, output_size: Sequence[Dim] | None, factors: Sequence[float] | None) -> list[Dim]:
    """The output's spatial sizes; refuses factors whose rounding makes PyTorch sample on another grid."""
    extents = shape(x)[2:]
    if output_size is not None:
        return list(output_size)
    if is_variable(factors):
        return list(c.dims[2:])
    scales = [float(f) for f in factors or ()]
    sizes = list(c.dims[2:])
    if any(not _scales_to(s, e, f) for s, e, f in zip(sizes, extents, scales, strict=True)):
        raise c.refuse("resizing by a factor that does not give a whole number of elements has no translation",
                       found=f"{tuple(extents)} by {tuple(scales)}",
                       hint="pass size=, or recompute_scale_factor=True, to interpolate")
    return sizes


def _scales_to(size: Dim, extent: Dim, factor: float) -> bool:
    """Whether ``extent · factor`` is exactly ``size``."""
    ratio = Fraction(factor).limit_denominator(64)
    return float(ratio) == factor and is_equal_dim(size * ratio.denominator, extent * ratio.numerator)


def nearest(offset: float) -> Handler:
    """``upsample_nearestNd`` (offset 0) and ``_upsample_nearest_exactNd`` (0.5): a gather along every axis."""
    def translate(c: Context, x: Value, output_size: Sequence[int] | None, factors: Sequence[float] | None) -> Value:
        sizes, y = _sizes(c, x, output_size, factors), c.expr(x)
        if offset == 0 and len(sizes) == 2:
            return c.emit(_op.image.resize2d(y, tuple(sizes), method="nearest_neighbor", rounding_method="floor",
                                             coordinate_transformation_mode="asymmetric"))
        for i, size in enumerate(sizes):
            y = c.emit(_op.take(y, _sources(c, shape(x)[2 + i], size, offset), axis=2 + i, mode="clip"))
        return y
    return translate


def _sources(c: Context, extent: Dim, size: Dim, offset: float) -> Expr:
    """The position that each of ``size`` elements of a nearest neighbour resize is read from."""
    if isinstance(extent, int) and isinstance(size, int):
        indices = np.floor((np.arange(size) + offset) * (extent / size)).astype(np.int64).clip(0, extent - 1)
        return c.expr(torch.from_numpy(indices))
    twice = c.emit(_op.multiply(positions(c.builder, c.name, size), c.expr(2)), "doubled")
    halves = c.emit(_op.add(twice, c.expr(round(2 * offset))), "doubled")
    scaled = c.emit(_op.multiply(halves, c.expr(extent)), "scaled")
    return c.emit(_op.floor_divide(scaled, c.expr(simplified(size * 2))), "sources")


def resize(method: str) -> Handler:
    """``upsample_linear1d``, ``upsample_bilinear2d`` and ``upsample_bicubic2d``."""
    def translate(c: Context, x: Value, output_size: Sequence[int] | None, align_corners: bool,
                  factors: Sequence[float] | None) -> Value:
        sizes = _sizes(c, x, output_size, factors)
        mode = "align_corners" if align_corners else "half_pixel"
        return _with_height(c, x, sizes, lambda y, size: _op.image.resize2d(
            y, size, method=method, coordinate_transformation_mode=mode))
    return translate


def _with_height(c: Context, x: Value, sizes: Sequence[Dim],
                 op: Callable[[Expr, tuple[Dim, ...]], Expr]) -> Value:
    """Apply a 2-D resize; [N, C, W] gets a height of 1 for it."""
    if len(sizes) == 2:
        return c.emit(op(c.expr(x), tuple(sizes)))
    high = c.emit(_op.expand_dims(c.expr(x), 2), "high")
    return c.emit(_op.squeeze(c.emit(op(high, (1, *sizes))), 2))


TABLE: dict[str, Handler] = {
    **{f"max_pool{n}d": max_pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": with_indices(max_pool(n)) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": average_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive_average_pool(n) for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": adaptive_average_pool(n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive_max_pool(n) for n in (1, 2, 3)},
    **{f"upsample_nearest{n}d.vec": nearest(0.0) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d.vec": nearest(0.5) for n in (1, 2, 3)},
    "upsample_linear1d.vec": resize("linear"), "upsample_bilinear2d.vec": resize("linear"),
    "upsample_bicubic2d.vec": resize("cubic"),
}
