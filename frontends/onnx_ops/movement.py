"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from ...dims import Dim, as_dim, equal_dims, is_equal_dim, product_of, simplified
from ...ir import Expr, dims_of
from ..limits import MAX_ELEMENTS
from .broadcasting import concatenable, fitted, is_number, shape_text
from .generators import filled
from .node import OnnxNode, Results, Value, operator
from .slicing import Interval, sliced


def reshaped(node: OnnxNode, shape: Sequence[Dim]) -> Value:
    """Input 0 in another shape; itself where it has that shape already."""
    source, wanted = node.dims(0), tuple(simplified(d) for d in shape)
    if equal_dims(source, wanted):
        return node.value(0)
    if any(d < 0 for d in wanted if isinstance(d, int)):
        raise node.fault("the shape has a negative extent", found=shape_text(wanted))
    if 0 in wanted and 0 in source:
        return np.zeros(node.numbers(wanted, "the result"), node.dtype(0))  # Relax reads 0 as "copy".
    left, right = (product_of(side) for side in _without_common_factors(source, wanted))
    if isinstance(left, int) and isinstance(right, int) and left != right:
        raise node.fault("the shape does not fit the number of elements", found=shape_text(wanted),
                         expected=f"as many as in {shape_text(source)}")
    node.require_equal(left, right)
    return node.emit(relax.op.reshape(node.expr(0), wanted))


