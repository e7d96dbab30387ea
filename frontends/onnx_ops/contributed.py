"""Operators of ONNX Runtime's own domain that its optimizer and its exporters leave in models: fused elementwise,
convolution and product operators, and forms of ONNX's operators that are older than those."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...ir import dims_of
from .broadcasting import broadcastable
from .composition import channels_first, channels_last, permuted, standard
from .integers import centred
from .linear import product, scaled
from .node import MICROSOFT, OnnxNode, Results, Tensor, operator


@operator("GatherND", "Trilu", domain=MICROSOFT)
def same(node: OnnxNode) -> Results:
    """Operators that ONNX has taken over as they are."""
    return standard(node, node.op, node.inputs, **node.attributes)


@operator("GridSample", domain=MICROSOFT)
def grid_sample(node: OnnxNode) -> Results:
    """As ONNX first took it over."""
    return standard(node, "GridSample", node.inputs, opset=16, **node.attributes)


@operator("Range", domain=MICROSOFT)
def range_(node: OnnxNode) -> Results:
    step = node.value(2) if node.has(2) else np.asarray(1, node.dtype(0))
    return standard(node, "Range", [node.value(0), node.value(1), step])


def _sum(node: OnnxNode, a: Tensor, b: Tensor, part: str | None = None) -> relax.Var:
    return node.emit(relax.op.add(*broadcastable(node, [node.constant(a), node.constant(b)])), part)


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: OnnxNode) -> Results:
    return node.emit(relax.op.nn.gelu(_sum(node, node.value(0), node.value(1))))


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(node: OnnxNode) -> Results:
    x = _sum(node, node.value(0), node.value(1)) if node.has(1) else node.expr(0)
    return node.emit(relax.op.nn.gelu_tanh(x))


@operator("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(node: OnnxNode) -> Results:
    """The left half times the GELU of the right half, after the bias."""
    x = _sum(node, node.value(0), node.value(1))
    axis = len(dims_of(x)) - 1
    width = node.numbers(dims_of(x), "the input")[axis] // 2
    left, right = (node.emit(relax.op.strided_slice(x, [axis], [i * width], [(i + 1) * width]), part)
                   for i, part in enumerate(("left", "right")))
    return node.emit(relax.op.multiply(left, node.emit(relax.op.nn.gelu(right), "gate")))


@operator("BiasAdd", domain=MICROSOFT)
def bias_add(node: OnnxNode) -> Results:
    return _sum(node, _sum(node, node.value(0), node.value(1)), node.value(2))


@operator("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(node: OnnxNode) -> Results:
    """Over all axes from ``axis`` on, as Softmax was defined up to opset 12."""
    axis = int(node.attribute("axis", 1))
    return standard(node, "Softmax", [_sum(node, node.value(0), node.value(1), "biased")], opset=12, axis=axis)


def _activated(node: OnnxNode, x: Tensor, parameters: tuple[float, ...]) -> Tensor:
    """``x`` through the activation that the node names, with its parameters in the order of the operator's."""
    names = {"Relu": (), "Tanh": (), "Sigmoid": (), "HardSwish": (), "LeakyRelu": ("alpha",),
             "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"), "Gelu": (), "Softmax": ("axis",)}
    activation = str(node.attribute("activation", ""))
    if not activation:
        return x
    if activation not in names:
        raise node.unsupported(f"with the activation {activation}")
    attributes: dict[str, Any] = dict(zip(names[activation], parameters, strict=False))
    return standard(node, activation, [x], opset=6 if activation == "Clip" else 20, **attributes)


def _convolved(node: OnnxNode, x: Tensor) -> Tensor:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {n: node.attributes[n] for n in names if n in node.attributes}
    operands = [x, node.value(1), *([node.value(2)] if node.has(2) else [])]
    return standard(node, "Conv", operands, **attributes)


def _finished(node: OnnxNode, y: Tensor) -> Tensor:
    y = _sum(node, y, node.value(3)) if node.has(3) else y
    return _activated(node, y, tuple(node.attribute("activation_params", ())))


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(node: OnnxNode) -> Results:
    """Convolution, then the fourth input added, then an activation."""
    return _finished(node, _convolved(node, node.value(0)))


