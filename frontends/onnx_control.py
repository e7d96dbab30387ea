"""If, Loop and Scan.

As far as it is known at import how they go they are plain graph: a known condition takes its branch, loops of known
length are unrolled. Where a condition only running tells both branches are computed and their results selected, as are
those of an iteration that may not take place. Where that is not possible, because branches give tensors of different
shapes or nobody knows how many iterations there are, the bodies become functions (``onnx_running``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..dims import equal_dims, product_of
from ..errors import UnsupportedOperatorError
from ..ir import dims_of, dtype_of
from .extents import extent
from .limits import MAX_UNROLLED
from .onnx_bodies import Bodies, BodyBuilder, attempt
from .onnx_ops import OnnxNode, TensorSequence, Value, normal_dtype
from .onnx_ops.broadcasting import concatenable, shape_text
from .onnx_ops.slicing import sliced
from .onnx_reading import check_graph, reads_of
from .onnx_running import Course, Iteration, running_branch, running_loop
from .onnx_scope import UNKNOWN, Place, Result, Unknown
from .symbolic_array import SymbolicArray, known_array, materialized


class _OnlyRunningTells(Exception):
    """The loop or branch is no plain graph."""


class _DifferError(UnsupportedOperatorError):
    """Two results have no common type."""


def _subgraph(node: OnnxNode, name: str, place: Place) -> onnx.GraphProto:
    graph = node.attribute(name)
    if not isinstance(graph, onnx.GraphProto):
        raise node.fault(f"the attribute {name} is missing")
    mentioned = {n for inner in graph.node for n in (*inner.output, *reads_of(inner))}
    check_graph(graph, place.scope.visible(mentioned | {v.name for v in (*graph.input, *graph.output)}))
    return graph


def _condition(node: OnnxNode, value: Value) -> relax.Var | bool:
    """A condition as true, false, or a tensor of rank 0."""
    if isinstance(value, TensorSequence):
        raise node.fault("the condition is a sequence")
    shape = dims_of(value) if isinstance(value, relax.Var) else value.shape
    if product_of(shape) != 1:
        raise node.fault("the condition is not one value", found=shape_text(shape))
    if isinstance(value, np.ndarray):
        return bool(value.reshape(()))
    if isinstance(value, SymbolicArray):
        value = materialized(node.builder, f"{node.name}.condition", value)
    if dtype_of(value) != "bool":
        raise node.fault("the condition is not boolean", found=dtype_of(value))
    return node.emit(relax.op.reshape(value, ()), "condition") if shape else value


def branch(bodies: Bodies, node: OnnxNode, place: Place) -> list[Result]:
    """If: one branch, or a selection from both."""
    given = node.inputs[0] if node.has(0) else node.value(0)
    condition = _condition(node, given)
    if isinstance(condition, bool):
        return bodies.body(_subgraph(node, "then_branch" if condition else "else_branch", place), place, ())
    graphs = [_subgraph(node, name, place) for name in ("then_branch", "else_branch")]
    if len(graphs[0].output) != len(graphs[1].output):
        raise node.fault("the branches have a different number of results",
                         found=tuple(len(g.output) for g in graphs))
    why = f"{given}" if isinstance(given, SymbolicArray) else "a condition that depends on the model's inputs"
    selected = None if node.label in bodies.decided else _both(bodies, node, place, graphs, condition, why)
    if selected is None:
        return running_branch(bodies, node, place, graphs, condition, lambda found: _differ(node, why, found))
    return selected


def _both(bodies: Bodies, node: OnnxNode, place: Place, graphs: Sequence[onnx.GraphProto], condition: relax.Var,
          why: str) -> list[Result] | None:
    """A selection from the results of both branches; None where these differ in type, or should not both run."""
    with attempt(bodies) as forget:
        running = bodies.running
        try:
            both = [bodies.body(graph, place, ()) for graph in graphs]
            selected = [_selected(node, condition, a, b, why) for a, b in zip(*both, strict=True)]
            if bodies.running == running:
                return selected
        except _DifferError:
            pass
        forget()
    return None


def _selected(node: OnnxNode, condition: relax.Var, yes: Result, no: Result, why: str) -> Result:
    """``yes`` where the condition is true, else ``no``."""
    if isinstance(yes, Unknown) or isinstance(no, Unknown):
        return UNKNOWN
    if yes is no:
        return yes
    if isinstance(yes, TensorSequence) and isinstance(no, TensorSequence) and len(yes.items) == len(no.items):
        return TensorSequence(tuple(_selected(node, condition, a, b, why)  # type: ignore[misc]
                                    for a, b in zip(yes.items, no.items, strict=True)))
    if yes is None or no is None or isinstance(yes, TensorSequence) or isinstance(no, TensorSequence):
        raise _differ(node, why, "a tensor or none, or sequences")
    if isinstance(yes, np.ndarray) and isinstance(no, np.ndarray) and yes.dtype == no.dtype \
            and np.array_equal(yes, no):
        return yes
    a, b = (materialized(node.builder, f"{node.name}.extents", v) if isinstance(v, SymbolicArray) else node.constant(v)
            for v in (yes, no))
    if {dtype_of(a), dtype_of(b)} == {"float32", "float64"}:
        a, b = (v if dtype_of(v) == "float32" else node.emit(relax.op.astype(v, "float32"), "narrow") for v in (a, b))
    if dtype_of(a) != dtype_of(b) or not equal_dims(dims_of(a), dims_of(b)):
        raise _differ(node, why, f"{dtype_of(a)} {shape_text(dims_of(a))} and {dtype_of(b)} {shape_text(dims_of(b))}")
    return node.emit(relax.op.where(condition, a, b))


def _differ(node: OnnxNode, why: str, found: str) -> _DifferError:
    return _DifferError(f"{node.op} that chooses between tensors of different types by {why} is not "
                        f"supported (found: {found})", layer=node.label,
                        hint='fix the extent or the input that the condition follows from by dims={…}')


def loop(bodies: Bodies, node: OnnxNode, place: Place) -> list[Result]:
    """Loop: the body as often as it runs."""
    body, states = _subgraph(node, "body", place), list(node.inputs[2:])
    if len(body.input) != len(states) + 2 or len(body.output) < len(states) + 1:
        raise node.fault("the body has not as many inputs and outputs as the loop asks for",
                         found=(len(body.input), len(body.output)), expected=f"{len(states)} states")
    active = _condition(node, node.inputs[1]) if node.has(1) else True
    if node.label not in bodies.decided:
        with attempt(bodies) as forget:
            try:
                return _unrolled(bodies, node, place, body, active)
            except (_OnlyRunningTells, _DifferError):
                forget()

    def results(inner: OnnxNode, returned: Sequence[Result]) -> tuple[relax.Var | bool, Sequence[Result]]:
        return _goes_on(inner, returned[0]), returned[1:]

    course = Course(body, [v.name for v in body.input[2:]], node.inputs[0] if node.has(0) else None, active,
                    lambda inner, function, i, current: (i.symbolic, np.asarray(True), *current), results)
    return running_loop(bodies, node, place, course, states)


def _unrolled(bodies: Bodies, node: OnnxNode, place: Place, body: onnx.GraphProto,
              active: relax.Var | bool) -> list[Result]:
    """The iterations of a loop one after the other, ``active`` being whether there is a first.

    Where only running tells whether an iteration takes place it is computed, and its results are selected.
    """
    trips, states = _trip_count(node), list(node.inputs[2:])
    scans: list[list[Result]] = [[] for _ in body.output[len(states) + 1:]]
    is_scanned, i, running = any(node.outputs[len(states):]), 0, bodies.running
    while active is not False and (trips is None or i < trips):
        if isinstance(active, relax.Var) and (trips is None or is_scanned or bodies.running > running):
            raise _OnlyRunningTells
        _count(bodies, node, body)
        goes_on, *results = bodies.body(body, place, (np.asarray(i, np.int64), np.asarray(True), *states))
        if isinstance(goes_on, Unknown):
            return [UNKNOWN] * len(node.outputs)
        states, active = _advanced(node, active, _goes_on(node, goes_on), states, results)
        for scan, value in zip(scans, results[len(states):], strict=True):
            scan.append(value)
        i += 1
    declared = body.output[len(states) + 1:]
    return states + [_stacked(node, scan, 0, value) if name else None for scan, value, name in
                     zip(scans, declared, node.outputs[len(states):], strict=False)]


def _goes_on(node: OnnxNode, value: Result) -> relax.Var | bool:
    """Whether another iteration follows, as the body says."""
    if value is None or isinstance(value, Unknown):
        raise node.fault("the body's condition is missing")
    return _condition(node, value)


def _trip_count(node: OnnxNode) -> int | None:
    """The largest number of iterations; None where there is none."""
    if not node.has(0):
        return None
    if isinstance(node.inputs[0], (relax.Var, SymbolicArray)):
        raise _OnlyRunningTells
    trips = node.known(0, "a number of iterations")
    if trips.size != 1:
        raise node.fault("the number of iterations is not one number", found=trips.shape)
    return max(int(trips.reshape(())), 0)


def _count(bodies: Bodies, node: OnnxNode, body: onnx.GraphProto) -> None:
    bodies.unrolled += len(body.node) + 1
    if bodies.unrolled > MAX_UNROLLED:
        raise UnsupportedOperatorError(f"{node.op}, unrolled, takes more than {MAX_UNROLLED} nodes", layer=node.label,
                                       hint="export the model with fewer iterations")


def _advanced(node: OnnxNode, active: relax.Var | bool, goes_on: relax.Var | bool, old: Sequence[Result],
              new: Sequence[Result]) -> tuple[list[Result], relax.Var | bool]:
    """The states after an iteration, and whether another follows."""
    current = list(new[:len(old)])
    if not isinstance(active, relax.Var):
        return current, goes_on
    why = "a condition that depends on the model's inputs"
    kept = [_selected(node, active, a, b, why) for a, b in zip(current, old, strict=True)]
    if isinstance(goes_on, bool):
        return kept, active if goes_on else False
    return kept, node.emit(relax.op.logical_and(active, goes_on), "condition")


def scan(bodies: Bodies, node: OnnxNode, place: Place) -> list[Result]:
    """Scan: the body for every element along an axis of its inputs."""
    body, count = _subgraph(node, "body", place), int(node.attribute("num_scan_inputs", 0))
    if not 1 <= count <= len(node.inputs):
        raise node.fault("the number of scanned inputs is not possible", found=count,
                         expected=f"1…{len(node.inputs)}")
    if node.opset < 9:
        return _batched_scan(bodies, node, place, body, count)
    inputs = [_given(node, v) for v in node.inputs]
    first = len(inputs) - count
    if len(body.input) != len(inputs) or len(body.output) < first:
        raise node.fault("the body has not as many inputs and outputs as the node", found=len(body.input),
                         expected=len(inputs))
    axes = _each(node, "scan_input_axes", count)
    directions = _each(node, "scan_input_directions", count)
    scanned = [(v, node.axis(a, len(_dims(v)))) for v, a in zip(inputs[first:], axes, strict=True)]
    return _scan(bodies, node, place, body, inputs[:first], scanned, directions)


def _scan(bodies: Bodies, node: OnnxNode, place: Place, body: onnx.GraphProto, states: Sequence[Result],
          scanned: Sequence[tuple[Value, int]], directions: Sequence[int]) -> list[Result]:
    steps, *others = (_dims(v)[axis] for v, axis in scanned)
    for other in others:
        node.require_equal(other, steps, "the scanned inputs differ in length")
    if not isinstance(steps, int):
        return _running_scan(bodies, node, place, body, states, scanned, directions)
    current, results = list(states), len(body.output) - len(states)
    stacks: list[list[Result]] = [[] for _ in range(results)]
    for i in range(steps):
        _count(bodies, node, body)
        elements = [_element(node, v, axis, steps - 1 - i if back else i)
                    for (v, axis), back in zip(scanned, directions, strict=True)]
        out = bodies.body(body, place, (*current, *elements))
        current = out[:len(current)]
        for stack, value in zip(stacks, out[len(current):], strict=True):
            stack.append(value)
    axes = _each(node, "scan_output_axes", results)
    backwards = _each(node, "scan_output_directions", results)
    declared = body.output[len(current):]
    return current + [_stacked(node, stack[::-1] if back else stack, axis, value)
                      for stack, back, axis, value in zip(stacks, backwards, axes, declared, strict=True)]


def _running_scan(bodies: Bodies, node: OnnxNode, place: Place, body: onnx.GraphProto, states: Sequence[Result],
                  scanned: Sequence[tuple[Value, int]], directions: Sequence[int]) -> list[Result]:
    """Scan over an axis of symbolic extent: a loop whose iterations take their elements themselves."""
    def arguments(inner: OnnxNode, function: BodyBuilder, i: Iteration,
                  current: Sequence[relax.Var]) -> Sequence[Result]:
        return [*current, *(_element_at(inner, function.capture(v), axis, i.number, is_backwards=bool(back))
                            for (v, axis), back in zip(scanned, directions, strict=True))]

    (value, axis), *_ = scanned
    course = Course(body, [v.name for v in body.input[:len(states)]],
                    known_array([_dims(value)[axis]], (), "int64"), True, arguments,
                    lambda inner, returned: (True, returned))
    results = running_loop(bodies, node, place, course, states)
    stacks = len(body.output) - len(states)
    layouts = zip(results[len(states):], _each(node, "scan_output_axes", stacks),
                  _each(node, "scan_output_directions", stacks), strict=False)
    return [*results[:len(states)], *(_laid_out(node, r, axis, is_backwards=bool(back)) for r, axis, back in layouts)]


def _element_at(node: OnnxNode, value: Result, axis: int, index: relax.Var, *, is_backwards: bool) -> relax.Var:
    """What stands at an index that only running tells, counted from the end where ``is_backwards``."""
    tensor = node.constant(node.tensor(_given(node, value)))
    if is_backwards:
        last = extent(node.builder, node.name, dims_of(tensor)[axis] - 1)
        index = node.emit(relax.op.subtract(last, index), "index")
    return node.emit(relax.op.take(tensor, index, axis, mode="clip"), "element")


def _laid_out(node: OnnxNode, stacked: Result, axis: int, *, is_backwards: bool) -> Result:
    """What is stacked along the first axis along another, the last first where ``is_backwards``."""
    if not isinstance(stacked, relax.Var):
        return stacked
    if is_backwards:
        stacked = node.emit(relax.op.flip(stacked, 0), "backwards")
    rank = len(dims_of(stacked))
    order = list(range(1, rank))
    order.insert(node.axis(axis, rank), 0)
    return node.emit(relax.op.permute_dims(stacked, order), "stacked") if order != list(range(rank)) else stacked


def _batched_scan(bodies: Bodies, node: OnnxNode, place: Place, body: onnx.GraphProto, count: int) -> list[Result]:
    """Opset 8: the first axis of everything is a batch, whose samples are scanned one by one."""
    if node.has(0):
        raise node.unsupported("with sequence lengths")
    inputs = [_given(node, v) for v in node.inputs[1:]]
    states = len(inputs) - count
    batch = node.numbers(_dims(inputs[0])[:1], "the batch")[0] if inputs else 0
    samples = []
    for b in range(batch):
        own = [_element(node, v, 0, b) for v in inputs]
        scanned = [(_given(node, v), 0) for v in own[states:]]
        samples.append(_scan(bodies, node, place, body, own[:states], scanned, _each(node, "directions", count)))
    return [_stacked(node, list(values), 0, None) for values in zip(*samples, strict=True)]


def _given(node: OnnxNode, value: Value | None) -> Value:
    if value is None or isinstance(value, TensorSequence):
        raise node.fault("an input is missing, or a sequence")
    return value


def _dims(value: Value) -> Sequence[object]:
    return dims_of(value) if isinstance(value, relax.Var) else value.shape  # type: ignore[union-attr]


def _each(node: OnnxNode, name: str, count: int) -> Sequence[int]:
    values = tuple(node.attribute(name, ())) or (0,) * count
    if len(values) != count:
        raise node.fault(f"the attribute {name} has the wrong length", found=values, expected=count)
    return values


def _element(node: OnnxNode, value: Value, axis: int, index: int) -> Value:
    """What stands at ``index`` of an axis, without that axis."""
    if isinstance(value, SymbolicArray):
        return SymbolicArray(np.take(value.elements, index, axis), value.dtype)
    if isinstance(value, np.ndarray):
        return np.take(value, index, axis)
    dims = dims_of(value)
    part = sliced(node, value, {axis: range(index, index + 1)})
    return node.emit(relax.op.reshape(part, [*dims[:axis], *dims[axis + 1:]]), "element")


def _stacked(node: OnnxNode, values: Sequence[Result], axis: int, declared: onnx.ValueInfoProto | None) -> Result:
    """The results of all iterations along a new axis."""
    if any(isinstance(v, Unknown) for v in values):
        return UNKNOWN
    if not values:
        return _nothing(node, declared)
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if len(arrays) == len(values):
        return np.stack(arrays, axis)
    tensors = [node.constant(_tensor(node, v)) for v in values]
    dims = dims_of(tensors[0])
    place = node.axis(axis, len(dims) + 1)
    parts = [node.emit(relax.op.reshape(t, [*dims_of(t)[:place], 1, *dims_of(t)[place:]]), "element") for t in tensors]
    return node.emit(relax.op.concat(concatenable(node, parts, place), place)) if len(parts) > 1 else parts[0]


def _tensor(node: OnnxNode, value: Result) -> relax.Var | np.ndarray:
    if isinstance(value, SymbolicArray):
        return materialized(node.builder, f"{node.name}.extents", value)
    if not isinstance(value, (relax.Var, np.ndarray)):
        raise node.unsupported("with iterations that give sequences")
    return value


def _nothing(node: OnnxNode, declared: onnx.ValueInfoProto | None) -> np.ndarray:
    """The result of no iterations, which has the declared type."""
    kind = declared.type.tensor_type if declared is not None else onnx.TypeProto.Tensor()
    dims = [d.dim_value for d in kind.shape.dim]
    if not kind.HasField("shape") or any(not d.HasField("dim_value") for d in kind.shape.dim):
        raise node.unsupported("of no iterations, with results of an undeclared shape,")
    return np.zeros((0, *dims), normal_dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))


Control = Callable[[Bodies, OnnxNode, Place], "list[Result]"]
CONTROL: dict[str, Control] = {"If": branch, "Loop": loop, "Scan": scan}
