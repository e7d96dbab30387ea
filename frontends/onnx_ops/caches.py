"""TensorScatter: updates of caches of keys and values."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .algebra import Algebra, check_table
from .node import OnnxNode, Results, operator


@operator("TensorScatter")
def tensor_scatter(node: OnnxNode) -> Results:
    """For every place of the cache the element of the update that is written there, if there is one."""
    shape, own, steps = node.shape(0), node.shape(1), Algebra(node, "places")
    axis, mode = node.axis(int(node.attribute("axis", -2)), len(shape)), node.attribute("mode", "linear")
    fits = len(own) == len(shape) and all(a == b for i, (a, b) in enumerate(zip(own, shape, strict=False)) if i != axis)
    if not fits or axis == 0 or not 1 <= own[axis] <= shape[axis] or mode not in ("linear", "circular"):
        raise node.fault("the update does not fit the cache", found=own, expected=shape)
    check_table(node, shape[axis])
    places = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    first = node.constant(np.zeros(shape[0], np.int64)) if not node.has(2) else steps.cast(node.expr(2), "int64")
    first = steps.reshape(first, [shape[0], *(1,) * (len(shape) - 1)])
    source = steps.subtract(places, first)
    if mode == "circular":
        source = steps(relax.op.floor_mod, source, shape[axis])
    written = steps.within(source, 0, own[axis] - 1)
    rows = steps.broadcast(steps.clipped(source, 0, own[axis] - 1), shape)
    values = node.emit(relax.op.gather_elements(node.expr(1), rows, axis), "update")
    return node.emit(relax.op.where(written, values, node.expr(0)))
