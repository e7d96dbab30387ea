"""Activation functions of ATen."""

from __future__ import annotations

import torch
from tvm import relax

from ...ir import Expr
from ...operators import custom
from .context import Context, Handler, Value, shape

_op = relax.op


def direct(op: Handler) -> Handler:
    """An activation that Relax, or ``operators.custom``, has as it is."""
    return lambda c, x: c.emit(op(c.expr(x)))


def gelu(c: Context, x: Value, *, approximate: str = "none") -> Expr:
    return c.emit((_op.nn.gelu_tanh if approximate == "tanh" else _op.nn.gelu)(c.expr(x)))


def leaky_relu(c: Context, x: Value, slope: float = 0.01) -> Expr:
    return c.emit(_op.nn.leakyrelu(c.expr(x), float(slope)))


def elu(c: Context, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    """``scale · (max(x, 0) + alpha · (exp(input_scale · min(x, 0)) - 1))``."""
    y = c.expr(x)
    negative = c.emit(_op.minimum(y, c.expr(0.0)), "negative")
    if input_scale != 1:
        negative = c.emit(_op.multiply(negative, c.expr(float(input_scale))), "negative")
    tail = c.emit(_op.subtract(c.emit(_op.exp(negative), "exp"), c.expr(1.0)), "tail")
    if alpha != 1:
        tail = c.emit(_op.multiply(tail, c.expr(float(alpha))), "tail")
    result = c.emit(_op.add(c.emit(_op.nn.relu(y), "positive"), tail))
    return result if scale == 1 else c.emit(_op.multiply(result, c.expr(float(scale))))


def rrelu(c: Context, x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
          *_: Value) -> Expr:
    if training:
        raise c.refuse("a randomized leaky ReLU has no translation in training form", hint="export in eval() mode")
    return leaky_relu(c, x, (lower + upper) / 2)


def celu(c: Context, x: Value, alpha: float = 1) -> Expr:
    return elu(c, x, alpha, 1, 1.0 / alpha)


def selu(c: Context, x: Value) -> Expr:
    """Klambauer et al., Self-Normalizing Neural Networks: the constants are the paper's."""
    return elu(c, x, 1.6732632423543772, 1.0507009873554805)


def prelu(c: Context, x: Value, weight: Value) -> Expr:
    slope = c.array(weight, "the slope of a PReLU")
    if slope.size > 1:
        slope = slope.reshape(-1, *([1] * (len(shape(x)) - 2)))
    y = c.expr(x)
    negative = c.emit(_op.minimum(y, c.expr(0.0)), "negative")
    scaled = c.emit(_op.multiply(negative, c.expr(torch.from_numpy(slope))), "scaled")
    return c.emit(_op.add(c.emit(_op.nn.relu(y), "positive"), scaled))


def softplus(c: Context, x: Value, beta: float = 1, threshold: float = 20) -> Expr:
    """``log(1 + exp(beta · x)) / beta``, computed as ``max(z, 0) + log(1 + exp(-|z|))``, which cannot overflow.

    Above the threshold PyTorch returns x, which this form equals to float32 rounding for thresholds of 15 and more.
    """
    if threshold < 15:
        raise c.refuse("softplus is supported for thresholds of 15 and more", found=threshold)
    y = c.expr(x)
    z = y if beta == 1 else c.emit(_op.multiply(y, c.expr(float(beta))), "scaled")
    decay = c.emit(_op.exp(c.emit(_op.negative(c.emit(_op.abs(z), "magnitude")), "negated")), "decay")
    log = c.emit(_op.log(c.emit(_op.add(decay, c.expr(1.0)), "shifted")), "log")
    result = c.emit(_op.add(c.emit(_op.nn.relu(z), "positive"), log))
    return result if beta == 1 else c.emit(_op.multiply(result, c.expr(1.0 / beta)))


def log_sigmoid(c: Context, x: Value) -> Expr:
    negated = c.emit(_op.negative(c.expr(x)), "negated")
    return c.emit(_op.negative(softplus(Context(c.builder, f"{c.name}.softplus", c.result), negated)))


def mish(c: Context, x: Value) -> Expr:
    soft = softplus(Context(c.builder, f"{c.name}.softplus", c.result), x)
    return c.emit(_op.multiply(c.expr(x), c.emit(_op.tanh(soft), "tanh")))


def hardshrink(c: Context, x: Value, lambd: float = 0.5) -> Expr:
    y = c.expr(x)
    keep = c.emit(_op.greater(c.emit(_op.abs(y), "magnitude"), c.expr(float(lambd))), "kept")
    return c.emit(_op.where(keep, y, c.expr(0.0)))


def threshold(c: Context, x: Value, limit: float, value: float) -> Expr:
    y = c.expr(x)
    keep = c.emit(_op.greater(y, c.expr(float(limit))), "kept")
    return c.emit(_op.where(keep, y, c.expr(float(value))))


def glu(c: Context, x: Value, dim: int = -1) -> Expr:
    halves = c.emit(_op.split(c.expr(x), 2, axis=dim % len(shape(x))), "halves")
    value, gate = (c.emit(relax.TupleGetItem(halves, i), p) for i, p in enumerate(("value", "gate")))
    return c.emit(_op.multiply(value, c.emit(_op.sigmoid(gate), "sigmoid")))


def hardtanh(c: Context, x: Value, low: float = -1, high: float = 1) -> Expr:
    return c.emit(_op.clip(c.expr(x, c.dtype), float(low), float(high)))


TABLE: dict[str, Handler] = {
    "relu": direct(_op.nn.relu), "sigmoid": direct(_op.sigmoid), "tanh": direct(_op.tanh), "silu": direct(_op.nn.silu),
    "hardswish": direct(custom.hard_swish), "hardsigmoid": direct(custom.hard_sigmoid),
    "relu6": lambda c, x: hardtanh(c, x, 0, 6), "hardtanh": hardtanh, "gelu": gelu, "leaky_relu": leaky_relu,
    "elu": elu, "celu": celu, "selu": selu, "rrelu": rrelu, "prelu": prelu, "_prelu_kernel": prelu,
    "softplus": softplus, "log_sigmoid": log_sigmoid, "mish": mish, "hardshrink": hardshrink,
    "threshold": threshold, "glu": glu,
}
