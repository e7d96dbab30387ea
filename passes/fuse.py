"""The partition of a network into fusion groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..ir import (
    EPILOGUE_KINDS,
    GraphBuilder,
    op_bindings,
    op_name,
    outputs_of,
    same_dims,
    substitute,
    symbols_used,
    uses_of,
    variables_of,
    with_main,
    with_symbols,
)
from .base import Refusal
from .kinds import INDEXING, classify


@dataclass(frozen=True)
class FuseGroups:
    """Put every op of ``main`` into a fusion group, a private function that ``main`` calls.

    Before::

        conv = relax.nn.conv2d(x, W); bias = relax.add(conv, b); sum = relax.add(bias, y); act = relax.nn.relu(sum)

    After::

        group_conv(x, y):  # {"Primitive": True, "group": "conv"}
            conv = relax.nn.conv2d(x, W); bias = relax.add(conv, b); sum = relax.add(bias, y); act = relax.nn.relu(sum)
        main: conv = group_conv(x, y)

    Requires: the normal form, convolutions channels-last.
    Ensures: the grouped form (``VerifyGroupedForm``). The binding in ``main`` has the anchor's name; an anchorless
    group (elementwise, movement) is named after its first op. Groups run in the order of their last op. The kinds
    are in ``kinds.py`` and docs/design.md.
    Does not fire when: never; an op that no kind takes is an opaque group. An elementwise op stays out of a
    producer's epilogue when it changes the shape, when the producer's value has another reader that the epilogue
    does not contain, or when an operand limit is passed; ``refusals`` tells. Operators that move elements are one group
    with the moves that only they read: what is sliced and transposed on the way into a concatenation is copied once.

    max_operands : run-time tensors that an epilogue may read besides the anchor's own operands.
    max_ops : elementwise ops in an epilogue.
    """

    max_operands: int = 4
    max_ops: int = 24
    name: str = "FuseGroups"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return _emit(mod, _Partition(mod["main"], self).groups())

    def refusals(self, mod: tvm.IRModule) -> list[Refusal]:
        """The ops of ``mod`` (before the pass) that are opaque or stay out of an epilogue, with the reason."""
        partition = _Partition(mod["main"], self)
        partition.groups()
        return partition.refusals


@dataclass(frozen=True)
class _GroupDraft:
    kind: str
    bindings: tuple[relax.VarBinding, ...]


class _Partition:
    """Assigns each binding of a function to one group.

    Only the last value of a group has readers outside, and every other operand is computed before the group's last op.
    So groups that run in the order of their last ops form no cycle.
    """

    def __init__(self, func: relax.Function, limits: FuseGroups) -> None:
        self.limits = limits
        self.bindings = [b for b in op_bindings(func) if not isinstance(b.value, relax.TupleGetItem)]
        self.uses = uses_of(func)
        self.outputs = set(outputs_of(func))
        self.position = {b.var: i for i, b in enumerate(self.bindings)}
        self.refusals: list[Refusal] = []
        self.kinds: dict[relax.Var, str] = {}
        for binding in self.bindings:
            self.kinds[binding.var], reason = classify(binding.value)
            if reason:
                self.refusals.append((binding.var.name, reason))
        self.taken: set[relax.Var] = set()

    def groups(self) -> list[_GroupDraft]:
        """The groups in execution order.

        An elementwise op belongs to the producer that runs last, so anchors grow their epilogues in reverse order.
        """
        drafts = []
        for binding in reversed(self.bindings):
            if self.kinds[binding.var] not in ("elementwise", "movement"):
                drafts.append(self._draft(binding))
        for binding in self.bindings:
            if binding.var not in self.taken:
                drafts.append(self._draft(binding))
        return sorted(drafts, key=lambda draft: self.position[draft.bindings[-1].var])

    def _draft(self, anchor: relax.VarBinding) -> _GroupDraft:
        kind = self.kinds[anchor.var]
        if kind == "movement":
            members = self._grow_movement(anchor)
        elif kind in EPILOGUE_KINDS:
            members = self._grow_epilogue(anchor)
        else:
            members = [anchor]
        self.taken.update(b.var for b in members)
        return _GroupDraft(kind, tuple(members))

    def _grow_movement(self, anchor: relax.VarBinding) -> list[relax.VarBinding]:
        """The moves that follow ``anchor``, each the only reader of the one before, and those that only they read."""
        members = [anchor]
        while op_name(members[-1].value) in INDEXING:
            reader = self._only_reader(members[-1])
            if reader is None or not self._is_free_move(reader) or len(members) >= self.limits.max_ops:
                break
            members.append(reader)
        for member in members:  # It grows.
            for var in dict.fromkeys(variables_of(member.value)):
                maker = self.bindings[self.position[var]] if var in self.position else None
                if maker is not None and maker not in members and self._is_free_move(maker) \
                        and self._only_reader(maker) is not None and len(members) < self.limits.max_ops:
                    members.append(maker)
        return sorted(members, key=lambda b: self.position[b.var])

    def _only_reader(self, binding: relax.VarBinding) -> relax.VarBinding | None:
        """What reads the binding's value, where that is one binding and no output is."""
        readers = self.uses.get(binding.var, [])
        return readers[0] if len(readers) == 1 and binding.var not in self.outputs else None

    def _is_free_move(self, binding: relax.VarBinding) -> bool:
        """Whether the binding only moves elements and is in no group yet."""
        return (self.kinds.get(binding.var) == "movement" and op_name(binding.value) in INDEXING
                and binding.var not in self.taken)

    def _grow_epilogue(self, anchor: relax.VarBinding) -> list[relax.VarBinding]:
        """The longest run of elementwise ops after ``anchor`` that leaves one value to the outside.

        Ops are added in order; each time that nothing but the newest value is read outside, the group could end.
        """
        members, best = [anchor], 1
        values = {anchor.var}
        frontier = set(self._readers(anchor.var))
        while frontier and len(members) <= self.limits.max_ops:
            position = min(frontier)
            frontier.remove(position)
            binding = self.bindings[position]
            reason = self._keeps_out(binding, anchor)
            if reason:
                self._refuse(binding, reason)
                continue
            members.append(binding)
            values.add(binding.var)
            frontier |= {p for p in self._readers(binding.var) if self.bindings[p].var not in values}
            if self._is_closed(values, binding.var) and self._extra_operands(members) <= self.limits.max_operands:
                best = len(members)
        for binding in members[best:]:
            self._refuse(binding, f"the value of {anchor.var.name} has another reader, or operands exceed the limit")
        return members[:best]

    def _refuse(self, binding: relax.VarBinding, reason: str) -> None:
        if self.kinds.get(binding.var) == "elementwise":
            self.refusals.append((binding.var.name, reason))

    def _readers(self, var: relax.Var) -> Iterable[int]:
        return (self.position[b.var] for b in self.uses.get(var, []) if b.var in self.position)

    def _keeps_out(self, binding: relax.VarBinding, anchor: relax.VarBinding) -> str:
        if self.kinds[binding.var] != "elementwise":
            return "not elementwise"
        if binding.var in self.taken:
            return f"fused with a later producer than {anchor.var.name}"
        if not same_dims(binding.var, anchor.var):
            return f"changes the shape of {anchor.var.name}"
        return ""

    def _is_closed(self, values: set[relax.Var], last: relax.Var) -> bool:
        return all(value.same_as(last) or (value not in self.outputs
                                           and all(b.var in values for b in self.uses.get(value, [])))
                   for value in values)

    def _extra_operands(self, members: list[relax.VarBinding]) -> int:
        inner = {b.var for b in members}
        own = set(variables_of(members[0].value))
        return len({v for b in members[1:] for v in variables_of(b.value)} - inner - own)


