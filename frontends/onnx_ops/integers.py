"""Products of quantized operands by their definition: exact in int32, then scaled and rounded once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from ...ir import Expr, dims_of, dtype_of
from .casts import convert
from .convolutions import convolution
from .node import OnnxNode, Results, Tensor, operator
from .quantization import is_zero, quantized, real, reshaped


def centred(node: OnnxNode, levels: int, zero: int | None, channel_axis: int) -> Expr:
    """Input ``levels`` less its zero point, int32; a zero point with several elements belongs to an axis."""
    x = node.constant(convert(node, node.value(levels), "int32"))
    if zero is None or not node.has(zero) or is_zero(node.value(zero)):
        return x
    point = per_channel(node, zero, len(node.dims(levels)), channel_axis)
    return node.emit(relax.op.subtract(x, node.constant(convert(node, point, "int32"))), "centred")


def per_channel(node: OnnxNode, index: int, rank: int, axis: int) -> Tensor:
    """Input ``index``, one number or one for each element of ``axis``, in a shape that broadcasts against ``rank``
    axes; of more than one dimension it broadcasts as it is."""
    value = node.value(index)
    dims = dims_of(value) if isinstance(value, relax.Var) else value.shape
    if all(d == 1 for d in dims):
        return reshaped(node, value, ())
    if len(dims) > 1 or rank == 1:
        return value
    return reshaped(node, value, tuple(-1 if i == axis % rank else 1 for i in range(rank)))


def requantized(node: OnnxNode, sums: relax.Var, scales: tuple[Tensor, Tensor], target: tuple[int, int]) -> relax.Var:
    """``sums`` times the operands' scales as levels of the result, whose scale and zero point ``target`` are inputs."""
    factor = node.emit(relax.op.multiply(real(node, scales[0]), real(node, scales[1])), "factor")
    product = node.emit(relax.op.multiply(node.emit(relax.op.astype(sums, "float32"), "sums"), factor), "sums")
    scale, zero = (reshaped(node, node.value(i), ()) if node.has(i) else None for i in target)
    return quantized(node, product, scale, zero, dtype_of(node.expr(target[1])))


@operator("MatMulInteger")
def matmul_integer(node: OnnxNode) -> Results:
    return node.emit(relax.op.matmul(centred(node, 0, 2, -2), centred(node, 1, 3, -1)))


@operator("ConvInteger")
def convolution_integer(node: OnnxNode) -> Results:
    return _convolution(node, centred(node, 0, 2, 1), centred(node, 1, 3, 0))


def _convolution(node: OnnxNode, x: Expr, weight: Expr) -> relax.Var:
    return convolution(replace(node, inputs=(as_value(x), as_value(weight))))


def as_value(expr: Expr) -> Tensor:
    """A variable, or the array of a constant."""
    return expr if isinstance(expr, relax.Var) else expr.value.numpy()


@operator("QLinearMatMul")
def qlinear_matmul(node: OnnxNode) -> Results:
    sums = node.emit(relax.op.matmul(centred(node, 0, 2, -2), centred(node, 3, 5, -1)), "sums")
    rank = len(dims_of(sums))
    return requantized(node, sums, (per_channel(node, 1, rank, -2), per_channel(node, 4, rank, -1)), (6, 7))


@operator("QLinearConv")
def qlinear_convolution(node: OnnxNode) -> Results:
    """The bias is of int32 in units of the product of the scales."""
    sums = _convolution(replace(node, name=f"{node.name}.sums"), centred(node, 0, 2, 1), centred(node, 3, 5, 0))
    rank = len(dims_of(sums))
    if node.has(8):
        sums = node.emit(relax.op.add(sums, node.constant(per_channel(node, 8, rank, 1))), "sums")
    return requantized(node, sums, (per_channel(node, 1, rank, 1), per_channel(node, 4, rank, 1)), (6, 7))


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: OnnxNode) -> Results:
    """uint8 levels for the range of the tensor and 0; the scale of a tensor of zeros is 1."""
    x, zero = node.expr(0), node.constant(np.float32(0))
    low = node.emit(relax.op.minimum(node.emit(relax.op.min(x), "low"), zero), "low")
    high = node.emit(relax.op.maximum(node.emit(relax.op.max(x), "high"), zero), "high")
    extent = node.emit(relax.op.subtract(high, low), "extent")
    scale = node.emit(relax.op.divide(extent, node.constant(np.float32(255))), "scale")
    is_flat = node.emit(relax.op.equal(scale, zero), "flat")
    scale = node.emit(relax.op.where(is_flat, node.constant(np.float32(1)), scale), "scale")
    point = node.emit(relax.op.divide(node.emit(relax.op.negative(low), "point"), scale), "point")
    point = node.emit(relax.op.astype(node.emit(relax.op.round(point), "point"), "uint8"), "point")
    return quantized(node, as_value(x), scale, point, "uint8"), scale, point
