"""The kernel of ``narrowcast.lstm``: one product for the inputs of all steps, then the recurrence.

Directions and samples are independent tasks. Columns of the weights are packed so that one vector of each of the four
gates lies side by side: a step computes the gates of ``lanes`` hidden units together and never leaves the registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...errors import UnsupportedOperatorError
from ...ir import Constant, constant_value, shape_of
from ..target import Capabilities
from . import vector_math as vm
from .kernel import Kernel, KernelRequest, declare_parameters
from .loops import SERIAL_ELEMENTS, task_loop
from .signature import input_index
from .vector_math import bound, fma, splat
from .vector_memory import Index, flat_view, load, store

_GATES = 4  # input, output, forget, cell: the order of ONNX
# Steps of the input product that share one read of the weights.
_STEPS = 4


@dataclass(frozen=True)
class _Sizes:
    steps: int
    batch: int
    inputs: int
    directions: int
    hidden: int
    lanes: int

    @property
    def blocks(self) -> int:
        """Vectors that hold the hidden units."""
        return -(-self.hidden // self.lanes)

    @property
    def columns(self) -> int:
        """Packed columns: four gates for every vector of hidden units."""
        return self.blocks * _GATES * self.lanes

    @property
    def macs(self) -> int:
        return self.steps * self.batch * self.directions * _GATES * self.hidden * (self.inputs + self.hidden)


@dataclass(frozen=True)
class _Buffers:
    """Flat views of the parameters."""

    x: tvm.ir.Expr
    w: tvm.ir.Expr
    r: tvm.ir.Expr
    b: tvm.ir.Expr
    h0: tvm.ir.Expr
    c0: tvm.ir.Expr
    y: tvm.ir.Expr
    h: tvm.ir.Expr
    c: tvm.ir.Expr


def build_lstm(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a group that is one LSTM layer; float32 in and out.

    Raises UnsupportedOperatorError where the weights are not constants.
    """
    call = request.group.bindings[0].value
    if not all(isinstance(a, Constant) for a in call.args[1:4]):
        raise UnsupportedOperatorError("the weights of an LSTM must be constants", layer=request.group.name)
    steps, batch, inputs = shape_of(call.args[0])
    directions, _, hidden = shape_of(call.args[2])
    sizes = _Sizes(steps, batch, inputs, directions, hidden, capabilities.vector_bits // 32)
    arrays = [_pack(constant_value(a), sizes) for a in call.args[1:4]]
    states = [a for a in (call.args[0], *call.args[4:]) if isinstance(a, Constant)]
    arrays += [np.ascontiguousarray(constant_value(a), np.float32) for a in states]
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, arrays)
        constants = iter(parameters.constants[3:])
        x, h0, c0 = (next(constants) if isinstance(a, Constant) else parameters.inputs[input_index(request, a)]
                     for a in (call.args[0], *call.args[4:]))
        views = (flat_view(b) for b in (x, *parameters.constants[:3], h0, c0, *parameters.outputs))
        _emit(sizes, _Buffers(*views), threads)
    return Kernel(builder.get(), tuple(arrays), sizes.macs)


def _pack(array: np.ndarray, sizes: _Sizes) -> np.ndarray:
    """[directions, 4 * hidden, depth] to [directions, depth, columns]; a bias has depth 1."""
    depth = array.shape[2] if array.ndim == 3 else 1
    gates = array.reshape(sizes.directions, _GATES, sizes.hidden, depth)
    padded = np.zeros((sizes.directions, _GATES, sizes.blocks * sizes.lanes, depth), np.float32)
    padded[:, :, :sizes.hidden] = gates
    split = padded.reshape(sizes.directions, _GATES, sizes.blocks, sizes.lanes, depth)
    return np.ascontiguousarray(split.transpose(0, 4, 2, 1, 3).reshape(sizes.directions, depth, sizes.columns))


