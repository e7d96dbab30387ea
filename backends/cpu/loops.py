"""Loops that kernels share: over vectors of a two-dimensional view, and over tasks, on one thread or on all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import tvm
from tvm.script.ir_builder import tirx as T

from .epilogue import Position
from .vector_memory import Index

# Elements below which a loop runs on the calling thread: starting a parallel region costs about 5 µs.
SERIAL_ELEMENTS = 16384
# Vectors of a row that one task takes where there are too few rows to share out.
_BLOCK_VECTORS = 32


def task_loop(tasks: int, elements: int, threads: int) -> AbstractContextManager[tvm.ir.Expr]:
    """A loop over independent tasks that touch ``elements`` elements together; parallel where that pays."""
    if threads > 1 and tasks > 1 and elements >= SERIAL_ELEMENTS:
        return T.parallel(0, tasks)
    return T.serial(0, tasks)


def for_each_vector(rows: int, columns: int, lanes: int, threads: int, body: Callable[[Position, Index], None]) -> None:
    """Call ``body(position, valid)`` to emit the work on every vector of a [rows, columns] view.

    ``valid`` is how many elements of the vector exist: ``lanes`` except at the end of a row.
    """
    full, tail = divmod(columns, lanes)
    many_rows = rows >= 4 * threads
    block = max(full, 1) if many_rows else _BLOCK_VECTORS
    blocks = max(1, -(-full // block))
    with task_loop(rows * blocks, rows * columns, threads) as task:
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
