"""If, Loop and Scan as plain graph.

A condition that is known takes its branch. One that only running tells computes both branches and selects, so they have
to give tensors of the same type. Loops are unrolled: their number of iterations has to be known, or at least bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..dims import equal_dims, product_of
from ..errors import UnsupportedOperatorError
from ..ir import GraphBuilder, dims_of, dtype_of
from .limits import MAX_UNROLLED
from .onnx_ops import OnnxNode, TensorSequence, Value, normal_dtype
from .onnx_ops.broadcasting import concatenable, shape_text
from .onnx_ops.slicing import sliced
from .onnx_reading import check_graph, reads_of
from .onnx_scope import UNKNOWN, Place, Result, Unknown
from .symbolic_array import SymbolicArray, materialized


class Bodies(Protocol):
    """What translates the bodies; it counts the nodes that loops repeat."""

    builder: GraphBuilder
    unrolled: int

    def body(self, graph: onnx.GraphProto, place: Place, arguments: Sequence[Result]) -> list[Result]:
        """The results of a subgraph that is given ``arguments``."""


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
    both = [bodies.body(_subgraph(node, name, place), place, ()) for name in ("then_branch", "else_branch")]
    if len(both[0]) != len(both[1]):
        raise node.fault("the branches have a different number of results", found=(len(both[0]), len(both[1])))
    why = f"{given}" if isinstance(given, SymbolicArray) else "a condition that depends on the model's inputs"
    return [_selected(node, condition, a, b, why) for a, b in zip(*both, strict=True)]


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


def _differ(node: OnnxNode, why: str, found: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(f"{node.op} that chooses between tensors of different types by {why} is not "
                                    f"supported (found: {found})", layer=node.label,
                                    hint='fix the extent or the input that the condition follows from by dims={…}')


def loop(bodies: Bodies, node: OnnxNode, place: Place) -> list[Result]:
    """Loop: the body as often as it runs.

    Where only running tells whether an iteration takes place it is computed, and its results are selected.
    """
    body, trips = _subgraph(node, "body", place), _trip_count(node)
    states: list[Result] = list(node.inputs[2:])
    if len(body.input) != len(states) + 2 or len(body.output) < len(states) + 1:
        raise node.fault("the body has not as many inputs and outputs as the loop asks for",
                         found=(len(body.input), len(body.output)), expected=f"{len(states)} states")
    scans: list[list[Result]] = [[] for _ in body.output[len(states) + 1:]]
    active = _condition(node, node.inputs[1]) if node.has(1) else True
    is_scanned = any(node.outputs[len(states):])
    i = 0
    while active is not False and (trips is None or i < trips):
        if isinstance(active, relax.Var) and (trips is None or is_scanned):
            raise node.unsupported("whose number of iterations depends on the model's inputs")
        _count(bodies, node, body)
        goes_on, *results = bodies.body(body, place, (np.asarray(i, np.int64), np.asarray(True), *states))
        if isinstance(goes_on, Unknown):
            return [UNKNOWN] * len(node.outputs)
        if goes_on is None:
            raise node.fault("the body's condition is missing")
        states, active = _advanced(node, active, _condition(node, goes_on), states, results)
        for scan, value in zip(scans, results[len(states):], strict=True):
            scan.append(value)
        i += 1
    declared = body.output[len(states) + 1:]
    return states + [_stacked(node, scan, 0, value) if name else None for scan, value, name in
                     zip(scans, declared, node.outputs[len(states):], strict=False)]


def _trip_count(node: OnnxNode) -> int | None:
    """The largest number of iterations; None where there is none."""
    if not node.has(0):
        return None
    if isinstance(node.inputs[0], relax.Var):
        raise node.unsupported("whose number of iterations depends on the model's inputs")
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
    extents = [_dims(v)[axis] for v, axis in scanned]
    steps = node.numbers(extents, "the axis that is scanned")
    if len(set(steps)) != 1:
        raise node.fault("the scanned inputs differ in length", found=steps)
    current, results = list(states), len(body.output) - len(states)
    stacks: list[list[Result]] = [[] for _ in range(results)]
    for i in range(steps[0]):
        _count(bodies, node, body)
        elements = [_element(node, v, axis, steps[0] - 1 - i if back else i)
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
