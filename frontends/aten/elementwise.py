"""Elementwise ATen operators: arithmetic, comparisons, selection, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from ...dims import Dim
from ...ir import Expr, dtype_of
from ..extents import positions
from .context import Context, Handler, Value, is_exactly, is_extent, relax_dtype, shape

_op = relax.op


def unary(op: Callable[[Expr], Expr]) -> Handler:
    """An operator of one tensor whose operand has the result's element type."""
    return lambda c, x: c.emit(op(c.expr(x, c.dtype)))


def float_test(op: Callable[[Expr], Expr]) -> Handler:
    """An operator of one float tensor that returns booleans."""
    return lambda c, x: c.emit(op(c.expr(x, "float32")))


def binary(op: Callable[[Expr, Expr], Expr]) -> Handler:
    """An operator of two tensors or scalars whose operands have the result's element type."""
    return lambda c, x, y: c.emit(op(c.expr(x, c.dtype), c.expr(y, c.dtype)))


def comparison(op: Callable[[Expr, Expr], Expr]) -> Handler:
    """A comparison, in the type that PyTorch promotes both operands to."""
    def translate(c: Context, x: Value, y: Value) -> Expr:
        dtype = promoted(x, y)
        return c.emit(op(c.expr(x, dtype), c.expr(y, dtype)))
    return translate


def logical(op: Callable[..., Expr]) -> Handler:
    """An operator on truth values; other types are compared with 0 first."""
    return lambda c, *operands: c.emit(op(*(truth(c, v) for v in operands)))


def bitwise(bits: Callable[..., Expr], booleans: Callable[..., Expr]) -> Handler:
    """A bitwise operator on integers, which on booleans is the logical one."""
    def translate(c: Context, *operands: Value) -> Expr:
        op = booleans if c.dtype == "bool" else bits
        return c.emit(op(*(c.expr(v, c.dtype) for v in operands)))
    return translate


def truth(c: Context, value: Value) -> Expr:
    """``value != 0`` as booleans."""
    expr = c.expr(value)
    return expr if dtype_of(expr) == "bool" else c.emit(_op.not_equal(expr, c.expr(0, dtype_of(expr))), "truth")


def promoted(x: Value, y: Value) -> str:
    """The element type in which PyTorch compares or selects ``x`` and ``y``."""
    return relax_dtype(torch.result_type(_stand_in(x), _stand_in(y)))


def _stand_in(value: Value) -> Any:
    """A scalar, or an empty tensor with the type and rank that decide about promotion."""
    if isinstance(value, (bool, int, float)):
        return value
    if is_extent(value):
        return 1
    dtype = value.dtype if isinstance(value, torch.Tensor) else getattr(torch, dtype_of(value))
    return torch.empty((1,) * len(shape(value)), dtype=dtype)


def add(c: Context, x: Value, y: Value, alpha: float = 1) -> Expr:
    if c.dtype == "bool":
        return c.emit(_op.logical_or(c.expr(x, "bool"), c.expr(y, "bool")))
    return c.emit(_op.add(c.expr(x, c.dtype), _scaled(c, y, alpha)))


def sub(c: Context, x: Value, y: Value, alpha: float = 1) -> Expr:
    return c.emit(_op.subtract(c.expr(x, c.dtype), _scaled(c, y, alpha)))


def rsub(c: Context, x: Value, y: Value, alpha: float = 1) -> Expr:
    return c.emit(_op.subtract(c.expr(y, c.dtype), _scaled(c, x, alpha)))


def _scaled(c: Context, value: Value, alpha: float) -> Expr:
    expr = c.expr(value, c.dtype)
    return expr if alpha == 1 else c.emit(_op.multiply(expr, c.expr(alpha, c.dtype)), "scaled")


def mul(c: Context, x: Value, y: Value) -> Expr:
    op = _op.logical_and if c.dtype == "bool" else _op.multiply
    return c.emit(op(c.expr(x, c.dtype), c.expr(y, c.dtype)))


def div(c: Context, x: Value, y: Value, *, rounding_mode: str | None = None) -> Expr:
    a, b = c.expr(x, c.dtype), c.expr(y, c.dtype)
    if rounding_mode == "floor":
        return floor_divide(c, x, y)
    if rounding_mode == "trunc":
        if c.dtype == "float32":
            return c.emit(_op.trunc(c.emit(_op.divide(a, b), "quotient")))
        return c.emit(_op.divide(a, b))
    return c.emit(_op.divide(a, b))


