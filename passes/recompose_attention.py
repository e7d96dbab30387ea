"""Recognition of scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..dims import Dim, equal_dims, is_equal_dim, product_of
from ..ir import Constant, Expr, constant, constant_value, dims_of, dtype_of, op_name
from .base import Refusal
from .graph import Emit, Graph, Replacement, replace_matches, scalar
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
    one head. A scale is taken from q, kt and s; a mask may be a constant or computed; one that is 0 vanishes. A
    ``where`` that replaces scores by a number of -1e8 or less is a mask too: what it hides gets a bias of ``MASKED``,
    beside which no score is seen. Reshapes between product, mask and softmax that keep queries and keys are looked
    through. Extents may be symbolic.

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


# What hides a key; its exponential is 0 next to any score. A number from ``_HIDES`` down counts as hiding.
MASKED, _HIDES = -1e30, -1e8


@dataclass(frozen=True)
class _Bias:
    """Something added to the scores: a tensor, or the bias of a condition.

    shape : that of the scores where it is added, to which it broadcasts.
    hidden : for a condition the value that hides a key; None for a bias.
    """

    source: Expr
    shape: tuple[Dim, ...]
    hidden: bool | None = None

    @property
    def vanishes(self) -> bool:
        """Whether it changes no score."""
        if not isinstance(self.source, Constant):
            return False
        value = constant_value(self.source)
        return not np.any(value) if self.hidden is None else not np.any(value == self.hidden)

    def emit(self, emit: Emit, value: Expr) -> Expr:
        """``value``, the source in the new function, as a bias."""
        if self.hidden is None:
            return value
        zero, hide = (constant(np.asarray(v, np.float32)) for v in (0.0, MASKED))
        return emit(relax.op.where(value, *((hide, zero) if self.hidden else (zero, hide))), "bias")


@dataclass(frozen=True)
class _Scores:
    """``scale · q @ kt + Σ biases``."""

    q: Expr
    kt: Expr
    scale: float
    biases: tuple[_Bias, ...]


def _find(graph: Graph, binding: relax.VarBinding, refused: list[Refusal]) -> Replacement | None:
    if op_name(binding.value) == "relax.nn.attention_bias":
        return _without_zero_bias(binding.value)
    if op_name(binding.value) != "relax.matmul":
        return None
    probabilities, v = binding.value.args
    inner = _before_reshape(graph, probabilities)
    softmax = graph.call(inner, "relax.nn.softmax")
    if softmax is None:
        return None
    scores, reason = _scores(graph, softmax, [probabilities, inner])
    if scores is None or reason:
        refused.append((binding.var.name, reason))
        return None
    if any(isinstance(operand, Constant) for operand in (scores.q, scores.kt, v)):
        refused.append((binding.var.name, "query, key or value is constant"))
        return None
    if any(not 2 <= len(dims_of(operand)) <= 4 for operand in (scores.q, scores.kt, v)):
        refused.append((binding.var.name, "query, key or value has not two to four dimensions"))
        return None
    found, reason = _replacement(graph, scores, v, dims_of(binding.var))
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


def _before_reshape(graph: Graph, expr: Expr) -> Expr:
    """What ``expr`` is a reshape of, where that keeps the last two extents; else ``expr``."""
    reshape = graph.call(expr, "relax.reshape")
    if reshape is None or len(dims_of(reshape.args[0])) < 3 or not equal_dims(
            dims_of(reshape.args[0])[-2:], dims_of(expr)[-2:]):
        return expr
    return reshape.args[0]


def _scores(graph: Graph, softmax: relax.Call, probabilities: Sequence[Expr]) -> tuple[_Scores | None, str]:
    rank = len(dims_of(softmax))
    if int(softmax.attrs.axis) % rank != rank - 1:
        return None, "the softmax is not over the last axis"
    if any(graph.only_reader(p) is None for p in probabilities):
        return None, "the probabilities have another reader"
    expr, biases, scale = softmax.args[0], [], 1.0
    while (product := graph.call(expr, "relax.matmul")) is None:
        if not isinstance(expr, relax.Var) or graph.only_reader(expr) is None:
            return None, "the scores have another reader, or are no matrix product"
        inner, factor = graph.scaled(expr)
        if inner.same_as(expr):
            inner = _before_reshape(graph, expr)
        if not inner.same_as(expr):
            expr, scale = inner, scale * factor
            continue
        taken = _without_mask(graph, expr) if scale == 1.0 else None
        if taken is None:
            return None, "the scores are not a scaled matrix product plus a mask"
        expr, bias = taken
        biases.append(bias)
    if graph.only_reader(expr) is None:
        return None, "the scores have another reader"
    (q, q_scale), (kt, k_scale) = graph.scaled(product.args[0]), graph.scaled(product.args[1])
    return _Scores(q, kt, scale * q_scale * k_scale, tuple(biases)), ""


def _without_mask(graph: Graph, expr: Expr) -> tuple[Expr, _Bias] | None:
    """``expr`` as scores and what is added to them, or hides them; None where it is no such thing."""
    addition, choice = graph.call(expr, "relax.add"), graph.call(expr, "relax.where")
    if addition is not None:
        left, right = addition.args
        scores, bias = (left, right) if _leads_to_product(graph, left) else (right, left)
        return (scores, _Bias(bias, dims_of(expr))) if equal_dims(dims_of(scores), dims_of(expr)) else None
    if choice is None:
        return None
    condition, *branches = choice.args
    for scores, other, hidden in ((*branches, False), (*reversed(branches), True)):
        number = scalar(other)
        if number is not None and number <= _HIDES and equal_dims(dims_of(scores), dims_of(expr)):
            return scores, _Bias(condition, dims_of(expr), hidden)
    return None


def _leads_to_product(graph: Graph, expr: Expr) -> bool:
    """Whether ``expr`` is a matrix product with scales and additions behind it."""
    for _ in range(8):
        if graph.call(expr, "relax.matmul") is not None:
            return True
        inner, _factor = graph.scaled(expr)
        if inner.same_as(expr):
            inner = _before_reshape(graph, expr)
        if inner.same_as(expr):
            masked = graph.call(expr, "relax.add", "relax.where")
            if masked is None:
                return False
            is_sum = op_name(masked) == "relax.add"
            inner = masked.args[0] if is_sum else max(masked.args[1:], key=lambda a: len(dims_of(a)))
        expr = inner
    return False


def _replacement(graph: Graph, scores: _Scores, v: Expr, result: tuple[Dim, ...]) -> tuple[Replacement | None, str]:
    operands = [_heads(graph, scores.q), _heads_of_transposed(graph, scores.kt), _heads(graph, v)]
    if not _same_heads(operands):
        operands = [_Operand.of(e, axes) for e, axes in ((scores.q, _PLAIN), (scores.kt, _TRANSPOSED), (v, _PLAIN))]
    q, k, value = (o.shape for o in operands)
    if not _same_heads(operands) or not is_equal_dim(q[3], k[3]) or not is_equal_dim(k[2], value[2]):
        return None, "query, key and value broadcast against each other"
    full = (*q[:3], k[2])
    biases = [b for b in scores.biases if not b.vanishes]
    views = [_bias_view(b, full) for b in biases]
    if any(w is None for w in views) or any(b.hidden is None and dtype_of(b.source) != "float32" for b in biases):
        return None, "the mask does not broadcast to [batch, heads, query, key]"

    def build(emit: Emit, *values: Expr) -> Expr:
        parts = zip(operands, values[:3], ("query", "key", "value"), strict=True)
        q, k, value = (operand.emit(emit, x, part) for operand, x, part in parts)
        if biases:
            own = [b.emit(emit, x) for b, x in zip(biases, values[3:], strict=True)]
            bias = _emit_bias(emit, own, [w for w in views if w is not None], full[3])
            call = relax.op.nn.attention_bias(q, k, value, bias, scale=scores.scale)
        else:
            call = relax.op.nn.attention(q, k, value, scale=scores.scale)
        own_layout = relax.op.permute_dims(emit(call, ""), [0, 2, 1, 3])
        return own_layout if len(result) == 4 else relax.op.reshape(emit(own_layout, "layout"), result)

    return Replacement((*(o.source for o in operands), *(b.source for b in biases)), build), ""


def _same_heads(operands: Sequence[_Operand]) -> bool:
    """Whether batch and heads of the operands are the same."""
    return all(equal_dims(operands[0].shape[:2], o.shape[:2]) for o in operands[1:])


# The axes of [batch, heads, a, b] in the order batch, sequence, heads, head_dim.
_PLAIN, _TRANSPOSED = (0, 2, 1, 3), (0, 3, 1, 2)


@dataclass(frozen=True)
class _Operand:
    """A tensor, its four-dimensional view, and which axes of that are batch, sequence, heads and head_dim."""

    source: Expr
    view: tuple[Dim, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, source: Expr, axes: tuple[int, ...]) -> _Operand:
        """Of a tensor of two dimensions, of three, with one head, or of four."""
        shape = dims_of(source)
        return cls(source, (*shape[:-2], *(1,) * (4 - len(shape)), *shape[-2:]), axes)

    @property
    def shape(self) -> tuple[Dim, Dim, Dim, Dim]:
        """[batch, heads, sequence, head_dim]."""
        batch, sequence, heads, width = (self.view[a] for a in self.axes)
        return batch, heads, sequence, width

    def emit(self, emit: Emit, value: Expr, part: str) -> relax.Var:
        """``value``, the tensor of the new function, as an operand of the attention operator."""
        if len(dims_of(value)) != len(self.view):
            value = emit(relax.op.reshape(value, self.view), part)
        return emit(relax.op.permute_dims(value, list(self.axes)), part)


def _unmerged(graph: Graph, expr: Expr) -> Expr:
    """The [batch, heads, a, b] tensor of which ``expr``, [batch · heads, a, b], is a reshape; else ``expr``."""
    reshape = graph.call(expr, "relax.reshape")
    if reshape is None or len(dims_of(expr)) != 3:
        return expr
    source = reshape.args[0]
    shape = dims_of(source)
    return source if len(shape) == 4 and equal_dims(shape[2:], dims_of(expr)[1:]) else expr


def _heads(graph: Graph, expr: Expr) -> _Operand:
    return _Operand.of(_unmerged(graph, expr), _PLAIN)


def _heads_of_transposed(graph: Graph, expr: Expr) -> _Operand:
    permute = graph.call(expr, "relax.permute_dims")
    if permute is not None and permutation_of(permute) == (0, 2, 1):
        return _Operand.of(_unmerged(graph, permute.args[0]), _PLAIN)
    return _Operand.of(_unmerged(graph, expr), _TRANSPOSED)


@dataclass(frozen=True)
class _View:
    """A bias with four dimensions that broadcast to [batch, heads, query, key].

    spread : the shape to broadcast it to first, where its dimensions are joined in part only; else None.
    """

    shape: tuple[Dim, ...]
    spread: tuple[Dim, ...] | None = None


def _bias_view(bias: _Bias, full: tuple[Dim, ...]) -> _View | None:
    """How a bias broadcasts to ``full``; None where it does not."""
    own = dims_of(bias.source)
    own = (*(1,) * (len(bias.shape) - len(own)), *own)
    leading, count = own[:-2], len(own) - 2
    if count == 0:
        return _fitting(_View((1, 1, *own)), full)
    if count == 1:
        wanted: tuple[Dim, ...] = full[:2] if is_equal_dim(leading[0], product_of(full[:2])) else (1, *leading)
        return _fitting(_View((*wanted, *own[-2:])), full)
    if count == 2:
        return _fitting(_View(own), full)
    outer = bias.shape[:-3]
    if all(is_equal_dim(d, 1) for d in leading[:-1]):
        return _fitting(_View((1, *own[-3:])), full)
    return _fitting(_View((product_of(outer), *own[-3:]), (*outer, *own[-3:])), full)


def _fitting(view: _View, full: tuple[Dim, ...]) -> _View | None:
    fits = all(is_equal_dim(d, 1) or is_equal_dim(d, f) for d, f in zip(view.shape, full, strict=True))
    return view if fits else None


def _emit_bias(emit: Emit, biases: Sequence[Expr], views: Sequence[_View], keys: Dim) -> Expr:
    total: Expr | None = None
    for bias, view in zip(biases, views, strict=True):
        if view.spread is not None:
            bias = emit(relax.op.broadcast_to(bias, view.spread), "bias")
        if len(dims_of(bias)) != 4 or not equal_dims(dims_of(bias), view.shape):
            bias = emit(relax.op.reshape(bias, view.shape), "bias")
        total = bias if total is None else emit(relax.op.add(total, bias), "bias")
    shape = dims_of(total)
    return total if is_equal_dim(shape[3], keys) else emit(relax.op.broadcast_to(total, (*shape[:3], keys)), "bias")
