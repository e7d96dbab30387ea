"""Reading a function as a graph, and replacing the roots of matched patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..ir import (
    Constant,
    Expr,
    GraphBuilder,
    constant_value,
    finders_of,
    op_bindings,
    op_name,
    outputs_of,
    rewrite,
    substitute,
    symbols_used,
    uses_of,
    variables_of,
    with_main,
    without_dead_code,
)


class Graph:
    """Producers and readers of the values of one function in normal form."""

    def __init__(self, func: relax.Function) -> None:
        self.bindings = op_bindings(func)
        self.uses = uses_of(func)
        self.finders = finders_of(func)
        self.outputs = set(outputs_of(func))
        self._producers = {b.var: b for b in self.bindings}

    def producer(self, expr: Expr) -> relax.VarBinding | None:
        """The binding that computes ``expr``; None for constants and inputs of the function."""
        return self._producers.get(expr) if isinstance(expr, relax.Var) else None

    def call(self, expr: Expr, *ops: str) -> relax.Call | None:
        """The call that computes ``expr``, if it is one of ``ops``."""
        binding = self.producer(expr)
        return binding.value if binding is not None and op_name(binding.value) in ops else None

    def only_reader(self, var: relax.Var) -> relax.VarBinding | None:
        """The single op that reads ``var``; None where several do, none does, or ``var`` is an output."""
        readers = self.uses.get(var, [])
        return readers[0] if len(readers) == 1 and var not in self.outputs else None

    def with_scalar(self, expr: Expr, op: str) -> tuple[Expr, float] | None:
        """``(x, c)`` where ``expr`` is ``op(x, c)`` with a one-element constant; either order where ``op`` commutes."""
        call = self.call(expr, op)
        if call is None:
            return None
        value = scalar(call.args[1])
        if value is not None:
            return call.args[0], value
        value = scalar(call.args[0])
        return (call.args[1], value) if value is not None and op in COMMUTATIVE else None

    def scaled(self, expr: Expr) -> tuple[Expr, float]:
        """``(x, c)`` with ``expr == x * c``: a product with or quotient by a scalar constant is taken off."""
        found = self.with_scalar(expr, "relax.multiply")
        if found is not None:
            return found
        found = self.with_scalar(expr, "relax.divide")
        return (found[0], 1.0 / found[1]) if found is not None and found[1] != 0.0 else (expr, 1.0)


FLOAT32_EPS = float(np.finfo(np.float32).eps)
COMMUTATIVE = frozenset({"relax.add", "relax.multiply", "relax.maximum", "relax.minimum"})


def scalar(expr: Expr) -> float | None:
    """The value of a constant of one element; else None."""
    if not isinstance(expr, Constant):
        return None
    array = constant_value(expr)
    return float(array.reshape(())) if array.size == 1 else None


def same(left: Expr, right: Expr) -> bool:
    """Whether two arguments are the same variable, or the same constant."""
    return left.same_as(right)


def is_close(value: float | None, expected: float) -> bool:
    """Whether a constant is ``expected`` to float32's rounding."""
    return value is not None and abs(value - expected) <= 4 * FLOAT32_EPS * abs(expected)


@dataclass(frozen=True)
class Replacement:
    """What stands for a matched root: ``build(emit, *inputs)`` with the rebuilt ``inputs``.

    ``emit(expr, part)`` binds an intermediate value under the root's name and a part's (an empty one: the root's
    name itself), or under ``name``; the result may be a call, a variable or a constant.
    """

    inputs: tuple[Expr, ...]
    build: Callable[..., Expr]


Emit = Callable[..., relax.Var]
Find = Callable[[Graph, relax.VarBinding], Replacement | None]


def replace_matches(mod: tvm.IRModule, find: Find) -> tvm.IRModule:
    """A new module in which every binding that ``find`` has a replacement for is replaced; what is then unused goes.

    The new value has the root's name, intermediates are named ``root.part``.
    """
    graph = Graph(mod["main"])
    found = {b.var: r for b in graph.bindings if (r := find(graph, b)) is not None}
    if not found:
        return mod
    live = _live(graph, found)
    rebuilt: dict[relax.Var, Expr] = {}

    def visit(builder: GraphBuilder, binding: relax.VarBinding, value: Expr) -> Expr:
        if binding.var not in live:
            return binding.var
        if binding.var in found:
            value = _build(builder, binding, found[binding.var], rebuilt)
        if not isinstance(value, (relax.Var, Constant)):
            value = builder.rebind(binding, value)
        rebuilt[binding.var] = value
        return value

    return with_main(mod, without_dead_code(rewrite(mod["main"], visit)))


def _live(graph: Graph, found: Mapping[relax.Var, Replacement]) -> set[relax.Var]:
    """The variables that outputs depend on once the replacements are made; the others' names are free."""
    live = set(graph.outputs)
    for binding in reversed(graph.bindings):
        if binding.var in live:
            read = found[binding.var].inputs if binding.var in found else (binding.value,)
            live.update(v for expr in read for v in variables_of(expr))
            if graph.finders:
                live.update(graph.finders[s] for s in symbols_used(binding.value) if s in graph.finders)
    return live


def _build(
    builder: GraphBuilder, binding: relax.VarBinding, found: Replacement, rebuilt: Mapping[relax.Var, Expr],
) -> Expr:
    def emit(expr: Expr, part: str = "part", *, name: str | None = None) -> relax.Var:
        own = f"{binding.var.name}.{part}" if part else binding.var.name
        return builder.emit(expr, own if name is None else name)

    return found.build(emit, *(substitute(expr, rebuilt) for expr in found.inputs))