def floor_divide(c: Context, x: Value, y: Value) -> Expr:
    a, b = c.expr(x, c.dtype), c.expr(y, c.dtype)
    if c.dtype == "float32":
        return c.emit(_op.floor(c.emit(_op.divide(a, b), "quotient")))
    return c.emit(_op.floor_divide(a, b))


def pow_(c: Context, x: Value, exponent: Value) -> Expr:
    if isinstance(exponent, (int, float)) and c.dtype == "float32":
        base = c.expr(x, c.dtype)
        if exponent in _POWERS:
            return c.emit(_POWERS[exponent](base))
    if c.dtype != "float32":
        return _integer_power(c, x, exponent)
    return c.emit(_op.power(c.expr(x, c.dtype), c.expr(exponent, c.dtype)))


_POWERS: dict[float, Callable[[Expr], Expr]] = {2: _op.square, 0.5: _op.sqrt, -0.5: _op.rsqrt}


def _integer_power(c: Context, x: Value, exponent: Value) -> Expr:
    if not isinstance(exponent, int) or not 1 <= exponent <= 4:
        raise c.refuse("powers of integers are supported for constant exponents from 1 to 4", found=exponent)
    base = c.expr(x, c.dtype)
    result = base
    for _ in range(exponent - 1):
        result = c.emit(_op.multiply(result, base))
    return result


def clamp(c: Context, x: Value, low: Value = None, high: Value = None) -> Expr:
    y = c.expr(x, c.dtype)
    if all(isinstance(v, (int, float)) for v in (low, high)) and c.dtype == "float32" and low <= high:
        return c.emit(_op.clip(y, float(low), float(high)))
    if low is not None:
        y = c.emit(_op.maximum(y, c.expr(low, c.dtype)))
    if high is not None:
        y = c.emit(_op.minimum(y, c.expr(high, c.dtype)))
    return y


def reciprocal(c: Context, x: Value) -> Expr:
    return c.emit(_op.divide(c.expr(1.0, c.dtype), c.expr(x, c.dtype)))


def expm1(c: Context, x: Value) -> Expr:
    y = c.expr(x, "float32")
    exact = c.emit(_op.subtract(c.emit(_op.exp(y), "exp"), c.expr(1.0)), "direct")
    # 2 tanh(y/2) / (1 - tanh(y/2)) equals exp(y) - 1 without the cancellation near 0.
    half = c.emit(_op.tanh(c.emit(_op.multiply(y, c.expr(0.5)), "half")), "tanh")
    small = c.emit(_op.divide(c.emit(_op.multiply(half, c.expr(2.0)), "twice"),
                              c.emit(_op.subtract(c.expr(1.0), half), "rest")), "near_zero")
    near = c.emit(_op.less(c.emit(_op.abs(y), "magnitude"), c.expr(0.5)), "is_near_zero")
    return c.emit(_op.where(near, small, exact))


def log1p(c: Context, x: Value) -> Expr:
    return c.emit(_op.log(c.emit(_op.add(c.expr(x, "float32"), c.expr(1.0)), "shifted")))


def logarithm(base: float) -> Handler:
    """The logarithm to ``base``."""
    factor = 1.0 / math.log(base)
    return lambda c, x: c.emit(_op.multiply(c.emit(_op.log(c.expr(x, "float32")), "log"), c.expr(factor)))


def exp2(c: Context, x: Value) -> Expr:
    return c.emit(_op.exp(c.emit(_op.multiply(c.expr(x, "float32"), c.expr(math.log(2.0))), "scaled")))


def where(c: Context, condition: Value, x: Value, y: Value) -> Expr:
    return c.emit(_op.where(truth(c, condition), c.expr(x, c.dtype), c.expr(y, c.dtype)))


def masked_fill(c: Context, x: Value, mask: Value, value: Value) -> Expr:
    return c.emit(_op.where(truth(c, mask), c.expr(value, c.dtype), c.expr(x, c.dtype)))


def addcmul(c: Context, x: Value, a: Value, b: Value, *, value: float = 1) -> Expr:
    product = c.emit(_op.multiply(c.expr(a, c.dtype), c.expr(b, c.dtype)), "product")
    return c.emit(_op.add(c.expr(x, c.dtype), _scaled(c, product, value)))


def addcdiv(c: Context, x: Value, a: Value, b: Value, *, value: float = 1) -> Expr:
    quotient = c.emit(_op.divide(c.expr(a, c.dtype), c.expr(b, c.dtype)), "quotient")
    return c.emit(_op.add(c.expr(x, c.dtype), _scaled(c, quotient, value)))


