"""Register blocks of AMX tiles by a small model of the core, and whether they take less time than vectors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...precision import Precision
from ..target import Capabilities
from .isa import Arithmetic, tile_arithmetic
from .left_rows import Rows
from .microkernel import Tasks
from .tiling import (
    Columns,
    Product,
    Schedule,
    Tiles,
    ceil_div,
    fitted,
    ranked,
    slowest_task,
    vector_cycles,
    ways_to_split,
)

_REGISTERS = 8
_MOST_ROWS = _MOST_STEPS = 16
# Products of fewer rows are bound by reading the weights, which vectors do as well.
_FEWEST_ROWS = 8
# Smaller tiles are not tried.
_FEWEST_TILE_ROWS = 7
_FEWEST_TILE_STEPS = 8
# Cycles from a multiply-add of tiles to the next into the same accumulator.
_LATENCY = 52.0
# Rows of a tile that are loaded a cycle from the first-level cache, from the second, and from beyond.
_LOADED_ROWS = 2.0
_LOADED_ROWS_L2 = 0.55
_LOADED_ROWS_SHARED = 0.12
# At times, as it seems where the core's other hardware thread holds tiles too, few are left to rename: a load waits for
# a multiply-add that reads what it overwrites. Cycles of a load where no tile is left over, and how much less with each
# that is (measured on an Emerald Rapids: 25, 36, 61 and 100 cycles with 5, 3, 1 and no tiles left over).
_CROWDED_LOAD = 100.0
_CROWDED_GAIN = 0.6
# Cycles that a register block costs beside, and per vector of accumulators: storing it, then scaling, activation and
# storing the result.
_BLOCK_CYCLES = 30.0
_VECTOR_CYCLES = 9.0
# Cycles more where a large result is written, and what is added to it read, some columns at a time.
_APART_CYCLES = 6.0
# Bytes of a row that are copied a cycle, and the cycles of its address.
_COPIED_BYTES = 10.0
_COPY_CYCLES = 25.0


@dataclass(frozen=True)
class Candidate:
    """A way to compute a product: what multiplies, how rows are read, the loops; and the cycles of the slowest task
    that the model predicts."""

    arithmetic: Arithmetic
    rows: Rows
    tasks: Tasks
    cycles: float

    def __str__(self) -> str:
        """The way in words; equal for equal ways to compute one product."""
        return f"{self.tasks.schedule}, rows by {type(self.rows).__name__}"


def candidates(product: Product, rows: Rows, arithmetic: Arithmetic, capabilities: Capabilities, threads: int,
               row_bytes: float = 0.0) -> Iterator[Candidate]:
    """The ways to compute a product, on vectors and on tiles, the least predicted time first.

    product, arithmetic : on vectors.
    row_bytes : bytes that a task on vectors reads or copies per row of the result.
    """
    known = product.at_typical()
    on_vectors = (Candidate(arithmetic, rows, Tasks(product, s),
                            vector_cycles(known, s.of(known, arithmetic.lanes), arithmetic, capabilities))
                  for s in ranked(product, arithmetic, capabilities, threads, row_bytes))
    tiled = tile_arithmetic(arithmetic.precision, capabilities)
    on_tiles = _on_tiles(product, rows, tiled, capabilities, threads) if tiled is not None else ()
    return heapq.merge(on_vectors, on_tiles, key=lambda c: c.cycles)


def _on_tiles(product: Product, rows: Rows, arithmetic: Arithmetic, capabilities: Capabilities,
              threads: int) -> Iterator[Candidate]:
    """The ways on tiles, the least predicted time first; none where the product does not suit them."""
    known, depth = product.at_typical(), rows.reduction.depth
    if known.rows < _FEWEST_ROWS:
        return
    if not isinstance(product.columns, int) or not isinstance(depth, int):
        return
    models = [_Model(form, product, arithmetic, capabilities) for form in rows.forms()]
    found = [(model.cycles(s), model, s) for model in models for s in model.candidates(ways_to_split(threads))]
    for cycles, model, schedule in sorted(found, key=lambda way: way[0]):
        whole, bytes_per_row = model.product_of(schedule), model.rows.bytes_per_row(arithmetic)
        # Rows that are copied for all columns in turn are copied a few at a time.
        part_bytes = capabilities.l1_bytes / 2 if schedule.across and model.copies(schedule) else 0.0
        schedule = fitted(schedule, whole, arithmetic, capabilities, bytes_per_row, part_bytes)
        yield Candidate(arithmetic, model.rows, Tasks(whole, schedule), cycles)


@dataclass(frozen=True)
class _Model:
    """Predicted times of a product on tiles whose rows are read as ``rows`` says."""

    rows: Rows
    product: Product
    arithmetic: Arithmetic
    capabilities: Capabilities

    def candidates(self, splits: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
        """All blocks of tiles that fit the product, at the typical extents, in all splits among threads."""
        known, lanes = self.product.at_typical(), self.arithmetic.lanes
        for steps in self._step_counts():
            for count, vectors in ((i, j) for i in (1, 2, 3) for j in (1, 2, 3) if i * j + i + j <= _REGISTERS):
                if vectors > ceil_div(known.columns, lanes):
                    continue
                for height in self._heights():
                    if height * count <= known.rows:
                        tiles, cut = Tiles(height, count, steps), Columns.cut(known.columns, vectors, lanes)
                        yield from (Schedule(height * count, cut, *split, tiles=tiles, across=across)
                                    for split in splits for across in ((False, True) if cut.blocks > 1 else (False,)))

    def product_of(self, schedule: Schedule) -> Product:
        """The product in whole tiles."""
        assert schedule.tiles is not None
        padded = self.rows.reduction.padded(schedule.tiles.steps * self.arithmetic.depth)
        return replace(self.product, steps=padded.steps(self.arithmetic))

    def copies(self, schedule: Schedule) -> float:
        """Bytes of a row that are copied."""
        assert schedule.tiles is not None
        return self.rows.copied_bytes(schedule.tiles.steps * self.arithmetic.depth, self.arithmetic)

    def cycles(self, schedule: Schedule) -> float:
        """Predicted cycles of the slowest task."""
        tiles = schedule.tiles
        assert tiles is not None
        known = self.product_of(schedule).at_typical()
        copied = self.copies(schedule)
        copying = copied / _COPIED_BYTES + _COPY_CYCLES if copied else 0.0
        right = ceil_div(known.columns, self.arithmetic.lanes) // schedule.column_tasks if schedule.across else 0
        return copying * known.rows / schedule.row_tasks + slowest_task(
            known, schedule, lambda vectors: self._block_cycles(schedule, vectors, known.steps, max(right, vectors)))

    def _block_cycles(self, schedule: Schedule, vectors: int, steps: int, right_vectors: int) -> float:
        """Of a block ``vectors`` wide, where ``right_vectors`` of the right side are read before the first is again."""
        tiles = schedule.tiles
        if not vectors or tiles is None:
            return 0.0
        left_rows, right_rows = tiles.count * tiles.rows, vectors * tiles.steps
        right_rate = self._rate(right_vectors * self.arithmetic.panel_bytes * steps)
        left_rate = self._rate(left_rows * steps * 4) if schedule.across else _LOADED_ROWS_L2
        alone = max(left_rows * vectors, left_rows / left_rate + right_rows / right_rate, _LATENCY)
        loads = tiles.count + vectors
        left_over = _REGISTERS - tiles.count * vectors - loads
        crowded = max(alone, loads * _CROWDED_LOAD / (1 + _CROWDED_GAIN * left_over))
        finishing = _VECTOR_CYCLES + (0.0 if schedule.across or self._is_small else _APART_CYCLES)
        return (steps / tiles.steps * (alone + crowded) / 2 + _LATENCY + _BLOCK_CYCLES
                + left_rows * vectors * finishing)

    @cached_property
    def _is_small(self) -> bool:
        """Whether the result, in the type of the operands, takes little of the second-level cache."""
        known = self.product.at_typical()
        size = known.rows * known.columns * known.groups * self.arithmetic.operand_bytes
        return size <= self.capabilities.l2_bytes / 4

    def _rate(self, size: int) -> float:
        """Rows of tiles loaded a cycle of an operand of so many bytes that is read again and again."""
        if size <= self.capabilities.l1_bytes / 2:
            return _LOADED_ROWS
        return _LOADED_ROWS_L2 if size <= self.capabilities.l2_bytes / 2 else _LOADED_ROWS_SHARED

    def _step_counts(self) -> set[int]:
        """Steps of a tile to try: as even as possible, and those that divide a tap's. Floats beyond a tap are not read
        in place: zero times infinity is none."""
        a_tap = ceil_div(self.rows.reduction.depth, self.arithmetic.depth)
        even = ceil_div(a_tap, ceil_div(a_tap, _MOST_STEPS))
        found = {even, *(s for s in range(_FEWEST_TILE_STEPS, _MOST_STEPS + 1) if a_tap % s == 0)}
        if self.arithmetic.precision is Precision.INT8:
            return found
        unit = self.arithmetic
        return {s for s in found if a_tap % s == 0 or self.rows.copied_bytes(s * unit.depth, unit)}

    def _heights(self) -> list[int]:
        run = self.rows.run
        return [h for h in range(_FEWEST_TILE_ROWS, _MOST_ROWS + 1) if not run or run % h == 0]
