"""Quantized operators of ONNX Runtime's own domain: dequantized, computed in float, quantized. Graph passes turn that
form into integer kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from ...ir import dims_of
from .broadcasting import broadcastable
from .composition import channels_first, channels_last, permuted, standard
from .integers import (
    along,
    as_levels,
    dynamic_parameters,
    given,
    is_stated,
    matmul_sums,
    qlinear_convolution,
)
from .linear import product, scaled
from .node import MICROSOFT, OnnxNode, Results, Tensor, operator
from .quantization import quantized, real


def _real(node: OnnxNode, first: int, part: str = "real") -> Tensor:
    """Inputs ``first`` (levels), ``first + 1`` (scale) and ``first + 2`` (zero point) as floats."""
    return given(node, first, first + 1, first + 2, part=part)


def _levels(node: OnnxNode, y: Tensor, scale: int, zero: int) -> relax.Var:
    return as_levels(node, y, scale, zero, node.dtype(0))


@operator("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def binary(node: OnnxNode) -> Results:
    op = relax.op.add if node.op == "QLinearAdd" else relax.op.multiply
    operands = [node.constant(_real(node, i, part)) for i, part in ((0, "left"), (3, "right"))]
    return _levels(node, node.emit(op(*broadcastable(node, operands)), "result"), 6, 7)


@operator("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean", domain=MICROSOFT)
def unary(node: OnnxNode) -> Results:
    """An operator of ONNX's on one operand, whose attributes it has."""
    attributes = {k: v for k, v in node.attributes.items() if k not in ("opset", "axes")}
    axes = [np.asarray(node.attributes["axes"], np.int64)] if node.attribute("axes") else []
    version = {"opset": int(node.attributes["opset"])} if "opset" in node.attributes else {}
    op = node.op.removeprefix("QLinear")
    return _levels(node, standard(node, op, [_real(node, 0), *axes], "result", **version, **attributes), 3, 4)


@operator("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def pool(node: OnnxNode) -> Results:
    last, rank = bool(node.attribute("channels_last", 0)), node.rank(0)
    x = channels_first(node, _real(node, 0), rank) if last else _real(node, 0)
    attributes = {k: v for k, v in node.attributes.items() if k != "channels_last"}
    y = standard(node, node.op.removeprefix("QLinear"), [x], "result", **attributes)
    return _levels(node, channels_last(node, y, rank) if last else y, 3, 4)


@operator("QLinearConcat", domain=MICROSOFT)
def concat(node: OnnxNode) -> Results:
    """Scale and zero point of the result come first, then the operands with theirs."""
    operands = [_real(node, i, f"part{i // 3}") for i in range(2, len(node.inputs) - 2, 3)]
    y = standard(node, "Concat", operands, "result", axis=int(node.attribute("axis", 0)))
    return as_levels(node, y, 0, 1)


@operator("QLinearWhere", domain=MICROSOFT)
def where(node: OnnxNode) -> Results:
    y = standard(node, "Where", [node.value(0), _real(node, 1, "left"), _real(node, 4, "right")], "result")
    return as_levels(node, y, 7, 8)


@operator("QLinearConv", domain=MICROSOFT)
def convolution(node: OnnxNode) -> Results:
    """ONNX's, but that the channels may be last."""
    rank = node.rank(0)
    if not node.attribute("channels_last", 0):
        return qlinear_convolution(node)
    x = channels_first(node, node.value(0), rank)
    return channels_last(node, qlinear_convolution(replace(node, inputs=(x, *node.inputs[1:]))), rank)


@operator("QGemm", domain=MICROSOFT)
def gemm(node: OnnxNode) -> Results:
    """``alpha · (A B + C)``; C is of int32 in units of the operands' scales. Without a scale the result is float."""
    a, b = given(node, 0, 1, 2, part="left"), given(node, 3, 4, 5, 0 if node.attribute("transB", 0) else 1, "right")
    a = permuted(node, a, [1, 0], "left") if node.attribute("transA", 0) else a
    b = permuted(node, b, [1, 0], "right") if node.attribute("transB", 0) else b
    y = product(node, node.constant(a), node.constant(b))
    if node.has(6):
        unit = [along(node, i, 2, 1) for i in (1, 4)]
        if is_stated(node, 1, 4, 6):
            addend = node.known(6, "an addend") * (unit[0] * unit[1]).astype(np.float32)
            y = node.emit(relax.op.add(y, node.constant(addend.astype(np.float32))), "sum")
        else:
            factor = node.emit(relax.op.multiply(*map(node.constant, unit)), "unit")
            addend = node.emit(relax.op.multiply(real(node, node.value(6)), factor), "addend")
            y = node.emit(relax.op.add(y, addend), "sum")
    y = scaled(node, y, float(node.attribute("alpha", 1.0)), "scaled")
    return as_levels(node, y, 7, 8) if node.has(7) else y


def _scaled_sums(node: OnnxNode, sums: relax.Var, scales: tuple[Tensor, Tensor], bias: int) -> relax.Var:
    factor = node.emit(relax.op.multiply(*(real(node, s) for s in scales)), "factor")
    y = node.emit(relax.op.multiply(node.emit(relax.op.astype(sums, "float32"), "sums"), factor))
    return node.emit(relax.op.add(y, node.expr(bias))) if node.has(bias) else y


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: OnnxNode) -> Results:
    if is_stated(node, 2, 3, 4, 5):
        a, b = given(node, 0, 2, 4, -2, "left"), given(node, 1, 3, 5, -1, "right")
        y = product(node, node.constant(a), node.constant(b))
        return node.emit(relax.op.add(y, node.expr(6))) if node.has(6) else y
    sums = matmul_sums(node, (0, 4), (1, 5))
    rank = len(dims_of(sums))
    return _scaled_sums(node, sums, (along(node, 2, rank, -2), along(node, 3, rank, -1)), 6)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: OnnxNode) -> Results:
    """The left operand is quantized by its own range."""
    scale, point = dynamic_parameters(node, node.expr(0))
    levels = quantized(node, node.value(0), scale, point, "uint8")
    inner = replace(node, inputs=(levels, node.value(1), point, node.value(3) if node.has(3) else None))
    sums = matmul_sums(inner, (0, 2), (1, 3))
    return _scaled_sums(node, sums, (scale, along(node, 2, len(dims_of(sums)), -1)), 4)


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Bytes [..., n] as the levels [..., n · 8 / bits] they hold, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & (2 ** bits - 1)).reshape(*packed.shape[:-1], -1)


