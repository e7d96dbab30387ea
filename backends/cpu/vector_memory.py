"""Tensors in memory as float32 vectors in registers: loads that dequantize, stores that round and quantize.

Buffers are flat views (one dimension). A vector holds ``lanes`` consecutive elements, of which the first ``valid``
are real: nothing beyond them is read or written. ``valid`` may be an expression.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import tvm
from tvm.script.ir_builder import tirx as T

from ...dims import product_of
from ...precision import Storage
from .vector_math import Vector, bound, lanes_of, splat, vector_type

Index: TypeAlias = tvm.ir.Expr | int
LINE_BYTES = 64
"""Bytes of a cache's line, on all targets."""

# The conversion of a full register to bfloat16, which TVM's own types cannot express.
_HARDWARE_LANES = 16
_TO_BFLOAT16_NAME = "narrowcast_round_to_bf16"
_TO_BFLOAT16 = """
define internal <16 x i16> @narrowcast_round_to_bf16(<16 x float> %x) alwaysinline {
  %rounded = fptrunc <16 x float> %x to <16 x bfloat>
  %bits = bitcast <16 x bfloat> %rounded to <16 x i16>
  ret <16 x i16> %bits
}
"""


def flat_view(buffer: tvm.ir.Expr) -> tvm.ir.Expr:
    """A one-dimensional alias of a buffer."""
    return T.decl_buffer((product_of(buffer.shape),), str(buffer.dtype), data=buffer.data)


def import_conversions(features: frozenset[str]) -> None:
    """Make the hardware's float32 → bfloat16 conversion available in the function being built, where there is one."""
    if "avx512_bf16" in features:
        frame = T.attr(0, "pragma_import_llvm", _TO_BFLOAT16)
        frame.add_callback(partial(frame.__exit__, None, None, None))  # it ends with the enclosing frame
        frame.__enter__()


def mask_of(lanes: int, valid: Index) -> Vector:
    """Whether each lane is one of the first ``valid``."""
    return T.ramp(0, 1, lanes) < T.broadcast(valid if isinstance(valid, int) else T.Cast("int32", valid), lanes)


def _mask(lanes: int, valid: Index | None) -> Vector | None:
    if valid is None or (isinstance(valid, int) and valid >= lanes):
        return None
    return mask_of(lanes, valid)


def load(buffer: tvm.ir.Expr, index: Index, lanes: int, valid: Index | None = None) -> Vector:
    """``lanes`` raw elements of a flat buffer from ``index`` on; those from ``valid`` on (None: none) are 0."""
    if lanes == 1:
        return buffer[index]
    where = T.ramp(index, 1, lanes)
    mask = _mask(lanes, valid)
    if mask is None:
        return buffer[where]
    if isinstance(valid, int) and valid == 1:
        # LLVM 22 loads one masked narrow element into every lane instead of the first.
        dtype = str(buffer.dtype)
        return T.Select(mask, T.broadcast(buffer[index], lanes), splat(tvm.tirx.const(0, dtype), lanes))
    return T.masked_load(vector_type(str(buffer.dtype), lanes), buffer, where, mask)


def store(buffer: tvm.ir.Expr, index: Index, value: Vector, valid: Index | None = None) -> None:
    """Write the first ``valid`` elements (None: all) of a vector of the buffer's own type to ``index`` and on."""
    lanes = lanes_of(value)
    if lanes > 1 and isinstance(valid, int) and valid == 1:
        # LLVM 22 turns a truncating masked store of one element into a store of the element before truncation.
        T.buffer_store(buffer, T.Shuffle([value], [0]), [index])
        return
    mask = _mask(lanes, valid) if lanes > 1 else None
    where = T.ramp(index, 1, lanes) if lanes > 1 else index
    if mask is None:
        T.buffer_store(buffer, value, [where])
    else:
        T.evaluate(T.masked_store(buffer, value, where, mask))


def prefetch(buffer: tvm.ir.Expr, index: Index, *, level: int, write: bool = False) -> None:
    """Fetch the line of an element, which may lie beyond the buffer, into the cache of a level (1 or 2), for reading or
    for writing."""
    kind = (tvm.tirx.const(v, "int32") for v in (int(write), 4 - level, 1))
    name = T.llvm_lookup_intrinsic_id("llvm.prefetch")
    T.evaluate(T.call_llvm_intrin("void", name, T.address_of(buffer[index]), *kind))


