"""Quantization as the model states it, in plain float operations between integers.

narrowcast decides precisions itself; a model that is quantized already keeps its own rounding.
"""

from __future__ import annotations

import numpy as np
from onnx import helper
from tvm import relax

from ...ir import Expr
from .elementwise import convert
from .node import OnnxNode, Results, operator

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-2 ** 15, 2 ** 15 - 1), "uint16": (0, 2 ** 16 - 1)}


@operator("QuantizeLinear")
def quantize_linear(node: OnnxNode) -> Results:
    """``clip(round_half_even(x / scale) + zero_point)``."""
    dtype = node.dtype(2) if node.has(2) else "uint8"
    if node.attribute("output_dtype", 0):
        dtype = str(helper.tensor_dtype_to_np_dtype(node.attribute("output_dtype")))
    if dtype not in _RANGES:
        raise node.unsupported(f"to {dtype}")
    scale, zero = _parameters(node)
    steps = node.emit(relax.op.round(node.emit(relax.op.divide(_real(node, 0), scale))))
    steps = steps if zero is None else node.emit(relax.op.add(steps, zero))
    low, high = _RANGES[dtype]
    return node.emit(relax.op.astype(node.emit(relax.op.clip(steps, float(low), float(high))), dtype))


@operator("DequantizeLinear")
def dequantize_linear(node: OnnxNode) -> Results:
    """``(q - zero_point) · scale``."""
    scale, zero = _parameters(node)
    steps = _real(node, 0)
    steps = steps if zero is None else node.emit(relax.op.subtract(steps, zero))
    return node.emit(relax.op.multiply(steps, scale))


def _real(node: OnnxNode, index: int) -> Expr:
    return node.constant(convert(node, node.value(index), "float32"))


def _parameters(node: OnnxNode) -> tuple[Expr, Expr | None]:
    """Scale and zero point as float32 constants that broadcast; None for a zero point of 0."""
    if node.attribute("block_size", 0):
        raise node.unsupported("in blocks")
    scale = node.known(1, "a scale").astype(np.float32)
    zero = node.known(2, "a zero point").astype(np.float32) if node.has(2) else None
    shape: tuple[int, ...] = ()
    if scale.size > 1:
        source = node.shape(0)
        axis = node.axis(int(node.attribute("axis", 1)), len(source))
        shape = tuple(d if i == axis else 1 for i, d in enumerate(source))
        if scale.shape != (source[axis],):
            raise node.fault("the scale does not fit the axis", found=scale.shape, expected=(source[axis],))
    if zero is not None and zero.size != scale.size:
        raise node.fault("scale and zero point differ in shape", found=(scale.shape, zero.shape))
    if zero is None or not zero.any():
        return node.constant(scale.reshape(shape)), None
    return node.constant(scale.reshape(shape)), node.constant(zero.reshape(shape))
