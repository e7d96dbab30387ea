"""Sequences and optional values, which are known at import: how many tensors there are, and whether one is given."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import Dim, simplified
from ...ir import dims_of
from ..symbolic_array import SymbolicArray
from .broadcasting import concatenable
from .node import OnnxNode, Results, TensorSequence, Value, operator
from .slicing import Interval, sliced


def _sequence(node: OnnxNode, index: int = 0) -> tuple[Value, ...]:
    value = node.inputs[index] if node.has(index) else None
    if not isinstance(value, TensorSequence):
        raise node.fault(f"input {index} is not a sequence")
    return value.items


def _position(node: OnnxNode, index: int, count: int, last: int) -> int:
    """A place in a sequence of ``count``, from 0 to ``last``, which it is where none is given."""
    if not node.has(index):
        return last
    places = node.integers(index, "", "a position") or ()
    if len(places) != 1 or not -count <= places[0] <= last:
        raise node.fault("the position is out of range", found=places, expected=f"{-count}…{last}")
    return places[0] + count if places[0] < 0 else places[0]


@operator("SequenceConstruct")
def construct(node: OnnxNode) -> Results:
    return TensorSequence(tuple(v for v in node.inputs if v is not None))


@operator("SequenceEmpty")
def empty(node: OnnxNode) -> Results:
    return TensorSequence(())


@operator("SequenceLength")
def length(node: OnnxNode) -> Results:
    return np.asarray(len(_sequence(node)), np.int64)


@operator("SequenceAt")
def at(node: OnnxNode) -> Results:
    items = _sequence(node)
    if not items:
        raise node.fault("the sequence is empty")
    return items[_position(node, 1, len(items), len(items) - 1)]


@operator("SequenceInsert")
def insert(node: OnnxNode) -> Results:
    items = list(_sequence(node))
    item = node.inputs[1] if node.has(1) else node.value(1)
    items.insert(_position(node, 2, len(items), len(items)), item)  # type: ignore[arg-type]
    return TensorSequence(tuple(items))


@operator("SequenceErase")
def erase(node: OnnxNode) -> Results:
    items = list(_sequence(node))
    if not items:
        raise node.fault("the sequence is empty")
    del items[_position(node, 1, len(items), len(items) - 1)]
    return TensorSequence(tuple(items))


@operator("SplitToSequence")
def split_to_sequence(node: OnnxNode) -> Results:
    """One part per entry of ``split``, or parts of one size; without it single elements, as ``keepdims`` says."""
    axis, keep = node.axis(int(node.attribute("axis", 0)), node.rank(0)), bool(node.attribute("keepdims", 1))
    extent, parts = node.dims(0)[axis], node.extents(1, "", "the parts")
    keep = keep or parts is not None
    if parts is None or node.rank(1) == 0:
        size = 1 if parts is None else node.numbers(parts, "the size of the parts")[0]
        whole = node.numbers([extent], "the axis that is split")[0]
        if size < 1:
            raise node.fault("the size of the parts is not positive", found=size)
        parts = tuple(min(size, whole - start) for start in range(0, whole, size))
    x = node.value(0)
    end: Dim = 0
    items: list[Value] = []
    for part in parts:
        start, end = end, simplified(end + part)
        cut = range(start, end) if isinstance(start, int) and isinstance(end, int) else Interval(start, end)
        items.append(_without(node, sliced(node, x, {axis: cut}), axis, keep=keep))
    node.require_equal(end, extent)
    return TensorSequence(tuple(items))


def _without(node: OnnxNode, x: relax.Var | np.ndarray, axis: int, *, keep: bool) -> Value:
    if keep:
        return x
    if isinstance(x, np.ndarray):
        return x.squeeze(axis)
    dims = dims_of(x)
    return node.emit(relax.op.reshape(x, [*dims[:axis], *dims[axis + 1:]]))


@operator("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode) -> Results:
    items = _sequence(node)
    if not items or any(isinstance(v, TensorSequence) for v in items):
        raise node.fault("the sequence has no tensors")
    parts = [node.tensor(v) for v in items]
    rank = len(dims_of(node.constant(parts[0])))
    stacked = bool(node.attribute("new_axis", 0))
    axis = node.axis(int(node.attribute("axis", 0)), rank + stacked)
    arrays = [p for p in parts if isinstance(p, np.ndarray)]
    if len(arrays) == len(parts):
        return np.stack(arrays, axis) if stacked else np.concatenate(arrays, axis)
    tensors = [node.constant(p) for p in parts]
    if stacked:
        tensors = [node.emit(relax.op.expand_dims(t, axis), "element") for t in tensors]
    return node.emit(relax.op.concat(concatenable(node, tensors, axis), axis)) if len(tensors) > 1 else \
        node.emit(tensors[0])


@operator("Optional")
def optional(node: OnnxNode) -> Results:
    return (node.inputs[0] if node.has(0) else None,)


@operator("OptionalHasElement")
def has_element(node: OnnxNode) -> Results:
    return np.asarray(node.has(0))


@operator("OptionalGetElement")
def element(node: OnnxNode) -> Results:
    value = node.inputs[0] if node.has(0) else None
    return value if isinstance(value, (TensorSequence, SymbolicArray)) else node.value(0)
