"""Operators whose results have an extent that only running tells: how many elements are not zero, which boxes stay.

A call takes, after its tensors, a shape of one symbol: the extent that it finds. The symbol is one of those that
``main`` lists in its last parameter (``ir.GraphBuilder.found``). There is no kernel for these operators: the program
calls ``compute``, and so does the reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir import Expr, dims_of, dtype_of, op_name
from .custom import register

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class _Operator:
    """What one operator computes: results from attributes and arrays."""

    tensors: int
    infer_type: Callable[[relax.Call, Expr], object]
    compute: Callable[[Attributes, Sequence[np.ndarray]], tuple[np.ndarray, ...]]


def is_data_dependent(expr: Expr) -> bool:
    """Whether a binding's value is a call of one of these operators."""
    return op_name(expr) in _TABLE


def attributes_of(call: relax.Call) -> dict[str, Any]:
    """The attributes of a call as plain numbers."""
    return {str(k): v if isinstance(v, (bool, int, float)) else float(v) for k, v in dict(call.attrs or {}).items()}


def compute(name: str, attributes: Attributes, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of the operator called ``name``."""
    return _TABLE[name].compute(attributes, arrays)


def nonzero(x: Expr, symbol: tvm.tirx.Var) -> relax.Call:
    """The places of the elements that are not zero, in row-major order: int64 [rank, ``symbol``]."""
    return _call("narrowcast.nonzero", [x], symbol)


def unique(x: Expr, symbol: tvm.tirx.Var, *, axis: int | None, in_order: bool) -> relax.Call:
    """The different elements of ``x`` (of its slices along ``axis``), sorted or in the order of their first places.

    The results are these, [``symbol``] or ``x`` with ``symbol`` for the extent of ``axis``; their first places; which
    of them every element is; and how often each is there: the last three int64 vectors.
    """
    given = {} if axis is None else {"axis": axis}
    return _call("narrowcast.unique", [x], symbol, in_order=in_order, **given)


def non_max_suppression(boxes: Expr, scores: Expr, symbol: tvm.tirx.Var, *, max_boxes: int, iou_threshold: float,
                        score_threshold: float | None, centred: bool) -> relax.Call:
    """The boxes that stay when those that overlap better ones go: int64 [``symbol``, 3], of (batch, class, box).

    Parameters
    ----------
    boxes : [batches, boxes, 4], two opposite corners (y, x, y, x), or centre and size (x, y, width, height).
    scores : [batches, classes, boxes].
    max_boxes : of a class of a batch.
    iou_threshold : boxes go that overlap a better one more than this, as a share of what both cover together.
    score_threshold : boxes without a score above it do not take part; None: all do.
    """
    least = {} if score_threshold is None else {"score_threshold": score_threshold}
    return _call("narrowcast.non_max_suppression", [boxes, scores], symbol, max_boxes=max_boxes,
                 iou_threshold=iou_threshold, centred=centred, **least)


def _call(name: str, tensors: Sequence[Expr], symbol: tvm.tirx.Var, **attributes: object) -> relax.Call:
    attrs = tvm.ir.make_node("ir.DictAttrs", **attributes)
    return relax.Call(tvm.ir.Op.get(name), [*tensors, relax.ShapeExpr([symbol])], attrs)


def _nonzero(attributes: Attributes, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    (x,) = arrays
    return (np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)[:x.ndim],)


def _unique(attributes: Attributes, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    (x,), axis = arrays, attributes.get("axis")
    axis = None if axis is None else int(axis)
    values, places, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if attributes["in_order"]:
        order = np.argsort(places, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, axis=axis or 0)
        places, counts, inverse = places[order], counts[order], rank[inverse]
    return (np.ascontiguousarray(values), *(a.astype(np.int64) for a in (places, inverse, counts)))


def _non_max_suppression(attributes: Attributes, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    boxes, scores = arrays
    corners = _from_centres(boxes) if attributes["centred"] else _ordered(boxes)
    kept = [(batch, kind, box) for batch in range(scores.shape[0]) for kind in range(scores.shape[1])
            for box in _suppress(corners[batch], scores[batch, kind], attributes)]
    return (np.array(kept, np.int64).reshape(-1, 3),)


def _from_centres(boxes: np.ndarray) -> np.ndarray:
    x, y, width, height = np.moveaxis(boxes, -1, 0)
    return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=-1)


def _ordered(boxes: np.ndarray) -> np.ndarray:
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _suppress(boxes: np.ndarray, scores: np.ndarray, attributes: Attributes) -> list[int]:
    """The boxes of one class that stay, the best first."""
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    order = np.argsort(-scores, kind="stable")
    if "score_threshold" in attributes:
        order = order[scores[order] > attributes["score_threshold"]]
    kept: list[int] = []
    for box in order:
        if len(kept) >= attributes["max_boxes"]:
            break
        shared = np.prod(np.clip(np.minimum(boxes[kept, 2:], boxes[box, 2:]) - np.maximum(
            boxes[kept, :2], boxes[box, :2]), 0, None), axis=1)
        together = areas[kept] + areas[box] - shared
        if not np.any(shared > attributes["iou_threshold"] * np.where(together > 0, together, np.inf)):
            kept.append(int(box))
    return kept


def _infer_unique(call: relax.Call, extent: Expr) -> relax.TupleType:
    shape, attributes = dims_of(call.args[0]), attributes_of(call)
    axis = attributes.get("axis")
    values = [extent] if axis is None else [extent if a == int(axis) % len(shape) else d for a, d in enumerate(shape)]
    count = relax.TensorType([extent], "int64")
    total = shape[int(axis)] if axis is not None else np.prod(np.array(shape, object), initial=1)
    return relax.TupleType([relax.TensorType(values, dtype_of(call.args[0])), count,
                            relax.TensorType([total], "int64"), count])


_TABLE = {
    "narrowcast.nonzero": _Operator(
        1, lambda call, n: relax.TensorType([len(dims_of(call.args[0])), n], "int64"), _nonzero),
    "narrowcast.unique": _Operator(1, _infer_unique, _unique),
    "narrowcast.non_max_suppression": _Operator(
        2, lambda call, n: relax.TensorType([n, 3], "int64"), _non_max_suppression),
}


def _register(name: str, operator: _Operator) -> None:
    register(name, operator.tensors + 1, lambda call: operator.infer_type(call, call.args[-1].values[0]))


for _name, _operator in _TABLE.items():
    _register(_name, _operator)
