"""Elementary functions on float32 vectors of any width, as TIR: no calls into a mathematics library.

Every function takes and returns an expression of type ``float32xL`` (or ``float32``) and may bind intermediate
values, so it must be called inside an active ``tvm.script.ir_builder``. Method: range reduction as in Cody and Waite
(Software Manual for the Elementary Functions, 1980), then polynomials fitted by least squares on Chebyshev nodes and
rounded to float32. Largest errors over the whole range, against float64 (``tests/backends/cpu/test_vector_math.py``):

=========== =======================================================================
exp         2 ulp (results below the smallest normal number: 1e-45 absolute)
log         2 ulp
tanh        3 ulp
sinh, cosh  3 ulp
sigmoid     3 ulp (results below the smallest normal number may be 0)
erf         2e-7 absolute, 4 ulp below 0.6
sin, cos    2 ulp for |x| <= 1e12
tan         3 ulp for |x| <= 1e12
softplus    4 ulp
=========== =======================================================================

NaN gives NaN; infinities and zeros give the limits, and odd functions keep the sign of zero. The inverse functions are
in ``vector_math_inverse.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

Vector: TypeAlias = tvm.ir.Expr
Item = TypeVar("Item")

_SQRT2 = math.sqrt(2.0)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_ROUNDING = 12582912.0  # 1.5 * 2^23: adding it leaves a small integer in the low bits of the sum
_ROUNDING_BITS = 0x4B400000
_EXP = (0.49999988079071045, 0.166665181517601, 0.041669413447380066, 0.008368904702365398, 0.0013757667038589716)
_LOG = (0.3333331048488617, -0.25, 0.2000219225883484, -0.16668492555618286, 0.14218463003635406,
        -0.12396730482578278, 0.11887883394956589, -0.11726712435483932, 0.06807146221399307)
_TANH = (-0.3333328068256378, 0.13331428170204163, -0.053738780319690704, 0.020636437460780144,
         -0.005702275317162275)
_SINH = (0.1666666716337204, 0.008333316072821617, 0.00019841419998556376, 2.7915382361243246e-06)
_ERF_SMALL = (1.128379225730896, -0.3761262893676758, 0.11283554136753082, -0.026845235377550125,
              0.005139962304383516, -0.0006964133935980499)
# -log(erfc(x)) / x on 0…4
_ERFC = (1.128380298614502, 0.6365963816642761, 0.10292641818523407, -0.01959955506026745, 0.0005554236122407019,
         0.0010207676089888019, -0.00030514056561514735, 3.098953311564401e-05)
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.00019839305605273694, 2.7180544748262037e-06)
_TAN = (0.3333335220813751, 0.1333259642124176, 0.054066382348537445, 0.021252548322081566, 0.010905751027166843,
        7.436026862706058e-06, 0.004414241295307875)
# pi / 2 as a sum of two float64, the first one rounded
_HALF_PI, _HALF_PI_LOW = math.pi / 2.0, 6.123233995736766e-17
_COS = (0.0416666679084301, -0.0013888883404433727, 2.479947761457879e-05, -2.720705083447683e-07)


def lanes_of(x: Vector) -> int:
    """How many elements a vector expression has; 1 for a scalar."""
    return int(tvm.runtime.DataType(str(x.ty.dtype)).lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """``"float32x16"`` for float32 and 16; ``"float32"`` for 1."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def splat(value: float | Vector, lanes: int, dtype: str = "float32") -> Vector:
    """A vector whose elements are all ``value``."""
    scalar = tvm.tirx.const(value, dtype) if isinstance(value, (int, float)) else value
    return scalar if lanes == 1 else T.broadcast(scalar, lanes)


def joined(vectors: Sequence[Vector]) -> Vector:
    """Vectors of one length side by side as one. What is computed of it is interleaved, register by register: steps
    that wait for each other hide behind others. LLVM needs a power of two of them."""
    if len(vectors) == 1:
        return vectors[0]
    vectors = [bound(v) for v in vectors]
    return T.Shuffle(vectors, list(range(sum(map(lanes_of, vectors)))))


