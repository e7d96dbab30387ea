"""Quantization as PT2E graphs have it (``quantized_decomposed``): integers between float operations, by definition.

What rounds a tensor to integers and dequantizes them at once is one operator after ``RecomposeFakeQuantize``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tvm import relax

from ...ir import Expr
from .context import Context, Handler, Value, axis_of, is_variable, rank, relax_dtype

_op = relax.op


def quantize(c: Context, x: Value, scale: Value, zero_point: Value, low: Value, high: Value, dtype: torch.dtype,
             shape: Sequence[int] = ()) -> Expr:
    """``clip(round_half_even(x / scale) + zero_point, low, high)`` as integers; scale and zero point have ``shape``."""
    steps = c.emit(_op.divide(c.expr(x, "float32"), _parameter(c, scale, shape)), "steps")
    steps = c.emit(_op.round(steps), "steps")
    if not _is_zero(zero_point):
        steps = c.emit(_op.add(steps, _parameter(c, zero_point, shape)), "steps")
    levels = c.emit(_op.clip(steps, float(low), float(high)), "steps")
    return c.emit(_op.astype(levels, relax_dtype(dtype)))


def dequantize(c: Context, x: Value, scale: Value, zero_point: Value, low: Value, high: Value, dtype: torch.dtype,
               shape: Sequence[int] = (), **_: Value) -> Expr:
    """``(x - zero_point) * scale`` in float32."""
    steps = c.emit(_op.astype(c.expr(x), "float32"), "steps")
    if not _is_zero(zero_point):
        steps = c.emit(_op.subtract(steps, _parameter(c, zero_point, shape)), "steps")
    return c.emit(_op.multiply(steps, _parameter(c, scale, shape)))


def quantize_per_channel(c: Context, x: Value, scales: Value, zero_points: Value, axis: int, low: int, high: int,
                         dtype: torch.dtype) -> Expr:
    return quantize(c, x, scales, zero_points, low, high, dtype, _along(x, axis))


def dequantize_per_channel(c: Context, x: Value, scales: Value, zero_points: Value, axis: int, low: int, high: int,
                           dtype: torch.dtype, **_: Value) -> Expr:
    return dequantize(c, x, scales, zero_points, low, high, dtype, _along(x, axis))


def choose_parameters(c: Context, x: Value, low: int, high: int, epsilon: float, dtype: torch.dtype) -> Value:
    """Scale and zero point of dynamic quantization: the range of the tensor and 0 is what low…high covers."""
    zero = c.expr(0.0)
    smallest = c.emit(_op.minimum(c.emit(_op.min(c.expr(x, "float32")), "smallest"), zero), "smallest")
    largest = c.emit(_op.maximum(c.emit(_op.max(c.expr(x, "float32")), "largest"), zero), "largest")
    extent = c.emit(_op.subtract(largest, smallest), "extent")
    scale = c.emit(_op.divide(extent, c.expr(float(high - low))), "scale")
    scale = c.emit(_op.maximum(scale, c.expr(float(epsilon))), "scale")
    steps = c.emit(_op.round(c.emit(_op.divide(smallest, scale), "point")), "point")
    point = c.emit(_op.clip(c.emit(_op.subtract(c.expr(float(low)), steps), "point"), float(low), float(high)), "point")
    return scale, c.emit(_op.astype(point, "int64"), "point")


def _along(x: Value, axis: int) -> tuple[int, ...]:
    position = axis_of(x, axis)
    return tuple(-1 if i == position else 1 for i in range(rank(x)))


def _parameter(c: Context, value: Value, shape: Sequence[int]) -> Expr:
    """A scale or a zero point as float32 that broadcasts."""
    if isinstance(value, torch.Tensor):
        return c.expr(value.reshape(tuple(shape)), "float32")
    if is_variable(value):
        return c.emit(_op.reshape(c.expr(value, "float32"), tuple(shape)), "parameter")
    return c.expr(float(value), "float32")


def _is_zero(zero_point: Value) -> bool:
    if zero_point is None:
        return True
    return not is_variable(zero_point) and not torch.as_tensor(zero_point).any()


_HANDLERS: dict[str, Handler] = {
    "quantize_per_tensor": quantize, "dequantize_per_tensor": dequantize,
    "quantize_per_channel": quantize_per_channel, "dequantize_per_channel": dequantize_per_channel,
    "choose_qparams.tensor": choose_parameters,
}
TABLE: dict[str, Handler] = {f"quantized_decomposed.{name}": handler for name, handler in _HANDLERS.items()}
