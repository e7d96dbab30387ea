"""Operators that cut tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from ...dims import Dim, analyzer_of, simplified
from ...ir import Expr, dims_of, dtype_of
from .broadcasting import is_number, shape_text
from .node import OnnxNode, Results, Tensor, operator


@dataclass(frozen=True)
class Interval:
    """The places ``start``, ``start + step`` … below ``stop`` of an axis: inside of it, and at least one.

    backwards : from the last to the first.
    """

    start: Dim
    stop: Dim
    step: int = 1
    backwards: bool = False


@operator("Slice")
def slice_(node: OnnxNode) -> Results:
    source = node.dims(0)
    starts, ends = (node.extents(i, name, name) or () for i, name in ((1, "starts"), (2, "ends")))
    axes = node.integers(3, "axes", "axes")
    found = node.axes(tuple(range(len(starts))) if axes is None else axes, len(source))
    steps = node.integers(4, "steps", "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(found) == len(steps) or 0 in steps:
        raise node.fault("starts, ends, axes and steps do not fit",
                         found=(shape_text(starts), shape_text(ends), found, steps))
    cuts: dict[int, range | Interval] = {}
    for axis, start, stop, step in zip(found, starts, ends, steps, strict=True):
        extent = source[axis]
        if isinstance(extent, int) and isinstance(start, int) and isinstance(stop, int):
            cuts[axis] = range(*slice(start, stop, step).indices(extent))
        else:
            cuts[axis] = _interval(extent, start, stop, step)
    return sliced(node, node.value(0), cuts)


def _interval(extent: Dim, start: Dim, stop: Dim, step: int) -> Interval:
    """The places that Python's ``slice(start, stop, step)`` takes of an axis with a symbolic extent."""
    if step > 0:
        return Interval(_low(start, extent, 0), _high(stop, extent, 0), step)
    first, end = _high(start, extent, -1), _low(stop, extent, -1)
    count = simplified(tirx.floordiv(first - end - step - 1, -step))
    return Interval(simplified(first + (count - 1) * step), simplified(first + 1), -step, backwards=True)


def _low(bound: Dim, extent: Dim, least: int) -> Dim:
    """The lower bound of a slice that is not empty, counted from the front, at least ``least``.

    No minimum with the extent: where that is smaller the slice is empty, which ``_require_inside`` refuses.
    """
    return _counted(bound, bound, tirx.max(bound + extent, least), (extent + least, least))


def _high(bound: Dim, extent: Dim, least: int) -> Dim:
    """The upper bound of a slice that is not empty, counted from the front, at most ``extent + least``.

    No maximum with ``least``: where that is larger the slice is empty, which ``_require_inside`` refuses.
    """
    return _counted(bound, tirx.min(bound, extent + least), bound + extent, (extent + least, least))


def _counted(bound: Dim, from_the_front: Dim, from_the_end: Dim, limits: tuple[Dim, int]) -> Dim:
    """What a bound is by its sign, and past all extents."""
    if isinstance(bound, int):
        if bound + 1 >= 2 ** 31:  # No extent is larger.
            return simplified(limits[0])
        return limits[1] if bound <= -2 ** 31 else simplified(from_the_front if bound >= 0 else from_the_end)
    analyzer = analyzer_of(bound)
    if analyzer.can_prove(bound >= 0):
        return simplified(from_the_front)
    return simplified(from_the_end if analyzer.can_prove(bound < 0) else
                      tirx.Select(bound < 0, from_the_end, from_the_front))


def sliced(node: OnnxNode, x: Tensor, cuts: Mapping[int, range | Interval]) -> Tensor:
    """The elements of ``x`` that ``cuts`` (by axis) name; backwards ones are sliced forwards and turned round."""
    value: Expr = node.constant(x)
    source = dims_of(value)
    if any(isinstance(c, range) and len(c) == 0 for c in cuts.values()):
        shape = [len(c) if isinstance(c := cuts.get(a), range) else d for a, d in enumerate(source)]
        return np.zeros(node.numbers(shape, "the result"), dtype_of(value))
    intervals = {a: _of_range(c) if isinstance(c, range) else c for a, c in cuts.items()}
    cut = {a: c for a, c in intervals.items() if not _is_whole(c, source[a])}
    for axis, c in cut.items():
        _require_inside(node, c, source[axis])
    if cut:
        is_symbolic = not all(isinstance(v, int) for a, c in cut.items() for v in (source[a], c.start, c.stop))
        value = node.emit(relax.op.strided_slice(
            value, list(cut), [c.start for c in cut.values()], [c.stop for c in cut.values()],
            [c.step for c in cut.values()], assume_inbound=is_symbolic))
    for axis, c in intervals.items():
        if c.backwards and not is_number(dims_of(value)[axis], 1):
            value = node.emit(relax.op.flip(value, axis))
    return value if isinstance(value, relax.Var) else x


def _of_range(r: range) -> Interval:
    forwards = r if r.step > 0 else r[::-1]
    return Interval(forwards[0], forwards[-1] + 1, forwards.step, backwards=r.step < 0)


def _is_whole(c: Interval, extent: Dim) -> bool:
    return is_number(c.start, 0) and c.step == 1 and is_number(simplified(extent - c.stop), 0)


def _require_inside(node: OnnxNode, c: Interval, extent: Dim) -> None:
    """Not empty, and not past the ends."""
    node.require_at_least(c.start, 0)
    node.require_at_least(c.stop, c.start + 1)
    node.require_at_least(extent, c.stop)


@operator("Split")
def split(node: OnnxNode) -> Results:
    """One slice per output."""
    axis = node.axis(int(node.attribute("axis", 0)), node.rank(0))
    extent = node.dims(0)[axis]
    parts = node.extents(1, "split", "the parts") or _equal_parts(node, extent)
    ends: list[Dim] = [simplified(e) for e in itertools.accumulate(parts)]
    if any(p < 0 for p in parts if isinstance(p, int)) or len(parts) < len(node.outputs):
        raise node.fault("the parts are unusable", found=shape_text(parts), expected=f"{len(node.outputs)} parts")
    node.require_equal(ends[-1] if ends else 0, extent, "the parts do not add up")
    bounds = zip(parts, ends, strict=True)
    if isinstance(extent, int) and all(isinstance(p, int) for p in parts):
        return tuple(sliced(node, node.value(0), {axis: range(e - p, e)}) for p, e in bounds)
    x = node.value(0)
    return tuple(sliced(node, x, {axis: Interval(simplified(e - p), e)}) for p, e in bounds)


def _equal_parts(node: OnnxNode, extent: Dim) -> Sequence[Dim]:
    """As large as the first, but the last ones, which have what is left."""
    count = int(node.attribute("num_outputs", len(node.outputs)))
    if count != len(node.outputs):
        raise node.fault("the number of outputs is not that of the node", found=count, expected=len(node.outputs))
    whole = simplified((extent + count - 1) // count)
    if isinstance(extent, int) and isinstance(whole, int):
        return [max(min(whole, extent - i * whole), 0) for i in range(count)]
    return [*[whole] * (count - 1), simplified(extent - whole * (count - 1))]
