"""Products of quantized operands.

Where scales and zero points are known, a quantized product is that of the dequantized operands, quantized: the form
that graph passes turn into integer kernels. Otherwise, and where the result is the sums themselves, these are computed
exactly: in float32 while no sum can reach 2^24, below which it holds all integers, else in int32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from ...ir import Expr, dims_of
from .casts import convert
from .convolutions import convolution
from .node import OnnxNode, Results, Tensor, operator
from .quantization import RANGES, dequantized, is_zero, quantized, real, reshaped

_EXACT_IN_FLOAT32 = 2 ** 24


def dims_of_value(value: Tensor) -> tuple[object, ...]:
    return dims_of(value) if isinstance(value, relax.Var) else value.shape


def as_value(expr: Expr) -> Tensor:
    """A variable, or the array of a constant."""
    return expr if isinstance(expr, relax.Var) else expr.value.numpy()


def along(node: OnnxNode, index: int, rank: int, axis: int) -> Tensor:
    """Input ``index``, one number or one for each element of ``axis``, in a shape that broadcasts against ``rank``
    axes; of more than one dimension it broadcasts as it is."""
    value = node.value(index)
    dims = dims_of_value(value)
    if all(isinstance(d, int) and d == 1 for d in dims):
        return reshaped(node, value, ())
    if len(dims) > 1 or rank == 1:
        return value
    return reshaped(node, value, tuple(-1 if i == axis % rank else 1 for i in range(rank)))


def centred(node: OnnxNode, levels: int, zero: int | None, axis: int, dtype: str = "int32") -> Tensor:
    """Input ``levels`` less its zero point, as ``dtype``; a zero point with several elements belongs to ``axis``."""
    x = node.value(levels)
    point = along(node, zero, len(node.dims(levels)), axis) if zero is not None and node.has(zero) else None
    if isinstance(x, np.ndarray) and (point is None or isinstance(point, np.ndarray)):
        return (x.astype(np.int32) - (0 if point is None else point.astype(np.int32))).astype(dtype)
    x = convert(node, x, dtype)
    if is_zero(point):
        return x
    return node.emit(relax.op.subtract(node.constant(x), node.constant(convert(node, point, dtype))), "centred")


def _largest(node: OnnxNode, levels: int, zero: int | None) -> int:
    """No centred level of input ``levels`` is larger."""
    low, high = RANGES[node.dtype(levels)]
    if zero is None or not node.has(zero):
        return max(-low, high)
    if not node.is_known(zero):
        return high - low
    points = node.known(zero, "a zero point").astype(np.int64)
    return int(max((high - points).max(), (points - low).max()))


def matmul_sums(node: OnnxNode, a: tuple[int, int | None], b: tuple[int, int | None]) -> relax.Var:
    """The product of two centred operands, each given by its levels' and its zero point's input, exact in int32."""
    for levels, _ in (a, b):
        if node.dtype(levels) not in RANGES:
            raise node.unsupported(f"of elements of type {node.dtype(levels)}")
    weight = centred(node, *b, -1) if node.is_known(b[0]) and (b[1] is None or node.is_known(b[1]) or
                                                               not node.has(b[1])) else None
    length, largest = node.numbers(node.dims(b[0]), "the weight")[-2 if node.rank(b[0]) > 1 else 0], _largest(node, *a)
    if isinstance(weight, np.ndarray) and weight.ndim == 2:
        return _in_parts(node, node.constant(centred(node, *a, -2, "float32")), weight, largest)
    bound = length * largest * _largest(node, *b)
    dtype = "float32" if bound < _EXACT_IN_FLOAT32 else "int32"
    left, right = centred(node, *a, -2, dtype), centred(node, *b, -1, dtype)
    sums = node.emit(relax.op.matmul(node.constant(left), node.constant(right)), "sums")
    return sums if dtype == "int32" else node.emit(relax.op.astype(sums, "int32"))


def _in_parts(node: OnnxNode, a: Expr, weight: np.ndarray, largest: int) -> relax.Var:
    """The product with a known matrix, cut along the sums so that each part is exact in float32."""
    rows, total, start = np.abs(weight.astype(np.int64)) * largest, None, 0
    while start < len(rows) or total is None:
        fits = np.cumsum(rows[start:], axis=0).max(axis=1, initial=0) < _EXACT_IN_FLOAT32
        end = min(start + max(int(fits.sum()), 1), len(rows))
        axis = len(dims_of(a)) - 1
        part = a if (start, end) == (0, len(rows)) else \
            node.emit(relax.op.strided_slice(a, [axis], [start], [end]), "part")
        product = node.emit(relax.op.matmul(part, node.constant(weight[start:end].astype(np.float32))), "sums")
        product = node.emit(relax.op.astype(product, "int32"))
        total = product if total is None else node.emit(relax.op.add(total, product))
        start = end
    return total


@operator("MatMulInteger")
def matmul_integer(node: OnnxNode) -> Results:
    return matmul_sums(node, (0, 2), (1, 3))


def _convolution_sums(node: OnnxNode, x: tuple[int, int | None], w: tuple[int, int | None]) -> relax.Var:
    """The convolution of two centred operands, exact in int32."""
    weight = centred(node, *w, 0)
    size = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).sum(axis=1).max(initial=0) \
        if isinstance(weight, np.ndarray) else int(np.prod(node.shape(w[0])[1:])) * _largest(node, *w)
    dtype = "float32" if size * _largest(node, *x) < _EXACT_IN_FLOAT32 else "int32"
    operands = (centred(node, *x, 1, dtype), convert(node, weight, dtype))
    sums = convolution(replace(node, name=f"{node.name}.sums", inputs=operands))
    return sums if dtype == "int32" else node.emit(relax.op.astype(sums, "int32"))


@operator("ConvInteger")
def convolution_integer(node: OnnxNode) -> Results:
    return _convolution_sums(node, (0, 2), (1, 3))


def is_stated(node: OnnxNode, *parameters: int) -> bool:
    """Whether these scales and zero points are known, or left out."""
    return all(node.is_known(i) or not node.has(i) for i in parameters)


def given(node: OnnxNode, levels: int, scale: int, zero: int, axis: int = -1, part: str = "real") -> Tensor:
    """Input ``levels`` dequantized, by scale and zero point of the tensor or of ``axis``."""
    rank = len(node.dims(levels))
    s = along(node, scale, rank, axis)
    z = along(node, zero, rank, axis) if node.has(zero) else None
    x = node.value(levels)
    if isinstance(x, np.ndarray) and isinstance(s, np.ndarray) and (z is None or isinstance(z, np.ndarray)):
        steps = x.astype(np.float32) - (0 if z is None else z.astype(np.float32))
        return (steps * s.astype(np.float32)).astype(np.float32)
    return dequantized(node, x, s, z, part)


def as_levels(node: OnnxNode, y: Tensor, scale: int, zero: int, default: str = "uint8") -> relax.Var:
    """``y`` quantized by the scale and the zero point that inputs hold, each one number."""
    s, z = (reshaped(node, node.value(i), ()) if node.has(i) else None for i in (scale, zero))
    if s is None:
        raise node.fault("the result has no scale")
    return quantized(node, y, s, z, node.dtype(zero) if node.has(zero) else default)


def _requantized(node: OnnxNode, sums: relax.Var, scales: tuple[Tensor, Tensor], target: tuple[int, int]) -> relax.Var:
    """``sums`` times the operands' scales as levels of the result, whose scale and zero point ``target`` are inputs."""
    factor = node.emit(relax.op.multiply(real(node, scales[0]), real(node, scales[1])), "factor")
    product = node.emit(relax.op.multiply(node.emit(relax.op.astype(sums, "float32"), "sums"), factor), "sums")
    return as_levels(node, product, *target)