def _emit(mod: tvm.IRModule, groups: list[_GroupDraft]) -> tvm.IRModule:
    main = mod["main"]
    by_last = {group.bindings[-1].var: group for group in groups}
    inner = {b.var for group in groups for b in group.bindings[:-1]}
    builder = GraphBuilder(main.params)
    replaced: dict[relax.Var, relax.Var] = {}
    functions: dict[tvm.ir.GlobalVar, relax.Function] = {}
    names = {gv.name_hint for gv in mod.functions}
    for binding in op_bindings(main):
        if binding.var in inner:
            continue
        if binding.var not in by_last:
            replaced[binding.var] = builder.emit(substitute(binding.value, replaced), binding.var.name)
            continue
        group = by_last[binding.var]
        function, inputs, symbols = _group_function(group)
        symbol = tvm.ir.GlobalVar(_fresh_symbol(group.bindings[0].var.name, names))
        relax.expr._update_type(symbol, function.ty)
        functions[symbol] = function
        shape = [relax.ShapeExpr(symbols)] if symbols else []
        call = relax.Call(symbol, [*(replaced.get(v, v) for v in inputs), *shape])
        replaced[binding.var] = builder.emit(call, group.bindings[0].var.name)
    outputs = [replaced.get(v, v) for v in outputs_of(main)]
    as_tuple = isinstance(main.ret_ty, relax.TupleType)
    fused = builder.finish(outputs, as_tuple=as_tuple, attrs=main.attrs)
    result = with_main(mod, fused)
    return tvm.IRModule({**dict(result.functions.items()), **functions}, attrs=mod.attrs)


def _group_function(group: _GroupDraft) -> tuple[relax.Function, list[relax.Var], list[tirx.Var]]:
    """The group's function, and the variables and symbols of ``main`` that its parameters stand for."""
    inner = {b.var for b in group.bindings}
    inputs = list(dict.fromkeys(v for b in group.bindings for v in variables_of(b.value) if v not in inner))
    symbols = list(dict.fromkeys(s for e in (*inputs, *(b.value for b in group.bindings)) for s in symbols_used(e)))
    own = {s: tirx.Var(s.name, s.ty.dtype) for s in symbols}
    params = [relax.Var(v.name, with_symbols(v.ty, own)) for v in inputs]
    shape = [relax.Var("symbols", relax.ShapeType(list(own.values())))] if own else []
    replaced: dict[relax.Var, relax.Var] = dict(zip(inputs, params, strict=True))
    builder = GraphBuilder([*params, *shape])
    for binding in group.bindings:
        value = with_symbols(substitute(binding.value, replaced), own)
        replaced[binding.var] = builder.emit(value, binding.var.name)
    result = replaced[group.bindings[-1].var]
    attrs = {"Primitive": True, "group": group.kind}
    if not isinstance(result.ty, relax.TupleType):
        return builder.finish([result], attrs=attrs), inputs, symbols
    fields = [builder.emit(relax.TupleGetItem(result, i), result.name) for i in range(len(result.ty.fields))]
    return builder.finish(fields, as_tuple=True, attrs=attrs), inputs, symbols


def _fresh_symbol(name: str, taken: set[str]) -> str:
    """A GlobalVar's name made from ``name``: letters, digits and underscores, not yet taken."""
    stem = "group_" + re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    symbol, n = stem, 0
    while symbol in taken:
        n += 1
        symbol = f"{stem}_{n}"
    taken.add(symbol)
    return symbol