def apart(vector: Vector, count: int) -> list[Vector]:
    """The ``count`` vectors that a ``joined`` one holds."""
    if count == 1:
        return [vector]
    vector, lanes = bound(vector), lanes_of(vector) // count
    return [T.Shuffle([vector], list(range(number * lanes, (number + 1) * lanes))) for number in range(count)]


def runs(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    """Items in runs of a power of two, of at most ``most``, which is one."""
    first, size = 0, most
    while first < len(items):
        while size > len(items) - first:
            size //= 2
        yield items[first:first + size]
        first += size


def intrinsic(name: str, *args: Vector) -> Vector:
    """A call of the LLVM intrinsic ``name``, overloaded on the type of its arguments."""
    return T.call_llvm_pure_intrin(str(args[0].ty.dtype), name, *args)


def fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """``a * b + c``, rounded once."""
    return intrinsic("llvm.fma", a, b, c)


def sqrt(x: Vector) -> Vector:
    """The square root, correctly rounded."""
    return intrinsic("llvm.sqrt", x)


def bound(x: Vector) -> Vector:
    """``x``, computed once however often the result is used: a read of a register-sized slot on the stack.

    Not ``T.bind``: TVM's analyzer puts the value of a binding back into its uses, which multiplies an expression with
    every step of a formula. LLVM turns the slots into registers. Variables, reads and masks are returned as they are.
    """
    dtype = str(x.ty.dtype)
    if isinstance(x, (tvm.tirx.Var, tvm.ir.TensorLoad)) or dtype.startswith("bool"):
        return x
    lanes = lanes_of(x)
    slot = T.alloc_buffer((lanes,), dtype.split("x")[0])
    IRBuilder.name("value", slot)
    where = 0 if lanes == 1 else T.ramp(0, 1, lanes)
    T.buffer_store(slot, x, [where])
    return slot[where]


def larger(x: Vector, low: float | Vector) -> Vector:
    """``max(x, low)``; NaN in ``x`` stays NaN."""
    x = bound(x)
    low = splat(low, lanes_of(x)) if isinstance(low, float) else bound(low)
    return T.Select(x < low, low, x)


def smaller(x: Vector, high: float | Vector) -> Vector:
    """``min(x, high)``; NaN in ``x`` stays NaN."""
    x = bound(x)
    high = splat(high, lanes_of(x)) if isinstance(high, float) else bound(high)
    return T.Select(high < x, high, x)


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """``c[0] + c[1] x + c[2] x² + …`` by Horner's rule."""
    x, lanes = bound(x), lanes_of(x)
    result = splat(coefficients[-1], lanes)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, splat(c, lanes))
    return bound(result)


def _bits(x: Vector) -> Vector:
    return T.reinterpret(vector_type("int32", lanes_of(x)), x)


def _from_bits(x: Vector) -> Vector:
    return T.reinterpret(vector_type("float32", lanes_of(x)), x)


def _integer(x: Vector) -> Vector:
    """The int32 value of a float vector that holds integers below 2^22; unlike a cast it is defined for NaN."""
    lanes = lanes_of(x)
    return _bits(x + splat(_ROUNDING, lanes)) - splat(_ROUNDING_BITS, lanes, "int32")


def _power_of_two(n: Vector) -> Vector:
    """``2.0 ** n`` for int32 ``n`` in -126…127."""
    lanes = lanes_of(n)
    return _from_bits(T.shift_left(n + splat(127, lanes, "int32"), splat(23, lanes, "int32")))


def exp(x: Vector) -> Vector:
    """e to the power of x."""
    mantissa, exponent = _exp_parts(bound(smaller(larger(x, -104.0), 89.0)))
    return _scaled(mantissa, exponent)


def exp_of_negative(x: Vector) -> Vector:
    """e to the power of what is not above 0, in fewer steps: results below the smallest normal number are 0."""
    x, lanes = bound(x), lanes_of(x)
    power = bound(_exp_normal(larger(x, -87.0)))
    return T.Select(x < splat(-87.0, lanes), splat(0.0, lanes), power)


