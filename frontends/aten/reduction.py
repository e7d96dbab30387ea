"""Reductions, scans and sorting of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import relax

from ...dims import product_of
from ...ir import Expr
from .context import Context, Handler, Value, axes_of, axis_of, rank, require_static, shape
from .elementwise import truth
from .movement import reshaped

_op = relax.op
Dims = int | Sequence[int] | None


def reduction(op: Callable[..., Expr]) -> Handler:
    """``op`` over some or all axes, computed in the result's element type."""
    def translate(c: Context, x: Value, dims: Dims = None, keepdim: bool = False, **_: Value) -> Value:
        if rank(x) == 0:
            return c.expr(x, c.dtype)
        return c.emit(op(c.expr(x, c.dtype), axis=axes_of(x, dims), keepdims=keepdim))
    return translate


def extreme(op: Callable[..., Expr], position: Callable[..., Expr]) -> Handler:
    """``max`` and ``min``: of everything, along an axis with positions, or of two tensors."""
    pairwise = _op.maximum if op is _op.max else _op.minimum

    def translate(c: Context, x: Value, dim: Value = None, keepdim: bool = False) -> Value:
        if dim is None:
            return c.emit(op(c.expr(x), axis=axes_of(x, None)))
        if not isinstance(dim, int):
            return c.emit(pairwise(c.expr(x, c.dtype), c.expr(dim, c.dtype)))
        axis = axis_of(x, dim)
        return (c.emit(op(c.expr(x), axis=axis, keepdims=keepdim)),
                c.emit(position(c.expr(x), axis=axis, keepdims=keepdim), "indices"))
    return translate


