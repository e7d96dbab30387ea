"""The symbolic dims of an exported program, from PyTorch's expressions (sympy) to those of the normal form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils._sympy.numbers import IntInfinity
from tvm import tirx

from ...errors import ImportModelError, UnsupportedOperatorError
from ...ir import Dim, Expr, GraphBuilder
from ..model import DimRange, Requirement
from .arithmetic import float_scalar, whole


@dataclass(frozen=True)
class _Derived:
    """A symbol of PyTorch's that is no dim of an input itself: ``symbol = (plain - offset) / factor``."""

    plain: sympy.Symbol
    factor: int
    offset: int

    @property
    def expression(self) -> sympy.Expr:
        return (self.plain - self.offset) / self.factor

    def extents(self, own: DimRange) -> DimRange:
        """The range of ``plain`` where ``own`` is that of the symbol."""
        most = None if own.maximum is None else own.maximum * self.factor + self.offset
        return DimRange(own.minimum * self.factor + self.offset, most)


class Symbols:
    """PyTorch's symbols as variables of the normal form.

    A symbol has the name that the user gave it, or of its ``torch.export.Dim`` where the program still knows it, else
    PyTorch's own (``s77``). Where an input's dim is ``2 * half`` and ``half`` no dim of any input, the variable stands
    for the whole dim and is called after the input and the axis (``x_2``). Symbols of one name are one variable.

    Parameters
    ----------
    program : as it was exported: names are lost when PyTorch decomposes it.
    fixed : extents by name; such symbols become numbers.
    given : the user's names for dimensions, by input and axis (``x_0``).

    ranges : what is known about every variable's extent, by name.
    """

    def __init__(self, program: ExportedProgram, fixed: Mapping[str, int], given: Mapping[str, str]) -> None:
        dims = dict(_input_dims(program))
        names = _names(program)
        names.update({e: given[p] for p, e in dims.items() if p in given and isinstance(e, sympy.Symbol)})
        bounds = _bounds(program, _symbols_in(dims.values()))
        self._numbers = {s: sympy.Integer(b.minimum) for s, b in bounds.items() if b.minimum == b.maximum}
        _refuse_fixed(given, {p: e.xreplace(self._numbers) for p, e in dims.items()}, program)
        plain = [e for e in dims.values() if isinstance(e, sympy.Symbol) and e not in self._numbers]
        rest = [s for s in _symbols_in(dims.values()) if s not in plain and s not in self._numbers]
        self._derived = {s: _derive(s, dims, given) for s in rest if names[s] not in fixed}
        names.update({d.plain: d.plain.name for d in self._derived.values()})
        bounds.update({d.plain: d.extents(bounds[s]) for s, d in self._derived.items()})
        own = [*plain, *(self._derived[s].plain if s in self._derived else s for s in rest)]
        _require_known(fixed, [names[s] for s in own])
        self._numbers |= {s: sympy.Integer(fixed[names[s]]) for s in own if names[s] in fixed}
        self.ranges: dict[str, DimRange] = {}
        self._variables: dict[sympy.Symbol, tirx.Var] = {}
        self._one_of_name: dict[sympy.Symbol, sympy.Symbol] = {}
        for symbol in own:
            if symbol not in self._numbers:
                self._declare(symbol, names[symbol], bounds[symbol])
        self._known: dict[sympy.Expr, Dim] = {}

    def _declare(self, symbol: sympy.Symbol, name: str, bounds: DimRange) -> None:
        """Make a variable of a symbol, or let it stand for one that has the name already."""
        first = next((s for s, v in self._variables.items() if v.name == name), None)
        if first is None:
            self._variables[symbol] = tirx.Var(name, "int64")
        elif first is not symbol:
            self._one_of_name[symbol] = first
        known = self.ranges.get(name, DimRange())
        ends = [b.maximum for b in (known, bounds) if b.maximum is not None]
        self.ranges[name] = DimRange(max(known.minimum, bounds.minimum), min(ends) if ends else None)

    def dim(self, value: int | torch.SymInt | sympy.Expr) -> Dim:
        """An extent of PyTorch's as one of the normal form."""
        if isinstance(value, int):
            return value
        expr = _expression(value)
        if expr not in self._known:
            self._known[expr] = whole(self._replaced(expr), self._variable)
        return self._known[expr]

    def dims(self, tensor: torch.Tensor) -> tuple[Dim, ...]:
        """The shape of one of PyTorch's fake tensors."""
        return tuple(self.dim(d) for d in tensor.shape)

    def scalar(self, builder: GraphBuilder, name: str, value: torch.SymFloat) -> float | Expr:
        """A floating point number that PyTorch computes from extents."""
        return float_scalar(builder, name, self._replaced(_expression(value)), self._variable)

    def truth(self, value: bool | torch.SymBool) -> bool | None:
        """A condition on extents where it holds always or never; else None."""
        if isinstance(value, bool):
            return value
        expr = self._replaced(_expression(value))
        return bool(expr) if expr in (sympy.true, sympy.false) else None

    def requirements(self, conditions: Iterable[tuple[torch.SymBool, str]]) -> tuple[Requirement, ...]:
        """What has to hold of the inputs' extents: their ranges, and conditions that PyTorch took for granted, each of
        a layer. Conditions that only tell an extent from another (``s != 2``) decide how PyTorch lays out memory,
        and are none."""
        found = {}
        for variable in self._variables.values():
            own = self.ranges[variable.name]
            found.update(_required(">=", variable, own.minimum, variable.name))
            found.update(_required(">=", own.maximum, variable, variable.name) if own.maximum is not None else {})
        for derived in self._derived.values():
            if derived.plain in self._variables:
                rest = self.dim(sympy.Mod(derived.plain - derived.offset, derived.factor))
                found.update(_required("==", rest, 0, derived.plain.name))
        for condition, layer in conditions:
            found.update(self._required_by(self._replaced(_expression(condition)), layer))
        return tuple(found.values())

    def _required_by(self, condition: sympy.Basic, layer: str) -> dict[str, Requirement]:
        if isinstance(condition, sympy.And):
            return {k: r for part in condition.args for k, r in self._required_by(part, layer).items()}
        sides = _RELATIONS.get(type(condition))
        if sides is None:
            return {}
        relation, left, right = sides(condition)
        try:
            return _required(relation, whole(left, self._variable), whole(right, self._variable), layer)
        except UnsupportedOperatorError:
            return {}

    def _replaced(self, expr: sympy.Expr) -> sympy.Expr:
        """``expr`` over the symbols that have variables, with fixed ones as numbers."""
        for replacement in ({s: d.expression for s, d in self._derived.items()}, self._one_of_name, self._numbers):
            expr = expr.xreplace(replacement) if replacement else expr
        return expr

    def _variable(self, symbol: sympy.Symbol) -> tirx.Var:
        if symbol not in self._variables:
            raise UnsupportedOperatorError(
                "the extent of a result depends on the values in a tensor", found=str(symbol),
                hint="give the result a fixed size, for example with a mask in place of a selection")
        return self._variables[symbol]


