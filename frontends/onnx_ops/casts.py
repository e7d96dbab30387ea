"""Conversions between element types.

The normal form holds floats as float32 (float64 inputs of the model apart, see ``onnx_widths``) and integers of 2 or 4
bits in bytes. Casts to float16, bfloat16 and float64 are left out, so that a model in half precision is computed in
full; casts to the 4- and 8-bit floats and to packed integers round as ONNX defines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import helper
from tvm import relax

from ...ir import Expr, dtype_of
from ...operators import custom
from .node import OnnxNode, Results, Value, normal_dtype, operator


@dataclass(frozen=True)
class SmallFloat:
    """A float format of at most 8 bits with a sign.

    mantissa : bits after the binary point.
    exponent : the smallest exponent of a normal number.
    largest : the largest finite value.
    beyond : what a larger one becomes where a cast does not saturate.
    nan : what becomes of NaN.
    signed_zero : whether -0 exists.
    """

    mantissa: int
    exponent: int
    largest: float
    beyond: float
    nan: float = np.nan
    signed_zero: bool = True


SMALL_FLOATS = {
    "float8_e4m3fn": SmallFloat(3, -6, 448.0, np.nan),
    "float8_e4m3fnuz": SmallFloat(3, -7, 240.0, np.nan, signed_zero=False),
    "float8_e5m2": SmallFloat(2, -14, 57344.0, np.inf),
    "float8_e5m2fnuz": SmallFloat(2, -15, 57344.0, np.nan, signed_zero=False),
    "float4_e2m1fn": SmallFloat(1, 0, 6.0, 6.0, nan=0.0),
}
_PACKED_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
_MAGNITUDE, _EXPONENT, _FRACTION = 0x7FFFFFFF, 0x7F800000, 0x007FFFFF


@operator("Cast")
def cast(node: OnnxNode) -> Results:
    try:
        dtype = helper.tensor_dtype_to_np_dtype(node.attribute("to", 0))
    except (KeyError, TypeError) as error:
        raise node.fault("the element type is unknown", found=node.attribute("to")) from error
    return convert(node, node.value(0), str(dtype))


@operator("CastLike")
def cast_like(node: OnnxNode) -> Results:
    return convert(node, node.value(0), node.declared_dtype(1))


@operator("BitCast")
def bit_cast(node: OnnxNode) -> Results:
    """Between types that the normal form has as they are; others lost their bits when the model was imported."""
    source, target = node.declared_dtype(0), str(helper.tensor_dtype_to_np_dtype(node.attribute("to", 0)))
    if source != node.dtype(0) or target not in (normal_dtype(target), "float64"):
        raise node.unsupported(f"from {source} to {target}")
    if source == target:
        return node.value(0)
    if np.dtype(source).itemsize != np.dtype(target).itemsize:
        raise node.fault("the element types differ in width", found=f"{source}, {target}")
    if "bool" in (source, target):
        return convert(node, node.value(0), target)
    return node.emit(custom.bitcast(node.expr(0), target))


def convert(node: OnnxNode, value: Value, dtype: object) -> Value:
    """``value`` in elements of ``dtype`` (by NumPy's name) as they are in normal form; itself where nothing changes."""
    name, wanted = str(dtype), "float64" if node.wide and str(dtype) == "float64" else normal_dtype(dtype)
    if wanted is None:
        raise node.unsupported(f"to elements of type {dtype}")
    x = node.constant(value)
    if name in _PACKED_BITS:
        return _packed(node, x, name)
    if name in SMALL_FLOATS or name == "float8_e8m0fnu":
        x = x if dtype_of(x) == wanted else node.emit(relax.op.astype(x, wanted), "real")
        if name in SMALL_FLOATS:
            return small_float(node, x, SMALL_FLOATS[name], saturate=bool(node.attribute("saturate", 1)))
        return _power_of_two(node, x, str(node.attribute("round_mode", "up")),
                             saturate=bool(node.attribute("saturate", 1)))
    if dtype_of(x) == wanted:
        return value
    if wanted == "bool":
        return node.emit(relax.op.not_equal(x, node.constant(np.zeros((), dtype_of(x)))))
    return node.emit(relax.op.astype(x, wanted))


def _packed(node: OnnxNode, x: Expr, name: str) -> Value:
    """The lowest bits of an integer, as ONNX casts what is out of range."""
    bits, wide = _PACKED_BITS[name], "int32"
    x = x if dtype_of(x) == wide else node.emit(relax.op.astype(x, wide), "integer")
    offset = 1 << (bits - 1) if name.startswith("int") else 0
    if offset:
        x = node.emit(relax.op.add(x, node.constant(np.int32(offset))), "integer")
    x = node.emit(relax.op.bitwise_and(x, node.constant(np.int32((1 << bits) - 1))), "integer")
    if offset:
        x = node.emit(relax.op.subtract(x, node.constant(np.int32(offset))), "integer")
    return node.emit(relax.op.astype(x, normal_dtype(name)))


def small_float(node: OnnxNode, x: Expr, form: SmallFloat, *, saturate: bool) -> relax.Var:
    """float32 values rounded half to even to those of a small format.

    The distance of its values around x is a power of two that x's exponent gives; x divided by it is rounded to an
    integer. All of these steps are exact.
    """
    def number(value: float) -> Expr:
        return node.constant(np.float32(value))

    bounded = node.emit(relax.op.clip(x, -2 * form.largest, 2 * form.largest), "bounded")
    bits = node.emit(custom.bitcast(bounded, "int32"), "exponent")
    bits = node.emit(relax.op.bitwise_and(bits, node.constant(np.int32(_EXPONENT))), "exponent")
    power = node.emit(relax.op.maximum(node.emit(custom.bitcast(bits, "float32"), "exponent"),
                                       number(2.0 ** form.exponent)), "exponent")
    step = node.emit(relax.op.multiply(power, number(2.0 ** -form.mantissa)), "step")
    steps = node.emit(relax.op.round(node.emit(relax.op.divide(bounded, step), "steps")), "steps")
    y = node.emit(relax.op.multiply(steps, step), "rounded")
    if saturate or form.beyond == form.largest:
        y = node.emit(relax.op.clip(y, -form.largest, form.largest), "rounded")
    else:
        for outside, value in ((relax.op.greater(y, number(form.largest)), form.beyond),
                               (relax.op.less(y, number(-form.largest)), -form.beyond)):
            y = node.emit(relax.op.where(node.emit(outside, "outside"), number(value), y), "rounded")
    if not form.signed_zero:
        y = node.emit(relax.op.where(node.emit(relax.op.equal(y, number(0)), "zero"), number(0), y), "rounded")
    return node.emit(relax.op.where(node.emit(relax.op.isnan(x), "nan"), number(form.nan), y))


def _power_of_two(node: OnnxNode, x: Expr, mode: str, *, saturate: bool) -> relax.Var:
    """float32 values rounded to powers of two, which is what float8e8m0 holds; the sign is dropped.

    The exponents 0…254 (biased) stand for 2^-127…2^127, 255 for NaN, which is what infinities become.
    """
    if mode not in ("up", "down", "nearest"):
        raise node.fault("the rounding mode is unknown", found=mode, expected="up, down or nearest")

    def number(value: int) -> Expr:
        return node.constant(np.int32(value))

    bits = node.emit(relax.op.bitwise_and(node.emit(custom.bitcast(x, "int32"), "bits"), number(_MAGNITUDE)), "bits")
    exponent = node.emit(relax.op.right_shift(bits, number(23)), "exponent")
    is_special = node.emit(relax.op.equal(exponent, number(255)), "special")
    if mode != "down":
        fraction = node.emit(relax.op.bitwise_and(bits, number(_FRACTION)), "fraction")
        # Half a step goes up but where the exponent is 0, as the definition has it.
        limit = number(0) if mode == "up" else node.emit(relax.op.where(
            node.emit(relax.op.equal(exponent, number(0)), "smallest"), number(1 << 22), number((1 << 22) - 1)), "half")
        up = node.emit(relax.op.astype(node.emit(relax.op.greater(fraction, limit), "up"), "int32"), "up")
        exponent = node.emit(relax.op.add(exponent, up), "exponent")
        if saturate:
            exponent = node.emit(relax.op.minimum(exponent, number(254)), "exponent")
    smallest = node.constant(np.float32(2.0 ** -127))
    power = node.emit(custom.bitcast(node.emit(relax.op.left_shift(exponent, number(23)), "power"), "float32"), "power")
    power = node.emit(relax.op.where(node.emit(relax.op.equal(exponent, number(0)), "smallest"), smallest, power),
                      "power")
    is_nan = node.emit(relax.op.logical_or(is_special, node.emit(relax.op.equal(exponent, number(255)), "over")), "nan")
    return node.emit(relax.op.where(is_nan, node.constant(np.float32(np.nan)), power))
