"""Where the rows of a product's left side lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from .isa import Arithmetic, bind, copy_run, fill_run, named
from .microkernel import Tasks
from .operands import Left, Reduction, emit_taps
from .tiling import ceil_div
from .vector_memory import Index

OpenLeft = Callable[[Index, Index], Left]


class Rows(Protocol):
    """How a product's rows lie in the activations."""

    @property
    def count(self) -> Dim:
        """Rows in all."""

    @property
    def reduction(self) -> Reduction:
        """The elements of a row."""

    @property
    def distance(self) -> Dim:
        """Elements from the first of a row to that of the next."""

    @property
    def run(self) -> int:
        """Rows at that distance: so many from each of its multiples on; 0: all."""

    def forms(self) -> tuple[Rows, ...]:
        """The ways in which tiles may read the rows."""

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        """Bytes that a task touches per row, to keep its part in the cache."""

    def copied_bytes(self, at_once: int, arithmetic: Arithmetic) -> float:
        """Bytes per row that are copied because ``at_once`` elements are read at once."""

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        """What emits a part's access to its rows, given the first and the past-the-last; ``padding`` is the value that
        stands for zero."""


@dataclass(frozen=True)
class MatrixRows:
    """Rows of a row-major matrix [count, depth]. Where a step would read past a row's end, they are copied, or read in
    place with a partial last step if only running tells their extents.

    origin : where the matrix starts in its buffer.
    """

    count: Dim
    depth: Dim
    origin: Index = 0

    @property
    def reduction(self) -> Reduction:
        return Reduction((), self.depth, not (isinstance(self.count, int) and isinstance(self.depth, int)))

    @property
    def distance(self) -> Dim:
        return self.depth

    @property
    def run(self) -> int:
        return 0

    def forms(self) -> tuple[Rows, ...]:
        return (self,)

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        return self.depth * arithmetic.operand_bytes

    def copied_bytes(self, at_once: int, arithmetic: Arithmetic) -> float:
        return 0.0 if self.depth % at_once == 0 else self.bytes_per_row(arithmetic)

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        at_once, reduction = tasks.read_at_once(arithmetic), tasks.reading(self.reduction, arithmetic)
        if reduction.is_cut or self.depth % at_once == 0:
            return lambda first, last: Left.by_row(source, lambda row, group: self.origin + row * self.depth,
                                                   reduction, self.depth, streams=True)
        pitch = ceil_div(self.depth, at_once) * at_once
        height = tasks.part_rows

        def open_part(first: Index, last: Index) -> Left:
            rows = named("rows", T.alloc_buffer((height * pitch,), arithmetic.operand))
            with T.serial(T.min(height, self.count - first)) as row:
                named("row", row)
                fill_run(rows, row * pitch + self.depth, 0, pitch - self.depth)
                copy_run(rows, row * pitch, source, self.origin + (first + row) * self.depth, self.depth)
            return Left.by_row(rows, lambda row, group: (row - first) * pitch, reduction, pitch)
        return open_part


@dataclass(frozen=True)
class GatheredRows:
    """Rows whose taps are copied together, for tiles: then all of them are at a constant distance."""

    rows: Rows

    @property
    def count(self) -> Dim:
        return self.rows.count

    @property
    def reduction(self) -> Reduction:
        return Reduction((), self.rows.reduction.count * self.rows.reduction.depth)

    @property
    def distance(self) -> Dim:
        return self.reduction.depth

    @property
    def run(self) -> int:
        return 0

    def forms(self) -> tuple[Rows, ...]:
        return (self,)

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        return self.rows.bytes_per_row(arithmetic) + self.reduction.depth * arithmetic.operand_bytes

    def copied_bytes(self, at_once: int, arithmetic: Arithmetic) -> float:
        return self.reduction.depth * arithmetic.operand_bytes

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        on_vectors = replace(tasks, schedule=replace(tasks.schedule, tiles=None))
        scattered = self.rows.open(on_vectors, arithmetic, source, padding)
        reduction, taps = tasks.reading(self.reduction, arithmetic), self.rows.reduction
        height, pitch = tasks.part_rows, reduction.depth

        def open_part(first: Index, last: Index) -> Left:
            left = scattered(first, last)
            rows = named("rows", T.alloc_buffer((height * pitch,), arithmetic.operand))
            with T.serial(T.min(height, self.count - first)) as row:
                named("row", row)
                base = bind("base", left.bases(first + row, 1, 0)[0])
                emit_taps(taps.taps, lambda tap, offset: copy_run(
                    rows, row * pitch + tap * taps.depth, left.source, base + offset, taps.depth))
                fill_run(rows, row * pitch + self.reduction.depth, 0, pitch - self.reduction.depth)
            return Left.by_row(rows, lambda row, group: (row - first) * pitch, reduction, pitch)
        return open_part
