"""Instructions as TIR expressions: the multiply-adds of each precision and the vector accesses around them.

Everything here builds expressions or statements inside a running ``IRBuilder``. Buffers are flat (one axis); offsets
count elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...errors import TargetError
from ...precision import FP16_BLOCK, Precision
from ..target import Capabilities
from .llvm_helpers import DOT_BF16, DOT_BF16_NAME, DOT_FP16, DOT_FP16_NAME, DOT_WORDS_NAME, dot_words
from .vector_math import Vector, fma, splat
from .vector_memory import Index, load, store

# What vpmaddwd on the halves of bytes takes beside its operands: the mask, a product, and one to schedule with.
_SPLITTING_REGISTERS = 3
# Cycles of a multiply-add of FP16 with its share of adding a block's sums to two float32 vectors.
_FP16_CYCLES = 1.5
# Cores with tiles have vdpbf16ps on one of the two ports that have the other multiply-adds (uops.info).
_BF16_CYCLES_BESIDE_TILES = 2.0
# The multiply-adds of pairs: name and code of the helper.
_DOT_PAIRS = {Precision.BF16: (DOT_BF16_NAME, DOT_BF16), Precision.FP16: (DOT_FP16_NAME, DOT_FP16)}
# Features whose tiles multiply a precision; in INT8 vectors share the packed weights.
_TILE_FEATURES = {Precision.INT8: frozenset({"amx_int8", "avx512_vnni"}), Precision.BF16: frozenset({"amx_bf16"}),
                  Precision.FP16: frozenset({"amx_fp16"})}


def named(name: str, value: Vector) -> Vector:
    """Give a loop variable, buffer or bound value the name that the emitted code shows; returns it."""
    IRBuilder.name(name, value)
    return value


def bind(name: str, value: Index) -> Index:
    """Compute ``value`` once, under a name; plain numbers stay numbers."""
    return value if isinstance(value, int) else named(name, T.bind(value))


@contextmanager
def span(name: str, start: Index, stop: Index) -> Iterator[Index]:
    """A loop over ``start``…``stop``. It counts from 0: TVM's analyzer gets loops wrong that start at another
    loop's variable."""
    with T.serial(stop - start) as i:
        named(f"{name}_in", i)
        yield bind(name, start + i)


@dataclass(frozen=True)
class Arithmetic:
    """One precision's multiply-add on vectors of accumulators.

    precision : what the operands are.
    lanes : accumulators in a vector.
    depth : products that one multiply-add adds into each accumulator (4 for INT8, 2 for BF16 and for FP16 on tiles,
        else 1).
    operand, weight, accumulator : element types of the left side, the packed right side and the accumulators.
    parts : registers of a packed vector of weights. In INT8 by vpmaddwd two: the even elements of a step's depth, then
        the odd ones.
    block : multiply-adds whose sum is kept in the operands' own type before it is added to the accumulator; 0: none.
    cycles, left_cycles : of a multiply-add, and of making an operand of the left side ready, on a typical core.
    """

    precision: Precision
    lanes: int
    depth: int
    operand: str
    weight: str
    accumulator: str
    parts: int = 1
    block: int = 0
    cycles: float = 1.0
    left_cycles: float = 0.0

    @property
    def sum(self) -> str:
        """Element type of what ``multiply_add`` adds to."""
        return self.operand if self.block else self.accumulator

    @property
    def operand_bytes(self) -> int:
        return np.dtype(self.operand).itemsize

    @property
    def panel(self) -> int:
        """Elements of one packed vector of weights."""
        return self.lanes * self.depth

    @property
    def panel_bytes(self) -> int:
        return self.panel * np.dtype(self.weight).itemsize

    def registers(self, rows: int, vectors: int) -> int:
        """Vector registers that a block of accumulators takes, with what is multiplied."""
        further = _SPLITTING_REGISTERS if self.parts > 1 else 0
        return rows * vectors + self.parts * (vectors + 1) + further

    def broadcast(self, source: tirx.Buffer, offset: Index, present: Index | None = None) -> Vector:
        """``depth`` consecutive elements of the left side, in every lane. Only the first ``present`` are read (None:
        all); what stands for the others must be multiplied by 0."""
        if self.depth == 1:
            return splat(source[offset], self.lanes, self.operand)
        if present is None:
            scalar = T.reinterpret("int32", load(source, offset, self.depth))
        else:
            scalar = self._partial(source, offset, present)
        word = splat(scalar, self.lanes, "int32")
        return T.reinterpret(f"uint8x{self.panel}", word) if self.precision is Precision.INT8 else word

    def _partial(self, source: tirx.Buffer, offset: Index, present: Index) -> Vector:
        """Fewer than ``depth`` elements as a 32-bit word: of a pair one and zero; INT8 the last again in place of
        others."""
        bits = 8 * self.operand_bytes
        word = T.Cast("int32", T.reinterpret(f"uint{bits}", source[offset]))
        for d in range(1, self.depth - 1):
            at = min(present - 1, d) if isinstance(present, int) else T.min(present - 1, d)
            further = T.Cast("int32", source[offset + at])
            word = T.bitwise_or(word, T.shift_left(further, tirx.const(d * bits, "int32")))
        return word

    def weights(self, packed: tirx.Buffer, offset: Index) -> Vector:
        """One packed vector of the right side."""
        vector = load(packed, offset, self.panel)
        return T.reinterpret(f"int32x{self.lanes}", vector) if self.depth == 2 else vector

    def multiply_add(self, acc: Vector, left: Vector, right: Vector) -> Vector:
        """``acc + left · right``: vpdpbusd, twice vpmaddwd, vdpbf16ps, fused multiply-adds."""
        if self.precision is Precision.INT8:
            if self.parts > 1:
                return T.call_pure_extern(f"int32x{self.lanes}", DOT_WORDS_NAME, acc, left, right)
            name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
            return T.call_llvm_pure_intrin(f"int32x{self.lanes}", name, acc, left, right)
        if self.depth == 2:
            return T.call_pure_extern(f"float32x{self.lanes}", _DOT_PAIRS[self.precision][0], acc, left, right)
        return fma(left, right, acc)

    @contextmanager
    def helpers(self) -> Iterator[None]:
        """The scope inside which ``multiply_add`` may be used."""
        code = _DOT_PAIRS[self.precision][1] if self.depth == 2 else None
        if self.parts > 1:
            code = dot_words(self.lanes)
        if code is None:
            yield
            return
        with T.attr(0, "pragma_import_llvm", code):
            yield


