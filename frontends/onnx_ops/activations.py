"""Activation functions."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...dims import is_equal_dim, product_of
from ...ir import Expr, dims_of, dtype_of
from ...operators import custom
from ..extents import positions
from .broadcasting import broadcastable
from .node import MICROSOFT, OnnxNode, Results, operator


def _number(node: OnnxNode, value: float) -> Expr:
    return node.constant(np.float32(value))


@operator("Relu")
def relu(node: OnnxNode) -> Results:
    return node.emit(relax.op.nn.relu(node.expr(0)))


@operator("LeakyRelu")
def leaky_relu(node: OnnxNode) -> Results:
    return node.emit(relax.op.nn.leakyrelu(node.expr(0), float(node.attribute("alpha", 0.01))))


@operator("PRelu")
def prelu(node: OnnxNode) -> Results:
    """``max(x, 0) + slope · min(x, 0)``; one known slope for all is a leaky ReLU."""
    x, slope = node.expr(0), node.expr(1)
    is_float = dtype_of(x) == "float32"
    if is_float and node.is_known(1) and node.known(1, "a slope").size == 1:
        return node.emit(relax.op.nn.leakyrelu(x, float(node.known(1, "a slope").reshape(()))))
    dims, shape = node.dims(0), node.dims(1)
    if len(shape) == 1 and len(dims) > 2 and is_equal_dim(shape[0], dims[1]) and not is_equal_dim(shape[0], dims[-1]):
        slope = node.emit(relax.op.reshape(slope, (*shape, *[1] * (len(dims) - 2))), "slope")  # As up to opset 6.
    zero = node.constant(np.asarray(0, node.dtype(0)))
    operands = broadcastable(node, [node.emit(relax.op.minimum(x, zero), "negative"), slope])
    negative = node.emit(relax.op.multiply(*operands), "negative")
    positive = relax.op.nn.relu(x) if is_float else relax.op.maximum(x, zero)
    return node.emit(relax.op.add(node.emit(positive), negative))


@operator("Clip")
def clip(node: OnnxNode) -> Results:
    """Known bounds become ``clip`` or ``relu``; others minimum and maximum."""
    low, high = (_bound(node, i, a) for i, a in ((1, "min"), (2, "max")))
    x = node.expr(0)
    if isinstance(low, float) and isinstance(high, float) and node.dtype(0) == "float32":
        if low == 0 and math.isinf(high):
            return node.emit(relax.op.nn.relu(x))
        if low <= high and math.isfinite(low) and math.isfinite(high):
            return node.emit(relax.op.clip(x, low, high))
    for bound, op, nothing in ((low, relax.op.maximum, -math.inf), (high, relax.op.minimum, math.inf)):
        if bound != nothing or not isinstance(bound, float):
            x = node.emit(op(x, node.constant(bound, node.dtype(0)) if isinstance(bound, float) else bound))
    return x if isinstance(x, relax.Var) else node.emit(x)


def _bound(node: OnnxNode, index: int, attribute: str) -> float | Expr:
    nothing = -math.inf if attribute == "min" else math.inf
    if attribute in node.attributes:
        limit = float(np.finfo(np.float32).max)
        value = float(node.attributes[attribute])
        return nothing if abs(value) >= limit else value
    if not node.has(index):
        return nothing
    if node.is_known(index) and node.known(index, attribute).size == 1:
        return float(node.known(index, attribute).reshape(()))
    return node.expr(index)


@operator("Gelu")
@operator("Gelu", domain=MICROSOFT)
def gelu(node: OnnxNode) -> Results:
    kind = node.attribute("approximate", "none")
    if kind not in ("none", "tanh"):
        raise node.fault("the approximation is unknown", found=kind, expected="none or tanh")
    return node.emit((relax.op.nn.gelu_tanh if kind == "tanh" else relax.op.nn.gelu)(node.expr(0)))


@operator("HardSwish")
def hard_swish(node: OnnxNode) -> Results:
    return node.emit(custom.hard_swish(node.expr(0)))


@operator("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Results:
    """Slope 1/6 and offset 1/2 (to float32) are PyTorch's hard sigmoid; others are written out."""
    alpha, beta = float(node.attribute("alpha", 0.2)), float(node.attribute("beta", 0.5))
    x = node.expr(0)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return node.emit(custom.hard_sigmoid(x))
    line = node.emit(relax.op.multiply(x, _number(node, alpha)))
    return node.emit(relax.op.clip(node.emit(relax.op.add(line, _number(node, beta))), 0.0, 1.0))


@operator("Swish")
def swish(node: OnnxNode) -> Results:
    x, alpha = node.expr(0), float(node.attribute("alpha", 1.0))
    if alpha == 1.0:
        return node.emit(relax.op.nn.silu(x))
    gate = node.emit(relax.op.sigmoid(node.emit(relax.op.multiply(x, _number(node, alpha)))))
    return node.emit(relax.op.multiply(x, gate))


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: OnnxNode) -> Results:
    x = node.expr(0)
    gate = node.emit(relax.op.multiply(x, _number(node, float(node.attribute("alpha", 1.702)))))
    return node.emit(relax.op.multiply(x, node.emit(relax.op.sigmoid(gate))))