def _scaled(mantissa: Vector, exponent: Vector) -> Vector:
    """``mantissa * 2 ** exponent`` for exponents in -252…254, by two factors."""
    half = bound(T.shift_right(exponent, splat(1, lanes_of(exponent), "int32")))
    return mantissa * _power_of_two(half) * _power_of_two(exponent - half)


def _exp_normal(x: Vector) -> Vector:
    """e to the power of x, where the result is known to be neither subnormal nor infinite: |x| at most 87."""
    mantissa, exponent = _exp_parts(bound(x))
    return mantissa * _power_of_two(exponent)


def _exp_parts(x: Vector) -> tuple[Vector, Vector]:
    """``(m, n)`` with ``exp(x) = m * 2 ** n``."""
    lanes = lanes_of(x)
    n = bound(intrinsic("llvm.roundeven", x * splat(1.0 / math.log(2.0), lanes)))
    r = bound(fma(n, splat(-_LN2_LOW, lanes), fma(n, splat(-_LN2_HIGH, lanes), x)))
    return fma(r * r, polynomial(r, _EXP), r) + splat(1.0, lanes), bound(_integer(n))


def _log_of_sum(f: Vector, exponent: Vector) -> Vector:
    """``log(1 + f) + exponent * log 2`` for ``f`` in sqrt(1/2) - 1 … sqrt(2) - 1."""
    lanes = lanes_of(f)
    square = bound(f * f)
    tail = fma(f * square, polynomial(f, _LOG), exponent * splat(_LN2_LOW, lanes))
    tail = fma(square, splat(-0.5, lanes), tail)
    return fma(exponent, splat(_LN2_HIGH, lanes), f + tail)


def log(x: Vector) -> Vector:
    """The natural logarithm; -inf at 0, NaN below."""
    lanes = lanes_of(x)
    x = bound(x)
    tiny = bound(x < splat(2.0 ** -126, lanes))
    bits = bound(_bits(T.Select(tiny, x * splat(2.0 ** 25, lanes), x)))
    above = bits - splat(0x3F3504F3, lanes, "int32")
    exponent = bound(T.shift_right(above, splat(23, lanes, "int32")))
    f = bound(_from_bits(bits - T.shift_left(exponent, splat(23, lanes, "int32"))) - splat(1.0, lanes))
    scale = T.Select(tiny, splat(-25.0, lanes), splat(0.0, lanes))
    finite = _log_of_sum(f, bound(T.Cast(vector_type("float32", lanes), exponent) + scale))
    infinity, zero = splat(math.inf, lanes), splat(0.0, lanes)
    at_most_zero = T.Select(x < zero, splat(math.nan, lanes), splat(-math.inf, lanes))
    return T.Select(x < infinity, T.Select(zero < x, finite, at_most_zero), x)


def sigmoid(x: Vector) -> Vector:
    """``1 / (1 + exp(-x))``."""
    one = splat(1.0, lanes_of(x))
    return one / (one + exp(splat(0.0, lanes_of(x)) - x))


def tanh(x: Vector) -> Vector:
    """The hyperbolic tangent."""
    lanes = lanes_of(x)
    x = bound(x)
    magnitude = bound(intrinsic("llvm.fabs", x))
    square = bound(x * x)
    small = fma(magnitude * square, polynomial(square, _TANH), magnitude)
    one, two = splat(1.0, lanes), splat(2.0, lanes)
    large = one - two / (_exp_normal(bound(smaller(magnitude, 10.0)) * two) + one)
    return intrinsic("llvm.copysign", T.Select(magnitude < splat(0.625, lanes), small, large), x)


def _half_exp_of_magnitude(x: Vector) -> Vector:
    """``exp(|x|) / 2``, infinite only where that is."""
    lanes = lanes_of(x)
    mantissa, exponent = _exp_parts(bound(smaller(bound(intrinsic("llvm.fabs", x)), 90.0)))
    return bound(_scaled(mantissa, bound(exponent - splat(1, lanes, "int32"))))


