"""The bodies of loops and branches as functions of their own, which take what they read from around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
import tvm
from tvm import relax, tirx

from ..dims import Dim, symbols_in
from ..errors import UnsupportedOperatorError
from ..ir import Expr, GraphBuilder, symbols_used, with_main, with_symbols
from ..operators.control import Body
from ..requirements import Requirement, distinct
from .onnx_ops import TensorSequence
from .onnx_scope import Captures, Place, Result
from .symbolic_array import Ratio, SymbolicArray, is_expression

_Known = TypeVar("_Known", bound="Dim | Expr")
# Axes of a loop's states whose extents iterations change, as (state, axis): those that always are equal have one value.
Open: TypeAlias = dict[tuple[int, int], tuple[int, int]]


@dataclass
class BodyBuilder:
    """Builds the function of a body.

    outer : the graph around it.
    captured : what it takes from there, with the parameters that these are inside.
    symbols : those of ``outer`` that it knows, with its own for them.
    requirements : of its extents.
    """

    outer: GraphBuilder
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder([]))
    captured: dict[relax.Var, relax.Var] = field(default_factory=dict)
    symbols: dict[tirx.Var, tirx.Var] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)

    def inside(self, value: _Known) -> _Known:
        """A type or an extent of the graph around in the body's own symbols."""
        found = symbols_used(relax.Var("", value)) if isinstance(value, tvm.ir.Type) else symbols_in(value)
        for symbol in found:
            if symbol not in self.symbols:
                self.symbols[symbol] = tirx.Var(self.builder.unique(symbol.name), "int64")
        return value if isinstance(value, int) else with_symbols(value, self.symbols)

    def outside(self, dim: Dim) -> Dim | None:
        """An extent in the symbols around the body; None where it has others."""
        around = {own: symbol for symbol, own in self.symbols.items()}
        if isinstance(dim, int):
            return dim
        return with_symbols(dim, around) if set(symbols_in(dim)) <= around.keys() else None

    def capture(self, value: Result) -> Result:
        """A value around the body as it is inside."""
        if isinstance(value, TensorSequence):
            return TensorSequence(tuple(self.capture(v) for v in value.items))  # type: ignore[misc]
        if isinstance(value, SymbolicArray):
            elements = np.empty(value.size, object)
            elements[:] = [self._element(e) for e in value.elements.reshape(-1)]
            return SymbolicArray(elements.reshape(value.shape), value.dtype)
        if not isinstance(value, relax.Var):
            return value
        if value not in self.captured:
            self.captured[value] = self.builder.parameter(value.name, self.inside(value.ty))
        return self.captured[value]

    def _element(self, element: object) -> object:
        if isinstance(element, Ratio):
            return Ratio(self.inside(element.numerator), element.denominator)
        return self.inside(element) if is_expression(element) else element  # type: ignore[type-var]

    def finish(self, results: Sequence[relax.Var], layer: str) -> Body:
        """The body that returns ``results``. What symbols stand for is captured where no parameter has them.

        Raises UnsupportedOperatorError where a requirement is on extents that are found inside.
        """
        while missing := [s for s, own in self.symbols.items() if not self._stands(own)]:
            self.capture(self.outer.tensor_with(missing[0]))
        open_ = [r for r in self.requirements if not r.symbols <= {s.name for s in self._given()}]
        if open_:
            raise UnsupportedOperatorError("extents that only running tells are not known to fit", layer=layer,
                                           expected=open_[0])
        main = self.builder.finish(results, as_tuple=True)
        return Body(with_main(tvm.IRModule(), main), distinct(self.requirements))

    def _stands(self, symbol: tirx.Var) -> bool:
        return any(symbol.same_as(s) for s in self._given())

    def _given(self) -> list[tirx.Var]:
        """The symbols that are plain extents of parameters."""
        return [d for p in self.builder.inputs for d in p.ty.shape if isinstance(d, tirx.Var)]


class Bodies(Protocol):
    """What translates the bodies of loops and branches.

    unsupported : what had no translation.
    unrolled, translated : the nodes that loops repeat, and those of bodies at run time.
    running : how many loops and branches there are whose bodies are functions.
    decided : such loops and branches, by label, with the extents of states that are open: when they are translated
        once more, because what is around them is, nothing has to be tried.
    """

    builder: GraphBuilder
    requirements: list[Requirement]
    unsupported: list[tuple[str, str, UnsupportedOperatorError]]
    unrolled: int
    translated: int
    running: int
    decided: dict[str, Open]

    def body(self, graph: onnx.GraphProto, place: Place, arguments: Sequence[Result],
             captures: Captures | None = None) -> list[Result]:
        """The results of a subgraph that is given ``arguments``. The values around it are what ``captures`` makes of
        them."""


@contextmanager
def attempt(bodies: Bodies) -> Iterator[Callable[[], None]]:
    """What is translated inside is forgotten where the function that this gives is called."""
    kept = len(bodies.requirements), len(bodies.unsupported)
    with bodies.builder.attempt() as forget_bindings:

        def forget() -> None:
            forget_bindings()
            del bodies.requirements[kept[0]:], bodies.unsupported[kept[1]:]

        yield forget


@contextmanager
def inside(bodies: Bodies, body: BodyBuilder) -> Iterator[None]:
    """What is translated meanwhile goes into the body."""
    outer = bodies.builder, bodies.requirements
    bodies.builder, bodies.requirements = body.builder, body.requirements
    try:
        yield
    finally:
        bodies.builder, bodies.requirements = outer
