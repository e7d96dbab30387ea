"""LinearAttention: heads unpacked, decay and rate in their full shapes, one ``narrowcast.linear_attention``."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import Dim
from ...ir import Expr
from ...operators.linear_attention import linear_attention
from .algebra import Algebra
from .node import OnnxNode, Results, operator

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@operator("LinearAttention")
def linear_attention_layer(node: OnnxNode) -> Results:
    rule = node.attribute("update_rule", "gated_delta")
    if rule not in _RULES:
        raise node.fault("the update rule is unknown", found=rule, expected=", ".join(_RULES))
    gated, delta = _RULES[rule]
    queries, heads = (int(node.attribute(n, 0)) for n in ("q_num_heads", "kv_num_heads"))
    widths = [node.numbers(node.dims(i)[2:], f"input {i}") for i in range(3)]
    if heads < 1 or queries < 1 or queries % heads or any(len(w) != 1 for w in widths) \
            or widths[0][0] % queries or widths[1][0] % heads or widths[2][0] % heads:
        raise node.fault("the heads do not fit", found=f"{queries} and {heads} heads, {widths}")
    if gated != node.has(4) or delta != node.has(5):
        raise node.fault("decay and beta do not fit the update rule", found=rule)
    batch, steps, _ = node.dims(1)
    key, value = widths[1][0] // heads, widths[2][0] // heads
    algebra = Algebra(node, "operands")
    scale = float(node.attribute("scale", 0.0)) or float(1 / np.sqrt(key))
    q = algebra.reshape(algebra.multiply(node.expr(0), scale), [batch, steps, queries, key])
    k = algebra.reshape(node.expr(1), [batch, steps, heads, key])
    v = algebra.reshape(node.expr(2), [batch, steps, heads, value])
    decay = _per_head(node, algebra, 4, (batch, steps, heads, key))
    decay = node.emit(relax.op.exp(decay), "operands") if gated else decay
    rate = algebra.reshape(_per_head(node, algebra, 5, (batch, steps, heads, 1)), [batch, steps, heads])
    whole = (batch, heads, key, value)
    state = node.expr(3) if node.has(3) else algebra.broadcast(node.constant(np.zeros((1,) * 4, np.float32)), whole)
    both = node.emit(linear_attention(q, k, v, state, decay, rate, delta=delta))
    result = node.emit(relax.TupleGetItem(both, 0), "heads")
    present = node.emit(relax.TupleGetItem(both, 1), "state")
    return node.emit(relax.op.reshape(result, (batch, steps, queries * value))), present


def _per_head(node: OnnxNode, algebra: Algebra, index: int, shape: tuple[Dim, Dim, int, int]) -> Expr:
    """Input ``index`` in the full shape, one number a head or one for each element; ones where it is left out."""
    if not node.has(index):
        return algebra.broadcast(node.constant(np.ones((1,) * 4, np.float32)), shape)
    batch, steps, heads, width = shape
    (last,) = node.numbers(node.dims(index)[2:], f"input {index}")
    if last not in (1, heads, heads * width):
        raise node.fault("decay or beta does not fit the heads", found=last, expected=(heads, heads * width))
    own = (batch, steps, heads, width) if last == heads * width else (batch, steps, last, 1)
    value = algebra.reshape(node.expr(index), own)
    return value if own == shape else algebra.broadcast(value, shape)
