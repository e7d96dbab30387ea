"""Elementwise operators: arithmetic, comparison, logic, rounding, conversion of element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from tvm import relax

from ...dims import Dim, equal_dims
from ...ir import Expr, dims_of
from .broadcasting import broadcastable, fitted
from .casts import convert
from .generators import filled
from .node import OnnxNode, Results, operator

_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "Abs": relax.op.abs, "Acos": relax.op.acos, "Acosh": relax.op.acosh, "Asin": relax.op.asin,
    "Asinh": relax.op.asinh, "Atan": relax.op.atan, "Atanh": relax.op.atanh, "BitwiseNot": relax.op.bitwise_not,
    "Ceil": relax.op.ceil, "Cos": relax.op.cos, "Cosh": relax.op.cosh, "Erf": relax.op.erf, "Exp": relax.op.exp,
    "Floor": relax.op.floor, "IsNaN": relax.op.isnan, "Log": relax.op.log, "Neg": relax.op.negative,
    "Not": relax.op.logical_not, "Round": relax.op.round, "Sigmoid": relax.op.sigmoid, "Sign": relax.op.sign,
    "Sin": relax.op.sin, "Sinh": relax.op.sinh, "Sqrt": relax.op.sqrt, "Tan": relax.op.tan, "Tanh": relax.op.tanh,
}
_COMMUTATIVE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": relax.op.add, "Mul": relax.op.multiply, "And": relax.op.logical_and, "Or": relax.op.logical_or,
    "Xor": relax.op.logical_xor, "Equal": relax.op.equal, "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or, "BitwiseXor": relax.op.bitwise_xor,
}
_ORDERED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Sub": relax.op.subtract, "Greater": relax.op.greater, "GreaterOrEqual": relax.op.greater_equal,
    "Less": relax.op.less, "LessOrEqual": relax.op.less_equal,
}
_VARIADIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Max": relax.op.maximum, "Min": relax.op.minimum, "Sum": relax.op.add, "Mean": relax.op.add,
}
# Integers have no rounding, and no values that are not numbers.
_FLOAT_ONLY = ("Ceil", "Floor", "Round")


@operator(*_UNARY)
def unary(node: OnnxNode) -> Results:
    if node.op in _FLOAT_ONLY and node.dtype(0) != "float32":
        return node.value(0)
    if node.op in ("Abs", "Sign") and node.dtype(0).startswith("uint"):
        return node.value(0) if node.op == "Abs" else convert(node, convert(node, node.value(0), "bool"), node.dtype(0))
    return node.emit(_UNARY[node.op](node.expr(0)))


@operator(*_COMMUTATIVE)
def commutative(node: OnnxNode) -> Results:
    """The constant comes second, as the PyTorch frontend writes it."""
    a, b = broadcastable(node, [node.expr(0), node.expr(1)])
    if node.is_known(0) and not node.is_known(1):
        a, b = b, a
    if node.op == "Equal" and node.dtype(0) == "bool":  # LLVM code for it compares floats.
        return node.emit(relax.op.logical_not(node.emit(relax.op.logical_xor(a, b))))
    return node.emit(_COMMUTATIVE[node.op](a, b))


@operator(*_ORDERED)
def ordered(node: OnnxNode) -> Results:
    return node.emit(_ORDERED[node.op](*broadcastable(node, [node.expr(0), node.expr(1)])))


@operator(*_VARIADIC)
def variadic(node: OnnxNode) -> Results:
    values = broadcastable(node, [node.expr(i) for i in range(len(node.inputs))])
    result = reduce(lambda a, b: node.emit(_VARIADIC[node.op](a, b)), values)
    if node.op == "Mean" and len(values) > 1:
        return node.emit(relax.op.multiply(result, node.constant(np.float32(1 / len(values)))))
    return result if isinstance(result, relax.Var) else node.emit(result)


@operator("Reciprocal")
def reciprocal(node: OnnxNode) -> Results:
    return node.emit(relax.op.divide(node.constant(np.float32(1)), node.expr(0)))


@operator("IsInf")
def is_infinite(node: OnnxNode) -> Results:
    x = node.expr(0)
    positive, negative = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if positive and negative:
        return node.emit(relax.op.isinf(x))
    if not positive and not negative:
        return filled(node, node.dims(0), np.asarray(False))
    return node.emit(relax.op.equal(x, node.constant(np.float32(np.inf if positive else -np.inf))))


@operator("Where")
def where(node: OnnxNode) -> Results:
    return node.emit(relax.op.where(*broadcastable(node, [node.expr(i) for i in range(3)])))


def broadcast(node: OnnxNode, x: Expr, shape: Sequence[Dim]) -> Expr:
    """``x`` broadcast to ``shape``; itself where it has that shape."""
    x = fitted(node, x, shape)
    return x if equal_dims(dims_of(x), shape) else node.emit(relax.op.broadcast_to(x, shape))
