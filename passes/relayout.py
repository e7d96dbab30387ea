"""How each operator is written in another layout than the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import numpy as np
from tvm import relax

from ..dims import Dim, as_dim
from ..ir import Constant, Expr, constant, constant_value, dims_of, op_name, substitute
from .extents import Extent
from .kinds import CONVOLUTION, ELEMENTWISE, REDUCE, TRANSPOSED_CONVOLUTION
from .layouts import Axes, Layouts, channels_last, identity, moves_nothing
from .reshapes import RESHAPES, permutation_of

Rule = Callable[[Layouts, relax.VarBinding], bool]
"""Writes one binding into the new function; False where the operator needs the user's layout."""

_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


def rule_for(name: str | None) -> Rule | None:
    """The rule of an operator; None for one that only has the user's layout."""
    return _RULES.get(name or "")


def _convolution(layouts: Layouts, binding: relax.VarBinding) -> bool:
    """A convolution or a transposed convolution."""
    call, rank = binding.value, len(dims_of(binding.var))
    (data, weight), attrs, spatial = call.args, call.attrs, _SPATIAL[rank]
    is_transposed = str(call.op.name).endswith("_transpose")
    outer, inner = "IO" if is_transposed else "OI"
    plain = (f"NC{spatial}", f"{outer}{inner}{spatial}")
    if not isinstance(weight, Constant) or (str(attrs.data_layout), str(attrs.kernel_layout)) != plain:
        return False
    axes = channels_last(rank)
    further = {"output_padding": ints(attrs.output_padding)} if is_transposed else {}
    result = call_of(call)(
        layouts.get(data, axes), constant(constant_value(weight).transpose(axes)), strides=ints(attrs.strides),
        padding=ints(attrs.padding), dilation=ints(attrs.dilation), groups=int(attrs.groups),
        data_layout=f"N{spatial}C", kernel_layout=f"{outer}{spatial}{inner}", **further)
    layouts.emit(binding, axes, result)
    return True


def call_of(call: relax.Call) -> Callable[..., Expr]:
    """The function of ``relax.op`` that makes calls of this operator."""
    function: Any = relax.op
    for part in str(call.op.name).split(".")[1:]:
        function = getattr(function, part)
    return cast(Callable[..., Expr], function)


def ints(values: Sequence[Any]) -> list[int]:
    """A sequence of TVM integers as Python's."""
    return [int(v) for v in values]


def _pool(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, attrs, rank = binding.value, binding.value.attrs, len(dims_of(binding.var))
    spatial = _SPATIAL[rank]
    if str(attrs.layout) != f"NC{spatial}":
        return False
    last = f"N{spatial}C"
    axes = channels_last(rank)
    data = layouts.get(call.args[0], axes)
    if "adaptive" in str(call.op.name):
        sizes = None if attrs.output_size is None else ints(attrs.output_size)
        result = call_of(call)(data, sizes, layout=last)
    else:
        result = call_of(call)(
            data, ints(attrs.pool_size), strides=ints(attrs.strides), padding=ints(attrs.padding),
            dilation=ints(attrs.dilation), ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad), layout=last)
    layouts.emit(binding, axes, result)
    return True


def _resize(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, attrs = binding.value, binding.value.attrs
    if str(attrs.layout) != "NCHW":
        return False
    axes = channels_last(4)
    result = relax.op.image.resize2d(
        layouts.get(call.args[0], axes), call.args[1], roi=[float(r) for r in attrs.roi], layout="NHWC",
        method=str(attrs.method), coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method=str(attrs.rounding_method), cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude), extrapolation_value=float(attrs.extrapolation_value))
    layouts.emit(binding, axes, result)
    return True


