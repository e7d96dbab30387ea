"""Register blocks and the split of a matrix product among threads, by a small model of the core.

Nothing is measured here: the same product on the same target always gets the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd

from tvm import tirx

from ...dims import Dim, evaluate_dim
from ..target import Capabilities
from .isa import Arithmetic
from .vector_memory import Index

# Cycles that a tile costs beside its multiply-adds: addresses, filling and draining the pipeline; then per vector of
# accumulators for scaling, activation and store.
_TILE_CYCLES = 14.0
_VECTOR_CYCLES = 7.0
# Cycles from a multiply-add to the next into the same accumulator.
_LATENCY = 4.0
# Bytes of packed weights loaded a cycle.
_LOADED_BYTES = 64
# Cycles to start a parallel region and to wait for its end.
LAUNCH_CYCLES = 10_000.0
# Bytes of a way of the first-level cache, on all targets, and the least number of ways; cycles a step for every row
# beyond them whose elements lie a multiple of that apart: they share a set, and evict each other.
_WAY_BYTES = 4096
_WAYS = 8
_CONFLICT_CYCLES = 1.4
# Bytes a cycle of what another core has written, or the last-level cache holds.
SHARED_BYTES = 8.0
# Streams of weights from which on memory is at its best, and by how much it is better than with one.
_STREAMS = 8
_STREAM_GAIN = 0.45
# Bytes a cycle that the second-level cache sustains.
_L2_BYTES = 20.0
# Rows for which register blocks are chosen where only running tells how many there are, and typically one: it is as
# fast in the column blocks that suit some more.
_FEW_ROWS = 16


@dataclass(frozen=True)
class Product:
    """The shape of a matrix product as a kernel sees it.

    rows, columns : of one group's result.
    groups : products that share the rows (grouped convolution); their columns stand side by side.
    steps : multiply-add instructions per accumulator.
    typical : an extent for every symbol, by name.
    distance : bytes from the first element of a row of the left side to that of the next; 0: unknown.
    """

    rows: Dim
    columns: Dim
    steps: Dim
    groups: int = 1
    typical: tuple[tuple[str, int], ...] = ()
    distance: Dim = 0

    def at_typical(self) -> Product:
        """The product at the typical extents."""
        extents = dict(self.typical)
        rows, columns, steps, distance = (evaluate_dim(d, extents)
                                          for d in (self.rows, self.columns, self.steps, self.distance))
        return Product(rows, columns, steps, self.groups, distance=distance)


@dataclass(frozen=True)
class Columns:
    """How one group's columns are cut: ``full`` blocks of ``vectors`` whole vectors, then one of ``tail`` vectors whose
    last has ``last`` valid lanes (no tail: 0). Where only running tells the number of columns, the tail is cut into
    ``singles``: each of its vectors is a block of its own.
    """

    vectors: int
    full: Dim
    tail: Dim
    last: Dim
    singles: bool = False

    @property
    def blocks(self) -> Dim:
        return self.full + self.tail if self.singles else self.full + (self.tail > 0)

    @property
    def count(self) -> Dim:
        """Vectors in all."""
        return self.vectors * self.full + self.tail

    @property
    def widest(self) -> int:
        """Vectors of the widest block."""
        return self.vectors if self.singles else max(self.vectors if self.full else 0, self.tail)

    def offset(self, block: Index, size: Index) -> Index:
        """Elements before a block, where every vector has ``size``."""
        if not self.singles:
            return block * (self.vectors * size)
        return (block + tirx.min(block, self.full) * (self.vectors - 1)) * size

    @classmethod
    def cut(cls, columns: Dim, vectors: int, lanes: int, *, singles: bool = False) -> Columns:
        """Cut ``columns`` into blocks of ``vectors`` vectors of ``lanes``."""
        count, full = ceil_div(columns, lanes), columns // (vectors * lanes)
        tail = count - full * vectors
        last = 0 if isinstance(tail, int) and not tail else columns - (count - 1) * lanes
        return cls(vectors, full, tail, last, singles)


def ceil_div(extent: Dim, unit: int) -> Dim:
    """How many units cover an extent."""
    return (extent + (unit - 1)) // unit


@dataclass(frozen=True)
class Tiles:
    """A register block of matrix registers.

    rows : of a tile of accumulators, and of the left side.
    count : tiles one below the other; side by side are as many as the column block has vectors.
    steps : rows of a tile of the right side, in steps of a vector's multiply-add.
    """

    rows: int
    count: int
    steps: int


@dataclass(frozen=True)
class Schedule:
    """A kernel's loops.

    rows : rows of a register block; the last block of the rows starts early instead of being cut.
    columns : the cut of the columns into register blocks.
    row_tasks, column_tasks : parallel tasks along each axis; their product is the number of tasks.
    chunks : parts into which a task cuts its rows, so that what a part reads stays in the second-level cache.
    part_tiles : register blocks of such a part where only running tells how many rows there are.
    tiles : the matrix registers of a register block; None: vectors multiply.
    across : whether the same rows go through all column blocks, not the same columns through all rows.
    apart : whether the vectors of a column block lie one behind the other in the packed weights, each with all its
        steps. Then they are as many streams, of which memory serves more at once than of one.
    """

    rows: int
    columns: Columns
    row_tasks: int
    column_tasks: int
    chunks: int = 1
    part_tiles: int = 1
    tiles: Tiles | None = None
    across: bool = False
    apart: bool = False

    def of(self, product: Product, lanes: int) -> Schedule:
        """The schedule with the columns of another product, such as one at the typical extents."""
        columns = self.columns
        return replace(self, columns=Columns.cut(product.columns, columns.vectors, lanes, singles=columns.singles))

    def packed_columns(self, columns: int, lanes: int) -> Columns:
        """The cut in which a group's columns are packed."""
        return Columns.cut(columns, 1, lanes) if self.apart else self.columns

    def __str__(self) -> str:
        """The schedule in words, as the model chose it; equal for equal schedules of one product."""
        tiles = f" in {self.tiles.count} tiles of {self.tiles.steps} steps" if self.tiles else ""
        order = ", rows through all columns" if self.across else ", in streams" if self.apart else ""
        return (f"{self.rows} rows{tiles} x {self.columns.vectors} vectors, "
                f"{self.row_tasks} x {self.column_tasks} tasks, {self.chunks} chunks{order}")


