"""Tensors as a flat buffer and a layout, and the one copy that all data movement comes down to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as T

from .loops import task_loop
from .vector_math import splat
from .vector_memory import Index, load, store

# Elements on a side of the blocks in which a copy that turns rows into columns runs.
_BLOCK = 16


@dataclass(frozen=True)
class Strided:
    """A tensor in a flat buffer.

    layout : a NumPy view of bytes whose strides are the tensor's strides in elements; it is never read. NumPy
        computes what slicing, transposing, broadcasting and reshaping do to it.
    base : address of the layout's first element when the tensor was dense, so that offsets can be told.
    """

    buffer: tvm.ir.Expr
    layout: np.ndarray
    base: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def offset(self) -> int:
        """Index in the buffer of the element with index 0."""
        return self.layout.__array_interface__["data"][0] - self.base

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in order from the start of the buffer."""
        return self.offset == 0 and self.layout.flags.c_contiguous

    def with_layout(self, layout: np.ndarray) -> Strided:
        """The same buffer under another layout derived from this one's."""
        return Strided(self.buffer, layout, self.base)

    def reshaped(self, shape: Sequence[int]) -> Strided | None:
        """The same elements under another shape, or None where that needs a copy."""
        result = self.layout.reshape(shape)
        return self.with_layout(result) if np.shares_memory(result, self.layout) else None


def dense(buffer: tvm.ir.Expr, shape: Sequence[int]) -> Strided:
    """A tensor whose elements lie in order."""
    layout = np.empty(tuple(shape), np.uint8)
    return Strided(buffer, layout, layout.__array_interface__["data"][0])


@dataclass(frozen=True)
class _Loop:
    """One dimension of a copy: extent, and the distance of neighbours in target and source."""

    extent: int
    target: int
    source: int


def copy(target: Strided, source: Strided, vector_bytes: int, threads: int) -> None:
    """Emit ``target[...] = source[...]`` for tensors of one shape and element type."""
    loops = _merge([_Loop(*dims) for dims in zip(target.shape, target.layout.strides, source.layout.strides,
                                                 strict=True)])
    total = prod(loop.extent for loop in loops)
    *outer, inner = loops or [_Loop(1, 1, 1)]
    if inner.target == 1 and inner.source in (0, 1):
        _copy_rows(target, source, outer, inner, vector_bytes, threads)
        return
    column = next((i for i, loop in enumerate(outer) if loop.source == 1), None)
    if column is not None and inner.extent > 1:
        _copy_blocks(target, source, [*outer[:column], *outer[column + 1:]], (outer[column], inner), total, threads)
        return
    with _nest(outer, total, threads) as (at, of), T.serial(0, inner.extent) as i:
        store(target.buffer, target.offset + at + i * inner.target,
              source.buffer[source.offset + of + i * inner.source], 1)


def fill(target: Strided, value: float, vector_bytes: int, threads: int) -> None:
    """Emit ``target[...] = value`` for a dense tensor, the value as it is stored."""
    dtype, size = str(target.buffer.dtype), prod(target.shape)
    lanes = vector_bytes // np.dtype(dtype).itemsize
    full, tail = divmod(size, lanes)
    if full:
        with task_loop(full, size, threads) as i:
            store(target.buffer, i * lanes, splat(value, lanes, dtype), lanes)
    if tail:
        store(target.buffer, full * lanes, splat(value, lanes, dtype), tail)


def _merge(loops: Sequence[_Loop]) -> list[_Loop]:
    """Fewest loops that describe the same copy."""
    merged: list[_Loop] = []
    for loop in loops:
        if loop.extent == 1:
            continue
        last = merged[-1] if merged else None
        if last and last.target == loop.target * loop.extent and last.source == loop.source * loop.extent:
            merged[-1] = _Loop(last.extent * loop.extent, loop.target, loop.source)
        else:
            merged.append(loop)
    return merged


