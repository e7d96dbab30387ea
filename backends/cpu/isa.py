"""Instructions as TIR expressions: the multiply-adds of each precision and the vector accesses around them.

Everything here builds expressions or statements inside a running ``IRBuilder``. Buffers are flat (one axis); offsets
count elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...errors import TargetError
from ...precision import Precision
from ..target import Capabilities
from .vector_math import Vector, fma, splat
from .vector_memory import Index, load, store

# TVM's code generator has no bfloat type, so the operands of the instruction travel as 32-bit integers.
_DOT_BF16 = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @narrowcast_dot_bf16(<16 x float> %acc, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %acc, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""


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
    lanes : accumulators in a vector register.
    depth : products that one instruction adds into each accumulator (4 for INT8, 2 for BF16, 1 for FP32).
    operand, weight, accumulator : element types of the left side, the packed right side and the accumulators.
    """

    precision: Precision
    lanes: int
    depth: int
    operand: str
    weight: str
    accumulator: str

    @property
    def operand_bytes(self) -> int:
        return 4 // self.depth

    @property
    def panel(self) -> int:
        """Elements of one packed vector of weights."""
        return self.lanes * self.depth

    def broadcast(self, source: tirx.Buffer, offset: Index, present: Index | None = None) -> Vector:
        """``depth`` consecutive elements of the left side, in every lane. Only the first ``present`` are read (None:
        all); what stands for the others must be multiplied by 0."""
        if self.precision is Precision.FP32:
            return splat(source[offset], self.lanes, "float32")
        if present is None:
            scalar = T.reinterpret("int32", load(source, offset, self.depth))
        else:
            scalar = self._partial(source, offset, present)
        word = splat(scalar, self.lanes, "int32")
        return T.reinterpret("uint8x64", word) if self.precision is Precision.INT8 else word

    def _partial(self, source: tirx.Buffer, offset: Index, present: Index) -> Vector:
        """Fewer than ``depth`` elements as a 32-bit word: BF16 one and zero; INT8 the last again in place of others."""
        bits = 8 * self.operand_bytes
        word = T.Cast("int32", source[offset])
        for d in range(1, self.depth - 1):
            at = min(present - 1, d) if isinstance(present, int) else T.min(present - 1, d)
            further = T.Cast("int32", source[offset + at])
            word = T.bitwise_or(word, T.shift_left(further, tirx.const(d * bits, "int32")))
        return word

    def weights(self, packed: tirx.Buffer, offset: Index) -> Vector:
        """One packed vector of the right side."""
        vector = load(packed, offset, self.panel)
        return T.reinterpret("int32x16", vector) if self.precision is Precision.BF16 else vector

    def multiply_add(self, acc: Vector, left: Vector, right: Vector) -> Vector:
        """``acc + left · right``: vpdpbusd, vdpbf16ps or a fused multiply-add."""
        if self.precision is Precision.INT8:
            return T.call_llvm_pure_intrin("int32x16", "llvm.x86.avx512.vpdpbusd.512", acc, left, right)
        if self.precision is Precision.BF16:
            return T.call_pure_extern("float32x16", "narrowcast_dot_bf16", acc, left, right)
        return fma(left, right, acc)

    @contextmanager
    def helpers(self) -> Iterator[None]:
        """The scope inside which ``multiply_add`` may be used."""
        if self.precision is not Precision.BF16:
            yield
            return
        with T.attr(0, "pragma_import_llvm", _DOT_BF16):
            yield


def arithmetic(precision: Precision, capabilities: Capabilities) -> Arithmetic:
    """The multiply-add of a precision on a target; TargetError where the target has none."""
    if precision not in capabilities.precisions:
        raise TargetError(f"the target has no {precision} multiply-add",
                          found=", ".join(sorted(capabilities.features)),
                          expected={"int8": "avx512_vnni", "bf16": "avx512_bf16"}.get(str(precision)))
    if precision is Precision.INT8:
        return Arithmetic(precision, 16, 4, "uint8", "int8", "int32")
    if precision is Precision.BF16:
        return Arithmetic(precision, 16, 2, "uint16", "uint16", "float32")
    return Arithmetic(precision, capabilities.vector_bits // 32, 1, "float32", "float32", "float32")


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
    return 64 // {"uint8": 1, "int8": 1, "uint16": 2, "float32": 4, "int32": 4}[dtype]


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
