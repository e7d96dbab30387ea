"""Reference semantics of the operators that move elements: reshaping, slicing, indexing, scattering, padding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from tvm import relax

from ..errors import DataError
from .semantics import Semantics, axes_of, ints, of_tensors, refuse, result_dtype


def _permute_dims(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    axes = call.attrs.axes
    return args[0].permute(tuple(reversed(range(args[0].dim()))) if axes is None else ints(axes))


def _concat(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    if call.attrs.axis is None:
        return torch.cat([x.flatten() for x in args[0]])
    return torch.cat(list(args[0]), dim=int(call.attrs.axis))


def _stack(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.stack(list(args[0]), dim=0 if call.attrs.axis is None else int(call.attrs.axis))


def _split(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, ...]:
    x, axis, where = args[0], int(call.attrs.axis), call.attrs.indices_or_sections
    if hasattr(where, "__len__"):
        bounds = [0, *ints(where), x.shape[axis]]
        return tuple(x.narrow(axis, a, b - a) for a, b in itertools.pairwise(bounds))
    return tuple(torch.split(x, -(-x.shape[axis] // int(where)), dim=axis))


def _squeeze(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    axes = call.attrs.axis
    return args[0].squeeze() if axes is None else args[0].squeeze(ints(axes))


def _expand_dims(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x = args[0]
    for axis in sorted(axes_of(call.attrs.axis, x.dim() + len(call.attrs.axis))):
        x = x.unsqueeze(axis)
    return x


def _strided_slice(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, axes, begin, end = args[:4]
    strides = args[4] if len(args) > 4 else (1,) * len(axes)
    return slice_axes(x, axes, begin, end, strides)


def _dynamic_strided_slice(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, *bounds = args
    return slice_axes(x, range(x.dim()), *(b.tolist() for b in bounds))


def slice_axes(x: torch.Tensor, axes: Sequence[int], begin: Sequence[int], end: Sequence[int],
               strides: Sequence[int]) -> torch.Tensor:
    """Python's slicing along the given axes, negative strides included."""
    for axis, b, e, s in zip(axes, begin, end, strides, strict=True):
        indices = range(*slice(b, e, s).indices(x.shape[axis]))
        if s > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(b, e, s),)]
        else:
            x = x.index_select(axis, torch.tensor(list(indices), dtype=torch.int64))
    return x


