"""Operators that pick elements by index.

Known indices are checked here. Those that come at run time cannot be: they are taken modulo the extent, so that a
negative one counts from the end and none reads or writes outside of the data.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...ir import Expr, dtype_of, shape_of
from .. import emit
from .movement import sliced
from .node import OnnxNode, Results, Value, operator

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _checked(node: OnnxNode, index: int, extents: int | np.ndarray) -> Value:
    """Known indices counted from the front, int64; ImportModelError for one out of range. Others as they are."""
    value = node.value(index)
    if not isinstance(value, np.ndarray):
        if not dtype_of(value).startswith("int"):
            raise node.fault("the indices are not integers", found=dtype_of(value))
        if not np.all(extents) and np.prod(node.shape(index)):
            raise node.fault("there is nothing to pick from", found=f"an extent of {extents}")
        return value
    if value.dtype.kind not in "iu":
        raise node.fault("the indices are not integers", found=value.dtype)
    value = value.astype(np.int64)
    if ((value < -np.asarray(extents)) | (value >= extents)).any():
        raise node.fault("a constant index is out of range", found=f"{value.min()}…{value.max()}",
                         expected=f"an extent of {extents}")
    return np.where(value < 0, value + extents, value)


def _positions(node: OnnxNode, index: int, extents: int | tuple[int, ...]) -> Expr:
    """Input ``index`` as indices counted from the front that are in range."""
    value = _checked(node, index, np.asarray(extents))
    if isinstance(value, np.ndarray):
        return node.constant(value)
    return emit.within(node.builder, node.name, value, extents)


def _from_the_front(node: OnnxNode, indices: Expr, extent: int) -> Expr:
    """Indices that are known only at run time, negative ones counted from the end."""
    dtype = dtype_of(indices)
    negative = node.emit(relax.op.less(indices, node.constant(0, dtype)), "indices")
    shifted = node.emit(relax.op.add(indices, node.constant(extent, dtype)), "indices")
    return node.emit(relax.op.where(negative, shifted, indices), "indices")


@operator("Gather")
def gather(node: OnnxNode) -> Results:
    """Known evenly spaced indices are a slice, known tables with unknown indices an embedding; see ``emit.within``."""
    source = node.shape(0)
    axis = node.axis(int(node.attribute("axis", 0)), len(source))
    indices = _checked(node, 1, source[axis])
    if not isinstance(indices, np.ndarray):
        return node.emit(relax.op.take(node.expr(0), indices, axis, mode="wrap"))
    evenly = _as_range(indices)
    if evenly is None or indices.ndim > 1:
        return node.emit(relax.op.take(node.expr(0), node.constant(indices), axis, mode="clip"))
    cut = sliced(node, node.value(0), {axis: evenly})
    if indices.ndim == 1:
        return cut
    shape = source[:axis] + source[axis + 1:]
    return cut.reshape(shape) if isinstance(cut, np.ndarray) else node.emit(relax.op.reshape(cut, shape))


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
    source, index = node.shape(0), node.shape(1)
    if len(index) != len(source) or any(i > d for a, (i, d) in enumerate(zip(index, source, strict=True)) if a != axis):
        raise node.fault("the indices do not fit", found=f"input {source}, indices {index}")


@operator("GatherElements")
def gather_elements(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 0)), len(node.shape(0)))
    _check_elements(node, axis)
    return node.emit(relax.op.gather_elements(node.expr(0), _positions(node, 1, node.shape(0)[axis]), axis))


@operator("GatherND")
def gather_nd(node: OnnxNode) -> Results:
    batch, source, index = int(node.attribute("batch_dims", 0)), node.shape(0), node.shape(1)
    if not index or not 0 <= batch < min(len(source), len(index)) or not 1 <= index[-1] <= len(source) - batch:
        raise node.fault("the indices do not fit", found=f"input {source}, indices {index}, batch_dims {batch}")
    positions = _positions(node, 1, source[batch:batch + index[-1]])
    return node.emit(relax.op.gather_nd(node.expr(0), positions, batch))


@operator("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 0)), len(node.shape(0)))
    _check_elements(node, axis)
    positions = _positions(node, 1, node.shape(0)[axis])
    return node.emit(relax.op.scatter_elements(node.expr(0), positions, node.expr(2), axis, _reduction(node)))


@operator("ScatterND")
def scatter_nd(node: OnnxNode) -> Results:
    source, index = node.shape(0), node.shape(1)
    if not index or not 1 <= index[-1] <= len(source):
        raise node.fault("the indices do not fit", found=f"input {source}, indices {index}")
    positions = _positions(node, 1, source[:index[-1]])
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
    depth, rank = int(depths[0]), len(node.shape(0))
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
    if len(node.shape(0)) < 2:
        raise node.fault("the input is not a matrix", found=node.shape(0))
    k = max(min(k, max(node.shape(0))), -max(node.shape(0)))
    return node.emit((relax.op.triu if node.attribute("upper", 1) else relax.op.tril)(node.expr(0), k))


@operator("Compress")
def compress(node: OnnxNode) -> Results:
    condition = np.flatnonzero(node.known(1, "a condition"))
    x = node.expr(0)
    if "axis" not in node.attributes:
        x, axis = node.emit(relax.op.reshape(x, (-1,)), "flat"), 0
    else:
        axis = node.axis(int(node.attributes["axis"]), len(node.shape(0)))
    if condition.size and condition[-1] >= shape_of(x)[axis]:
        raise node.fault("the condition is longer than the axis", found=int(condition[-1]) + 1,
                         expected=shape_of(x)[axis])
    return node.emit(relax.op.take(x, node.constant(condition.astype(np.int64)), axis, mode="clip"))


@operator("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> Results:
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    lengths, steps = node.known(1, "sequence lengths"), node.shape(0)[node.axis(time, len(node.shape(0)))]
    if (lengths < 0).any() or (lengths > steps).any():
        raise node.fault("a sequence length is out of range", found=lengths.tolist(), expected=f"0…{steps}")
    return node.emit(relax.op.reverse_sequence(node.expr(0), node.expr(1), time, batch))
