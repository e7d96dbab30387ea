"""What has to hold of the extents of symbolic dims: their ranges, and relations that layers take for granted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import tirx

from .dims import Dim, analyzer_of, as_dim, dim_text, evaluate_dim, is_equal_dim, simplified, symbols_in

_TRIED = (2, *range(32, 1025, 32), *(2**n for n in range(11, 21)))  # extents that ``likely`` tries


@dataclass(frozen=True)
class DimRange:
    """The extents that a symbol may have: from ``minimum`` to ``maximum`` (None: no end)."""

    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Requirement:
    """A relation between extents that a layer takes for granted and that only the inputs' shapes can show.

    relation : "==" or ">=", between ``left`` and ``right``.
    layer : the layer that needs it.
    """

    relation: Literal["==", ">="]
    left: Dim
    right: Dim
    layer: str

    def holds(self) -> bool | None:
        """Whether the relation is provably true or false; None where it depends on the symbols' extents."""
        left, right = as_dim(self.left), as_dim(self.right)
        if isinstance(left, int) and isinstance(right, int):
            return left == right if self.relation == "==" else left >= right
        analyzer = analyzer_of(left, right)
        if self.relation == "==":
            return True if is_equal_dim(left, right) else None
        return True if analyzer.can_prove(left >= right) else False if analyzer.can_prove(left < right) else None

    @property
    def symbols(self) -> set[str]:
        """The names of the symbols that it relates."""
        return {s.name for side in (self.left, self.right) for s in symbols_in(as_dim(side))}

    def is_met(self, extents: Mapping[str, int]) -> bool:
        """Whether the relation holds for these extents of the symbols, by name."""
        left, right = (evaluate_dim(side, extents) for side in (self.left, self.right))
        return left == right if self.relation == "==" else left >= right

    def as_equality(self) -> tuple[str, str | int] | None:
        """A symbol and what it has to be, another symbol or a number; None for what is no such relation."""
        left, right = as_dim(self.left), as_dim(self.right)
        if self.relation != "==":
            return None
        for symbol, other in ((left, right), (right, left)):
            if isinstance(symbol, tirx.Var) and isinstance(other, (int, tirx.Var)):
                return symbol.name, other if isinstance(other, int) else other.name
            if isinstance(symbol, tirx.Mul) and isinstance(symbol.a, tirx.Var) and isinstance(other, int):
                factor = as_dim(symbol.b)
                if isinstance(factor, int) and factor > 0 and other % factor == 0:
                    return symbol.a.name, other // factor
        return None

    def __str__(self) -> str:
        return f"{dim_text(self.left)} {self.relation} {dim_text(self.right)}"

    def to_json(self) -> dict[str, str]:
        """The relation as text that ``from_json`` reads."""
        sides = {name: tvm.ir.save_json(tirx.const(side, "int64") if isinstance(side, int) else side)
                 for name, side in (("left", as_dim(self.left)), ("right", as_dim(self.right)))}
        return {"relation": self.relation, "layer": self.layer, **sides}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Requirement:
        """The relation that ``to_json`` wrote."""
        left, right = (as_dim(tvm.ir.load_json(raw[side])) for side in ("left", "right"))
        return cls(raw["relation"], left, right, raw["layer"])

    @staticmethod
    def all_to_json(requirements: Sequence[Requirement]) -> str:
        """Several requirements as text."""
        return json.dumps([r.to_json() for r in requirements])

    @classmethod
    def all_from_json(cls, text: str) -> tuple[Requirement, ...]:
        """The requirements that ``all_to_json`` wrote."""
        return tuple(map(cls.from_json, json.loads(text)))


def distinct(requirements: Sequence[Requirement]) -> tuple[Requirement, ...]:
    """The requirements that the others do not imply, bounds of one symbol written as such."""
    solved = {str(r): r for r in map(_solved, requirements)}
    lower: dict[str, int] = {}
    upper: dict[str, int] = {}
    for requirement in solved.values():
        bounds = lower if isinstance(requirement.left, tirx.Var) else upper
        symbol, bound = _bound_of(requirement)
        if symbol is not None:
            bounds[symbol] = (max if bounds is lower else min)(bounds.get(symbol, bound), bound)
    kept = []
    for requirement in solved.values():
        bounds = lower if isinstance(requirement.left, tirx.Var) else upper
        symbol, bound = _bound_of(requirement)
        if symbol is None or bounds[symbol] == bound:
            kept.append(requirement)
    return tuple(kept)


def _bound_of(requirement: Requirement) -> tuple[str | None, int]:
    """The symbol that the requirement bounds by a number, and the number; None where it is no such bound."""
    left, right = as_dim(requirement.left), as_dim(requirement.right)
    if requirement.relation == ">=":
        for symbol, number in ((left, right), (right, left)):
            if isinstance(symbol, tirx.Var) and isinstance(number, int):
                return symbol.name, number
    return None, 0


def _solved(requirement: Requirement) -> Requirement:
    """``s >= 3`` for ``(s - 1) // 2 + 1 >= 2``; the requirement itself where it is no bound of one symbol."""
    if requirement.relation != ">=":
        return requirement
    rest, least = simplified(requirement.left - requirement.right), 0  # rest >= least
    while not isinstance(rest, (int, tirx.Var)):
        if isinstance(rest, tirx.Sub) and isinstance(as_dim(rest.a), int) and isinstance(rest.b, tirx.Var):
            return Requirement(">=", as_dim(rest.a) - least, rest.b, requirement.layer)
        number = as_dim(rest.b) if isinstance(rest, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv)) else None
        if not isinstance(number, int):
            return requirement
        if isinstance(rest, tirx.Add):
            least -= number
        elif isinstance(rest, tirx.Sub):
            least += number
        elif isinstance(rest, tirx.FloorDiv) and number > 0:
            least *= number
        elif isinstance(rest, tirx.Mul) and number > 0:
            least = -(-least // number)
        elif isinstance(rest, tirx.Mul) and number < 0 and isinstance(rest.a, tirx.Var):
            return Requirement(">=", -least // -number, rest.a, requirement.layer)
        else:
            return requirement
        rest = rest.a
    return Requirement(">=", rest, least, requirement.layer) if isinstance(rest, tirx.Var) else requirement


def likely(hints: Mapping[str, int], requirements: Sequence[Requirement]) -> dict[str, int]:
    """``hints``, larger where they do not meet the requirements and some larger extent does."""
    result = dict(hints)
    for requirement in requirements:
        symbols = list(dict.fromkeys(s.name for side in (requirement.left, requirement.right)
                                     for s in symbols_in(as_dim(side))))
        for name in symbols:
            if not requirement.is_met(result):
                larger = (e for e in _TRIED if e > result[name])
                result[name] = next((e for e in larger if requirement.is_met(result | {name: e})), result[name])
    return result
