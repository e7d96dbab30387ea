"""Loops and branches that only running tells: operators whose bodies the program calls as functions.

A *body* is a module of its own, in normal form and later in grouped form. Its ``main`` has symbols of its own, takes
all that it reads as parameters and returns a tuple. There is no kernel for these operators: the program runs
``run_loop`` and ``run_branch``, and so does the reference evaluator.

A call takes tensors, among them a loop's states and what each body reads, then the shape of every result. Symbols in
these shapes that nothing before defines are found by the call, as those of ``data_dependent`` operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Protocol, TypeAlias, TypeVar

import tvm
import tvm_ffi
from tvm import relax
from tvm_ffi import dataclasses

from ..dims import Dim
from ..errors import ProgramError
from ..ir import Expr, dims_of, op_bindings, op_name, rewrite, tensors_of, with_main
from ..requirements import Requirement
from .custom import register
from .data_dependent import is_data_dependent

# Parameters and axes by the name of the symbol that stands there.
Places: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]

LOOP, BRANCH = "narrowcast.loop", "narrowcast.branch"
_BODY = "narrowcast.Body"

# The registry belongs to the process: where the package is imported once more, under another name, it is filled.
if tvm_ffi.get_global_func(_BODY, allow_missing=True) is None:

    @dataclasses.py_class(_BODY, structural_eq="tree")
    class _Attribute(dataclasses.Object):
        """A body among the attributes of a call."""

        mod: tvm.IRModule
        requirements: str

    tvm_ffi.register_global_func(_BODY, _Attribute)


@dataclass(frozen=True)
class Body:
    """What a loop repeats, or one side of a branch.

    mod : the module.
    requirements : what has to hold of the extents of what ``main`` is given.
    """

    mod: tvm.IRModule
    requirements: tuple[Requirement, ...] = ()

    @property
    def results(self) -> list[relax.TensorType]:
        """The types of the results, in the body's own symbols."""
        return list(self.mod["main"].ret_ty.fields)

    def places(self, requirements: Sequence[Requirement]) -> Places:
        """Where the symbols stand that the requirements relate, or that stand in several places."""
        names, found = {name for r in requirements for name in r.symbols}, dict[str, list[tuple[int, int]]]()
        for i, param in enumerate(tensors_of(self.mod["main"])):
            for axis, dim in enumerate(dims_of(param)):
                if isinstance(dim, tvm.tirx.Var):
                    found.setdefault(dim.name, []).append((i, axis))
        return {name: places for name, places in found.items() if name in names or len(places) > 1}


def has_bodies(expr: Expr) -> bool:
    """Whether a binding's value is a loop or a branch."""
    return op_name(expr) in (LOOP, BRANCH)


def runs_on_host(expr: Expr) -> bool:
    """Whether a binding's value has no kernel and is computed in Python, with extents that only running tells."""
    return is_data_dependent(expr) or has_bodies(expr)


def bodies_of(call: Expr) -> list[Body]:
    """The bodies of a loop (one, or one of the first iteration and one of the others) or of a branch (for a true
    condition, and for a false one); none of anything else."""
    if not has_bodies(call):
        return []
    return [Body(kept.mod, Requirement.all_from_json(kept.requirements)) for kept in call.attrs["bodies"]]


