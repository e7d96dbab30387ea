"""ATen operators that take parts of an axis, or put parts back: slices, splits, selections."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from tvm import relax, tirx

from ...dims import Dim, analyzer_of, is_equal_dim, simplified
from ...ir import Expr
from .context import Context, Handler, Value, axis_of, is_exactly, is_extent, is_variable, require_static, shape

_op = relax.op


def sliced(c: Context, x: Value, axis: int, begin: Dim, end: Dim, step: int = 1, part: str = "") -> Expr:
    """Elements begin, begin + step, … below ``end``, all inside, of one axis; ``x`` itself where it is all."""
    bounds = (begin, end)
    if isinstance(x, torch.Tensor) and all(isinstance(b, int) for b in bounds):
        return c.expr(x[(slice(None),) * axis + (slice(begin, end, step),)])
    if is_exactly(begin, 0) and step == 1 and is_equal_dim(end, shape(x)[axis]):
        return c.expr(x)
    inside = not all(isinstance(b, int) for b in (*bounds, shape(x)[axis]))
    call = _op.strided_slice(c.expr(x), axes=[axis], begin=[begin], end=[end], strides=[step], assume_inbound=inside)
    return c.emit(call, part)


def slice_(c: Context, x: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None,
           step: int = 1) -> Value:
    axis = axis_of(x, dim)
    begin, stop = slice_bounds(c, shape(x)[axis], start, end, step, lambda: c.dims[axis])
    return sliced(c, x, axis, begin, stop, step)


def slice_bounds(c: Context, extent: Dim, start: Dim | None, end: Dim | None, step: int,
                 length: Callable[[], Dim]) -> tuple[Dim, Dim]:
    """First and end of a slice, inside the extent; ``length`` is how many elements PyTorch says it has."""
    if all(v is None or isinstance(v, int) for v in (extent, start, end)):
        begin, stop, _ = slice(start, end, 1).indices(extent)  # type: ignore[arg-type]
        return begin, max(stop, begin)
    begin = 0 if start is None else start
    if isinstance(begin, int) and begin < 0:
        begin = simplified(extent + begin)
        if is_extent(begin) and not analyzer_of(begin).can_prove(begin >= 0):
            begin = simplified(tirx.max(begin, tirx.IntImm("int64", 0)))
    count = length()
    return begin, simplified(begin + count if step == 1 else begin + (count - 1) * step + 1)


def narrow(c: Context, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    if is_variable(start) and not is_extent(start):
        raise c.refuse("narrow is supported for a constant start")
    axis = axis_of(x, dim)
    begin = _from_the_front(start, shape(x)[axis])
    return sliced(c, x, axis, begin, simplified(begin + length))


def _from_the_front(index: Dim, extent: Dim) -> Dim:
    """A position that, where it is a negative number, counts from the end."""
    return simplified(extent + index) if isinstance(index, int) and index < 0 else index


def select(c: Context, x: Value, dim: int, index: Value) -> Value:
    axis = axis_of(x, dim)
    if is_variable(index) and not is_extent(index):
        raise c.refuse("select is supported for a constant position")
    begin = _from_the_front(index, shape(x)[axis])
    picked = sliced(c, x, axis, begin, simplified(begin + 1), part="slice")
    return c.emit(_op.squeeze(picked, axis))


def split_sizes(c: Context, x: Value, sizes: Sequence[Dim], dim: int = 0) -> Value:
    axis, parts = axis_of(x, dim), []
    begin: Dim = 0
    for size in sizes:
        end = simplified(begin + size)
        parts.append(sliced(c, x, axis, begin, end))
        begin = end
    return tuple(parts)


def split(c: Context, x: Value, size: int | Sequence[int], dim: int = 0) -> Value:
    if isinstance(size, (list, tuple)):
        return split_sizes(c, x, size, dim)
    extent = shape(x)[axis_of(x, dim)]
    if not (isinstance(extent, int) and isinstance(size, int)):
        return _parts_of_result(c, x, axis_of(x, dim))
    return split_sizes(c, x, [min(size, extent - b) for b in range(0, max(extent, 1), max(size, 1))], dim)


def _parts_of_result(c: Context, x: Value, axis: int) -> Value:
    """Consecutive parts of a symbolic extent, as many and as long as PyTorch says."""
    return split_sizes(c, x, [c.dims_of_result(r)[axis] for r in c.result], axis)


def chunk(c: Context, x: Value, chunks: int, dim: int = 0) -> Value:
    extent = shape(x)[axis_of(x, dim)]
    if not isinstance(extent, int):
        return _parts_of_result(c, x, axis_of(x, dim))
    return split(c, x, -(-extent // chunks), dim)


def tensor_split(c: Context, x: Value, sections: int | Sequence[int], dim: int = 0) -> Value:
    extent = shape(x)[axis_of(x, dim)]
    if not isinstance(extent, int):
        return _parts_of_result(c, x, axis_of(x, dim))
    if isinstance(sections, int):
        small, larger = divmod(extent, sections)
        return split_sizes(c, x, [small + 1] * larger + [small] * (sections - larger), dim)
    bounds = [0, *(min(int(b), extent) for b in sections), extent]
    return split_sizes(c, x, [max(b - a, 0) for a, b in itertools.pairwise(bounds)], dim)


def unbind(c: Context, x: Value, dim: int = 0) -> Value:
    require_static(c, [shape(x)[axis_of(x, dim)]], "taking an axis apart")
    return tuple(select(c, x, dim, i) for i in range(shape(x)[axis_of(x, dim)]))


def slice_scatter(c: Context, x: Value, source: Value, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Value:
    axis = axis_of(x, dim)
    begin, stop = slice_bounds(c, shape(x)[axis], start, end, 1, lambda: shape(source)[axis])
    if step != 1:
        raise c.refuse("assignment to a slice is supported for a step of 1", found=step)
    y, patch = c.expr(x), c.expr(source, c.dtype)
    pieces = [] if is_exactly(begin, 0) else [sliced(c, y, axis, 0, begin, part="before")]
    pieces.append(patch)
    if not is_equal_dim(stop, shape(y)[axis]):
        pieces.append(sliced(c, y, axis, stop, shape(y)[axis], part="after"))
    return patch if len(pieces) == 1 else c.emit(_op.concat(pieces, axis=axis))


def select_scatter(c: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = axis_of(x, dim)
    begin = _from_the_front(index, shape(x)[axis])
    patch = c.emit(_op.expand_dims(c.expr(source, c.dtype), axis), "patch")
    return slice_scatter(c, x, patch, axis, begin, simplified(begin + 1))


TABLE: dict[str, Handler] = {
    "slice": slice_, "narrow": narrow, "select": select, "split": split, "split_with_sizes": split_sizes,
    "unsafe_split": split, "unsafe_chunk": chunk, "chunk": chunk, "tensor_split": tensor_split, "unbind": unbind,
    "slice_scatter": slice_scatter, "select_scatter": select_scatter,
}
