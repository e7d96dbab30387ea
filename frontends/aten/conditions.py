"""The conditions on extents that an exported program checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

# Extents up to here are tried to see whether a condition wants a multiple; of conditions on a symbol, so many.
_TRIED, _LOOKED_AT = 130, 12


def conditions_of(program: ExportedProgram) -> Iterator[torch.SymBool]:
    """The conditions that the program's own assertions check."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten._assert_scalar.default:
            condition = condition_of(node)
            if condition is not None:
                yield condition


def condition_of(node: Node) -> torch.SymBool | None:
    """What an assertion of the graph checks, where that is a condition on extents."""
    condition = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    return condition if isinstance(condition, torch.SymBool) else None


def multiple_by(symbol: sympy.Symbol, equalities: Iterable[sympy.Eq]) -> int:
    """The number that the equalities on ``symbol`` alone want it to be a multiple of; 1 where they do not."""
    own = [e for e in equalities if e.free_symbols == {symbol}][:_LOOKED_AT]
    good = [n for n in range(1, _TRIED + 1) if all(_holds(e, symbol, n) for e in own)] if own else []
    step = math.gcd(*good)
    return step if len(good) > 1 and good == list(range(good[0], _TRIED + 1, step)) else 1


def _holds(equality: sympy.Eq, symbol: sympy.Symbol, extent: int) -> bool:
    try:
        return equality.xreplace({symbol: sympy.Integer(extent)}) == sympy.true
    except ZeroDivisionError:
        return False
