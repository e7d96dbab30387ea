"""Small arrays that are known at import but for the symbols in them: what models compute from shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from ..dims import Dim, dim_text, simplified
from ..ir import Expr, GraphBuilder, constant
from .extents import extents
from .limits import MAX_SYMBOLIC

# Products with other factors are not exact: a network that scales extents does so by such.
_MAX_DENOMINATOR = 2 ** 20


def is_expression(value: object) -> bool:
    """Whether ``value`` is an expression over symbols, not a number or a ratio."""
    return isinstance(value, tvm.ir.Expr)


@dataclass(frozen=True)
class Ratio:
    """A floating point number that is computed from extents: ``numerator / denominator``."""

    numerator: Dim
    denominator: int

    @classmethod
    def of(cls, value: Any) -> Ratio:
        """``value`` as a ratio; Inexact for a number that is none of small terms."""
        if isinstance(value, Ratio):
            return value
        if is_expression(value):
            return cls(value, 1)
        if not math.isfinite(value):
            raise Inexact
        fraction = Fraction(float(value))
        if fraction.denominator > _MAX_DENOMINATOR or abs(fraction.numerator) > 2 ** 40:
            raise Inexact
        return cls(fraction.numerator, fraction.denominator)

    def value(self) -> Ratio | float:
        """A plain number where there is no symbol left."""
        numerator = simplified(self.numerator)
        return Ratio(numerator, self.denominator) if is_expression(numerator) else numerator / self.denominator


class Inexact(Exception):
    """The result is not an expression over symbols."""


# A number, an int64 or boolean expression over symbols, or a ratio of such.
Element: TypeAlias = "int | float | bool | Expr | Ratio"


@dataclass(frozen=True, eq=False)
class SymbolicArray:
    """An array with at least one element that depends on symbols.

    elements : an object array of ``Element``.
    dtype : "int64", "int32", "bool" or "float32", as in normal form.
    """

    elements: np.ndarray
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def size(self) -> int:
        return self.elements.size

    def __str__(self) -> str:
        return str([dim_text(e) if is_expression(e) else e for e in self.elements.reshape(-1)])


def known_array(elements: Iterable[Element], shape: Sequence[int], dtype: str) -> np.ndarray | SymbolicArray:
    """The array of ``elements`` in row-major order: a plain one where they are all numbers."""
    simple = [e.value() if isinstance(e, Ratio) else simplified(e) if is_expression(e) else e for e in elements]
    if not any((is_expression(e) or isinstance(e, Ratio)) for e in simple):
        return np.asarray(simple, dtype).reshape(shape)
    result = np.empty(len(simple), object)
    result[:] = simple
    return SymbolicArray(result.reshape(shape), dtype)


def elements_of(array: np.ndarray | SymbolicArray) -> np.ndarray:
    """The elements as an object array."""
    return array.elements if isinstance(array, SymbolicArray) else array.astype(object)


def map_elements(function: Callable[..., Element], arrays: Sequence[np.ndarray | SymbolicArray],
                 dtype: str) -> np.ndarray | SymbolicArray:
    """``function`` of the elements of arrays that are broadcast against each other."""
    if math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) > MAX_SYMBOLIC:
        raise Inexact
    broadcast = np.broadcast_arrays(*(elements_of(a) for a in arrays))
    flat = [b.reshape(-1) for b in broadcast]
    return known_array([function(*e) for e in zip(*flat, strict=True)], broadcast[0].shape, dtype)


def materialized(builder: GraphBuilder, name: str, array: SymbolicArray) -> relax.Var:
    """The array as a tensor of the graph."""
    flat = array.elements.reshape(-1)
    plain = np.asarray([0 if (is_expression(e) or isinstance(e, Ratio)) else e for e in flat], array.dtype)
    ratios = [e if isinstance(e, Ratio) else Ratio(_as_integer(e), 1) if is_expression(e) else Ratio(0, 1)
              for e in flat]
    value = extents(builder, name, [r.numerator for r in ratios])
    if array.dtype != "int64":
        value = builder.emit(relax.op.astype(value, array.dtype), name)
    denominators = np.asarray([r.denominator for r in ratios], np.float32)
    if (denominators != 1).any():
        value = builder.emit(relax.op.divide(value, constant(denominators)), name)
    if plain.any():
        add = relax.op.logical_or if array.dtype == "bool" else relax.op.add
        value = builder.emit(add(value, constant(plain)), name)
    return builder.emit(relax.op.reshape(value, array.shape), name) if len(array.shape) != 1 else value


def _as_integer(value: Expr) -> Expr:
    """A condition as 1 or 0."""
    if str(value.ty.dtype) != "bool":
        return value
    return tirx.Select(value, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))
