"""Arithmetic on tensors and numbers, for translations that are longer formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import relax

from ...dims import Dim
from ...ir import Constant, Expr, dims_of, dtype_of
from ..limits import MAX_TABLE
from .node import OnnxNode

Operand: TypeAlias = "Expr | np.ndarray | float | int"


def check_table(node: OnnxNode, *sizes: int) -> None:
    """UnsupportedOperatorError for a table of impossible size, before it is computed."""
    if math.prod(sizes) > MAX_TABLE:
        raise node.unsupported(f"with a table of {math.prod(sizes)} elements")


@dataclass(frozen=True)
class Algebra:
    """Emits the steps of a formula as ``name.part``; numbers and arrays become constants of the tensors' type."""

    node: OnnxNode
    part: str

    def __call__(self, op: Callable[..., Expr], *operands: Operand) -> relax.Var:
        """``op`` of the operands, of which at least one is an expression."""
        dtype = next(dtype_of(x) for x in operands if isinstance(x, (relax.Var, Constant)))
        return self.node.emit(op(*(self._operand(x, dtype) for x in operands)), self.part)

    def _operand(self, x: Operand, dtype: str) -> Expr:
        return x if isinstance(x, (relax.Var, Constant)) else self.node.constant(np.asarray(x), dtype)

    def add(self, a: Operand, b: Operand) -> relax.Var:
        return self(relax.op.add, a, b)

    def subtract(self, a: Operand, b: Operand) -> relax.Var:
        return self(relax.op.subtract, a, b)

    def multiply(self, a: Operand, b: Operand) -> relax.Var:
        return self(relax.op.multiply, a, b)

    def divide(self, a: Operand, b: Operand) -> relax.Var:
        return self(relax.op.divide, a, b)

    def clipped(self, x: Expr, low: float, high: float) -> relax.Var:
        return self(relax.op.minimum, self(relax.op.maximum, x, low), high)

    def within(self, x: Expr, low: float, high: float) -> relax.Var:
        """Where ``low <= x <= high``."""
        return self(relax.op.logical_and, self(relax.op.greater_equal, x, low), self(relax.op.less_equal, x, high))

    def cast(self, x: Expr, dtype: str) -> Expr:
        return x if dtype_of(x) == dtype else self.node.emit(relax.op.astype(x, dtype), self.part)

    def reshape(self, x: Expr, shape: Sequence[Dim]) -> relax.Var:
        return self.node.emit(relax.op.reshape(x, tuple(shape)), self.part)

    def broadcast(self, x: Expr, shape: Sequence[Dim]) -> relax.Var:
        return self.node.emit(relax.op.broadcast_to(x, tuple(shape)), self.part)

    def permuted(self, x: Expr, axes: Sequence[int]) -> Expr:
        same = list(axes) == list(range(len(axes)))
        return x if same else self.node.emit(relax.op.permute_dims(x, list(axes)), self.part)

    def sliced(self, x: Expr, axis: int, begin: int, end: int) -> relax.Var:
        return self.node.emit(relax.op.strided_slice(x, [axis], [begin], [end]), self.part)

    def element(self, x: Expr, axis: int, index: int) -> relax.Var:
        """``x`` at one place of an axis, which is left out."""
        return self.node.emit(relax.op.squeeze(self.sliced(x, axis, index, index + 1), [axis]), self.part)

    def expanded(self, x: Expr, axis: int) -> relax.Var:
        return self.node.emit(relax.op.expand_dims(x, axis), self.part)

    def total(self, x: Expr, axis: int | list[int], *, keep: bool = False) -> relax.Var:
        return self.node.emit(relax.op.sum(x, axis, keep), self.part)

    def stacked(self, parts: Sequence[Expr], axis: int) -> relax.Var:
        """Tensors of one shape along a new axis."""
        rows = [self.expanded(p, axis) for p in parts]
        return rows[0] if len(rows) == 1 else self.node.emit(relax.op.concat(rows, axis), self.part)

    def shape(self, x: Expr) -> tuple[Dim, ...]:
        return dims_of(x)
