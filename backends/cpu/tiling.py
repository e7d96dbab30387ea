"""Register blocks and the split of a matrix product among threads, by a small model of the core.

Nothing is measured here: the same product on the same target always gets the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..target import Capabilities
from .isa import Arithmetic

# Cycles that a tile costs beside its multiply-adds: addresses, filling and draining the pipeline; then per vector of
# accumulators for scaling, activation and store.
_TILE_CYCLES = 14.0
_VECTOR_CYCLES = 7.0
# Cycles from a multiply-add to the next into the same accumulator.
_LATENCY = 4.0
# Cycles to start a parallel region and to wait for its end.
_LAUNCH_CYCLES = 10_000.0
# Bytes a cycle that the second-level cache sustains.
_L2_BYTES = 20.0


@dataclass(frozen=True)
class Product:
    """The shape of a matrix product as a kernel sees it.

    rows, columns : of one group's result.
    groups : products that share the rows (grouped convolution); their columns stand side by side.
    steps : multiply-add instructions per accumulator.
    """

    rows: int
    columns: int
    steps: int
    groups: int = 1


@dataclass(frozen=True)
class Columns:
    """How one group's columns are cut: ``full`` blocks of ``vectors`` whole vectors, then one of ``tail`` vectors whose
    last has ``last`` valid lanes (no tail: 0)."""

    vectors: int
    full: int
    tail: int
    last: int

    @property
    def blocks(self) -> int:
        return self.full + (self.tail > 0)

    @classmethod
    def cut(cls, columns: int, vectors: int, lanes: int) -> Columns:
        """Cut ``columns`` into blocks of ``vectors`` vectors of ``lanes``."""
        count, full = -(-columns // lanes), columns // (vectors * lanes)
        tail = count - full * vectors
        return cls(vectors, full, tail, columns - (count - 1) * lanes if tail else 0)


@dataclass(frozen=True)
class Schedule:
    """A kernel's loops.

    rows : rows of a register block; the last block of the rows starts early instead of being cut.
    columns : the cut of the columns into register blocks.
    row_tasks, column_tasks : parallel tasks along each axis; their product is the number of tasks.
    chunks : parts into which a task cuts its rows, so that what a part reads stays in the second-level cache.
    """

    rows: int
    columns: Columns
    row_tasks: int
    column_tasks: int
    chunks: int = 1


def choose(product: Product, arithmetic: Arithmetic, capabilities: Capabilities, threads: int,
           row_bytes: float = 0.0) -> Schedule:
    """The schedule with the least predicted time of the slowest thread.

    row_bytes : bytes that a task reads or copies per row of the result; bounds the chunks.
    """
    best: tuple[float, Schedule] | None = None
    for vectors in range(1, min(8, -(-product.columns // arithmetic.lanes)) + 1):
        for rows in range(1, min(14, product.rows) + 1):
            if rows * vectors + vectors + 1 > capabilities.registers:
                break
            columns = Columns.cut(product.columns, vectors, arithmetic.lanes)
            for row_tasks, column_tasks in _splits(threads):
                schedule = Schedule(rows, columns, row_tasks, column_tasks)
                cost = _cycles(product, schedule, arithmetic, capabilities)
                if best is None or cost < best[0]:
                    best = (cost, schedule)
    assert best is not None, "one row and one vector always fit"
    schedule = best[1]
    tiles = -(-product.rows // schedule.rows)
    row_tasks, column_tasks = min(schedule.row_tasks, tiles), min(schedule.column_tasks, columns_of(product, schedule))
    task_bytes = row_bytes * product.rows / row_tasks
    chunks = max(1, min(round(task_bytes / (capabilities.l2_bytes / 2)), tiles // row_tasks))
    return Schedule(schedule.rows, schedule.columns, row_tasks, column_tasks, chunks)


def columns_of(product: Product, schedule: Schedule) -> int:
    """Column blocks of all groups together."""
    return product.groups * schedule.columns.blocks


def _cycles(product: Product, schedule: Schedule, arithmetic: Arithmetic, capabilities: Capabilities) -> float:
    """Predicted cycles of the slowest task."""
    columns, tasks = schedule.columns, schedule.column_tasks
    tiles = ceil(ceil(product.rows / schedule.rows) / schedule.row_tasks)
    full, tail = (_tile_cycles(schedule.rows, v, product, arithmetic, capabilities)
                  for v in (columns.vectors, columns.tail))
    blocks = columns_of(product, schedule)

    def cost(first: int, last: int) -> float:
        """Of one tile in each of the blocks first…last."""
        tails = sum(1 for b in range(first, last) if b % columns.blocks >= columns.full)
        return (last - first - tails) * full + tails * tail

    launch = _LAUNCH_CYCLES if schedule.row_tasks * tasks > 1 else 0.0
    return launch + tiles * max(cost(t * blocks // tasks, (t + 1) * blocks // tasks) for t in range(tasks))


def _tile_cycles(rows: int, vectors: int, product: Product, arithmetic: Arithmetic,
                 capabilities: Capabilities) -> float:
    if not vectors:
        return 0.0
    bytes_a_step = vectors * arithmetic.lanes * 4
    step = max(rows * vectors, rows / 2 + vectors, _LATENCY)
    if product.steps * bytes_a_step > capabilities.l1_bytes / 2:
        step = max(step, bytes_a_step / _L2_BYTES)
    return product.steps * step + _TILE_CYCLES + rows + rows * vectors * _VECTOR_CYCLES


def _splits(threads: int) -> list[tuple[int, int]]:
    """Tasks along rows and columns: all ways to use every thread, and one task."""
    ways = [(d, threads // d) for d in range(1, threads + 1) if threads % d == 0]
    return [(1, 1), *ways] if threads > 1 else ways