@operator("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_convolution(node: OnnxNode) -> Results:
    """The same with the channels last, of the added input too; weights are as ever."""
    rank = node.rank(0)
    return _finished(node, channels_last(node, _convolved(node, channels_first(node, node.value(0), rank)), rank))


@operator("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: OnnxNode) -> Results:
    rank = node.rank(0)
    pooled = standard(node, "MaxPool", [channels_first(node, node.value(0), rank)], **node.attributes)
    return channels_last(node, pooled, rank)


def _operand(node: OnnxNode, index: int, side: str) -> Tensor:
    """A factor with its batch axes, then its matrix axes in the order that the product reads."""
    x, axes = node.value(index), list(range(node.rank(index)))
    if node.attribute(f"transBatch{side}", 0):  # The first axis is behind the batch axes.
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if node.attribute(f"trans{side}", 0):
        axes[-2:] = axes[:-3:-1]
    return x if axes == list(range(len(axes))) else permuted(node, x, axes, "transposed")


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: OnnxNode) -> Results:
    a, b = (node.constant(_operand(node, i, side)) for i, side in enumerate("AB"))
    return scaled(node, product(node, a, b), float(node.attribute("alpha", 1.0)))


@operator("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(node: OnnxNode) -> Results:
    return _activated(node, fused_matmul(node), _activation_parameters(node))


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: OnnxNode) -> Results:
    attributes = {n: node.attributes[n] for n in ("alpha", "beta", "transA", "transB") if n in node.attributes}
    return _activated(node, standard(node, "Gemm", node.inputs, **attributes), _activation_parameters(node))


def _activation_parameters(node: OnnxNode) -> tuple[float, ...]:
    if node.attribute("activation") == "Softmax":
        return (int(node.attribute("activation_axis", -1)),)
    names = (f"activation_{n}" for n in ("alpha", "beta", "gamma"))
    return tuple(node.attributes[n] for n in names if n in node.attributes)


@operator("Pad", domain=MICROSOFT)
def pad(node: OnnxNode) -> Results:
    """ONNX's, but that the widths may be a matrix of one row."""
    widths = node.known(1, "widths").reshape(-1)
    return standard(node, "Pad", [node.value(0), widths, *node.inputs[2:]], mode=node.attribute("mode", "constant"))


@operator("ExpandDims", domain=MICROSOFT)
def expand_dims(node: OnnxNode) -> Results:
    return standard(node, "Unsqueeze", [node.value(0), node.known(1, "an axis").reshape(-1).astype(np.int64)])


@operator("MulInteger", domain=MICROSOFT)
def multiply_integers(node: OnnxNode) -> Results:
    a, b = (node.constant(centred(node, i, i + 1, -1)) for i in (0, 2))
    return node.emit(relax.op.multiply(*broadcastable(node, [a, b])))


@operator("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(node: OnnxNode) -> Results:
    return node.emit(relax.op.matmul(*(node.constant(centred(node, i, None, -1)) for i in (0, 1))))


@operator("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(node: OnnxNode) -> Results:
    axes = np.asarray(node.attribute("axes", ()), np.int64)
    return standard(node, "ReduceSum", [centred(node, 0, None, -1), axes], keepdims=int(node.attribute("keepdims", 1)))


@operator("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(node: OnnxNode) -> Results:
    """Group normalization of the input, or of its sum with a skip connection and a bias, then SiLU where asked for."""
    x, rank = node.value(0), node.rank(0)
    if node.op == "SkipGroupNorm":
        skip = node.value(3)
        if node.rank(3) == 2:
            skip = standard(node, "Unsqueeze", [skip, np.arange(1, rank - 1)], "skip")
        x = _sum(node, x, skip, "sum")
        x = _sum(node, x, node.value(4), "sum") if node.has(4) else x
    total, last = x, bool(node.attribute("channels_last", 1))
    x = channels_first(node, x, rank) if last else x
    y = standard(node, "GroupNormalization", [x, node.value(1), node.value(2)],
                 num_groups=int(node.attribute("groups", 0)), epsilon=float(node.attribute("epsilon", 1e-5)))
    y = channels_last(node, y, rank) if last else y
    y = node.emit(relax.op.nn.silu(y)) if node.attribute("activation", 0) else y
    return (y, total) if node.op == "SkipGroupNorm" else y
