"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...dims import Dim, simplified
from .. import emit
from .broadcasting import shape_text
from .node import OnnxNode, Results, operator


def spatial_attribute(node: OnnxNode, name: str, count: int, default: int = 1, least: int = 1) -> list[int]:
    """A list of ``count`` integers, none below ``least``."""
    values = list(node.attribute(name, ())) or [default] * count
    if len(values) != count or any(v < least for v in values):
        raise node.fault(f"the attribute {name} is unusable", found=values,
                         expected=f"{count} integers from {least} on")
    return values


def padding(node: OnnxNode, extents: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
            dilations: Sequence[int]) -> list[int]:
    """The starts followed by the ends, from ``pads`` or ``auto_pad``."""
    pads = _unchecked_padding(node, extents, kernel, strides, dilations)
    count = len(extents)
    for i, (extent, k, d) in enumerate(zip(extents, kernel, dilations, strict=True)):
        if node.op != "ConvTranspose":
            node.require_at_least(extent + pads[i] + pads[count + i], (k - 1) * d + 1,
                                  "the kernel is larger than the padded input")
    return pads


def _unchecked_padding(node: OnnxNode, extents: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int],
                       dilations: Sequence[int]) -> list[int]:
    mode, count = node.attribute("auto_pad", "NOTSET"), len(extents)
    if mode in ("", "NOTSET"):
        return spatial_attribute(node, "pads", 2 * count, 0, 0)
    if mode == "VALID":
        return [0] * (2 * count)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.fault("auto_pad is unknown", found=mode)
    totals = []
    for e, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        total = simplified((-(-e // s) - 1) * s + (k - 1) * d + 1 - e)
        totals.append(max(node.numbers([total], f"the padding that {mode} asks for")[0], 0))
    return split_padding(totals, upper=mode == "SAME_UPPER")


def split_padding(totals: Sequence[int], *, upper: bool) -> list[int]:
    """Starts and ends that add up to ``totals``; the odd element is at the end where ``upper``, else at the start."""
    small = [t // 2 for t in totals]
    large = [t - s for t, s in zip(totals, small, strict=True)]
    return [*small, *large] if upper else [*large, *small]


def _kernel(node: OnnxNode) -> tuple[int, list[int]]:
    """The number of spatial dimensions and the kernel's extents, checked against input and weight."""
    data, weight = node.dims(0), node.shape(1)
    spatial = len(data) - 2
    if not 1 <= spatial <= 3:
        raise node.unsupported(f"of {len(data)} dimensions")
    if len(weight) != len(data):
        raise node.fault("input and weight have a different number of dimensions", found=(shape_text(data), weight))
    kernel = list(weight[2:])
    if tuple(node.attribute("kernel_shape", kernel)) != tuple(kernel) or min(kernel) < 1:
        raise node.fault("the kernel's shape is not that of the weight", found=node.attribute("kernel_shape"),
                         expected=kernel)
    return spatial, kernel


def _channels(node: OnnxNode) -> int:
    return node.numbers(node.dims(0)[1:2], "the input's channels")[0]


@operator("Conv")
def convolution(node: OnnxNode) -> Results:
    spatial, kernel = _kernel(node)
    strides, dilations = (spatial_attribute(node, name, spatial) for name in ("strides", "dilations"))
    pads = padding(node, node.dims(0)[2:], kernel, strides, dilations)
    groups = int(node.attribute("group", 1))
    if groups < 1 or _channels(node) != node.shape(1)[1] * groups or node.shape(1)[0] % groups:
        raise node.fault("the channels do not fit the weight and the groups",
                         found=f"input {shape_text(node.dims(0))}, weight {node.shape(1)}, {groups} groups")
    result = emit.convolution(node.builder, node.name, node.expr(0), node.expr(1), _known_bias(node),
                              strides=strides, padding=pads, dilation=dilations, groups=groups)
    return _with_unknown_bias(node, result, spatial)


@operator("ConvTranspose")
def transposed_convolution(node: OnnxNode) -> Results:
    spatial, kernel = _kernel(node)
    strides, dilations = (spatial_attribute(node, name, spatial) for name in ("strides", "dilations"))
    extra = spatial_attribute(node, "output_padding", spatial, 0, 0)
    groups = int(node.attribute("group", 1))
    if groups < 1 or _channels(node) != node.shape(1)[0] or node.shape(1)[0] % groups:
        raise node.fault("the channels do not fit the weight and the groups",
                         found=f"input {shape_text(node.dims(0))}, weight {node.shape(1)}, {groups} groups")
    pads, extra = _transposed_padding(node, kernel, strides, dilations, extra)
    for i, (e, k, s, d, x) in enumerate(zip(node.dims(0)[2:], kernel, strides, dilations, extra, strict=True)):
        node.require_at_least(s * (e - 1) + x + (k - 1) * d + 1 - pads[i] - pads[spatial + i], 1,
                              "the padding leaves nothing of the result")
    result = emit.transposed_convolution(
        node.builder, node.name, node.expr(0), node.expr(1), _known_bias(node), strides=strides, padding=pads,
        output_padding=extra, dilation=dilations, groups=groups)
    return _with_unknown_bias(node, result, spatial)


def _transposed_padding(node: OnnxNode, kernel: list[int], strides: list[int], dilations: list[int],
                        extra: list[int]) -> tuple[list[int], list[int]]:
    """Padding by ``output_shape``, ``auto_pad`` or ``pads``, and what is added at the ends instead."""
    extents, mode = node.dims(0)[2:], node.attribute("auto_pad", "NOTSET")
    wanted: list[Dim] = list(node.attribute("output_shape", ()))[-len(kernel):]
    if not wanted and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [e * s for e, s in zip(extents, strides, strict=True)]
    if not wanted:
        return padding(node, extents, kernel, strides, dilations), extra
    totals = node.numbers([simplified(s * (e - 1) + p + (k - 1) * d + 1 - w) for s, e, p, k, d, w in
                           zip(strides, extents, extra, kernel, dilations, wanted, strict=True)], "the padding")
    beyond = [p - min(t, 0) for p, t in zip(extra, totals, strict=True)]
    return split_padding([max(t, 0) for t in totals], upper=mode == "SAME_UPPER"), beyond


def _known_bias(node: OnnxNode) -> np.ndarray | None:
    return node.known(2, "a bias") if node.is_known(2) else None


def _with_unknown_bias(node: OnnxNode, result: relax.Var, spatial: int) -> relax.Var:
    if not node.has(2) or node.is_known(2):
        return result
    bias = node.emit(relax.op.reshape(node.expr(2), (-1, *[1] * spatial)), "bias")
    return node.emit(relax.op.add(result, bias))