# The sides of a relation as (relation, left, right) of a requirement.
_RELATIONS: dict[type, Callable[[Any], tuple[Literal["==", ">="], sympy.Expr, sympy.Expr]]] = {
    sympy.Eq: lambda c: ("==", c.lhs, c.rhs), sympy.Ge: lambda c: (">=", c.lhs, c.rhs),
    sympy.Le: lambda c: (">=", c.rhs, c.lhs), sympy.Gt: lambda c: (">=", c.lhs, c.rhs + 1),
    sympy.Lt: lambda c: (">=", c.rhs, c.lhs + 1),
}


def _required(relation: Literal["==", ">="], left: Dim, right: Dim, layer: str) -> dict[str, Requirement]:
    """A requirement by its text, unless it always holds."""
    requirement = Requirement(relation, left, right, layer)
    return {} if requirement.holds() else {str(requirement): requirement}


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)) else value


def _symbols_in(dims: Iterable[sympy.Expr]) -> list[sympy.Symbol]:
    return list(dict.fromkeys(s for e in dims for s in sorted(e.free_symbols, key=str)))


def _bounds(program: ExportedProgram, symbols: Iterable[sympy.Symbol]) -> dict[sympy.Symbol, DimRange]:
    """The ranges that PyTorch recorded. Its least extent of 2 only says that it looked at no smaller one."""
    bounds = {}
    for symbol in symbols:
        own = program.range_constraints.get(symbol)
        least = 1 if own is None or int(own.lower) <= 2 else int(own.lower)
        bounds[symbol] = DimRange(least, None if own is None or _is_infinite(own.upper) else int(own.upper))
    return bounds


