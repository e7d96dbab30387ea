"""Recognition of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..ir import Constant, Expr, constant_value, dtype_of, op_name, shape_of
from .base import Refusal
from .graph import Emit, Graph, Replacement, replace_matches
from .reshapes import permutation_of


@dataclass(frozen=True)
class RecomposeAttention:
    """Recognize attention (Vaswani et al., Attention Is All You Need) in its product form.

    Before::

        s = relax.matmul(q, kt); c = s * scale; m = c + mask; p = relax.nn.softmax(m, axis=-1); y = relax.matmul(p, v)

    After::

        a = relax.nn.attention_bias(q', k', v', mask', scale=scale); y = relax.permute_dims(a, [0, 2, 1, 3])

    q, v are [batch, heads, sequence, head_dim] and kt [batch, heads, head_dim, sequence]; q', k', v' are their
    permutations to [batch, sequence, heads, head_dim], which cancel with the network's own (``ToChannelsLast``).
    Three-dimensional operands are [batch · heads, …]: the reshape that made them is looked through, else there is
    one head. A scale is taken from q, kt and s; a mask may be a constant or computed; one that is 0 vanishes.

    Requires: the normal form.
    Ensures: one ``relax.nn.attention`` or ``relax.nn.attention_bias``, and the root's value in its own layout.
    Does not fire when: scores or probabilities have another reader, an operand is constant, or the
    mask does not broadcast to [batch, heads, query, key] (``refusals``).
    """

    name: str = "RecomposeAttention"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _find(graph, binding, []))

    def refusals(self, mod: tvm.IRModule) -> list[Refusal]:
        """The products of a softmax and a tensor that stay, with the reason."""
        graph = Graph(mod["main"])
        refused: list[Refusal] = []
        for binding in graph.bindings:
            _find(graph, binding, refused)
        return refused


@dataclass(frozen=True)
class _Scores:
    """``scale · q @ kt + Σ biases``."""

    q: Expr
    kt: Expr
    scale: float
    biases: tuple[Expr, ...]


def _find(graph: Graph, binding: relax.VarBinding, refused: list[Refusal]) -> Replacement | None:
    if op_name(binding.value) == "relax.nn.attention_bias":
        return _without_zero_bias(binding.value)
    if op_name(binding.value) != "relax.matmul":
        return None
    probabilities, v = binding.value.args
    softmax = graph.call(probabilities, "relax.nn.softmax")
    if softmax is None:
        return None
    scores, reason = _scores(graph, softmax, probabilities)
    if scores is None or reason:
        refused.append((binding.var.name, reason))
        return None
    if any(isinstance(operand, Constant) for operand in (scores.q, scores.kt, v)):
        refused.append((binding.var.name, "query, key or value is constant"))
        return None
    found, reason = _replacement(graph, scores, v, shape_of(binding.var))
    if found is None:
        refused.append((binding.var.name, reason))
    return found


def _without_zero_bias(call: relax.Call) -> Replacement | None:
    bias = call.args[3]
    if not isinstance(bias, Constant) or np.any(constant_value(bias)):
        return None
    attrs = call.attrs
    return Replacement(tuple(call.args[:3]), lambda emit, q, k, v: relax.op.nn.attention(
        q, k, v, scale=attrs.scale, causal_mask=attrs.causal_mask, window_size=attrs.window_size))


def _scores(graph: Graph, softmax: relax.Call, probabilities: relax.Var) -> tuple[_Scores | None, str]:
    rank = len(shape_of(softmax))
    if int(softmax.attrs.axis) % rank != rank - 1:
        return None, "the softmax is not over the last axis"
    if graph.only_reader(probabilities) is None:
        return None, "the probabilities have another reader"
    expr, biases, scale = softmax.args[0], [], 1.0
    while (product := graph.call(expr, "relax.matmul")) is None:
        if not isinstance(expr, relax.Var) or graph.only_reader(expr) is None:
            return None, "the scores have another reader, or are no matrix product"
        inner, factor = graph.scaled(expr)
        if not inner.same_as(expr):
            expr, scale = inner, scale * factor
            continue
        addition = graph.call(expr, "relax.add")
        if addition is None or scale != 1.0:
            return None, "the scores are not a scaled matrix product plus a mask"
        left, right = addition.args
        score_first = _leads_to_product(graph, left)
        expr, bias = (left, right) if score_first else (right, left)
        biases.append(bias)
    if graph.only_reader(expr) is None:
        return None, "the scores have another reader"
    (q, q_scale), (kt, k_scale) = graph.scaled(product.args[0]), graph.scaled(product.args[1])
    return _Scores(q, kt, scale * q_scale * k_scale, tuple(biases)), ""


def _leads_to_product(graph: Graph, expr: Expr) -> bool:
    """Whether ``expr`` is a matrix product with scales and additions behind it."""
    for _ in range(8):
        if graph.call(expr, "relax.matmul") is not None:
            return True
        inner, _factor = graph.scaled(expr)
        if inner.same_as(expr):
            addition = graph.call(expr, "relax.add")
            if addition is None:
                return False
            inner = addition.args[0]
        expr = inner
    return False


def _replacement(graph: Graph, scores: _Scores, v: Expr, result: tuple[int, ...]) -> tuple[Replacement | None, str]:
    operands = [_heads(graph, scores.q), _heads_of_transposed(graph, scores.kt), _heads(graph, v)]
    shapes = [o.shape for o in operands]
    if len({s[:2] for s in shapes}) != 1:
        operands = [_Operand.of(e, axes) for e, axes in ((scores.q, _PLAIN), (scores.kt, _TRANSPOSED), (v, _PLAIN))]
        shapes = [o.shape for o in operands]
    if len({s[:2] for s in shapes}) != 1 or shapes[0][3] != shapes[1][3] or shapes[1][2] != shapes[2][2]:
        return None, "query, key and value broadcast against each other"
    batch, heads, queries, _ = shapes[0]
    keys = shapes[1][2]
    biases = [b for b in scores.biases if not (isinstance(b, Constant) and not np.any(constant_value(b)))]
    bias_shapes = [_bias_shape(shape_of(b), (batch, heads, queries, keys), len(result)) for b in biases]
    if any(s is None for s in bias_shapes) or any(dtype_of(b) != "float32" for b in biases):
        return None, "the mask does not broadcast to [batch, heads, query, key]"

    def build(emit: Emit, *values: Expr) -> Expr:
        parts = zip(operands, values[:3], ("query", "key", "value"), strict=True)
        q, k, value = (operand.emit(emit, x, part) for operand, x, part in parts)
        if biases:
            bias = _emit_bias(emit, values[3:], [s for s in bias_shapes if s is not None], keys)
            call = relax.op.nn.attention_bias(q, k, value, bias, scale=scores.scale)
        else:
            call = relax.op.nn.attention(q, k, value, scale=scores.scale)
        own_layout = relax.op.permute_dims(emit(call, ""), [0, 2, 1, 3])
        return own_layout if len(result) == 4 else relax.op.reshape(emit(own_layout, "layout"), result)

    return Replacement((*(o.source for o in operands), *biases), build), ""


# The axes of [batch, heads, a, b] in the order batch, sequence, heads, head_dim.
_PLAIN, _TRANSPOSED = (0, 2, 1, 3), (0, 3, 1, 2)


@dataclass(frozen=True)
class _Operand:
    """A tensor, its four-dimensional view, and which axes of that are batch, sequence, heads and head_dim."""

    source: Expr
    view: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, source: Expr, axes: tuple[int, ...]) -> _Operand:
        """Of a tensor of three dimensions, with one head, or four."""
        shape = shape_of(source)
        return cls(source, shape if len(shape) == 4 else (shape[0], 1, *shape[1:]), axes)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, sequence, head_dim]."""
        batch, sequence, heads, width = (self.view[a] for a in self.axes)
        return batch, heads, sequence, width

    def emit(self, emit: Emit, value: Expr, part: str) -> relax.Var:
        """``value``, the tensor of the new function, as an operand of the attention operator."""
        if shape_of(value) != self.view:
            value = emit(relax.op.reshape(value, self.view), part)
        return emit(relax.op.permute_dims(value, list(self.axes)), part)


