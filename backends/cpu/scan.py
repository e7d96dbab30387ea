"""Passes over the elements that one reduction reads: accumulating them, or visiting them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, nan

import tvm
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_equal_dim, is_one, product_of, simplified
from ...precision import Storage
from .epilogue import Position
from .loops import Loops, for_vectors, task_loop
from .vector_math import Vector, bound, lanes_of, splat, vector_type
from .vector_memory import Index, load, load_float, mask_of, store

# Accumulators of a row: additions of one vector each take four cycles and can overlap.
_ACCUMULATORS = 4
_NEUTRAL = {"sum": 0.0, "max": -inf, "min": inf}


@dataclass(frozen=True)
class Shape:
    """A tensor seen as [outer, reduced, inner].

    columns : the extent along which vectors lie: the last axis, of the reduced part if ``inner`` is 1, else of the
        inner part.
    """

    outer: Dim
    reduced: Dim
    inner: Dim
    columns: Dim

    @classmethod
    def of(cls, shape: Sequence[Dim], axes: Sequence[int]) -> Shape:
        """The view of a reduction over neighbouring axes."""
        chosen = [d for d in axes if not is_one(shape[d])]
        if not chosen:
            return cls(product_of(shape), 1, 1, 1)
        inner = product_of(shape[chosen[-1] + 1:])
        columns = shape[chosen[-1]] if is_one(inner) else shape[-1]
        return cls(product_of(shape[:chosen[0]]), product_of(shape[d] for d in chosen), inner, columns)

    @property
    def lines(self) -> Dim:
        """Rows of ``columns`` elements of one index of the outer and the reduced part."""
        return 1 if is_equal_dim(self.inner, self.columns) else simplified(self.inner // self.columns)

    @property
    def segments(self) -> Dim:
        """Rows of ``columns`` elements that a reduction along rows takes together."""
        return 1 if is_equal_dim(self.reduced, self.columns) else simplified(self.reduced // self.columns)


def are_neighbours(shape: Sequence[Dim], axes: Sequence[int]) -> bool:
    """Whether no kept axis lies between reduced ones; axes of extent 1 do not count."""
    wide = [d for d, extent in enumerate(shape) if not is_one(extent)]
    chosen = [d for d in axes if d in wide]
    return [d for d in wide if chosen and chosen[0] <= d <= chosen[-1]] == chosen


def combine(kind: str, a: Vector, b: Vector) -> Vector:
    """One step of a reduction: "sum", "max" or "min". NaN in ``b`` wins, and stays."""
    if kind == "sum":
        return a + b
    if kind == "max":
        return T.Select(b <= a, a, T.Select(a <= b, b, a + b))
    return T.Select(a <= b, a, T.Select(b <= a, b, a + b))


class Scan:
    """Emits the passes of one reduction; use inside ``units()``.

    lanes : elements of a vector.
    valid : how many results of the current unit exist: 1 for rows.
    result_index : flat index of the current unit's first result.
    has_kept : whether a pass has kept its values for the next ``each``.
    """

    def __init__(self, buffer: tvm.ir.Expr, storage: Storage, shape: Shape, lanes: int, loops: Loops) -> None:
        self.shape = shape
        self.valid: Index = 1
        self.result_index: Index = 0
        self.has_kept = False
        self._buffer, self._storage, self._loops = buffer, storage, loops
        self._by_row = is_one(shape.inner)
        self.lanes = 1 if is_one(shape.columns) else lanes
        self._segments = shape.segments if self._by_row else shape.reduced

    @contextmanager
    def units(self) -> Iterator[None]:
        """The loop over independent units of work, on all threads."""
        s = self.shape
        elements = s.outer * s.reduced * s.inner
        if self._by_row:
            with task_loop(s.outer, elements, self._loops) as unit:
                self._unit = self.result_index = unit
                yield
            return
        vectors = -(-s.columns // self.lanes)
        with task_loop(s.outer * s.lines * vectors, elements, self._loops) as unit:
            line = T.floordiv(unit, vectors)
            self._column = T.floormod(unit, vectors) * self.lanes
            self._outer = T.floordiv(line, s.lines)
            self._line = T.floormod(line, s.lines)
            self.result_index = line * s.columns + self._column
            whole = is_equal_dim(s.columns % self.lanes, 0)
            self.valid = self.lanes if whole else T.min(self.lanes, s.columns - self._column)
            yield

    def spread(self, x: Vector) -> Vector:
        """A unit's result next to its elements: a row's scalar in all lanes."""
        return splat(x, self.lanes) if lanes_of(x) != self.lanes else x

    def mean(self, function: Callable[[Vector], Vector]) -> Vector:
        """The mean of a function of the unit's elements."""
        total = self.reduce("sum", function)
        count = self.shape.reduced
        if isinstance(count, int):
            return total * splat(1.0 / count if count else nan, lanes_of(total))
        return total / splat(T.Cast("float32", count), lanes_of(total))

    def reduce(self, kind: str, function: Callable[[Vector], Vector], *, keep: bool = False) -> Vector:
        """"sum", "max" or "min" of a function of the unit's elements: a scalar for rows, else a vector.

        With ``keep`` a row's function values are what the next ``each`` visits.
        """
        slots = [self._slot(_NEUTRAL[kind]) for _ in range(_ACCUMULATORS if self._by_row else 1)]
        kept = T.alloc_buffer((self.shape.reduced,), "float32") if keep and self._by_row else None

        def step(x: Vector, at: Position, place: Position, valid: Index, number: int) -> None:
            value = bound(function(x))
            if kept is not None:
                store(kept, at.row * self.shape.columns + at.column, value, valid)
            if self._by_row and not (isinstance(valid, int) and valid >= self.lanes):
                mask = mask_of(self.lanes, valid)
                value = T.Select(mask, value, splat(_NEUTRAL[kind], self.lanes))
            slot = slots[number % len(slots)]
            store(slot, 0, combine(kind, load(slot, 0, self.lanes, self.lanes), value), self.lanes)

        self._visit(step, len(slots), None)
        self._kept, self.has_kept = kept, kept is not None
        result = load(slots[0], 0, self.lanes, self.lanes)
        for slot in slots[1:]:
            result = bound(combine(kind, result, load(slot, 0, self.lanes, self.lanes)))
        return across(kind, result) if self._by_row else result

    def each(self, body: Callable[[Vector, Position, Position, Index], None]) -> None:
        """Call ``body(x, at, place, valid)`` for every vector: its values, where along the reduced axes it lies, and
        where in the tensor."""
        self._visit(lambda x, at, place, valid, number: body(x, at, place, valid), 1,
                    self._kept if self.has_kept else None)

    def _slot(self, value: float) -> tvm.ir.Expr:
        slot = T.alloc_buffer((self.lanes,), "float32")
        store(slot, 0, splat(value, self.lanes), self.lanes)
        return slot

    def _visit(self, step: Callable[[Vector, Position, Position, Index, int], None], unroll: int,
               kept: tvm.ir.Expr | None) -> None:
        if not self._by_row:
            s = self.shape
            with T.serial(self._segments) as k:
                row = (self._outer * s.reduced + k) * s.lines + self._line
                self._load(step, Position(k, self._column), Position(row, self._column), self.valid, 0, None)
            return
        with T.serial(self._segments) as segment:
            self._visit_row(step, segment, unroll, kept)

    def _visit_row(self, step: Callable[[Vector, Position, Position, Index, int], None], segment: Index, unroll: int,
                   kept: tvm.ir.Expr | None) -> None:
        row = self._unit * self._segments + segment

        def visit(column: Index, valid: Index, number: int) -> None:
            self._load(step, Position(segment, column), Position(row, column), valid, number, kept)

        if not isinstance(self.shape.columns, int):
            for_vectors(self.shape.columns, self.lanes, lambda column, valid: visit(column, valid, 0))
            return
        full, tail = divmod(self.shape.columns, self.lanes)
        if full // unroll:
            with T.serial(0, full // unroll) as block:
                for number in range(unroll):
                    visit((block * unroll + number) * self.lanes, self.lanes, number)
        for number in range(full % unroll):
            visit((full // unroll * unroll + number) * self.lanes, self.lanes, number)
        if tail:
            visit(full * self.lanes, tail, 0)

    def _load(self, step: Callable[[Vector, Position, Position, Index, int], None], at: Position, place: Position,
              valid: Index, number: int, kept: tvm.ir.Expr | None) -> None:
        columns = self.shape.columns
        if kept is not None:
            value = load(kept, at.row * columns + at.column, self.lanes, valid)
        else:
            value = load_float(self._buffer, place.row * columns + place.column, self.lanes, valid, self._storage)
        step(bound(value), at, place, valid, number)


def across(kind: str, x: Vector) -> Vector:
    """Reduce a vector to a scalar, halving it."""
    lanes = lanes_of(x)
    while lanes > 1:
        lanes //= 2
        half = vector_type("float32", lanes)
        x = bound(x)
        x = combine(kind, bound(T.vectorlow(half, x)), bound(T.vectorhigh(half, x)))
    return bound(x)
