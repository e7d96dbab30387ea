"""What one call of a program takes, from its code alone: whether it can be run to be timed."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from ..dims import evaluate_dim
from ..ir import Group, is_number, op_bindings, outputs_of, variables_of
from ..operators.control import has_bodies
from ..operators.data_dependent import is_data_dependent
from .cpu.kernel import Kernel

# Multiply-adds of one statement of a kernel that has a builder.
_VECTOR = 128
_WIDTHS = {"bool": 1, "bfloat16": 2, "float32": 4}


def peak_bytes(main: relax.Function, extents: Mapping[str, int]) -> int:
    """Bytes of the tensors of ``main`` that are alive at once, at most, with inputs, at these extents of symbols."""
    last: dict[relax.Var, int] = {}
    bindings, inputs = op_bindings(main), set(main.params)
    for i, binding in enumerate(bindings):
        last.update(dict.fromkeys([binding.var, *variables_of(binding.value)], i))
    last.update(dict.fromkeys(outputs_of(main), len(bindings)))
    ends: dict[int, list[relax.Var]] = {}
    for var, end in last.items():
        if var not in inputs:
            ends.setdefault(end, []).append(var)
    alive = peak = sum(_bytes(p.ty, extents) for p in main.params)
    for i, binding in enumerate(bindings):
        alive += _bytes(binding.var.ty, extents)
        peak = max(peak, alive)
        alive -= sum(_bytes(var.ty, extents) for var in ends.get(i, ()))
    return peak


def _bytes(ty: tvm.ir.Type, extents: Mapping[str, int]) -> int:
    if isinstance(ty, relax.TupleType):
        return sum(_bytes(field, extents) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    return _elements(ty, extents) * _width(str(ty.dtype))


def _elements(ty: relax.TensorType, extents: Mapping[str, int]) -> int:
    return math.prod(evaluate_dim(d, extents) for d in ty.shape)


def _width(dtype: str) -> int:
    return _WIDTHS.get(dtype) or int("".join(c for c in dtype if c.isdigit())) // 8


def steps(kernels: Iterable[Kernel], extents: Mapping[str, int]) -> int:
    """About how many statements one call of each kernel executes at these extents of symbols: the loops of plain
    kernels, a vector of multiply-adds as one, and every element that is read or written."""
    return sum(max(kernel.macs // _VECTOR, _Counter(kernel.func, extents).total()) for kernel in kernels)


def host_steps(groups: Iterable[Group], extents: Mapping[str, int]) -> int:
    """About how long operators that run on the host take, in the same unit, at most: they compare all with all. How
    long loops and branches take only running tells: the number is larger than any."""
    calls = [(g, g.bindings[0].value) for g in groups]
    if any(has_bodies(c) for _, c in calls):
        return sys.maxsize
    return sum(sum(_elements(p.ty, extents) for p in g.parameters) ** 2 for g, c in calls
               if is_data_dependent(c))


class _Counter:
    """Counts the statements of one kernel. Loops whose extent follows from another loop, which deal out work that is
    counted otherwise, count once."""

    def __init__(self, func: tirx.PrimFunc, extents: Mapping[str, int]) -> None:
        self._func = func
        self._analyzer = Analyzer()
        for symbol in (p for p in func.params if is_number(p) and p.name in extents):
            self._analyzer.bind(symbol, tirx.IntImm("int64", extents[symbol.name]))

    def total(self) -> int:
        buffers = [p.ty.shape for p in self._func.params if not is_number(p)]
        return self._count(self._func.body) + sum(math.prod(self._number(d) for d in shape) for shape in buffers)

    def _number(self, extent: tirx.PrimExpr) -> int:
        known = self._analyzer.simplify(extent)
        return int(known) if isinstance(known, tirx.IntImm) else 1

    def _count(self, stmt: tirx.Stmt) -> int:
        if isinstance(stmt, tirx.For):
            return self._number(stmt.extent) * self._count(stmt.body)
        inner = [getattr(stmt, name, None) for name in ("body", "then_case", "else_case", "init", "block")]
        parts = [*getattr(stmt, "seq", ()), *(s for s in inner if isinstance(s, tirx.Stmt))]
        return sum(self._count(s) for s in parts) if parts else 1
