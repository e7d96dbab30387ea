"""Arithmetic whose meaning depends on the element type: division, remainder, power, shift.

Nothing here traps: an integer divided by 0, which ONNX leaves undefined, is itself, and so is its remainder 0.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...ir import Expr, dtype_of
from .broadcasting import broadcastable
from .casts import convert
from .node import OnnxNode, Results, operator


def _operands(node: OnnxNode) -> tuple[Expr, Expr]:
    a, b = broadcastable(node, [node.expr(0), node.expr(1)])
    return a, b


def _is_unsigned(x: Expr) -> bool:
    return dtype_of(x).startswith("uint")


def _choice(node: OnnxNode, condition: Expr, yes: Expr, no: Expr, part: str | None = None) -> relax.Var:
    return node.emit(relax.op.where(node.emit(condition, "condition"), yes, no), part)


@operator("Div")
def divide(node: OnnxNode) -> Results:
    """Integers are divided towards zero."""
    a, b = _operands(node)
    if dtype_of(a) in ("float32", "float64"):
        return node.emit(relax.op.divide(a, b))
    if node.is_known(1) and not node.known(1, "a divisor").all():
        raise node.fault("an integer is divided by 0")
    return node.emit(relax.op.divide(a, b))


@operator("Mod")
def modulo(node: OnnxNode) -> Results:
    """``fmod`` has the sign of the dividend, ``mod`` that of the divisor."""
    a, b = _operands(node)
    if dtype_of(a) == "float32":
        rest = node.emit(relax.op.mod(a, b))
        return rest if node.attribute("fmod", 0) else _with_sign_of(node, rest, b)
    if node.is_known(1) and not node.known(1, "a divisor").all():
        raise node.fault("an integer is divided by 0")
    return node.emit((relax.op.mod if node.attribute("fmod", 0) else relax.op.floor_mod)(a, b))


def _with_sign_of(node: OnnxNode, rest: relax.Var, b: Expr) -> relax.Var:
    """The remainder with the sign of the divisor: ``rest + b`` where their signs differ."""
    zero = node.constant(np.float32(0))
    below = node.emit(relax.op.less(b, zero), "below")
    differ = node.emit(relax.op.logical_xor(node.emit(relax.op.less(rest, zero), "negative"), below), "differ")
    shifted = node.emit(relax.op.where(differ, node.emit(relax.op.add(rest, b), "shifted"), rest), "shifted")
    nothing = node.emit(relax.op.where(below, node.constant(np.float32(-0.0)), zero), "zero")
    return _choice(node, relax.op.equal(rest, zero), nothing, shifted)


@operator("Pow")
def power(node: OnnxNode) -> Results:
    """Known exponents 2, 1/2 and 1 become a product, a root and nothing. Integers are raised by squaring."""
    if node.dtype(0) != "float32":
        return _integer_power(node)
    x = node.expr(0)
    if node.is_known(1) and node.known(1, "an exponent").size == 1 and node.rank(1) <= node.rank(0):
        exponent = float(node.known(1, "an exponent").reshape(()))
        if exponent == 1.0:
            return node.value(0)
        if exponent == 2.0:
            return node.emit(relax.op.multiply(x, x))
        if exponent == 0.5:
            return node.emit(relax.op.sqrt(x))
    exponents = node.constant(convert(node, node.value(1), "float32"))
    return node.emit(relax.op.power(*broadcastable(node, [x, exponents])))


def _integer_power(node: OnnxNode) -> relax.Var:
    x, y = _operands(node)
    if dtype_of(y) != "float32":
        return _squarings(node, x, y)
    whole = node.emit(relax.op.floor(y), "whole")
    exact = _squarings(node, x, node.emit(relax.op.astype(whole, "int64"), "whole"))
    rough = node.emit(relax.op.power(node.emit(relax.op.astype(x, "float32"), "real"), y), "real")
    rough = node.emit(relax.op.astype(rough, dtype_of(x)), "real")
    return _choice(node, relax.op.equal(whole, y), exact, rough)


def _squarings(node: OnnxNode, x: Expr, y: Expr) -> relax.Var:
    """``x ** y`` from the bits of y; a negative power of an integer is that of a fraction, cut to its whole part."""
    def number(value: int, like: Expr) -> Expr:
        return node.constant(value, dtype_of(like))

    bits = 6  # A power above 62 is that of 0, 1 or -1 in every integer type: only its last bit counts.
    last = node.emit(relax.op.bitwise_and(y, number(1, y)), "last")
    bounded = _choice(node, relax.op.greater(y, number(62, y)),
                      node.emit(relax.op.add(last, number(62, y)), "bounded"), y, "bounded")
    if not _is_unsigned(y):
        bounded = node.emit(relax.op.maximum(bounded, number(0, y)), "bounded")
    result, square = None, x
    for i in range(bits):
        bit = node.emit(relax.op.bitwise_and(bounded, number(1 << i, y)), "bit")
        factor = _choice(node, relax.op.equal(bit, number(0, y)), number(1, x), square, "factor")
        result = factor if result is None else node.emit(relax.op.multiply(result, factor), "power")
        square = node.emit(relax.op.multiply(square, square), "square")
    if _is_unsigned(y):
        return result
    # 1 / x: x itself for 1 and -1 where the power is odd, its square where it is even, 0 for others.
    unit = _choice(node, relax.op.equal(last, number(0, y)), node.emit(relax.op.multiply(x, x), "unit"), x, "unit")
    size = x if _is_unsigned(x) else node.emit(relax.op.abs(x), "size")
    inverse = _choice(node, relax.op.equal(size, number(1, x)), unit, number(0, x), "inverse")
    return _choice(node, relax.op.less(y, number(0, y)), inverse, result)


@operator("BitShift")
def bit_shift(node: OnnxNode) -> Results:
    """By less than nothing, or as many bits as there are, nothing but copies of the sign stays."""
    direction = node.attribute("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise node.fault("the direction is neither LEFT nor RIGHT", found=direction)
    shift = relax.op.left_shift if direction == "LEFT" else relax.op.right_shift
    (x, y), dtype = _operands(node), np.dtype(node.dtype(0))
    bits = 8 * dtype.itemsize
    if node.is_known(1) and ((counts := node.known(1, "a shift")) < bits).all() and not (counts < 0).any():
        return node.emit(shift(x, y))
    inside = node.emit(relax.op.less(y, node.constant(bits, dtype.name)), "inside")
    if dtype.kind == "i":
        inside = node.emit(relax.op.logical_and(
            inside, node.emit(relax.op.greater_equal(y, node.constant(0, dtype.name)), "inside")), "inside")
    count = node.emit(relax.op.where(inside, y, node.constant(bits - 1, dtype.name)), "count")
    shifted = node.emit(shift(x, count))
    if direction == "RIGHT" and dtype.kind == "i":
        return shifted
    return node.emit(relax.op.where(inside, shifted, node.constant(0, dtype.name)))
