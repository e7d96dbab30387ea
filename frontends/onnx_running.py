"""If, Loop and Scan whose course only running tells: their bodies become functions that the program calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from tvm import relax, tirx

from ..dims import Dim, is_equal_dim, is_less, product_of
from ..errors import UnsupportedOperatorError
from ..ir import Constant, Expr, constant, constant_value, dims_of, dtype_of
from ..operators import control
from ..operators.control import Body
from ..requirements import Requirement
from .limits import MAX_TRANSLATED
from .onnx_bodies import Bodies, BodyBuilder, Open, inside
from .onnx_ops import OnnxNode, TensorSequence, Value
from .onnx_ops.broadcasting import shape_text
from .onnx_scope import UNKNOWN, Place, Result, Unknown
from .symbolic_array import SymbolicArray, known_array

# An extent in the symbols around a body, or the place that stands for an open one.
Extent: TypeAlias = "Dim | tuple[int, int]"
_ANY = (-1, -1)
_FLOATS = ("float32", "float64")
_ENDLESS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Iteration:
    """The number of an iteration, counted from 0: as a tensor, and as an expression over the body's symbols."""

    number: relax.Var
    symbolic: Value


@dataclass(frozen=True)
class Course:
    """How a loop goes.

    graph, names : the body, and what it calls the states.
    trips : the largest number of iterations; None where there is none.
    goes_on : whether there is a first iteration.
    arguments : what the body is given: of the loop's node inside it, of the body, of the iteration, of the states.
    results : of the same node and of what the body returns: whether another iteration follows, then the states and
        the values to stack.
    """

    graph: onnx.GraphProto
    names: Sequence[str]
    trips: Value | None
    goes_on: relax.Var | bool
    arguments: Callable[[OnnxNode, BodyBuilder, Iteration, Sequence[relax.Var]], Sequence[Result]]
    results: Callable[[OnnxNode, Sequence[Result]], tuple[relax.Var | bool, Sequence[Result]]]


@dataclass(frozen=True)
class _Round:
    """A translation of a loop's body.

    parameters, states : what it takes and gives as states.
    goes_on : whether another iteration follows.
    values : what is stacked.
    """

    body: BodyBuilder
    parameters: Sequence[relax.Var]
    goes_on: relax.Var | bool
    states: Sequence[relax.Var]
    values: Sequence[relax.Var]


def running_loop(bodies: Bodies, node: OnnxNode, place: Place, course: Course,
                 states: Sequence[Result]) -> list[Result]:
    """The last states, and what the iterations give, stacked along a new first axis.

    The body is translated with the states' first extents; those that it gives another extent are open in the next
    round, symbols of the body. Symbols stand for extents above 0: where a state that changes is empty at first the
    first iteration has a body of its own.
    """
    first = [_operand(node, s) for s in states]
    exact: list[list[Extent]] = [list(dims_of(s)) for s in first]
    is_open = bodies.decided.setdefault(node.label, {})
    types = exact if _is_empty(exact, is_open) else _opened(exact, is_open)
    rounds: list[_Round] = []
    while (found := _translated(bodies, node, place, course, first, types)) is not None:
        changed = _changed(node, types, found)
        is_open.update({place: place for place in changed})
        if not changed and not _equate(found, is_open):
            bodies.running += 1
            return _emitted(node, course, first, types, [*rounds, found])
        if not rounds and _is_empty(types, changed):
            rounds = [found]
            types = [[_around(found.body, d) for d in dims_of(s)] for s in found.states]
            is_open.update({place: place for place in _open_in(types) if place not in is_open})
        types = _opened(types, is_open)
    return [UNKNOWN] * len(node.outputs)


def _is_empty(types: Sequence[Sequence[Extent]], places: Iterable[tuple[int, int]]) -> bool:
    """Whether an extent among these is 0."""
    return any(types[state][axis] == 0 for state, axis in places)


