"""Gathers and scatters of ATen.

Indices that come at run time cannot be checked: clipped, or taken modulo the extent, none reads or writes outside of
the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tvm import relax

from ...dims import Dim, equal_dims
from ...ir import Expr, dtype_of
from .. import emit
from ..extents import positions as whole_axis
from .context import Context, Handler, Value, axis_of, is_exactly, rank, shape
from .elementwise import truth
from .movement import permuted, reshaped

_op = relax.op


def index_select(c: Context, x: Value, dim: int, indices: Value) -> Value:
    axis = axis_of(x, dim)
    _refuse_empty(c, indices, shape(x)[axis])
    return c.emit(_op.take(c.expr(x), c.expr(indices), axis=axis, mode="clip"))


def gather(c: Context, x: Value, dim: int, indices: Value, **_: Value) -> Value:
    axis = axis_of(x, dim)
    return c.emit(_op.gather_elements(c.expr(x), _positions(c, indices, shape(x)[axis]), axis=axis))


def index(c: Context, x: Value, indices: Sequence[Value]) -> Value:
    """Advanced indexing: one index is a ``take``; several go to the front, and back where they were adjacent."""
    indexed = [(axis, v) for axis, v in enumerate(indices) if v is not None]
    if any(_is_boolean(v) for _, v in indexed):
        raise c.refuse("indexing by a mask gives a shape that depends on the data, which has no translation")
    positions = [_positions(c, v, shape(x)[axis]) for axis, v in indexed]
    axes = [axis for axis, _ in indexed]
    if len(axes) == 1:
        return c.emit(_op.take(c.expr(x), positions[0], axis=axes[0], mode="clip"))
    rest = [a for a in range(rank(x)) if a not in axes]
    gathered = c.emit(_op.index_tensor(permuted(c, x, axes + rest, "front"), positions))
    count = rank(gathered) - len(rest)
    if axes != list(range(axes[0], axes[0] + len(axes))) or axes[0] == 0:
        return gathered
    before = list(range(count, count + axes[0]))
    return permuted(c, gathered, [*before, *range(count), *range(count + axes[0], rank(gathered))])


def _is_boolean(value: Value) -> bool:
    return value.dtype == torch.bool if isinstance(value, torch.Tensor) else dtype_of(value) == "bool"


def _positions(c: Context, indices: Value, extent: Dim) -> Expr:
    """Indices counted from the front, in range: known ones are checked, others taken modulo the extent."""
    _refuse_empty(c, indices, extent)
    if not isinstance(indices, torch.Tensor) or not isinstance(extent, int):
        return emit.within(c.builder, c.name, c.expr(indices), extent)
    if ((indices < -extent) | (indices >= extent)).any():
        raise c.refuse("a constant index is out of range", found=f"{int(indices.min())} to {int(indices.max())}",
                       expected=f"an extent of {extent}")
    return c.expr(torch.where(indices < 0, indices + extent, indices))


def _refuse_empty(c: Context, indices: Value, extent: Dim) -> None:
    if is_exactly(extent, 0) and not any(is_exactly(d, 0) for d in shape(indices)):
        raise c.refuse("it picks from an axis without elements")


def index_put(c: Context, x: Value, indices: Sequence[Value], values: Value, accumulate: bool = False) -> Value:
    """A scatter into the flattened data, which TVM runs in order: its own ``index_put`` adds from several threads."""
    axes = [axis for axis, v in enumerate(indices) if v is not None]
    if len(axes) == 1 and _is_boolean(indices[axes[0]]):
        return _masked_put(c, x, axes[0], indices[axes[0]], values)
    if axes != list(range(axes[0], axes[-1] + 1)) or any(_is_boolean(indices[a]) for a in axes):
        raise c.refuse("assignment by index is supported with positions for neighbouring axes, or with one mask")
    places = _places(c, x, axes, [_positions(c, indices[a], shape(x)[a]) for a in axes])
    region = _joint_shape([shape(p) for p in places])
    spread = [p if equal_dims(shape(p), region) else c.emit(_op.broadcast_to(p, region), "positions") for p in places]
    patch = c.expr(values, c.dtype)
    if not equal_dims(shape(patch), region):
        patch = c.emit(_op.broadcast_to(patch, region), "values")
    flat = c.expr(spread[0], "int64")
    for position, extent in zip(spread[1:], shape(x)[1:], strict=True):
        rows = c.emit(_op.multiply(flat, c.expr(extent)), "rows")
        flat = c.emit(_op.add(rows, c.expr(position, "int64")), "places")
    data, flat, patch = (reshaped(c, v, [-1], "flat") for v in (c.expr(x), flat, patch))
    result = c.emit(_op.scatter_elements(data, flat, patch, 0, "add" if accumulate else "update"), "scattered")
    return c.emit(_op.reshape(result, shape(x)))


def _places(c: Context, x: Value, axes: Sequence[int], positions: Sequence[Expr]) -> list[Expr]:
    """For every axis of ``x`` the positions of what is assigned, so that they broadcast against each other.

    Axes without an index are taken whole; those of the indices stand in the place of the indexed ones.
    """
    joint = _joint_shape([shape(p) for p in positions])
    before, after = axes[0], rank(x) - axes[-1] - 1
    places = []
    for axis, extent in enumerate(shape(x)):
        if axis in axes:
            own = positions[axis - before]
            dims = [*[1] * before, *[1] * (len(joint) - rank(own)), *shape(own), *[1] * after]
        else:
            own = whole_axis(c.builder, c.name, extent)
            place = axis if axis < before else axis - len(axes) + len(joint)
            dims = [extent if i == place else 1 for i in range(before + len(joint) + after)]
        places.append(reshaped(c, own, dims, "positions"))
    return places


def _joint_shape(shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
    """The shape that tensors of these shapes broadcast to; extents that PyTorch took for equal count as equal."""
    count = max(map(len, shapes))
    padded = [[1] * (count - len(s)) + list(s) for s in shapes]
    return [next((d for d in dims if not is_exactly(d, 1)), 1) for dims in zip(*padded, strict=True)]


def _masked_put(c: Context, x: Value, axis: int, mask: Value, values: Value) -> Value:
    if rank(values):
        raise c.refuse("assignment by a mask is supported for one value")
    condition = c.expr(mask)
    if rank(mask) + axis < rank(x):
        condition = c.emit(_op.expand_dims(condition, list(range(rank(mask), rank(x) - axis))), "mask")
    return c.emit(_op.where(condition, c.expr(values, c.dtype), c.expr(x)))


def scatter(reduction: str | None) -> Handler:
    """``scatter`` and ``scatter_add``; None reads the reduction from the call."""
    def translate(c: Context, x: Value, dim: int, indices: Value, source: Value, *,
                  reduce: str | None = None) -> Value:
        how = reduction or {None: "update", "add": "add", "multiply": "mul"}[reduce]
        patch = c.expr(source, c.dtype)
        axis = axis_of(x, dim)
        positions = _positions(c, indices, shape(x)[axis])
        if rank(patch) == 0:
            patch = c.emit(_op.broadcast_to(patch, shape(positions)), "source")
        if not equal_dims(shape(patch), shape(positions)):
            raise c.refuse("scatter is supported where the source has the shape of the index")
        return c.emit(_op.scatter_elements(c.expr(x), positions, patch, axis=axis, reduction=how))
    return translate


def one_hot(c: Context, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise c.refuse("one_hot needs its number of classes", hint="pass num_classes=")
    column = c.emit(_op.expand_dims(c.expr(x), -1), "column")
    return c.emit(_op.astype(c.emit(_op.equal(column, c.expr(torch.arange(classes))), "matches"), "int64"))


def take_along(c: Context, x: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        raise c.refuse("take_along_dim is supported with a dim")
    return gather(c, x, dim, indices)


def masked_scatter_free(c: Context, x: Value, mask: Value, value: Value) -> Value:
    return c.emit(_op.where(truth(c, mask), c.expr(value, c.dtype), c.expr(x)))


TABLE: dict[str, Handler] = {
    "index_select": index_select, "gather": gather, "take_along_dim": take_along, "index": index,
    "index_put": index_put, "scatter": scatter(None), "scatter_add": scatter("add"), "one_hot": one_hot,
}