def lerp(c: Context, x: Value, end: Value, weight: Value) -> Expr:
    difference = c.emit(_op.subtract(c.expr(end), c.expr(x)), "difference")
    return c.emit(_op.add(c.expr(x), c.emit(_op.multiply(difference, c.expr(weight, "float32")), "step")))


def hypot(c: Context, x: Value, y: Value) -> Expr:
    squares = [c.emit(_op.square(c.expr(v, "float32")), "square") for v in (x, y)]
    return c.emit(_op.sqrt(c.emit(_op.add(*squares), "sum")))


def fmod(c: Context, x: Value, y: Value) -> Expr:
    return c.emit(_op.mod(c.expr(x, c.dtype), c.expr(y, c.dtype)))


def remainder(c: Context, x: Value, y: Value) -> Expr:
    return c.emit(_op.floor_mod(c.expr(x, c.dtype), c.expr(y, c.dtype)))


def round_(c: Context, x: Value, *, decimals: int = 0) -> Expr:
    if decimals:
        raise c.refuse("round is supported without decimals", found=decimals)
    return c.emit(_op.round(c.expr(x)))


def identity(c: Context, x: Value, *_: Value, **__: Value) -> Value:
    """Operators that change neither values nor, after import, the element type."""
    return x


def cast(c: Context, x: Value, *_: Value, **__: Value) -> Value:
    """Conversions: integers and booleans convert, all floating point types are float32."""
    if c.dtype == "bool":
        return truth(c, x)
    expr = c.expr(x)
    return expr if dtype_of(expr) == c.dtype else c.emit(_op.astype(expr, c.dtype))


def filled_like(value: float | None) -> Handler:
    """A new tensor of the operand's shape filled with ``value``, or with the first argument where that is None."""
    def translate(c: Context, x: Value, *args: Value, **_: Value) -> Value:
        fill = args[0] if value is None else value
        fill = fill.item() if isinstance(fill, torch.Tensor) else fill
        return filled(c, shape(x), fill)
    return translate


def filled(c: Context, size: Sequence[Dim], fill: Value) -> Value:
    """A tensor of one value: a constant where value and size are known."""
    if all(isinstance(d, int) for d in size) and isinstance(fill, (bool, int, float)):
        return torch.from_numpy(np.full(size, fill, dtype=c.dtype))
    if isinstance(fill, (bool, int, float)):
        return c.emit(_op.full(size, c.expr(fill, c.dtype)))
    return c.emit(_op.broadcast_to(c.expr(fill, c.dtype), size))


def created(value: float | None) -> Handler:
    """``zeros(size)``, ``ones`` and ``full(size, value)``."""
    return lambda c, size, *args, **_: filled(c, size, args[0] if value is None else value)


def new_filled(value: float | None) -> Handler:
    """``new_zeros(x, size)``, ``new_ones`` and ``new_full(x, size, value)``: only the element type comes from x."""
    return lambda c, x, size, *args, **_: filled(c, size, args[0] if value is None else value)


def scalar_tensor(c: Context, value: Value, **_: Value) -> Expr:
    return c.expr(value, c.dtype)


def arange(c: Context, end: Value, **_: Value) -> Value:
    return arange_between(c, 0, end, 1)


def arange_between(c: Context, start: Value, end: Value, step: Value = 1, **_: Value) -> Value:
    """Evenly spaced numbers; the count is what PyTorch says, so that no float decides about it."""
    count = positions(c.builder, c.name, c.dims[0], "int64")
    if is_exactly(step, 1) and is_exactly(start, 0):
        return c.expr(count, c.dtype)
    steps = c.emit(_op.multiply(c.expr(count, c.dtype), c.expr(step, c.dtype)), "steps")
    return c.emit(_op.add(steps, c.expr(start, c.dtype)))


def eye(c: Context, rows: Dim, columns: Dim | None = None, **_: Value) -> Value:
    places = [positions(c.builder, f"{c.name}.{part}", d) for part, d in (
        ("row", rows), ("column", rows if columns is None else columns))]
    row = c.emit(_op.expand_dims(places[0], 1), "row")
    return c.expr(c.emit(_op.equal(row, places[1])), c.dtype)


