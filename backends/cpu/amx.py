"""The micro-kernel of AMX: register blocks of tiles, two-dimensional registers of up to 16 rows of 64 bytes.

A tile of the right side is read from packed weights (``packing.pack_weights``): its rows are the vectors of consecutive
steps. A tile of the left side is read in place: rows at a constant distance. The accumulators are stored to a small
buffer, from where the epilogue takes vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...precision import Precision
from .isa import Arithmetic, bind, named
from .operands import Block, Finish, Left, emit_taps
from .tiling import Schedule, Tiles, ceil_div
from .vector_memory import Index, store

_PALETTE = 1
_ROW_BYTES = 64
_MULTIPLY = {Precision.INT8: "tdpbusd", Precision.BF16: "tdpbf16ps", Precision.FP16: "tdpfp16ps"}
# The number of a loop's rounds, which LLVM is not to know: it would unroll the loop, compute all of its addresses ahead
# and have no registers to keep them in.
_ROUNDS = """define i32 @narrowcast_tile_rounds(i32 %n) alwaysinline {
  %r = call i32 asm "", "=r,0"(i32 %n)
  ret i32 %r
}"""
# LLVM 22's intrinsics name tiles too, but its scheduler after register allocation takes any free tile for another,
# although every tile has a shape: in assembly they stay.
_HELPERS = {
    0: 'define void @{name}() alwaysinline {{ call void asm sideeffect "{code}", "~{{memory}}"() ret void }}',
    3: """define void @{name}(ptr %p, i64 %ahead, i64 %distance) alwaysinline {{
  %from = getelementptr i8, ptr %p, i64 %ahead
  call void asm sideeffect "{code}", "r,r,~{{memory}}"(ptr %from, i64 %distance)
  ret void
}}""",
}


def configuration(tiles: Tiles, vectors: int) -> np.ndarray:
    """What LDTILECFG reads, as eight 64-bit words: the palette, then bytes of a row and rows of every tile."""
    words = np.zeros(64, np.uint8)
    words[0] = _PALETTE
    left, right = tiles.count, vectors
    rows = [tiles.rows] * (left * right + left) + [tiles.steps] * right
    row_bytes = [_ROW_BYTES] * (left * right) + [4 * tiles.steps] * left + [_ROW_BYTES] * right
    words[16:32].view(np.uint16)[:len(rows)] = row_bytes
    words[48:56][:len(rows)] = rows
    return words.view(np.int64)


@dataclass(frozen=True)
class MatrixUnit:
    """The configured tiles of a task: accumulators by rows, tiles of the left side, tiles of the right side.

    vectors : tiles side by side in the widest block.
    results : where accumulators are stored: [rows of the block][vectors of the block][lanes].
    """

    arithmetic: Arithmetic
    tiles: Tiles
    vectors: int
    results: tirx.Buffer

    def emit(self, left: Left, row: Index, block: Block, finish: Finish) -> None:
        """Emit one register block from ``row`` on: the reduction, and ``finish`` for every vector of results."""
        tiles, lanes = self.tiles, self.arithmetic.lanes
        bases = [bind(f"base_{i}", left.bases(row + i * tiles.rows, 1, block.group)[0]) for i in range(tiles.count)]
        self._begin(block)
        if finish.fetch is not None and self.arithmetic.operand_bytes > 1:  # Of bytes there are few lines.
            with T.serial(tiles.rows * tiles.count) as i:
                named("line", i)
                for j in range(block.vectors):
                    finish.fetch(row + i, j)
        steps = ceil_div(ceil_div(left.reduction.depth, self.arithmetic.depth), tiles.steps)

        def tap(number: Index, offset: Index) -> None:
            if steps == 1:
                self._step(left, bases, block, (offset, number * tiles.steps))
                return
            with T.serial(T.call_pure_extern("int32", "narrowcast_tile_rounds", steps)) as k:
                at = named("k", k) * tiles.steps
                self._step(left, bases, block, (offset + at * self.arithmetic.depth,
                                                number * (steps * tiles.steps) + at))

        emit_taps(left.reduction.taps, tap)
        pitch = block.vectors * lanes
        for i in range(tiles.count):
            for j in range(block.vectors):
                at = i * tiles.rows * pitch + j * lanes
                _move("store", self.accumulator(i, j), (self.results, at, 0), 4 * pitch)
        finish.emit_stored(self.results, (tiles.rows * tiles.count, block.vectors, lanes), row)

    def emit_peak(self, rounds: int) -> None:
        """Emit ``rounds`` times a multiply-add into every accumulator, of tiles that hold zeros."""
        for tile in range(self.right(self.vectors)):
            _call(f"zero_{tile}")
        with T.serial(rounds):
            for i, j in np.ndindex(self.tiles.count, self.vectors):
                _call(self._product(i, j))

    def _begin(self, block: Block) -> None:
        """Set the accumulators to zeros, or every row to the block's initial values."""
        for i in range(self.tiles.count):
            for j in range(block.vectors):
                if block.initial is None:
                    _call(f"zero_{self.accumulator(i, j)}")
                else:
                    start = block.initial[1] + j * self.arithmetic.lanes
                    _move("load", self.accumulator(i, j), (block.initial[0], start, 0), 0)

    def _step(self, left: Left, bases: list[Index], block: Block, ahead: tuple[Index, Index]) -> None:
        """One instruction for every accumulator, ``ahead``: elements from the rows' bases, steps of the block."""
        size = self.arithmetic.operand_bytes
        if block.ahead is not None:
            block.ahead.emit(block.packed, ahead[1], self.tiles.steps)
        if left.ahead is not None:
            left.ahead.emit(left.source, ahead[1], self.tiles.steps)
        for i, base in enumerate(bases):
            _move("load", self.left(i), (left.source, base, ahead[0] * size), left.distance * size)
            for j in range(block.vectors):
                if i == 0:
                    at = (ahead[1] * block.vectors + j) * _ROW_BYTES
                    _move("load", self.right(j), (block.packed, block.first, at), block.vectors * _ROW_BYTES)
                _call(self._product(i, j))

    def accumulator(self, i: int, j: int) -> int:
        """The number of a tile of accumulators."""
        return i * self.vectors + j

    def left(self, i: int) -> int:
        """The number of a tile of the left side."""
        return self.tiles.count * self.vectors + i

    def right(self, j: int) -> int:
        """The number of a tile of the right side."""
        return self.tiles.count * (self.vectors + 1) + j

    def _product(self, i: int, j: int) -> str:
        return f"{_MULTIPLY[self.arithmetic.precision]}_{self.accumulator(i, j)}_{self.left(i)}_{self.right(j)}"

    def helpers(self) -> str:
        """The instructions as functions of LLVM IR, one for every tile that they work on."""
        multiply, found = _MULTIPLY[self.arithmetic.precision], [_ROUNDS]
        for i, j in np.ndindex(self.tiles.count, self.vectors):
            acc = self.accumulator(i, j)
            product = f"{multiply} %tmm{self.right(j)}, %tmm{self.left(i)}, %tmm{acc}"
            found += [_helper(self._product(i, j), 0, product),
                      _helper(f"store_{acc}", 3, f"tilestored %tmm{acc}, ($0,$1,1)")]
        for tile in range(self.right(self.vectors)):
            found += [_helper(f"zero_{tile}", 0, f"tilezero %tmm{tile}"),
                      _helper(f"load_{tile}", 3, f"tileloadd ($0,$1,1), %tmm{tile}")]
        return "\n".join(found)


