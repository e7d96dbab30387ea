"""The conditions on extents that an exported program checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...errors import ImportModelError

# Extents up to here are tried to see whether a condition wants a multiple; of conditions on a symbol, so many.
_TRIED, _LOOKED_AT = 130, 12


def conditions_of(program: ExportedProgram) -> Iterator[sympy.Basic]:
    """What has to hold of the inputs' extents: the program's own assertions, and what PyTorch noted without one."""
    for node in program.graph.nodes:
        condition = condition_of(node)
        if condition is not None:
            yield condition
    env = _environment(program)
    for noted in [] if env is None else _noted(env):
        if not any(side.is_Float for side in noted.args):
            yield env.replace(noted)


def _environment(program: ExportedProgram) -> Any:
    """Where PyTorch keeps what it found about the program's symbols; None where it has none."""
    return next((d.node.shape_env for n in program.graph.nodes if n.op == "placeholder"
                 and isinstance(n.meta.get("val"), torch.Tensor) for d in n.meta["val"].shape
                 if isinstance(d, torch.SymInt)), None)


def _noted(env: Any) -> list[sympy.Basic]:
    return [*(a.expr for own in env.deferred_runtime_asserts.values() for a in own), *(g.expr for g in env.guards)]


def condition_of(node: Node) -> sympy.Basic | None:
    """What an assertion of the graph checks, where that is a condition on extents."""
    if node.op != "call_function" or node.target is not torch.ops.aten._assert_scalar.default:
        return None
    condition = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return condition.node.expr if isinstance(condition, torch.SymBool) else None


def allowed_by(symbol: sympy.Symbol, equalities: Iterable[sympy.Eq]) -> tuple[int, int | None]:
    """What the equalities on ``symbol`` alone want: a number that it is a multiple of (1 where they do not), and the
    only extent that they allow (None where there are more)."""
    own = [e for e in equalities if e.free_symbols == {symbol}][:_LOOKED_AT]
    good = [n for n in range(1, _TRIED + 1) if all(_holds(e, symbol, n) for e in own)] if own else []
    step = math.gcd(*good)
    multiple = step if len(good) > 1 and good == list(range(good[0], _TRIED + 1, step)) else 1
    return multiple, good[0] if len(good) == 1 and 2 * good[0] <= _TRIED else None


def _holds(equality: sympy.Eq, symbol: sympy.Symbol, extent: int) -> bool:
    try:
        return equality.xreplace({symbol: sympy.Integer(extent)}) == sympy.true
    except ZeroDivisionError:
        return False


def refuse_fixed_numbers(program: ExportedProgram) -> None:
    """ImportModelError where PyTorch put a number into the program that it computed from an example's extents.

    Operators that take a number, not a tensor, as a parameter (the scale of attention) have no other form; PyTorch
    notes the condition under which the program is right, and does not check it.
    """
    env = _environment(program)
    fixed = [e for e in ([] if env is None else _noted(env))
             if isinstance(e, sympy.Eq) and any(side.is_Float for side in e.args)]
    if fixed:
        raise ImportModelError("an operator takes a number that forward() computes from a dynamic extent, and PyTorch "
                               "can only keep the number of the example", found=", ".join(map(str, fixed)),
                               hint="multiply a tensor by the number in place of passing it (q * scale, scale=1.0), or "
                                    "fix the extent")
