"""Reshapes moved to where they meet others, or vanish."""

from __future__ import annotations

from tvm import relax

from ..dims import Dim, equal_dims, is_equal_dim
from ..ir import dims_of, op_name
from .extents import Extent
from .graph import Graph, Replacement
from .linear_layers import LinearLayer

RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.nn.batch_flatten")
"""Operators that keep the order of the elements."""


def permutation_of(call: relax.Call) -> tuple[int, ...]:
    """The axes of a ``permute_dims``, non-negative; reversed where none are given."""
    rank = len(dims_of(call))
    axes = call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def reshape_rule(graph: Graph, call: relax.Call) -> Replacement | None:
    """A reshape to the same shape goes, of a reshape is one, and moves before what is between it and another."""
    return _merged(graph, call) or _around_product(graph, call) or _before_permutation(graph, call)


def _merged(graph: Graph, call: relax.Call) -> Replacement | None:
    source = call.args[0]
    shape = dims_of(call)
    while (inner := graph.call(source, *RESHAPES)) is not None:
        source = inner.args[0]
    if equal_dims(dims_of(source), shape):
        return Replacement((source,), lambda emit, x: x)
    if source.same_as(call.args[0]) and op_name(call) == "relax.reshape":
        return None
    return Replacement((source,), lambda emit, x: relax.op.reshape(x, shape))


def _around_product(graph: Graph, call: relax.Call) -> Replacement | None:
    """``reshape(reshape(x) @ W + b)`` is ``reshape'(x) @ W + b`` where the outer one keeps the last dimension."""
    layer = LinearLayer.find(graph, call.args[0])
    if layer is None or graph.only_reader(call.args[0]) is None or graph.call(layer.x, *RESHAPES) is None:
        return None
    shape = dims_of(call)
    if len(shape) < 2 or not is_equal_dim(shape[-1], layer.weight.shape[1]):
        return None
    rows = (*shape[:-1], layer.weight.shape[0])
    return Replacement((layer.x,), lambda emit, x: layer.emit(emit, emit(relax.op.reshape(x, rows))))


def _before_permutation(graph: Graph, call: relax.Call) -> Replacement | None:
    """``reshape(permute(reshape(x)))`` is ``permute'(reshape'(x))`` where the outer one only splits dimensions."""
    permute = graph.call(call.args[0], "relax.permute_dims")
    if permute is None or graph.call(permute.args[0], *RESHAPES) is None or graph.only_reader(call.args[0]) is None:
        return None
    axes = permutation_of(permute)
    pieces = _pieces(dims_of(permute), dims_of(call))
    if pieces is None:
        return None
    by_source = dict(zip(axes, pieces, strict=True))
    result = dims_of(call)
    split = [d for axis in range(len(axes)) for d in (result[i] for i in by_source[axis])]
    start = {axis: sum(len(by_source[a]) for a in range(axis)) for axis in by_source}
    order = [start[axis] + i for axis in axes for i in range(len(by_source[axis]))]
    return Replacement((permute.args[0],), lambda emit, x: relax.op.permute_dims(
        emit(relax.op.reshape(x, split)), order))


def _pieces(source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[list[int]] | None:
    """For each axis of ``source`` the axes of ``result`` that it is split into; None where a reshape merges axes."""
    pieces: list[list[int]] = []
    axis = 0
    for extent in map(Extent.of, source):
        piece: list[int] = []
        size = Extent()
        while axis < len(result) and (larger := size * Extent.of(result[axis])).divides(extent):
            if piece and size == extent:
                break
            piece.append(axis)
            size = larger
            axis += 1
        if size != extent:
            return None
        pieces.append(piece)
    if pieces:
        pieces[-1] += range(axis, len(result))
    return pieces if Extent.product(result[axis:]) == Extent() else None