def map_bodies(mod: tvm.IRModule, function: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """A module in normal form with ``function`` of every body in ``main`` in that body's place; ``mod`` itself where
    there are none."""
    if not any(has_bodies(b.value) for b in op_bindings(mod["main"])):
        return mod

    def visit(builder: object, binding: relax.VarBinding, value: Expr) -> Expr:
        if not has_bodies(value):
            return value
        bodies = [Body(function(b.mod), b.requirements) for b in bodies_of(value)]
        return relax.Call(value.op, value.args, _attributes(bodies, counts_of(value)))

    return with_main(mod, rewrite(mod["main"], visit))


def counts_of(call: relax.Call) -> list[int]:
    """How many tensors each part of a call has: a loop's states, and what each body reads."""
    return [int(n) for n in call.attrs["counts"]]


def shapes_of(call: relax.Call) -> list[tuple[Dim, ...]]:
    """The shapes of a call's results."""
    return [tuple(a.values) for a in call.args if isinstance(a, relax.ShapeExpr)]


def loop(bodies: Sequence[Body], trips: Expr, goes_on: Expr, states: Sequence[Expr],
         captures: Sequence[Sequence[Expr]], shapes: Sequence[Sequence[Dim]]) -> relax.Call:
    """A loop: its last states, then the values of every iteration along a new first axis.

    Parameters
    ----------
    bodies : one, or one of the first iteration and one of the others. Their ``main`` takes the iteration's number,
        counted from 0 (int64 []), a tensor of which only the first extent counts, that number and 1 (bool
        [number + 1, 0]), the states and the captures. It returns whether another iteration follows (bool []), the new
        states, and values.
    trips : the largest number of iterations, int64 [].
    goes_on : whether there is a first one, bool [].
    captures : what each body reads besides.
    shapes : of the results.
    """
    return _call(LOOP, bodies, [trips, goes_on], [states, *captures], shapes)


def branch(bodies: Sequence[Body], condition: Expr, captures: Sequence[Sequence[Expr]],
           shapes: Sequence[Sequence[Dim]]) -> relax.Call:
    """The results of the first body where the condition (bool []) is true, else of the second.

    captures : what each body reads.
    shapes : of the results.
    """
    return _call(BRANCH, bodies, [condition], captures, shapes)


def _call(name: str, bodies: Sequence[Body], leading: Sequence[Expr], parts: Sequence[Sequence[Expr]],
          shapes: Sequence[Sequence[Dim]]) -> relax.Call:
    args = [*leading, *(e for part in parts for e in part), *(relax.ShapeExpr(list(s)) for s in shapes)]
    return relax.Call(tvm.ir.Op.get(name), args, _attributes(bodies, list(map(len, parts))))


def _attributes(bodies: Sequence[Body], counts: Sequence[int]) -> tvm.ir.Attrs:
    attribute = tvm_ffi.get_global_func(_BODY)
    kept = [attribute(b.mod, Requirement.all_to_json(b.requirements)) for b in bodies]
    return tvm.ir.make_node("ir.DictAttrs", bodies=kept, counts=list(counts))


def _infer_type(call: relax.Call) -> relax.TupleType:
    (body, *_), shapes = bodies_of(call), shapes_of(call)
    types = body.results[1:] if op_name(call) == LOOP else body.results
    return relax.TupleType([relax.TensorType(list(s), str(t.dtype)) for s, t in zip(shapes, types, strict=True)])


for _name in (LOOP, BRANCH):
    register(_name, -1, _infer_type)


# Running ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Tensors(Protocol[T]):
    """What the tensors of some library can."""

    def number(self, value: int) -> T:
        """An integer as int64 []."""

    def extent(self, value: int) -> T:
        """A tensor bool [value, 0]."""

    def item(self, tensor: T) -> int:
        """The element of a tensor that has one."""

    def shape(self, tensor: T) -> tuple[int, ...]:
        """The extents."""

    def stack(self, tensors: Sequence[T]) -> T:
        """Tensors of one shape along a new first axis; at least one."""

    def empty(self, shape: Sequence[int], dtype: str) -> T:
        """A tensor without elements."""


@dataclass
class CheckedBody(Generic[T]):
    """A body that is called with extents that fit it.

    call : the body.
    requirements, places : of its symbols.
    layer : the loop or branch, for errors.
    """

    call: Callable[[Sequence[T]], Sequence[T]]
    requirements: Sequence[Requirement]
    places: Places
    layer: str
    tensors: Tensors[T]

    def __post_init__(self) -> None:
        self._accepted: Mapping[str, list[int]] = {}

    def __call__(self, operands: Sequence[T]) -> Sequence[T]:
        """The results. ProgramError, with the layer that needs it, where an extent does not fit."""
        found = {name: [self.tensors.shape(operands[i])[axis] for i, axis in places]
                 for name, places in self.places.items()}
        if found != self._accepted:
            self._check(found)
            self._accepted = found
        return self.call(operands)

    def _check(self, found: Mapping[str, list[int]]) -> None:
        for name, extents in found.items():
            if len(set(extents)) > 1:
                raise ProgramError("extents differ that have to be equal", layer=self.layer,
                                   found=", ".join(map(str, extents)), expected=f"one for {name}")
        extents_by_name = {name: extents[0] for name, extents in found.items()}
        for requirement in self.requirements:
            if not requirement.is_met(extents_by_name):
                raise ProgramError(f"extents found in '{self.layer}' do not fit this layer", layer=requirement.layer,
                                   found=", ".join(f"{name} = {e}" for name, e in extents_by_name.items()),
                                   expected=str(requirement))


def run_loop(bodies: Sequence[CheckedBody[T]], counts: Sequence[int], operands: Sequence[T],
             empty: Sequence[tuple[Sequence[int], str]]) -> list[T]:
    """The results of ``loop``.

    Parameters
    ----------
    counts : as ``counts_of``.
    operands : the tensors that the operator takes.
    empty : shape and element type of what is stacked where there are no iterations.

    Raises ProgramError where iterations give values of different shapes, or extents do not fit.
    """
    tensors = bodies[0].tensors
    trips, goes_on = map(tensors.item, operands[:2])
    current, *captures = divided(operands[2:], counts)
    stacks: list[list[T]] = [[] for _ in empty]
    i = 0
    while goes_on and i < trips:
        which = min(i, len(bodies) - 1)
        again, *results = bodies[which]([tensors.number(i), tensors.extent(i + 1), *current, *captures[which]])
        current = results[:counts[0]]
        for stack, value in zip(stacks, results[counts[0]:], strict=True):
            stack.append(value)
        goes_on = tensors.item(again)
        i += 1
    return [*current, *(_stacked(bodies[0], s, e) for s, e in zip(stacks, empty, strict=True))]


def _stacked(body: CheckedBody[T], values: Sequence[T], empty: tuple[Sequence[int], str]) -> T:
    if not values:
        return body.tensors.empty(*empty)
    shapes = dict.fromkeys(map(body.tensors.shape, values))
    if len(shapes) > 1:
        raise ProgramError("the iterations give values of different shapes, which cannot be stacked", layer=body.layer,
                           found=", ".join(str(list(s)) for s in shapes))
    return body.tensors.stack(values)


def run_branch(bodies: Sequence[CheckedBody[T]], counts: Sequence[int], operands: Sequence[T]) -> list[T]:
    """The results of ``branch``; parameters as of ``run_loop``."""
    which = 0 if bodies[0].tensors.item(operands[0]) else 1
    return list(bodies[which](divided(operands[1:], counts)[which]))


def divided(items: Sequence[T], counts: Sequence[int]) -> list[list[T]]:
    """The items in parts of so many."""
    ends = list(accumulate(counts))
    return [list(items[end - count:end]) for end, count in zip(ends, counts, strict=True)]
