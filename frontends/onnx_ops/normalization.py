"""Normalizations."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...ir import Expr, dims_of
from .. import emit
from .broadcasting import shape_text
from .elementwise import broadcast
from .node import MICROSOFT, OnnxNode, Results, operator


@operator("BatchNormalization")
def batch_normalization(node: OnnxNode) -> Results:
    """A multiplication and an addition per channel, from the stored statistics or, in training mode, the batch's.

    Up to opset 13 further outputs ask for training mode.
    """
    if node.rank(0) < 2:
        raise node.fault("the input has no channels", found=shape_text(node.dims(0)))
    channels = node.numbers(node.dims(0)[1:2], "the input's channels")
    if any(node.dims(i) != channels for i in range(1, 5)):
        raise node.fault("the statistics do not fit the channels", found=shape_text(node.dims(1)), expected=channels)
    epsilon = float(node.attribute("epsilon", 1e-5))
    if node.attribute("training_mode", 0) or (node.opset < 14 and len(node.outputs) > 1):
        return _by_batch(node, epsilon)
    if not all(node.is_known(i) for i in range(1, 5)):
        return _standardized(node, node.expr(3), node.expr(4), epsilon)
    gamma, beta, mean, variance = (node.known(i, "a statistic") for i in range(1, 5))
    return emit.batch_norm(node.builder, node.name, node.expr(0), gamma=gamma, beta=beta, mean=mean,
                           variance=variance, epsilon=epsilon)


def _standardized(node: OnnxNode, mean: Expr, variance: Expr, epsilon: float) -> relax.Var:
    """``(x - mean) · scale + bias`` with the scale divided by the deviation, all per channel."""
    spatial = [1] * (node.rank(0) - 2)
    stable = node.emit(relax.op.add(variance, node.constant(np.float32(epsilon))), "scale")
    scale = node.emit(relax.op.divide(node.expr(1), node.emit(relax.op.sqrt(stable), "scale")), "scale")
    mean, scale, bias = (node.emit(relax.op.reshape(v, (*dims_of(v), *spatial)), part)
                         for v, part in ((mean, "mean"), (scale, "scale"), (node.expr(2), "bias")))
    centred = node.emit(relax.op.subtract(node.expr(0), mean), "centred")
    return node.emit(relax.op.add(node.emit(relax.op.multiply(centred, scale)), bias))


def _by_batch(node: OnnxNode, epsilon: float) -> Results:
    """By the batch's own statistics; the other outputs are those statistics, mixed into the stored ones."""
    momentum, axes = float(node.attribute("momentum", 0.9)), [a for a in range(node.rank(0)) if a != 1]
    mean = node.emit(relax.op.mean(node.expr(0), axes, True), "mean")
    centred = node.emit(relax.op.subtract(node.expr(0), mean), "centred")
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred), "variance"), axes), "variance")
    mean = node.emit(relax.op.reshape(mean, dims_of(variance)), "mean")
    result = _standardized(node, mean, variance, epsilon)
    running = []
    for own, index, part in ((mean, 3, "mean"), (variance, 4, "variance")):
        old = node.emit(relax.op.multiply(node.expr(index), node.constant(np.float32(momentum))), f"running.{part}")
        new = node.emit(relax.op.multiply(own, node.constant(np.float32(1 - momentum))), f"running.{part}")
        running.append(node.emit(relax.op.add(old, new), f"running.{part}"))
    if any(node.outputs[3:]):
        raise node.unsupported("with saved statistics as outputs")
    return result, *running


@operator("LayerNormalization")
@operator("LayerNormalization", domain=MICROSOFT)
def layer_normalization(node: OnnxNode) -> Results:
    if any(node.outputs[1:]):
        raise node.unsupported("with mean and deviation as outputs")
    axes = _trailing(node)
    beta = _affine(node, 2, axes) if node.has(2) else None
    return emit.layer_norm(node.builder, node.name, node.expr(0), _affine(node, 1, axes), beta, axes=axes,
                           epsilon=float(node.attribute("epsilon", 1e-5)))


@operator("RMSNormalization")
@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def rms_normalization(node: OnnxNode) -> Results:
    if any(node.outputs[1:]):
        raise node.unsupported("with the deviation as an output")
    axes, x, epsilon = _trailing(node), node.expr(0), float(node.attribute("epsilon", 1e-5))
    gamma = _affine(node, 1, axes)
    if axes[0] > 0:
        return node.emit(relax.op.nn.rms_norm(x, gamma, axes, epsilon))
    rows = node.emit(relax.op.expand_dims(x, 0), "row")  # Relax has no code for the norm of everything.
    norm = node.emit(relax.op.nn.rms_norm(rows, gamma, [a + 1 for a in axes], epsilon))
    return node.emit(relax.op.squeeze(norm, [0]))


def _trailing(node: OnnxNode) -> list[int]:
    rank = node.rank(0)
    return list(range(node.axis(int(node.attribute("axis", -1)), rank), rank))


