"""Inverse circular and hyperbolic functions on float32 vectors of any width, as TIR, by the means of ``vector_math``.

Largest errors over the whole range, against float64 (``tests/backends/cpu/test_vector_math.py``):

===== =====
asin  2 ulp
acos  2 ulp
atan  2 ulp
asinh 3 ulp
acosh 2 ulp
atanh 2 ulp
===== =====

NaN gives NaN, and so do arguments outside of the domain; infinities and zeros give the limits, and odd functions keep
the sign of zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.script.ir_builder import tirx as T

from .vector_math import Vector, bound, fma, intrinsic, lanes_of, log, polynomial, splat, sqrt

# pi / 2 as a sum of two float32, the first one rounded
_HALF_PI, _HALF_PI_LOW = 1.5707963705062866, -4.371138828673793e-08
_ASIN = (0.16666659712791443, 0.07500515133142471, 0.04451543092727661, 0.03181745857000351, 0.01440940611064434,
         0.03754977136850357)
_ATAN = (-0.33333295583724976, 0.19998453557491302, -0.1426330804824829, 0.10947579145431519, -0.08390610665082932,
         0.05774618685245514, -0.030974017456173897, 0.01080822478979826, -0.0017704167403280735)
_ASINH = (-0.16666659712791443, 0.07499703764915466, -0.04459911212325096, 0.03005971759557724, -0.02098860591650009,
          0.013576867990195751, -0.007012176793068647, 0.002393532544374466, -0.0003870772197842598)
# acosh(1 + t) / sqrt(2 t) = 1 + t p(t) on 0…1
_ACOSH = (-0.08333330601453781, 0.018749283626675606, -0.005573912523686886, 0.0018708243733271956,
          -0.0006315596983768046, 0.0001754016848281026, -2.6872266971622594e-05)
_ATANH = (0.33333298563957214, 0.20002582669258118, 0.14221788942813873, 0.11830472946166992, 0.05113934352993965,
          0.17696137726306915)


def _magnitude(x: Vector) -> Vector:
    return bound(intrinsic("llvm.fabs", x))


def _odd(x: Vector, square: Vector, coefficients: Sequence[float]) -> Vector:
    """``x + x³ (c[0] + c[1] x² + …)``."""
    return bound(fma(x * square, polynomial(square, coefficients), x))


def _asin_parts(magnitude: Vector) -> tuple[Vector, Vector]:
    """``(a, is_small)`` with ``asin = a`` up to 0.5 and ``pi / 2 - 2 a`` above."""
    lanes = lanes_of(magnitude)
    half = splat(0.5, lanes)
    is_small = magnitude <= half
    square = bound(T.Select(is_small, magnitude * magnitude, (splat(1.0, lanes) - magnitude) * half))
    return _odd(bound(T.Select(is_small, magnitude, sqrt(square))), square, _ASIN), is_small


def asin(x: Vector) -> Vector:
    """The arc sine; NaN for |x| > 1."""
    lanes = lanes_of(x)
    x = bound(x)
    a, is_small = _asin_parts(_magnitude(x))
    large = fma(a, splat(-2.0, lanes), splat(_HALF_PI, lanes)) + splat(_HALF_PI_LOW, lanes)
    return intrinsic("llvm.copysign", T.Select(is_small, a, large), x)


def acos(x: Vector) -> Vector:
    """The arc cosine; NaN for |x| > 1."""
    lanes = lanes_of(x)
    x = bound(x)
    a, is_small = _asin_parts(_magnitude(x))
    high, low = splat(_HALF_PI, lanes), splat(_HALF_PI_LOW, lanes)
    twice = bound(a + a)
    below = splat(2.0 * _HALF_PI, lanes) - (twice - splat(2.0 * _HALF_PI_LOW, lanes))
    large = T.Select(x < splat(0.0, lanes), below, twice)
    return T.Select(is_small, high - (intrinsic("llvm.copysign", a, x) - low), large)


def atan(x: Vector) -> Vector:
    """The arc tangent: a polynomial up to 1, above it that of the reciprocal."""
    lanes = lanes_of(x)
    x = bound(x)
    magnitude, one = _magnitude(x), splat(1.0, lanes)
    is_large = one < magnitude
    inner = bound(T.Select(is_large, one / magnitude, magnitude))
    a = _odd(inner, bound(inner * inner), _ATAN)
    large = splat(_HALF_PI, lanes) - (a - splat(_HALF_PI_LOW, lanes))
    return intrinsic("llvm.copysign", T.Select(is_large, large, a), x)


def _log_of_root(x: Vector, one: float) -> Vector:
    """``log(x + sqrt(x² + one))`` for ``x`` of at least 1, also where the square is infinite."""
    lanes = lanes_of(x)
    is_huge = bound(splat(2.0 ** 60, lanes) < x)
    doubled = bound(T.Select(is_huge, x, x + sqrt(fma(x, x, splat(one, lanes)))))
    return log(doubled) + T.Select(is_huge, splat(math.log(2.0), lanes), splat(0.0, lanes))


def asinh(x: Vector) -> Vector:
    """The inverse hyperbolic sine: a polynomial up to 1, above it ``log(x + sqrt(x² + 1))``."""
    x = bound(x)
    magnitude = _magnitude(x)
    small, large = _odd(magnitude, bound(x * x), _ASINH), _log_of_root(magnitude, 1.0)
    return intrinsic("llvm.copysign", T.Select(magnitude < splat(1.0, lanes_of(x)), small, large), x)


def acosh(x: Vector) -> Vector:
    """The inverse hyperbolic cosine: ``sqrt(2 (x - 1))`` times a polynomial up to 2, above it
    ``log(x + sqrt(x² - 1))``; NaN below 1."""
    lanes = lanes_of(x)
    x = bound(x)
    t = bound(x - splat(1.0, lanes))
    root = bound(sqrt(t + t))
    small = fma(root * t, polynomial(t, _ACOSH), root)
    return T.Select(x < splat(2.0, lanes), small, _log_of_root(x, -1.0))


def atanh(x: Vector) -> Vector:
    """The inverse hyperbolic tangent: a polynomial up to 0.5, above it ``log((1 + x) / (1 - x)) / 2``; infinite at
    1 and -1, NaN outside."""
    lanes = lanes_of(x)
    x = bound(x)
    magnitude, one, half = _magnitude(x), splat(1.0, lanes), splat(0.5, lanes)
    small = _odd(magnitude, bound(x * x), _ATANH)
    large = log((one + magnitude) / (one - magnitude)) * half
    return intrinsic("llvm.copysign", T.Select(magnitude < half, small, large), x)
