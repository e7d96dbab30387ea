"""ATen operators that only move elements: shapes, transposes, repetition, joins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tvm import relax, tirx

from ...dims import Dim, equal_dims, product_of, simplified
from ...ir import Expr
from .. import extents
from .context import (
    Context,
    Handler,
    Value,
    axes_of,
    axis_of,
    expand_sizes,
    is_exactly,
    is_extent,
    is_variable,
    rank,
    require_static,
    shape,
)
from .slicing import sliced

_op = relax.op


def reshaped(c: Context, x: Value, sizes: Sequence[Dim], part: str = "") -> Expr:
    """``x`` with the shape ``sizes`` (one may be -1); ``x`` itself where it has that shape."""
    known = product_of(s for s in sizes if not is_exactly(s, -1))
    rest = product_of(shape(x)) if any(is_exactly(s, -1) for s in sizes) else 0
    target = tuple(_quotient(rest, known) if is_exactly(s, -1) else s for s in sizes)
    return c.expr(x) if equal_dims(target, shape(x)) else c.emit(_op.reshape(c.expr(x), target), part)


def _quotient(a: Dim, b: Dim) -> Dim:
    if is_exactly(b, 0):
        return 0
    return a // b if isinstance(a, int) and isinstance(b, int) else simplified(tirx.floordiv(a, b))


def view(c: Context, x: Value, sizes: Value, *_: Value, **__: Value) -> Value:
    """Operators that change the shape only, to what PyTorch says. Reinterpreting bits has no translation."""
    if isinstance(sizes, torch.dtype):
        raise c.refuse("reinterpreting the bits of a tensor has no translation")
    return reshaped(c, x, c.dims)


def ravel(c: Context, x: Value, *_: Value, **__: Value) -> Value:
    return reshaped(c, x, c.dims)


def permuted(c: Context, x: Value, axes: Sequence[int], part: str = "") -> Expr:
    """``x`` with its axes in the given order; ``x`` itself where nothing changes."""
    axes = [axis_of(x, a) for a in axes]
    return c.expr(x) if axes == sorted(axes) else c.emit(_op.permute_dims(c.expr(x), axes), part)


def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    return permuted(c, x, dims)


def transpose(c: Context, x: Value, a: int, b: int) -> Value:
    order = list(range(rank(x)))
    if order:
        i, j = axis_of(x, a), axis_of(x, b)
        order[i], order[j] = order[j], order[i]
    return permuted(c, x, order)


def t(c: Context, x: Value) -> Value:
    return permuted(c, x, range(rank(x))[::-1])


def matrix_transpose(c: Context, x: Value) -> Value:
    return transpose(c, x, -1, -2)


def movedim(c: Context, x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    sources, targets = ([axis_of(x, d) for d in ([v] if isinstance(v, int) else v)] for v in (source, destination))
    placed = dict(zip(targets, sources, strict=True))
    rest = iter(a for a in range(rank(x)) if a not in sources)
    return permuted(c, x, [placed[i] if i in placed else next(rest) for i in range(rank(x))])


def unsqueeze(c: Context, x: Value, dim: int) -> Value:
    return c.emit(_op.expand_dims(c.expr(x), dim % (rank(x) + 1)))


def squeeze(c: Context, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    axes = [a for a in axes_of(x, dims) if is_exactly(shape(x)[a], 1)] if dims != [] and rank(x) else []
    return c.emit(_op.squeeze(c.expr(x), axes)) if axes else x


def expand(c: Context, x: Value, sizes: Sequence[int], **_: Value) -> Value:
    own = (1,) * (len(sizes) - rank(x)) + shape(x)
    target = tuple(o if is_exactly(s, -1) else s for s, o in zip(sizes, own, strict=True))
    return c.expr(x) if equal_dims(target, shape(x)) else c.emit(_op.broadcast_to(c.expr(x), target))


def copy(c: Context, x: Value, source: Value, *_: Value) -> Value:
    """``x`` overwritten by ``source``, which has or broadcasts to its shape."""
    return expand(c, c.expr(source, c.dtype), shape(x))


def expand_as(c: Context, x: Value, other: Value) -> Value:
    return expand(c, x, shape(other))


def repeat(c: Context, x: Value, repeats: Sequence[Dim]) -> Value:
    repeats = [1] * (rank(x) - len(repeats)) + list(repeats)
    own = (1,) * (len(repeats) - rank(x)) + shape(x)
    if all(is_exactly(r, 1) or is_exactly(d, 1) for r, d in zip(repeats, own, strict=True)):
        target = [d if is_exactly(r, 1) else r for r, d in zip(repeats, own, strict=True)]
        return expand(c, reshaped(c, x, own), target)
    if all(isinstance(r, int) for r in repeats):
        return c.emit(_op.tile(c.expr(x), repeats))
    pairs = [(r, d) for r, d in zip(repeats, own, strict=True)]
    y = reshaped(c, x, [e for _, d in pairs for e in (1, d)], "parted")
    y = c.emit(_op.broadcast_to(y, [e for pair in pairs for e in pair]), "repeated")
    return reshaped(c, y, [product_of(pair) for pair in pairs])


def repeat_interleave(c: Context, x: Value, repeats: Value, dim: int | None = None, **_: Value) -> Value:
    if is_variable(repeats) and not is_extent(repeats):
        raise c.refuse("repeat_interleave is supported for a constant number of repeats")
    if dim is None:
        return repeat_interleave(c, reshaped(c, x, [-1], "flat"), repeats, 0)
    axis = axis_of(x, dim)
    if isinstance(repeats, int):
        return c.emit(_op.repeat(c.expr(x), repeats, axis=axis))
    if isinstance(repeats, torch.Tensor):
        require_static(c, [shape(x)[axis]], "repeat_interleave by a tensor")
        order = torch.repeat_interleave(torch.arange(shape(x)[axis]), repeats)
        return c.emit(_op.take(c.expr(x), c.expr(order), axis=axis, mode="clip"))
    dims = shape(x)
    y = c.emit(_op.expand_dims(c.expr(x), axis + 1), "column")
    y = c.emit(_op.broadcast_to(y, (*dims[:axis + 1], repeats, *dims[axis + 1:])), "repeated")
    return reshaped(c, y, (*dims[:axis], dims[axis] * repeats, *dims[axis + 1:]))


def cat(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [v for v in tensors if not (rank(v) == 1 and is_exactly(shape(v)[0], 0))] or list(tensors[:1])
    exprs = [c.expr(v, c.dtype) for v in parts]
    return exprs[0] if len(exprs) == 1 else c.emit(_op.concat(exprs, axis=axis_of(parts[0], dim)))


def stack(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (rank(tensors[0]) + 1)
    exprs = [c.emit(_op.expand_dims(c.expr(v, c.dtype), axis), "part") for v in tensors]
    return c.emit(_op.concat(exprs, axis=axis))


def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    y = c.expr(x)
    for axis in axes_of(x, list(dims)) if dims else []:
        y = c.emit(_op.flip(y, axis))
    return y


def _cut(c: Context, extent: Dim, shift: Dim) -> Dim:
    """Where a symbolic axis that is rolled by ``shift`` begins; the shift has to be below the extent."""
    if not isinstance(shift, int):
        raise c.refuse("rolling by a dynamic number of places is supported along fixed dimensions", found=str(shift))
    c.require(extent, abs(shift))
    return -shift if shift <= 0 else simplified(extent - shift)


def roll(c: Context, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    shifts = expand_sizes(shifts, 1)
    if dims == () or dims == []:
        flat = roll(c, reshaped(c, x, [-1], "flat"), shifts, [0])
        return reshaped(c, flat, shape(x))
    y = c.expr(x)
    for shift, dim in zip(shifts, expand_sizes(dims, 1), strict=True):
        axis = axis_of(x, dim)
        extent = shape(x)[axis]
        cut = -shift % max(extent, 1) if isinstance(extent, int) else _cut(c, extent, shift)
        if not is_exactly(cut, 0):
            parts = [sliced(c, y, axis, cut, extent, part="tail"), sliced(c, y, axis, 0, cut, part="head")]
            y = c.emit(_op.concat(parts, axis=axis))
    return y


def triangle(lower: bool) -> Handler:
    """``tril`` and ``triu`` as a selection by a mask of positions."""
    def translate(c: Context, x: Value, diagonal: Dim = 0) -> Value:
        rows, columns = shape(x)[-2:]
        below = extents.triangle(c.builder, c.name, rows, columns, diagonal if lower else diagonal - 1)
        y, zero = c.expr(x), c.expr(0, c.dtype)
        return c.emit(_op.where(below, y, zero) if lower else _op.where(below, zero, y))
    return translate


def pixel_shuffle(c: Context, x: Value, factor: int) -> Value:
    *batch, channels, height, width = shape(x)
    n = len(batch)
    y = reshaped(c, x, (*batch, channels // factor**2, factor, factor, height, width))
    y = permuted(c, y, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return reshaped(c, y, (*batch, channels // factor**2, height * factor, width * factor))


def pixel_unshuffle(c: Context, x: Value, factor: int) -> Value:
    *batch, channels, height, width = shape(x)
    n = len(batch)
    y = reshaped(c, x, (*batch, channels, height // factor, factor, width // factor, factor))
    y = permuted(c, y, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return reshaped(c, y, (*batch, channels * factor**2, height // factor, width // factor))


def channel_shuffle(c: Context, x: Value, groups: int) -> Value:
    batch, channels, *spatial = shape(x)
    y = reshaped(c, x, (batch, groups, channels // groups, *spatial))
    y = permuted(c, y, [0, 2, 1, *range(3, rank(y))])
    return reshaped(c, y, shape(x))


def meshgrid(c: Context, tensors: Sequence[Value], *, indexing: str = "ij") -> Value:
    grid, places = [product_of(shape(v)) for v in tensors], list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        grid[0], grid[1] = grid[1], grid[0]
        places[0], places[1] = 1, 0
    return tuple(c.emit(_op.broadcast_to(reshaped(c, v, [-1 if i == p else 1 for i in range(len(grid))], "part"), grid))
                 for v, p in zip(tensors, places, strict=True))


def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal as the last axis: a gather at constant positions of the two axes joined."""
    a, b = axis_of(x, dim1), axis_of(x, dim2)
    rest = [i for i in range(rank(x)) if i not in (a, b)]
    rows, columns = shape(x)[a], shape(x)[b]
    require_static(c, (rows, columns), "a diagonal")
    positions = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset).copy()
    front = permuted(c, x, [*rest, a, b], "front")
    joined = reshaped(c, front, (*(shape(x)[i] for i in rest), rows * columns), "joined")
    return c.emit(_op.take(joined, c.expr(torch.from_numpy(positions)), axis=len(rest), mode="clip"))


