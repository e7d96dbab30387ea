"""Operators whose results have an extent that only running tells."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import product_of
from ...operators import data_dependent as operators
from .broadcasting import shape_text
from .node import OnnxNode, Results, operator


@operator("NonZero")
def nonzero(node: OnnxNode) -> Results:
    return node.emit(operators.nonzero(node.expr(0), node.builder.found(f"{node.name}.count")))


@operator("Compress")
def compress(node: OnnxNode) -> Results:
    x = node.expr(0)
    if "axis" not in node.attributes:
        x, axis = node.emit(relax.op.reshape(x, (product_of(node.dims(0)),)), "flat"), 0
    else:
        axis = node.axis(int(node.attributes["axis"]), node.rank(0))
    extent = product_of(node.dims(0)) if "axis" not in node.attributes else node.dims(0)[axis]
    if node.is_known(1):
        chosen = np.flatnonzero(node.known(1, "a condition"))
        if chosen.size:
            node.require_at_least(extent, int(chosen[-1]) + 1)
        return node.emit(relax.op.take(x, node.constant(chosen.astype(np.int64)), axis, mode="clip"))
    node.require_at_least(extent, node.dims(1)[0])
    count = node.builder.found(f"{node.name}.count")
    places = node.emit(operators.nonzero(node.expr(1), count), "places")
    return node.emit(relax.op.take(x, node.emit(relax.op.reshape(places, (count,)), "places"), axis, mode="clip"))


@operator("Unique")
def unique(node: OnnxNode) -> Results:
    axis = node.attribute("axis")
    axis = None if axis is None else node.axis(int(axis), node.rank(0))
    result = node.emit(operators.unique(node.expr(0), node.builder.found(f"{node.name}.count"), axis=axis,
                                        in_order=not node.attribute("sorted", 1)))
    parts = ("values", "places", "inverse", "counts")
    return tuple(node.emit(relax.TupleGetItem(result, i), part) for i, part in enumerate(parts))


@operator("NonMaxSuppression")
def non_max_suppression(node: OnnxNode) -> Results:
    def scalar(index: int, what: str, default: float) -> float:
        return node.known(index, what).reshape(()).item() if node.has(index) else default

    if node.rank(0) != 3 or node.rank(1) != 3 or node.dims(0)[2] != 4:
        raise node.fault("boxes and scores are no batches of them",
                         found=f"{shape_text(node.dims(0))} and {shape_text(node.dims(1))}",
                         expected="[batch, boxes, 4] and [batch, classes, boxes]")
    node.require_equal(node.dims(0)[0], node.dims(1)[0], "boxes and scores differ in the batch")
    node.require_equal(node.dims(0)[1], node.dims(1)[2], "boxes and scores differ in number")
    most = int(scalar(2, "a number of boxes", 0))
    if most <= 0:
        return node.emit(node.constant(np.zeros((0, 3), np.int64)))
    least = float(scalar(4, "a least score", 0.0)) if node.has(4) else None
    return node.emit(operators.non_max_suppression(
        node.expr(0), node.expr(1), node.builder.found(f"{node.name}.count"), max_boxes=most,
        iou_threshold=float(scalar(3, "a threshold", 0.0)), score_threshold=least,
        centred=bool(node.attribute("center_point_box", 0))))