def _is_infinite(bound: sympy.Expr) -> bool:
    return isinstance(bound, IntInfinity) or bound == sympy.oo or int(bound) >= 2**62


def _input_dims(program: ExportedProgram) -> Iterator[tuple[str, sympy.Expr]]:
    """Every symbolic dim of an input: a name made of the input's and the axis, and the expression."""
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind == InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, torch.SymInt):
                    yield f"{node.name}_{axis}", sympy.sympify(_expression(dim))


class _Names(dict[sympy.Symbol, str]):
    """Names by symbol; a symbol without one has its own."""

    def __missing__(self, symbol: sympy.Symbol) -> str:
        return str(symbol)


def _names(program: ExportedProgram) -> _Names:
    """The names of the user's ``Dim`` objects, which PyTorch keeps by where a symbol comes from."""
    names = _Names()
    env = next((d.node.shape_env for n in program.graph.nodes for d in _symbolic_shape(n)), None)
    if env is None:
        return names
    sources = {**{name: name for name in env.source_to_var if name.isidentifier()}, **env.source_name_to_debug_name}
    for source, name in sources.items():
        symbol = env.replace(env.source_to_var[source]) if source in env.source_to_var else None
        if isinstance(symbol, sympy.Symbol) and name.isidentifier():
            names.setdefault(symbol, name)
    return names


def _symbolic_shape(node: Node) -> list[torch.SymInt]:
    value = node.meta.get("val") if node.op == "placeholder" else None
    return [d for d in value.shape if isinstance(d, torch.SymInt)] if isinstance(value, torch.Tensor) else []


def _derive(symbol: sympy.Symbol, dims: Mapping[str, sympy.Expr], given: Mapping[str, str]) -> _Derived:
    """The variable that stands for a dim ``factor * symbol + offset`` of an input; ImportModelError without one."""
    for place, expr in dims.items():
        if expr.free_symbols == {symbol} and expr.is_polynomial(symbol) and sympy.degree(expr, symbol) == 1:
            factor, offset = (int(c) for c in sympy.Poly(expr, symbol).all_coeffs())
            return _Derived(sympy.Symbol(given.get(place, place), integer=True, positive=True), factor, offset)
    raise ImportModelError("a dynamic dimension of the model is not an extent of any input", found=str(symbol),
                           expected="an input with that extent, or a multiple of it",
                           hint="give the inputs' dimensions independent names, or fix this one with dims=")


def _require_known(fixed: Mapping[str, int], names: list[str]) -> None:
    unknown = [n for n in fixed if n not in names]
    if unknown:
        raise ImportModelError("dims= names dimensions that the model does not have as dynamic ones", found=unknown,
                               expected=sorted(names) or "no names: all its dimensions are fixed",
                               hint="dynamic_shapes= makes dimensions of a module dynamic")


def _refuse_fixed(given: Mapping[str, str], dims: Mapping[str, sympy.Expr], program: ExportedProgram) -> None:
    """ImportModelError where the model works for one extent only of a dimension that the user wants dynamic."""
    inputs = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and "val" in n.meta}
    for place, name in given.items():
        expr = dims.get(place)
        if expr is None or expr.is_number:
            input_name, _, axis = place.rpartition("_")
            extent = inputs[input_name].shape[int(axis)] if expr is None else expr
            raise ImportModelError(
                "the model works for one extent only of a dimension that dynamic_shapes= calls dynamic", layer=name,
                found=f"dimension {axis} of {input_name} is {extent}",
                hint="look for an extent that forward() compares, converts by int() or float(), or passes to a layer "
                     "of fixed size; or leave the dimension fixed")
