"""Where the rows of a product's left side lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from .isa import Arithmetic, copy_run, fill_run, named
from .microkernel import Left, Reduction, Tasks
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

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        """Bytes that a task touches per row, to keep its part in the cache."""

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

    def bytes_per_row(self, arithmetic: Arithmetic) -> float:
        return self.depth * arithmetic.operand_bytes

    def open(self, tasks: Tasks, arithmetic: Arithmetic, source: tirx.Buffer, padding: int) -> OpenLeft:
        if self.reduction.is_cut or self.depth % arithmetic.depth == 0:
            return lambda first, last: Left.by_row(source, lambda row, group: self.origin + row * self.depth,
                                                   self.reduction)
        pitch = -(-self.depth // arithmetic.depth) * arithmetic.depth
        height = tasks.part_rows

        def open_part(first: Index, last: Index) -> Left:
            rows = named("rows", T.alloc_buffer((height * pitch,), arithmetic.operand))
            with T.serial(T.min(height, self.count - first)) as row:
                named("row", row)
                fill_run(rows, row * pitch + self.depth, 0, pitch - self.depth)
                copy_run(rows, row * pitch, source, self.origin + (first + row) * self.depth, self.depth)
            return Left.by_row(rows, lambda row, group: (row - first) * pitch, self.reduction)
        return open_part