def _open_in(types: Sequence[Sequence[Extent]]) -> list[tuple[int, int]]:
    return [(i, axis) for i, dims in enumerate(types) for axis, d in enumerate(dims) if isinstance(d, tuple)]


def _opened(types: Sequence[Sequence[Extent]], is_open: Open) -> list[list[Extent]]:
    """The types with these extents open."""
    return [[is_open.get((i, axis), d) for axis, d in enumerate(dims)] for i, dims in enumerate(types)]


def _equate(found: _Round, is_open: Open) -> bool:
    """Let open extents that the body needs to be equal be one; whether there are such."""
    places = {d.name: is_open[i, axis] for i, p in enumerate(found.parameters) for axis, d in enumerate(dims_of(p))
              if (i, axis) in is_open and isinstance(d, tirx.Var)}
    pairs = [pair for r in found.body.requirements if (pair := r.as_equality()) is not None]
    same = [(places[a], places[b]) for a, b in pairs if a in places and b in places and places[a] != places[b]]
    for kept, other in same:
        is_open.update({place: kept for place, first in is_open.items() if first == other})
    return bool(same)


def _translated(bodies: Bodies, node: OnnxNode, place: Place, course: Course, first: Sequence[Expr],
                types: Sequence[Sequence[Extent]]) -> _Round | None:
    """The body with states of these types; None where it has operators without translation."""
    _count(bodies, node, course.graph)
    body, count = BodyBuilder(node.builder), len(first)
    iteration = _iteration(body)
    symbols: dict[Extent, tirx.Var] = {}
    parameters = [_parameter(body, name, dims, dtype_of(state), symbols)
                  for name, dims, state in zip(course.names, types, first, strict=True)]
    own = _inner(node, body)
    with inside(bodies, body):
        returned = bodies.body(course.graph, place, course.arguments(own, body, iteration, parameters), body.capture)
        if any(isinstance(r, Unknown) for r in returned):
            return None
        goes_on, results = course.results(own, returned)
        return _Round(body, parameters, goes_on,
                      [_variable(own, r, dtype_of(s)) for r, s in zip(results[:count], first, strict=True)],
                      [_variable(own, r) for r, name in zip(results[count:], node.outputs[count:], strict=False)
                       if name])


def _iteration(body: BodyBuilder) -> Iteration:
    """The first parameters of a loop's body."""
    number = body.builder.parameter("iteration", relax.TensorType([], "int64"))
    count = tirx.Var(body.builder.unique("iterations"), "int64")
    body.builder.parameter("count", relax.TensorType([count, 0], "bool"))
    return Iteration(number, known_array([count - 1], (), "int64"))


def _parameter(body: BodyBuilder, name: str, dims: Sequence[Extent], dtype: str,
               symbols: dict[Extent, tirx.Var]) -> relax.Var:
    """A state as a parameter; ``symbols`` are those of open extents."""
    own: list[Dim] = []
    for axis, extent in enumerate(dims):
        if not isinstance(extent, tuple):
            own.append(body.inside(extent))
            continue
        if extent not in symbols:
            symbols[extent] = tirx.Var(body.builder.unique(f"{name}.{axis}"), "int64")
        own.append(symbols[extent])
    return body.builder.parameter(name, relax.TensorType(own, dtype))


def _changed(node: OnnxNode, types: Sequence[Sequence[Extent]], found: _Round) -> list[tuple[int, int]]:
    """The states and axes whose extents the body changes and that are not open."""
    changed = []
    for i, (old, new) in enumerate(zip(found.parameters, found.states, strict=True)):
        before, after = dims_of(old), dims_of(new)
        if len(before) != len(after):
            raise UnsupportedOperatorError(f"{node.op} with a state whose rank changes is not supported",
                                           layer=node.label, found=f"{shape_text(before)} and {shape_text(after)}")
        changed += [(i, axis) for axis, (a, b) in enumerate(zip(before, after, strict=True))
                    if not isinstance(types[i][axis], tuple) and not is_equal_dim(a, b)]
    return changed