def load_float(buffer: tvm.ir.Expr, index: Index, lanes: int, valid: Index, storage: Storage) -> Vector:
    """Elements of a tensor as float32; of a boolean tensor as a mask."""
    return decode(load(buffer, index, lanes, valid), storage)


def decode(raw: Vector, storage: Storage) -> Vector:
    """float32 from what is stored: float16 and bfloat16 are widened, uint8 becomes ``(q - zero_point) * scale``."""
    lanes = lanes_of(raw)
    if storage.dtype == "float16":
        return T.Cast(vector_type("float32", lanes), raw)
    if storage.dtype == "bfloat16":
        wide = T.Cast(vector_type("uint32", lanes), raw)
        return T.reinterpret(vector_type("float32", lanes), T.shift_left(wide, splat(16, lanes, "uint32")))
    if storage.qparams is not None:
        integer = T.Cast(vector_type("int32", lanes), raw) - splat(storage.qparams.zero_point, lanes, "int32")
        return T.Cast(vector_type("float32", lanes), integer) * splat(storage.qparams.scale, lanes)
    return raw


def store_float(buffer: tvm.ir.Expr, index: Index, value: Vector, valid: Index, storage: Storage,
                features: frozenset[str]) -> None:
    """Round or quantize a float32 vector to the storage and write its first ``valid`` elements."""
    store(buffer, index, encode(value, storage, features), valid)


def encode(value: Vector, storage: Storage, features: frozenset[str]) -> Vector:
    """What is stored for a float32 vector (see ``precision.QParams`` and docs/design.md)."""
    if storage.dtype == "float16":
        return T.Cast(vector_type("float16", lanes_of(value)), value)
    if storage.dtype == "bfloat16":
        return _to_bfloat16(value, features)
    if storage.qparams is not None:
        return _quantize(value, storage)
    return value


def _quantize(value: Vector, storage: Storage) -> Vector:
    """uint8 from float32 in four or five instructions."""
    assert storage.qparams is not None
    return to_levels(value * splat(storage.qparams.inverse_scale, lanes_of(value)), storage.qparams.zero_point)


def to_levels(scaled: Vector, zero_point: int) -> Vector:
    """uint8 from float32 steps: raise to the lowest value, convert (rounds to nearest even), add the zero point, narrow
    with unsigned saturation. NaN becomes the lowest value; what is too large for int32 converts to 2^31 and
    saturates."""
    scaled, lanes = bound(scaled), lanes_of(scaled)
    lowest = splat(float(-zero_point), lanes)
    integer = T.call_llvm_pure_intrin(vector_type("int32", lanes), "llvm.lrint",
                                      T.Select(lowest < scaled, scaled, lowest))
    if zero_point:
        integer = integer + splat(zero_point, lanes, "int32")
    unsigned = T.reinterpret(vector_type("uint32", lanes), integer)
    return T.Cast(vector_type("uint8", lanes), T.min(unsigned, splat(tvm.tirx.const(255, "uint32"), lanes)))


def _to_bfloat16(value: Vector, features: frozenset[str]) -> Vector:
    lanes = lanes_of(value)
    if "avx512_bf16" in features and lanes == _HARDWARE_LANES:
        return T.call_pure_extern(vector_type("uint16", lanes), _TO_BFLOAT16_NAME, value)
    bits = bound(T.reinterpret(vector_type("uint32", lanes), value))
    odd = T.bitwise_and(T.shift_right(bits, splat(16, lanes, "uint32")), splat(1, lanes, "uint32"))
    rounded = bits + odd + splat(0x7FFF, lanes, "uint32")
    magnitude = T.bitwise_and(bits, splat(0x7FFFFFFF, lanes, "uint32"))
    quiet = T.bitwise_or(bits, splat(0x400000, lanes, "uint32"))
    chosen = T.Select(splat(0x7F800000, lanes, "uint32") < magnitude, quiet, rounded)
    return T.Cast(vector_type("uint16", lanes), T.shift_right(chosen, splat(16, lanes, "uint32")))

