"""The operands of a product inside a task: rows of the left side, a column block of the right side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from .isa import Arithmetic, bind, named
from .tiling import ceil_div
from .vector_math import Vector
from .vector_memory import LINE_BYTES, Index, load, prefetch


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
class Ahead:
    """Elements of an operand that are read next. Tiles each fetch a share of them while they multiply, which hides how
    slowly they arrive.

    first, elements : where they are, or the share of a tile begins, and how many.
    tiles, steps : how many tiles share them, and steps a tile.
    level : the cache that they are fetched into.
    is_missing : whether they have to be fetched, where only running tells.
    """

    first: Index
    elements: int
    tiles: int
    steps: int
    level: int
    is_missing: tirx.PrimExpr | None = None

    def share(self, tile: Index) -> Ahead:
        """What tile number ``tile`` fetches; tiles beyond ``tiles`` what the last one does."""
        shift = T.min(tile, self.tiles - 1) * (self.steps * self._stride)
        return replace(self, first=bind("ahead", self.first + shift))

    @property
    def _stride(self) -> int:
        """Elements a step."""
        return -(-self.elements // (self.steps * self.tiles))

    def emit(self, operand: tirx.Buffer, step: Index, steps: int = 1) -> None:
        """Emit the share of so many steps, beginning with ``step``."""
        if self.is_missing is not None:
            with T.If(self.is_missing), T.Then():
                replace(self, is_missing=None).emit(operand, step, steps)
            return
        line = LINE_BYTES // np.dtype(str(operand.dtype)).itemsize
        for element in range(0, self._stride * steps, line):
            prefetch(operand, self.first + step * self._stride + element, level=self.level)


@dataclass(frozen=True)
class Left:
    """The left side of a product inside a task: a flat buffer, and the addresses of the first elements of neighbouring
    rows, given the first row, their number and the group.

    distance : elements from a row to the next, for tiles; of a convolution's rows, inside a line of the output.
    streams : whether rows lie one behind the other and come from outside of the core.
    ahead : what is fetched meanwhile.
    """

    source: tirx.Buffer
    bases: Callable[[Index, int, Index], Sequence[Index]]
    reduction: Reduction
    distance: Dim = 0
    streams: bool = False
    ahead: Ahead | None = None

    @classmethod
    def by_row(cls, source: tirx.Buffer, base: Callable[[Index, Index], Index], reduction: Reduction,
               distance: Dim = 0, *, streams: bool = False) -> Left:
        """Rows whose addresses are computed one by one: ``base(row, group)``."""
        return cls(source, lambda row, count, group: [base(row + i, group) for i in range(count)], reduction, distance,
                   streams)

    def before(self, row: Index, rows: int, block: Block, arithmetic: Arithmetic) -> Left:
        """The operand of a tile that begins with ``row``, which fetches the rows behind it where they stream in."""
        steps = self.reduction.steps(arithmetic)
        if not self.streams or not isinstance(self.distance, int) or not (isinstance(steps, int) and steps):
            return self
        first = bind("rows_ahead", self.bases(row + rows, 1, block.group)[0])
        return replace(self, ahead=Ahead(first, rows * self.distance, 1, steps, 1, block.rows_missing))


class Accumulated(NamedTuple):
    """A vector of accumulators, its row, and its number in the column block."""

    acc: Vector
    row: Index
    number: int


@dataclass(frozen=True)
class Finish:
    """What becomes of the accumulators of a tile.

    store : called with all of them, some at a time; from registers one at a time, which leaves room for what it needs.
    fetch : called for each with its row and number before the tile multiplies: fetches what ``store`` will read and
        write; None: nothing is fetched.
    together : how many ``store`` is best given at a time from memory.
    """

    store: Callable[[Sequence[Accumulated]], None]
    fetch: Callable[[Index, int], None] | None = None
    together: int = 1

    def emit_stored(self, accumulators: tirx.Buffer, shape: tuple[int, int, int], row: Index) -> None:
        """Emit ``store`` for all accumulators of a tile that begins with ``row`` from memory, [rows][vectors][lanes] of
        ``shape``."""
        rows, vectors, lanes = shape
        at_once = max(n for n in range(1, max(self.together // vectors, 1) + 1) if rows % n == 0)
        with T.serial(rows // at_once) as number:
            first = named("line", number) * at_once
            self.store([Accumulated(load(accumulators, ((first + n) * vectors + j) * lanes, lanes), row + first + n, j)
                        for n, j in np.ndindex(at_once, vectors)])


class Result(NamedTuple):
    """A vector of results of a product as accumulators, where it lies, and how many of its elements exist."""

    acc: Vector
    row: Index
    column: Index
    valid: Index


class Results(Protocol):
    """What becomes of the results of a product."""

    @property
    def together(self) -> int:
        """How many ``store`` is best given at a time."""

    def store(self, results: Sequence[Result]) -> None:
        """Emit what the accumulators become."""

    def fetch(self, row: Index, column: Index, number: int) -> None:
        """Emit the fetching of what ``store`` will read and write for vector ``number`` of a block."""


@dataclass(frozen=True)
class Block:
    """A column block of the right side.

    vectors : its width; packed, first : the packed right side and the block's offset in it; group : whose rows it
    multiplies; initial : (buffer, offset) of what the accumulators start with, one value a column; zeros if None;
    ahead : what is fetched meanwhile; rows_missing : whether it is the first block that reads the rows (None: always);
    apart : elements from a vector to the next, where each is a stream with all its steps (see ``Schedule``); 0: they
    are side by side at every step.
    """

    vectors: int
    packed: tirx.Buffer
    first: Index
    group: Index = 0
    initial: tuple[tirx.Buffer, Index] | None = None
    ahead: Ahead | None = None
    rows_missing: tirx.PrimExpr | None = None
    apart: int = 0


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
