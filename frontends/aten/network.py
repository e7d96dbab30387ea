"""Layers of ATen: convolutions, linear maps, normalizations, attention, embedding, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from ...dims import Dim, equal_dims, is_equal_dim, product_of
from ...ir import Expr, dtype_of
from .. import emit
from ..equations import is_sound, sums_over_ellipsis
from .context import UNAVAILABLE, Context, Handler, Value, axis_of, expand_sizes, is_variable, rank, shape

_op = relax.op


def convolution(c: Context, x: Value, weight: Value, bias: Value, stride: Sequence[int], padding: Sequence[int],
                dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int) -> Value:
    n = rank(weight) - 2
    if rank(x) == n + 1:
        batched = c.emit(_op.expand_dims(c.expr(x), 0), "batched")
        y = convolution(c, batched, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return c.emit(_op.squeeze(y, 0))
    constant_bias = bias if bias is None or isinstance(bias, torch.Tensor) else None
    common: dict[str, Any] = {"strides": expand_sizes(stride, n), "padding": expand_sizes(padding, n),
                              "dilation": expand_sizes(dilation, n), "groups": groups}
    array = c.optional_array(constant_bias, "the bias")
    if transposed:
        y = emit.transposed_convolution(c.builder, c.name, c.multiplicand(x), c.expr(weight), array,
                                        output_padding=expand_sizes(output_padding, n), **common)
    else:
        y = emit.convolution(c.builder, c.name, c.multiplicand(x), c.expr(weight), array, **common)
    if bias is not None and constant_bias is None:
        channels = c.emit(_op.reshape(c.expr(bias), (-1, *([1] * n))), "bias")
        return c.emit(_op.add(y, channels))
    return y


def conv(c: Context, x: Value, weight: Value, bias: Value = None, stride: Sequence[int] = (1,),
         padding: Sequence[int] | str = (0,), dilation: Sequence[int] = (1,), groups: int = 1) -> Value:
    n = rank(weight) - 2
    if isinstance(padding, str):
        padding = _named_padding(padding, shape(weight)[2:], expand_sizes(dilation, n))
    return convolution(c, x, weight, bias, stride, padding, dilation, False, [0], groups)


def _named_padding(padding: str, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """All starts, then all ends; "same" puts an odd element at the end, as PyTorch does."""
    total = [0 if padding == "valid" else d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [t // 2 for t in total] + [t - t // 2 for t in total]


def conv_transpose(c: Context, x: Value, weight: Value, bias: Value = None, stride: Sequence[int] = (1,),
                   padding: Sequence[int] = (0,), output_padding: Sequence[int] = (0,), groups: int = 1,
                   dilation: Sequence[int] = (1,)) -> Value:
    return convolution(c, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def linear(c: Context, x: Value, weight: Value, bias: Value = None) -> Value:
    if is_variable(weight):
        y = c.emit(_op.matmul(c.expr(x), c.emit(_op.permute_dims(weight), "weight")))
        return y if bias is None else c.emit(_op.add(y, c.expr(bias)))
    matrix = c.array(weight, "the weight")
    if matrix.ndim == 1:
        return matmul(c, x, weight)
    if is_variable(bias):
        return c.emit(_op.add(emit.linear(c.builder, c.name, c.multiplicand(x), matrix.T, None), bias))
    return emit.linear(c.builder, c.name, c.multiplicand(x), matrix.T, c.optional_array(bias, "the bias"))


def matmul(c: Context, x: Value, y: Value) -> Value:
    return c.emit(_op.matmul(c.expr(x, c.dtype), c.expr(y, c.dtype)))


def addmm(c: Context, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    """``beta · bias + alpha · x @ y``, also with a batch dimension (``baddbmm``)."""
    product = matmul(c, x, y)
    if alpha != 1:
        product = c.emit(_op.multiply(product, c.expr(alpha, c.dtype)))
    if beta == 0:
        return product
    addend = c.expr(bias, c.dtype)
    if beta != 1:
        addend = c.emit(_op.multiply(addend, c.expr(beta, c.dtype)), "bias")
    return c.emit(_op.add(product, addend))


def dot(c: Context, x: Value, y: Value) -> Value:
    return c.emit(_op.sum(c.emit(_op.multiply(c.expr(x), c.expr(y)), "product")))


def outer(c: Context, x: Value, y: Value) -> Value:
    return c.emit(_op.multiply(c.emit(_op.expand_dims(c.expr(x), 1), "column"), c.expr(y)))


def bilinear(c: Context, x: Value, y: Value, weight: Value, bias: Value = None) -> Value:
    """``y_o = xᵀ W_o y + b_o`` as one matmul per side."""
    matrix = c.array(weight, "the weight")
    outputs, n, m = matrix.shape
    left = c.emit(_op.matmul(c.expr(x), emit.float_constant(matrix.transpose(1, 0, 2).reshape(n, outputs * m))))
    batch = shape(x)[:-1]
    left = c.emit(_op.reshape(left, (*batch, outputs, m)), "left")
    right = c.emit(_op.expand_dims(c.expr(y), -2), "right")
    result = c.emit(_op.sum(c.emit(_op.multiply(left, right), "product"), axis=-1))
    return emit.add_bias(c.builder, c.name, result, c.optional_array(bias, "the bias"), 0)


def batch_norm(c: Context, x: Value, weight: Value, bias: Value, mean: Value, variance: Value, training: bool,
               momentum: float, eps: float, cudnn: bool) -> Value:
    if training or mean is None:
        raise c.refuse("batch normalization by the batch's own statistics has no translation",
                       hint="export the module in eval() mode, with track_running_stats")
    return emit.batch_norm(
        c.builder, c.name, c.expr(x), gamma=c.optional_array(weight, "gamma"), beta=c.optional_array(bias, "beta"),
        mean=c.array(mean, "the mean"), variance=c.array(variance, "the variance"), epsilon=eps)


def batch_norm_inference(c: Context, x: Value, weight: Value, bias: Value, mean: Value, variance: Value,
                         momentum: float, eps: float) -> Value:
    return (batch_norm(c, x, weight, bias, mean, variance, False, momentum, eps, False), UNAVAILABLE, UNAVAILABLE)


def layer_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value = None, bias: Value = None,
               eps: float = 1e-5, cudnn: bool = True) -> Value:
    gamma, beta = (None if v is None else c.expr(v) for v in (weight, bias))
    axes = list(range(rank(x) - len(normalized_shape), rank(x)))
    return emit.layer_norm(c.builder, c.name, c.expr(x), gamma, beta, axes=axes, epsilon=eps)


def rms_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value = None,
             eps: float | None = None) -> Value:
    gamma = torch.ones(list(normalized_shape)) if weight is None else weight
    axes = list(range(rank(x) - len(normalized_shape), rank(x)))
    epsilon = float(np.finfo(np.float32).eps) if eps is None else eps
    return c.emit(_op.nn.rms_norm(c.expr(x), c.expr(gamma), axes=axes, epsilon=epsilon))


def group_norm(c: Context, x: Value, groups: int, weight: Value = None, bias: Value = None, eps: float = 1e-5,
               cudnn: bool = True) -> Value:
    """The statistics are those of a layer norm over each group; gamma and beta come after, one pair per channel."""
    batch, channels, *spatial = shape(x)
    grouped = c.emit(_op.reshape(c.expr(x), (batch, groups, product_of([channels // groups, *spatial]))), "groups")
    y = emit.layer_norm(c.builder, c.name, grouped, None, None, axes=[2], epsilon=eps)
    y = c.emit(_op.reshape(y, shape(x)))
    return _scale_channels(c, y, weight, bias)


def _scale_channels(c: Context, y: Expr, weight: Value, bias: Value) -> Expr:
    spatial = rank(y) - 2
    if weight is not None:
        y = c.emit(_op.multiply(y, emit.per_channel(c.array(weight, "gamma"), spatial)))
    if bias is not None:
        y = c.emit(_op.add(y, emit.per_channel(c.array(bias, "beta"), spatial)))
    return y


def instance_norm(c: Context, x: Value, weight: Value, bias: Value, mean: Value, variance: Value,
                  use_input_stats: bool, momentum: float, eps: float, cudnn: bool) -> Value:
    if use_input_stats:
        return group_norm(c, x, shape(x)[1], weight, bias, eps)
    return batch_norm(c, x, weight, bias, mean, variance, False, momentum, eps, False)


def softmax(c: Context, x: Value, dim: int, *_: Value, **__: Value) -> Value:
    return c.emit(_op.nn.softmax(c.expr(x, "float32"), axis=axis_of(x, dim)))


def log_softmax(c: Context, x: Value, dim: int, *_: Value, **__: Value) -> Value:
    return c.emit(_op.nn.log_softmax(c.expr(x, "float32"), axis=axis_of(x, dim)))


def embedding(c: Context, table: Value, ids: Value, *_: Value) -> Value:
    return c.emit(_op.take(c.expr(table), c.expr(ids), axis=0, mode="clip"))


def attention(c: Context, q: Value, k: Value, v: Value, mask: Value = None, dropout: float = 0.0,
              is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Value:
    if dropout:
        raise c.refuse("attention with dropout has no inference form", hint="export the module in eval() mode")
    scale = 1.0 / math.sqrt(shape(q)[-1]) if scale is None else scale
    if is_variable(scale):
        q, scale = c.emit(_op.multiply(c.expr(q), c.expr(scale, "float32")), "scaled"), 1.0
    bias = _attention_bias(c, shape(q)[-2], shape(k)[-2], mask, is_causal)
    result_shape = (*shape(q)[:-1], shape(v)[-1])
    if bias is not None:
        bias = _align_bias(c, bias, result_shape[:-2])
    q, k, v = (_four_dims(c, t, part) for t, part in ((q, "query"), (k, "key"), (v, "value")))
    y = emit.attention(c.builder, c.name, q, k, v, bias, scale=scale)
    return y if equal_dims(shape(y), result_shape) else c.emit(_op.reshape(y, result_shape))


def _align_bias(c: Context, bias: Expr, leading: tuple[Dim, ...]) -> Expr:
    """A bias that broadcasts to [``leading``…, query, key] with the leading dimensions folded as those of q are."""
    if rank(bias) <= 2 or len(leading) == 2:
        return bias
    if len(leading) == 1:
        return c.emit(_op.expand_dims(bias, 1), "bias")
    full = c.emit(_op.broadcast_to(bias, (*leading, *shape(bias)[-2:])), "bias")
    return c.emit(_op.reshape(full, (product_of(leading[:-1]), *leading[-1:], *shape(bias)[-2:])), "bias")


def _four_dims(c: Context, x: Value, part: str) -> Expr:
    """[…, S, D] as [batch, heads, S, D]: three dimensions are a batch of one head, more than four are flattened."""
    *leading, length, width = shape(x)
    if len(leading) == 2:
        return c.expr(x)
    batch, heads = (leading[:-1], leading[-1]) if len(leading) > 2 else (leading, 1)
    return c.emit(_op.reshape(c.expr(x), (product_of(batch), heads, length, width)), part)


def _attention_bias(c: Context, queries: Dim, keys: Dim, mask: Value, is_causal: bool) -> Expr | None:
    """The mask as something to add to the scores, or None."""
    if is_causal:
        return emit.causal_bias(c.builder, f"{c.name}.bias", queries, keys)
    if mask is None:
        return None
    if isinstance(mask, torch.Tensor):
        return _constant_bias(c, c.array(mask, "the mask"))
    if dtype_of(mask) == "bool":
        return emit.mask_bias(c.builder, f"{c.name}.bias", mask)
    return c.emit(_op.maximum(mask, c.expr(emit.MASKED)), "bias")


def _constant_bias(c: Context, mask: np.ndarray) -> Expr | None:
    bias = np.where(mask, 0.0, emit.MASKED) if mask.dtype == bool else np.maximum(mask, emit.MASKED)
    if (bias <= emit.MASKED).all(axis=-1).any():
        raise c.refuse("the attention mask is constant and hides every key from some query",
                       expected="at least one visible key for each query")
    return emit.float_constant(bias) if bias.any() else None


def _stand_ins(shapes: Sequence[Sequence[Dim]]) -> list[tuple[int, ...]]:
    """Shapes with a large number of its own in place of every symbolic extent."""
    known: list[Dim] = []

    def number(dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        place = next((i for i, k in enumerate(known) if is_equal_dim(dim, k)), len(known))
        known.extend([dim] if place == len(known) else [])
        return 2**40 + place

    return [tuple(number(d) for d in dims) for dims in shapes]


def einsum(c: Context, equation: str, operands: Sequence[Value], *_: Value, **__: Value) -> Value:
    equation, shapes = equation.replace(" ", ""), _stand_ins([shape(v) for v in operands])
    if not is_sound(equation, shapes):
        raise c.refuse("the equation does not fit the operands", found=equation, expected=shapes)
    if sums_over_ellipsis(equation):
        raise c.refuse("an equation that sums over an ellipsis has no translation", found=equation,
                       hint="use sum() on those axes")
    return c.emit(_op.einsum(tuple(c.expr(v) for v in operands), equation))


TABLE: dict[str, Handler] = {
    "conv1d": conv, "conv2d": conv, "conv3d": conv, "convolution": convolution,
    "conv_transpose1d": conv_transpose, "conv_transpose2d": conv_transpose, "conv_transpose3d": conv_transpose,
    "linear": linear, "matmul": matmul, "mm": matmul, "bmm": matmul, "mv": matmul, "addmm": addmm, "baddbmm": addmm,
    "addmv": addmm, "dot": dot, "outer": outer, "bilinear": bilinear, "einsum": einsum,
    "batch_norm": batch_norm, "_native_batch_norm_legit_no_training": batch_norm_inference,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "instance_norm": instance_norm,
    "softmax": softmax, "_softmax": softmax, "log_softmax": log_softmax, "_log_softmax": log_softmax,
    "_safe_softmax": softmax, "embedding": embedding, "scaled_dot_product_attention": attention,
}
