"""ATen operators that only move elements: shapes, transposes, slices, joins, padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from tvm import relax

from ...ir import Expr, dtype_of, shape_of
from .context import Context, Handler, Value, axes_of, axis_of, expand_sizes, rank, shape

_op = relax.op


def reshaped(c: Context, x: Value, sizes: Sequence[int], part: str = "") -> Expr:
    """``x`` with the shape ``sizes`` (one may be -1); ``x`` itself where it has that shape."""
    known = math.prod(s for s in sizes if s != -1)
    target = tuple(math.prod(shape(x)) // max(known, 1) if s == -1 else int(s) for s in sizes)
    return c.expr(x) if target == shape(x) else c.emit(_op.reshape(c.expr(x), target), part)


def view(c: Context, x: Value, sizes: Sequence[int], *_: Value) -> Value:
    return reshaped(c, x, sizes)


def view_dispatch(c: Context, x: Value, sizes: Value, *rest: Value) -> Value:
    """``view``: the overload that reinterprets bits has no translation."""
    if isinstance(sizes, torch.dtype):
        raise c.refuse("reinterpreting the bits of a tensor has no translation")
    return view(c, x, sizes, *rest)


def view_as(c: Context, x: Value, other: Value) -> Value:
    return reshaped(c, x, shape(other))


def flatten(c: Context, x: Value, start: int = 0, end: int = -1) -> Value:
    if rank(x) == 0:
        return reshaped(c, x, [1])
    first, last = axis_of(x, start), axis_of(x, end)
    dims = shape(x)
    return reshaped(c, x, (*dims[:first], math.prod(dims[first:last + 1]), *dims[last + 1:]))


def unflatten(c: Context, x: Value, dim: int, sizes: Sequence[int]) -> Value:
    axis, dims = axis_of(x, dim), shape(x)
    known = math.prod(s for s in sizes if s != -1)
    return reshaped(c, x, (*dims[:axis], *(dims[axis] // known if s == -1 else s for s in sizes), *dims[axis + 1:]))


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
    axes = [a for a in axes_of(x, dims) if shape(x)[a] == 1] if dims != [] and rank(x) else []
    return c.emit(_op.squeeze(c.expr(x), axes)) if axes else x


def expand(c: Context, x: Value, sizes: Sequence[int], **_: Value) -> Value:
    own = (1,) * (len(sizes) - rank(x)) + shape(x)
    target = tuple(o if s == -1 else int(s) for s, o in zip(sizes, own, strict=True))
    return c.expr(x) if target == shape(x) else c.emit(_op.broadcast_to(c.expr(x), target))


def copy(c: Context, x: Value, source: Value, *_: Value) -> Value:
    """``x`` overwritten by ``source``, which has or broadcasts to its shape."""
    return expand(c, c.expr(source, c.dtype), shape(x))


def expand_as(c: Context, x: Value, other: Value) -> Value:
    return expand(c, x, shape(other))


def repeat(c: Context, x: Value, repeats: Sequence[int]) -> Value:
    repeats = [1] * (rank(x) - len(repeats)) + [int(r) for r in repeats]
    if all(r == 1 for r in repeats):
        return reshaped(c, x, (1,) * (len(repeats) - rank(x)) + shape(x))
    return c.emit(_op.tile(c.expr(x), repeats))


def repeat_interleave(c: Context, x: Value, repeats: Value, dim: int | None = None, **_: Value) -> Value:
    if not isinstance(repeats, int):
        raise c.refuse("repeat_interleave is supported for a constant number of repeats")
    if dim is None:
        return c.emit(_op.repeat(reshaped(c, x, [-1], "flat"), repeats, axis=0))
    return c.emit(_op.repeat(c.expr(x), repeats, axis=axis_of(x, dim)))


def cat(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [v for v in tensors if shape(v) != (0,)]
    exprs = [c.expr(v, c.dtype) for v in parts]
    return exprs[0] if len(exprs) == 1 else c.emit(_op.concat(exprs, axis=axis_of(parts[0], dim)))


def stack(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (rank(tensors[0]) + 1)
    exprs = [c.emit(_op.expand_dims(c.expr(v, c.dtype), axis), "part") for v in tensors]
    return c.emit(_op.concat(exprs, axis=axis))


def sliced(c: Context, x: Value, axis: int, begin: int, end: int, step: int = 1, part: str = "") -> Expr:
    """Elements begin, begin + step, … below ``end`` of one axis; ``x`` itself where that is all of them."""
    if isinstance(x, torch.Tensor):
        return c.expr(x[(slice(None),) * axis + (slice(begin, end, step),)])
    if (begin, step) == (0, 1) and end == shape(x)[axis]:
        return c.expr(x)
    call = _op.strided_slice(c.expr(x), axes=[axis], begin=[begin], end=[end], strides=[step])
    return c.emit(call, part)


def slice_(c: Context, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Value:
    axis = axis_of(x, dim)
    begin, stop, _ = slice(start, end, 1).indices(shape(x)[axis])
    return sliced(c, x, axis, begin, max(stop, begin), step)


def narrow(c: Context, x: Value, dim: int, start: int, length: int) -> Value:
    if not isinstance(start, int):
        raise c.refuse("narrow is supported for a constant start")
    axis = axis_of(x, dim)
    begin = start % shape(x)[axis] if start < 0 else start
    return sliced(c, x, axis, begin, begin + length)


def select(c: Context, x: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    begin = index % shape(x)[axis]
    picked = sliced(c, x, axis, begin, begin + 1, part="slice")
    return c.emit(_op.squeeze(picked, axis))


def split_sizes(c: Context, x: Value, sizes: Sequence[int], dim: int = 0) -> Value:
    axis, begin, parts = axis_of(x, dim), 0, []
    for size in sizes:
        parts.append(sliced(c, x, axis, begin, begin + size))
        begin += size
    return tuple(parts)


def split(c: Context, x: Value, size: int | Sequence[int], dim: int = 0) -> Value:
    if not isinstance(size, int):
        return split_sizes(c, x, size, dim)
    extent = shape(x)[axis_of(x, dim)]
    return split_sizes(c, x, [min(size, extent - b) for b in range(0, max(extent, 1), max(size, 1))], dim)


def chunk(c: Context, x: Value, chunks: int, dim: int = 0) -> Value:
    extent = shape(x)[axis_of(x, dim)]
    return split(c, x, -(-extent // chunks), dim)


def tensor_split(c: Context, x: Value, sections: int | Sequence[int], dim: int = 0) -> Value:
    extent = shape(x)[axis_of(x, dim)]
    if isinstance(sections, int):
        small, larger = divmod(extent, sections)
        return split_sizes(c, x, [small + 1] * larger + [small] * (sections - larger), dim)
    bounds = [0, *(min(int(b), extent) for b in sections), extent]
    return split_sizes(c, x, [max(b - a, 0) for a, b in itertools.pairwise(bounds)], dim)


def unbind(c: Context, x: Value, dim: int = 0) -> Value:
    return tuple(select(c, x, dim, i) for i in range(shape(x)[axis_of(x, dim)]))


def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    y = c.expr(x)
    for axis in axes_of(x, list(dims)) if dims else []:
        y = c.emit(_op.flip(y, axis))
    return y


def roll(c: Context, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    shifts = expand_sizes(shifts, 1)
    if dims == () or dims == []:
        flat = roll(c, reshaped(c, x, [-1], "flat"), shifts, [0])
        return reshaped(c, flat, shape(x))
    y = c.expr(x)
    for shift, dim in zip(shifts, expand_sizes(dims, 1), strict=True):
        axis = axis_of(x, dim)
        extent = shape(x)[axis]
        cut = -shift % max(extent, 1)
        if cut:
            parts = [sliced(c, y, axis, cut, extent, part="tail"), sliced(c, y, axis, 0, cut, part="head")]
            y = c.emit(_op.concat(parts, axis=axis))
    return y


def pad(c: Context, x: Value, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    """``pads`` are ATen's: (start, end) of the last axis first."""
    if mode == "constant":
        return constant_pad(c, x, pads, value or 0)
    y = c.expr(x)
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if before or after:
            indices = np.pad(np.arange(shape(x)[axis]), (before, after), mode=_PAD_MODES[mode])
            y = c.emit(_op.take(y, c.expr(torch.from_numpy(indices)), axis=axis, mode="clip"))
    return y


