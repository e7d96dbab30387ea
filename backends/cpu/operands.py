"""The operands of a product inside a task: rows of the left side, a column block of the right side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from .isa import Arithmetic, named
from .tiling import ceil_div
from .vector_math import Vector
from .vector_memory import Index


@dataclass(frozen=True)
class Reduction:
    """Where a row's elements are, relative to its base address.

    taps : (count, stride in elements) of the outer loops, outermost first.
    depth : consecutive elements of each tap, before it is padded to whole steps.
    is_cut : whether nothing may be read beyond a tap's elements, so that the last step is a partial one.
    """

    taps: tuple[tuple[int, Dim], ...]
    depth: Dim
    is_cut: bool = False

    @property
    def count(self) -> int:
        """Number of taps."""
        total = 1
        for extent, _ in self.taps:
            total *= extent
        return total

    def steps(self, arithmetic: Arithmetic) -> Dim:
        """Multiply-add instructions per accumulator."""
        return self.count * ceil_div(self.depth, arithmetic.depth)

    def padded(self, unit: int) -> Reduction:
        """The reduction over taps of whole ``unit`` elements, all of which may be read."""
        return Reduction(self.taps, ceil_div(self.depth, unit) * unit)


@dataclass(frozen=True)
class Left:
    """The left side of a product inside a task: a flat buffer, and the addresses of the first elements of neighbouring
    rows, given the first row, their number and the group.

    distance : elements from a row to the next, for tiles; of a convolution's rows, inside a line of the output.
    """

    source: tirx.Buffer
    bases: Callable[[Index, int, Index], Sequence[Index]]
    reduction: Reduction
    distance: Dim = 0

    @classmethod
    def by_row(cls, source: tirx.Buffer, base: Callable[[Index, Index], Index], reduction: Reduction,
               distance: Dim = 0) -> Left:
        """Rows whose addresses are computed one by one: ``base(row, group)``."""
        return cls(source, lambda row, count, group: [base(row + i, group) for i in range(count)], reduction, distance)


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


def emit_taps(taps: Sequence[tuple[int, Dim]], body: Callable[[Index, Index], None], tap: Index = 0,
              offset: Index = 0) -> None:
    """Emit the loops over the taps of a reduction around ``body(number of the tap, its offset)``."""
    if not taps:
        body(tap, offset)
    elif taps[0][0] == 1:
        emit_taps(taps[1:], body, tap, offset)
    else:
        with T.serial(taps[0][0]) as t:
            named("tap", t)
            emit_taps(taps[1:], body, tap * taps[0][0] + t, offset + t * taps[0][1])
