"""Kernels that reduce along axes: softmax, log_softmax, layer_norm, rms_norm, sum, mean, max, min.

The input is seen as [outer, n, inner] with the reduced axes in the middle. Where ``inner`` is 1 a unit of work is a
row, vectors lie along it and are reduced to a scalar at the end; otherwise a unit is a vector of neighbouring results.
Everything is computed in float32 and the epilogue is applied to the results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import is_one, product_of
from ...errors import UnsupportedOperatorError
from ...ir import Constant, constant_value, dims_of, op_name
from ...precision import FLOAT32
from ..target import Capabilities
from . import vector_math as vm
from .copying import copy
from .epilogue import Epilogue, Position
from .kernel import Kernel, KernelRequest, Parameters, declare_parameters
from .loops import Loops
from .scan import Scan, Shape, are_neighbours
from .signature import input_index
from .strided import Strided, dense
from .vector_math import Vector, bound, splat
from .vector_memory import Index, flat_view, load_float

# What of a normalization's affine part multiplies and what adds: positions in the call's arguments.
_AFFINE = {"relax.nn.layer_norm": (1, 2), "relax.nn.rms_norm": (1,)}


def build_rows(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a softmax, layer_norm, rms_norm or reduce group.

    Raises UnsupportedOperatorError for other anchors.
    """
    anchor = request.group.anchor
    call, layer = anchor.value, request.group.name
    name = op_name(call) or ""
    if name not in _ANCHORS:
        raise UnsupportedOperatorError("this reduction has no kernel", layer=layer, found=name)
    epilogue = Epilogue(request, capabilities, anchor)
    extents, axes = dims_of(call.args[0]), _axes(call)
    loops = Loops.of(request, capabilities, threads)
    affine = [call.args[i] for i in _AFFINE.get(name, ())]
    own = [np.ascontiguousarray(constant_value(a), np.float32) for a in affine if isinstance(a, Constant)]
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, (*own, *epilogue.constants))
        epilogue.bind(parameters)
        source = input_index(request, call.args[0])
        x = dense(flat_view(parameters.inputs[source]), extents)
        if not are_neighbours(extents, axes):
            x, axes = _reduced_last(x, axes, loops)
        scan = Scan(x.buffer, request.inputs[source], Shape.of(x.shape, axes), epilogue.vector_lanes, loops)
        weights = _Weights(request, parameters, affine)
        _ANCHORS[name](call, scan, epilogue, weights)
    return Kernel(builder.get(), (*own, *epilogue.constants), 0, tuple(request.group.symbols))


def _reduced_last(x: Strided, axes: tuple[int, ...], loops: Loops) -> tuple[Strided, tuple[int, ...]]:
    """A copy of a tensor with the reduced axes moved to the end, and where they are then."""
    rank = len(x.shape)
    order = [d for d in range(rank) if d not in axes] + list(axes)
    moved = x.transposed(order)
    result = dense(T.alloc_buffer((product_of(x.shape),), str(x.buffer.dtype)), moved.shape)
    copy(result, moved, loops)
    return result, tuple(range(rank - len(axes), rank))


def _axes(call: relax.Call) -> tuple[int, ...]:
    rank = len(dims_of(call.args[0]))
    if hasattr(call.attrs, "axes"):
        axes = [int(a) for a in call.attrs.axes]
    elif op_name(call) in ("relax.nn.softmax", "relax.nn.log_softmax"):
        axes = [int(call.attrs.axis)]
    else:
        axes = list(range(rank)) if call.attrs.axis is None else [int(a) for a in call.attrs.axis]
    return tuple(sorted(a % rank for a in axes))


class _Weights:
    """The scale and shift of a normalization, constants or inputs, indexed along the reduced axes."""

    def __init__(self, request: KernelRequest, parameters: Parameters, affine: list[tvm.ir.Expr]) -> None:
        self._sources = []
        constants = iter(parameters.constants)
        for expr in affine:
            if isinstance(expr, Constant):
                self._sources.append((flat_view(next(constants)), FLOAT32))
            else:
                index = input_index(request, expr)
                self._sources.append((flat_view(parameters.inputs[index]), request.inputs[index]))

    def load(self, which: int, scan: Scan, at: Position, valid: Index) -> Vector:
        """The weights of the vector at a place of the scan (``at.row`` counts along the reduced axes)."""
        buffer, storage = self._sources[which]
        if is_one(scan.shape.inner):
            return load_float(buffer, at.row * scan.shape.columns + at.column, scan.lanes, valid, storage)
        return splat(load_float(buffer, at.row, 1, 1, storage), scan.lanes)


_Anchor = Callable[[relax.Call, Scan, Epilogue, _Weights], None]


def _softmax(call: relax.Call, scan: Scan, epilogue: Epilogue, weights: _Weights) -> None:
    logarithm = op_name(call) == "relax.nn.log_softmax"
    with scan.units():
        highest = scan.reduce("max", lambda x: x)
        total = scan.reduce("sum", lambda x: vm.exp(x - scan.spread(highest)), keep=not logarithm)
        if logarithm:
            offset = bound(highest + vm.log(total))
            scan.each(lambda x, at, place, valid: epilogue.emit(x - scan.spread(offset), place, valid))
            return
        factor = bound(splat(1.0, vm.lanes_of(total)) / total)

        def finish(x: Vector, at: Position, place: Position, valid: Index) -> None:
            power = x if scan.has_kept else vm.exp(x - scan.spread(highest))
            epilogue.emit(power * scan.spread(factor), place, valid)

        scan.each(finish)


def _layer_norm(call: relax.Call, scan: Scan, epilogue: Epilogue, weights: _Weights) -> None:
    with scan.units():
        mean = bound(scan.mean(lambda x: x))
        variance = scan.mean(lambda x: _square(x - scan.spread(mean)))
        factor = bound(_inverse_root(variance, float(call.attrs.epsilon)))

        def finish(x: Vector, at: Position, place: Position, valid: Index) -> None:
            y = (x - scan.spread(mean)) * scan.spread(factor)
            if call.attrs.scale:
                y = y * weights.load(0, scan, at, valid)
            if call.attrs.center:
                y = y + weights.load(1, scan, at, valid)
            epilogue.emit(y, place, valid)

        scan.each(finish)


def _rms_norm(call: relax.Call, scan: Scan, epilogue: Epilogue, weights: _Weights) -> None:
    with scan.units():
        factor = bound(_inverse_root(scan.mean(_square), float(call.attrs.epsilon)))
        scan.each(lambda x, at, place, valid: epilogue.emit(
            x * scan.spread(factor) * weights.load(0, scan, at, valid), place, valid))


def _square(x: Vector) -> Vector:
    x = bound(x)
    return x * x


def _inverse_root(x: Vector, epsilon: float) -> Vector:
    lanes = vm.lanes_of(x)
    return splat(1.0, lanes) / vm.sqrt(x + splat(epsilon, lanes))


def _reduce(call: relax.Call, scan: Scan, epilogue: Epilogue, weights: _Weights) -> None:
    kind = (op_name(call) or "").removeprefix("relax.")
    with scan.units():
        result = bound(scan.mean(lambda x: x) if kind == "mean" else scan.reduce(kind, lambda x: x))
        index = scan.result_index
        columns = epilogue.columns
        place = Position(index, 0)
        if not is_one(columns):
            place = Position(T.floordiv(index, columns), T.floormod(index, columns))
        epilogue.emit(result, place, scan.valid)


_ANCHORS: dict[str, _Anchor] = {
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    **{f"relax.{kind}": _reduce for kind in ("sum", "mean", "max", "min")},
}
