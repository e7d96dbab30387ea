"""Kernels of movement groups: elements change places, the storage stays.

A tensor is a flat buffer and a *layout*: which element of the buffer each index means. Transposing, slicing and
broadcasting only change the layout, reshaping does where it can; elements are copied once at the end, or where an
operator needs them in order (concatenation, padding, pooling, a reshape across a transpose).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, as_dim, equal_dims, product_of, simplified
from ...errors import UnsupportedOperatorError
from ...ir import Constant, constant_value, dims_of, op_name, outputs_of
from ...precision import Storage
from ..target import Capabilities
from .arrays import encode_array
from .copying import copy, fill
from .kernel import Kernel, KernelRequest, buffer_dtype, declare_parameters
from .loops import Loops
from .strided import Strided, dense
from .vector_memory import flat_view
from .windows import Window, emit_max_pool

_RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.nn.batch_flatten")


def build_movement(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a movement group; all its inputs and its one output share a storage.

    Raises UnsupportedOperatorError for an operator that computes.
    """
    constants = [constant for binding in request.group.bindings for constant in _constants(binding.value)]
    arrays = tuple(encode_array(constant_value(c), request.outputs[0]) for c in constants)
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, arrays)
        known = {**dict(zip(request.group.parameters, parameters.inputs, strict=True)),
                 **dict(zip(constants, parameters.constants, strict=True))}
        tensors: dict[tvm.ir.Expr, Strided] = {
            key: dense(flat_view(buffer), dims_of(key)) for key, buffer in known.items()}
        stage = _Stage(request.outputs[0], Loops.of(request, capabilities, threads), request.group.name,
                       flat_view(parameters.outputs[0]))
        bindings, (last, written) = request.group.bindings, _last_copy(request, stage.output)
        for position, binding in enumerate(bindings):
            tensors[binding.var] = stage.apply(binding, tensors, written if position == last else None)
        result = tensors[outputs_of(request.group.function)[0]]
        if result.buffer is not stage.output:
            copy(dense(stage.output, result.shape), result, stage.loops)
    return Kernel(builder.get(), arrays, 0, tuple(request.group.symbols))


