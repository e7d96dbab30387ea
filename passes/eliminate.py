"""Removal of what is computed twice, or for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from ..ir import Constant, Expr, GraphBuilder, rewrite, with_main, without_dead_code


@dataclass(frozen=True)
class EliminateDeadCode:
    """Remove the ops that no output depends on.

    Before::

        a = relax.nn.relu(x); b = relax.exp(x); return a

    After::

        a = relax.nn.relu(x); return a

    Requires: the normal form.
    Ensures: every op contributes to an output; the parameters of ``main`` stay.
    Does not fire when: the op's value is used.
    """

    name: str = "EliminateDeadCode"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_main(mod, without_dead_code(mod["main"]))


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """Compute equal expressions once.

    Before::

        a = relax.nn.relu(x); b = relax.nn.relu(x); return a + b

    After::

        a = relax.nn.relu(x); return a + a

    Requires: the normal form; all its operators are pure.
    Ensures: no two bindings have the same operator, arguments and attributes. The first one's name stays.
    Does not fire when: both values are outputs under names of their own, or arguments differ. Constants are equal when
    their elements are.
    """

    name: str = "EliminateCommonSubexpressions"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        first: dict[int, list[tuple[Expr, relax.Var]]] = {}

        def visit(builder: GraphBuilder, binding: relax.VarBinding, value: Expr) -> Expr:
            if not isinstance(value, (relax.Call, relax.TupleGetItem)):
                return value
            seen = first.setdefault(_fingerprint(value), [])
            for known, var in seen:
                if _equal(known, value):
                    return var
            var = builder.rebind(binding, value)
            seen.append((value, var))
            return var

        return with_main(mod, rewrite(mod["main"], visit))


def _equal(left: Expr, right: Expr) -> bool:
    """Whether two expressions compute the same; their types follow from it, and may not be inferred yet."""
    if isinstance(left, relax.TupleGetItem) or isinstance(right, relax.TupleGetItem):
        return type(left) is type(right) and left.index == right.index and left.tuple_value.same_as(right.tuple_value)
    return (left.op.same_as(right.op) and len(left.args) == len(right.args)
            and tvm_ffi.structural_equal(left.attrs, right.attrs)
            and all(tvm_ffi.structural_equal(a, b) for a, b in zip(left.args, right.args, strict=True)))


def _fingerprint(value: Expr) -> int:
    """A hash of operator, variables, and constants' shapes: cheap, equal for equal expressions."""
    if isinstance(value, relax.TupleGetItem):
        return hash((hash(value.tuple_value), int(value.index)))
    fields = [e for arg in value.args for e in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    parts = [hash(e) if isinstance(e, relax.Var) else str(e.ty) if isinstance(e, Constant) else "" for e in fields]
    return hash((str(value.op), *parts))