def _affine(node: OnnxNode, index: int, axes: list[int]) -> Expr:
    """Input ``index`` broadcast to the normalized axes."""
    wanted = node.numbers([node.dims(0)[a] for a in axes], "the normalized axes")
    value = node.value(index)
    if isinstance(value, np.ndarray):
        return node.constant(np.broadcast_to(value, wanted))
    return broadcast(node, value, wanted)


@operator("InstanceNormalization")
def instance_normalization(node: OnnxNode) -> Results:
    """Every channel of every sample by its own statistics: a group normalization with one channel a group."""
    channels = node.numbers(node.dims(0)[1:2], "the input's channels")
    return _group(node, channels[0], float(node.attribute("epsilon", 1e-5)))


@operator("GroupNormalization")
def group_normalization(node: OnnxNode) -> Results:
    """Up to opset 20 gamma and beta have one number per group, later per channel."""
    return _group(node, int(node.attribute("num_groups", 0)), float(node.attribute("epsilon", 1e-5)))


def _group(node: OnnxNode, groups: int, epsilon: float) -> relax.Var:
    shape = node.dims(0)
    channels = node.numbers(shape[1:2], "the input's channels")
    if len(shape) < 3 or groups < 1 or channels[0] % groups:
        raise node.fault("the channels do not divide into the groups", found=f"{shape_text(shape)}, {groups} groups")
    gamma, beta = (_per_channel(node, i, channels[0]) for i in (1, 2))
    return node.emit(relax.op.nn.group_norm(node.expr(0), gamma, beta, num_groups=groups, channel_axis=1,
                                            axes=list(range(2, len(shape))), epsilon=epsilon))


def _per_channel(node: OnnxNode, index: int, channels: int) -> Expr:
    values = node.known(index, "a scale or bias")
    if values.ndim != 1 or not values.size or channels % values.size:
        raise node.fault("scale or bias does not fit the channels", found=values.shape, expected=(channels,))
    return node.constant(np.repeat(values, channels // values.size))


@operator("LpNormalization")
def lp_normalization(node: OnnxNode) -> Results:
    p, axis = int(node.attribute("p", 2)), node.axis(int(node.attribute("axis", -1)), node.rank(0))
    if p not in (1, 2):
        raise node.fault("p is neither 1 nor 2", found=p)
    x = node.expr(0)
    size = node.emit(relax.op.abs(x) if p == 1 else relax.op.multiply(x, x), "norm")
    size = node.emit(relax.op.sum(size, [axis], True), "norm")
    size = size if p == 1 else node.emit(relax.op.sqrt(size), "norm")
    # Defined as 0 where the norm is 0.
    divisor = node.emit(relax.op.maximum(size, node.constant(np.float32(np.finfo(np.float32).tiny))), "norm")
    return node.emit(relax.op.divide(x, divisor))


@operator("LRN")
def local_response_normalization(node: OnnxNode) -> Results:
    """``x / (bias + alpha / size · Σ x²)^beta`` over ``size`` neighbouring channels (Krizhevsky et al. 2012)."""
    size, shape = int(node.attribute("size", 0)), node.dims(0)
    channels = node.numbers(shape[1:2], "the input's channels")
    if not channels or not 1 <= size <= 2 * channels[0] + 1:
        raise node.fault("size is out of range", found=size, expected="1 … twice the channels and 1")
    x, before = node.expr(0), (size - 1) // 2
    squares = node.emit(relax.op.multiply(x, x), "squares")
    widths = [0, 0, before, size - 1 - before, *[0, 0] * (len(shape) - 2)]
    squares = node.emit(relax.op.nn.pad(squares, widths), "squares")
    total = None
    for i in range(size):
        part = node.emit(relax.op.strided_slice(squares, [1], [i], [i + channels[0]]), "squares")
        total = part if total is None else node.emit(relax.op.add(total, part), "sum")
    mean = node.emit(relax.op.multiply(total, node.constant(np.float32(node.attribute("alpha", 1e-4) / size))), "sum")
    mean = node.emit(relax.op.add(mean, node.constant(np.float32(node.attribute("bias", 1.0)))), "sum")
    divisor = node.emit(relax.op.power(mean, node.constant(np.float32(node.attribute("beta", 0.75)))), "sum")
    return node.emit(relax.op.divide(x, divisor))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(node: OnnxNode) -> Results:
    """``(x - mean) / (deviation + 1e-9)`` over ``axes``."""
    axes, x = node.axes(node.attribute("axes", (0, 2, 3)), node.rank(0)), node.expr(0)
    centred = node.emit(relax.op.subtract(x, node.emit(relax.op.mean(x, axes, True), "mean")), "centred")
    squares = node.emit(relax.op.multiply(centred, centred), "variance")
    variance = node.emit(relax.op.mean(squares, axes, True), "variance")
    deviation = node.emit(relax.op.sqrt(variance), "deviation")
    deviation = node.emit(relax.op.add(deviation, node.constant(np.float32(1e-9))), "deviation")
    return node.emit(relax.op.divide(centred, deviation))
