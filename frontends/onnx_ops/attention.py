"""ONNX's Attention in the preferred form. Forms with a soft cap, a window or the scores as an output are left to the
operator's own definition in ONNX."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import is_equal_dim, simplified
from ...ir import Constant, Expr, constant_value, dims_of, dtype_of
from .. import emit
from ..extents import triangle
from .algebra import Algebra
from .broadcasting import broadcastable
from .integers import as_value
from .node import OnnxNode, Results, operator

# A row of biases below this hides all of its keys.
_HIDDEN = emit.MASKED / 2


@operator("Attention")
def attention(node: OnnxNode) -> Results:
    """``softmax(scale · q kᵀ + mask) v``; queries that see no key at all get zeros."""
    _check_form(node)
    steps, packed = Algebra(node, "operands"), node.rank(0) == 3
    heads, own_heads = (int(node.attribute(n, 0)) for n in ("q_num_heads", "kv_num_heads"))
    q, k, v = (_heads(node, steps, i, h) for i, h in enumerate((heads, own_heads, own_heads)))
    fresh = dims_of(k)[2]
    k, v = (_extended(node, i, new) for i, new in ((4, k), (5, v)))
    queries, keys, depth = dims_of(q)[2], dims_of(k)[2], dims_of(q)[3]
    shared = node.numbers([dims_of(x)[1] for x in (q, k, v)], "the heads")
    if shared[0] % shared[1] or shared[1] != shared[2] or not is_equal_dim(dims_of(k)[3], depth):
        raise node.fault("query, key and value do not fit", found=shared)
    require_fitting(node, q, k, v)
    scale = node.attribute("scale")
    if scale is None:
        scale = node.numbers([depth], "the size of a head")[0] ** -0.5
    bias = _mask(node, steps, keys) if node.has(3) else None
    seen = None if bias is None else _seeing(node, steps, bias)
    if node.attribute("is_causal", 0):
        causal = triangle(node.builder, f"{node.name}.causal", queries, keys, simplified(keys - fresh))
        causal = emit.mask_bias(node.builder, f"{node.name}.causal", causal)
        if bias is not None:
            bias = node.emit(relax.op.add(*broadcastable(node, [bias, causal])), "mask")
            seen = _seeing(node, steps, bias)
        else:
            bias = causal
    result: Expr = emit.attention(node.builder, node.name, q, k, v, bias, scale=float(scale))
    result = result if seen is None else steps.multiply(result, seen)
    if packed:
        batch, _, count, width = dims_of(result)
        result = node.emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
        result = node.emit(relax.op.reshape(result, (batch, count, shared[0] * width)))
    return result, as_value(k), as_value(v)


def require_fitting(node: OnnxNode, q: Expr, k: Expr, v: Expr) -> None:
    """Query, key and value, [batch, heads, sequence, width], have one batch, and as many values as keys."""
    batch, keys = dims_of(q)[0], dims_of(k)[2]
    for own, other in ((batch, dims_of(k)[0]), (batch, dims_of(v)[0]), (keys, dims_of(v)[2])):
        node.require_equal(own, other, "query, key and value do not fit")


def _check_form(node: OnnxNode) -> None:
    if float(node.attribute("softcap", 0.0)) != 0.0:
        raise node.unsupported("with a soft cap")
    if any(int(node.attribute(f"{side}_window_size", -1)) >= 0 for side in ("left", "right")):
        raise node.unsupported("with a window")
    if any(node.outputs[3:]):
        raise node.unsupported("with the scores as an output")
    if node.has(6):
        raise node.unsupported("with numbers of keys")
    if node.has(4) != node.has(5) or len({node.rank(i) for i in range(3)}) > 1 or node.rank(0) not in (3, 4):
        raise node.fault("query, key and value do not fit", found=[node.rank(i) for i in range(3)])


def _heads(node: OnnxNode, steps: Algebra, index: int, heads: int) -> Expr:
    """Input ``index`` as [batch, heads, sequence, width]; packed ones are [batch, sequence, heads · width]."""
    x = node.expr(index)
    if node.rank(index) == 4:
        return x
    batch, count, hidden = dims_of(x)
    (width,) = node.numbers([hidden], f"input {index}")
    if heads < 1 or width % heads:
        raise node.fault("the heads do not divide the hidden size", found=f"{width}, {heads} heads")
    return steps.permuted(steps.reshape(x, [batch, count, heads, width // heads]), [0, 2, 1, 3])


def _extended(node: OnnxNode, index: int, fresh: Expr) -> Expr:
    """The cached keys or values of input ``index``, then the new ones."""
    if not node.has(index) or is_equal_dim(node.dims(index)[2], 0):
        return fresh
    return node.emit(relax.op.concat([node.expr(index), fresh], 2), "present")


def _mask(node: OnnxNode, steps: Algebra, keys: object) -> Expr:
    """The mask as a float32 bias whose smallest value is ``emit.MASKED``; what it lacks of the keys is hidden."""
    mask = node.expr(3)
    if dtype_of(mask) == "bool":
        mask = emit.mask_bias(node.builder, f"{node.name}.mask", mask)
    else:
        mask = steps(relax.op.maximum, mask, emit.MASKED)
    rank, last = len(dims_of(mask)), dims_of(mask)[-1]
    if is_equal_dim(last, keys) or is_equal_dim(last, 1):
        return mask
    own, wanted = node.numbers([last, keys], "the mask")  # type: ignore[list-item]
    if own > wanted:
        raise node.fault("the mask is longer than the keys", found=own, expected=wanted)
    return node.emit(relax.op.nn.pad(mask, [0, 0] * (rank - 1) + [0, wanted - own], "constant", emit.MASKED), "mask")


def _seeing(node: OnnxNode, steps: Algebra, bias: Expr) -> Expr | None:
    """1 for every query that sees a key, else 0, [..., queries, 1]; None where all are known to see one."""
    if isinstance(bias, Constant) and (constant_value(bias).max(axis=-1) > _HIDDEN).all():
        return None
    top = node.emit(relax.op.max(bias, [len(dims_of(bias)) - 1], True), "seeing")
    return steps.cast(steps(relax.op.greater, top, np.float32(_HIDDEN)), "float32")