def position(op: Callable[..., Expr]) -> Handler:
    """``argmax`` and ``argmin``."""
    def translate(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None:
            return c.emit(op(c.expr(x), axis=axis_of(x, dim), keepdims=keepdim))
        index = c.emit(op(reshaped(c, x, [-1], "flat"), axis=0))
        return reshaped(c, index, (1,) * rank(x)) if keepdim else index
    return translate


def any_all(op: Callable[..., Expr]) -> Handler:
    """``any`` and ``all``: the maximum and the minimum of truth values as integers."""
    def translate(c: Context, x: Value, dims: Dims = None, keepdim: bool = False) -> Value:
        numbers = c.emit(_op.astype(truth(c, x), "int32"), "truth_as_integer")
        found = c.emit(op(numbers, axis=axes_of(x, dims), keepdims=keepdim), "found")
        return c.emit(_op.astype(found, "bool"))
    return translate


def _variance(c: Context, x: Value, dims: Dims, correction: float, keepdim: bool, part: str) -> tuple[Expr, Expr]:
    """The variance over ``dims`` and the mean (which keeps its axes), by two passes."""
    axes, y = axes_of(x, dims), c.expr(x)
    count = product_of(shape(x)[a] for a in axes)
    mean = c.emit(_op.mean(y, axis=axes, keepdims=True), "mean")
    squares = c.emit(_op.square(c.emit(_op.subtract(y, mean), "centered")), "squares")
    if correction == 0:
        return c.emit(_op.mean(squares, axis=axes, keepdims=keepdim), part), mean
    total = c.emit(_op.sum(squares, axis=axes, keepdims=keepdim), "total")
    if not isinstance(count, int):
        rest = c.emit(_op.subtract(c.expr(count, "float32"), c.expr(float(correction))), "count")
        return c.emit(_op.divide(total, rest), part), mean
    if count <= correction:
        raise c.refuse("the variance of so few elements is not a number", found=count)
    return c.emit(_op.multiply(total, c.expr(1.0 / (count - correction))), part), mean


def _correction(unbiased: Value, correction: float | None) -> float:
    """ATen's overloads: ``unbiased`` (bool) in the old ones, ``correction`` (1 by default) in the new one."""
    if isinstance(unbiased, bool):
        return 1.0 if unbiased else 0.0
    return 1.0 if correction is None else float(correction)


def spread(finish: Callable[[Expr], Expr] | None, *, with_mean: bool = False) -> Handler:
    """``var``, ``std`` (``finish`` is the root) and ``var_mean``, ``std_mean``."""
    def translate(c: Context, x: Value, *args: Value, correction: float | None = None,
                  keepdim: bool = False) -> Value:
        dims = next((a for a in args[:1] if not isinstance(a, bool)), None)
        flags = [a for a in args if isinstance(a, bool)]
        keep = keepdim or (len(flags) > 1 and flags[1])
        value, mean = _variance(c, x, dims, _correction(flags[0] if flags else None, correction), keep,
                                "variance" if finish else "")
        value = c.emit(finish(value)) if finish else value
        if not with_mean:
            return value
        return value, mean if keep else c.emit(_op.squeeze(mean, axes_of(x, dims)), "mean")
    return translate


def vector_norm(c: Context, x: Value, order: float = 2, dims: Dims = None, keepdim: bool = False,
                **_: Value) -> Value:
    y, axes = c.expr(x), axes_of(x, dims)
    order = 2 if order is None else order
    if math.isinf(order):
        op = _op.max if order > 0 else _op.min
        return c.emit(op(c.emit(_op.abs(y), "magnitude"), axis=axes, keepdims=keepdim))
    if order == 0:
        nonzero = c.emit(_op.astype(truth(c, y), "float32"), "nonzero")
        return c.emit(_op.sum(nonzero, axis=axes, keepdims=keepdim))
    if order == 2:
        total = c.emit(_op.sum(c.emit(_op.square(y), "squares"), axis=axes, keepdims=keepdim), "total")
        return c.emit(_op.sqrt(total))
    powers = magnitude = c.emit(_op.abs(y), "magnitude")
    if order == 1:
        return c.emit(_op.sum(magnitude, axis=axes, keepdims=keepdim))
    powers = c.emit(_op.power(magnitude, c.expr(float(order))), "powers")
    total = c.emit(_op.sum(powers, axis=axes, keepdims=keepdim), "total")
    return c.emit(_op.power(total, c.expr(1.0 / order)))


def norm(c: Context, x: Value, order: float | None = 2, dims: Dims = None, keepdim: bool = False,
         **_: Value) -> Value:
    return vector_norm(c, x, 2 if order is None else order, dims, keepdim)


def logsumexp(c: Context, x: Value, dims: Dims, keepdim: bool = False) -> Value:
    axes, y = axes_of(x, dims), c.expr(x, "float32")
    top = c.emit(_op.max(y, axis=axes, keepdims=True), "max")
    powers = c.emit(_op.exp(c.emit(_op.subtract(y, top), "shifted")), "exp")
    log = c.emit(_op.log(c.emit(_op.sum(powers, axis=axes, keepdims=True), "sum")), "log")
    result = c.emit(_op.add(log, top))
    return result if keepdim else c.emit(_op.squeeze(result, axes))


def scan(op: Callable[..., Expr]) -> Handler:
    """``cumsum`` and ``cumprod``."""
    def translate(c: Context, x: Value, dim: int, **_: Value) -> Value:
        return c.emit(op(c.expr(x, c.dtype), axis=axis_of(x, dim), dtype=c.dtype))
    return translate


def topk(c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Value:
    require_static(c, [k], "topk")
    pair = c.emit(_op.topk(c.expr(x), k=k, axis=axis_of(x, dim), largest=largest, dtype="int64"))
    return c.emit(relax.TupleGetItem(pair, 0), "values"), c.emit(relax.TupleGetItem(pair, 1), "indices")


def sort(c: Context, x: Value, *args: Value, dim: int = -1, descending: bool = False,
         stable: bool | None = None) -> Value:
    values = [a for a in args if a is not None]
    dim = next((a for a in values if not isinstance(a, bool)), dim)
    descending = next((a for a in values if isinstance(a, bool)), descending)
    axis = axis_of(x, dim)
    order = c.emit(_op.argsort(c.expr(x), axis=axis, descending=descending, dtype="int64"), "indices")
    return c.emit(_op.gather_elements(c.expr(x), order, axis=axis)), order


def argsort(c: Context, x: Value, *args: Value, **kwargs: Value) -> Value:
    return sort(c, x, *args, **kwargs)[1]


def mean(c: Context, x: Value, dims: Dims = None, keepdim: bool = False, *, dtype: object = None) -> Value:
    return reduction(_op.mean)(c, x, dims, keepdim)


TABLE: dict[str, Handler] = {
    "sum": reduction(_op.sum), "mean": reduction(_op.mean), "prod": reduction(_op.prod),
    "amax": reduction(_op.max), "amin": reduction(_op.min),
    "max": extreme(_op.max, _op.argmax), "min": extreme(_op.min, _op.argmin),
    "argmax": position(_op.argmax), "argmin": position(_op.argmin), "any": any_all(_op.max), "all": any_all(_op.min),
    "var": spread(None), "std": spread(_op.sqrt), "var_mean": spread(None, with_mean=True),
    "std_mean": spread(_op.sqrt, with_mean=True), "norm": norm, "linalg_vector_norm": vector_norm,
    "logsumexp": logsumexp, "cumsum": scan(_op.cumsum), "cumprod": scan(_op.cumprod), "topk": topk, "sort": sort,
    "argsort": argsort,
}
