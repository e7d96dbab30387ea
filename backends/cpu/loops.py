"""Loops that kernels share: over vectors of a two-dimensional view, and over tasks, on one thread or on all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...ir import Dim, evaluate_dim
from .epilogue import Position
from .vector_memory import Index

# An extent for every symbol, by name: what loops are made for.
Typical: TypeAlias = Sequence[tuple[str, int]]

# Elements below which a loop runs on the calling thread: starting a parallel region costs about 5 µs.
SERIAL_ELEMENTS = 16384
# Vectors of a row that one task takes where there are too few rows to share out.
_BLOCK_VECTORS = 32


def task_loop(tasks: Dim, elements: Dim, threads: int, typical: Typical = ()) -> AbstractContextManager[tvm.ir.Expr]:
    """A loop over independent tasks that touch ``elements`` elements together; parallel where that pays at the typical
    extents of symbols."""
    extents = dict(typical)
    if threads > 1 and evaluate_dim(tasks, extents) > 1 and evaluate_dim(elements, extents) >= SERIAL_ELEMENTS:
        return T.parallel(0, tasks)
    return T.serial(0, tasks)


def for_each_vector(rows: Dim, columns: Dim, lanes: int, threads: int, body: Callable[[Position, Index], None],
                    typical: Typical = ()) -> None:
    """Call ``body(position, valid)`` to emit the work on every vector of a [rows, columns] view.

    ``valid`` is how many elements of the vector exist: ``lanes`` except at the end of a row.
    """
    if not isinstance(columns, int):
        _for_each_vector_of_any(rows, columns, lanes, threads, body, typical)
        return
    full, tail = divmod(columns, lanes)
    many_rows = evaluate_dim(rows, dict(typical)) >= 4 * threads
    block = max(full, 1) if many_rows else _BLOCK_VECTORS
    blocks = max(1, -(-full // block))
    with task_loop(rows * blocks, rows * columns, threads, typical) as task:
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


def _for_each_vector_of_any(rows: Dim, columns: Dim, lanes: int, threads: int, body: Callable[[Position, Index], None],
                            typical: Typical) -> None:
    """``for_each_vector`` over rows of a length that only running tells: blocks of vectors, the last one shorter."""
    blocks = -(-columns // (lanes * _BLOCK_VECTORS))
    with task_loop(rows * blocks, rows * columns, threads, typical) as task:
        row, number = T.floordiv(task, blocks), T.floormod(task, blocks)
        first = number * _BLOCK_VECTORS
        full = T.min(_BLOCK_VECTORS, T.floordiv(columns, lanes) - first)
        with T.serial(0, full) as step:
            body(Position(row, (first + step) * lanes), lanes)
        tail = columns % lanes
        with T.If(tirx.all(tail > 0, number == blocks - 1)), T.Then():
            body(Position(row, columns - tail), tail)