def _emitted(node: OnnxNode, course: Course, first: Sequence[Expr], types: Sequence[Sequence[Extent]],
             rounds: Sequence[_Round]) -> list[Result]:
    """The loop in the graph, and its results in the order of the node's outputs; ``types`` are those of the states when
    an iteration follows that has not a body of its own."""
    names = [name for name in node.outputs[len(first):] if name]
    finished = [_finished(node, r) for r in rounds]
    shapes = [_common(node, name, [dims_of(s), dims])
              for name, s, dims in zip(course.names, first, types, strict=True)]
    rows = _rows(node, course, rounds) if names else 0
    for name, *values in zip(names, *(r.values for r in rounds), strict=True):
        dims = [[_around(r.body, d) for d in dims_of(v)] for r, v in zip(rounds, values, strict=True)]
        shapes.append([rows, *_common(node, name, dims)])
    call = control.loop(finished, _number(node, course.trips), node.constant(_truth(course.goes_on)), first,
                        [list(r.body.captured) for r in rounds], shapes)
    results = _items(node, call, [*course.names, *names])
    stacked = iter(results[len(first):])
    return [*results[:len(first)], *(next(stacked) if name else None for name in node.outputs[len(first):])]


def _finished(node: OnnxNode, found: _Round) -> Body:
    """The body of a round."""
    _pass_on(node, found.body)
    goes_on = _variable(_inner(node, found.body), _truth(found.goes_on))
    return found.body.finish([goes_on, *found.states, *found.values], node.label)


def _pass_on(node: OnnxNode, body: BodyBuilder) -> None:
    """Note that extents around a loop are equal where its body needs it; the import then equates them."""
    for requirement in body.requirements:
        left, right = body.outside(requirement.left), body.outside(requirement.right)
        if requirement.relation == "==" and left is not None and right is not None:
            node.requirements.append(Requirement("==", left, right, requirement.layer))


def _rows(node: OnnxNode, course: Course, rounds: Sequence[_Round]) -> Dim:
    """How many iterations there are."""
    if all(r.goes_on is True for r in rounds) and course.goes_on is True and isinstance(course.trips, SymbolicArray):
        (trips,) = course.trips.elements.reshape(-1)
        if is_less(0, trips):
            return trips
    return _found(node, "count")


def running_branch(bodies: Bodies, node: OnnxNode, place: Place, graphs: Sequence[onnx.GraphProto],
                   condition: relax.Var, differ: Callable[[str], UnsupportedOperatorError]) -> list[Result]:
    """The results of the first graph where the condition is true, else of the second. ``differ`` is the error for
    results that have no common type; it is told which."""
    sides = []
    for graph in graphs:
        _count(bodies, node, graph)
        body = BodyBuilder(node.builder)
        with inside(bodies, body):
            results = bodies.body(graph, place, (), body.capture)
            if any(isinstance(r, Unknown) for r in results):
                return [UNKNOWN] * len(node.outputs)
            sides.append((body, [_variable(_inner(node, body), r) for r in results]))
    bodies.running += 1
    bodies.decided.setdefault(node.label, {})
    return _chosen(node, sides, condition, differ)


def _chosen(node: OnnxNode, sides: Sequence[tuple[BodyBuilder, list[relax.Var]]], condition: relax.Var,
            differ: Callable[[str], UnsupportedOperatorError]) -> list[Result]:
    """The branch in the graph, and its results."""
    (first, yes), (second, no) = sides
    shapes = []
    for i, (a, b) in enumerate(zip(yes, no, strict=True)):
        dtypes = {dtype_of(a), dtype_of(b)}
        if dtypes == set(_FLOATS):
            yes[i], no[i] = (_narrowed(_inner(node, body), v) for body, v in ((first, a), (second, b)))
        elif len(dtypes) > 1 or len(dims_of(a)) != len(dims_of(b)):
            raise differ(f"{dtype_of(a)} {shape_text(dims_of(a))} and {dtype_of(b)} {shape_text(dims_of(b))}")
        shapes.append(_common(node, node.outputs[i], [[_around(first, d) for d in dims_of(a)],
                                                      [_around(second, d) for d in dims_of(b)]]))
    finished = [body.finish(results, node.label) for body, results in sides]
    call = control.branch(finished, condition, [list(body.captured) for body, _ in sides], shapes)
    return list(_items(node, call, node.outputs))