def nan_to_num(c: Context, x: Value, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Expr:
    y = c.expr(x)
    limits = np.finfo(np.float32)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    y_finite = c.emit(_op.where(c.emit(_op.equal(y, c.expr(math.inf)), "is_inf"), c.expr(high), y))
    y_finite = c.emit(_op.where(c.emit(_op.equal(y, c.expr(-math.inf)), "is_inf"), c.expr(low), y_finite))
    return c.emit(_op.where(c.emit(_op.isnan(y), "is_nan"), c.expr(nan or 0.0), y_finite))


def square(c: Context, x: Value) -> Expr:
    y = c.expr(x, c.dtype)
    return c.emit(_op.square(y) if c.dtype == "float32" else _op.multiply(y, y))


TABLE: dict[str, Handler] = {
    "abs": unary(_op.abs), "ceil": unary(_op.ceil), "floor": unary(_op.floor), "trunc": unary(_op.trunc),
    "neg": unary(_op.negative), "exp": unary(_op.exp), "log": unary(_op.log), "sqrt": unary(_op.sqrt),
    "rsqrt": unary(_op.rsqrt), "erf": unary(_op.erf), "sin": unary(_op.sin), "cos": unary(_op.cos),
    "tan": unary(_op.tan), "asin": unary(_op.asin), "acos": unary(_op.acos), "atan": unary(_op.atan),
    "sinh": unary(_op.sinh), "cosh": unary(_op.cosh), "asinh": unary(_op.asinh), "acosh": unary(_op.acosh),
    "atanh": unary(_op.atanh), "sign": unary(_op.sign), "sgn": unary(_op.sign),
    "round": round_, "square": square, "reciprocal": reciprocal, "expm1": expm1, "log1p": log1p,
    "log2": logarithm(2.0), "log10": logarithm(10.0), "exp2": exp2,
    "isnan": float_test(_op.isnan), "isinf": float_test(_op.isinf), "isfinite": float_test(_op.isfinite),
    "add": add, "sub": sub, "subtract": sub, "rsub": rsub, "mul": mul, "multiply": mul, "div": div, "divide": div,
    "true_divide": div, "floor_divide": floor_divide, "pow": pow_, "fmod": fmod, "remainder": remainder,
    "maximum": binary(_op.maximum), "minimum": binary(_op.minimum), "atan2": binary(_op.atan2),
    "clamp": clamp, "clip": clamp, "clamp_min": clamp, "clamp_max": lambda c, x, high: clamp(c, x, None, high),
    "addcmul": addcmul, "addcdiv": addcdiv, "lerp": lerp, "hypot": hypot, "nan_to_num": nan_to_num,
    "eq": comparison(_op.equal), "ne": comparison(_op.not_equal), "lt": comparison(_op.less),
    "le": comparison(_op.less_equal), "gt": comparison(_op.greater), "ge": comparison(_op.greater_equal),
    "not_equal": comparison(_op.not_equal), "less": comparison(_op.less), "greater": comparison(_op.greater),
    "less_equal": comparison(_op.less_equal), "greater_equal": comparison(_op.greater_equal),
    "logical_and": logical(_op.logical_and), "logical_or": logical(_op.logical_or),
    "logical_xor": logical(_op.logical_xor), "logical_not": logical(_op.logical_not),
    "bitwise_and": bitwise(_op.bitwise_and, _op.logical_and), "bitwise_or": bitwise(_op.bitwise_or, _op.logical_or),
    "bitwise_xor": bitwise(_op.bitwise_xor, _op.logical_xor),
    "bitwise_not": bitwise(_op.bitwise_not, _op.logical_not),
    "__and__": bitwise(_op.bitwise_and, _op.logical_and), "__or__": bitwise(_op.bitwise_or, _op.logical_or),
    "__xor__": bitwise(_op.bitwise_xor, _op.logical_xor),
    "where": where, "masked_fill": masked_fill,
    "to": cast, "_to_copy": cast, "type_as": cast, "float": cast, "long": cast, "bool": cast,
    "alias": identity, "detach": identity, "detach_copy": identity, "contiguous": identity, "clone": identity,
    "dropout": identity, "feature_dropout": identity, "alpha_dropout": identity, "lift_fresh_copy": identity,
    "lift_fresh": identity, "_conj": identity, "positive": identity, "real": identity,
    "zeros_like": filled_like(0), "ones_like": filled_like(1), "full_like": filled_like(None),
    "fill": filled_like(None), "new_zeros": new_filled(0), "new_ones": new_filled(1), "new_full": new_filled(None),
    "zeros": created(0), "ones": created(1), "full": created(None), "empty": created(0), "new_empty": new_filled(0),
    "empty_like": filled_like(0), "scalar_tensor": scalar_tensor,
    "arange": arange, "arange.start": arange_between, "arange.start_step": arange_between, "eye": eye,
}