def _constants(value: tvm.ir.Expr) -> list[Constant]:
    arguments = [f for arg in value.args for f in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    is_pad = op_name(value) == "relax.nn.pad"
    return [a for a in arguments if isinstance(a, Constant) and not is_pad]


def _last_copy(request: KernelRequest, output: tvm.ir.Expr) -> tuple[int, Strided]:
    """The operator after which only the shape and the order of axes change, and its result in the output's buffer."""
    bindings = request.group.bindings
    last, written = len(bindings) - 1, dense(output, dims_of(bindings[-1].var))
    while last > 0:
        call, name = bindings[last].value, op_name(bindings[last].value)
        if name in _RESHAPES:
            before = written.reshaped(dims_of(call.args[0]))
        elif name == "relax.permute_dims":
            before = written.transposed([_axes(call).index(a) for a in range(len(written.shape))])
        else:
            break
        if before is None:
            break
        last, written = last - 1, before
    return last, written


def _axes(call: relax.Call) -> list[int]:
    """The axes of a permutation, counted from the front."""
    axes, rank = call.attrs.axes, len(dims_of(call))
    return [int(a) % rank for a in axes] if axes is not None else list(reversed(range(rank)))


@dataclass
class _Stage:
    """Applies one operator after the other inside the function being built.

    target : where the operator may write its result, in the output.
    """

    storage: Storage
    loops: Loops
    layer: str
    output: tvm.ir.Expr
    target: Strided | None = None

    def apply(self, binding: relax.VarBinding, tensors: dict[tvm.ir.Expr, Strided], target: Strided | None) -> Strided:
        call, name = binding.value, op_name(binding.value)
        if name not in _OPERATORS:
            raise UnsupportedOperatorError("this operator does not only move elements", layer=self.layer, found=name)
        arguments = [tensors[f] for arg in call.args for f in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
                     if f in tensors]
        self.target = target
        return _OPERATORS[name](self, call, arguments, dims_of(binding.var))

    def allocate(self, shape: Sequence[Dim], *, in_order: bool = True) -> Strided:
        """A tensor to write, ``in_order`` a dense one: in the output where the operator is the last that writes."""
        if self.target is not None and equal_dims(self.target.shape, shape) and (self.target.is_dense or not in_order):
            return self.target
        return dense(T.alloc_buffer((product_of(shape),), buffer_dtype(self.storage)), shape)

    def ordered(self, x: Strided) -> Strided:
        """``x`` itself, or a dense copy of it in memory of its own."""
        return x if x.is_dense else self.copied(x, T.alloc_buffer((product_of(x.shape),), buffer_dtype(self.storage)))

    def copied(self, x: Strided, buffer: tvm.ir.Expr) -> Strided:
        """A dense copy of ``x`` in a buffer."""
        result = dense(buffer, x.shape)
        copy(result, x, self.loops)
        return result

    def zero(self, value: float = 0.0) -> int | float:
        """A real value as it is stored."""
        stored = encode_array(np.full((1,), value, np.float32), self.storage)[0]
        return float(stored) if stored.dtype.kind == "f" else int(stored)


def _reshape(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    same = inputs[0].reshaped(shape)
    return same if same is not None else dense(stage.copied(inputs[0], stage.allocate(shape).buffer).buffer, shape)


def _permute(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    return inputs[0].transposed(_axes(call))


def _slice(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    axes, begin = ([as_dim(v) for v in arg.fields] for arg in call.args[1:3])
    steps = [as_dim(v) for v in call.args[4].fields] if len(call.args) > 4 else [1] * len(axes)
    result = inputs[0]
    for axis, first, step in zip(axes, begin, steps, strict=True):
        axis = axis % len(shape)
        start = _first_element(first, result.shape[axis], backwards=not isinstance(step, int) or step < 0)
        result = result.sliced(axis, start, shape[axis], step)
    return result


def _first_element(index: Dim, extent: Dim, *, backwards: bool) -> Dim:
    """Where a slice starts, as Relax counts: a negative index from the end, then into the tensor."""
    last = extent - 1 if backwards else extent
    if isinstance(index, int) and isinstance(extent, int):
        return min(max(index + extent if index < 0 else index, 0), last)
    if isinstance(index, int):
        return simplified(T.max(index + extent, 0)) if index < 0 else simplified(T.min(index, last))
    negative = T.Select(index < 0, index + extent, index)
    return simplified(T.min(T.max(negative, 0), last))


def _broadcast(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    return inputs[0].broadcast(shape)


def _tile(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    extents = (1,) * (len(shape) - len(inputs[0].shape)) + inputs[0].shape
    repeats = [int(r) for r in call.attrs.repeats]
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    paired = [d for extent in extents for d in (1, extent)]
    repeated = [d for repeat, extent in zip(repeats, extents, strict=True) for d in (repeat, extent)]
    source = stage.ordered(inputs[0])
    result = stage.allocate(shape)
    copy(dense(result.buffer, repeated), dense(source.buffer, paired).broadcast(repeated), stage.loops)
    return result


def _repeat(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    source, axis = inputs[0], 0
    if call.attrs.axis is not None:
        axis = int(call.attrs.axis) % len(source.shape)
    else:
        source = dense(stage.ordered(source).buffer, [product_of(source.shape)])
    extents = (*source.shape[:axis + 1], int(call.attrs.repeats), *source.shape[axis + 1:])
    result = stage.allocate(shape)
    copy(dense(result.buffer, extents), source.inserted(axis + 1).broadcast(extents), stage.loops)
    return result


def _concat(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    axis = int(call.attrs.axis if call.attrs.axis is not None else 0) % len(shape)
    result = stage.allocate(shape, in_order=False)
    first: Dim = 0
    for x in inputs:
        copy(result.sliced(axis, first, x.shape[axis]), x, stage.loops)
        first = first + x.shape[axis]
    return result


def _stack(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    axis = int(call.attrs.axis if call.attrs.axis is not None else 0) % len(shape)
    result = stage.allocate(shape, in_order=False)
    for position, x in enumerate(inputs):
        copy(result.sliced(axis, position, 1).without(axis), x, stage.loops)
    return result


def _flip(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    axis = int(call.attrs.axis) % len(shape)
    return inputs[0].sliced(axis, shape[axis] - 1, shape[axis], -1)


def _pad(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    widths, mode = [int(w) for w in call.attrs.pad_width], str(call.attrs.pad_mode)
    if mode != "constant":
        raise UnsupportedOperatorError("this way of padding has no kernel", layer=stage.layer, found=mode,
                                       expected="constant")
    value = constant_value(call.args[1]).item() if len(call.args) > 1 else float(call.attrs.pad_value)
    result = stage.allocate(shape)
    fill(result, stage.zero(value), stage.loops)
    inside = result
    for axis, (before, extent) in enumerate(zip(widths[::2], inputs[0].shape, strict=True)):
        inside = inside.sliced(axis, before, extent)
    copy(inside, inputs[0], stage.loops)
    return result


def _max_pool(stage: _Stage, call: relax.Call, inputs: Sequence[Strided], shape: tuple[Dim, ...]) -> Strided:
    source, result = stage.ordered(inputs[0]), stage.allocate(shape)
    emit_max_pool(source.buffer, result.buffer, Window.of(call, source.shape, shape, stage.layer), stage.storage,
                  stage.loops)
    return result


_Operator = Callable[[_Stage, relax.Call, Sequence[Strided], tuple[Dim, ...]], Strided]
_OPERATORS: dict[str | None, _Operator] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    "relax.permute_dims": _permute,
    "relax.strided_slice": _slice,
    "relax.broadcast_to": _broadcast,
    "relax.tile": _tile,
    "relax.repeat": _repeat,
    "relax.concat": _concat,
    "relax.stack": _stack,
    "relax.flip": _flip,
    "relax.nn.pad": _pad,
    "relax.nn.max_pool1d": _max_pool,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.max_pool3d": _max_pool,
}
