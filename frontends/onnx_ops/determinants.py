"""Determinants by elimination with partial pivoting."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import product_of
from ...ir import Expr, dims_of
from .algebra import Algebra
from .node import OnnxNode, Results, operator

# The steps of the elimination are written out.
_MAX_ROWS = 32


@operator("Det")
def determinant(node: OnnxNode) -> Results:
    """The product of the pivots. Rows stay where they are: those used are masked, and the sign counts how many unused
    rows every pivot passes."""
    shape = node.dims(0)
    rows, columns = node.numbers(shape[-2:], "the matrices") if len(shape) >= 2 else (0, 1)
    if rows != columns or rows < 1:
        raise node.fault("the input has no square matrices", found=shape)
    if rows > _MAX_ROWS:
        raise node.unsupported(f"of {rows} rows")
    count = product_of(shape[:-2])
    steps = Algebra(node, "elimination")
    matrix: Expr = steps.reshape(node.expr(0), [count, rows, rows])
    unused: Expr = node.constant(np.ones((1, rows), np.float32))
    result: Expr | None = None
    for column in range(rows):
        pivot, matrix, unused, sign = _eliminate(steps, matrix, unused, column)
        signed = steps.multiply(pivot, sign)
        result = signed if result is None else steps.multiply(result, signed)
    return node.emit(relax.op.reshape(result, tuple(shape[:-2])))


def _eliminate(steps: Algebra, matrix: Expr, unused: Expr, column: int) -> tuple[Expr, Expr, Expr, Expr]:
    """One step: the pivot [count], the matrix without its column in the unused rows, these, and the sign [count]."""
    rows = dims_of(matrix)[1]
    values = steps.element(matrix, 2, column)
    size = steps.subtract(steps.multiply(steps.add(steps(relax.op.abs, values), 1.0), unused), 1.0)
    best = steps.node.emit(relax.op.argmax(size, 1, True), steps.part)
    hit = steps.cast(steps(relax.op.equal, best, np.arange(rows).reshape(1, -1)), "float32")
    pivot = steps.total(steps.multiply(values, hit), 1, keep=True)
    before = steps.cast(steps(relax.op.greater, best, np.arange(rows).reshape(1, -1)), "float32")
    passed = steps.total(steps.multiply(before, unused), 1)
    sign = steps.subtract(1.0, steps.multiply(steps(relax.op.floor_mod, passed, 2.0), 2.0))
    row = steps.total(steps.multiply(matrix, steps.expanded(hit, 2)), 1, keep=True)
    unused = steps.multiply(unused, steps.subtract(1.0, hit))
    singular = steps.cast(steps(relax.op.equal, pivot, 0.0), "float32")
    factors = steps.multiply(steps.divide(values, steps.add(pivot, singular)), unused)
    matrix = steps.subtract(matrix, steps.multiply(steps.expanded(factors, 2), row))
    return steps.element(pivot, 1, 0), matrix, unused, sign