def sinh(x: Vector) -> Vector:
    """The hyperbolic sine: a polynomial near 0, else the difference of two exponentials."""
    lanes = lanes_of(x)
    x = bound(x)
    square, half = bound(x * x), _half_exp_of_magnitude(x)
    small = fma(x * square, polynomial(square, _SINH), x)
    large = intrinsic("llvm.copysign", half - splat(0.25, lanes) / half, x)
    return T.Select(intrinsic("llvm.fabs", x) < splat(1.0, lanes), small, large)


def cosh(x: Vector) -> Vector:
    """The hyperbolic cosine."""
    half = _half_exp_of_magnitude(bound(x))
    return half + splat(0.25, lanes_of(x)) / half


def erf(x: Vector) -> Vector:
    """The error function: a polynomial near 0, else from ``erfc``."""
    lanes = lanes_of(x)
    x = bound(x)
    square = bound(x * x)
    small = x * polynomial(square, _ERF_SMALL)
    large = intrinsic("llvm.copysign", splat(1.0, lanes) - _erfc_of_magnitude(x), x)
    return T.Select(intrinsic("llvm.fabs", x) < splat(0.65, lanes), small, large)


def _erfc_of_magnitude(x: Vector) -> Vector:
    """``1 - erf(|x|)`` as ``exp(-|x| p(|x|))``; beyond 4 it stays at 1.5e-8, which no sum with 1 notices."""
    lanes = lanes_of(x)
    magnitude = bound(smaller(bound(intrinsic("llvm.fabs", x)), 4.0))
    return _exp_normal(magnitude * polynomial(magnitude, _ERFC) * splat(-1.0, lanes))


def softplus(x: Vector) -> Vector:
    """``log(1 + exp(x))``, computed as ``max(x, 0) + log(1 + exp(-|x|))``."""
    lanes = lanes_of(x)
    x = bound(x)
    zero, one = splat(0.0, lanes), splat(1.0, lanes)
    u = bound(exp(zero - intrinsic("llvm.fabs", x)))
    upper = bound(splat(_SQRT2 - 1.0, lanes) < u)
    f = bound(T.Select(upper, (u - one) * splat(0.5, lanes), u))
    return larger(x, 0.0) + _log_of_sum(f, T.Select(upper, one, zero))


def _reduced(x: Vector) -> tuple[Vector, Vector]:
    """``(r, n)`` with ``|x| = r + n * pi / 2`` and ``|r| <= pi / 4``, ``n`` an int32 modulo 4; by float64."""
    lanes = lanes_of(x)
    wide = vector_type("float64", lanes)
    magnitude = bound(T.Cast(wide, intrinsic("llvm.fabs", x)))
    turns = bound(intrinsic("llvm.roundeven", magnitude * splat(1.0 / _HALF_PI, lanes, "float64")))
    r = bound(intrinsic("llvm.fma", turns, splat(-_HALF_PI, lanes, "float64"), magnitude))
    r = intrinsic("llvm.fma", turns, splat(-_HALF_PI_LOW, lanes, "float64"), r)
    low_bits = T.reinterpret(vector_type("int64", lanes), turns + splat(2.0 ** 52 * 1.5, lanes, "float64"))
    quadrant = T.Cast(vector_type("int32", lanes), T.bitwise_and(low_bits, splat(3, lanes, "int64")))
    return bound(T.Cast(vector_type("float32", lanes), r)), bound(quadrant)


def _is_odd(n: Vector) -> Vector:
    one = splat(1, lanes_of(n), "int32")
    return T.bitwise_and(n, one) == one


def _sign_bit(x: Vector) -> Vector:
    return T.bitwise_and(_bits(x), splat(-2 ** 31, lanes_of(x), "int32"))


def _sine(x: Vector, quarter: int) -> Vector:
    """``sin(|x| + quarter * pi / 2)``."""
    lanes = lanes_of(x)
    r, quadrant = _reduced(x)
    quadrant = bound(quadrant + splat(quarter, lanes, "int32"))
    square = bound(r * r)
    sine = fma(r * square, polynomial(square, _SIN), r)
    cosine = fma(square * square, polynomial(square, _COS), fma(square, splat(-0.5, lanes), splat(1.0, lanes)))
    sign = T.shift_left(T.bitwise_and(quadrant, splat(2, lanes, "int32")), splat(30, lanes, "int32"))
    return _from_bits(T.bitwise_xor(_bits(T.Select(_is_odd(quadrant), cosine, sine)), sign))


