"""Extents: numbers, and int64 expressions over symbols. What can be proved of them, what they are for given symbols."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import tvm
from tvm import tirx
from tvm.sym import Analyzer, ProofStrength

from .errors import VerificationError

Expr: TypeAlias = tvm.ir.Expr
# An extent: a number, or an int64 expression over symbols.
Dim: TypeAlias = "int | tvm.ir.Expr"
# The extents by name of what has no symbols.
NO_SYMBOLS: Mapping[str, int] = MappingProxyType({})
_MAX_EXTENT = 2 ** 31
_PLAIN = (tirx.Var, tirx.IntImm)
_INT64 = re.compile(r"T\.int64\((-?\d+)\)")


def as_dim(value: Dim) -> Dim:
    """An extent as a plain number where it is one."""
    return int(value) if isinstance(value, (int, np.integer, tirx.IntImm)) else value


def simplified(value: Dim) -> Dim:
    """An extent in its simplest form. Symbols are extents, at least 1."""
    value = as_dim(value)
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.Var):
        return value
    analyzer = analyzer_of(value)
    return as_dim(_without_bounds(analyzer.simplify(value, 3), analyzer))


def analyzer_of(*values: Dim) -> Analyzer:
    """An analyzer that knows that the symbols in ``values`` are extents: at least 1."""
    analyzer = Analyzer()
    for symbol in dict.fromkeys(s for v in values for s in symbols_in(v)):
        analyzer.bind(symbol, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", 1), tirx.IntImm("int64", _MAX_EXTENT)))
    return analyzer


def _without_bounds(value: Expr, analyzer: Analyzer) -> Expr:
    """``value`` with each minimum and maximum replaced by the operand that it provably is."""
    if isinstance(value, (tirx.Min, tirx.Max)):
        a, b = _without_bounds(value.a, analyzer), _without_bounds(value.b, analyzer)
        low, high = (a, b) if isinstance(value, tirx.Min) else (b, a)
        plain = isinstance(low, _PLAIN) and isinstance(high, _PLAIN)  # The stronger proof takes milliseconds.
        strength = ProofStrength.DEFAULT if plain else ProofStrength.SYMBOLIC_BOUND
        if analyzer.can_prove(low <= high, strength):
            return a
        return b if analyzer.can_prove(high <= low, strength) else type(value)(a, b)
    if isinstance(value, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)):
        a, b = _without_bounds(value.a, analyzer), _without_bounds(value.b, analyzer)
        same = a.same_as(value.a) and b.same_as(value.b)
        return value if same else analyzer.simplify(type(value)(a, b), 3)
    return value


def equal_dims(a: Iterable[Dim], b: Iterable[Dim]) -> bool:
    """Whether two shapes are provably equal."""
    left, right = tuple(a), tuple(b)
    return len(left) == len(right) and all(is_equal_dim(x, y) for x, y in zip(left, right, strict=True))


def is_one(extent: Dim) -> bool:
    """Whether an extent is the number 1; a symbolic one is taken for any."""
    extent = as_dim(extent)
    return isinstance(extent, int) and extent == 1


def is_equal_dim(a: Dim, b: Dim) -> bool:
    """Whether two extents are provably equal."""
    a, b = as_dim(a), as_dim(b)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(analyzer_of(a, b).can_prove_equal(a, b))


def is_less(a: Dim, b: Dim) -> bool:
    """Whether an extent is provably below another."""
    a, b = as_dim(a), as_dim(b)
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return bool(analyzer_of(a, b).can_prove(a < b))


def product_of(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a shape."""
    total: Dim = 1
    for dim in dims:
        total = total * as_dim(dim)
    return simplified(total)


def symbols_in(value: Dim) -> list[tirx.Var]:
    """The symbols of an extent, in order."""
    if isinstance(value, int):
        return []
    return list(tirx.analysis.undefined_vars(value))


def with_extents(value: Dim, extents: Mapping[str, int]) -> Dim:
    """``value`` with the symbols named in ``extents`` replaced by numbers."""
    analyzer = Analyzer()
    for symbol in symbols_in(value):
        if symbol.name in extents:
            analyzer.bind(symbol, tirx.IntImm("int64", extents[symbol.name]))
    return value if isinstance(value, int) else as_dim(analyzer.simplify(value))


def evaluate_dim(value: Dim, extents: Mapping[str, int]) -> int:
    """The number that an extent is, given the symbols' extents by name. VerificationError where one is not given."""
    value = as_dim(value)
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.Var) and value.name in extents:
        return extents[value.name]
    symbols = symbols_in(value)
    missing = [s.name for s in symbols if s.name not in extents]
    if missing:
        raise VerificationError("the extent of a symbol is not known", found=missing, expected=sorted(extents))
    result = with_extents(value, extents)
    if not isinstance(result, int):
        raise VerificationError("the extent cannot be computed", found=str(result))
    return result


def match_dims(dims: Sequence[Dim], shape: Sequence[int], extents: dict[str, int]) -> int | None:
    """The first axis on which an actual shape does not fit; None where all do. Symbols that stand alone and are new get
    their extent in ``extents``. The ranks are equal."""
    for dim, actual in zip(dims, shape, strict=True):
        if isinstance(dim, tirx.Var):
            extents.setdefault(dim.name, actual)
    for axis, (dim, actual) in enumerate(zip(dims, shape, strict=True)):
        if evaluate_dim(dim, extents) != actual:
            return axis
    return None


def dim_text(value: Dim) -> str:
    """An extent as people write it: ``(width + 7) // 8``."""
    return value.name if isinstance(value, tirx.Var) else _INT64.sub(r"\1", str(value))
