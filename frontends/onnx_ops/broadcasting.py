"""Operands of symbolic shapes that have to fit each other.

Where nothing proves that two extents are equal, the operator takes it for granted, as the model does: the relation
becomes a requirement on the inputs' shapes, and a reshape says in the graph which of the two extents is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from ...dims import Dim, dim_text, equal_dims
from ...ir import Expr, dims_of
from .node import OnnxNode


def is_number(dim: Dim, number: int) -> bool:
    return isinstance(dim, int) and dim == number


def shape_text(dims: Sequence[Dim]) -> str:
    return f"({', '.join(dim_text(d) for d in dims)})"


def fitted(node: OnnxNode, x: Expr, dims: Sequence[Dim]) -> Expr:
    """``x`` with every extent that is not 1 stated as that of ``dims``, which may have more axes in front."""
    own = dims_of(x)
    wanted = list(dims)[len(dims) - len(own):]
    return stated(node, x, [o if is_number(o, 1) else w for o, w in zip(own, wanted, strict=True)])


def stated(node: OnnxNode, x: Expr, dims: Sequence[Dim], problem: str = "the operands do not fit") -> Expr:
    """``x``, whose extents are those of ``dims`` for all inputs that the program may be called with."""
    own = dims_of(x)
    if equal_dims(own, dims):
        return x
    for o, w in zip(own, dims, strict=True):
        node.require_equal(o, w, problem)
    return node.emit(relax.op.reshape(x, dims), "fitted")


def broadcast_dims(shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
    """The shape that shapes broadcast to, on the understanding that they do: of two extents that are not 1 the plainer
    one."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return [min(column, key=_order) for column in zip(*padded, strict=True)]


def _order(dim: Dim) -> tuple[int, int]:
    """Numbers come before symbols, those before expressions; 1 gives way to all."""
    if isinstance(dim, int):
        return (3, 0) if dim == 1 else (0, 0)
    return (1 if isinstance(dim, tirx.Var) else 2), len(str(dim))


def broadcastable(node: OnnxNode, operands: Sequence[Expr]) -> list[Expr]:
    """``operands`` stated in shapes that provably broadcast against each other."""
    shapes = [dims_of(x) for x in operands]
    if all(isinstance(d, int) for s in shapes for d in s):
        return list(operands)
    target = broadcast_dims(shapes)
    return [fitted(node, x, target) for x in operands]


def concatenable(node: OnnxNode, operands: Sequence[Expr], axis: int) -> list[Expr]:
    """``operands`` stated in shapes that are provably equal on all axes but ``axis``."""
    shapes = [dims_of(x) for x in operands]
    if all(isinstance(d, int) for s in shapes for d in s):
        return list(operands)
    if len({len(s) for s in shapes}) > 1:
        raise node.fault("the operands differ in rank", found=[shape_text(s) for s in shapes])
    common = [min(column, key=_order) for column in zip(*shapes, strict=True)]
    return [stated(node, x, [*common[:axis], s[axis], *common[axis + 1:]])
            for x, s in zip(operands, shapes, strict=True)]