def _emit(s: _Sizes, buffers: _Buffers, threads: int) -> None:
    work = max(s.macs, SERIAL_ELEMENTS) if s.macs > 16 * SERIAL_ELEMENTS else 0
    width = s.blocks * s.lanes
    with task_loop(s.directions * s.batch, work, threads) as task:
        direction, sample = T.floordiv(task, s.batch), T.floormod(task, s.batch)
        gates = T.alloc_buffer((s.steps * s.columns,), "float32")
        hidden, following, cell = (T.alloc_buffer((width,), "float32") for _ in range(3))
        _input_product(s, buffers, gates, direction, sample)
        for state, source in ((hidden, buffers.h0), (cell, buffers.c0)):
            _copy_state(s, source, task * s.hidden, state, 0, width)
        with T.serial(0, s.steps) as step:
            time = T.Select(direction == 0, step, s.steps - 1 - step) if s.directions > 1 else step
            with T.serial(0, s.blocks) as block:
                _cell(s, buffers.r, gates, (hidden, following, cell), (direction, time, block))
            _copy_state(s, following, 0, hidden, 0, width)
            _copy_state(s, hidden, 0, buffers.y, ((time * s.directions + direction) * s.batch + sample) * s.hidden,
                        s.hidden)
        _copy_state(s, hidden, 0, buffers.h, task * s.hidden, s.hidden)
        _copy_state(s, cell, 0, buffers.c, task * s.hidden, s.hidden)


def _input_product(s: _Sizes, buffers: _Buffers, gates: tvm.ir.Expr, direction: Index, sample: Index) -> None:
    """``gates[t, :] = b + x[t] W`` for all steps of one sample, ``_STEPS`` at a time."""
    groups = -(-s.steps // _STEPS)
    with T.serial(0, groups) as group, T.serial(0, s.columns // s.lanes) as vector:
        column = vector * s.lanes
        # The last group overlaps the one before instead of running past the end.
        first = T.min(group * _STEPS, s.steps - _STEPS) if s.steps >= _STEPS else 0
        count = min(_STEPS, s.steps)
        slots = [T.alloc_buffer((s.lanes,), "float32") for _ in range(count)]
        for slot in slots:
            store(slot, 0, load(buffers.b, direction * s.columns + column, s.lanes, s.lanes), s.lanes)
        with T.serial(0, s.inputs) as k:
            weight = bound(load(buffers.w, (direction * s.inputs + k) * s.columns + column, s.lanes, s.lanes))
            for i, slot in enumerate(slots):
                x = splat(buffers.x[((first + i) * s.batch + sample) * s.inputs + k], s.lanes)
                store(slot, 0, fma(x, weight, load(slot, 0, s.lanes, s.lanes)), s.lanes)
        for i, slot in enumerate(slots):
            store(gates, (first + i) * s.columns + column, load(slot, 0, s.lanes, s.lanes), s.lanes)


def _cell(s: _Sizes, r: tvm.ir.Expr, gates: tvm.ir.Expr, states: tuple[tvm.ir.Expr, tvm.ir.Expr, tvm.ir.Expr],
          place: tuple[Index, Index, Index]) -> None:
    """One step for one vector of hidden units."""
    hidden, following, cell = states
    direction, time, block = place
    first = block * (_GATES * s.lanes)
    slots = [T.alloc_buffer((s.lanes,), "float32") for _ in range(_GATES)]
    for g, slot in enumerate(slots):
        store(slot, 0, load(gates, time * s.columns + first + g * s.lanes, s.lanes, s.lanes), s.lanes)
    with T.serial(0, s.hidden) as k:
        h = bound(splat(hidden[k], s.lanes))
        for g, slot in enumerate(slots):
            weight = load(r, (direction * s.hidden + k) * s.columns + first + g * s.lanes, s.lanes, s.lanes)
            store(slot, 0, fma(h, weight, load(slot, 0, s.lanes, s.lanes)), s.lanes)
    i, o, f, c = (load(slot, 0, s.lanes, s.lanes) for slot in slots)
    old = load(cell, block * s.lanes, s.lanes, s.lanes)
    new = bound(vm.sigmoid(f) * old + vm.sigmoid(i) * vm.tanh(c))
    store(cell, block * s.lanes, new, s.lanes)
    store(following, block * s.lanes, vm.sigmoid(o) * vm.tanh(new), s.lanes)


def _copy_state(s: _Sizes, source: tvm.ir.Expr, of: Index, target: tvm.ir.Expr, at: Index, width: int) -> None:
    """Copy one sample's hidden units; beyond them a ``width`` of whole vectors is filled with 0."""
    for block in range(s.blocks):
        valid = min(s.lanes, s.hidden - block * s.lanes)
        value = load(source, of + block * s.lanes, s.lanes, valid)
        store(target, at + block * s.lanes, value, min(s.lanes, width - block * s.lanes))
