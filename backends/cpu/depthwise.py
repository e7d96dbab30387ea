"""Depthwise convolution: vectors of channels, several output columns at once, all taps in registers.

A unit of work is a few vectors of channels over a block of output rows. Its input is first widened to float32, padding
included, into a buffer that stays in the second-level cache; the taps then read it as memory operands. INT8 computes
in float32 as well, which is exact while the sum stays below 2^24, and in int32 where it may not. The input is read, or
computed on the spot (``expansion.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...ir import constant_value
from ...precision import Precision, Storage
from ..target import Capabilities
from .convolution import Geometry
from .epilogue import Epilogue, Position
from .gemm import dequantize, prepare, with_slack
from .isa import Arithmetic, arithmetic, bind, named, span
from .kernel import Kernel, KernelRequest, Parameters
from .operands import emit_taps
from .signature import build_kernel, input_index
from .tiling import SHARED_BYTES, ceil_div
from .vector_math import Vector, fma, splat
from .vector_memory import LINE_BYTES, Index, decode, flat_view, load, prefetch, store

# Kernels of at most this many taps are unrolled, so that the weights stay in registers; where there are few registers,
# of as many as leave room for the columns.
_UNROLLED_TAPS = 25
_MANY_REGISTERS = 32
_EXACT_IN_FLOAT32 = 2**24
_MOST_COLUMNS = 8
# Cycles that copying a vector of the input takes; and those until the first bytes of a run come from beyond the
# second-level cache.
_COPYING = 2.0
_FAR_RUN = 40.0
# Pixels of the input that are fetched before they are copied.
_PIXELS_AHEAD = 16
_MOST_VECTORS = 12


@dataclass(frozen=True)
class Blocks:
    """How a depthwise convolution is cut: ``columns`` output columns at once, ``rows`` output rows and ``vectors``
    vectors of channels a unit. All units have as many vectors."""

    columns: int
    rows: int
    vectors: int = 1


# Cycles that a vector of the widened input takes where so many vectors are made together.
Widening = Callable[[int], float]


def copying(geometry: Geometry, lanes: int, operand_bytes: int, capabilities: Capabilities) -> Widening:
    """Where the widened input is copied from memory: a unit's channels are runs of bytes there, one a pixel."""
    size = geometry.planes * geometry.size[1] * geometry.size[2] * geometry.channels * operand_bytes
    vector_bytes = lanes * operand_bytes
    if size <= capabilities.l2_bytes / 2:
        return lambda vectors: _COPYING
    return lambda vectors: (max(_COPYING, vector_bytes / SHARED_BYTES)
                            + _FAR_RUN * min(1 / vectors, vector_bytes / LINE_BYTES))


