"""Attention as ONNX Runtime's own domain has it: with projections, masks in several forms, caches and rotations.

Sequences are [batch, sequence, hidden] outside and [batch, heads, sequence, head_dim] inside. Masks add the operator's
filter value where they hide a key; what causality hides adds ``emit.MASKED``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from ...dims import Dim
from ...ir import Expr, dims_of, dtype_of
from .. import emit
from ..extents import positions, triangle
from .attention import require_fitting
from .broadcasting import broadcastable
from .composition import standard
from .integers import given
from .linear import product
from .node import MICROSOFT, OnnxNode, Results, Tensor, operator

_FILTER = -10000.0


def _added(node: OnnxNode, a: Expr | None, b: Expr, part: str) -> Expr:
    return b if a is None else node.emit(relax.op.add(*broadcastable(node, [a, b])), part)


def _split_heads(node: OnnxNode, x: Tensor, heads: int, part: str) -> relax.Var:
    """[batch, sequence, heads · head_dim] as [batch, heads, sequence, head_dim]."""
    x = node.constant(x)
    batch, steps, hidden = dims_of(x)
    (width,) = node.numbers([hidden], part)
    if heads < 1 or width % heads:
        raise node.fault("the heads do not divide the hidden size", found=f"{width}, {heads} heads")
    x = node.emit(relax.op.reshape(x, (batch, steps, heads, width // heads)), part)
    return node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]), part)


def _joined_heads(node: OnnxNode, x: Expr) -> relax.Var:
    batch, heads, steps, width = dims_of(x)
    x = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(x, (batch, steps, heads * width)))


def _parts(node: OnnxNode, x: Expr, widths: Sequence[int], names: Sequence[str]) -> list[Expr]:
    """Slices of the last axis."""
    ends, axis = np.cumsum(widths).tolist(), len(dims_of(x)) - 1
    return [node.emit(relax.op.strided_slice(x, [axis], [e - w], [e]), n)
            for e, w, n in zip(ends, widths, names, strict=True)]


def _extended(node: OnnxNode, past: Tensor | None, new: Expr, part: str) -> Expr:
    """The cached keys or values, then the new ones."""
    if past is None or any(isinstance(d, int) and d == 0 for d in dims_of(node.constant(past))):
        return new
    return node.emit(relax.op.concat([node.constant(past), new], 2), part)


def _hidden(node: OnnxNode, hides: Expr, value: float) -> relax.Var:
    """The bias of booleans that say which keys are hidden."""
    hidden, seen = (emit.float_constant(np.asarray(v)) for v in (value, 0.0))
    return node.emit(relax.op.where(hides, hidden, seen), "mask")


def _mask(node: OnnxNode, index: int, batch: Dim, keys: Dim) -> Expr:
    """Input ``index`` as a bias: [batch, keys] or [batch, queries, keys] with 0 for what is hidden, or the number of
    keys of every sequence, [batch], or these and where they start, [2 · batch]."""
    mask, value = node.expr(index), float(node.attribute("mask_filter_value", _FILTER))
    rank, dtype = node.rank(index), dtype_of(node.expr(index))
    if rank in (2, 3):
        hidden = node.emit(relax.op.equal(mask, node.constant(0, dtype)), "mask")
        return _hidden(node, node.emit(relax.op.expand_dims(hidden, [1, 2] if rank == 2 else [1]), "mask"), value)
    counts, (size,) = node.shape(index), node.numbers([batch], "the batch")
    if rank != 1 or counts[0] not in (size, 2 * size):
        raise node.unsupported(f"with a mask of {rank} dimensions" if rank != 1 else "with packed sequences")
    place = node.emit(relax.op.reshape(positions(node.builder, node.name, keys, dtype), (1, 1, 1, keys)), "mask")

    def bound(first: int) -> Expr:
        part = mask if counts[0] == size else node.emit(relax.op.strided_slice(mask, [0], [first], [first + size]),
                                                        "mask")
        return node.emit(relax.op.reshape(part, (size, 1, 1, 1)), "mask")

    hidden = node.emit(relax.op.greater_equal(place, bound(0)), "mask")
    if counts[0] == 2 * size:
        early = node.emit(relax.op.less(place, bound(size)), "mask")
        hidden = node.emit(relax.op.logical_or(hidden, early), "mask")
    return _hidden(node, hidden, value)


def _causal(node: OnnxNode, queries: Dim, keys: Dim) -> Expr:
    """The last query sees all keys, each one before it one less."""
    visible = triangle(node.builder, f"{node.name}.causal", queries, keys, keys - queries)
    return emit.mask_bias(node.builder, f"{node.name}.causal", visible)


def _attended(node: OnnxNode, q: Expr, k: Expr, v: Expr, biases: Sequence[Expr]) -> relax.Var:
    require_fitting(node, q, k, v)
    bias: Expr | None = None
    for b in biases:
        bias = _added(node, bias, b, "bias")
    width = node.numbers(dims_of(q)[3:], "the heads")[0]
    scale = float(node.attribute("scale", 0.0)) or width ** -0.5
    return _joined_heads(node, emit.attention(node.builder, node.name, q, k, v, bias, scale=scale))


def _refuse(node: OnnxNode, *attributes: str) -> None:
    for name in attributes:
        if node.attribute(name, 0):
            raise node.unsupported(f"with {name}")


@operator("Attention", domain=MICROSOFT)
def attention(node: OnnxNode) -> Results:
    """Projections of one input to queries, keys and values, then attention."""
    _refuse(node, "do_rotary", "past_present_share_buffer")
    projected = product(node, node.expr(0), node.expr(1))
    if node.has(2):
        projected = node.emit(relax.op.add(projected, node.expr(2)), "projected")
    return _self_attention(node, projected, mask=3, past=4, bias=5)


@operator("QAttention", domain=MICROSOFT)
def quantized_attention(node: OnnxNode) -> Results:
    """The same with a quantized input and weight."""
    _refuse(node, "do_rotary", "past_present_share_buffer")
    x, w = given(node, 0, 3, 6, part="data"), given(node, 1, 4, 7, 1, "weight")
    projected = product(node, node.constant(x), node.constant(w))
    projected = node.emit(relax.op.add(projected, node.expr(2)), "projected")
    return _self_attention(node, projected, mask=5, past=8, bias=9)


def _self_attention(node: OnnxNode, projected: Expr, *, mask: int, past: int, bias: int) -> Results:
    heads, total = int(node.attribute("num_heads", 0)), node.numbers(dims_of(projected)[2:], "the projection")[0]
    widths = tuple(node.attribute("qkv_hidden_sizes", ())) or (total // 3,) * 3
    if sum(widths) != total or len(widths) != 3:
        raise node.fault("the projection does not divide into queries, keys and values", found=total)
    q, k, v = (_split_heads(node, x, heads, part) for x, part in zip(
        _parts(node, projected, widths, ("query", "key", "value")), ("query", "key", "value"), strict=True))
    if node.has(past):
        old = [node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(node.expr(past), [0], [i], [i + 1]), "past"),
                                          [0]), "past") for i in (0, 1)]
        k, v = _extended(node, old[0], k, "key"), _extended(node, old[1], v, "value")
    (batch, _, queries, _), keys = dims_of(q), dims_of(k)[2]
    biases = [node.expr(bias)] if node.has(bias) else []
    biases += [_mask(node, mask, batch, keys)] if node.has(mask) else []
    biases += [_causal(node, queries, keys)] if node.attribute("unidirectional", 0) else []
    result = _attended(node, q, k, v, biases)
    if not any(node.outputs[1:]):
        return result
    return result, node.emit(relax.op.stack([k, v], 0), "present")


@operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: OnnxNode) -> Results:
    """Queries, keys and values projected already; keys and values may have their heads split, or all may be packed."""
    if any(node.has(i) for i in (8, 9)) or any(node.outputs[3:]):
        raise node.unsupported("with a shared cache or the scores as an output")
    heads = int(node.attribute("num_heads", 0))
    q, k, v = (_split_heads(node, x, heads, part) if len(dims_of(x)) == 3 else x for x, part in zip(
        _with_bias(node, _separate(node)), ("query", "key", "value"), strict=True))
    k, v = (_extended(node, node.value(i) if node.has(i) else None, x, part)
            for i, x, part in ((6, k, "key"), (7, v, "value")))
    (batch, _, queries, _), keys = dims_of(q), dims_of(k)[2]
    biases = [node.expr(5)] if node.has(5) else []
    biases += [_mask(node, 4, batch, keys)] if node.has(4) else []
    biases += [_causal(node, queries, keys)] if node.attribute("unidirectional", 0) else []
    result = _attended(node, q, k, v, biases)
    return (result, k, v) if any(node.outputs[1:]) else result


def _separate(node: OnnxNode) -> list[Expr]:
    """Queries, keys and values, each of three dimensions, or of four with the heads split."""
    packed = 0 if node.rank(0) == 5 else 1 if node.rank(1) == 5 else None
    if packed is None:
        return [node.expr(i) for i in range(3)]
    x, count = node.expr(packed), 3 - packed
    batch, steps, heads, _, width = dims_of(x)
    parts = [node.emit(relax.op.strided_slice(x, [3], [i], [i + 1]), "part") for i in range(count)]
    merged = [node.emit(relax.op.reshape(p, (batch, steps, heads * width)), "part") for p in parts]
    return merged if packed == 0 else [node.expr(0), *merged]


def _with_bias(node: OnnxNode, operands: Sequence[Expr]) -> list[Expr]:
    """The operands with their shares of the projection's bias."""
    if not node.has(3):
        return list(operands)
    widths = [node.numbers(dims_of(x)[-1:], "a projection")[0] for x in operands]
    if any(len(dims_of(x)) != 3 for x in operands):
        raise node.unsupported("with a bias on split heads")
    shares = _parts(node, node.expr(3), widths, ("bias", "bias", "bias"))
    return [node.emit(relax.op.add(x, b), "biased") for x, b in zip(operands, shares, strict=True)]


