"""The one copy that all data movement comes down to, and filling."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_equal_dim, is_one, product_of, simplified
from .loops import Loops, for_vectors, task_loop
from .strided import Strided
from .vector_math import splat
from .vector_memory import Index, load, store

# Elements on a side of the blocks in which a copy that turns rows into columns runs.
_BLOCK = 16


@dataclass(frozen=True)
class _Loop:
    """One dimension of a copy: extent, and the distance of neighbours in target and source."""

    extent: Dim
    target: Dim
    source: Dim


def copy(target: Strided, source: Strided, loops: Loops) -> None:
    """Emit ``target[...] = source[...]`` for tensors of one shape and element type."""
    merged = _merge([_Loop(*dims) for dims in zip(target.shape, target.strides, source.strides, strict=True)])
    total = product_of(loop.extent for loop in merged)
    if is_equal_dim(total, 0):
        return
    *outer, inner = merged or [_Loop(1, 1, 1)]
    if is_one(inner.target) and (is_one(inner.source) or is_equal_dim(inner.source, 0)):
        _copy_rows(target, source, outer, inner, loops)
        return
    column = next((i for i, loop in enumerate(outer) if is_one(loop.source)), None)
    if column is not None and not is_one(inner.extent):
        _copy_blocks(target, source, [*outer[:column], *outer[column + 1:]], (outer[column], inner), total, loops)
        return
    with _nest(outer, total, loops) as (at, of), T.serial(0, inner.extent) as i:
        store(target.buffer, target.offset + at + i * inner.target,
              source.buffer[source.offset + of + i * inner.source], 1)


def fill(target: Strided, value: float, loops: Loops) -> None:
    """Emit ``target[...] = value`` for a dense tensor, the value as it is stored."""
    dtype, size = str(target.buffer.dtype), product_of(target.shape)
    lanes = loops.vector_bytes // np.dtype(dtype).itemsize
    for_vectors(size, lanes, lambda index, valid: store(target.buffer, index, splat(value, lanes, dtype), valid),
                lambda count: task_loop(count, size, loops))


def _merge(loops: Sequence[_Loop]) -> list[_Loop]:
    """Fewest loops that describe the same copy."""
    merged: list[_Loop] = []
    for loop in loops:
        if is_one(loop.extent):
            continue
        last = merged[-1] if merged else None
        if (last and is_equal_dim(last.target, loop.target * loop.extent)
                and is_equal_dim(last.source, loop.source * loop.extent)):
            merged[-1] = _Loop(simplified(last.extent * loop.extent), loop.target, loop.source)
        else:
            merged.append(loop)
    return merged


class _nest(ExitStack):
    """A loop over the combinations of several dimensions, the tasks; yields the offsets in target and source."""

    def __init__(self, dimensions: Sequence[_Loop], elements: Dim, loops: Loops) -> None:
        super().__init__()
        self._dimensions, self._elements, self._loops = list(dimensions), elements, loops

    def __enter__(self) -> tuple[Index, Index]:  # type: ignore[override]
        super().__enter__()
        if not self._dimensions:
            return 0, 0
        outer = product_of(loop.extent for loop in self._dimensions)
        task = self.enter_context(task_loop(outer, self._elements, self._loops))
        at: Index = 0
        of: Index = 0
        inner: Dim = 1
        for position, loop in reversed(list(enumerate(self._dimensions))):
            digit = task if is_one(inner) else T.floordiv(task, inner)
            digit = digit if position == 0 else T.floormod(digit, loop.extent)
            at, of = at + digit * loop.target, of + digit * loop.source
            inner = inner * loop.extent
        return at, of


def _copy_rows(target: Strided, source: Strided, outer: Sequence[_Loop], inner: _Loop, loops: Loops) -> None:
    """Rows that are in order on both sides, or one element that is repeated along the row."""
    dtype = str(target.buffer.dtype)
    lanes = loops.vector_bytes // np.dtype(dtype).itemsize
    total = inner.extent * product_of(loop.extent for loop in outer)
    stride = 0 if is_equal_dim(inner.source, 0) else 1
    if not outer and (not isinstance(inner.extent, int) or inner.extent // lanes > loops.threads):
        for_vectors(inner.extent, lanes,
                    lambda index, valid: _move(target, source, index, index * stride, stride, lanes, valid),
                    lambda count: task_loop(count, total, loops))
        return
    with _nest(outer, total, loops) as (at, of):
        for_vectors(inner.extent, lanes, lambda index, valid: _move(
            target, source, at + index, of + index * stride, stride, lanes, valid))


def _move(target: Strided, source: Strided, at: Index, of: Index, stride: int, lanes: int, valid: Index) -> None:
    """One vector: consecutive elements, or one element in all lanes."""
    where = source.offset + of
    value = load(source.buffer, where, lanes, valid) if stride else splat(source.buffer[where], lanes)
    store(target.buffer, target.offset + at, value, valid)


def _copy_blocks(target: Strided, source: Strided, outer: Sequence[_Loop], pair: tuple[_Loop, _Loop], total: Dim,
                 loops: Loops) -> None:
    """Blocks small enough for the cache, where one side reads along what the other side writes across."""
    column, inner = pair
    blocks = [-(-loop.extent // _BLOCK) for loop in pair]
    tiles = [_Loop(n, loop.target * _BLOCK, loop.source * _BLOCK) for n, loop in zip(blocks, pair, strict=True)]
    with ExitStack() as stack:
        outer_tasks = product_of(loop.extent for loop in outer)
        task = stack.enter_context(task_loop(outer_tasks * blocks[0] * blocks[1], total, loops))
        at, of = target.offset, source.offset
        inner_size: Dim = 1
        digits: list[Index] = []
        for loop in reversed([*outer, *tiles]):
            digit = T.floormod(T.floordiv(task, inner_size), loop.extent)
            at, of = at + digit * loop.target, of + digit * loop.source
            digits.append(digit)
            inner_size = inner_size * loop.extent
        extents = [T.min(_BLOCK, loop.extent - digit * _BLOCK)
                   for loop, digit in zip(pair, (digits[1], digits[0]), strict=True)]
        with T.serial(0, extents[0]) as i, T.serial(0, extents[1]) as j:
            store(target.buffer, at + i * column.target + j * inner.target,
                  source.buffer[of + i * column.source + j * inner.source], 1)
