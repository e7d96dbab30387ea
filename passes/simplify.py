"""Operators that do nothing are removed, and forms that later passes do not know are written in ones that they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..dims import Dim
from ..ir import Constant, Expr, constant, constant_value, dims_of, dtype_of, op_name, same_dims
from .graph import Emit, Graph, Replacement, replace_matches, scalar
from .reshapes import RESHAPES, permutation_of, reshape_rule
from .roundings import is_above_zero, rounding_rule


@dataclass(frozen=True)
class Simplify:
    """Remove identities, merge movements in a row, and write rare operators as common ones.

    Before::

        a = relax.reshape(x, x.shape); b = relax.add(a, 0); s = relax.split(b, 2, axis=1); y = s[1]

    After::

        y = relax.strided_slice(x, axes=[1], begin=[n], end=[2 n])

    Requires: the normal form.
    Ensures: no reshape, cast, permutation, slice, pad or clip that changes nothing; no addition of 0, no multiplication
    with 1; no reshape of a reshape, nor around a linear layer, nor one that splits a permutation of a reshape; no items
    of ``split``, ``dropout`` or inference ``batch_norm``; no ``prelu`` with a constant slope, no ``pixel_shuffle`` of a
    4-dimensional tensor; a subtraction of, or a division by, a float32 constant is an addition or a multiplication
    (the reciprocal is rounded to float32); no ``fake_quantize`` of values on its grid or of a clamp that it implies,
    and none behind a movement whose operand nothing else reads, or is rounded.
    Does not fire when: a constant operand broadcasts the other one to a larger shape.
    """

    name: str = "Simplify"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, _find)


def _find(graph: Graph, binding: relax.VarBinding) -> Replacement | None:
    value = binding.value
    if isinstance(value, relax.TupleGetItem):
        return _tuple_item(graph, value)
    rule = _RULES.get(op_name(value) or "")
    return rule(graph, value) if rule is not None else None


def _same_as(expr: Expr) -> Replacement:
    return Replacement((expr,), lambda emit, x: x)


def _unchanged_shape(graph: Graph, call: relax.Call) -> Replacement | None:
    return _same_as(call.args[0]) if same_dims(call, call.args[0]) else None


def _astype(graph: Graph, call: relax.Call) -> Replacement | None:
    return _same_as(call.args[0]) if dtype_of(call) == dtype_of(call.args[0]) else None


def _permute(graph: Graph, call: relax.Call) -> Replacement | None:
    axes = permutation_of(call)
    source = call.args[0]
    inner = graph.call(source, "relax.permute_dims")
    if inner is not None:
        first = permutation_of(inner)
        axes, source = tuple(first[a] for a in axes), inner.args[0]
    if axes == tuple(range(len(axes))):
        return _same_as(source)
    return None if inner is None else Replacement((source,), lambda emit, x: relax.op.permute_dims(x, list(axes)))


def _neutral(side: int, neutral: float) -> Callable[[Graph, relax.Call], Replacement | None]:
    """A rule: the op is its argument ``1 - side`` where argument ``side`` is a constant, everywhere ``neutral``."""

    def rule(graph: Graph, call: relax.Call) -> Replacement | None:
        kept, other = call.args[1 - side], call.args[side]
        if isinstance(kept, Constant) or not isinstance(other, Constant) or not same_dims(call, kept):
            return None
        return _same_as(kept) if bool(np.all(constant_value(other) == neutral)) else None

    return rule


def _first(*rules: Callable[[Graph, relax.Call], Replacement | None]
           ) -> Callable[[Graph, relax.Call], Replacement | None]:
    return lambda graph, call: next((r for rule in rules if (r := rule(graph, call)) is not None), None)


def _by_constant(op: Callable[[Expr, Expr], Expr], inverse: Callable[[np.ndarray], np.ndarray]
                 ) -> Callable[[Graph, relax.Call], Replacement | None]:
    """A rule: ``x ∘ c`` becomes ``op(x, inverse(c))`` for a float32 constant whose inverse is finite."""

    def rule(graph: Graph, call: relax.Call) -> Replacement | None:
        left, right = call.args
        if not isinstance(right, Constant) or isinstance(left, Constant) or dtype_of(right) != "float32":
            return None
        value = constant_value(right).astype(np.float64)
        if not np.all(np.abs(value) > np.finfo(np.float32).tiny) and op is relax.op.multiply:
            return None
        inverted = constant(inverse(value).astype(np.float32))
        return Replacement((left,), lambda emit, x: op(x, inverted))

    return rule


def _clip(graph: Graph, call: relax.Call) -> Replacement | None:
    source, low, high = call.args
    low_value, high_value = float(low.value), float(high.value)
    inner = graph.call(source, "relax.nn.relu")
    if inner is not None and low_value <= 0.0 <= high_value:
        return Replacement((inner.args[0],), lambda emit, x: relax.op.clip(x, 0.0, high_value))
    inner = graph.call(source, "relax.clip")
    if inner is not None and low_value <= float(inner.args[1].value) and float(inner.args[2].value) <= high_value:
        return _same_as(source)
    limit = float(np.finfo(np.float32).max)
    if dtype_of(call) == "float32" and high_value >= limit:
        if low_value <= -limit:
            return _same_as(source)
        if low_value == 0.0:
            return Replacement((source,), lambda emit, x: relax.op.nn.relu(x))
    return None


def _relu(graph: Graph, call: relax.Call) -> Replacement | None:
    inner = graph.call(call.args[0], "relax.nn.relu", "relax.sigmoid", "relax.exp", "relax.nn.softmax", "relax.square")
    return _same_as(call.args[0]) if inner is not None or is_above_zero(graph, call.args[0]) else None


def _maximum(graph: Graph, call: relax.Call) -> Replacement | None:
    for kept, other in (call.args, reversed(call.args)):
        if dtype_of(call) == "float32" and scalar(other) == 0.0 and same_dims(kept, call):
            return Replacement((kept,), lambda emit, x: relax.op.nn.relu(x))
    return None


def _pad(graph: Graph, call: relax.Call) -> Replacement | None:
    return _same_as(call.args[0]) if not any(int(w) for w in call.attrs.pad_width) else None


def _slice(graph: Graph, call: relax.Call) -> Replacement | None:
    strides = [int(s.value) for s in call.args[4].fields] if len(call.args) > 4 else []
    return _unchanged_shape(graph, call) if all(s == 1 for s in strides) else None


def _concat(graph: Graph, call: relax.Call) -> Replacement | None:
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
    return _same_as(fields[0]) if len(fields) == 1 else None


def _tuple_item(graph: Graph, item: relax.TupleGetItem) -> Replacement | None:
    split = graph.call(item.tuple_value, "relax.split")
    if split is not None:
        return _split(split, int(item.index))
    norm = graph.call(item.tuple_value, "relax.nn.batch_norm")
    if norm is not None and int(item.index) == 0:
        return _batch_norm(norm)
    dropout = graph.call(item.tuple_value, "relax.nn.dropout")
    return _same_as(dropout.args[0]) if dropout is not None and int(item.index) == 0 else None


def _split(call: relax.Call, index: int) -> Replacement:
    axis = int(call.attrs.axis) % len(dims_of(call.args[0]))
    widths = [dims_of(field)[axis] for field in _tuple_tensors(call)]
    begin: Dim = sum(widths[:index])
    return Replacement((call.args[0],), lambda emit, x: relax.op.strided_slice(
        x, [axis], [begin], [begin + widths[index]]))


class _Typed:
    """A tensor type in the place of an expression of that type."""

    def __init__(self, ty: relax.TensorType) -> None:
        self.ty = ty


def _tuple_tensors(call: relax.Call) -> list[_Typed]:
    return [_Typed(field) for field in call.ty.fields]


def _batch_norm(call: relax.Call) -> Replacement | None:
    if bool(call.attrs.training) or not all(isinstance(a, Constant) for a in call.args[1:]):
        return None
    gamma, beta, mean, variance = (constant_value(a).astype(np.float64) for a in call.args[1:])
    scale = 1.0 / np.sqrt(variance + float(call.attrs.epsilon))
    scale = scale * gamma if bool(call.attrs.scale) else scale
    shift = -mean * scale + (beta if bool(call.attrs.center) else 0.0)
    rank = len(dims_of(call.args[0]))
    trailing = (1,) * (rank - 1 - int(call.attrs.axis) % rank)
    factor, offset = (constant(a.reshape(-1, *trailing).astype(np.float32)) for a in (scale, shift))
    return Replacement((call.args[0],),
                       lambda emit, x: relax.op.add(emit(relax.op.multiply(x, factor)), offset))


def _prelu(graph: Graph, call: relax.Call) -> Replacement | None:
    data, alpha = call.args
    if not isinstance(alpha, Constant):
        return None
    rank = len(dims_of(call))
    slope = constant_value(alpha)
    if slope.size == 1:
        return Replacement((data,), lambda emit, x: relax.op.nn.leakyrelu(x, float(slope.reshape(()))))
    factor = constant(slope.reshape(-1, *(1,) * (rank - 1 - int(call.attrs.axis) % rank)))
    zero = constant(np.array(0, np.float32))

    def build(emit: Emit, x: Expr) -> Expr:
        negative = emit(relax.op.multiply(emit(relax.op.minimum(x, zero)), factor))
        return relax.op.add(emit(relax.op.nn.relu(x)), negative)

    return Replacement((data,), build)


def _pixel_shuffle(graph: Graph, call: relax.Call) -> Replacement | None:
    *batch, channels, height, width = dims_of(call.args[0])
    if len(batch) != 1:
        return None
    r = int(call.attrs.upscale_factor)
    split = (*batch, channels // (r * r), r, r, height, width)
    result = dims_of(call)

    def build(emit: Emit, x: Expr) -> Expr:
        parts = emit(relax.op.permute_dims(emit(relax.op.reshape(x, split)), [0, 1, 4, 2, 5, 3]))
        return relax.op.reshape(parts, result)

    return Replacement((call.args[0],), build)


_RULES: dict[str, Callable[[Graph, relax.Call], Replacement | None]] = {
    **dict.fromkeys(RESHAPES, reshape_rule),
    "relax.broadcast_to": _unchanged_shape,
    "relax.astype": _astype,
    "relax.permute_dims": _permute,
    "relax.add": _first(_neutral(1, 0.0), _neutral(0, 0.0)),
    "relax.multiply": _first(_neutral(1, 1.0), _neutral(0, 1.0)),
    "relax.subtract": _first(_neutral(1, 0.0), _by_constant(relax.op.add, np.negative)),
    "relax.divide": _first(_neutral(1, 1.0), _by_constant(relax.op.multiply, np.reciprocal)),
    "relax.power": _neutral(1, 1.0),
    "relax.clip": _clip,
    "relax.nn.relu": _relu,
    "relax.maximum": _maximum,
    "relax.nn.pad": _pad,
    "relax.strided_slice": _slice,
    "relax.concat": _concat,
    "relax.nn.prelu": _prelu,
    "relax.nn.pixel_shuffle": _pixel_shuffle,
    "narrowcast.fake_quantize": rounding_rule,
}
