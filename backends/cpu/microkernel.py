"""The register-blocked micro-kernel and the loops around it.

A kernel multiplies *rows* (of activations, found by a base address each) with packed columns of weights. A tile of
``rows × vectors`` accumulators stays in registers over the whole reduction; every accumulator is a buffer of its own,
which LLVM promotes to a register. Conventions of the packed weights: ``packing.pack_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .isa import Arithmetic, bind, named, span
from .tiling import Columns, Product, Schedule, columns_of
from .vector_math import Vector, splat
from .vector_memory import Index, load, store


@dataclass(frozen=True)
class Reduction:
    """Where a row's elements are, relative to its base address.

    taps : (count, stride in elements) of the outer loops, outermost first.
    depth : consecutive elements of each tap, before it is padded to whole steps.
    """

    taps: tuple[tuple[int, int], ...]
    depth: int

    @property
    def count(self) -> int:
        """Number of taps."""
        total = 1
        for extent, _ in self.taps:
            total *= extent
        return total

    def steps(self, arithmetic: Arithmetic) -> int:
        """Multiply-add instructions per accumulator."""
        return self.count * -(-self.depth // arithmetic.depth)


@dataclass(frozen=True)
class Left:
    """The left side of a product inside a task: a flat buffer, and the address of each row's first element, given the
    row and the group."""

    source: tirx.Buffer
    base: Callable[[Index, Index], Index]
    reduction: Reduction


Accumulators = list[list[tirx.Buffer]]
# finish(accumulator vector, row, vector of the block) is called for every accumulator of a tile.
Finish = Callable[[Vector, Index, int], None]


@dataclass(frozen=True)
class Block:
    """A column block of the right side.

    vectors : its width; packed, first : the packed right side and the block's offset in it; group : whose rows it
    multiplies; initial : (buffer, offset) of what the accumulators start with, one value a column; zeros if None.
    """

    vectors: int
    packed: tirx.Buffer
    first: Index
    group: Index = 0
    initial: tuple[tirx.Buffer, Index] | None = None


def emit_tile(arithmetic: Arithmetic, left: Left, bases: Sequence[Index], block: Block) -> Accumulators:
    """Emit one tile of the rows at the addresses ``bases``: its accumulators after the reduction."""
    vectors = block.vectors
    lanes, kind = arithmetic.lanes, arithmetic.accumulator
    acc = [[named(f"acc_{i}_{j}", T.alloc_buffer((lanes,), kind)) for j in range(vectors)] for i in range(len(bases))]
    for j in range(vectors):
        start = splat(tirx.const(0, kind), lanes)
        if block.initial is not None:
            start = bind(f"start_{j}", load(block.initial[0], block.initial[1] + j * lanes, lanes))
        for row in acc:
            store(row[j], 0, start, lanes)
    steps = -(-left.reduction.depth // arithmetic.depth)

    def step(tap: Index, offset: Index, k: Index) -> None:
        at = block.first + (tap * steps + k) * (vectors * arithmetic.panel)
        right = [bind(f"w_{j}", arithmetic.weights(block.packed, at + j * arithmetic.panel)) for j in range(vectors)]
        for i, base in enumerate(bases):
            value = bind(f"x_{i}", arithmetic.broadcast(left.source, base + offset + k * arithmetic.depth))
            for j in range(vectors):
                store(acc[i][j], 0, arithmetic.multiply_add(load(acc[i][j], 0, lanes), value, right[j]), lanes)

    def loops(taps: Sequence[tuple[int, int]], tap: Index, offset: Index) -> None:
        if taps and taps[0][0] == 1:
            loops(taps[1:], tap, offset)
        elif taps:
            with T.serial(taps[0][0]) as t:
                named("tap", t)
                loops(taps[1:], tap * taps[0][0] + t, offset + t * taps[0][1])
        elif steps == 1:
            step(tap, offset, 0)
        else:
            with T.serial(steps) as k:
                step(tap, offset, named("k", k))

    loops(left.reduction.taps, 0, 0)
    return acc


def emit_rows(arithmetic: Arithmetic, left: Left, schedule: Schedule, tiles: tuple[Index, Index], total: int,
              block: Block, finish: Finish) -> None:
    """Emit the loop over the tiles of rows ``tiles[0]``…``tiles[1]`` for one column block.

    total : rows in all; the last tile starts at ``total - schedule.rows``.
    """
    with span("tile", *tiles) as tile:
        row = tile * schedule.rows
        if total % schedule.rows:
            row = T.min(row, total - schedule.rows)
        row = bind("row", row)
        bases = [bind(f"base_{i}", left.base(row + i, block.group)) for i in range(schedule.rows)]
        acc = emit_tile(arithmetic, left, bases, block)
        for i in range(schedule.rows):
            for j in range(block.vectors):
                finish(load(acc[i][j], 0, arithmetic.lanes), row + i, j)


@dataclass(frozen=True)
class Tasks:
    """The parallel loop of a product: which rows and column blocks are a task's."""

    product: Product
    schedule: Schedule

    @property
    def tiles(self) -> int:
        return -(-self.product.rows // self.schedule.rows)

    @property
    def parts(self) -> int:
        """Parts of the rows in all: tasks times chunks."""
        return self.schedule.row_tasks * self.schedule.chunks

    def row_range(self, part: int) -> tuple[int, int]:
        """First and past-the-last row that part number ``part`` computes."""
        first, last = (p * self.tiles // self.parts for p in (part, part + 1))
        rows = self.schedule.rows
        return min(first * rows, self.product.rows - rows), min(last * rows, self.product.rows)

    def emit(self, arithmetic: Arithmetic, packed: tirx.Buffer, open_left: Callable[[Index, Index], Left],
             finish: Callable[[Vector, Index, Index, int], None]) -> None:
        """Emit everything.

        open_left(part, first row) emits what makes a part's rows readable and returns them;
        finish(accumulator, row, column, valid lanes) finishes one vector of results.
        """
        schedule, blocks = self.schedule, columns_of(self.product, self.schedule)
        tasks = schedule.row_tasks * schedule.column_tasks
        with T.parallel(tasks) if tasks > 1 else T.serial(1) as task:
            named("task", task)
            row_task, column_task = task // schedule.column_tasks, task % schedule.column_tasks
            with T.serial(schedule.chunks) as chunk:
                named("chunk", chunk)
                part = bind("part", row_task * schedule.chunks + chunk)
                begin, end = (bind(n, (part + i) * self.tiles // self.parts) for i, n in enumerate(("begin", "end")))
                first = begin * schedule.rows
                left = open_left(part, bind("first_row", T.min(first, self.product.rows - schedule.rows)))
                start, stop = ((column_task + i) * blocks // schedule.column_tasks for i in (0, 1))
                with span("block", start, stop) as block:
                    self._emit_block(arithmetic, packed, left, (begin, end), block, finish)

    def _emit_block(self, arithmetic: Arithmetic, packed: tirx.Buffer, left: Left, tiles: tuple[Index, Index],
                    block: Index, finish: Callable[[Vector, Index, Index, int], None]) -> None:
        columns, lanes = self.schedule.columns, arithmetic.lanes
        group = block // columns.blocks if self.product.groups > 1 else tirx.const(0, "int32")
        inner = block % columns.blocks if self.product.groups > 1 else block
        group_size = -(-self.product.columns // lanes) * self.product.steps * arithmetic.panel
        first = group * group_size + inner * (self.product.steps * columns.vectors * arithmetic.panel)

        def body(vectors: int, last: int) -> None:
            def finish_vector(acc: Vector, row: Index, j: int) -> None:
                column = group * self.product.columns + (inner * columns.vectors + j) * lanes
                finish(acc, row, column, last if j == vectors - 1 else lanes)
            emit_rows(arithmetic, left, self.schedule, tiles, self.product.rows,
                      Block(vectors, packed, bind("first", first), group), finish_vector)

        by_kind(columns, inner, lanes, body)


def by_kind(columns: Columns, block: Index, lanes: int, body: Callable[[int, int], None]) -> None:
    """Emit ``body(vectors, valid lanes of the last vector)`` for whole blocks and for the narrower last one."""
    if not columns.tail:
        body(columns.vectors, lanes)
    elif not columns.full:
        body(columns.tail, columns.last)
    else:
        with T.If(block < columns.full):
            with T.Then():
                body(columns.vectors, lanes)
            with T.Else():
                body(columns.tail, columns.last)
