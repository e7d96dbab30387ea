"""Padding of ATen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from tvm import relax, tirx

from ...dims import Dim, simplified
from ...ir import Expr, dtype_of
from .context import Context, Handler, Value, is_exactly, rank, shape
from .slicing import sliced

_op = relax.op


def pad(c: Context, x: Value, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    """``pads`` are ATen's: (start, end) of the last axis first."""
    if mode == "constant":
        return constant_pad(c, x, pads, value or 0)
    y = c.expr(x)
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if before or after:
            if not isinstance(shape(x)[axis], int):
                y = _padded_by_parts(c, y, axis, before, after, mode)
                continue
            indices = np.pad(np.arange(shape(x)[axis]), (before, after), mode=_PAD_MODES[mode])
            y = c.emit(_op.take(y, c.expr(torch.from_numpy(indices)), axis=axis, mode="clip"))
    return y


_PAD_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {
    "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded_by_parts(c: Context, x: Expr, axis: int, before: int, after: int, mode: str) -> Expr:
    """A symbolic axis between copies of its own ends."""
    extent = shape(x)[axis]

    def part(begin: Dim, width: int) -> Expr:
        return sliced(c, x, axis, begin, simplified(begin + width), part="edge")

    ends: list[Expr | None] = [None, None]
    for i, width in enumerate((before, after)):
        if not width:
            continue
        if mode == "replicate":
            edge = part(0 if i == 0 else simplified(extent - 1), 1)
            ends[i] = edge if width == 1 else c.emit(_op.repeat(edge, width, axis=axis), "edge")
        elif mode == "circular":
            ends[i] = part(simplified(extent - width) if i == 0 else 0, width)
        else:
            ends[i] = c.emit(_op.flip(part(1 if i == 0 else simplified(extent - 1 - width), width), axis), "edge")
    return c.emit(_op.concat([p for p in (ends[0], x, ends[1]) if p is not None], axis=axis))


def padding_of(mode: str) -> Handler:
    """``reflection_padNd`` and ``replication_padNd``."""
    return lambda c, x, pads: pad(c, x, pads, mode)


def constant_pad(c: Context, x: Value, pads: Sequence[Dim], value: float = 0) -> Value:
    y, widths = c.expr(x), [0] * (2 * rank(x))
    for i, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = rank(x) - 1 - i
        if not (isinstance(before, int) and isinstance(after, int)):
            y = _extended(c, y, axis, before, after, value)
            continue
        if before < 0 or after < 0:
            end = simplified(shape(y)[axis] - max(-after, 0))
            y = sliced(c, y, axis, max(-before, 0), end, part="crop")
        widths[2 * axis:2 * axis + 2] = [max(before, 0), max(after, 0)]
    return c.emit(_op.nn.pad(y, widths, pad_mode="constant", pad_value=float(value))) if any(widths) else y


def _extended(c: Context, x: Expr, axis: int, before: Dim, after: Dim, value: float) -> Expr:
    """An axis with symbolic amounts of ``value`` put at its ends; an amount that may be negative crops instead."""
    extent = shape(x)[axis]
    begin, end = (_lacking(w) for w in (before, after))
    y = sliced(c, x, axis, begin, simplified(extent - end), part="crop")
    joined = [y]
    for width, place in ((before, 0), (after, len(joined) + 1)):
        dims = (*shape(x)[:axis], _surplus(width), *shape(x)[axis + 1:])
        if not is_exactly(dims[axis], 0):
            joined.insert(place, c.emit(_op.full(dims, c.expr(value, dtype_of(x))), "filling"))
    return y if len(joined) == 1 else c.emit(_op.concat(joined, axis=axis))


def _surplus(width: Dim) -> Dim:
    return max(width, 0) if isinstance(width, int) else simplified(tirx.max(width, tirx.IntImm("int64", 0)))


def _lacking(width: Dim) -> Dim:
    return max(-width, 0) if isinstance(width, int) else simplified(tirx.max(0 - width, tirx.IntImm("int64", 0)))


TABLE: dict[str, Handler] = {
    "pad": pad, "constant_pad_nd": constant_pad,
    **{f"reflection_pad{n}d": padding_of("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": padding_of("replicate") for n in (1, 2, 3)},
}