@operator("QLinearMatMul")
def qlinear_matmul(node: OnnxNode) -> Results:
    if is_stated(node, 1, 2, 4, 5, 6, 7):
        left, right = given(node, 0, 1, 2, -2, "left"), given(node, 3, 4, 5, -1, "right")
        return as_levels(node, node.emit(relax.op.matmul(node.constant(left), node.constant(right)), "product"), 6, 7)
    sums = matmul_sums(replace(node, name=f"{node.name}.sums"), (0, 2), (3, 5))
    rank = len(dims_of(sums))
    return _requantized(node, sums, (along(node, 1, rank, -2), along(node, 4, rank, -1)), (6, 7))


@operator("QLinearConv")
def qlinear_convolution(node: OnnxNode) -> Results:
    """The bias is of int32 in units of the product of the scales."""
    if is_stated(node, 1, 2, 4, 5, 6, 7, 8):
        scales = along(node, 1, 1, 0).astype(np.float32), node.known(4, "a scale").reshape(-1).astype(np.float32)
        bias = (node.known(8, "a bias") * (scales[0] * scales[1]),) if node.has(8) else ()
        operands = (given(node, 0, 1, 2, 1, "data"), given(node, 3, 4, 5, 0, "weight"), *bias)
        return as_levels(node, convolution(replace(node, name=f"{node.name}.real", inputs=operands)), 6, 7)
    sums = _convolution_sums(replace(node, name=f"{node.name}.sums"), (0, 2), (3, 5))
    rank = len(dims_of(sums))
    if node.has(8):
        sums = node.emit(relax.op.add(sums, node.constant(along(node, 8, rank, 1))), "sums")
    return _requantized(node, sums, (along(node, 1, rank, 1), along(node, 4, rank, 1)), (6, 7))


def dynamic_parameters(node: OnnxNode, x: Expr) -> tuple[relax.Var, relax.Var]:
    """Scale and zero point of uint8 levels for the range of ``x`` and 0; the scale of a tensor of zeros is 1."""
    zero = node.constant(np.float32(0))
    low = node.emit(relax.op.minimum(node.emit(relax.op.min(x), "low"), zero), "low")
    high = node.emit(relax.op.maximum(node.emit(relax.op.max(x), "high"), zero), "high")
    extent = node.emit(relax.op.subtract(high, low), "extent")
    scale = node.emit(relax.op.divide(extent, node.constant(np.float32(255))), "scale")
    is_flat = node.emit(relax.op.equal(scale, zero), "flat")
    scale = node.emit(relax.op.where(is_flat, node.constant(np.float32(1)), scale), "scale")
    point = node.emit(relax.op.divide(node.emit(relax.op.negative(low), "point"), scale), "point")
    return scale, node.emit(relax.op.astype(node.emit(relax.op.round(point), "point"), "uint8"), "point")


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: OnnxNode) -> Results:
    scale, point = dynamic_parameters(node, node.expr(0))
    return quantized(node, node.value(0), scale, point, "uint8"), scale, point