def _tile(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.tile(args[0], ints(call.attrs.repeats))


def _repeat(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    axis = call.attrs.axis
    return torch.repeat_interleave(args[0], int(call.attrs.repeats), dim=None if axis is None else int(axis))


def _flip(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return args[0].flip(int(call.attrs.axis))


def _reverse_sequence(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, lengths = args
    seq, batch = int(call.attrs.seq_axis) % x.dim(), int(call.attrs.batch_axis) % x.dim()
    steps = torch.arange(x.shape[seq])
    index = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    shape = [1] * x.dim()
    shape[batch], shape[seq] = x.shape[batch], x.shape[seq]
    index = (index if batch < seq else index.T).reshape(shape)
    return x.gather(seq, index.expand(x.shape))


def _take(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices = args[0], torch.as_tensor(args[1])
    x, axis = (x.flatten(), 0) if call.attrs.axis is None else (x, int(call.attrs.axis) % x.dim())
    flat = indices.flatten().long()
    if str(call.attrs.mode) == "clip":
        flat = flat.clamp(0, x.shape[axis] - 1)
    elif str(call.attrs.mode) == "wrap":
        flat = flat.remainder(x.shape[axis])
    elif flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < x.shape[axis]):
        raise DataError("an index is outside of the table", found=f"{int(flat.min())} to {int(flat.max())}",
                        expected=f"0 to {x.shape[axis] - 1}")
    return x.index_select(axis, flat).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])


def _from_the_end(indices: torch.Tensor, extent: int) -> torch.Tensor:
    """Indices as int64, negative ones counted from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


def _gather_elements(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices = args
    axis = int(call.attrs.axis)
    return torch.gather(x, axis, _from_the_end(indices, x.shape[axis]))


def _gather_nd(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices = args
    batch = int(call.attrs.batch_dims)
    own = tuple(_from_the_end(indices[..., i], x.shape[batch + i]) for i in range(indices.shape[-1]))
    rank = indices.dim() - 1
    positions = tuple(torch.arange(x.shape[i]).reshape([-1 if j == i else 1 for j in range(rank)])
                      for i in range(batch))
    return x[positions + own]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(x: torch.Tensor, axis: int, indices: torch.Tensor, updates: torch.Tensor,
             call: relax.Call) -> torch.Tensor:
    reduction = str(call.attrs.reduction)
    if reduction == "update":
        return x.scatter(axis, indices, updates)
    if reduction not in _REDUCTIONS:
        raise refuse(call, f"with reduction {reduction}")
    return x.scatter_reduce(axis, indices, updates, _REDUCTIONS[reduction])


def _scatter_elements(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices, updates = args
    axis = int(call.attrs.axis)
    return _scatter(x, axis, _from_the_end(indices, x.shape[axis]), updates, call)


def _scatter_nd(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices, updates = args
    depth = indices.shape[-1]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for i in range(depth):
        rows = rows * x.shape[i] + _from_the_end(indices[..., i], x.shape[i])
    width = math.prod(x.shape[depth:])
    flat = x.reshape(math.prod(x.shape[:depth]), width)
    index = rows.reshape(-1, 1).expand(-1, width)
    return _scatter(flat, 0, index, updates.reshape(-1, width), call).reshape(x.shape)


def _index_tensor(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices = args
    return x[tuple(i if i.dtype == torch.bool else i.long() for i in indices)]


def _index_put(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, indices, values = args
    indices = indices if isinstance(indices, tuple) else (indices,)
    return x.index_put(tuple(i if i.dtype == torch.bool else i.long() for i in indices), values,
                       accumulate=bool(call.attrs.accumulate))


def _slice_scatter(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, source, start, end, step = args
    return torch.slice_scatter(x, source, int(call.attrs.axis), start, end, step)


def _padding_index(extent: int, before: int, after: int, mode: str) -> torch.Tensor:
    """For every element of a padded axis the element of the original axis that it repeats."""
    position = torch.arange(-before, extent + after)
    if mode == "circular":
        return position.remainder(extent)
    if mode == "replicate":
        return position.clamp(0, extent - 1)
    period = max(2 * (extent - 1), 1)
    position = position.remainder(period)
    return torch.minimum(position, period - position)


def _pad(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, widths, mode = args[0], ints(call.attrs.pad_width), str(call.attrs.pad_mode)
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    if mode == "constant":
        value = float(call.attrs.pad_value) if x.is_floating_point() else int(call.attrs.pad_value)
        return functional.pad(x, [w for pair in reversed(pairs) for w in pair], value=value)
    if mode not in ("reflect", "replicate", "circular"):
        raise refuse(call, f"with mode {mode}")
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = x.index_select(axis, _padding_index(x.shape[axis], before, after, mode))
    return x


def _one_hot(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    indices, on, off = args
    hits = indices.unsqueeze(-1) == torch.arange(int(call.attrs.depth))
    values = torch.where(hits, torch.tensor(on), torch.tensor(off)).to(result_dtype(call))
    axis = int(call.attrs.axis)
    return values.movedim(-1, axis if axis >= 0 else axis + values.dim())


def _einsum(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.einsum(str(call.attrs.subscripts), *args[0])


def _pixel_shuffle(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return functional.pixel_shuffle(args[0], int(call.attrs.upscale_factor))


def _meshgrid(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, ...]:
    indexing = "ij" if call.attrs.indexing is None else str(call.attrs.indexing)
    return tuple(torch.meshgrid(*args[0], indexing=indexing))


def _sum_to(x: torch.Tensor, shape: Sequence[int] | torch.Tensor) -> torch.Tensor:
    return x.sum_to_size(tuple(shape.shape if isinstance(shape, torch.Tensor) else shape))


def _triangle(keep_upper: bool) -> Semantics:
    def cut(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
        return args[0].triu(args[1]) if keep_upper else args[0].tril(args[1])

    return cut


TABLE: dict[str, Semantics] = {
    "relax.reshape": of_tensors(lambda x, shape: x.reshape(shape)),
    "relax.flatten": of_tensors(torch.flatten),
    "relax.nn.batch_flatten": of_tensors(lambda x: x.flatten(1)),
    "relax.broadcast_to": of_tensors(lambda x, shape: x.expand(shape)),
    "relax.collapse_sum_to": of_tensors(_sum_to),
    "relax.collapse_sum_like": of_tensors(_sum_to),
    "relax.outer": of_tensors(torch.outer),
    "relax.permute_dims": _permute_dims,
    "relax.concat": _concat,
    "relax.stack": _stack,
    "relax.split": _split,
    "relax.squeeze": _squeeze,
    "relax.expand_dims": _expand_dims,
    "relax.strided_slice": _strided_slice,
    "relax.dynamic_strided_slice": _dynamic_strided_slice,
    "relax.tile": _tile,
    "relax.repeat": _repeat,
    "relax.flip": _flip,
    "relax.reverse_sequence": _reverse_sequence,
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.index_tensor": _index_tensor,
    "relax.index_put": _index_put,
    "relax.slice_scatter": _slice_scatter,
    "relax.nn.pad": _pad,
    "relax.one_hot": _one_hot,
    "relax.einsum": _einsum,
    "relax.nn.pixel_shuffle": _pixel_shuffle,
    "relax.meshgrid": _meshgrid,
    "relax.tril": _triangle(keep_upper=False),
    "relax.triu": _triangle(keep_upper=True),
}