class _nest(ExitStack):
    """A loop over the combinations of several dimensions, the tasks; yields the offsets in target and source."""

    def __init__(self, loops: Sequence[_Loop], elements: int, threads: int) -> None:
        super().__init__()
        self._loops, self._elements, self._threads = list(loops), elements, threads

    def __enter__(self) -> tuple[Index, Index]:  # type: ignore[override]
        super().__enter__()
        if not self._loops:
            return 0, 0
        outer = prod(loop.extent for loop in self._loops)
        task = self.enter_context(task_loop(outer, self._elements, self._threads))
        at: Index = 0
        of: Index = 0
        inner = 1
        for position, loop in reversed(list(enumerate(self._loops))):
            digit = task if inner == 1 else T.floordiv(task, inner)
            digit = digit if position == 0 else T.floormod(digit, loop.extent)
            at, of = at + digit * loop.target, of + digit * loop.source
            inner *= loop.extent
        return at, of


def _copy_rows(target: Strided, source: Strided, outer: Sequence[_Loop], inner: _Loop, vector_bytes: int,
               threads: int) -> None:
    """Rows that are in order on both sides, or one element that is repeated along the row."""
    dtype = str(target.buffer.dtype)
    lanes = vector_bytes // np.dtype(dtype).itemsize
    total = inner.extent * prod(loop.extent for loop in outer)
    full, tail = divmod(inner.extent, lanes)
    if not outer and full > threads:
        outer = [_Loop(full, lanes, lanes * inner.source)]
        _copy_rows(target, source, outer, _Loop(lanes, 1, inner.source), vector_bytes, threads)
        full = 0
        if not tail:
            return
        start = inner.extent - tail
        _move(target, source, start, start * inner.source, inner.source, lanes, tail)
        return
    with _nest(outer, total, threads) as (at, of):
        if full:
            with T.serial(0, full) as i:
                _move(target, source, at + i * lanes, of + i * lanes * inner.source, inner.source, lanes, lanes)
        if tail:
            _move(target, source, at + full * lanes, of + full * lanes * inner.source, inner.source, lanes, tail)


def _move(target: Strided, source: Strided, at: Index, of: Index, stride: int, lanes: int, valid: int) -> None:
    """One vector: consecutive elements, or one element in all lanes."""
    where = source.offset + of
    value = load(source.buffer, where, lanes, valid) if stride else splat(source.buffer[where], lanes)
    store(target.buffer, target.offset + at, value, valid)


def _copy_blocks(target: Strided, source: Strided, outer: Sequence[_Loop], pair: tuple[_Loop, _Loop], total: int,
                 threads: int) -> None:
    """Blocks small enough for the cache, where one side reads along what the other side writes across."""
    column, inner = pair
    blocks = [-(-loop.extent // _BLOCK) for loop in pair]
    tiles = [_Loop(n, loop.target * _BLOCK, loop.source * _BLOCK) for n, loop in zip(blocks, pair, strict=True)]
    with ExitStack() as stack:
        outer_tasks = prod(loop.extent for loop in outer)
        task = stack.enter_context(task_loop(outer_tasks * blocks[0] * blocks[1], total, threads))
        at, of, inner_size = target.offset, source.offset, 1
        digits: list[Index] = []
        for loop in reversed([*outer, *tiles]):
            digit = T.floormod(T.floordiv(task, inner_size), loop.extent)
            at, of = at + digit * loop.target, of + digit * loop.source
            digits.append(digit)
            inner_size *= loop.extent
        extents = [T.min(_BLOCK, loop.extent - digit * _BLOCK)
                   for loop, digit in zip(pair, (digits[1], digits[0]), strict=True)]
        with T.serial(0, extents[0]) as i, T.serial(0, extents[1]) as j:
            store(target.buffer, at + i * column.target + j * inner.target,
                  source.buffer[of + i * column.source + j * inner.source], 1)