@operator("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(node: OnnxNode) -> Results:
    """A product with a weight of 2, 4 or 8 bits, in blocks with a scale and a zero point each, which is dequantized
    here."""
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size", 0))
    rows, columns = int(node.attribute("K", 0)), int(node.attribute("N", 0))
    packed, scales = node.known(1, "a weight"), node.known(2, "scales")
    if node.has(4) or node.attribute("weight_prepacked", 0):
        raise node.unsupported("with reordered or prepacked weights")
    blocks = -(-rows // block) if block > 0 else 0
    if bits not in (2, 4, 8) or packed.size != columns * blocks * block * bits // 8 or scales.size != columns * blocks:
        raise node.fault("the weight does not fit the attributes", found=packed.shape,
                         expected=f"{columns} columns of {blocks} blocks of {block} {bits}-bit levels")
    levels = unpacked(packed.reshape(columns, blocks, -1), bits).astype(np.float32)
    zero: np.ndarray = np.full((), 2 ** (bits - 1), np.float32)
    if node.has(3):
        points = node.known(3, "zero points")
        if points.dtype == np.uint8:
            points = unpacked(points.reshape(columns, -1), bits)[:, :blocks]
        zero = points.astype(np.float32).reshape(columns, blocks, 1)
    weight = (levels - zero) * scales.astype(np.float32).reshape(columns, blocks, 1)
    weight = weight.reshape(columns, -1)[:, :rows].T
    y = product(node, node.expr(0), node.constant(np.ascontiguousarray(weight)))
    return node.emit(relax.op.add(y, node.expr(5))) if node.has(5) else y


@operator("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: OnnxNode) -> Results:
    """Rows of a table that is quantized in blocks; it is dequantized here."""
    table, scales = node.known(0, "a table"), node.known(2, "scales").astype(np.float32)
    bits, zero = int(node.attribute("bits", 4)), np.asarray(0, np.float32)
    if table.dtype == np.uint8:
        table = unpacked(table, bits) if bits < 8 else table
        zero = np.asarray(2 ** (bits - 1), np.float32)
    axis = node.axis(int(node.attribute("quantize_axis", 1)), table.ndim)
    block = int(node.attribute("block_size", 128)) or table.shape[axis]
    if block < 1 or scales.ndim != table.ndim or scales.shape[axis] != -(-table.shape[axis] // block):
        raise node.fault("the scales do not fit the blocks", found=scales.shape, expected=f"blocks of {block}")

    def spread(values: np.ndarray) -> np.ndarray:
        return values.take(np.arange(table.shape[axis]) // block, axis)

    if node.has(3):
        points = node.known(3, "zero points")
        points = unpacked(points, bits) if points.dtype == np.uint8 and bits < 8 else points
        zero = spread(points.take(np.arange(scales.shape[axis]), axis).astype(np.float32))
    real_table = (table.astype(np.float32) - zero) * spread(scales)
    return standard(node, "Gather", [real_table, node.value(1)], axis=int(node.attribute("gather_axis", 0)))