def _without_common_factors(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """The factors of two products without those of which each is provably one of the other side."""
    left, right = ([f for d in side for f in _factors(d)] for side in (a, b))
    rest = []
    for factor in left:
        match = next((i for i, f in enumerate(right) if not isinstance(f, int) and is_equal_dim(f, factor)), None)
        if match is None:
            rest.append(factor)
        else:
            del right[match]
    return rest, right


def _factors(dim: Dim) -> list[Dim]:
    return [*_factors(as_dim(dim.a)), *_factors(as_dim(dim.b))] if isinstance(dim, tirx.Mul) else [dim]


@operator("Identity")
def identity(node: OnnxNode) -> Results:
    return node.value(0)


@operator("Dropout")
def dropout(node: OnnxNode) -> Results:
    """Nothing at inference; the mask is all true."""
    if node.has(2) and (not node.is_known(2) or node.known(2, "training mode").any()):
        raise node.unsupported("in training mode")
    return (node.value(0), filled(node, node.dims(0), np.asarray(True))) if any(node.outputs[1:]) else node.value(0)


@operator("Reshape")
def reshape(node: OnnxNode) -> Results:
    """0 copies a dimension (unless ``allowzero``), -1 takes what is left."""
    wanted = list(node.extents(1, "shape", "a shape") or ())
    source = node.dims(0)
    if not node.attribute("allowzero", 0):
        for i, d in enumerate(wanted):
            if is_number(d, 0):
                if i >= len(source):
                    raise node.fault("the shape copies a dimension that the input lacks", found=shape_text(wanted))
                wanted[i] = source[i]
    open_axes = [i for i, d in enumerate(wanted) if is_number(d, -1)]
    if len(open_axes) > 1 or any(d < -1 for d in wanted if isinstance(d, int)):
        raise node.fault("the shape is unusable", found=shape_text(wanted),
                         expected="at most one -1, and nothing below")
    for i in open_axes:
        wanted[i] = quotient(source, [*wanted[:i], *wanted[i + 1:]])
    return reshaped(node, wanted)


def quotient(source: Sequence[Dim], rest: Sequence[Dim]) -> Dim:
    """The extent that a shape lacks beside ``rest`` for as many elements as ``source`` has."""
    total, divisor = product_of(source), product_of(rest)
    if is_number(divisor, 0):
        return 0
    if isinstance(total, int) and isinstance(divisor, int):
        return total // divisor
    return simplified(tirx.floordiv(total, divisor))


@operator("Flatten")
def flatten(node: OnnxNode) -> Results:
    source, axis = node.dims(0), int(node.attribute("axis", 1))
    if not -len(source) <= axis <= len(source):
        raise node.fault("the axis is out of range", found=axis, expected=f"-{len(source)}…{len(source)}")
    axis = axis + len(source) if axis < 0 else axis
    return reshaped(node, (product_of(source[:axis]), product_of(source[axis:])))


@operator("Squeeze")
def squeeze(node: OnnxNode) -> Results:
    """Without axes all extents of 1 go, but no symbolic ones, even if they are 1 when the program is called."""
    source = node.dims(0)
    axes = node.integers(1, "axes", "axes")
    if axes is None and not all(isinstance(d, int) for d in source):
        node.numbers(source, "the input, from which all extents of 1 are taken,")
    found = [i for i, d in enumerate(source) if is_number(d, 1)] if axes is None else node.axes(axes, len(source))
    if any(isinstance(source[a], int) and source[a] != 1 for a in found):
        raise node.fault("a squeezed dimension is not 1", found=f"axes {found} of {shape_text(source)}")
    for a in found:
        node.require_equal(source[a], 1)
    return reshaped(node, [d for i, d in enumerate(source) if i not in found])


@operator("Unsqueeze")
def unsqueeze(node: OnnxNode) -> Results:
    axes, source = node.integers(1, "axes", "axes"), list(node.dims(0))
    if axes is None:
        raise node.fault("axes are missing")
    found = node.axes(axes, len(source) + len(axes))
    for axis in sorted(found):
        source.insert(axis, 1)
    return reshaped(node, source)


@operator("Transpose")
def transpose(node: OnnxNode) -> Results:
    rank = node.rank(0)
    axes = node.axes(node.attribute("perm", tuple(reversed(range(rank)))), rank)
    if len(axes) != rank:
        raise node.fault("perm does not name every axis", found=axes)
    return node.value(0) if axes == list(range(rank)) else node.emit(relax.op.permute_dims(node.expr(0), axes))


@operator("Concat")
def concat(node: OnnxNode) -> Results:
    axis = node.axis(int(node.attribute("axis", 1 if node.opset < 4 else 0)), node.rank(0))
    parts = [node.expr(i) for i in range(len(node.inputs)) if 0 not in node.dims(i)]
    if not parts:
        shape = list(node.shape(0))
        shape[axis] = sum(node.shape(i)[axis] for i in range(len(node.inputs)))
        return np.zeros(shape, node.dtype(0))
    if len(parts) == 1:
        return parts[0] if isinstance(parts[0], relax.Var) else node.emit(parts[0])
    return node.emit(relax.op.concat(concatenable(node, parts, axis), axis))


@operator("Expand")
def expand(node: OnnxNode) -> Results:
    """To what the input and ``shape`` broadcast to."""
    wanted = node.extents(1, "shape", "a shape") or ()
    source = node.dims(0)
    if any(isinstance(d, int) and d < 0 for d in wanted):
        raise node.fault("the shape has a negative extent", found=shape_text(wanted))
    rank = max(len(source), len(wanted))
    pairs = zip(*((1,) * (rank - len(d)) + tuple(d) for d in (source, wanted)), strict=True)
    target: list[Dim] = []
    for own, new in pairs:
        if not is_number(own, 1) and not is_number(new, 1):
            node.require_equal(own, new)
        target.append(own if is_number(new, 1) or (isinstance(own, int) and own != 1) else new)
    if equal_dims(source, target):
        return node.value(0)
    if 0 in target:
        return np.zeros(node.numbers(target, "the result"), node.dtype(0))
    return node.emit(relax.op.broadcast_to(fitted(node, node.expr(0), target), target))


@operator("Tile")
def tile(node: OnnxNode) -> Results:
    """Repeated along an axis of extent 1 is broadcast, so that the number of times may be symbolic."""
    repeats, source = node.extents(1, "repeats", "repeats") or (), node.dims(0)
    if len(repeats) != len(source) or any(r < 0 for r in repeats if isinstance(r, int)):
        raise node.fault("the repeats are unusable", found=shape_text(repeats),
                         expected=f"{len(source)} numbers from 0 on")
    if 0 in repeats:
        return np.zeros([d * r for d, r in zip(node.shape(0), node.numbers(repeats, "the repeats"), strict=True)],
                        node.dtype(0))
    x, counts = node.expr(0), list(repeats)
    for axis, r in enumerate(repeats):
        if not isinstance(r, int):
            x, counts[axis] = _repeated(node, x, axis, r), 1
    numbers = node.numbers(counts, "the repeats")
    if set(numbers) <= {1}:
        return x if isinstance(x, relax.Var) else node.value(0)
    return node.emit(relax.op.tile(x, list(numbers)))


def _repeated(node: OnnxNode, x: Expr, axis: int, count: Dim) -> Expr:
    """``x`` repeated ``count`` times along ``axis``."""
    dims = dims_of(x)
    wide = node.emit(relax.op.expand_dims(x, axis), "repeated")
    wide = node.emit(relax.op.broadcast_to(wide, (*dims[:axis], count, *dims[axis:])), "repeated")
    return node.emit(relax.op.reshape(wide, (*dims[:axis], simplified(dims[axis] * count), *dims[axis + 1:])))


@operator("DepthToSpace", "SpaceToDepth")
def depth_to_space(node: OnnxNode) -> Results:
    block, source = int(node.attribute("blocksize", 0)), node.dims(0)
    mode = node.attribute("mode", "DCR")
    if len(source) != 4 or block < 1 or mode not in ("DCR", "CRD"):
        raise node.fault("the form is unusable", found=f"{shape_text(source)}, blocksize {block}, mode {mode}")
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
    multiples = [(c // block ** 2 * block ** 2, c)] if node.op != "SpaceToDepth" else [
        (rows * block, h), (columns * block, w)]
    for whole, extent in multiples:
        node.require_equal(whole, extent)
    value = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(node.expr(0), inner)), axes))
    return node.emit(relax.op.reshape(value, outer))


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad")
def pad(node: OnnxNode) -> Results:
    """Negative widths cut, the rest pads."""
    source, mode = node.dims(0), node.attribute("mode", "constant")
    widths = node.integers(1, "pads", "widths") or node.attribute("paddings", ())
    axes = node.axes(node.integers(3, "axes", "axes") or range(len(source)), len(source))
    if len(widths) != 2 * len(axes) or mode not in _PAD_MODES:
        raise node.fault("the widths or the mode are unusable", found=f"{widths}, {mode}",
                         expected=f"{2 * len(axes)} widths, mode {', '.join(_PAD_MODES)}")
    before, after = ({a: widths[i + k * len(axes)] for i, a in enumerate(axes)} for k in (0, 1))
    cuts = {a: Interval(max(-before[a], 0), source[a] - max(-after[a], 0)) for a in axes
            if min(before[a], after[a]) < 0}
    value = sliced(node, node.value(0), cuts)
    flat = [max(w.get(a, 0), 0) for a in range(len(source)) for w in (before, after)]
    extents = node.constant(value).ty.shape
    if any(w > MAX_ELEMENTS for w in flat):
        raise node.fault("the widths are larger than a tensor can be", found=flat)
    for i, width in enumerate(flat):
        if mode in ("reflect", "wrap") and width:
            node.require_at_least(as_dim(extents[i // 2]), width + (mode == "reflect"),
                                  f"the widths are larger than the input allows in mode {mode}")
    return value if not any(flat) else node.emit(
        relax.op.nn.pad(node.constant(value), flat, _PAD_MODES[mode], _pad_value(node)))


def _pad_value(node: OnnxNode) -> float:
    if node.has(2):
        value = node.known(2, "a value")
        if value.size != 1:
            raise node.fault("the value is not one number", found=value.shape)
        return float(value.reshape(()))
    return float(node.attribute("value", 0.0))