def sin(x: Vector) -> Vector:
    """The sine of x in radians."""
    x = bound(x)
    return _from_bits(T.bitwise_xor(_bits(_sine(x, 0)), _sign_bit(x)))


def cos(x: Vector) -> Vector:
    """The cosine of x in radians."""
    return _sine(bound(x), 1)


def tan(x: Vector) -> Vector:
    """The tangent of x in radians."""
    x = bound(x)
    r, quadrant = _reduced(x)
    square = bound(r * r)
    tangent = bound(fma(r * square, polynomial(square, _TAN), r))
    tangent = T.Select(_is_odd(quadrant), splat(-1.0, lanes_of(x)) / tangent, tangent)
    return _from_bits(T.bitwise_xor(_bits(tangent), _sign_bit(x)))


def gelu(x: Vector) -> Vector:
    """``x * (1 + erf(x / sqrt 2)) / 2`` (Hendrycks and Gimpel, 2016)."""
    lanes = lanes_of(x)
    x = bound(x)
    scaled = bound(x * splat(1.0 / _SQRT2, lanes))
    error = intrinsic("llvm.copysign", splat(1.0, lanes) - _erfc_of_magnitude(scaled), x)
    half = bound(x * splat(0.5, lanes))
    return fma(half, error, half)


def gelu_tanh(x: Vector) -> Vector:
    """GELU by its tanh approximation, as ``x * sigmoid(2u)`` with ``u = sqrt(2/pi) (x + 0.044715 x³)``."""
    lanes = lanes_of(x)
    x = bound(x)
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    inner = fma(x * x, splat(0.044715 * factor, lanes), splat(factor, lanes))
    return x * sigmoid(x * inner)


def silu(x: Vector) -> Vector:
    """``x * sigmoid(x)``."""
    lanes = lanes_of(x)
    x = bound(x)
    return x / (splat(1.0, lanes) + exp(splat(0.0, lanes) - x))


def power(x: Vector, exponent: float) -> Vector:
    """``x ** exponent`` for a constant exponent: products for small integers, else as ``power_of``."""
    lanes = lanes_of(x)
    x = bound(x)
    one = splat(1.0, lanes)
    if exponent == 0.0:
        return one
    if abs(exponent) == 0.5 or (float(exponent).is_integer() and abs(exponent) <= 64):
        result = sqrt(x) if abs(exponent) == 0.5 else _integer_power(x, int(abs(exponent)))
        return result if exponent > 0 else one / result
    return power_of(x, splat(exponent, lanes))


def power_of(x: Vector, exponent: Vector) -> Vector:
    """``x ** exponent`` element by element as ``exp(exponent * log |x|)``, the special cases as in C's ``pow``: NaN for
    a negative number with an exponent that is not whole."""
    lanes = lanes_of(x)
    x, exponent = bound(x), bound(exponent)
    zero, one = splat(0.0, lanes), splat(1.0, lanes)
    base = bound(intrinsic("llvm.fabs", x))
    magnitude = bound(T.Select(base == one, one, exp(bound(exponent * log(base)))))
    halved = bound(exponent * splat(0.5, lanes))
    odd = intrinsic("llvm.floor", halved) != halved
    whole = intrinsic("llvm.floor", exponent) == exponent
    limit = T.Select(base < splat(math.inf, lanes), T.Select(zero < base, splat(math.nan, lanes), magnitude), magnitude)
    below = T.Select(whole, T.Select(odd, magnitude * splat(-1.0, lanes), magnitude), limit)
    is_below = _sign_bit(x) != splat(0, lanes, "int32")
    return T.Select(exponent == zero, one, T.Select(is_below, below, magnitude))


def _integer_power(x: Vector, n: int) -> Vector:
    if n == 1:
        return x
    half = bound(_integer_power(x, n // 2))
    return half * half * x if n % 2 else half * half