def choose_blocks(geometry: Geometry, lanes: int, capabilities: Capabilities, threads: int, widening: Widening,
                  row_bytes: int = 0, most_vectors: int = _MOST_VECTORS) -> tuple[Blocks, float]:
    """The blocks with the least predicted work of the slowest thread, and this work in cycles; the units' buffers fit
    the second-level cache.

    geometry : of known extents.
    row_bytes : bytes that a row of the input is made from, which the units of a block of rows read one after the other.
    """
    _, height, width = geometry.result
    taps, vectors = geometry.taps, ceil(geometry.channels / lanes)
    columns = min(range(1, min(width, _MOST_COLUMNS) + 1),
                  key=lambda c: ceil(width / c) * (max(c, 4) * taps + 3 * c + 6))
    line = geometry.kernel[0] * geometry.padded[2]

    def work(rows: int, together: int) -> float:
        units = geometry.planes * (vectors // together) * ceil(height / rows)
        each = input_rows(geometry, rows) * line * widening(together) + rows * width * (taps + 3)
        return ceil(units / threads) * together * each

    def fits(rows: int, together: int) -> bool:
        lines = input_rows(geometry, rows)
        return (lines * line * lanes * 4 * together <= capabilities.l2_bytes // 4
                and lines * row_bytes <= capabilities.l2_bytes // 2)

    groups = [v for v in range(1, min(vectors, most_vectors) + 1) if vectors % v == 0]
    fitting = [(r, v) for v in groups for r in range(1, height + 1) if fits(r, v)]
    rows, together = min(fitting or [(1, 1)], key=lambda way: work(*way))
    return Blocks(columns, rows, together), work(rows, together)


def input_rows(geometry: Geometry, rows: Index) -> Index:
    """Padded rows of a plane that ``rows`` output rows read."""
    return (rows - 1) * geometry.strides[1] + geometry.reach


def units_of(geometry: Geometry, blocks: Blocks, lanes: int) -> Dim:
    """Units of work."""
    groups = ceil(geometry.channels / lanes) // blocks.vectors
    return geometry.planes * ceil_div(geometry.result[1], blocks.rows) * groups


@dataclass(frozen=True)
class Unit:
    """One unit's place: plane of the output, first output row and their number, first vector of channels, and how many
    channels of the last exist."""

    plane: Index
    row: Index
    rows: Index
    vector: Index
    valid: int


# line(wide, at, pixel, unit) emits a line of a unit's input, of known or symbolic width, into the widened input: its
# first vector of channels from ``at`` on, each other ``Depthwise.area`` further; ``pixel`` is the number of the line's
# first pixel in the data.
Line = Callable[[tirx.Buffer, Index, Index, Unit], None]


@dataclass(frozen=True)
class Depthwise:
    """Emits a depthwise kernel's loops.

    kind : what is accumulated, "float32" or "int32".
    padding : the stored value that stands for zero.
    tasks : into which the units are dealt.
    unrolled : taps, at most, whose weights are kept in registers.
    """

    geometry: Geometry
    unit: Arithmetic
    blocks: Blocks
    kind: str
    padding: int
    tasks: int
    epilogue: Epilogue
    unrolled: int

    @property
    def macs(self) -> Dim:
        """Multiply-adds of a call."""
        return self.geometry.positions * self.geometry.channels * self.geometry.taps

    @property
    def breadth(self) -> Dim:
        """Elements of a row of a plane of the widened input."""
        return self.geometry.padded[2] * self.unit.lanes

    @property
    def pitch(self) -> Dim:
        """Elements of a row of the widened input: that of every plane under the window."""
        return self.geometry.kernel[0] * self.breadth

    @property
    def area(self) -> Dim:
        """Elements of the widened input of a vector of channels."""
        return input_rows(self.geometry, self.blocks.rows) * self.pitch

    def emit(self, line: Line, weights: tirx.Buffer, scaling: Sequence[tirx.Buffer]) -> None:
        """Emit the parallel loop over units; neighbouring units are the vectors of one block of rows."""
        lanes, channels, tasks = self.unit.lanes, self.geometry.channels, self.tasks
        groups = ceil(channels / lanes) // self.blocks.vectors
        bands = ceil_div(self.geometry.result[1], self.blocks.rows)
        units = units_of(self.geometry, self.blocks, lanes)
        with T.parallel(tasks) as task:
            named("task", task)
            with span("unit", task * units // tasks, (task + 1) * units // tasks) as unit:
                group = bind("group", unit % groups)
                band, plane = unit // groups % bands, unit // (groups * bands)
                row, rows = self._band(band)
                vector = bind("vector", group * self.blocks.vectors)
                place = Unit(bind("plane", plane), row, rows, vector, lanes)
                if channels % lanes == 0:
                    self._emit_unit(line, weights, scaling, place)
                else:
                    with T.If(group < groups - 1):
                        with T.Then():
                            self._emit_unit(line, weights, scaling, place)
                        with T.Else():
                            self._emit_unit(line, weights, scaling, replace(place, valid=channels % lanes))

    def _band(self, band: Index) -> tuple[Index, Index]:
        """First row of a block of rows and their number. The last block starts early instead of being cut, unless only
        running tells the height."""
        height, rows = self.geometry.result[1], self.blocks.rows
        if isinstance(height, int):
            return bind("row", T.min(band * rows, height - rows)), rows
        row = bind("row", band * rows)
        return row, bind("rows", T.min(rows, height - row))

    def _emit_unit(self, line: Line, weights: tirx.Buffer, scaling: Sequence[tirx.Buffer], place: Unit) -> None:
        whole = self.blocks.vectors if place.valid == self.unit.lanes else self.blocks.vectors - 1
        wide = named("wide", T.alloc_buffer((self.blocks.vectors * self.area,), self.kind))
        self._emit_widen(wide, line, place)
        if whole:
            with T.serial(whole) as number:
                self._emit_vector(wide, weights, scaling, place, named("of", number), self.unit.lanes)
        if whole < self.blocks.vectors:
            self._emit_vector(wide, weights, scaling, place, whole, place.valid)

    def _emit_vector(self, wide: tirx.Buffer, weights: tirx.Buffer, scaling: Sequence[tirx.Buffer], place: Unit,
                     number: Index, valid: int) -> None:
        """Emit what a unit computes of one of its vectors of channels, of which ``valid`` exist."""
        g, lanes, taps = self.geometry, self.unit.lanes, self.geometry.taps
        vector = bind("channels", place.vector + number)
        origin, first = bind("origin", number * self.area), bind("first", vector * (taps * lanes))
        kept = [bind(f"w_{t}", load(weights, first + t * lanes, lanes)) for t in range(taps)] \
            if taps <= self.unrolled else None
        with T.serial(place.rows) as y:
            named("y", y)

            def tile(x: Index, columns: int) -> None:
                base = bind("base", origin + y * g.strides[1] * self.pitch + x * (g.strides[2] * lanes))
                acc = [named(f"acc_{c}", T.alloc_buffer((lanes,), self.kind)) for c in range(columns)]
                row = bind("pixel", (place.plane * g.result[1] + place.row + y) * g.result[2] + x)
                for c in range(columns):
                    self.epilogue.fetch(Position(row + columns + c, vector * lanes))
                self._emit_taps(acc, wide, base, kept, (weights, first))
                for c in range(columns):
                    value = dequantize(load(acc[c], 0, lanes), scaling, vector * lanes, lanes)
                    self.epilogue.emit(value, Position(row + c, vector * lanes), valid)

            self._emit_tiles(tile)

    def _emit_tiles(self, tile: Callable[[Index, int], None]) -> None:
        """Emit ``tile(first column, columns)`` for a row of the output, by single columns where running tells that it
        has fewer than a block."""
        width, columns = self.geometry.result[2], self.blocks.columns

        def loop(columns: int) -> None:
            with T.serial(ceil_div(width, columns)) as number:
                x = named("tile", number) * columns
                if columns > 1 and not (isinstance(width, int) and width % columns == 0):
                    x = T.min(x, width - columns)
                tile(bind("x", x), columns)

        if isinstance(width, int) or columns == 1:
            loop(columns)
            return
        with T.If(width >= columns):
            with T.Then():
                loop(columns)
            with T.Else():
                loop(1)

    def _emit_taps(self, acc: Sequence[tirx.Buffer], wide: tirx.Buffer, base: Index, kept: Sequence[Vector] | None,
                   packed: tuple[tirx.Buffer, Index]) -> None:
        """Emit the sums of a tile's columns: of the taps ``kept`` in registers, or from ``packed``, a buffer and the
        offset of the first."""
        g, lanes = self.geometry, self.unit.lanes
        for buffer in acc:
            store(buffer, 0, splat(tirx.const(0, self.kind), lanes), lanes)

        def step(offset: Index, weight: Vector) -> None:
            at = base + offset
            for c, buffer in enumerate(acc):
                value = load(wide, at + c * (g.strides[2] * lanes), lanes)
                total = load(buffer, 0, lanes)
                store(buffer, 0, fma(value, weight, total) if self.kind == "float32" else total + value * weight, lanes)

        distances = (self.breadth, g.dilation[1] * self.pitch, g.dilation[2] * lanes)
        if kept is not None:
            for tap, weight in zip(np.ndindex(g.kernel), kept, strict=True):
                step(sum(i * d for i, d in zip(tap, distances, strict=True)), weight)
            return
        emit_taps(tuple(zip(g.kernel, distances, strict=True)), lambda tap, offset: step(
            offset, bind("w", load(packed[0], packed[1] + tap * lanes, lanes))))

    def _emit_widen(self, wide: tirx.Buffer, emit_line: Line, place: Unit) -> None:
        """Emit a unit's padded input into ``wide`` [vector][row][plane under the window][column][lane]."""
        g, lanes = self.geometry, self.unit.lanes
        left, right = g.before[2], g.after[2]
        zero = splat(tirx.const(self.padding, self.kind), lanes)
        with T.serial(input_rows(g, place.rows)) as line:
            named("line", line)
            y = bind("in_y", place.row * g.strides[1] + line - g.before[1])

            def widen_row(tap: Index, offset: Index) -> None:
                at = bind("at", line * self.pitch + offset)
                under, inside = g.plane_under(place.plane, tap)
                with T.If(T.And(T.And(y >= 0, y < g.size[1]), inside)):
                    with T.Then():
                        self._fill(wide, at, zero, left)
                        emit_line(wide, bind("first_at", at + left * lanes), (under * g.size[1] + y) * g.size[2], place)
                        self._fill(wide, at + (left + g.size[2]) * lanes, zero, right)
                    with T.Else():
                        self._fill(wide, at, zero, g.padded[2])

            emit_taps(((g.kernel[0], self.breadth),), widen_row)

    def copied(self, source: tirx.Buffer) -> Line:
        """Lines that are read from memory."""
        g, lanes = self.geometry, self.unit.lanes

        def emit_line(wide: tirx.Buffer, at: Index, pixel: Index, unit: Unit) -> None:
            with T.serial(g.size[2]) as x:
                begin = bind("begin", (pixel + named("in_x", x)) * g.channels + unit.vector * lanes)
                for number in range(self.blocks.vectors):
                    prefetch(source, begin + _PIXELS_AHEAD * g.channels + number * lanes, level=1)
                for number in range(self.blocks.vectors):
                    valid = unit.valid if number == self.blocks.vectors - 1 else lanes
                    raw = load(source, begin + number * lanes, lanes, valid)
                    store(wide, at + number * self.area + x * lanes, self.widened(raw), lanes)

        return emit_line

    def _fill(self, wide: tirx.Buffer, at: Index, value: Vector, count: Dim) -> None:
        if isinstance(count, int) and count == 0:
            return
        with T.serial(count) as x:
            pad = named("pad", x)
            for number in range(self.blocks.vectors):
                store(wide, at + number * self.area + pad * self.unit.lanes, value, self.unit.lanes)

    def widened(self, raw: Vector) -> Vector:
        """Elements of the data as they are multiplied."""
        if self.unit.precision is not Precision.INT8:
            return decode(raw, Storage(self.unit.precision.storage_dtype))
        integer = T.Cast(f"int32x{self.unit.lanes}", raw)
        return T.Cast(f"float32x{self.unit.lanes}", integer) if self.kind == "float32" else integer


def build_depthwise(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a depthwise convolution group (1-D to 3-D, any stride, padding, dilation) with its epilogue."""
    unit = depthwise_arithmetic(request, capabilities)
    blocks, _ = copied_blocks(request, capabilities, threads)
    emitter, constants = prepare_depthwise(request, capabilities, threads, blocks)
    data = input_index(request, request.group.anchor.value.args[0])

    def emit(parameters: Parameters) -> None:
        source = named("x", flat_view(parameters.inputs[data]))
        emitter.emit(emitter.copied(source), parameters.constants[0], parameters.constants[1:len(constants)])

    return build_kernel(request, unit, emitter.epilogue, constants, emitter.macs, emit)


def copied_blocks(request: KernelRequest, capabilities: Capabilities, threads: int) -> tuple[Blocks, float]:
    """The blocks of a kernel that reads its input from memory, and its predicted cycles."""
    geometry = Geometry.of(request.group.anchor.value, request.group.name).at(request.typically)
    unit = depthwise_arithmetic(request, capabilities)
    return choose_blocks(geometry, unit.lanes, capabilities, threads,
                         copying(geometry, unit.lanes, unit.operand_bytes, capabilities))


def depthwise_arithmetic(request: KernelRequest, capabilities: Capabilities) -> Arithmetic:
    """The arithmetic of the group's precision, with vectors of float32 accumulators."""
    return replace(arithmetic(request.precision, capabilities), lanes=capabilities.vector_bits // 32)


def prepare_depthwise(request: KernelRequest, capabilities: Capabilities, threads: int,
                      blocks: Blocks) -> tuple[Depthwise, tuple[np.ndarray, ...]]:
    """What emits the loops of a depthwise group, and its constants: packed weights, scaling."""
    call = request.group.anchor.value
    geometry, unit = Geometry.of(call, request.group.name), depthwise_arithmetic(request, capabilities)
    taps, channels = geometry.taps, geometry.channels
    by_tap = constant_value(call.args[1]).reshape(channels, taps).T
    epilogue, scaling, operand = prepare(request, capabilities, by_tap[None, :, None, :])
    qparams = request.inputs[input_index(request, call.args[0])].qparams
    exact = request.precision is not Precision.INT8 or taps * 255 * 127 < _EXACT_IN_FLOAT32
    kind = "float32" if exact else "int32"
    constants = (_pack(operand[0, :, 0, :], request.precision, unit.lanes, kind),
                 *(with_slack(a, unit.lanes) for a in scaling))
    tasks = min(threads, request.typically(units_of(geometry, blocks, unit.lanes)))
    spare = capabilities.registers - blocks.columns - 1
    unrolled = _UNROLLED_TAPS if capabilities.registers >= _MANY_REGISTERS else min(_UNROLLED_TAPS, spare)
    zero = qparams.zero_point if qparams else 0
    return Depthwise(geometry, unit, blocks, kind, zero, tasks, epilogue, unrolled), constants


def _pack(weights: np.ndarray, precision: Precision, lanes: int, kind: str) -> np.ndarray:
    """Weights [taps, channels] as [vector][tap][lane] of the accumulated type."""
    if precision is Precision.BF16:
        weights = (weights.astype(np.uint32) << 16).view(np.float32)
    taps, channels = weights.shape
    vectors = ceil(channels / lanes)
    padded = np.zeros((taps, vectors * lanes), kind)
    padded[:, :channels] = weights
    return padded.reshape(taps, vectors, lanes).transpose(1, 0, 2).reshape(-1)
