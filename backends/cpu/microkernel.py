"""The register-blocked micro-kernel and the loops around it.

A kernel multiplies *rows* (of activations, found by a base address each) with packed columns of weights. A tile of
``rows × vectors`` accumulators stays in registers over the whole reduction; every accumulator is a buffer of its own,
which LLVM promotes to a register. Conventions of the packed weights: ``packing.pack_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from .amx import MatrixUnit, tiles_at_work
from .isa import Arithmetic, bind, named, span
from .operands import Accumulated, Ahead, Block, Finish, Left, Reduction, Result, Results, emit_taps
from .tiling import Columns, Product, Schedule, ceil_div, columns_of
from .vector_math import splat, vector_type
from .vector_memory import LINE_BYTES, Index, load, prefetch, store

Accumulators = list[list[tirx.Buffer]]
# Bytes of a stream of weights that are fetched before they are multiplied.
_STREAM_AHEAD = 1024


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
    steps = ceil_div(left.reduction.depth, arithmetic.depth)
    sums = acc
    if arithmetic.block:
        sums = [[named(f"sum_{i}_{j}", T.alloc_buffer((lanes,), arithmetic.sum)) for j in range(vectors)]
                for i in range(len(bases))]

    def step(tap: Index, offset: Index, k: Index, present: Index | None = None) -> None:
        at = block.first + (tap * steps + k) * (arithmetic.panel if block.apart else vectors * arithmetic.panel)
        places = [at + j * (block.apart or arithmetic.panel) for j in range(vectors)]
        if block.ahead is not None:
            block.ahead.emit(block.packed, tap * steps + k)
        if left.ahead is not None:
            left.ahead.emit(left.source, tap * steps + k)
        if block.apart:
            size = np.dtype(arithmetic.weight).itemsize
            for place, line in np.ndindex(vectors, ceil_div(arithmetic.panel_bytes, LINE_BYTES)):
                prefetch(block.packed, places[place] + (_STREAM_AHEAD + line * LINE_BYTES) // size, level=1)
        right = [bind(f"w_{j}", arithmetic.weights(block.packed, place)) for j, place in enumerate(places)]
        for i, base in enumerate(bases):
            value = bind(f"x_{i}", arithmetic.broadcast(left.source, base + offset + k * arithmetic.depth, present))
            for j in range(vectors):
                store(sums[i][j], 0, arithmetic.multiply_add(load(sums[i][j], 0, lanes), value, right[j]), lanes)

    def reduce(tap: Index, offset: Index) -> None:
        if arithmetic.block:
            _emit_blocks(arithmetic, steps, (acc, sums), lambda k: step(tap, offset, k))
        else:
            _emit_steps(arithmetic, left.reduction, lambda k, *present: step(tap, offset, k, *present))

    emit_taps(left.reduction.taps, reduce)
    return acc


def _emit_blocks(arithmetic: Arithmetic, steps: Dim, tile: tuple[Accumulators, Accumulators],
                 step: Callable[[Index], None]) -> None:
    """Emit ``step(k)`` for every step of a tap, in blocks whose sums are added to the accumulators; ``tile`` is
    (accumulators, sums)."""
    lanes, size = arithmetic.lanes, arithmetic.block

    def emit(first: Index, count: Dim) -> None:
        pairs = [pair for rows in zip(*tile, strict=True) for pair in zip(*rows, strict=True)]
        for _, total in pairs:
            store(total, 0, splat(tirx.const(0, arithmetic.sum), lanes), lanes)
        with T.serial(count) as k:
            step(first + named("k", k))
        for acc, total in pairs:
            wide = T.Cast(vector_type(arithmetic.accumulator, lanes), load(total, 0, lanes))
            store(acc, 0, load(acc, 0, lanes) + wide, lanes)

    full, rest = steps // size, steps % size
    if not (isinstance(full, int) and full == 0):
        with T.serial(full) as block:
            emit(named("of", block) * size, size)
    if not (isinstance(rest, int) and rest == 0):
        emit(full * size, rest)


def _emit_steps(arithmetic: Arithmetic, reduction: Reduction, step: Callable[..., None]) -> None:
    """Emit ``step(k)`` for every step of a tap; ``step(k, present)`` where elements are missing."""
    full, rest = reduction.depth // arithmetic.depth, reduction.depth % arithmetic.depth
    is_cut = reduction.is_cut and not (isinstance(rest, int) and rest == 0) and arithmetic.depth > 1
    steps = full if is_cut else ceil_div(reduction.depth, arithmetic.depth)
    if isinstance(steps, int) and steps == 1:
        step(0)
    else:
        with T.serial(steps) as k:
            step(named("k", k))
    if is_cut and isinstance(rest, int):
        step(full, rest)
    elif is_cut:
        with T.If(rest > 0), T.Then():
            step(full, rest)


def emit_rows(arithmetic: Arithmetic, left: Left, rows: int, tiles: tuple[Index, Index], total: Dim,
              block: Block, finish: Finish, matrix: MatrixUnit | None = None) -> None:
    """Emit the loop over the tiles of ``rows`` rows ``tiles[0]``…``tiles[1]`` for one column block.

    total : rows in all; the last tile starts at ``total - rows``. Where running tells that there are fewer than
    ``rows``, they are taken one by one.
    matrix : what multiplies, if it is not vectors.
    """
    if isinstance(total, int) or rows == 1:
        _emit_tiles(arithmetic, left, rows, tiles, total, block, finish, matrix)
        return
    with T.If(total >= rows):
        with T.Then():
            _emit_tiles(arithmetic, left, rows, tiles, total, block, finish, matrix)
        with T.Else():
            singles = tiles[0] * rows, T.min(tiles[1] * rows, total)
            _emit_tiles(arithmetic, left, 1, singles, total, block, finish, None)


def _emit_tiles(arithmetic: Arithmetic, left: Left, rows: int, tiles: tuple[Index, Index], total: Dim,
                block: Block, finish: Finish, matrix: MatrixUnit | None) -> None:
    with span("tile", *tiles) as tile:
        row = tile * rows
        if rows > 1 and not (isinstance(total, int) and total % rows == 0):
            row = T.min(row, total - rows)
        row = bind("row", row)
        if block.ahead is not None:
            block = replace(block, ahead=block.ahead.share(tile - tiles[0]))
        if not (isinstance(total, int) and total <= rows):
            left = left.before(row, rows, block, arithmetic)
        if matrix is not None:
            matrix.emit(left, row, block, finish)
            return
        bases = [bind(f"base_{i}", base) for i, base in enumerate(left.bases(row, rows, block.group))]
        places = list(np.ndindex(rows, block.vectors))
        if finish.fetch is not None:
            for i, j in places:
                finish.fetch(row + i, j)
        acc = emit_tile(arithmetic, left, bases, block)
        for i, j in places:
            finish.store([Accumulated(load(acc[i][j], 0, arithmetic.lanes), row + i, j)])


@dataclass(frozen=True)
class Tasks:
    """The parallel loop of a product: which rows and column blocks are a task's."""

    product: Product
    schedule: Schedule

    def read_at_once(self, arithmetic: Arithmetic) -> int:
        """Elements of a row that one instruction reads."""
        return arithmetic.depth * (self.schedule.tiles.steps if self.schedule.tiles else 1)

    def reading(self, reduction: Reduction, arithmetic: Arithmetic) -> Reduction:
        """A reduction as it is read: tiles take whole ones."""
        return reduction.padded(self.read_at_once(arithmetic)) if self.schedule.tiles else reduction

    @property
    def tiles(self) -> Dim:
        return ceil_div(self.product.rows, self.schedule.rows)

    @property
    def parts(self) -> int:
        """Parts of the rows in all, where their number is known: tasks times chunks."""
        return self.schedule.row_tasks * self.schedule.chunks

    def row_range(self, part: int) -> tuple[int, int]:
        """First and past-the-last row that part number ``part`` computes, where the number of rows is known."""
        first, last = (p * self.tiles // self.parts for p in (part, part + 1))
        rows = self.schedule.rows
        return min(first * rows, self.product.rows - rows), min(last * rows, self.product.rows)

    @property
    def part_rows(self) -> int:
        """Rows of the largest part: at most one and a half times what is aimed at where only running tells."""
        if isinstance(self.product.rows, int):
            return max(last - first for first, last in map(self.row_range, range(self.parts)))
        return (2 * self.schedule.part_tiles - self.schedule.part_tiles // 2) * self.schedule.rows

    def rows_of(self, tiles: tuple[Index, Index]) -> tuple[Index, Index]:
        """First and past-the-last row of a run of tiles."""
        total, rows = self.product.rows, self.schedule.rows
        first = T.min(tiles[0] * rows, total - rows)
        return first if isinstance(total, int) else T.max(first, 0), T.min(tiles[1] * rows, total)

    def emit(self, arithmetic: Arithmetic, packed: tirx.Buffer, open_left: Callable[[Index, Index], Left],
             results: Results) -> None:
        """Emit everything.

        open_left(first, past-the-last row) emits what makes a part's rows readable and returns them.
        """
        schedule, blocks = self.schedule, columns_of(self.product, self.schedule)
        tasks = schedule.row_tasks * schedule.column_tasks
        with T.parallel(tasks) if tasks > 1 else T.serial(1) as task:
            named("task", task)
            row_task, column_task = task // schedule.column_tasks, task % schedule.column_tasks
            with tiles_at_work(arithmetic, schedule) as matrix, self._each_part(row_task) as (begin, end):
                first, last = self.rows_of((begin, end))
                left = open_left(bind("first_row", first), last)
                start, stop = ((column_task + i) * blocks // schedule.column_tasks for i in (0, 1))
                if schedule.across:
                    with span("across", begin, end) as tile, span("block", start, stop) as block:
                        self._emit_block(arithmetic, packed, left, (tile, tile + 1), (start, block, stop), results,
                                         matrix, is_first=tile == begin)
                else:
                    with span("block", start, stop) as block:
                        self._emit_block(arithmetic, packed, left, (begin, end), (start, block, stop), results,
                                         matrix)

    @contextmanager
    def _each_part(self, row_task: Index) -> Iterator[tuple[Index, Index]]:
        """The loop over the parts of a task: first and past-the-last tile of each."""
        schedule = self.schedule
        if isinstance(self.product.rows, int):
            with T.serial(schedule.chunks) as chunk:
                part = bind("part", row_task * schedule.chunks + named("chunk", chunk))
                begin, end = (bind(n, (part + i) * self.tiles // self.parts) for i, n in enumerate(("begin", "end")))
                yield begin, end
            return
        start, stop = (bind(n, (row_task + i) * self.tiles // schedule.row_tasks)
                       for i, n in enumerate(("start", "stop")))
        count, most = bind("count", stop - start), schedule.part_tiles
        parts = bind("parts", T.max((count + most // 2) // most, 1))
        with T.serial(T.min(count, 1) * parts) as part:  # None for a task without tiles.
            named("part", part)
            begin, end = (bind(n, start + (part + i) * count // parts) for i, n in enumerate(("begin", "end")))
            yield begin, end

    def _emit_block(self, arithmetic: Arithmetic, packed: tirx.Buffer, left: Left, tiles: tuple[Index, Index],
                    blocks: tuple[Index, Index, Index], results: Results, matrix: MatrixUnit | None, *,
                    is_first: Index | None = None) -> None:
        """Emit the tiles of a column block.

        blocks : the task's first block, this one, and past the last.
        is_first : whether the blocks are read for the first time, where it is done several times.
        """
        start, block, stop = blocks
        columns, lanes = self.schedule.columns, arithmetic.lanes
        group = block // columns.blocks if self.product.groups > 1 else tirx.const(0, "int32")
        inner = block % columns.blocks if self.product.groups > 1 else block
        group_size = -(-self.product.columns // lanes) * self.product.steps * arithmetic.panel
        first = group * group_size + inner * (self.product.steps * columns.vectors * arithmetic.panel)

        def body(vectors: int, last: int) -> None:
            def column(j: int) -> Index:
                return group * self.product.columns + (inner * columns.vectors + j) * lanes

            def store_all(found: Sequence[Accumulated]) -> None:
                results.store([Result(acc, row, column(j), last if j == vectors - 1 else lanes)
                               for acc, row, j in found])

            finish = Finish(store_all, lambda row, j: results.fetch(row, column(j), j), results.together)
            begin = bind("first", first)
            ahead = self._ahead(begin, vectors * arithmetic.panel, block + 1 < stop, is_first)
            missing = block == start if self._has_several else None
            apart = self.product.steps * arithmetic.panel if self.schedule.apart else 0
            emit_rows(arithmetic, left, self.schedule.rows, tiles, self.product.rows,
                      Block(vectors, packed, begin, group, None, ahead, missing, apart), finish, matrix)

        by_kind(columns, inner, lanes, body)

    @property
    def _has_several(self) -> bool:
        """Whether a task has several column blocks."""
        return columns_of(self.product.at_typical(), self.schedule) > self.schedule.column_tasks

    def _ahead(self, first: Index, width: int, is_followed: Index, is_first: Index | None) -> Ahead | None:
        """What the tiles of a block of ``width`` elements a step fetch: as much behind it, or again their own."""
        steps, known = self.product.steps, self.product.at_typical()
        if not (isinstance(steps, int) and steps) or not self._has_several or self.schedule.apart:
            return None
        tiles = 1 if self.schedule.across else ceil_div(ceil_div(known.rows, self.schedule.rows), self.parts)
        return Ahead(first + T.Select(is_followed, steps * width, 0), steps * width, tiles, steps, 2, is_first)


def by_kind(columns: Columns, block: Index, lanes: int, body: Callable[[int, Index], None]) -> None:
    """Emit ``body(vectors, valid lanes of the last vector)`` for whole blocks and for the narrower last one."""
    if columns.singles:
        with T.If(block < columns.full):
            with T.Then():
                body(columns.vectors, lanes)
            with T.Else():
                whole, last = tirx.const(lanes, "int32"), T.Cast("int32", columns.last)
                body(1, bind("valid", T.Select(block < columns.blocks - 1, whole, last)))
    elif not columns.tail:
        body(columns.vectors, lanes)
    elif not columns.full:
        body(columns.tail, columns.last)
    else:
        with T.If(block < columns.full):
            with T.Then():
                body(columns.vectors, lanes)
            with T.Else():
                body(columns.tail, columns.last)