def choose(product: Product, arithmetic: Arithmetic, capabilities: Capabilities, threads: int,
           row_bytes: float = 0.0) -> Schedule:
    """The first of the ``ranked`` schedules."""
    return next(ranked(product, arithmetic, capabilities, threads, row_bytes))


def ranked(product: Product, arithmetic: Arithmetic, capabilities: Capabilities, threads: int,
           row_bytes: float = 0.0) -> Iterator[Schedule]:
    """All schedules on vectors; the first has the least predicted time of the slowest thread, at the typical extents of
    symbols. Some may be equal.

    row_bytes : bytes that a task reads or copies per row of the result; bounds the chunks.
    """
    singles, known = not isinstance(product.columns, int), product.at_typical()
    aimed = replace(known, rows=_FEW_ROWS) if known.rows == 1 and not isinstance(product.rows, int) else known
    weights = known.groups * known.columns * known.steps * arithmetic.panel_bytes // arithmetic.lanes
    is_far = weights > capabilities.l2_bytes
    candidates = [
        Schedule(rows, Columns.cut(aimed.columns, vectors, arithmetic.lanes, singles=singles), *split,
                 apart=is_far and known.rows <= rows)
        for vectors in range(1, min(8, -(-aimed.columns // arithmetic.lanes)) + 1)
        for rows in range(1, min(14, aimed.rows) + 1) if arithmetic.registers(rows, vectors) <= capabilities.registers
        for split in ways_to_split(threads)]
    for schedule in sorted(candidates, key=lambda s: vector_cycles(aimed, s, arithmetic, capabilities)):
        if aimed.rows > known.rows:
            splits = [replace(schedule, rows=1, row_tasks=r, column_tasks=c) for r, c in ways_to_split(threads)]
            best = min(splits, key=lambda s: vector_cycles(known, s, arithmetic, capabilities))
            schedule = replace(best, rows=schedule.rows)
        yield fitted(schedule, product, arithmetic, capabilities, row_bytes)


def fitted(schedule: Schedule, product: Product, arithmetic: Arithmetic, capabilities: Capabilities,
           row_bytes: float, part_bytes: float = 0.0) -> Schedule:
    """A schedule chosen at the typical extents, for all: its columns, no idle tasks, parts of ``part_bytes`` (0: that
    fit the second-level cache)."""
    singles, known = not isinstance(product.columns, int), product.at_typical()
    tiles, cache = -(-known.rows // schedule.rows), part_bytes or capabilities.l2_bytes / 2
    row_tasks, column_tasks = min(schedule.row_tasks, tiles), min(schedule.column_tasks, columns_of(known, schedule))
    return replace(schedule, columns=Columns.cut(product.columns, schedule.columns.vectors, arithmetic.lanes,
                                                 singles=singles),
                   row_tasks=row_tasks, column_tasks=column_tasks,
                   chunks=_even(max(1, min(round(row_bytes * known.rows / row_tasks / cache), tiles // row_tasks)),
                                tiles / row_tasks),
                   part_tiles=max(1, round(cache / max(row_bytes * schedule.rows, 1.0))))


def _even(chunks: int, tiles: float) -> int:
    """As many chunks or up to twice as many, so that all have the same number of tiles where that is possible: then
    they begin where rows of the image do, and a tile's rows lie at a constant distance."""
    return next((c for c in range(chunks, 2 * chunks + 1) if tiles % c == 0), chunks)


def columns_of(product: Product, schedule: Schedule) -> int:
    """Column blocks of all groups together."""
    return product.groups * schedule.columns.blocks


def vector_cycles(product: Product, schedule: Schedule, arithmetic: Arithmetic, capabilities: Capabilities) -> float:
    """Predicted cycles of the slowest task where vectors multiply."""
    return _streaming(product, schedule, arithmetic) + slowest_task(
        product, schedule, lambda vectors: tile_cycles(schedule.rows, vectors, product, arithmetic, capabilities))


def _streaming(product: Product, schedule: Schedule, arithmetic: Arithmetic) -> float:
    """Cycles that a task waits for what comes from outside of its core: its rows, and the weights of its columns."""
    rows = product.rows * product.distance / schedule.row_tasks
    weights = product.groups * schedule.columns.count * product.steps * arithmetic.panel_bytes / schedule.column_tasks
    further = min(schedule.columns.vectors, _STREAMS) - 1 if schedule.apart else 0
    return (rows + weights / (1 + _STREAM_GAIN * further / (_STREAMS - 1))) / SHARED_BYTES


def slowest_task(product: Product, schedule: Schedule, block_cycles: Callable[[int], float]) -> float:
    """Predicted cycles of the slowest task; ``block_cycles`` gives those of a register block of so many vectors."""
    columns, tasks = schedule.columns, schedule.column_tasks
    tiles = ceil(ceil(product.rows / schedule.rows) / schedule.row_tasks)
    full, tail = (block_cycles(v)
                  for v in (columns.vectors, min(columns.tail, 1) if columns.singles else columns.tail))
    blocks = columns_of(product, schedule)

    def cost(first: int, last: int) -> float:
        """Of one tile in each of the blocks first…last."""
        tails = sum(1 for b in range(first, last) if b % columns.blocks >= columns.full)
        return (last - first - tails) * full + tails * tail

    launch = LAUNCH_CYCLES if schedule.row_tasks * tasks > 1 else 0.0
    return launch + tiles * max(cost(t * blocks // tasks, (t + 1) * blocks // tasks) for t in range(tasks))


def tile_cycles(rows: int, vectors: int, product: Product, arithmetic: Arithmetic,
                capabilities: Capabilities) -> float:
    """Predicted cycles of a register block of a product."""
    if not vectors:
        return 0.0
    bytes_a_step = vectors * arithmetic.panel_bytes
    work = rows * (vectors * arithmetic.cycles + arithmetic.left_cycles)
    step = max(work, rows / 2 + bytes_a_step / _LOADED_BYTES, _LATENCY)
    if product.steps * bytes_a_step > capabilities.l1_bytes / 2:
        step = max(step, bytes_a_step / _L2_BYTES)
    if product.distance:
        step += _CONFLICT_CYCLES * max(0.0, rows - _WAYS * _WAY_BYTES / gcd(product.distance, _WAY_BYTES))
    return product.steps * step + _TILE_CYCLES + rows + rows * vectors * _VECTOR_CYCLES


def ways_to_split(threads: int) -> list[tuple[int, int]]:
    """Tasks along rows and columns: all ways to use every thread, and one task."""
    ways = [(d, threads // d) for d in range(1, threads + 1) if threads % d == 0]
    return [(1, 1), *ways] if threads > 1 else ways