def _unmerged(graph: Graph, expr: Expr) -> Expr:
    """The [batch, heads, a, b] tensor of which ``expr``, [batch · heads, a, b], is a reshape; else ``expr``."""
    reshape = graph.call(expr, "relax.reshape")
    if reshape is None or len(shape_of(expr)) != 3:
        return expr
    source = reshape.args[0]
    shape = shape_of(source)
    return source if len(shape) == 4 and shape[2:] == shape_of(expr)[1:] else expr


def _heads(graph: Graph, expr: Expr) -> _Operand:
    return _Operand.of(_unmerged(graph, expr), _PLAIN)


def _heads_of_transposed(graph: Graph, expr: Expr) -> _Operand:
    permute = graph.call(expr, "relax.permute_dims")
    if permute is not None and permutation_of(permute) == (0, 2, 1):
        return _Operand.of(_unmerged(graph, permute.args[0]), _PLAIN)
    return _Operand.of(_unmerged(graph, expr), _TRANSPOSED)


def _bias_shape(shape: tuple[int, ...], full: tuple[int, int, int, int], rank: int) -> tuple[int, ...] | None:
    """``shape`` with four dimensions that broadcast to ``full``; None where it cannot be."""
    batch, heads = full[:2]
    wanted: tuple[int, ...]
    if rank == 3 and len(shape) == 3 and shape[0] == batch * heads:
        wanted = (batch, heads, *shape[1:])
    elif rank == 3 and len(shape) == 3 and shape[0] != 1:
        return None
    else:
        wanted = (*(1,) * (4 - len(shape)), *shape)
    return wanted if len(wanted) == 4 and all(d in (1, f) for d, f in zip(wanted, full, strict=True)) else None


def _emit_bias(emit: Emit, biases: Sequence[Expr], shapes: Sequence[tuple[int, ...]], keys: int) -> Expr:
    views = [bias if shape_of(bias) == shape else emit(relax.op.reshape(bias, shape), "bias")
             for bias, shape in zip(biases, shapes, strict=True)]
    total = views[0]
    for view in views[1:]:
        total = emit(relax.op.add(total, view), "bias")
    shape = shape_of(total)
    return total if shape[3] == keys else emit(relax.op.broadcast_to(total, (*shape[:3], keys)), "bias")
