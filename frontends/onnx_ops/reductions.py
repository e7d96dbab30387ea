"""Reductions, in the forms of every opset, and what ranks elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tvm import relax

from ...ir import Expr, dtype_of
from ...operators import custom
from ..extents import extent
from .algebra import check_table
from .broadcasting import is_number
from .node import OnnxNode, Results, operator
from .pooling import whole_average

_REDUCTIONS: dict[str, Callable[..., Expr]] = {
    "ReduceMax": relax.op.max, "ReduceMin": relax.op.min, "ReduceMean": relax.op.mean, "ReduceProd": relax.op.prod,
    "ReduceSum": relax.op.sum, "ReduceL1": relax.op.sum, "ReduceL2": relax.op.sum, "ReduceSumSquare": relax.op.sum,
    "ReduceLogSum": relax.op.sum, "ReduceLogSumExp": relax.op.sum,
}
_LEAST = np.int64(np.iinfo(np.int64).min)
# Reductions of integers whose results are none.
_ON_REALS = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@operator(*_REDUCTIONS)
def reduction(node: OnnxNode) -> Results:
    """One reduction, with what the operator does to the elements before and to the result after it."""
    rank = node.rank(0)
    axes = node.integers(1, "axes", "axes")
    if not axes:
        if node.attribute("noop_with_empty_axes", 0):
            return _finish(node, _prepare(node, node.expr(0)))
        axes = tuple(range(rank))
    found, keep = node.axes(axes, rank), bool(node.attribute("keepdims", 1))
    if any(is_number(node.dims(0)[a], 0) for a in found):
        return _of_nothing(node, found, keep=keep)
    x = node.expr(0)
    if dtype_of(x) != "float32" and node.op in _ON_REALS:
        return _of_integers(node, found, keep=keep)
    if node.op == "ReduceMean" and keep and 4 <= rank <= 5 and sorted(found) == list(range(2, rank)):
        return whole_average(node)  # The exporter's form of adaptive pooling to one element.
    if node.op == "ReduceLogSumExp":
        return _log_sum_exp(node, x, found, keep=keep)
    if dtype_of(x) == "bool":
        reduced = node.emit(_REDUCTIONS[node.op](node.emit(relax.op.astype(x, "int32"), "integer"), found, keep))
        return node.emit(relax.op.astype(reduced, "bool"))
    prepared = _prepare(node, x)
    if not found:
        return _finish(node, prepared)
    return _finish(node, node.emit(_REDUCTIONS[node.op](prepared, found, keep)))


def _of_integers(node: OnnxNode, axes: list[int], *, keep: bool) -> relax.Var:
    """What is no integer is cut to its whole part; a mean is the quotient of the sum."""
    x, dtype = node.expr(0), node.dtype(0)
    if node.op != "ReduceMean":
        inner = replace(node, inputs=(node.emit(relax.op.astype(x, "float32"), "real"), *node.inputs[1:]))
        return node.emit(relax.op.astype(node.constant(reduction(inner)), dtype))
    count = int(np.prod(node.numbers([node.dims(0)[a] for a in axes], "the reduced axes"), dtype=np.int64))
    total = node.emit(relax.op.sum(x, axes, keep))
    return total if count == 1 else node.emit(relax.op.divide(total, node.constant(count, dtype)))


def _of_nothing(node: OnnxNode, axes: list[int], *, keep: bool) -> np.ndarray:
    """The neutral element of the reduction, everywhere."""
    dtype = np.dtype(node.dtype(0))
    least, largest = (False, True) if dtype.kind == "b" else (-np.inf, np.inf) if dtype.kind == "f" else (
        np.iinfo(dtype).min, np.iinfo(dtype).max)
    neutral = {"ReduceProd": 1, "ReduceMax": least, "ReduceMin": largest, "ReduceLogSum": -np.inf,
               "ReduceLogSumExp": -np.inf, "ReduceMean": np.nan}.get(node.op, 0)
    shape = [1 if a in axes else d for a, d in enumerate(node.shape(0)) if keep or a not in axes]
    check_table(node, *shape)
    return np.full(shape, neutral, dtype)


def _prepare(node: OnnxNode, x: Expr) -> Expr:
    if node.op == "ReduceL1":
        return node.emit(relax.op.abs(x), "elements")
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        return node.emit(relax.op.multiply(x, x), "elements")
    return x


def _finish(node: OnnxNode, y: Expr) -> relax.Var:
    if node.op == "ReduceL2":
        return node.emit(relax.op.sqrt(y))
    if node.op == "ReduceLogSum":
        return node.emit(relax.op.log(y))
    return y if isinstance(y, relax.Var) else node.emit(y)


def _log_sum_exp(node: OnnxNode, x: Expr, axes: list[int], *, keep: bool) -> relax.Var:
    """``m + log Σ exp(x - m)`` with the maximum m, which does not overflow; infinite ones are cut to finite."""
    limit = float(np.finfo(np.float32).max)
    top = node.emit(relax.op.clip(node.emit(relax.op.max(x, axes, True), "maximum"), -limit, limit), "maximum")
    terms = node.emit(relax.op.exp(node.emit(relax.op.subtract(x, top), "terms")), "terms")
    total = node.emit(relax.op.log(node.emit(relax.op.sum(terms, axes, True))))
    result = node.emit(relax.op.add(total, top))
    return result if keep else node.emit(relax.op.squeeze(result, axes))


@operator("ArgMax", "ArgMin")
def arg_extreme(node: OnnxNode) -> Results:
    op = relax.op.argmax if node.op == "ArgMax" else relax.op.argmin
    axis, keep = node.axis(int(node.attribute("axis", 0)), node.rank(0)), bool(node.attribute("keepdims", 1))
    x = node.expr(0)
    if not node.attribute("select_last_index", 0):
        return node.emit(op(x, axis, keep))
    index = node.emit(op(node.emit(relax.op.flip(x, axis), "reversed"), axis, keep))
    last = extent(node.builder, node.name, node.dims(0)[axis] - 1)
    return node.emit(relax.op.subtract(last, index))


@operator("TopK")
def top_k(node: OnnxNode) -> Results:
    """Always sorted, which ``sorted=0`` allows."""
    wanted = node.integers(1, "k", "k")
    axis = node.axis(int(node.attribute("axis", -1)), node.rank(0))
    if wanted is None or len(wanted) != 1 or wanted[0] < 1:
        raise node.fault("k is out of range", found=wanted, expected="at least 1")
    node.require_at_least(node.dims(0)[axis], wanted[0], "k is out of range")
    keys = _sortable(node, node.expr(0))
    both = node.emit(relax.op.topk(keys, wanted[0], axis, "both", bool(node.attribute("largest", 1)), "int64"))
    values = node.emit(relax.TupleGetItem(both, 0), "values")
    return _unsorted(node, values, node.dtype(0)), node.emit(relax.TupleGetItem(both, 1), "indices")


# TVM sorts elements of these types only; int64 holds the others, uint64 with its highest bit inverted.
_SORTED = ("float32", "int32", "int64")


def _sortable(node: OnnxNode, x: Expr) -> Expr:
    """``x`` as elements that sort in the same order."""
    if dtype_of(x) in _SORTED:
        return x
    if dtype_of(x) != "uint64":
        return node.emit(relax.op.astype(x, "int64"), "keys")
    return node.emit(relax.op.bitwise_xor(node.emit(custom.bitcast(x, "int64"), "keys"), node.constant(_LEAST)), "keys")


def _unsorted(node: OnnxNode, keys: relax.Var, dtype: str) -> relax.Var:
    if dtype in _SORTED:
        return keys
    if dtype != "uint64":
        return node.emit(relax.op.astype(keys, dtype), "values")
    return node.emit(custom.bitcast(node.emit(relax.op.bitwise_xor(keys, node.constant(_LEAST)), "values"), dtype),
                     "values")


@operator("CumSum", "CumProd")
def cumulate(node: OnnxNode) -> Results:
    axes = node.known(1, "an axis")
    if axes.size != 1:
        raise node.fault("the axis is not one number", found=axes.tolist())
    axis = node.axis(int(axes.reshape(())), node.rank(0))
    op = relax.op.cumsum if node.op == "CumSum" else relax.op.cumprod
    x, backwards = node.expr(0), bool(node.attribute("reverse", 0))
    x = node.emit(relax.op.flip(x, axis), "reversed") if backwards else x
    result = node.emit(op(x, axis, dtype=dtype_of(x), exclusive=bool(node.attribute("exclusive", 0))))
    return node.emit(relax.op.flip(result, axis)) if backwards else result
