"""The executable statement of the grouped form."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..errors import CompileError, VerificationError
from ..ir import GROUP_KINDS, SINGLE_KINDS, Group, dtype_of, groups_of, op_bindings, outputs_of, same_dims
from .kinds import classify


@dataclass(frozen=True)
class VerifyGroupedForm:
    """Return the module as it is; raise VerificationError where it is not in grouped form.

    Requires: ``main`` calls private functions with attributes ``Primitive`` and ``group`` on variables, or gets items
    of their tuples; every group's name is the name of an op of its function, the op's kind is the group's; epilogue ops
    are elementwise and keep the anchor's shape; the group has one result, float32 unless its kind is one of
    ``SINGLE_KINDS``.
    Ensures: the same.
    """

    name: str = "VerifyGroupedForm"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        problems: list[CompileError] = []
        for binding in op_bindings(mod["main"]):
            problem = _main_problem(mod, binding)
            if problem:
                problems.append(VerificationError(problem, layer=binding.var.name))
        if not problems:
            problems = [VerificationError(problem, layer=group.name)
                        for group in groups_of(mod) if (problem := _group_problem(group))]
        if problems:
            raise VerificationError.collect(problems)
        return mod


def _main_problem(mod: tvm.IRModule, binding: relax.VarBinding) -> str:
    value = binding.value
    if isinstance(value, relax.TupleGetItem):
        return ""
    if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
        return "main computes something outside the groups"
    function = mod[value.op]
    attrs = function.attrs or {}
    if not isinstance(function, relax.Function) or "group" not in attrs or not attrs.get("Primitive", False):
        return "the function it calls is no fusion group"
    if str(attrs["group"]) not in GROUP_KINDS:
        return f"the kind {attrs['group']} does not exist"
    if not all(isinstance(arg, (relax.Var, relax.ShapeExpr)) for arg in value.args):
        return "a group is called on something else than variables and a shape"
    return ""


def _group_problem(group: Group) -> str:
    bindings = group.bindings
    anchors = [b for b in bindings if b.var.name == group.name]
    if len(anchors) != 1:
        return "no op of the group has the group's name"
    kind, _ = classify(anchors[0].value)
    if kind != group.kind:
        return f"the anchor belongs to the kind {kind}, the group says {group.kind}"
    results = outputs_of(group.function)
    calls = [b for b in bindings if not isinstance(b.value, relax.TupleGetItem)]
    if isinstance(calls[-1].var.ty, relax.TupleType):
        items = [b.var for b in bindings if isinstance(b.value, relax.TupleGetItem)]
        if len(items) != len(calls[-1].var.ty.fields) or not all(map(relax.Var.same_as, results, items)):
            return "the results are not the elements of the last op's tuple"
    elif len(results) != 1 or not results[0].same_as(bindings[-1].var):
        return "the result is not the last op's"
    if group.kind in SINGLE_KINDS:
        return "" if len(calls) == 1 else f"{group.kind} groups have one op"
    if dtype_of(results[0]) != "float32":
        return "the result is not float32"
    return _rest_problem(group, anchors[0])


def _rest_problem(group: Group, anchor: relax.VarBinding) -> str:
    expected = "movement" if group.kind == "movement" else "elementwise"
    for binding in group.bindings:
        if binding is anchor or binding.var.same_as(anchor.var):
            continue
        if classify(binding.value)[0] != expected:
            return f"{binding.var.name} is not {expected}"
        if expected == "elementwise" and not same_dims(binding.var, anchor.var):
            return f"{binding.var.name} changes the anchor's shape"
    return ""