@contextmanager
def tiles_at_work(arithmetic: Arithmetic, schedule: Schedule | None) -> Iterator[MatrixUnit | None]:
    """The scope of a task that multiplies by the schedule's tiles (None where it has none): they are configured in the
    beginning and released in the end."""
    if schedule is None or schedule.tiles is None:
        yield None
        return
    vectors, lanes = schedule.columns.widest, arithmetic.lanes
    shapes = named("tile_shapes", T.alloc_buffer((8,), "int64"))
    for i, word in enumerate(configuration(schedule.tiles, vectors)):
        store(shapes, i, tirx.const(int(word), "int64"))
    results = named("results", T.alloc_buffer((schedule.rows * vectors * lanes,), arithmetic.accumulator))
    unit = MatrixUnit(arithmetic, schedule.tiles, vectors, results)
    _intrinsic("ldtilecfg", T.address_of(shapes[0]))
    with T.attr(0, "pragma_import_llvm", unit.helpers()):
        yield unit
    _intrinsic("tilerelease")


def _helper(name: str, operands: int, code: str) -> str:
    return _HELPERS[operands].format(name=f"narrowcast_tile_{name}", code=code)


def _intrinsic(name: str, *args: tirx.PrimExpr) -> None:
    T.evaluate(T.call_llvm_intrin("void", T.llvm_lookup_intrinsic_id(f"llvm.x86.{name}"), *args))


def _call(name: str, *args: tirx.PrimExpr) -> None:
    T.evaluate(T.call_extern("void", f"narrowcast_tile_{name}", *args))


def _move(name: str, tile: int, at: tuple[tirx.Buffer, Index, Index], distance: Dim) -> None:
    """Load or store a tile whose rows are ``distance`` bytes apart, ``at`` an element of a buffer and bytes ahead."""
    buffer, element, ahead = at
    _call(f"{name}_{tile}", T.address_of(buffer[element]), _int64(ahead), _int64(distance))


def _int64(value: Index) -> tirx.PrimExpr:
    return T.int64(value) if isinstance(value, int) else T.Cast("int64", value)
