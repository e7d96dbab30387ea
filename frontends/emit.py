"""The preferred forms (docs/design.md), written once for both frontends.

Every function emits bindings under a layer's name and returns the variable that holds the result. The layer's main
operation is emitted first and so carries the plain name; what prepares its operands is called ``name.part``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..dims import Dim, is_equal_dim
from ..ir import Constant, Expr, GraphBuilder, constant, constant_value, dims_of, dtype_of
from ..operators.recurrent import OPTIONAL_ZEROS, Recurrence, recurrent_layer
from .extents import extent as extent_of
from .extents import extents as extents_of
from .extents import triangle

# Stands for minus infinity in masks: its exponential is 0 next to any score, and sums with scores stay finite.
MASKED = -1e30

_CONVOLUTIONS = {
    (1, False): relax.op.nn.conv1d, (2, False): relax.op.nn.conv2d, (3, False): relax.op.nn.conv3d,
    (1, True): relax.op.nn.conv1d_transpose, (2, True): relax.op.nn.conv2d_transpose,
    (3, True): relax.op.nn.conv3d_transpose,
}


def float_constant(array: np.ndarray) -> Expr:
    """A float32 constant of any array of numbers."""
    return constant(np.asarray(array, dtype=np.float32))


def per_channel(values: np.ndarray, spatial: int) -> Expr:
    """The constant [C, 1, …] with ``spatial`` trailing ones that broadcasts over the channels of [N, C, …]."""
    return float_constant(np.asarray(values).reshape(-1, *([1] * spatial)))


def within(builder: GraphBuilder, name: str, indices: Expr, extents: Dim | Sequence[Dim]) -> relax.Var:
    """Indices that are known only at run time, made safe: ``indices mod extents``, so that nothing outside is read.

    Negative ones count from the end; what is out of range, an error of the caller that a program cannot report, picks
    some element. ``extents`` (above 0) is one number, or one for each entry of the last axis.
    """
    dtype = dtype_of(indices)
    bound = extents_of(builder, name, extents, dtype) if isinstance(extents, (list, tuple)) else \
        extent_of(builder, name, extents, dtype)
    return builder.emit(relax.op.floor_mod(indices, bound), f"{name}.positions")


def convolution(builder: GraphBuilder, name: str, x: Expr, weight: Expr, bias: np.ndarray | None, *,
                strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> relax.Var:
    """A convolution of [N, C, spatial…] with weights [O, I/groups, spatial…], then the bias as an addition.

    ``padding`` has one number per spatial dimension, or all the starts followed by all the ends.
    """
    spatial = len(dims_of(x)) - 2
    op = _CONVOLUTIONS[spatial, False]
    call = op(x, weight, strides=list(strides), padding=list(padding), dilation=list(dilation), groups=groups)
    return add_bias(builder, name, builder.emit(call, name), bias, spatial)


def transposed_convolution(builder: GraphBuilder, name: str, x: Expr, weight: Expr, bias: np.ndarray | None, *,
                           strides: Sequence[int], padding: Sequence[int], output_padding: Sequence[int],
                           dilation: Sequence[int], groups: int) -> relax.Var:
    """A transposed convolution with weights [I, O/groups, spatial…], then the bias as an addition."""
    spatial = len(dims_of(x)) - 2
    op = _CONVOLUTIONS[spatial, True]
    call = op(x, weight, strides=list(strides), padding=list(padding), output_padding=list(output_padding),
              dilation=list(dilation), groups=groups)
    return add_bias(builder, name, builder.emit(call, name), bias, spatial)


def add_bias(builder: GraphBuilder, name: str, x: relax.Var, bias: np.ndarray | None, spatial: int) -> relax.Var:
    """``x + bias`` over the channel that has ``spatial`` dimensions behind it; ``x`` where there is no bias."""
    if bias is None:
        return x
    return builder.emit(relax.op.add(x, per_channel(bias, spatial)), name)


def linear(builder: GraphBuilder, name: str, x: Expr, weight: np.ndarray, bias: np.ndarray | None) -> relax.Var:
    """``x @ weight + bias`` with a constant weight [K, N] and a bias [N]."""
    y = builder.emit(relax.op.matmul(x, float_constant(weight)), name)
    return add_bias(builder, name, y, bias, 0)


def batch_norm(builder: GraphBuilder, name: str, x: Expr, *, gamma: np.ndarray | None, beta: np.ndarray | None,
               mean: np.ndarray, variance: np.ndarray, epsilon: float) -> relax.Var:
    """Batch normalization by stored statistics over axis 1, written as a multiplication and an addition.

    The two constants are computed in float64 and rounded once.
    """
    scale = 1.0 / np.sqrt(np.asarray(variance, np.float64) + epsilon)
    scale = scale if gamma is None else scale * np.asarray(gamma, np.float64)
    shift = -np.asarray(mean, np.float64) * scale
    shift = shift if beta is None else shift + np.asarray(beta, np.float64)
    spatial = max(len(dims_of(x)) - 2, 0)
    y = builder.emit(relax.op.multiply(x, per_channel(scale, spatial)), name)
    return builder.emit(relax.op.add(y, per_channel(shift, spatial)), name)


def attention(builder: GraphBuilder, name: str, q: Expr, k: Expr, v: Expr, bias: Expr | None, *,
              scale: float) -> relax.Var:
    """``softmax(scale · q kᵀ + bias) v`` for q, k, v of [batch, heads, sequence, head_dim].

    ``bias`` is float32 and broadcasts to [batch, heads, query, key]. The result has the layout of ``q``. Key and value
    heads that are fewer than the query heads are repeated (grouped query attention).
    """
    heads, keys = dims_of(q)[1], dims_of(k)[2]
    k, v = (_repeat_heads(builder, f"{name}.{part}", t, heads) for part, t in (("key", k), ("value", v)))
    q, k, v = (builder.emit(relax.op.permute_dims(t, [0, 2, 1, 3]), f"{name}.{part}")
               for part, t in (("query", q), ("key", k), ("value", v)))
    if bias is None:
        call = relax.op.nn.attention(q, k, v, scale=scale)
    else:
        call = relax.op.nn.attention_bias(q, k, v, _full_bias(builder, f"{name}.bias", bias, keys), scale=scale)
    return builder.emit(relax.op.permute_dims(builder.emit(call, name), [0, 2, 1, 3]), name)


def _repeat_heads(builder: GraphBuilder, name: str, x: Expr, heads: Dim) -> Expr:
    own = dims_of(x)[1]
    if is_equal_dim(own, heads):
        return x
    return builder.emit(relax.op.repeat(x, int(heads) // int(own), axis=1), name)


def _full_bias(builder: GraphBuilder, name: str, bias: Expr, keys: Dim) -> Expr:
    """``bias`` with four dimensions of which the last is ``keys`` (Relax broadcasts the other three only)."""
    shape = dims_of(bias)
    if len(shape) < 4:
        shape = (1,) * (4 - len(shape)) + shape
        bias = builder.emit(relax.op.reshape(bias, shape), name)
    if not is_equal_dim(shape[3], keys):
        bias = builder.emit(relax.op.broadcast_to(bias, (*shape[:3], keys)), name)
    return bias


def mask_bias(builder: GraphBuilder, name: str, mask: Expr) -> relax.Var:
    """The float32 bias of a boolean mask: 0 where it is true, ``MASKED`` where it is false."""
    return builder.emit(relax.op.where(mask, float_constant(np.zeros(())), float_constant(np.array(MASKED))), name)


def causal_bias(builder: GraphBuilder, name: str, queries: Dim, keys: Dim) -> Expr:
    """[queries, keys] float32: query i sees the keys up to i."""
    visible = triangle(builder, name, queries, keys)
    if isinstance(visible, Constant):
        return float_constant(np.where(constant_value(visible), 0.0, MASKED))
    return mask_bias(builder, name, visible)


def recurrent(builder: GraphBuilder, name: str, form: Recurrence, **operands: Expr | None) -> tuple[relax.Var, ...]:
    """The results of a recurrent layer (``operators.recurrent``): all hidden states, the last one, the last cell state
    of an LSTM. Biases, states and peepholes that are constants of 0 are left out."""
    given = {n: o for n, o in operands.items() if o is not None and not (n in OPTIONAL_ZEROS and _is_zero(o))}
    result = builder.emit(recurrent_layer(form, **given), name)
    parts = ("sequence", "hidden", "cell")[:len(result.ty.fields)]
    return tuple(builder.emit(relax.TupleGetItem(result, i), f"{name}.{part}") for i, part in enumerate(parts))


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Constant) and not constant_value(expr).any()


def layer_norm(builder: GraphBuilder, name: str, x: Expr, gamma: Expr | None, beta: Expr | None, *,
               axes: Sequence[int], epsilon: float) -> relax.Var:
    """Layer normalization over the trailing ``axes``; a missing gamma is ones, a missing beta zeros.

    Over symbolic extents, which no gamma and beta can have, it is written out.
    """
    extent = [dims_of(x)[a] for a in axes]
    if not all(isinstance(d, int) for d in extent):
        return _standardized(builder, name, x, axes, epsilon)
    gamma = float_constant(np.ones(extent)) if gamma is None else gamma
    beta = float_constant(np.zeros(extent)) if beta is None else beta
    return builder.emit(relax.op.nn.layer_norm(x, gamma, beta, axes=list(axes), epsilon=epsilon), name)


def _standardized(builder: GraphBuilder, name: str, x: Expr, axes: Sequence[int], epsilon: float) -> relax.Var:
    """``(x - mean) / sqrt(variance + epsilon)`` over ``axes``."""
    op = relax.op
    mean = builder.emit(op.mean(x, axis=list(axes), keepdims=True), f"{name}.mean")
    centered = builder.emit(op.subtract(x, mean), f"{name}.centered")
    squares = builder.emit(op.multiply(centered, centered), f"{name}.squares")
    variance = builder.emit(op.mean(squares, axis=list(axes), keepdims=True), f"{name}.variance")
    stable = builder.emit(op.add(variance, float_constant(np.asarray(epsilon))), f"{name}.variance")
    return builder.emit(op.multiply(centered, builder.emit(op.rsqrt(stable), f"{name}.scale")), name)


def cast(builder: GraphBuilder, name: str, x: Expr, dtype: str) -> Expr:
    """``x`` as elements of ``dtype``; ``x`` itself where it has them."""
    return x if dtype_of(x) == dtype else builder.emit(relax.op.astype(x, dtype), name)
