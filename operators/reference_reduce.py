"""Reference semantics of reductions, scans, sorting and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from tvm import relax

from .reference_nn import pad_spatial
from .semantics import Semantics, axes_of, ints, result_dtype, to_layout, torch_dtype


def _reduction(function: Callable[..., torch.Tensor]) -> Semantics:
    def reduce(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
        x = args[0]
        axes = axes_of(call.attrs.axis, x.dim())
        y = function(x, dim=axes, keepdim=bool(call.attrs.keepdims)) if axes else x
        return y.to(result_dtype(call))

    return reduce


def _prod(x: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
    for axis in sorted(dim, reverse=True):
        x = x.prod(dim=axis, keepdim=keepdim)
    return x


def _variance(x: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
    return torch.var(x, dim=tuple(dim), keepdim=keepdim, correction=0)


def _std(x: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
    return torch.sqrt(_variance(x, dim, keepdim))


def _median(args: Sequence[Any], call: relax.Call) -> torch.Tensor | tuple[torch.Tensor, ...]:
    x, keepdims = args[0], bool(call.attrs.keepdims)
    if call.attrs.axis is None:
        value = x.flatten().median()
        return value.reshape([1] * x.dim()) if keepdims else value
    value, index = torch.median(x, dim=axes_of(call.attrs.axis, x.dim())[0], keepdim=keepdims)
    return value, index


def _arg_extreme(function: Callable[..., torch.Tensor]) -> Semantics:
    def search(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
        x, axis, keepdims = args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if axis is None:
            index = function(x.flatten(), dim=0)
            index = index.reshape([1] * x.dim()) if keepdims else index
        else:
            index = function(x, dim=int(axis), keepdim=keepdims)
        return index.to(result_dtype(call))

    return search


def _scan(function: Callable[..., torch.Tensor], identity: int) -> Semantics:
    def scan(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
        x, axis = args[0].to(result_dtype(call)), call.attrs.axis
        x, axis = (x.flatten(), 0) if axis is None else (x, int(axis))
        if call.attrs.exclusive:
            first = torch.full_like(x.narrow(axis, 0, 1), identity)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], dim=axis)
        return function(x, dim=axis, dtype=x.dtype)

    return scan


def _sort(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.sort(args[0], dim=int(call.attrs.axis), descending=bool(call.attrs.descending), stable=True).values


def _argsort(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    order = torch.sort(args[0], dim=int(call.attrs.axis), descending=bool(call.attrs.descending), stable=True).indices
    return order.to(result_dtype(call))


def _topk(args: Sequence[Any], call: relax.Call) -> torch.Tensor | tuple[torch.Tensor, ...]:
    attrs, x = call.attrs, args[0]
    axis = int(attrs.axis) % x.dim()
    count = min(int(attrs.k), x.shape[axis]) if int(attrs.k) > 0 else x.shape[axis]
    values, order = torch.sort(x, dim=axis, descending=bool(attrs.largest), stable=True)
    values, order = values.narrow(axis, 0, count), order.narrow(axis, 0, count)
    order = order.to(torch_dtype(attrs.dtype))
    if str(attrs.ret_type) == "both":
        return values, order
    return values if str(attrs.ret_type) == "values" else order


def _bucketize(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.searchsorted(args[1].contiguous(), args[0].contiguous(), right=bool(call.attrs.right),
                              out_int32=bool(call.attrs.out_int32))


def _pooled_extents(extents: Sequence[int], call: relax.Call) -> list[int]:
    """Output extents of a pool; in ceil mode the last window must begin inside the data or the padding before it."""
    attrs, rank = call.attrs, len(extents)
    kernel, strides, dilation, padding = map(ints, (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding))
    outputs = []
    for i, extent in enumerate(extents):
        slack = extent + padding[i] + padding[i + rank] - (kernel[i] - 1) * dilation[i] - 1
        count = slack // strides[i] + 1
        if attrs.ceil_mode:
            count = -(-slack // strides[i]) + 1
            count -= (count - 1) * strides[i] >= extent + padding[i]
        outputs.append(count)
    return outputs


def _padded_for_pool(x: torch.Tensor, outputs: Sequence[int], call: relax.Call, value: float) -> torch.Tensor:
    """``x`` [N, C, spatial…] padded (or cropped) to exactly what ``outputs`` windows read."""
    attrs = call.attrs
    kernel, strides, dilation, padding = map(ints, (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding))
    before = padding[:len(outputs)]
    after = [(n - 1) * strides[i] + (kernel[i] - 1) * dilation[i] + 1 - x.shape[i + 2] - before[i]
             for i, n in enumerate(outputs)]
    return pad_spatial(x, before, after, value)


def _max_pool(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    attrs = call.attrs
    layout = "NC" + {3: "W", 4: "HW", 5: "DHW"}[args[0].dim()]
    x = to_layout(args[0], attrs.layout, layout)
    dtype = x.dtype
    if not dtype.is_floating_point:
        x = x.double()
    x = _padded_for_pool(x, _pooled_extents(x.shape[2:], call), call, torch.finfo(x.dtype).min)
    pool: Callable[..., torch.Tensor] = getattr(functional, f"max_pool{len(layout) - 2}d")
    y = pool(x, ints(attrs.pool_size), ints(attrs.strides), 0, ints(attrs.dilation))
    return to_layout(y.to(dtype), layout, attrs.out_layout)


def _window_counts(extent: int, outputs: int, axis: int, call: relax.Call) -> torch.Tensor:
    """How many elements each window along one axis averages over."""
    attrs, rank = call.attrs, len(ints(call.attrs.pool_size))
    kernel, stride, dilation = (ints(v)[axis] for v in (attrs.pool_size, attrs.strides, attrs.dilation))
    before, after = ints(attrs.padding)[axis], ints(attrs.padding)[axis + rank]
    low, high = (-before, extent + after) if attrs.count_include_pad else (0, extent)
    reads = torch.arange(outputs)[:, None] * stride - before + torch.arange(kernel) * dilation
    return ((reads >= low) & (reads < high)).sum(dim=1).clamp(min=1)


def _avg_pool(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    attrs = call.attrs
    layout = "NC" + {3: "W", 4: "HW", 5: "DHW"}[args[0].dim()]
    x = to_layout(args[0], attrs.layout, layout)
    extents = x.shape[2:]
    outputs = _pooled_extents(extents, call)
    y = _padded_for_pool(x, outputs, call, 0.0)
    for axis, (kernel, stride, dilation) in enumerate(zip(*map(ints, (attrs.pool_size, attrs.strides, attrs.dilation)),
                                                          strict=True)):
        y = y.unfold(axis + 2, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    y = y.sum(dim=tuple(range(x.dim(), y.dim())))
    for axis, extent in enumerate(extents):
        counts = _window_counts(extent, outputs[axis], axis, call)
        y = y / counts.to(y.dtype).reshape([-1 if i == axis + 2 else 1 for i in range(y.dim())])
    return to_layout(y, layout, attrs.out_layout)


def _adaptive_avg_pool(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    layout = "NC" + {3: "W", 4: "HW", 5: "DHW"}[args[0].dim()]
    x = to_layout(args[0], call.attrs.layout, layout)
    size = x.shape[2:] if call.attrs.output_size is None else ints(call.attrs.output_size)
    pool: Callable[..., torch.Tensor] = getattr(functional, f"adaptive_avg_pool{len(layout) - 2}d")
    return to_layout(pool(x, tuple(size)), layout, call.attrs.out_layout)


TABLE: dict[str, Semantics] = {
    "relax.sum": _reduction(torch.sum),
    "relax.mean": _reduction(torch.mean),
    "relax.max": _reduction(torch.amax),
    "relax.min": _reduction(torch.amin),
    "relax.prod": _reduction(_prod),
    "relax.variance": _reduction(_variance),
    "relax.std": _reduction(_std),
    "relax.median": _median,
    "relax.argmax": _arg_extreme(torch.argmax),
    "relax.argmin": _arg_extreme(torch.argmin),
    "relax.cumsum": _scan(torch.cumsum, 0),
    "relax.cumprod": _scan(torch.cumprod, 1),
    "relax.sort": _sort,
    "relax.argsort": _argsort,
    "relax.topk": _topk,
    "relax.bucketize": _bucketize,
    **{f"relax.nn.max_pool{n}d": _max_pool for n in (1, 2, 3)},
    **{f"relax.nn.avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
    **{f"relax.nn.adaptive_avg_pool{n}d": _adaptive_avg_pool for n in (1, 2, 3)},
}
