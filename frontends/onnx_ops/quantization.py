"""Quantization as the model states it, by its definition: float operations between integers.

Scales and zero points may be known or not, of the whole tensor, of an axis, or of blocks along it.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import is_equal_dim
from ...ir import Expr, dims_of
from ..onnx_types import type_name
from .casts import SMALL_FLOATS, convert, small_float
from .node import MICROSOFT, OnnxNode, Results, Tensor, normal_dtype, operator

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-2 ** 15, 2 ** 15 - 1), "uint16": (0, 2 ** 16 - 1),
          "int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(node: OnnxNode) -> Results:
    """``clip(round_half_even(x / scale) + zero_point)``; floats of 8 or 4 bits are rounded to without a zero point."""
    dtype = node.declared_dtype(2) if node.has(2) else type_name(node.attribute("output_dtype", 0)) or "uint8"
    scale, zero = parameter(node, 1), parameter(node, 2) if node.has(2) else None
    if dtype in SMALL_FLOATS:
        quotient = node.emit(relax.op.divide(real(node, node.value(0)), real(node, scale)), "quotient")
        return small_float(node, quotient, SMALL_FLOATS[dtype], saturate=bool(node.attribute("saturate", 1)))
    return quantized(node, node.value(0), scale, zero, dtype)


def quantized(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: str) -> relax.Var:
    """The levels of ``x`` as integers of type ``dtype``."""
    if dtype not in RANGES:
        raise node.unsupported(f"to {dtype}")
    steps = node.emit(relax.op.divide(real(node, x), real(node, scale)), "steps")
    steps = node.emit(relax.op.round(steps), "steps")
    if not is_zero(zero):
        steps = node.emit(relax.op.add(steps, real(node, zero)), "steps")
    low, high = RANGES[dtype]
    return node.emit(relax.op.astype(node.emit(relax.op.clip(steps, float(low), float(high)), "steps"),
                                     normal_dtype(dtype)))


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(node: OnnxNode) -> Results:
    return dequantized(node, node.value(0), parameter(node, 1), parameter(node, 2) if node.has(2) else None)


def dequantized(node: OnnxNode, levels: Tensor, scale: Tensor, zero: Tensor | None,
                part: str | None = None) -> relax.Var:
    """``(levels - zero) · scale`` in float32."""
    steps = real(node, levels)
    if not is_zero(zero):
        steps = node.emit(relax.op.subtract(steps, real(node, zero)), part)
    return node.emit(relax.op.multiply(steps, real(node, scale)), part)


def is_zero(zero: Tensor | None) -> bool:
    """Whether a zero point is left out or known to be 0."""
    return zero is None or (isinstance(zero, np.ndarray) and not zero.astype(np.float32).any())


def real(node: OnnxNode, value: Tensor) -> Expr:
    """``value`` as float32."""
    return node.constant(value.astype(np.float32) if isinstance(value, np.ndarray) else convert(node, value, "float32"))


def parameter(node: OnnxNode, index: int, data: int = 0) -> Tensor:
    """The scale or zero point that input ``index`` is, in a shape that broadcasts against input ``data``."""
    value, source = node.value(index), node.dims(data)
    if index == 1 and isinstance(value, np.ndarray) and not ((value > 0) & np.isfinite(value)).all():
        raise node.fault("a scale is not a number above 0", found=value.reshape(-1)[:5].tolist())
    dims = dims_of(value) if isinstance(value, relax.Var) else value.shape
    block = int(node.attribute("block_size", 0))
    if all(d == 1 for d in dims) and not block:
        return reshaped(node, value, ())
    axis = node.axis(int(node.attribute("axis", 1)), len(source))
    if not block:
        if len(dims) != 1 or not is_equal_dim(dims[0], source[axis]):
            raise node.fault("scale or zero point does not fit the axis", found=dims, expected=(source[axis],))
        return reshaped(node, value, tuple(-1 if i == axis else 1 for i in range(len(source))))
    extent = node.numbers(source, "the input")[axis]
    if block < 0 or len(dims) != len(source) or dims[axis] != -(-extent // block):
        raise node.fault("scale or zero point does not fit the blocks", found=dims,
                         expected=f"{-(-extent // block)} blocks of {block} along axis {axis}")
    if isinstance(value, np.ndarray):
        return value.take(np.arange(extent) // block, axis)
    block = max(min(block, extent), 1)
    repeated = node.emit(relax.op.repeat(value, block, axis), "blocks")
    return repeated if extent % block == 0 else \
        node.emit(relax.op.strided_slice(repeated, [axis], [0], [extent]), "blocks")


def reshaped(node: OnnxNode, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``value`` in another shape, of which one extent may be -1."""
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    return value if len(shape) == len(value.ty.shape) == 0 else node.emit(relax.op.reshape(value, shape), "parameter")
