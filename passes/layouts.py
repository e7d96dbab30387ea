"""Values that are stored with permuted axes, and the permutations written on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tvm import relax

from ..dims import Dim
from ..ir import Constant, Expr, GraphBuilder, constant, constant_value, dims_of, outputs_of, uses_of, variables_of
from .extents import nominal_size

Axes = tuple[int, ...]
"""A layout: axis ``i`` of the stored tensor is axis ``axes[i]`` of the value as the user's network has it."""


def identity(rank: int) -> Axes:
    """The layout of a value that is stored as it is."""
    return tuple(range(rank))


def channels_last(rank: int) -> Axes:
    """The layout that stores [N, C, spatial…] as [N, spatial…, C]."""
    return (0, *range(2, rank), 1)


def moves_nothing(shape: Sequence[Dim], source: Axes, target: Axes) -> bool:
    """Whether a value of the (unpermuted) ``shape`` has the same order of elements in both layouts."""
    return [a for a in source if shape[a] != 1] == [a for a in target if shape[a] != 1]


class Layouts:
    """For every value of the old function the tensors of the new one that hold it, by layout.

    Permutations are written when a layout is asked for that is not there, and remembered.
    """

    def __init__(self, builder: GraphBuilder, func: relax.Function) -> None:
        self.builder = builder
        self.uses = uses_of(func)
        self.outputs = set(outputs_of(func))
        self.row_order: dict[relax.Var, np.ndarray] = {}
        self._stored: dict[relax.Var, dict[Axes, Expr]] = {}
        self._named: set[relax.Var] = set()

    def variables(self, expr: Expr) -> Iterable[relax.Var]:
        """The old function's variables that ``expr`` reads."""
        return dict.fromkeys(variables_of(expr))

    def define(self, var: relax.Var, axes: Axes, value: Expr) -> None:
        """``value``, of the new function, holds ``var`` in the layout ``axes``."""
        self._stored.setdefault(var, {})[axes] = value
        self._named.add(var)

    def define_plain(self, var: relax.Var, value: Expr) -> None:
        """``value`` holds ``var`` as it is (or is no tensor)."""
        rank = len(var.ty.shape) if isinstance(var.ty, relax.TensorType) else 0
        self.define(var, identity(rank), value)

    def alias(self, var: relax.Var, source: relax.Var, axes: Axes) -> None:
        """``var`` is the permutation of ``source`` by ``axes``: all that holds ``source`` holds ``var``."""
        position = {axis: i for i, axis in enumerate(axes)}
        self._stored[var] = {tuple(position[a] for a in layout): value
                             for layout, value in self._stored[source].items()}

    def emit(self, binding: relax.VarBinding, axes: Axes, call: Expr) -> None:
        """Bind ``call`` under the name of ``binding``; it holds its variable in the layout ``axes``."""
        self.define(binding.var, axes, self.builder.emit(call, binding.var.name))

    def layouts_of(self, expr: Expr) -> list[Axes]:
        """The layouts in which a variable is there."""
        return list(self._stored[expr])

    def plain(self, expr: Expr) -> Expr:
        """The tensor that holds ``expr`` as it is."""
        if isinstance(expr, Constant) or not isinstance(expr, relax.Var):
            return expr
        if not isinstance(expr.ty, relax.TensorType):
            return self._stored[expr][()]
        return self.get(expr, identity(len(dims_of(expr))))

    def get(self, expr: Expr, axes: Axes) -> Expr:
        """The tensor that holds ``expr``, a variable or a constant of that rank, in the layout ``axes``."""
        if isinstance(expr, Constant):
            return expr if axes == identity(len(axes)) else constant(constant_value(expr).transpose(axes))
        stored = self._stored[expr]
        if axes not in stored:
            shape = dims_of(expr)
            free = [layout for layout in stored if moves_nothing(shape, layout, axes)]
            source = free[0] if free else next(iter(stored))
            call = (relax.op.reshape(stored[source], [shape[a] for a in axes]) if free
                    else relax.op.permute_dims(stored[source], [source.index(a) for a in axes]))
            name = f"{expr.name}.layout" if expr in self._named else expr.name
            self._named.add(expr)
            stored[axes] = self.builder.emit(call, name)
        return stored[axes]

    def common(self, operands: Sequence[Expr]) -> Axes:
        """The layout in which most elements of ``operands`` (of one rank) are there; the newest where several are."""
        variables = [v for v in operands if isinstance(v, relax.Var)]
        candidates = dict.fromkeys(axes for v in variables for axes in reversed(self.layouts_of(v)))
        missing = {axes: sum(nominal_size(v) for v in variables
                             if not any(moves_nothing(dims_of(v), layout, axes) for layout in self.layouts_of(v)))
                   for axes in candidates}
        return min(candidates, key=lambda axes: (missing[axes], axes == identity(len(axes))))
