"""Vector mathematics against float64 over the whole range of float32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import tvm
from scipy import special
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from narrowcast.backends.cpu import vector_math as vm
from narrowcast.backends.cpu import vector_math_inverse as inverse
from narrowcast.backends.cpu.build import compile_functions
from narrowcast.backends.target import Target

from .groups import NATIVE

EXPONENTS = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -2.5, math.inf, -math.inf, math.nan)
FUNCTIONS: dict[str, Callable[[vm.Vector], vm.Vector]] = {
    "exp": vm.exp, "exp_of_negative": vm.exp_of_negative, "log": vm.log, "tanh": vm.tanh,
    "sigmoid": vm.sigmoid, "erf": vm.erf, "sin": vm.sin, "cos": vm.cos,
    "softplus": vm.softplus, "gelu": vm.gelu, "gelu_tanh": vm.gelu_tanh, "silu": vm.silu, "sqrt": vm.sqrt,
    "cube": lambda x: vm.power(x, 3.0), "root": lambda x: vm.power(x, -0.5), "general": lambda x: vm.power(x, 1.7),
    "self": lambda x: vm.power_of(x, x), "hundredth": lambda x: vm.power(x, 101.0),
    **{f"power {e}": partial(lambda x, e: vm.power_of(x, vm.splat(e, vm.lanes_of(x))), e=e) for e in EXPONENTS},
    "tan": vm.tan, "sinh": vm.sinh, "cosh": vm.cosh, "asin": inverse.asin, "acos": inverse.acos, "atan": inverse.atan,
    "asinh": inverse.asinh, "acosh": inverse.acosh, "atanh": inverse.atanh,
}
COUNT = 4096
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 88.72, 88.73, -87.4, -103.0,
                    -104.0, 1.0, -1.0], np.float32)


def _function(name: str, lanes: int) -> tvm.tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func():
        T.func_name(name)
        x, y = (T.arg(n, T.buffer((COUNT,), "float32")) for n in "xy")
        with T.serial(0, COUNT // lanes) as i:
            where = T.ramp(i * lanes, 1, lanes) if lanes > 1 else i
            T.buffer_store(y, FUNCTIONS[name](x[where]), [where])
    return builder.get()


@cache
def _module(lanes: int) -> tvm.runtime.Module:
    target = Target("haswell", 1) if lanes == 8 else NATIVE
    return compile_functions({name: _function(name, lanes) for name in FUNCTIONS}, target.tvm_target())


def evaluate(name: str, x: np.ndarray, lanes: int) -> np.ndarray:
    padded = np.resize(x.astype(np.float32), COUNT)
    y = tvm.runtime.empty((COUNT,), "float32")
    _module(lanes)[name](tvm.runtime.tensor(padded), y)
    return y.numpy()[:x.size]


WIDTHS = [1, pytest.param(8, marks=pytest.mark.isa("avx2")), pytest.param(16, marks=pytest.mark.isa("avx512"))]


def points(low: float, high: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(low, high, COUNT).astype(np.float32)


def ulps(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest error in units of float32's last place at the expected value."""
    return float(np.max(np.abs(actual.astype(np.float64) - expected) / np.spacing(np.abs(expected).astype(np.float32))))


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), [
    ("exp", np.exp, -87.3, 88.7, 2), ("exp", np.exp, -1e-3, 1e-3, 2),
    ("exp_of_negative", np.exp, -87, 0, 2), ("exp_of_negative", np.exp, -1e-3, 0, 2),
    ("log", np.log, 1e-3, 1e3, 2), ("log", np.log, 0.5, 2.0, 2),
    ("tanh", np.tanh, -10, 10, 3), ("tanh", np.tanh, -1e-2, 1e-2, 3),
    ("sigmoid", special.expit, -87, 20, 3),
    ("erf", special.erf, -0.6, 0.6, 4),
    ("softplus", lambda x: np.logaddexp(0.0, x), -80, 20, 4),
    ("silu", lambda x: x * special.expit(x), -80, 80, 4),
    ("sqrt", np.sqrt, 0, 1e6, 0.5),
    *((name, reference, -high, high, bound) for name, reference, bound in (("sin", np.sin, 2), ("cos", np.cos, 2),
                                                                          ("tan", np.tan, 3))
      for high in (1e-3, 2, 30, 1e6, 1e12)),
    ("sinh", np.sinh, -2, 2, 3), ("sinh", np.sinh, -89.4, 89.4, 3), ("cosh", np.cosh, -2, 2, 3),
    ("cosh", np.cosh, -89.4, 89.4, 3),
    ("asin", np.arcsin, -1, 1, 2), ("asin", np.arcsin, -1e-3, 1e-3, 2), ("acos", np.arccos, -1, 1, 2),
    ("acos", np.arccos, 0.999, 1, 2), ("acos", np.arccos, -1e-3, 1e-3, 2),
    ("atan", np.arctan, -4, 4, 2), ("atan", np.arctan, -1e6, 1e6, 2), ("atan", np.arctan, -1e-3, 1e-3, 2),
    ("asinh", np.arcsinh, -4, 4, 3), ("asinh", np.arcsinh, -1e30, 1e30, 3), ("asinh", np.arcsinh, -1e-3, 1e-3, 3),
    ("acosh", np.arccosh, 1, 4, 2), ("acosh", np.arccosh, 1, 1e30, 2), ("acosh", np.arccosh, 1, 1.001, 2),
    ("atanh", np.arctanh, -0.9999, 0.9999, 2), ("atanh", np.arctanh, -1e-3, 1e-3, 2),
    ("cube", lambda x: x ** 3, -50, 50, 2), ("root", lambda x: x ** -0.5, 1e-3, 1e3, 2),
])
def test_relative_error(lanes: int, name: str, reference: Callable[[np.ndarray], np.ndarray], low: float, high: float,
                        bound: float) -> None:
    x = points(low, high)
    assert ulps(evaluate(name, x, lanes), reference(x.astype(np.float64))) <= bound