def unfold(c: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of one axis, their elements as the last axis: a gather at constant positions."""
    axis = axis_of(x, dim)
    windows = c.emit(_op.take(c.expr(x), _windows(c, c.dims[axis], size, step), axis=axis, mode="clip"), "windows")
    return permuted(c, windows, [i for i in range(rank(windows)) if i != axis + 1] + [axis + 1])


def _windows(c: Context, count: Dim, size: int, step: int) -> Expr:
    """[count, size]: the positions that every window reads."""
    inside = torch.arange(size)
    if isinstance(count, int):
        return c.expr(torch.arange(count)[:, None] * step + inside)
    first = extents.positions(c.builder, f"{c.name}.windows", count)
    first = c.emit(_op.multiply(first, c.expr(step)), "windows.starts")
    return c.emit(_op.add(c.emit(_op.expand_dims(first, 1), "windows.starts"), c.expr(inside)), "windows.places")


TABLE: dict[str, Handler] = {
    "view": view, "reshape": view, "_unsafe_view": view, "_reshape_alias": view, "view_copy": view,
    "view_as": view, "reshape_as": view, "unflatten": view, "flatten": ravel, "ravel": ravel,
    "permute": permute, "transpose": transpose, "swapaxes": transpose, "swapdims": transpose, "t": t, "numpy_T": t,
    "mT": matrix_transpose, "adjoint": matrix_transpose, "movedim": movedim, "moveaxis": movedim,
    "unsqueeze": unsqueeze, "squeeze": squeeze, "expand": expand, "expand_as": expand_as, "copy": copy,
    "broadcast_to": expand, "repeat": repeat, "tile": repeat,
    "repeat_interleave": repeat_interleave, "cat": cat, "concat": cat,
    "concatenate": cat, "stack": stack, "flip": flip, "roll": roll,
    "tril": triangle(lower=True), "triu": triangle(lower=False),
    "pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle, "channel_shuffle": channel_shuffle,
    "native_channel_shuffle": channel_shuffle, "meshgrid": meshgrid, "diagonal": diagonal, "unfold": unfold,
}