def _elementwise(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, rank = binding.value, len(dims_of(binding.var))
    tensors = [a for a in call.args if isinstance(a, (relax.Var, Constant))]
    leading = [a for a in tensors if isinstance(a, relax.Var) and len(dims_of(a)) == rank]
    if not leading:
        return False
    axes = layouts.common(leading)
    operands = {a: _operand(layouts, a, axes) for a in tensors}
    args = [operands[a] if isinstance(a, (relax.Var, Constant)) else a for a in call.args]
    layouts.emit(binding, axes, relax.Call(call.op, args, call.attrs, call.ty_args))
    return True


def _operand(layouts: Layouts, expr: Expr, axes: Axes) -> Expr:
    """``expr``, which broadcasts against a value of more dimensions, in the layout ``axes`` of that value."""
    shape, rank = dims_of(expr), len(axes)
    if len(shape) == rank and not isinstance(expr, Constant):
        return layouts.get(expr, axes)
    kept = [a for a in axes if a >= rank - len(shape)]
    own = tuple(a - (rank - len(shape)) for a in kept)
    if axes == identity(rank) or not shape:
        return layouts.plain(expr)
    full = (1,) * (rank - len(shape)) + shape
    stored = [full[a] for a in axes]
    if isinstance(expr, Constant):
        while stored and stored[0] == 1:
            stored.pop(0)
        return constant(constant_value(expr).transpose(own).reshape(stored))
    return layouts.builder.emit(relax.op.reshape(layouts.get(expr, own), stored), f"{expr.name}.layout")


def _reduce(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, attrs = binding.value, binding.value.attrs
    rank = len(dims_of(call.args[0]))
    axes = layouts.common(call.args[:1])
    reduced = set(range(rank)) if attrs.axis is None else {int(a) % rank for a in attrs.axis}
    result = call_of(call)(layouts.get(call.args[0], axes), axis=sorted(axes.index(a) for a in reduced),
                           keepdims=bool(attrs.keepdims))
    layouts.emit(binding, axes if bool(attrs.keepdims) else without(axes, reduced), result)
    return True


def without(axes: Axes, removed: set[int]) -> Axes:
    """The layout of a value whose axes ``removed`` are gone."""
    kept = [a for a in axes if a not in removed]
    return tuple(sorted(kept).index(a) for a in kept)


def _softmax(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, rank = binding.value, len(dims_of(binding.var))
    axis = int(call.attrs.axis) % rank
    available = [axes for axes in layouts.layouts_of(call.args[0]) if axes[-1] == axis]
    axes = available[0] if available else (*(a for a in range(rank) if a != axis), axis)
    layouts.emit(binding, axes, call_of(call)(layouts.get(call.args[0], axes), axis=rank - 1))
    return True


def _concat(layouts: Layouts, binding: relax.VarBinding) -> bool:
    fields = binding.value.args[0].fields if isinstance(binding.value.args[0], relax.Tuple) else []
    if not any(isinstance(f, relax.Var) for f in fields):
        return False
    axes = layouts.common(fields)
    axis = axes.index(int(binding.value.attrs.axis) % len(axes))
    layouts.emit(binding, axes, relax.op.concat([layouts.get(f, axes) for f in fields], axis))
    return True


def _pad(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call, attrs = binding.value, binding.value.attrs
    axes = layouts.common(call.args)
    widths = ints(attrs.pad_width)
    moved = [w for a in axes for w in widths[2 * a:2 * a + 2]]
    layouts.emit(binding, axes, relax.op.nn.pad(layouts.get(call.args[0], axes), moved, str(attrs.pad_mode),
                                                float(attrs.pad_value)))
    return True


def _slice(layouts: Layouts, binding: relax.VarBinding) -> bool:
    call = binding.value
    if not all(isinstance(a, relax.Tuple) for a in call.args[1:]) or not isinstance(call.args[0], relax.Var):
        return False
    axes = layouts.common(call.args[:1])
    sliced, *bounds = ([as_dim(v) for v in a.fields] for a in call.args[1:])
    places = [axes.index(a % len(axes)) for a in sliced]
    layouts.emit(binding, axes, relax.op.strided_slice(
        layouts.get(call.args[0], axes), places, *bounds, assume_inbound=bool(call.attrs.assume_inbound)))
    return True


def _permute(layouts: Layouts, binding: relax.VarBinding) -> bool:
    if isinstance(binding.value.args[0], Constant):
        return False
    layouts.alias(binding.var, binding.value.args[0], permutation_of(binding.value))
    return True


def _reshape(layouts: Layouts, binding: relax.VarBinding) -> bool:
    source, shape = binding.value.args[0], dims_of(binding.var)
    if isinstance(source, Constant):
        return False
    for axes in layouts.layouts_of(source):
        result = reshaped_layout(dims_of(source), axes, shape)
        if result is not None:
            value = relax.op.reshape(layouts.get(source, axes), [shape[a] for a in result])
            layouts.emit(binding, result, value)
            return True
    axes = layouts.layouts_of(source)[0]
    row = [d for d in dims_of(source)[1:] if isinstance(d, int)]
    is_row = len(row) == len(axes) - 1 and shape[1:] == (prod(row),)
    if axes[0] == 0 and is_row and _only_rows(layouts, binding):
        order = np.arange(shape[1]).reshape(row).transpose([a - 1 for a in axes[1:]]).reshape(-1)
        layouts.row_order[binding.var] = order
        layouts.emit(binding, identity(2), relax.op.reshape(layouts.get(source, axes), shape))
        return True
    axes = with_runs_together(dims_of(source), axes, shape)
    result = reshaped_layout(dims_of(source), axes, shape)
    if result is None:
        return False
    layouts.emit(binding, result, relax.op.reshape(layouts.get(source, axes), [shape[a] for a in result]))
    return True


def with_runs_together(source: tuple[Dim, ...], axes: Axes, result: tuple[Dim, ...]) -> Axes:
    """The layout next to ``axes`` that a reshape to ``result`` can take: each run in order, at its first axis."""
    first: dict[int, int] = {}
    for run, _ in _runs(source, result):
        first.update(dict.fromkeys(run, min(axes.index(a) for a in run)))
    return tuple(sorted(axes, key=lambda a: (first.get(a, axes.index(a)), a)))


def reshaped_layout(source: tuple[Dim, ...], axes: Axes, result: tuple[Dim, ...]) -> Axes | None:
    """The layout of a reshape's result, so that stored in it, it is a reshape of the source stored in ``axes``.

    A reshape splits and merges runs of neighbouring axes. The layout may permute these runs, not the axes within one.
    None where it does.
    """
    if moves_nothing(source, axes, identity(len(source))):
        return identity(len(result))
    stored = [a for a in axes if source[a] != 1]
    place: dict[int, int] = {}
    for source_axes, result_axes in _runs(source, result):
        first = stored.index(source_axes[0])
        if stored[first:first + len(source_axes)] != source_axes:
            return None
        place.update(dict.fromkeys(result_axes, first))
    # A dimension of 1 stays behind the one that it follows.
    for axis in range(len(result)):
        place.setdefault(axis, place.get(axis - 1, -1))
    return tuple(sorted(range(len(result)), key=lambda axis: place[axis]))


def _runs(source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of axes of ``source`` and ``result`` that hold the same elements; axes of 1 are left out."""
    runs: list[tuple[list[int], list[int]]] = []
    rest = [a for a, d in enumerate(result) if d != 1]
    run: tuple[list[int], list[int]] = ([], [])
    left = right = Extent()
    for axis in (a for a, d in enumerate(source) if d != 1):
        run[0].append(axis)
        left = left * Extent.of(source[axis])
        while rest and right != left and right.divides(left):
            right = right * Extent.of(result[rest[0]])
            run[1].append(rest.pop(0))
        if left == right:
            runs.append(run)
            run = ([], [])
    if run[0]:  # Extents that are not known to agree: one run of all that is left.
        runs.append((run[0], [*run[1], *rest]))
    elif runs:
        runs[-1][1].extend(rest)
    return runs


def _only_rows(layouts: Layouts, binding: relax.VarBinding) -> bool:
    """Whether nothing but products with constant matrices read the binding, as their left side."""
    readers = layouts.uses.get(binding.var, [])
    return bool(readers) and binding.var not in layouts.outputs and all(
        op_name(r.value) == "relax.matmul" and binding.var.same_as(r.value.args[0])
        and isinstance(r.value.args[1], Constant) and len(dims_of(r.value.args[1])) == 2 for r in readers)


def _matmul(layouts: Layouts, binding: relax.VarBinding) -> bool:
    """A product with a constant matrix: takes any layout whose last axis is the last."""
    left, right = binding.value.args
    if not isinstance(left, relax.Var) or not isinstance(right, Constant) or len(dims_of(right)) != 2:
        return False
    order = layouts.row_order.get(left)
    weight = right if order is None else constant(constant_value(right)[order])
    axes = _layout_with_last(layouts, left, 1)
    layouts.emit(binding, axes, relax.op.matmul(layouts.get(left, axes), weight))
    return True


def _normalization(layouts: Layouts, binding: relax.VarBinding) -> bool:
    """A normalization of the trailing axes: takes any layout in which these are the trailing ones."""
    call, rank = binding.value, len(dims_of(binding.var))
    trailing = len(call.attrs.axes)
    normalized = sorted(int(a) % rank for a in call.attrs.axes)
    if normalized != list(range(rank - trailing, rank)) or not isinstance(call.args[0], relax.Var):
        return False
    axes = _layout_with_last(layouts, call.args[0], trailing)
    parameters = [layouts.plain(a) for a in call.args[1:]]
    value = relax.Call(call.op, [layouts.get(call.args[0], axes), *parameters], call.attrs, call.ty_args)
    layouts.emit(binding, axes, value)
    return True


def _layout_with_last(layouts: Layouts, var: relax.Var, trailing: int) -> Axes:
    """A layout in which ``var`` is there and that keeps its ``trailing`` last axes; its own where there is none."""
    plain = identity(len(dims_of(var)))
    cut = len(plain) - trailing
    return next((axes for axes in layouts.layouts_of(var) if axes[cut:] == plain[cut:]), plain)


def as_it_is(layouts: Layouts, binding: relax.VarBinding) -> None:
    """Write a binding that needs the user's layout."""
    operands = {v: layouts.plain(v) for v in layouts.variables(binding.value)}
    layouts.define_plain(binding.var, layouts.builder.emit(substitute(binding.value, operands), binding.var.name))


_POOLS = [f"relax.nn.{kind}_pool{rank}d" for kind in ("max", "avg", "adaptive_avg") for rank in (1, 2, 3)]
_RULES: dict[str, Rule] = {
    **dict.fromkeys(CONVOLUTION | TRANSPOSED_CONVOLUTION, _convolution),
    **dict.fromkeys(_POOLS, _pool),
    "relax.image.resize2d": _resize,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCE, _reduce),
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _softmax,
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
    "relax.strided_slice": _slice,
    "relax.permute_dims": _permute,
    **dict.fromkeys(RESHAPES, _reshape),
    "relax.matmul": _matmul,
    "relax.nn.layer_norm": _normalization,
    "relax.nn.rms_norm": _normalization,
}