@operator("Elu", "Celu", "Selu")
def elu(node: OnnxNode) -> Results:
    """``scale · (max(x, 0) + a · (exp(min(x, 0) / d) - 1))``."""
    scale, divisor = 1.0, 1.0
    alpha = float(node.attribute("alpha", 1.67326319217681884765625 if node.op == "Selu" else 1.0))
    if node.op == "Selu":
        scale = float(node.attribute("gamma", 1.05070102214813232421875))
    if node.op == "Celu":
        divisor = alpha
    x = node.expr(0)
    below = node.emit(relax.op.minimum(x, _number(node, 0)), "below")
    below = node.emit(relax.op.multiply(below, _number(node, 1 / divisor)), "below") if divisor != 1 else below
    curve = node.emit(relax.op.subtract(node.emit(relax.op.exp(below), "below"), _number(node, 1)), "below")
    curve = node.emit(relax.op.multiply(curve, _number(node, alpha * scale)), "below")
    above = node.emit(relax.op.nn.relu(x))
    above = node.emit(relax.op.multiply(above, _number(node, scale))) if scale != 1 else above
    return node.emit(relax.op.add(above, curve))


@operator("Softplus")
def softplus(node: OnnxNode) -> Results:
    return node.emit(_softplus(node))


def _softplus(node: OnnxNode) -> Expr:
    """``max(x, 0) + log(1 + exp(-|x|))``, which does not overflow."""
    x = node.expr(0)
    tail = node.emit(relax.op.exp(node.emit(relax.op.negative(node.emit(relax.op.abs(x), "tail")), "tail")), "tail")
    tail = node.emit(relax.op.log(node.emit(relax.op.add(tail, _number(node, 1)), "tail")), "tail")
    return relax.op.add(node.emit(relax.op.nn.relu(x)), tail)


@operator("Mish")
def mish(node: OnnxNode) -> Results:
    return node.emit(relax.op.multiply(node.expr(0), node.emit(relax.op.tanh(node.emit(_softplus(node))))))


@operator("Softsign")
def softsign(node: OnnxNode) -> Results:
    x = node.expr(0)
    size = node.emit(relax.op.add(node.emit(relax.op.abs(x), "size"), _number(node, 1)), "size")
    return node.emit(relax.op.divide(x, size))


@operator("ThresholdedRelu")
def thresholded_relu(node: OnnxNode) -> Results:
    x = node.expr(0)
    above = node.emit(relax.op.greater(x, _number(node, float(node.attribute("alpha", 1.0)))), "above")
    return node.emit(relax.op.where(above, x, _number(node, 0)))


@operator("Shrink")
def shrink(node: OnnxNode) -> Results:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, else 0."""
    x = node.expr(0)
    limit, bias = float(node.attribute("lambd", 0.5)), float(node.attribute("bias", 0.0))
    low, high = -limit, limit
    if dtype_of(x) != "float32":  # The same numbers are outside of the next integers.
        if limit < 0 or not bias.is_integer():
            raise node.unsupported(f"on integers with lambd {limit} and bias {bias}")
        kind = np.iinfo(dtype_of(x))
        low, high = max(math.ceil(low), int(kind.min)), min(math.floor(high), int(kind.max))
    low, high, bias, zero = (node.constant(np.asarray(v, dtype_of(x))) for v in (low, high, bias, 0))
    below = node.emit(relax.op.less(x, low), "below")
    above = node.emit(relax.op.greater(x, high), "above")
    inner = node.emit(relax.op.where(above, node.emit(relax.op.subtract(x, bias), "above"), zero))
    return node.emit(relax.op.where(below, node.emit(relax.op.add(x, bias), "below"), inner))


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(node: OnnxNode) -> Results:
    """Up to opset 12 the axes from ``axis`` on are one; from 13 on ``axis`` is the only one."""
    shape = node.dims(0)
    old = node.opset < 13
    axis = node.axis(int(node.attribute("axis", 1 if old else -1)), len(shape)) if shape else 0
    x = node.expr(0)
    if not old or axis >= len(shape) - 1:
        return _soft(node, x, axis)
    flat = node.emit(relax.op.reshape(x, (product_of(shape[:axis]), product_of(shape[axis:]))), "flat")
    return node.emit(relax.op.reshape(_soft(node, flat, 1), shape))


def _soft(node: OnnxNode, x: Expr, axis: int) -> relax.Var:
    if node.op != "Hardmax":
        return node.emit((relax.op.nn.softmax if node.op == "Softmax" else relax.op.nn.log_softmax)(x, axis))
    best = node.emit(relax.op.argmax(x, axis, True), "best")
    dims = dims_of(x)
    places = positions(node.builder, node.name, dims[axis])
    index = node.emit(relax.op.reshape(places, [d if i == axis else 1 for i, d in enumerate(dims)]), "places")
    return node.emit(relax.op.astype(node.emit(relax.op.equal(best, index), "best"), "float32"))