@pytest.mark.parametrize("lanes", WIDTHS)
def test_negative_powers_that_are_too_small_are_zero(lanes: int) -> None:
    x = np.array([-87.5, -100.0, -3.4e38, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(evaluate("exp_of_negative", x, lanes), [0, 0, 0, 0, np.nan, 1, 1])


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), [
    ("erf", special.erf, -6, 6, 2e-7),
    # |x| / 2 times the error of erf or tanh, plus roundings of the result
    ("gelu", lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))), -8, 8, 8 * 2.5e-7),
    ("gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))), -8, 8, 8 * 2.5e-7),
    # exp multiplies the rounding of its argument, at most 1.7 * log(30) = 5.8
    ("general", lambda x: x ** 1.7, 1e-3, 30, 30 ** 1.7 * 12 * 1.2e-7),
])
def test_absolute_error(lanes: int, name: str, reference: Callable[[np.ndarray], np.ndarray], low: float, high: float,
                        bound: float) -> None:
    x = points(low, high)
    error = np.abs(evaluate(name, x, lanes).astype(np.float64) - reference(x.astype(np.float64)))
    assert error.max() <= bound


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize(("name", "reference"), [
    ("exp", np.exp), ("log", np.log), ("tanh", np.tanh), ("sigmoid", special.expit), ("erf", special.erf),
    ("softplus", lambda x: np.logaddexp(0.0, x)), ("sqrt", np.sqrt), ("sinh", np.sinh), ("cosh", np.cosh),
    ("asin", np.arcsin), ("acos", np.arccos), ("atan", np.arctan), ("asinh", np.arcsinh), ("acosh", np.arccosh),
    ("atanh", np.arctanh),
])
def test_limits(lanes: int, name: str, reference: Callable[[np.ndarray], np.ndarray]) -> None:
    """NaN, infinities, zeros, subnormal and huge numbers."""
    with np.errstate(all="ignore"):
        expected = reference(SPECIAL.astype(np.float64)).astype(np.float32)
    actual = evaluate(name, SPECIAL, lanes)
    # results below the smallest normal number may be off by as much
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1.2e-38)


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("name", ["sin", "tan", "sinh", "tanh", "asin", "atan", "asinh", "atanh", "erf"])
def test_odd_functions_keep_the_sign_of_zero(lanes: int, name: str) -> None:
    actual = evaluate(name, np.array([0.0, -0.0, 1e-40, -1e-40], np.float32), lanes)
    assert list(np.signbit(actual)) == [False, True, False, True] and not actual[:2].any()


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_circular_functions_of_infinity_are_undefined(lanes: int, name: str) -> None:
    assert np.isnan(evaluate(name, np.array([np.inf, -np.inf, np.nan], np.float32), lanes)).all()


def test_power_of_tensors_follows_the_sign_rules() -> None:
    x = np.array([-3.0, -2.0, -0.5, 0.0, 1.0, 2.5], np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.power(x.astype(np.float64), x)
    np.testing.assert_allclose(evaluate("self", x, 1), expected, rtol=1e-6)
    x = np.array([-1.5, -1.01, -1.0, 1.0, 1.5], np.float32)
    # the exponent multiplies a relative error of the logarithm
    np.testing.assert_allclose(evaluate("hundredth", x, 1), x.astype(np.float64) ** 101, rtol=1e-5)


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_power_of_special_values(lanes: int, exponent: float) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), np.full(x.size, exponent))
    actual = evaluate(f"power {exponent}", x, lanes)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("lanes", [8, pytest.param(16, marks=pytest.mark.isa("avx512"))])
def test_no_calls_of_a_mathematics_library(lanes: int) -> None:
    assembly = _module(lanes).inspect_source("asm")
    called = set(re.findall(r"call\w*\s+\*?(\w+)", assembly))
    assert not called & {"expf", "exp2f", "logf", "tanhf", "erff", "sinf", "cosf", "powf", "fmaf", "roundevenf",
                         "tanf", "sinhf", "coshf", "asinf", "acosf", "atanf", "asinhf", "acoshf", "atanhf"}
    assert ("zmm" if lanes == 16 else "ymm") in assembly
