"""PyTorch's arithmetic on extents (sympy expressions with functions of its own) as expressions of the normal form."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import sympy
from tvm import relax, tirx

from ...dims import Dim, as_dim, simplified
from ...errors import UnsupportedOperatorError
from ...ir import Expr, GraphBuilder, constant
from ..extents import extent

# A number as a quotient: numerator and (positive) denominator.
Quotient = tuple[Dim, Dim]
# What a symbol stands for, as a quotient without remainder.
Variable = Callable[[sympy.Symbol], tuple[Dim, int]]


def whole(expr: sympy.Expr, variable: Variable) -> Dim:
    """An integer expression over extents. UnsupportedOperatorError for a function that has no form here."""
    top, bottom = _quotient(expr, variable)
    return simplified(_floor(top, bottom))


def _floor(top: Dim, bottom: Dim) -> Dim:
    top, bottom = as_dim(top), as_dim(bottom)
    if isinstance(bottom, int) and bottom == 1:
        return top
    if isinstance(top, int) and isinstance(bottom, int):
        return top // bottom
    return tirx.floordiv(_expr(top), _expr(bottom))


def _expr(value: Dim) -> Expr:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _quotient(expr: sympy.Expr, variable: Variable) -> Quotient:
    if isinstance(expr, sympy.Symbol):
        return _floor(*variable(expr)), 1
    if expr.is_Rational:
        return int(expr.p), int(expr.q)
    if expr.is_Float:
        return _decimal(expr)
    if expr.is_Mul:
        return _multiply(_factors(expr, variable))
    handler = _FUNCTIONS.get(type(expr).__name__)
    if handler is None:
        raise UnsupportedOperatorError("this arithmetic on dynamic extents has no translation", found=str(expr),
                                       hint="fix the dimension with dims=, or pass sizes as numbers")
    return handler([_quotient(a, variable) for a in expr.args])


def _factors(product: sympy.Mul, variable: Variable) -> list[Quotient]:
    """The factors of a product, divisors of symbols cancelled against its integer: ``4 · (s / 4)`` is ``s``."""
    number, rest = product.as_coeff_Mul()
    whole_number = int(number) if number.is_Integer else 1
    factors = [] if number.is_Integer else [_quotient(number, variable)]
    for factor in sympy.Mul.make_args(rest):
        if isinstance(factor, sympy.Symbol) and whole_number % variable(factor)[1] == 0:
            top, bottom = variable(factor)
            whole_number //= bottom
            factors.append((top, 1))
        else:
            factors.append(_quotient(factor, variable))
    return [*factors, (whole_number, 1)]


def _decimal(expr: sympy.Float) -> Quotient:
    """A floating point factor (0.5, 0.7) as the fraction that it was written for."""
    value = Fraction(float(expr)).limit_denominator(10_000)
    if float(value) != float(expr):
        raise UnsupportedOperatorError("an extent is multiplied by a number that is no simple fraction",
                                       found=str(expr), hint="fix the dimension with dims=")
    return value.numerator, value.denominator


def _add(args: list[Quotient]) -> Quotient:
    def add(a: Quotient, b: Quotient) -> Quotient:
        if isinstance(a[1], int) and isinstance(b[1], int):
            common = math.lcm(a[1], b[1])
            return a[0] * (common // a[1]) + b[0] * (common // b[1]), common
        return a[0] * b[1] + b[0] * a[1], a[1] * b[1]
    return functools.reduce(add, args)


def _multiply(args: list[Quotient]) -> Quotient:
    tops, bottoms = zip(*args, strict=True)
    top, bottom = (math.prod(p for p in parts if isinstance(p, int)) for parts in (tops, bottoms))
    common = math.gcd(top, bottom)
    return _product(top // common, tops), _product(bottom // common, bottoms)


def _product(number: int, factors: tuple[Dim, ...]) -> Dim:
    symbolic = [f for f in factors if not isinstance(f, int)]
    return functools.reduce(operator.mul, symbolic if number == 1 and symbolic else [*symbolic, number])


def _divide(args: list[Quotient]) -> Quotient:
    above, (top, bottom) = args
    return _multiply([above, (bottom, top)])


def _power(args: list[Quotient]) -> Quotient:
    (top, bottom), (exponent, _) = args
    if not isinstance(exponent, int) or abs(exponent) > 8:
        raise UnsupportedOperatorError("a power of a dynamic extent has no translation", found=str(exponent))
    if exponent < 0:
        top, bottom = bottom, top
    result = _multiply([(top, bottom)] * abs(exponent)) if exponent else (1, 1)
    return result


def _whole_of(args: list[Quotient]) -> list[Expr]:
    return [_expr(as_dim(_floor(*a))) for a in args]


def _modulo(args: list[Quotient]) -> Quotient:
    return tirx.floormod(*_whole_of(args)), 1


def _chosen(choose: Callable[[Any, Any], Any]) -> Callable[[list[Quotient]], Quotient]:
    return lambda args: (functools.reduce(choose, _whole_of(args)), 1)


def _floor_divide(args: list[Quotient]) -> Quotient:
    return _floor(*_divide(args)), 1


def _ceiling(args: list[Quotient]) -> Quotient:
    [(top, bottom)] = args
    return _floor(top + bottom - 1, bottom), 1


def _modular_index(args: list[Quotient]) -> Quotient:
    base, divisor, modulus = _whole_of(args)
    return tirx.floormod(tirx.floordiv(base, divisor), modulus), 1


_FUNCTIONS: dict[str, Callable[[list[Quotient]], Quotient]] = {
    "Add": _add, "Pow": _power, "PowByNatural": _power,
    "FloorDiv": _floor_divide, "CleanDiv": _floor_divide, "IntTrueDiv": _divide, "FloatTrueDiv": _divide,
    "Mod": _modulo, "PythonMod": _modulo, "ModularIndexing": _modular_index,
    "Max": _chosen(tirx.max), "Min": _chosen(tirx.min),
    "ToFloat": lambda args: args[0], "Identity": lambda args: args[0],
    "TruncToInt": lambda args: (_floor(*args[0]), 1), "FloorToInt": lambda args: (_floor(*args[0]), 1),
    "CeilToInt": _ceiling,
}


def float_scalar(builder: GraphBuilder, name: str, expr: sympy.Expr, variable: Variable,
                 known: Mapping[sympy.Expr, Expr]) -> float | Expr:
    """A floating point expression over extents as a number, or as a float32 scalar computed at run time.

    ``known`` are scalars for expressions that are more than extents.
    """
    if expr in known:
        return known[expr]
    if expr.is_number:
        return float(expr)
    if type(expr).__name__ == "ToFloat" or expr.is_integer:
        number = whole(expr.args[0] if type(expr).__name__ == "ToFloat" else expr, variable)
        return float(number) if isinstance(number, int) else extent(builder, name, number, "float32")
    operation = _FLOAT_FUNCTIONS.get(type(expr).__name__)
    if operation is None:
        raise UnsupportedOperatorError("this arithmetic on dynamic extents has no translation", found=str(expr),
                                       hint="fix the dimension with dims=")
    operands = [float_scalar(builder, name, a, variable, known) for a in expr.args]
    values = [constant(np.asarray(v, np.float32)) if isinstance(v, float) else v for v in operands]
    if len(values) == 1:
        return builder.emit(operation(*values), name)
    return functools.reduce(lambda a, b: builder.emit(operation(a, b), name), values)


_FLOAT_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "Add": relax.op.add, "Mul": relax.op.multiply, "FloatPow": relax.op.power, "Pow": relax.op.power,
    "FloatTrueDiv": relax.op.divide, "IntTrueDiv": relax.op.divide,
    "OpaqueUnaryFn_sqrt": relax.op.sqrt, "OpaqueUnaryFn_exp": relax.op.exp, "OpaqueUnaryFn_log": relax.op.log,
    "Max": relax.op.maximum, "Min": relax.op.minimum,
}
