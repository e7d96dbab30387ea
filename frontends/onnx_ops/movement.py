"""Operators that move elements and those that answer questions about shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...ir import Expr, dtype_of, shape_of
from .node import MAX_ELEMENTS, OnnxNode, Results, Value, operator


def reshaped(node: OnnxNode, shape: Sequence[int]) -> Value:
    """Input 0 in another shape; itself where it has that shape already."""
    if math.prod(shape) != math.prod(node.shape(0)) or any(d < 0 for d in shape):
        raise node.fault("the shape does not fit the number of elements", found=tuple(shape),
                         expected=f"{math.prod(node.shape(0))} elements, as in {node.shape(0)}")
    if 0 in shape:
        return np.zeros(tuple(shape), node.dtype(0))  # There are no elements to wait for; Relax reads 0 as "copy".
    return node.value(0) if tuple(shape) == node.shape(0) else node.emit(relax.op.reshape(node.expr(0), tuple(shape)))


@operator("Identity")
def identity(node: OnnxNode) -> Results:
    return node.value(0)


@operator("Dropout")
def dropout(node: OnnxNode) -> Results:
    """Nothing at inference; the mask is all true."""
    if node.has(2) and (not node.is_known(2) or node.known(2, "training mode").any()):
        raise node.unsupported("in training mode")
    return (node.value(0), np.ones(node.shape(0), bool)) if any(node.outputs[1:]) else node.value(0)


@operator("Shape")
def shape(node: OnnxNode) -> Results:
    return np.asarray(node.shape(0)[slice(node.attribute("start", 0), node.attribute("end"))], np.int64)


@operator("Size")
def size(node: OnnxNode) -> Results:
    return np.asarray(math.prod(node.shape(0)), np.int64)


@operator("Reshape")
def reshape(node: OnnxNode) -> Results:
    """0 copies a dimension (unless ``allowzero``), -1 takes what is left."""
    wanted = list(node.integers(1, "shape", "a shape") or ())
    source = node.shape(0)
    if not node.attribute("allowzero", 0):
        for i, d in enumerate(wanted):
            if d == 0:
                if i >= len(source):
                    raise node.fault("the shape copies a dimension that the input lacks", found=wanted)
                wanted[i] = source[i]
    if wanted.count(-1) > 1 or any(d < -1 for d in wanted):
        raise node.fault("the shape is unusable", found=wanted, expected="at most one -1, and nothing below")
    if -1 in wanted:
        rest = math.prod(d for d in wanted if d != -1)
        wanted[wanted.index(-1)] = math.prod(source) // rest if rest else 0
    return reshaped(node, wanted)


@operator("Flatten")
def flatten(node: OnnxNode) -> Results:
    source, axis = node.shape(0), int(node.attribute("axis", 1))
    if not -len(source) <= axis <= len(source):
        raise node.fault("the axis is out of range", found=axis, expected=f"-{len(source)}…{len(source)}")
    axis = axis + len(source) if axis < 0 else axis
    return reshaped(node, (math.prod(source[:axis]), math.prod(source[axis:])))


@operator("Squeeze")
def squeeze(node: OnnxNode) -> Results:
    source = node.shape(0)
    axes = node.integers(1, "axes", "axes")
    found = [i for i, d in enumerate(source) if d == 1] if axes is None else node.axes(axes, len(source))
    if any(source[a] != 1 for a in found):
        raise node.fault("a squeezed dimension is not 1", found=f"axes {found} of {source}")
    return reshaped(node, [d for i, d in enumerate(source) if i not in found])


@operator("Unsqueeze")
def unsqueeze(node: OnnxNode) -> Results:
    axes, source = node.integers(1, "axes", "axes"), list(node.shape(0))
    if axes is None:
        raise node.fault("axes are missing")
    found = node.axes(axes, len(source) + len(axes))
    for axis in sorted(found):
        source.insert(axis, 1)
    return reshaped(node, source)


@operator("Transpose")
def transpose(node: OnnxNode) -> Results:
    rank = len(node.shape(0))
    axes = node.axes(node.attribute("perm", tuple(reversed(range(rank)))), rank)
    if len(axes) != rank:
        raise node.fault("perm does not name every axis", found=axes)
    return node.value(0) if axes == list(range(rank)) else node.emit(relax.op.permute_dims(node.expr(0), axes))


@operator("Concat")
def concat(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 1 if node.opset < 4 else 0)), len(node.shape(0)))
    parts = [node.expr(i) for i in range(len(node.inputs)) if 0 not in node.shape(i)]
    if len(parts) == 1:
        return parts[0] if isinstance(parts[0], relax.Var) else node.emit(parts[0])
    return node.emit(relax.op.concat(parts, axis))


@operator("Expand")
def expand(node: OnnxNode) -> Results:
    wanted = node.integers(1, "shape", "a shape") or ()
    try:
        target = np.broadcast_shapes(node.shape(0), tuple(max(int(d), 0) for d in wanted))
    except ValueError as error:
        raise node.fault("the shape does not broadcast", found=wanted, expected=f"as {node.shape(0)}") from error
    return node.value(0) if target == node.shape(0) else node.emit(relax.op.broadcast_to(node.expr(0), target))


@operator("Tile")
def tile(node: OnnxNode) -> Results:
    repeats = node.integers(1, "repeats", "repeats") or ()
    if len(repeats) != len(node.shape(0)) or any(r < 1 for r in repeats):
        raise node.fault("the repeats are unusable", found=repeats, expected=f"{len(node.shape(0))} numbers from 1 on")
    return node.value(0) if set(repeats) <= {1} else node.emit(relax.op.tile(node.expr(0), list(repeats)))


@operator("Slice")
def slice_(node: OnnxNode) -> Results:
    source = node.shape(0)
    starts, ends = (node.integers(i, name, name) or () for i, name in ((1, "starts"), (2, "ends")))
    axes = node.integers(3, "axes", "axes")
    found = node.axes(tuple(range(len(starts))) if axes is None else axes, len(source))
    steps = node.integers(4, "steps", "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(found) == len(steps) or 0 in steps:
        raise node.fault("starts, ends, axes and steps do not fit", found=(starts, ends, found, steps))
    ranges = [range(*slice(*bounds).indices(source[a])) for a, *bounds in zip(found, starts, ends, steps, strict=True)]
    return sliced(node, node.value(0), dict(zip(found, ranges, strict=True)))


def sliced(node: OnnxNode, x: Value, ranges: dict[int, range]) -> Value:
    """The elements of ``x`` that ``ranges`` (by axis) name; backwards ranges are sliced forwards and turned round."""
    value: Expr = node.constant(x)
    source = shape_of(value)
    kept = {a: r for a, r in ranges.items() if r != range(source[a])}
    if any(len(r) == 0 for r in kept.values()):
        shape = tuple(len(ranges[a]) if a in ranges else d for a, d in enumerate(source))
        return np.zeros(shape, dtype_of(value))
    forwards = {a: r if r.step > 0 else r[::-1] for a, r in kept.items()}
    cut = {a: r for a, r in forwards.items() if r != range(source[a])}
    if cut:
        value = node.emit(relax.op.strided_slice(
            value, list(cut), [r.start for r in cut.values()], [r[-1] + 1 for r in cut.values()],
            [r.step for r in cut.values()]))
    for axis, r in kept.items():
        if r.step < 0 and len(r) > 1:
            value = node.emit(relax.op.flip(value, axis))
    return value if isinstance(value, relax.Var) else x


@operator("Split")
def split(node: OnnxNode) -> Results:
    """One slice per output."""
    axis = node.axis(int(node.attribute("axis", 0)), len(node.shape(0)))
    extent = node.shape(0)[axis]
    parts = node.integers(1, "split", "the parts")
    if parts is None:
        count = int(node.attribute("num_outputs", len(node.outputs)))
        whole = -(-extent // max(count, 1))
        parts = tuple(max(min(whole, extent - i * whole), 0) for i in range(count))
    if sum(parts) != extent or any(p < 0 for p in parts) or len(parts) < len(node.outputs):
        raise node.fault("the parts do not add up", found=parts, expected=f"{len(node.outputs)} parts of {extent}")
    ends = np.cumsum(parts).tolist()
    return tuple(sliced(node, node.value(0), {axis: range(e - p, e)}) for p, e in zip(parts, ends, strict=True))


@operator("DepthToSpace", "SpaceToDepth")
def depth_to_space(node: OnnxNode) -> Results:
    block, source = int(node.attribute("blocksize", 0)), node.shape(0)
    mode = node.attribute("mode", "DCR")
    if len(source) != 4 or block < 1 or mode not in ("DCR", "CRD"):
        raise node.fault("the form is unusable", found=f"{source}, blocksize {block}, mode {mode}")
    n, c, h, w = source
    if node.op == "SpaceToDepth":
        axes = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
        rows, columns = h // block, w // block
        steps = (n, c, rows, block, columns, block), axes, (n, c * block * block, rows, columns)
    elif mode == "DCR":
        steps = (n, block, block, c // block ** 2, h, w), [0, 3, 4, 1, 5, 2], (n, c // block ** 2, h * block, w * block)
    else:
        steps = (n, c // block ** 2, block, block, h, w), [0, 1, 4, 2, 5, 3], (n, c // block ** 2, h * block, w * block)
    inner, axes, outer = steps
    if math.prod(inner) != math.prod(source):
        raise node.fault("the input does not divide into blocks", found=source, expected=f"multiples of {block}")
    value = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(node.expr(0), inner)), axes))
    return node.emit(relax.op.reshape(value, outer))


@operator("EyeLike")
def eye_like(node: OnnxNode) -> Results:
    source = node.shape(0)
    if len(source) != 2 or math.prod(source) > MAX_ELEMENTS >> 12:
        raise node.fault("the input is not a matrix of sensible size", found=source)
    return np.eye(*source, k=int(node.attribute("k", 0)), dtype=node.dtype(0))


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad")
def pad(node: OnnxNode) -> Results:
    """Negative widths cut, the rest pads."""
    source, mode = node.shape(0), node.attribute("mode", "constant")
    widths = node.integers(1, "pads", "widths") or node.attribute("paddings", ())
    axes = node.axes(node.integers(3, "axes", "axes") or range(len(source)), len(source))
    if len(widths) != 2 * len(axes) or mode not in _PAD_MODES:
        raise node.fault("the widths or the mode are unusable", found=f"{widths}, {mode}",
                         expected=f"{2 * len(axes)} widths, mode {', '.join(_PAD_MODES)}")
    before, after = ({a: widths[i + k * len(axes)] for i, a in enumerate(axes)} for k in (0, 1))
    cut = {a: range(max(-before[a], 0), source[a] - max(-after[a], 0)) for a in axes}
    value = sliced(node, node.value(0), cut)
    flat = [max(w.get(a, 0), 0) for a in range(len(source)) for w in (before, after)]
    limits = [{"reflect": len(r) - 1, "wrap": len(r)}.get(mode, MAX_ELEMENTS)
              for r in (cut.get(a, range(d)) for a, d in enumerate(source))]
    if any(w > limits[i // 2] for i, w in enumerate(flat)):
        raise node.fault(f"the widths are larger than the input allows in mode {mode}", found=widths, expected=limits)
    return value if not any(flat) else node.emit(
        relax.op.nn.pad(node.constant(value), flat, _PAD_MODES[mode], _pad_value(node)))


def _pad_value(node: OnnxNode) -> float:
    if node.has(2):
        value = node.known(2, "a value")
        if value.size != 1:
            raise node.fault("the value is not one number", found=value.shape)
        return float(value.reshape(()))
    return float(node.attribute("value", 0.0))