def arithmetic(precision: Precision, capabilities: Capabilities) -> Arithmetic:
    """The multiply-add of a precision on a target; TargetError where the target has none.

    Cores execute one instruction on 512 bits a cycle, or two on 256; vpmaddwd needs additions beside it.
    """
    if precision not in capabilities.precisions:
        raise TargetError(f"the target has no {precision} multiply-add",
                          found=", ".join(sorted(capabilities.features)),
                          expected={"bf16": "avx512_bf16", "fp16": "avx512_fp16"}.get(str(precision)))
    lanes, features = capabilities.vector_bits // 32, capabilities.features
    cycles = lanes / 16
    if precision is Precision.INT8 and features & {"avx512_vnni", "avx_vnni"}:
        return Arithmetic(precision, lanes, 4, "uint8", "int8", "int32", cycles=cycles)
    if precision is Precision.INT8:
        return Arithmetic(precision, lanes, 4, "uint8", "int16", "int32", parts=2, cycles=2 * cycles,
                          left_cycles=cycles)
    if precision is Precision.BF16:
        return Arithmetic(precision, 16, 2, "uint16", "uint16", "float32",
                          cycles=_BF16_CYCLES_BESIDE_TILES if "amx_bf16" in features else 1.0)
    if precision is Precision.FP16:
        return Arithmetic(precision, 32, 1, "float16", "float16", "float32", block=FP16_BLOCK, cycles=_FP16_CYCLES)
    return Arithmetic(precision, lanes, 1, "float32", "float32", "float32", cycles=cycles)


def tile_arithmetic(precision: Precision, capabilities: Capabilities) -> Arithmetic | None:
    """A precision's multiply-add on a target's tiles, in every lane of a row; None where tiles have none.

    It is that of vectors but in FP16: tdpfp16ps takes pairs and adds their products up in float32 (Intel, Architecture
    Instruction Set Extensions Programming Reference, "TDPFP16PS").
    """
    needed = _TILE_FEATURES.get(precision)
    if needed is None or not needed <= capabilities.features:
        return None
    if precision is Precision.FP16:
        return Arithmetic(precision, 16, 2, "float16", "float16", "float32")
    return arithmetic(precision, capabilities)


def copy_run(target: tirx.Buffer, start: Index, source: tirx.Buffer, begin: Index, count: Dim) -> None:
    """Copy ``count`` consecutive elements between flat buffers of one type, in whole vectors where possible."""
    _by_vectors(count, _copy_lanes(str(source.dtype)),
                lambda at, lanes: store(target, start + at, load(source, begin + at, lanes), lanes))


def fill_run(target: tirx.Buffer, start: Index, value: int, count: Dim) -> None:
    """Set ``count`` consecutive elements of a flat buffer."""
    dtype = str(target.dtype)
    scalar = tirx.const(value, dtype)
    _by_vectors(count, _copy_lanes(dtype), lambda at, lanes: store(target, start + at, splat(scalar, lanes), lanes))


def _copy_lanes(dtype: str) -> int:
    return 64 // np.dtype(dtype).itemsize


def _by_vectors(count: Dim, lanes: int, emit: Callable[[Index, int], None]) -> None:
    """Cover ``count`` elements: whole vectors, then one that overlaps the last (or halves, where there is none)."""
    if not isinstance(count, int):
        _by_vectors_of_any(count, lanes, emit)
        return
    whole, rest = divmod(count, lanes)
    if whole == 1:
        emit(0, lanes)
    elif whole:
        with T.serial(whole) as i:
            named("i", i)
            emit(i * lanes, lanes)
    if rest and whole:
        emit(count - lanes, lanes)
    elif rest:
        at = 0
        while at < count:
            while lanes > count - at:
                lanes //= 2
            emit(at, lanes)
            at += lanes


def _by_vectors_of_any(count: Dim, lanes: int, emit: Callable[[Index, int], None]) -> None:
    """``_by_vectors`` for a number of elements that only running tells; one by one where they fill no vector."""
    with T.If(count >= lanes):
        with T.Then():
            with T.serial(count // lanes) as i:
                emit(named("i", i) * lanes, lanes)
            emit(count - lanes, lanes)
        with T.Else(), T.serial(count) as i:
            emit(named("i", i), 1)
