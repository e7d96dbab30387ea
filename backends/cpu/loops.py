"""Loops that kernels share: over vectors of a two-dimensional view, and over tasks, on one thread or on all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, evaluate_dim, is_equal_dim
from ..target import Capabilities
from .epilogue import Position
from .kernel import KernelRequest
from .vector_memory import Index

# Elements below which a loop runs on the calling thread: starting a parallel region costs about 5 µs.
SERIAL_ELEMENTS = 16384
# Vectors of a row that one task takes where there are too few rows to share out.
_BLOCK_VECTORS = 32


@dataclass(frozen=True)
class Loops:
    """What loops are made for.

    typical : an extent for every symbol, by name.
    """

    vector_bytes: int
    threads: int
    typical: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(cls, request: KernelRequest, capabilities: Capabilities, threads: int) -> Loops:
        """The loops of a kernel."""
        return cls(capabilities.vector_bits // 8, threads, request.typical)

    def typically(self, extent: Dim) -> int:
        """An extent at the typical extents of symbols."""
        return evaluate_dim(extent, dict(self.typical))


def task_loop(tasks: Dim, elements: Dim, loops: Loops) -> AbstractContextManager[tvm.ir.Expr]:
    """A loop over independent tasks that touch ``elements`` elements together; parallel where that typically pays."""
    if loops.threads > 1 and loops.typically(tasks) > 1 and loops.typically(elements) >= SERIAL_ELEMENTS:
        return T.parallel(tasks)
    return T.serial(tasks)


def for_vectors(extent: Dim, lanes: int, body: Callable[[Index, Index], None],
                loop: Callable[[Dim], AbstractContextManager[tvm.ir.Expr]] = T.serial) -> None:
    """Call ``body(index, valid)`` to emit the work on every vector of a row: ``valid`` is ``lanes`` but for the rest.

    loop : makes the loop over the whole vectors.
    """
    full, tail = extent // lanes, extent % lanes
    if not is_equal_dim(full, 0):
        with loop(full) as step:
            body(step * lanes, lanes)
    if isinstance(tail, int):
        if tail:
            body(full * lanes, tail)
        return
    with T.If(tail > 0), T.Then():
        body(full * lanes, tail)


def for_each_vector(rows: Dim, columns: Dim, lanes: int, loops: Loops, body: Callable[[Position, Index], None]) -> None:
    """Call ``body(position, valid)`` to emit the work on every vector of a [rows, columns] view.

    ``valid`` is how many elements of the vector exist: ``lanes`` except at the end of a row.
    """
    if not isinstance(columns, int):
        _for_each_vector_of_any(rows, columns, lanes, loops, body)
        return
    full, tail = divmod(columns, lanes)
    many_rows = loops.typically(rows) >= 4 * loops.threads
    block = max(full, 1) if many_rows else _BLOCK_VECTORS
    blocks = max(1, -(-full // block))
    with task_loop(rows * blocks, rows * columns, loops) as task:
        row = task if blocks == 1 else T.floordiv(task, blocks)
        number = 0 if blocks == 1 else T.floormod(task, blocks)
        if full:
            first = number * block
            count = full if blocks == 1 else T.min(block, full - first)
            with T.serial(0, count) as step:
                body(Position(row, (first + step) * lanes), lanes)
        if tail and blocks == 1:
            body(Position(row, full * lanes), tail)
        elif tail:
            with T.If(number == blocks - 1), T.Then():
                body(Position(row, full * lanes), tail)


def _for_each_vector_of_any(rows: Dim, columns: Dim, lanes: int, loops: Loops,
                            body: Callable[[Position, Index], None]) -> None:
    """``for_each_vector`` over rows of a length that only running tells: blocks of vectors, the last one shorter."""
    blocks = -(-columns // (lanes * _BLOCK_VECTORS))
    with task_loop(rows * blocks, rows * columns, loops) as task:
        row, number = T.floordiv(task, blocks), T.floormod(task, blocks)
        first = number * _BLOCK_VECTORS
        full = T.min(_BLOCK_VECTORS, T.floordiv(columns, lanes) - first)
        with T.serial(full) as step:
            body(Position(row, (first + step) * lanes), lanes)
        tail = columns % lanes
        with T.If(tirx.all(tail > 0, number == blocks - 1)), T.Then():
            body(Position(row, columns - tail), tail)
