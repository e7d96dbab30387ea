"""The symbolic dims of an exported program, from PyTorch's expressions (sympy) to those of the normal form."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils._sympy.numbers import IntInfinity
from tvm import tirx

from ...dims import Dim, simplified
from ...errors import ImportModelError, UnsupportedOperatorError
from ...ir import Expr, GraphBuilder
from ..model import DimRange, Requirement
from .arithmetic import Quotient, float_scalar, whole
from .conditions import allowed_by, conditions_of, refuse_fixed_numbers


@dataclass(frozen=True)
class _Derived:
    """A symbol of PyTorch's that is no dim of an input itself: ``symbol = (plain - offset) / factor``."""

    plain: sympy.Symbol
    factor: int
    offset: int

    def extents(self, own: DimRange) -> DimRange:
        """The range of ``plain`` where ``own`` is that of the symbol."""
        most = None if own.maximum is None else own.maximum * self.factor + self.offset
        return DimRange(own.minimum * self.factor + self.offset, most)


class Symbols:
    """PyTorch's symbols as variables of the normal form.

    A symbol has the name that the user gave it, or of its ``torch.export.Dim`` where the program still knows it, else
    PyTorch's own (``s77``). Where an input's dim is ``2 * half`` and ``half`` no dim of any input, the variable stands
    for the whole dim and is called after the input and the axis (``x_2``). Symbols of one name are one variable.

    The program's checks are used: a symbol that has to be a multiple of 4 is written as ``4 * k``, so that PyTorch's
    ``s // 4 * 4`` is known to be ``s``; of two expressions that have to be equal the simpler one stands for both.

    Parameters
    ----------
    program : as it was exported: names are lost when PyTorch decomposes it.
    fixed : extents by name; such symbols become numbers.
    given : the user's names for dimensions, by input and axis (``x_0``).

    ranges : what is known about every variable's extent, by name.
    """

    def __init__(self, program: ExportedProgram, fixed: Mapping[str, int], given: Mapping[str, str]) -> None:
        refuse_fixed_numbers(program)
        dims = dict(_input_dims(program))
        names = _names(program)
        names.update({e: given[p] for p, e in dims.items() if p in given and isinstance(e, sympy.Symbol)})
        bounds = _bounds(program, _symbols_in(dims.values()))
        self._numbers = {s: sympy.Integer(b.minimum) for s, b in bounds.items() if b.minimum == b.maximum}
        _refuse_fixed(given, {p: e.xreplace(self._numbers) for p, e in dims.items()}, program)
        own = [s for s in _symbols_in(dims.values()) if s not in self._numbers]
        plain = set(dims.values())
        derived = {s: _derive(s, dims, given) for s in own if s not in plain and names[s] not in fixed}
        names.update({s: d.plain.name for s, d in derived.items()})
        _require_known(fixed, [names[s] for s in own])
        self._numbers |= {s: sympy.Integer(fixed[names[s]]) for s in own if names[s] in fixed}
        self.ranges: dict[str, DimRange] = {}
        self._quotients: dict[sympy.Symbol, Quotient] = {}
        self._one_of_name: dict[sympy.Symbol, sympy.Symbol] = {}
        for symbol in own:
            if symbol not in self._numbers:
                self._declare(symbol, names[symbol], bounds[symbol], derived.get(symbol))
        self._multiples: dict[sympy.Symbol, sympy.Expr] = {}
        self._equal: dict[sympy.Expr, sympy.Expr] = {}
        self._conditions = list(conditions_of(program))
        self._use(self._conditions)
        self._known: dict[sympy.Expr, Dim] = {}
        self._read: dict[sympy.Expr, Expr] = {}

    def _declare(self, symbol: sympy.Symbol, name: str, bounds: DimRange, derived: _Derived | None) -> None:
        """Make a variable of a symbol, or let it stand for one that has the name already."""
        first = next((s for s, (v, _) in self._quotients.items() if isinstance(v, tirx.Var) and v.name == name), None)
        if first is not None and derived is None:
            self._one_of_name[symbol] = first
        else:
            variable = tirx.Var(name, "int64")
            top, bottom = (0, 1) if derived is None else (derived.offset, derived.factor)
            self._quotients[symbol] = (variable - top if top else variable, bottom)
        bounds = bounds if derived is None else derived.extents(bounds)
        known = self.ranges.get(name, DimRange())
        ends = [b.maximum for b in (known, bounds) if b.maximum is not None]
        self.ranges[name] = DimRange(max(known.minimum, bounds.minimum), min(ends) if ends else None)

    def _use(self, conditions: Iterable[sympy.Basic]) -> None:
        """Simplify by conditions that have to hold."""
        equalities = [e for e in dict.fromkeys(map(self._named, conditions)) if isinstance(e, sympy.Eq)]
        for symbol, (variable, bottom) in list(self._quotients.items()):
            factor, only = allowed_by(symbol, equalities) if bottom == 1 else (1, None)
            if only is not None:
                raise ImportModelError(_ONE_EXTENT, layer=str(variable), found=f"it has to be {only}",
                                       hint=_WHERE_FIXED)
            if factor > 1:
                part = sympy.Symbol(f"{symbol}_by_{factor}", integer=True, positive=True)
                self._multiples[symbol] = factor * part
                self._quotients[part] = (variable, factor)
        for equality in equalities:
            sides = sorted(self._replaced(equality).args, key=lambda e: e.count_ops())
            if len(sides) == 2 and not sides[1].is_Atom:
                self._equal.setdefault(sides[1], sides[0])

    def dim(self, value: int | torch.SymInt | sympy.Expr) -> Dim:
        """An extent of PyTorch's as one of the normal form."""
        if isinstance(value, int):
            return value
        expr = _expression(value)
        if expr not in self._known:
            self._known[expr] = whole(self._replaced(expr), self._quotient)
        return self._known[expr]

    def dims(self, tensor: torch.Tensor) -> tuple[Dim, ...]:
        """The shape of one of PyTorch's fake tensors."""
        return tuple(self.dim(d) for d in tensor.shape)

    def scalar(self, builder: GraphBuilder, name: str, value: torch.SymFloat) -> float | Expr:
        """A floating point number that PyTorch computes from extents."""
        return float_scalar(builder, name, self._replaced(_expression(value)), self._quotient, self._read)

    def read(self, value: torch.SymFloat, scalar: Expr) -> Expr:
        """Remember the scalar tensor that a floating point number is read from."""
        self._read[_expression(value)] = scalar
        return scalar

    def truth(self, value: bool | torch.SymBool) -> bool | None:
        """A condition on extents where it holds always or never; else None."""
        if isinstance(value, bool):
            return value
        expr = self._replaced(_expression(value))
        return bool(expr) if expr in (sympy.true, sympy.false) else None

    def requirements(self, conditions: Iterable[tuple[sympy.Basic, str]]) -> tuple[Requirement, ...]:
        """What has to hold of the inputs' extents: conditions that PyTorch took for granted, each of a layer. What
        bounds one symbol goes to its range. Conditions that only tell an extent from another (``s != 2``) decide how
        PyTorch lays out memory, and are none."""
        found: dict[str, Requirement] = {}
        for top, bottom in self._quotients.values():
            found.update(_required("==", simplified(tirx.floormod(top, bottom)), 0, "forward") if bottom != 1 else {})
        for condition, layer in [*conditions, *((c, "forward") for c in self._conditions)]:
            expr = self._named(condition).xreplace(self._multiples)
            found = {**self._required_by(expr, layer), **found}
        return tuple(found.values())

    def _required_by(self, condition: sympy.Basic, layer: str) -> dict[str, Requirement]:
        if isinstance(condition, sympy.And):
            return {k: r for part in condition.args for k, r in self._required_by(part, layer).items()}
        sides = _RELATIONS.get(type(condition))
        if sides is None:
            return {}
        relation, *both = sides(condition)
        try:
            left, right = (whole(side, self._quotient) for side in both)
        except UnsupportedOperatorError:
            return {}
        return {} if relation == ">=" and self._bounded(left, right) else _required(relation, left, right, layer)

    def _bounded(self, more: Dim, less: Dim) -> bool:
        """Put ``more >= less`` into the range of a symbol, where it is about one."""
        if isinstance(more, tirx.Var) and isinstance(less, int):
            own = self.ranges[more.name]
            self.ranges[more.name] = DimRange(max(own.minimum, less), own.maximum)
            return True
        if isinstance(more, int) and isinstance(less, tirx.Var):
            own = self.ranges[less.name]
            self.ranges[less.name] = DimRange(own.minimum, more if own.maximum is None else min(more, own.maximum))
            return True
        return False

    def _named(self, expr: sympy.Basic) -> Any:
        """``expr`` with one symbol for every name, and fixed ones as numbers."""
        for replacement in (self._one_of_name, self._numbers):
            expr = expr.xreplace(replacement) if replacement else expr
        return expr

    def _replaced(self, expr: sympy.Basic) -> Any:
        """``expr`` in its simplest form under the conditions of the program."""
        expr = self._named(expr)
        expr = expr.xreplace(self._multiples) if self._multiples else expr
        return expr.xreplace(self._equal) if self._equal else expr

    def _quotient(self, symbol: sympy.Symbol) -> Quotient:
        if symbol not in self._quotients:
            raise UnsupportedOperatorError(
                "the extent of a result depends on the values in a tensor", found=str(symbol),
                hint="give the result a fixed size, for example with a mask in place of a selection")
        return self._quotients[symbol]


_ONE_EXTENT = "the model works for one extent only of a dimension that is called dynamic"
_WHERE_FIXED = ("look for an extent that forward() compares, converts by int() or float(), or passes to a layer of "
                "fixed size; or leave the dimension fixed")

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
    shape: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    return [d for d in shape if isinstance(d, torch.SymInt)]


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
            extent = inputs[input_name].shape[int(axis)]
            raise ImportModelError(
                _ONE_EXTENT, layer=name,
                found=f"dimension {axis} of {input_name} is {extent if expr is None else expr}{_where_fixed(extent)}",
                hint=_WHERE_FIXED)


def _where_fixed(dim: int | torch.SymInt) -> str:
    """The line of the user's code in which PyTorch found that an extent is fixed, as far as it says."""
    if isinstance(dim, int):
        return ""
    known = dim.node.shape_env.var_to_range_sloc.get(_expression(dim))
    frame: Any = getattr(getattr(known, "lower", None), "framework_loc", None)
    name = getattr(frame, "filename", "")
    if not name or name.startswith(str(Path(torch.__file__).parent)):
        return ""
    return f"\n    in {Path(name).name}, line {frame.lineno}: {linecache.getline(name, frame.lineno).strip()}"