@operator("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: OnnxNode) -> Results:
    """Pairs of elements turned by the angle of their position (Su et al. 2021)."""
    _refuse(node, "is_packed_batching")
    if float(node.attribute("scale", 1.0)) != 1.0:
        raise node.unsupported("with a scale")
    heads, split = int(node.attribute("num_heads", 0)), node.rank(0) == 4
    turned = int(node.attribute("rotary_embedding_dim", 0)) or 2 * node.shape(2)[1]
    if not split and not (node.attribute("rotary_embedding_dim", 0) and heads):
        heads = node.numbers(node.dims(0)[2:], "the input")[0] // turned
    x = node.expr(0) if split else _split_heads(node, node.value(0), heads, "heads")
    if all(isinstance(d, int) and d == 1 for d in node.dims(1)):  # Where the sequences start.
        start = node.emit(relax.op.reshape(node.expr(1), (1,)), "start")
        place = node.emit(relax.op.add(positions(node.builder, node.name, dims_of(x)[2]), start), "place")
        place = node.emit(relax.op.expand_dims(place, 0), "place")
    else:
        place = node.expr(1)
    result = rotated(node, x, (node.value(2), node.value(3)), place, interleaved=bool(node.attribute("interleaved", 0)))
    return result if split else _joined_heads(node, result)


def rotated(node: OnnxNode, x: Expr, tables: tuple[Tensor, Tensor], place: Tensor, *, interleaved: bool) -> relax.Var:
    """``x`` turned at the positions ``place`` [batch or 1, sequence] by tables [positions, half of what is turned]."""
    cos, sin = (node.emit(relax.op.expand_dims(node.constant(
        standard(node, "Gather", [t, place], part, axis=0)), 1), part)
        for t, part in zip(tables, ("cosines", "sines"), strict=True))
    dims, half = dims_of(x), node.numbers(dims_of(cos)[3:], "the tables")[0]
    (width,) = node.numbers(dims[3:], "the heads")
    turned, *rest = _parts(node, x, (2 * half, width - 2 * half), ("turned", "rest")) if width > 2 * half else [x]
    if interleaved:
        pairs = node.emit(relax.op.reshape(turned, (*dims[:3], half, 2)), "pairs")
        a, b = (node.emit(relax.op.squeeze(p, [4]), "pair") for p in _parts(node, pairs, (1, 1), ("pair", "pair")))
    else:
        a, b = _parts(node, turned, (half, half), ("left", "right"))

    def mixed(op: Callable[[Expr, Expr], Expr], first: Expr, second: Expr) -> relax.Var:
        products = [node.emit(relax.op.multiply(*broadcastable(node, [t, f])), "product")
                    for t, f in ((a, first), (b, second))]
        return node.emit(op(*products), "turned")

    real, imaginary = mixed(relax.op.subtract, cos, sin), mixed(relax.op.add, sin, cos)
    if interleaved:
        y = node.emit(relax.op.reshape(node.emit(relax.op.stack([real, imaginary], 4), "pairs"),
                                       (*dims[:3], 2 * half)), "turned")
        return node.emit(relax.op.concat([y, *rest], 3)) if rest else y
    return node.emit(relax.op.concat([real, imaginary, *rest], 3))


@operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: OnnxNode) -> Results:
    """Causal attention with fewer heads for keys and values, and a cache.

    All sequences are as long as the inputs say, cached part and all: ``seqlens_k`` may hide keys of a prompt that are
    padding, and its maximum is that length less 1.
    """
    _refuse(node, "softcap", "smooth_softmax", "sliding_window_cache", "qk_output")
    if any(node.has(i) for i in range(11, len(node.inputs))) or any(
            node.attribute(a, "NONE") != "NONE" for a in ("k_quant_type", "v_quant_type")):
        raise node.unsupported("with sinks, normalized heads, padded chunks or a quantized cache")
    heads, groups = int(node.attribute("num_heads", 0)), int(node.attribute("kv_num_heads", 0))
    if not node.has(1):
        width = node.numbers(node.dims(0)[2:], "the packed input")[0] // (heads + 2 * groups)
        q, k, v = _parts(node, node.expr(0), (heads * width, groups * width, groups * width), ("query", "key", "value"))
    else:
        q, k, v = (node.expr(i) for i in range(3))
    q, k, v = (_split_heads(node, x, n, part) for x, n, part in (
        (q, heads, "query"), (k, groups, "key"), (v, groups, "value")))
    past = node.dims(3)[2] if node.has(3) else 0
    (batch, _, queries, _), is_prompt = dims_of(q), isinstance(past, int) and past == 0
    if not is_prompt and not (isinstance(batch, int) and batch == 1):
        raise node.unsupported("with a cache for several sequences, whose lengths may differ,")
    if node.attribute("do_rotary", 0):
        q, k = _rotated_pair(node, q, k, past)
    if not is_prompt:
        k, v = _extended(node, node.value(3), k, "key"), _extended(node, node.value(4), v, "value")
    keys = dims_of(k)[2]
    biases = [node.expr(10)] if node.has(10) else []
    if node.attribute("causal", 1):
        biases.append(_causal(node, queries, keys))
    if int(node.attribute("local_window_size", -1)) > 0:
        biases.append(_window(node, queries, keys, int(node.attribute("local_window_size"))))
    if is_prompt:
        biases.append(_within_lengths(node, keys))
    result = _attended(node, q, k, v, biases)
    return (result, k, v) if any(node.outputs[1:]) else result


