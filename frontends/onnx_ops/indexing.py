"""Operators that pick elements by index.

Known indices are checked here. Those that come at run time cannot be: they are taken modulo the extent, so that a
negative one counts from the end and none reads or writes outside of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...dims import Dim, simplified
from ...ir import Expr, dtype_of
from .. import emit
from .algebra import Algebra, check_table
from .broadcasting import shape_text
from .node import OnnxNode, Results, Tensor, operator
from .slicing import Interval, sliced

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _checked(node: OnnxNode, index: int, extents: Dim | Sequence[Dim]) -> Tensor:
    """Known indices counted from the front, int64; ImportModelError for one out of range.

    Others stay as they are, and so do negative ones of symbolic extents. ``extents`` is one, or one for each entry of
    the last axis.
    """
    value = node.value(index)
    every = list(extents) if isinstance(extents, (list, tuple)) else [extents]
    if not isinstance(value, np.ndarray):
        if not dtype_of(value).startswith("int"):
            raise node.fault("the indices are not integers", found=dtype_of(value))
        if 0 in every and 0 not in node.dims(index):
            raise node.fault("there is nothing to pick from", found="an extent of 0")
        return value
    if value.dtype.kind not in "iu":
        raise node.fault("the indices are not integers", found=value.dtype)
    value = value.astype(np.int64)
    for i, extent in enumerate(every):
        part = value[..., i] if len(every) > 1 else value
        if not part.size:
            continue
        low, high = int(part.min()), int(part.max())
        if isinstance(extent, int) and (low < -extent or high >= extent):
            raise node.fault("a constant index is out of range", found=f"{low}…{high}",
                             expected=f"an extent of {extent}")
        node.require_at_least(extent, max(high + 1, -low))
        if isinstance(extent, int):
            part[part < 0] += extent
    return value


def positions_in(node: OnnxNode, index: int, extents: Dim | Sequence[Dim]) -> Expr:
    """Input ``index`` as indices counted from the front that are in range."""
    value = _checked(node, index, extents)
    if isinstance(value, np.ndarray) and (not value.size or value.min() >= 0):
        return node.constant(value)
    return emit.within(node.builder, node.name, node.constant(value), extents)


def _from_the_front(node: OnnxNode, indices: Expr, extent: int) -> Expr:
    """Indices that are known only at run time, negative ones counted from the end."""
    dtype = dtype_of(indices)
    negative = node.emit(relax.op.less(indices, node.constant(0, dtype)), "indices")
    shifted = node.emit(relax.op.add(indices, node.constant(extent, dtype)), "indices")
    return node.emit(relax.op.where(negative, shifted, indices), "indices")


@operator("Gather")
def gather(node: OnnxNode) -> Results:
    """Known evenly spaced indices are a slice, known tables with unknown indices an embedding; see ``emit.within``."""
    source = node.dims(0)
    axis = node.axis(int(node.attribute("axis", 0)), len(source))
    indices = _checked(node, 1, source[axis])
    if not isinstance(indices, np.ndarray):
        return node.emit(relax.op.take(node.expr(0), indices, axis, mode="wrap"))
    cut = _as_cut(indices, source[axis])
    if cut is None or indices.ndim > 1:
        mode = "clip" if not indices.size or indices.min() >= 0 else "wrap"
        return node.emit(relax.op.take(node.expr(0), node.constant(indices), axis, mode=mode))
    part = sliced(node, node.value(0), {axis: cut})
    if indices.ndim == 1:
        return part
    shape = source[:axis] + source[axis + 1:]
    return part.reshape(shape) if isinstance(part, np.ndarray) else node.emit(relax.op.reshape(part, shape))


def _as_cut(indices: np.ndarray, extent: Dim) -> range | Interval | None:
    """Evenly spaced indices as a cut; None for others. Negative ones count from the end of a symbolic extent."""
    places = _as_range(indices)
    if places is None or not len(places) or (places[0] >= 0 and places[-1] >= 0):
        return places
    if places[0] >= 0 or places[-1] >= 0:
        return None
    low, high = min(places), max(places)
    return Interval(simplified(extent + low), simplified(extent + high + 1), abs(places.step),
                    backwards=places.step < 0)


def _as_range(indices: np.ndarray) -> range | None:
    flat = indices.reshape(-1)
    if not flat.size:
        return range(0)
    steps = np.unique(np.diff(flat))
    if steps.size > 1 or (steps.size and steps[0] == 0):
        return None
    step = int(steps[0]) if steps.size else 1
    return range(int(flat[0]), int(flat[-1]) + (1 if step > 0 else -1), step)


def _check_elements(node: OnnxNode, axis: int) -> None:
    """Indices of single elements stay inside of the data in the other axes too, where they are their own places."""
    source, index = node.dims(0), node.dims(1)
    if len(index) != len(source):
        raise node.fault("the indices do not fit", found=f"input {shape_text(source)}, indices {shape_text(index)}")
    for a, (i, d) in enumerate(zip(index, source, strict=True)):
        if a != axis:
            node.require_at_least(d, i, "the indices do not fit")


@operator("GatherElements")
def gather_elements(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 0)), node.rank(0))
    _check_elements(node, axis)
    return node.emit(relax.op.gather_elements(node.expr(0), positions_in(node, 1, node.dims(0)[axis]), axis))


def _depth(node: OnnxNode, batch: int) -> int:
    """The number of axes that the last axis of the indices names, after ``batch`` common ones."""
    source, index = node.dims(0), node.dims(1)
    depth = node.numbers(index[-1:], "the indices")
    if not depth or not 0 <= batch < min(len(source), len(index)) or not 1 <= depth[0] <= len(source) - batch:
        raise node.fault("the indices do not fit", found=f"input {shape_text(source)}, indices {shape_text(index)}, "
                                                         f"batch_dims {batch}")
    return depth[0]


@operator("GatherND")
def gather_nd(node: OnnxNode) -> Results:
    batch = int(node.attribute("batch_dims", 0))
    depth = _depth(node, batch)
    for own, other in zip(node.dims(0)[:batch], node.dims(1)[:batch], strict=True):
        node.require_equal(own, other, "input and indices differ in a batch axis")
    positions = positions_in(node, 1, node.dims(0)[batch:batch + depth])
    return node.emit(relax.op.gather_nd(node.expr(0), positions, batch))


@operator("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 0)), node.rank(0))
    _check_elements(node, axis)
    positions = positions_in(node, 1, node.dims(0)[axis])
    return node.emit(relax.op.scatter_elements(node.expr(0), positions, node.expr(2), axis, _reduction(node)))


@operator("ScatterND")
def scatter_nd(node: OnnxNode) -> Results:
    positions = positions_in(node, 1, node.dims(0)[:_depth(node, 0)])
    return node.emit(relax.op.scatter_nd(node.expr(0), positions, node.expr(2), _reduction(node)))


def _reduction(node: OnnxNode) -> str:
    reduction = node.attribute("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise node.fault("the reduction is unknown", found=reduction, expected=", ".join(_REDUCTIONS))
    return _REDUCTIONS[reduction]


@operator("OneHot")
def one_hot(node: OnnxNode) -> Results:
    """``where(index == position, on, off)``; indices out of range give rows of ``off``."""
    depths = node.known(1, "a depth").reshape(-1)
    if depths.size != 1 or not 1 <= int(depths[0]) <= 2 ** 24:
        raise node.fault("the depth is unusable", found=depths.tolist())
    values = node.known(2, "values")
    if values.shape != (2,):
        raise node.fault("the values are not two numbers", found=values.shape)
    depth, rank = int(depths[0]), node.rank(0)
    axis = node.axis(int(node.attribute("axis", -1)), rank + 1)
    indices = node.expr(0)
    if not dtype_of(indices).startswith("int"):
        indices = node.emit(relax.op.astype(indices, "int64"), "indices")
    indices = node.emit(relax.op.expand_dims(_from_the_front(node, indices, depth), axis), "indices")
    positions = np.arange(depth).reshape([depth if i == axis else 1 for i in range(rank + 1)])
    hit = node.emit(relax.op.equal(indices, node.constant(positions, dtype_of(indices))), "hit")
    return node.emit(relax.op.where(hit, node.constant(values[1]), node.constant(values[0])))


@operator("Trilu")
def triangle(node: OnnxNode) -> Results:
    k = int(node.known(1, "a diagonal").reshape(())) if node.has(1) else 0
    if node.rank(0) < 2:
        raise node.fault("the input is not a matrix", found=shape_text(node.dims(0)))
    k = max(min(k, 2 ** 31), -2 ** 31)
    return node.emit((relax.op.triu if node.attribute("upper", 1) else relax.op.tril)(node.expr(0), k))


@operator("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> Results:
    """Where a place is below the sequence's length its mirror image is picked, else the place itself."""
    shape = node.shape(0)
    batch, time = (node.axis(int(node.attribute(n, d)), len(shape)) for n, d in (("batch_axis", 1), ("time_axis", 0)))
    if batch == time or node.shape(1) != (shape[batch],):
        raise node.fault("the lengths do not fit", found=node.shape(1), expected=(shape[batch],))
    if node.is_known(1):
        lengths = node.known(1, "sequence lengths")
        if (lengths < 0).any() or (lengths > shape[time]).any():
            raise node.fault("a sequence length is out of range", found=lengths.tolist(), expected=f"0…{shape[time]}")
    steps = Algebra(node, "places")
    check_table(node, shape[time])
    place = np.arange(shape[time]).reshape([-1 if a == time else 1 for a in range(len(shape))])
    length = steps.reshape(steps.cast(node.expr(1), "int64"), [d if a == batch else 1 for a, d in enumerate(shape)])
    mirror = steps.subtract(steps.subtract(length, 1), place)
    inside = steps.within(mirror, 0, shape[time] - 1)
    source = node.emit(relax.op.where(inside, mirror, node.constant(place)), "places")
    return node.emit(relax.op.gather_elements(node.expr(0), steps.broadcast(source, shape), time))
