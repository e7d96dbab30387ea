"""Packing at run time: the right sides of products of two tensors, laid out as the micro-kernel reads them.

The layout is that of ``packing.pack_weights`` for one column block: [step][vector][part][lane][depth / parts].
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...precision import Precision
from .isa import Arithmetic, bind, named
from .vector_math import Vector, splat, vector_type
from .vector_memory import Index, load, store


@dataclass(frozen=True)
class Panel:
    """A column block in the making.

    packed, first : where it goes; vectors : its width; last : valid lanes of its last vector.
    """

    packed: tirx.Buffer
    first: Index
    vectors: int
    last: Index


@dataclass(frozen=True)
class Matrix:
    """A matrix in a flat buffer: rows of ``columns`` elements, ``pitch`` apart, from ``origin`` on."""

    source: tirx.Buffer
    origin: Index
    pitch: Dim
    rows: Dim
    columns: Dim


def emit_pack(unit: Arithmetic, right: Matrix, column: Index, panel: Panel,
              sums: tuple[tirx.Buffer, Index] | None = None) -> None:
    """Pack the columns of ``right`` from ``column`` on; the reduction runs along its rows.

    In INT8 the u8 elements become s8 by subtracting 128, and ``sums`` (buffer, offset) gets the sums of the packed
    columns. Rows beyond the end count as zero after packing.
    """
    full, rest = right.rows // unit.depth, right.rows % unit.depth
    width = panel.vectors * unit.panel
    totals = []
    if sums is not None:
        totals = [named(f"sum_{j}", T.alloc_buffer((unit.lanes,), "int32")) for j in range(panel.vectors)]
        for buffer in totals:
            store(buffer, 0, splat(0, unit.lanes, "int32"), unit.lanes)

    def step(k: Index, present: Index) -> None:
        for j in range(panel.vectors):
            valid = panel.last if j == panel.vectors - 1 else unit.lanes
            begin = right.origin + k * (unit.depth * right.pitch) + column + j * unit.lanes
            rows = _rows(unit, right, begin, valid, present)
            vector = bind("packed_vector", _interleaved(unit, rows))
            store(panel.packed, panel.first + k * width + j * unit.panel, vector, unit.panel)
            if sums is not None:
                ones = splat(tirx.const(1, "uint8"), unit.panel)
                total = unit.multiply_add(load(totals[j], 0, unit.lanes), ones, vector)
                store(totals[j], 0, total, unit.lanes)

    if not (isinstance(full, int) and full == 0):
        with T.serial(full) as k:
            step(named("k", k), unit.depth)
    if isinstance(rest, int):
        if rest:
            step(full, rest)
    elif unit.depth > 1:
        with T.If(rest > 0), T.Then():
            step(full, rest)
    for j, buffer in enumerate(totals):
        store(sums[0], sums[1] + j * unit.lanes, load(buffer, 0, unit.lanes), unit.lanes)  # type: ignore[index]


def _rows(unit: Arithmetic, right: Matrix, begin: Index, valid: Index, present: Index) -> list[Vector]:
    """The first ``present`` of the rows of a step, from ``begin`` on. Where only running tells how many there are, what
    stands for the others is 0 once packed."""
    if isinstance(present, int):
        return [load(right.source, begin + d * right.pitch, unit.lanes, valid) for d in range(present)]
    rows = [load(right.source, begin, unit.lanes, valid)]
    missing = splat(tirx.const(0x80 if unit.precision is Precision.INT8 else 0, unit.operand), unit.lanes)
    for d in range(1, unit.depth - 1):
        row = load(right.source, begin + T.min(present - 1, d) * right.pitch, unit.lanes, valid)
        rows.append(T.Select(present > d, row, missing))
    return rows


def _interleaved(unit: Arithmetic, rows: list[Vector]) -> Vector:
    """One packed vector from up to ``depth`` rows of ``lanes`` elements."""
    if unit.depth == 1:
        return rows[0]
    if unit.precision is Precision.INT8:
        shift = splat(tirx.const(0x80, "uint8"), unit.lanes)
        rows = [T.bitwise_xor(row, shift) for row in rows]
    zero = splat(tirx.const(0, unit.operand), unit.lanes)
    rows = rows + [zero] * (unit.depth - len(rows))
    order = [d * unit.lanes + lane for part in range(unit.parts) for lane in range(unit.lanes)
             for d in range(part, unit.depth, unit.parts)]
    mixed = T.Shuffle(rows, order)
    return _signed(unit, mixed) if unit.precision is Precision.INT8 else mixed


def emit_pack_transposed(unit: Arithmetic, right: Matrix, column: Index, panel: Panel,
                         sums: tuple[tirx.Buffer, Index] | None = None) -> None:
    """Pack rows of ``right`` as columns, from row ``column`` on; the reduction runs along its columns.

    In INT8 the u8 elements become s8 by subtracting 128, from 0 beyond the end of a row; ``sums`` (buffer, offset) gets
    the sums of the packed columns. Squares of ``lanes × lanes`` words, a step's elements each, are transposed in
    registers.
    """
    steps = -(-right.columns // unit.depth)
    with T.serial(panel.vectors) as vector:
        named("vector", vector)
        if isinstance(panel.last, int) and panel.last == unit.lanes:
            _emit_squares(unit, right, column, panel, vector, unit.lanes, steps)
        elif panel.vectors == 1:
            _emit_squares(unit, right, column, panel, vector, panel.last, steps)
        else:
            with T.If(vector < panel.vectors - 1):
                with T.Then():
                    _emit_squares(unit, right, column, panel, vector, unit.lanes, steps)
                with T.Else():
                    _emit_squares(unit, right, column, panel, vector, panel.last, steps)
    if sums is not None:
        _emit_sums(unit, panel, steps, sums)


def _emit_sums(unit: Arithmetic, panel: Panel, steps: int, sums: tuple[tirx.Buffer, Index]) -> None:
    """Sums of the packed columns of a panel, int32."""
    ones = splat(tirx.const(1, "uint8"), unit.panel)
    for j in range(panel.vectors):
        total = named(f"sum_{j}", T.alloc_buffer((unit.lanes,), "int32"))
        store(total, 0, splat(0, unit.lanes, "int32"), unit.lanes)
        with T.serial(steps) as k:
            at = panel.first + (k * panel.vectors + j) * unit.panel
            packed = load(panel.packed, at, unit.panel)
            store(total, 0, unit.multiply_add(load(total, 0, unit.lanes), ones, packed), unit.lanes)
        store(sums[0], sums[1] + j * unit.lanes, load(total, 0, unit.lanes), unit.lanes)


def _emit_squares(unit: Arithmetic, right: Matrix, column: Index, panel: Panel, vector: Index, present: Index,
                  steps: int) -> None:
    """The squares of one vector of columns, of which ``present`` exist. Where only running tells how many, the last
    one stands for the others."""
    full, rest = divmod(steps, unit.lanes)
    row = column + vector * unit.lanes
    known = present if isinstance(present, int) else unit.lanes

    def square(begin: Index, count: int) -> None:
        elements = min(unit.panel, right.columns - begin * unit.depth) if isinstance(begin, int) else unit.panel
        rows = []
        for i in range(known):
            line = row + i if isinstance(present, int) else T.min(row + i, right.rows - 1)
            at = right.origin + line * right.pitch + begin * unit.depth
            rows.append(bind(f"row_{i}", _words(unit, _line(unit, right.source, at, elements))))
        zero = splat(tirx.const(0, _word(unit)), unit.lanes)
        columns = transposed(rows + [zero] * (unit.lanes - known))
        for s in range(count):
            at = panel.first + ((begin + s) * panel.vectors + vector) * unit.panel
            store(panel.packed, at, _as_weights(unit, columns[s]), unit.panel)

    whole = full if right.columns >= full * unit.panel else full - 1
    if whole:
        with T.serial(whole) as s:
            square(named("square", s) * unit.lanes, unit.lanes)
    if whole < full:
        square(whole * unit.lanes, unit.lanes)
    if rest:
        square(full * unit.lanes, rest)


def _line(unit: Arithmetic, source: tirx.Buffer, at: Index, elements: int) -> Vector:
    """The first ``elements`` of a vector of a step's elements, 0 in place of others. Two or three bytes one by one:
    LLVM 22 gets their masked loads wrong where there are no mask registers."""
    if not 1 < elements < unit.depth:
        return load(source, at, unit.panel, elements)
    vector = splat(tirx.const(0, unit.operand), unit.panel)
    for i in reversed(range(elements)):
        until = T.ramp(0, 1, unit.panel) < splat(i + 1, unit.panel, "int32")
        vector = T.Select(until, splat(source[at + i], unit.panel), vector)
    return vector


def _as_weights(unit: Arithmetic, words: Vector) -> Vector:
    """One packed vector from the elements of a step in every lane."""
    if unit.precision is not Precision.INT8:
        return T.reinterpret(vector_type(unit.weight, unit.panel), words)
    elements = T.bitwise_xor(T.reinterpret(vector_type("uint8", unit.panel), words),
                             splat(tirx.const(0x80, "uint8"), unit.panel))
    if unit.parts > 1:
        elements = T.Shuffle([elements], [lane * unit.depth + d for part in range(unit.parts)
                                          for lane in range(unit.lanes) for d in range(part, unit.depth, unit.parts)])
    return _signed(unit, elements)


def _signed(unit: Arithmetic, elements: Vector) -> Vector:
    """Bytes as the weights of INT8."""
    signed = T.reinterpret(vector_type("int8", unit.panel), elements)
    return signed if unit.weight == "int8" else T.Cast(vector_type(unit.weight, unit.panel), signed)


def _word(unit: Arithmetic) -> str:
    """The integer type of a step's elements."""
    return f"int{8 * unit.operand_bytes * unit.depth}"


def _words(unit: Arithmetic, elements: Vector) -> Vector:
    return T.reinterpret(vector_type(_word(unit), unit.lanes), elements)


def transposed(rows: list[Vector]) -> list[Vector]:
    """The transpose of a square of vectors, by exchanging blocks of halving size between pairs of vectors."""
    lanes = len(rows)
    rows, half = list(rows), lanes // 2
    while half:
        low = [lane if not lane & half else lanes + (lane ^ half) for lane in range(lanes)]
        high = [lanes + lane if lane & half else lane ^ half for lane in range(lanes)]
        for i in range(lanes):
            if not i & half:
                pair = [rows[i], rows[i + half]]
                rows[i], rows[i + half] = (bind("block", T.Shuffle(pair, order)) for order in (low, high))
        half //= 2
    return rows
