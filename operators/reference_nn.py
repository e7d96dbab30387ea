"""Reference semantics of the operators that networks are made of: convolutions, matrix products, attention,
normalizations and softmax. Layouts are permuted to PyTorch's and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from tvm import relax

from .semantics import Semantics, axes_of, ints, refuse, to_layout, torch_dtype

_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
_CONV = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
_CONV_TRANSPOSE = {3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d}


def pad_spatial(x: torch.Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> torch.Tensor:
    """``x`` [N, C, spatial…] padded (or, where negative, cropped) with ``value`` along its spatial axes."""
    if not any(before) and not any(after):
        return x
    widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
    return functional.pad(x, widths, value=value)


def _with_out_dtype(y: torch.Tensor, call: relax.Call) -> torch.Tensor:
    """``y`` in the type the call asks for; float64, which only callers that want exactness pass, is kept."""
    dtype = call.attrs.out_dtype
    return y if y.dtype == torch.float64 or dtype is None or str(dtype) in ("", "void") else y.to(torch_dtype(dtype))


def _conv(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    attrs, rank = call.attrs, args[0].dim()
    spatial = _SPATIAL[rank]
    x = to_layout(args[0], attrs.data_layout, "NC" + spatial)
    w = to_layout(args[1], attrs.kernel_layout, "OI" + spatial)
    padding = ints(attrs.padding)
    before, after = padding[:rank - 2], padding[rank - 2:]
    if before != after:
        x, before = pad_spatial(x, before, after), (0,) * (rank - 2)
    dtype = x.dtype
    if not dtype.is_floating_point:  # PyTorch convolves no integers; float64 holds the sums.
        x, w = x.double(), w.double()
    y = _CONV[rank](x, w, None, ints(attrs.strides), before, ints(attrs.dilation), int(attrs.groups))
    y = y if dtype.is_floating_point else y.long().to(dtype)
    return _with_out_dtype(to_layout(y, "NC" + spatial, attrs.out_layout), call)


def _conv_transpose(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    attrs, rank = call.attrs, args[0].dim()
    spatial = _SPATIAL[rank]
    x = to_layout(args[0], attrs.data_layout, "NC" + spatial)
    w = to_layout(args[1], attrs.kernel_layout, "IO" + spatial)
    padding = ints(attrs.padding)
    y = _CONV_TRANSPOSE[rank](x, w, None, ints(attrs.strides), 0, 0, int(attrs.groups), ints(attrs.dilation))
    before = [-p for p in padding[:rank - 2]]
    after = [extra - p for p, extra in zip(padding[rank - 2:], ints(attrs.output_padding), strict=True)]
    y = pad_spatial(y, before, after)
    return _with_out_dtype(to_layout(y, "NC" + spatial, attrs.out_layout), call)


def _matmul(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return _with_out_dtype(torch.matmul(args[0], args[1]), call)


def attention_scores(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, call: relax.Call) -> torch.Tensor:
    """The scaled scores [batch, heads, query, key] of q and k [batch, sequence, heads, head_dim], bias added and
    mask applied, before the softmax."""
    scores = torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1))
    scale = call.attrs.scale
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else float(scale))
    if bias is not None:
        scores = scores + bias
    if call.attrs.window_size is not None:
        raise refuse(call, "with a sliding window")
    if call.attrs.causal_mask is not None:
        queries, keys = scores.shape[-2:]
        offset = abs(queries - keys) if str(call.attrs.causal_mask) == "BottomRight" else 0
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(offset)
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores


def _attention(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    q, k, v = args[:3]
    probabilities = torch.softmax(attention_scores(q, k, args[3] if len(args) > 3 else None, call), dim=-1)
    return torch.matmul(probabilities, v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)


def _softmax(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.softmax(args[0], dim=int(call.attrs.axis))


def _log_softmax(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.log_softmax(args[0], dim=int(call.attrs.axis))


def _along(parameter: torch.Tensor, axes: Sequence[int], rank: int) -> torch.Tensor:
    """A parameter with the extents of ``axes`` (in ascending order), shaped to broadcast against ``rank`` axes."""
    extents = iter(parameter.shape)
    return parameter.reshape([next(extents) if axis in axes else 1 for axis in range(rank)])


def _normalize(x: torch.Tensor, axes: Sequence[int], epsilon: float) -> torch.Tensor:
    mean = x.mean(dim=tuple(axes), keepdim=True)
    variance = (x - mean).square().mean(dim=tuple(axes), keepdim=True)
    return (x - mean) * torch.rsqrt(variance + epsilon)


def _layer_norm(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, gamma, beta = args
    axes = axes_of(call.attrs.axes, x.dim())
    y = _normalize(x, axes, float(call.attrs.epsilon))
    return y * _along(gamma, axes, x.dim()) + _along(beta, axes, x.dim())


def _rms_norm(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, gamma = args
    axes = axes_of(call.attrs.axes, x.dim())
    mean_square = x.square().mean(dim=axes, keepdim=True)
    return x * torch.rsqrt(mean_square + float(call.attrs.epsilon)) * _along(gamma, axes, x.dim())


def _group_norm(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, gamma, beta = args
    rank, groups = x.dim(), int(call.attrs.num_groups)
    channel = int(call.attrs.channel_axis) % rank
    grouped = x.unflatten(channel, (groups, x.shape[channel] // groups))
    axes = {a + (a > channel) for a in axes_of(call.attrs.axes, rank) if a != channel} | {channel + 1}
    y = _normalize(grouped, sorted(axes), float(call.attrs.epsilon)).flatten(channel, channel + 1)
    return y * _along(gamma, (channel,), rank) + _along(beta, (channel,), rank)


def _instance_norm(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, gamma, beta = args
    channel = (int(call.attrs.channel_axis) % x.dim(),)
    y = _normalize(x, axes_of(call.attrs.axes, x.dim()), float(call.attrs.epsilon))
    return y * _along(gamma, channel, x.dim()) + _along(beta, channel, x.dim())


def _batch_norm(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, ...]:
    x, gamma, beta, mean, variance = args
    if call.attrs.training:
        raise refuse(call, "in training form")
    axis, rank = (int(call.attrs.axis) % x.dim(),), x.dim()
    y = (x - _along(mean, axis, rank)) / torch.sqrt(_along(variance, axis, rank) + float(call.attrs.epsilon))
    if call.attrs.scale:
        y = y * _along(gamma, axis, rank)
    if call.attrs.center:
        y = y + _along(beta, axis, rank)
    return y, mean, variance


TABLE: dict[str, Semantics] = {
    **{f"relax.nn.conv{n}d": _conv for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": _conv_transpose for n in (1, 2, 3)},
    "relax.matmul": _matmul,
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _log_softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
    "relax.nn.batch_norm": _batch_norm,
}
