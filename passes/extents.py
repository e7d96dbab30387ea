"""Extents as products: enough algebra on symbolic dims to see what a reshape splits and merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tvm import tirx

from ..dims import Dim, simplified
from ..ir import Expr, dims_of

# What a symbolic dim counts as where only a rough size matters.
_NOMINAL = 64


@dataclass(frozen=True)
class Extent:
    """A product: a number times symbols and other expressions, each by its text and with its power."""

    number: int = 1
    atoms: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, dim: Dim) -> Extent:
        """The product that an extent is."""
        dim = simplified(dim)
        if isinstance(dim, int):
            return cls(dim)
        if isinstance(dim, tirx.Mul):
            return cls.of(dim.a) * cls.of(dim.b)
        return cls(1, ((str(dim), 1),))

    @classmethod
    def product(cls, dims: Iterable[Dim]) -> Extent:
        """The number of elements of a shape."""
        return prod((cls.of(d) for d in dims), start=cls())

    def __mul__(self, other: Extent) -> Extent:
        powers = Counter(dict(self.atoms)) + Counter(dict(other.atoms))
        return Extent(self.number * other.number, tuple(sorted(powers.items())))

    def divides(self, other: Extent) -> bool:
        """Whether ``other`` is a multiple of this for all extents of the symbols."""
        powers = dict(other.atoms)
        return (self.number != 0 and other.number % self.number == 0
                and all(powers.get(atom, 0) >= power for atom, power in self.atoms))


def nominal_size(expr: Expr) -> int:
    """About how many elements a tensor has."""
    return prod(d if isinstance(d, int) else _NOMINAL for d in dims_of(expr))
