"""Reshapes moved to where they meet others, or vanish."""

from __future__ import annotations

import math

from tvm import relax

from ..ir import Constant, Expr, op_name, shape_of
from .graph import Emit, Graph, Replacement

RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.nn.batch_flatten")
"""Operators that keep the order of the elements."""


def permutation_of(call: relax.Call) -> tuple[int, ...]:
    """The axes of a ``permute_dims``, non-negative; reversed where none are given."""
    rank = len(shape_of(call))
    axes = call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def reshape_rule(graph: Graph, call: relax.Call) -> Replacement | None:
    """A reshape to the same shape goes, of a reshape is one, and moves before what is between it and another."""
    return _merged(graph, call) or _around_product(graph, call) or _before_permutation(graph, call)


def _merged(graph: Graph, call: relax.Call) -> Replacement | None:
    source = call.args[0]
    shape = shape_of(call)
    while (inner := graph.call(source, *RESHAPES)) is not None:
        source = inner.args[0]
    if shape_of(source) == shape:
        return Replacement((source,), lambda emit, x: x)
    if source.same_as(call.args[0]) and op_name(call) == "relax.reshape":
        return None
    return Replacement((source,), lambda emit, x: relax.op.reshape(x, shape))


def _around_product(graph: Graph, call: relax.Call) -> Replacement | None:
    """``reshape(reshape(x) @ W + b)`` is ``reshape'(x) @ W + b`` where the outer one keeps the last dimension."""
    shape, addition, bias = shape_of(call), None, None
    product = graph.producer(call.args[0])
    if product is not None and op_name(product.value) == "relax.add" and graph.only_reader(product.var) is not None:
        addition, (operand, bias) = product, product.value.args
        product = graph.producer(operand)
    if product is None or op_name(product.value) != "relax.matmul" or graph.only_reader(product.var) is None:
        return None
    left, weight = product.value.args
    is_linear = isinstance(weight, Constant) and len(shape_of(weight)) == 2
    if not is_linear or graph.call(left, *RESHAPES) is None or shape[-1:] != shape_of(product.var)[-1:]:
        return None
    if len(shape) < 2 or (bias is not None and not (isinstance(bias, Constant) and len(shape_of(bias)) <= 1)):
        return None
    wanted = (*shape[:-1], shape_of(weight)[0])

    def build(emit: Emit, x: Expr) -> Expr:
        rows = emit(relax.op.reshape(x, wanted))
        value = relax.op.matmul(rows, weight)
        if addition is None:
            return emit(value, name=product.var.name)
        return emit(relax.op.add(emit(value, name=product.var.name), bias), name=addition.var.name)

    return Replacement((left,), build)


def _before_permutation(graph: Graph, call: relax.Call) -> Replacement | None:
    """``reshape(permute(reshape(x)))`` is ``permute'(reshape'(x))`` where the outer one only splits dimensions."""
    permute = graph.call(call.args[0], "relax.permute_dims")
    if permute is None or graph.call(permute.args[0], *RESHAPES) is None or graph.only_reader(call.args[0]) is None:
        return None
    axes = permutation_of(permute)
    pieces = _pieces(shape_of(permute), shape_of(call))
    if pieces is None:
        return None
    by_source = dict(zip(axes, pieces, strict=True))
    result = shape_of(call)
    split = [d for axis in range(len(axes)) for d in (result[i] for i in by_source[axis])]
    start = {axis: sum(len(by_source[a]) for a in range(axis)) for axis in by_source}
    order = [start[axis] + i for axis in axes for i in range(len(by_source[axis]))]
    return Replacement((permute.args[0],), lambda emit, x: relax.op.permute_dims(
        emit(relax.op.reshape(x, split)), order))


def _pieces(source: tuple[int, ...], result: tuple[int, ...]) -> list[list[int]] | None:
    """For each axis of ``source`` the axes of ``result`` that it is split into; None where a reshape merges axes."""
    pieces: list[list[int]] = []
    axis = 0
    for extent in source:
        piece: list[int] = []
        while axis < len(result) and math.prod(result[i] for i in piece) * result[axis] <= extent:
            if piece and math.prod(result[i] for i in piece) == extent:
                break
            piece.append(axis)
            axis += 1
        if math.prod(result[i] for i in piece) != extent:
            return None
        pieces.append(piece)
    if pieces:
        pieces[-1] += range(axis, len(result))
    return pieces if math.prod(result[axis:]) == 1 else None
