"""Products of recurrent layers: rows of factors, from the sequence or the states, with packed weights.

Below FP32 the states, which are float32, are rounded to what the arithmetic multiplies: to bfloat16, or in INT8 to
levels with a scale ``absmax / 127`` of each sample at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...operators.quantization import LEAST_STATE, STATE_LEVELS, STATE_ZERO_POINT
from ...precision import BFLOAT16, Precision
from . import vector_math as vm
from .isa import Arithmetic, bind
from .loops import for_vectors
from .recurrent_packing import Packing
from .vector_math import Vector, bound, fma, splat, vector_type
from .vector_memory import Index, encode, load, store, to_levels

# Independent sums that hide the latency of a multiply-add.
_SUMS = 8


@dataclass(frozen=True)
class Vectors:
    """Packed numbers, one for every row of an operand, in a flat buffer."""

    packing: Packing
    buffer: tirx.Buffer

    def at(self, direction: Index, block: Index, gate: int) -> Vector:
        return load(self.buffer, self.packing.at(direction, block, 0, gate), self.packing.lanes)


@dataclass(frozen=True)
class Matrix:
    """A packed operand in a flat buffer.

    arithmetic : of its products.
    starts, units : of an INT8 operand, what the s32 sums of each row begin with, which takes the factors' zero point
        away, and what one of them is worth (without the scale that a row of factors has by itself); else None.
    """

    packing: Packing
    buffer: tirx.Buffer
    arithmetic: Arithmetic
    starts: Vectors | None = None
    units: Vectors | None = None

    def vector(self, direction: Index, block: Index, k: Index, gate: int) -> Vector:
        """The weights of a gate for step ``k`` of one block of units."""
        return self.arithmetic.weights(self.buffer, self.packing.at(direction, block, k, gate))


@dataclass(frozen=True)
class Factors:
    """What a row of weights is multiplied with: it lies in ``source`` from ``begin`` on, and is to be multiplied by
    ``scale`` (None: 1)."""

    source: tirx.Buffer
    begin: Index
    scale: Vector | None = None


@dataclass(frozen=True)
class Row:
    """One row of a product: its sums go to ``target`` from ``at`` on, ``slots`` vectors for every block of units."""

    factors: Factors
    target: tirx.Buffer
    at: Index
    slots: int


def emit_products(rows: Sequence[Row], matrix: Matrix, direction: Index, block: Index,
                  pairs: Sequence[tuple[int, int]], initial: Callable[[Row, int], Vector]) -> None:
    """``target[slot] = initial(row, slot) + factors · weights[gate]`` for one block of units and every (gate, slot)."""
    arithmetic, packing = matrix.arithmetic, matrix.packing
    lanes, (steps, rest) = packing.lanes, divmod(packing.depth, packing.step)
    split = max(1, min(_SUMS // (len(rows) * len(pairs)), steps))
    sums = {}
    for r, row in enumerate(rows):
        for gate, slot in pairs:
            for s in range(split):
                sums[r, gate, s] = total = T.alloc_buffer((lanes,), arithmetic.accumulator)
                first = splat(tirx.const(0, arithmetic.accumulator), lanes)
                if s == 0:
                    first = matrix.starts.at(direction, block, gate) if matrix.starts else initial(row, slot)
                store(total, 0, first)

    def step(k: Index, s: int, present: int | None = None) -> None:
        vectors = {gate: bound(matrix.vector(direction, block, k, gate)) for gate, _ in pairs}
        for r, row in enumerate(rows):
            where = row.factors.begin + k * packing.step
            factor = bound(arithmetic.broadcast(row.factors.source, where, present))
            for gate, _ in pairs:
                total = sums[r, gate, s]
                store(total, 0, arithmetic.multiply_add(load(total, 0, lanes), factor, vectors[gate]))

    with T.serial(steps // split) as group:
        for s in range(split):
            step(group * split + s, s)
    for s in range(steps % split):
        step(steps // split * split + s, s)
    if rest:
        step(steps, 0, rest)
    for r, row in enumerate(rows):
        for gate, slot in pairs:
            total = load(sums[r, gate, 0], 0, lanes)
            for s in range(1, split):
                total = total + load(sums[r, gate, s], 0, lanes)
            if matrix.units is not None:
                unit = matrix.units.at(direction, block, gate)
                unit = unit if row.factors.scale is None else unit * splat(row.factors.scale, lanes)
                total = fma(T.Cast(vector_type("float32", lanes), total), unit, initial(row, slot))
            store(row.target, row.at + (block * row.slots + slot) * lanes, total)


@dataclass(frozen=True)
class Operands:
    """States of a tile's samples as an arithmetic multiplies them.

    extent : of one state; lanes : of a vector of float32; rounded, scales : where operands and, in INT8, scales go;
    None where float32 is multiplied as it is.
    """

    arithmetic: Arithmetic
    extent: int
    lanes: int
    features: frozenset[str]
    rounded: tirx.Buffer | None
    scales: tirx.Buffer | None

    @classmethod
    def allocate(cls, matrix: Matrix, samples: int, features: frozenset[str]) -> Operands:
        """For the states that are multiplied with a matrix."""
        arithmetic, packing = matrix.arithmetic, matrix.packing
        width = -(-packing.depth // packing.lanes) * packing.lanes
        plain = arithmetic.precision is Precision.FP32
        rounded = None if plain else T.alloc_buffer((samples * width,), arithmetic.operand)
        scales = T.alloc_buffer((samples,), "float32") if matrix.units is not None else None
        return cls(arithmetic, packing.depth, packing.lanes, features, rounded, scales)

    @property
    def pitch(self) -> int:
        """Elements from one state to the next: it is padded to whole vectors."""
        return -(-self.extent // self.lanes) * self.lanes

    def emit(self, source: tirx.Buffer, samples: int) -> list[Factors]:
        """Round the states in ``source`` [samples][pitch]; the factors of every sample."""
        if self.rounded is None:
            return [Factors(source, i * self.pitch) for i in range(samples)]
        with T.serial(samples) as i:
            begin = bind("state", i * self.pitch)
            if self.scales is None:
                self._emit_bfloat16(self.rounded, source, begin)
            else:
                self._emit_levels(self.rounded, source, begin, (self.scales, i))
        return [Factors(self.rounded, i * self.pitch, None if self.scales is None else self.scales[i])
                for i in range(samples)]

    def _emit_bfloat16(self, target: tirx.Buffer, source: tirx.Buffer, begin: Index) -> None:
        for_vectors(self.pitch, self.lanes, lambda at, valid: store(
            target, begin + at, encode(load(source, begin + at, self.lanes), BFLOAT16, self.features)))

    def _emit_levels(self, target: tirx.Buffer, source: tirx.Buffer, begin: Index,
                     scale: tuple[tirx.Buffer, Index]) -> None:
        """What the padding holds takes no part in the scale; its levels are multiplied by 0."""
        largest = T.alloc_buffer((self.lanes,), "float32")
        store(largest, 0, splat(LEAST_STATE, self.lanes))

        def enlarge(at: Index, valid: Index) -> None:
            value = vm.intrinsic("llvm.fabs", load(source, begin + at, self.lanes, valid))
            store(largest, 0, vm.larger(value, load(largest, 0, self.lanes)))

        for_vectors(self.extent, self.lanes, enlarge)
        whole = T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", load(largest, 0, self.lanes))
        absmax = bound(whole)
        T.buffer_store(scale[0], absmax * T.float32(1.0 / STATE_LEVELS), [scale[1]])
        factor = bound(T.float32(STATE_LEVELS) / absmax)
        for_vectors(self.pitch, self.lanes, lambda at, valid: store(target, begin + at, to_levels(
            load(source, begin + at, self.lanes) * splat(factor, self.lanes), STATE_ZERO_POINT)))