def _rotated_pair(node: OnnxNode, q: Expr, k: Expr, past: Dim) -> list[Expr]:
    """Queries and keys turned at their positions, which follow the cached ones where the node does not state them."""
    if node.has(9):
        place: Tensor = node.value(9)
    else:
        steps = positions(node.builder, node.name, past + dims_of(q)[2])
        place = standard(node, "Unsqueeze", [steps if isinstance(steps, relax.Var) else steps.value.numpy(),
                                             np.zeros(1, np.int64)], "place")
        place = node.emit(relax.op.strided_slice(node.constant(place), [1], [past], [past + dims_of(q)[2]]), "place")
    interleaved = bool(node.attribute("rotary_interleaved", 0))
    return [rotated(node, x, (node.value(7), node.value(8)), place, interleaved=interleaved) for x in (q, k)]


def _window(node: OnnxNode, queries: Dim, keys: Dim, size: int) -> Expr:
    """Every query sees the ``size`` keys up to its own."""
    early = triangle(node.builder, f"{node.name}.window", queries, keys, keys - queries - size)
    return _hidden(node, early, emit.MASKED)


def _within_lengths(node: OnnxNode, keys: Dim) -> Expr:
    """Keys of a prompt beyond the length of their sequence are padding."""
    last = node.emit(relax.op.reshape(node.expr(5), (-1, 1, 1, 1)), "last")
    place = positions(node.builder, node.name, keys, dtype_of(last))
    place = node.emit(relax.op.reshape(place, (1, 1, 1, keys)), "place")
    return _hidden(node, node.emit(relax.op.greater(place, last), "padding"), emit.MASKED)