def _around(body: BodyBuilder, dim: Dim) -> Extent:
    """An extent of a body in the symbols around it."""
    found = body.outside(dim)
    return _ANY if found is None else found


def _common(node: OnnxNode, part: str, shapes: Sequence[Sequence[Extent]]) -> list[Dim]:
    """The extents that all shapes have; new symbols where they differ or one is open."""
    result = []
    for axis, (first, *others) in enumerate(zip(*shapes, strict=True)):
        is_common = not isinstance(first, tuple) and not any(
            isinstance(d, tuple) or not is_equal_dim(first, d) for d in others)
        result.append(first if is_common else _found(node, f"{part}.{axis}"))
    return result


def _found(node: OnnxNode, part: str) -> tirx.Var:
    return node.builder.found(f"{node.name}.{part}")


def _items(node: OnnxNode, call: relax.Call, parts: Sequence[str]) -> list[relax.Var]:
    """The results of a call."""
    result = node.emit(call)
    return [node.emit(relax.TupleGetItem(result, i), parts[i]) for i in range(len(result.ty.fields))]


def _inner(node: OnnxNode, body: BodyBuilder) -> OnnxNode:
    """The node where its body is built."""
    return replace(node, builder=body.builder, requirements=body.requirements)


def _operand(node: OnnxNode, value: Result) -> Expr:
    """A state as an operand."""
    if value is None or isinstance(value, (Unknown, TensorSequence)):
        raise node.unsupported("whose number of iterations depends on the model's inputs, on sequences,")
    return node.constant(node.tensor(value))


def _variable(node: OnnxNode, value: Result, dtype: str | None = None) -> relax.Var:
    """A result of a body as a variable, of an element type where one is given."""
    if value is None or isinstance(value, (Unknown, TensorSequence)):
        raise node.unsupported("that runs as a function, with results that are no tensors,")
    result = node.constant(node.tensor(value))
    if not isinstance(result, relax.Var):
        result = node.emit(result, "result")
    if dtype is None or dtype_of(result) == dtype:
        return result
    if {dtype, dtype_of(result)} != set(_FLOATS):
        raise node.fault("a state changes its element type", found=dtype_of(result), expected=dtype)
    return node.emit(relax.op.astype(result, dtype), "result")


def _narrowed(node: OnnxNode, value: relax.Var) -> relax.Var:
    return value if dtype_of(value) == "float32" else node.emit(relax.op.astype(value, "float32"), "narrow")


def _truth(value: relax.Var | bool) -> relax.Var | np.ndarray:
    return np.asarray(value) if isinstance(value, bool) else value


def _number(node: OnnxNode, value: Value | None) -> Expr:
    """A number of iterations as int64 []."""
    number = node.constant(np.asarray(_ENDLESS) if value is None else node.tensor(value))
    if product_of(dims_of(number)) != 1:
        raise node.fault("the number of iterations is not one number", found=shape_text(dims_of(number)))
    if isinstance(number, Constant):
        return constant(constant_value(number).astype(np.int64).reshape(()))
    if dtype_of(number) != "int64":
        number = node.emit(relax.op.astype(number, "int64"), "trips")
    return node.emit(relax.op.reshape(number, ()), "trips") if dims_of(number) else number


def _count(bodies: Bodies, node: OnnxNode, graph: onnx.GraphProto) -> None:
    bodies.translated += len(graph.node) + 1
    if bodies.translated > MAX_TRANSLATED:
        raise UnsupportedOperatorError(f"{node.op}, whose body is translated for several types of its states, takes "
                                       f"more than {MAX_TRANSLATED} nodes", layer=node.label)