_PAD_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {
    "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def padding_of(mode: str) -> Handler:
    """``reflection_padNd`` and ``replication_padNd``."""
    return lambda c, x, pads: pad(c, x, pads, mode)


def constant_pad(c: Context, x: Value, pads: Sequence[int], value: float = 0) -> Value:
    y, widths = c.expr(x), [0] * (2 * rank(x))
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if before < 0 or after < 0:
            y = sliced(c, y, axis, max(-before, 0), shape(x)[axis] - max(-after, 0), part="crop")
        widths[2 * axis:2 * axis + 2] = [max(before, 0), max(after, 0)]
    return c.emit(_op.nn.pad(y, widths, pad_mode="constant", pad_value=float(value))) if any(widths) else y


def triangle(lower: bool) -> Handler:
    """``tril`` and ``triu`` as a selection by a constant mask."""
    def translate(c: Context, x: Value, diagonal: int = 0) -> Value:
        rows, columns = shape(x)[-2:]
        below = np.tri(rows, columns, diagonal if lower else diagonal - 1, dtype=bool)
        keep = torch.from_numpy(below if lower else ~below)
        return c.emit(_op.where(c.expr(keep), c.expr(x), c.expr(0, dtype_of(c.expr(x)))))
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


def slice_scatter(c: Context, x: Value, source: Value, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Value:
    axis = axis_of(x, dim)
    begin, stop, _ = slice(start, end, 1).indices(shape(x)[axis])
    if step != 1:
        raise c.refuse("assignment to a slice is supported for a step of 1", found=step)
    y, patch = c.expr(x), c.expr(source, c.dtype)
    pieces = [sliced(c, y, axis, 0, begin, part="before")] if begin else []
    pieces.append(patch)
    if stop < shape_of(y)[axis]:
        pieces.append(sliced(c, y, axis, stop, shape_of(y)[axis], part="after"))
    return patch if len(pieces) == 1 else c.emit(_op.concat(pieces, axis=axis))


def select_scatter(c: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    begin = index % shape(x)[axis]
    patch = c.emit(_op.expand_dims(c.expr(source, c.dtype), axis), "patch")
    return slice_scatter(c, x, patch, axis, begin, begin + 1)


def meshgrid(c: Context, tensors: Sequence[Value], *, indexing: str = "ij") -> Value:
    extents = [math.prod(shape(v)) for v in tensors]
    grid, places = list(extents), list(range(len(tensors)))
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
    positions = np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset).copy()
    front = permuted(c, x, [*rest, a, b], "front")
    joined = reshaped(c, front, (*(shape(x)[i] for i in rest), rows * columns), "joined")
    return c.emit(_op.take(joined, c.expr(torch.from_numpy(positions)), axis=len(rest), mode="clip"))


def unfold(c: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of one axis, their elements as the last axis: a gather at constant positions."""
    axis = axis_of(x, dim)
    starts = np.arange(0, shape(x)[axis] - size + 1, step)
    windows = c.emit(_op.take(c.expr(x), c.expr(torch.from_numpy(starts[:, None] + np.arange(size))), axis=axis,
                              mode="clip"), "windows")
    return permuted(c, windows, [i for i in range(rank(windows)) if i != axis + 1] + [axis + 1])


TABLE: dict[str, Handler] = {
    "view": view_dispatch, "reshape": view, "_unsafe_view": view, "_reshape_alias": view, "view_copy": view,
    "view_as": view_as, "reshape_as": view_as, "flatten": flatten, "unflatten": unflatten, "ravel": flatten,
    "permute": permute, "transpose": transpose, "swapaxes": transpose, "swapdims": transpose, "t": t, "numpy_T": t,
    "mT": matrix_transpose, "adjoint": matrix_transpose, "movedim": movedim, "moveaxis": movedim,
    "unsqueeze": unsqueeze, "squeeze": squeeze, "expand": expand, "expand_as": expand_as, "copy": copy,
    "broadcast_to": expand, "repeat": repeat, "tile": repeat,
    "repeat_interleave": repeat_interleave, "cat": cat, "concat": cat,
    "concatenate": cat, "stack": stack, "slice": slice_, "narrow": narrow, "select": select, "split": split,
    "split_with_sizes": split_sizes, "unsafe_split": split, "unsafe_chunk": chunk, "chunk": chunk,
    "tensor_split": tensor_split, "unbind": unbind, "flip": flip, "roll": roll, "pad": pad,
    "constant_pad_nd": constant_pad, "reflection_pad1d": padding_of("reflect"),
    "reflection_pad2d": padding_of("reflect"), "reflection_pad3d": padding_of("reflect"),
    "replication_pad1d": padding_of("replicate"), "replication_pad2d": padding_of("replicate"),
    "replication_pad3d": padding_of("replicate"), "tril": triangle(lower=True), "triu": triangle(lower=False),
    "pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle, "channel_shuffle": channel_shuffle,
    "native_channel_shuffle": channel_shuffle, "slice_scatter": slice_scatter, "select_scatter": select_scatter,
    "meshgrid": meshgrid, "diagonal": diagonal, "unfold": unfold,
}
