"""The kernel of ``narrowcast.linear_attention``.

The columns of a head's state do not depend on each other: a task is one vector of columns of one head, whose part of
the state stays in memory of its own over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...ir import Constant, constant_value, dims_of
from ..target import Capabilities
from .isa import bind
from .kernel import Kernel, KernelRequest, declare_parameters
from .loops import Loops, task_loop
from .signature import input_index
from .vector_math import splat
from .vector_memory import Index, flat_view, load, store

_OPERANDS = ("q", "k", "v", "state", "decay", "rate")


@dataclass(frozen=True)
class _Layer:
    """Flat buffers of the operands by name, of the outputs, and the extents; ``lanes`` divides ``value``."""

    tensors: dict[str, tirx.Buffer]
    outputs: tuple[tirx.Buffer, ...]
    batch: Dim
    steps: Dim
    heads: int
    group: int
    key: int
    value: int
    lanes: int
    delta: bool


def build_linear_attention(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a group that is one linear attention; float32 in and out."""
    call = request.group.bindings[0].value
    operands = dict(zip(_OPERANDS, call.args, strict=True))
    arrays = {n: np.ascontiguousarray(constant_value(o)) for n, o in operands.items() if isinstance(o, Constant)}
    loops = Loops.of(request, capabilities, threads)
    batch, steps = dims_of(operands["k"])[:2]
    heads, key = (int(d) for d in dims_of(operands["k"])[2:])
    value, widest = int(dims_of(operands["v"])[3]), loops.vector_bytes // 4
    lanes = max(n for n in range(1, widest + 1) if value % n == 0)
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, list(arrays.values()))
        tensors = {n: flat_view(c) for n, c in zip(arrays, parameters.constants, strict=True)}
        for name in operands.keys() - arrays.keys():
            tensors[name] = flat_view(parameters.inputs[input_index(request, operands[name])])
        layer = _Layer(tensors, tuple(map(flat_view, parameters.outputs)), batch, steps, heads,
                       int(dims_of(operands["q"])[2]) // heads, key, value, lanes, bool(call.attrs["delta"]))
        blocks = value // lanes
        with task_loop(batch * heads * blocks, batch * steps * heads * key * value, loops) as task:
            _emit_task(layer, bind("head", T.floordiv(task, blocks)), T.floormod(task, blocks) * lanes)
    reads = 2 + layer.group + layer.delta
    macs = request.typically(batch * steps * (heads * key * value * reads))
    return Kernel(builder.get(), tuple(arrays.values()), macs, tuple(request.group.symbols))


def _emit_task(layer: _Layer, row: Index, column: Index) -> None:
    """All steps of one vector of columns; ``row`` counts heads of all samples."""
    lanes, key, tensors = layer.lanes, layer.key, layer.tensors
    state = T.alloc_buffer((key * lanes,), "float32")
    total = T.alloc_buffer((lanes,), "float32")
    sample, head = bind("sample", T.floordiv(row, layer.heads)), bind("own", T.floormod(row, layer.heads))
    with T.serial(key) as i:
        store(state, i * lanes, load(tensors["state"], (row * key + i) * layer.value + column, lanes))
    with T.serial(layer.steps) as step:
        place = bind("place", (sample * layer.steps + step) * layer.heads + head)
        store(total, 0, splat(0.0, lanes))
        with T.serial(key) as i:
            own = load(state, i * lanes, lanes) * splat(tensors["decay"][place * key + i], lanes)
            store(state, i * lanes, own)
            if layer.delta:
                part = load(state, i * lanes, lanes) * splat(tensors["k"][place * key + i], lanes)
                store(total, 0, load(total, 0, lanes) + part)
        value = load(tensors["v"], place * layer.value + column, lanes) - load(total, 0, lanes)
        store(total, 0, value * splat(tensors["rate"][place], lanes))
        with T.serial(key) as i:
            change = load(total, 0, lanes) * splat(tensors["k"][place * key + i], lanes)
            store(state, i * lanes, load(state, i * lanes, lanes) + change)
        _emit_reads(layer, state, place, column)
    with T.serial(key) as i:
        store(layer.outputs[1], (row * key + i) * layer.value + column, load(state, i * lanes, lanes))


def _emit_reads(layer: _Layer, state: tirx.Buffer, place: Index, column: Index) -> None:
    """What the queries of the head read from its state."""
    lanes, sums = layer.lanes, T.alloc_buffer((layer.lanes,), "float32")
    with T.serial(layer.group) as query:
        source = bind("query_row", place * layer.group + query)
        store(sums, 0, splat(0.0, lanes))
        with T.serial(layer.key) as i:
            part = load(state, i * lanes, lanes) * splat(layer.tensors["q"][source * layer.key + i], lanes)
            store(sums, 0, load(sums, 0, lanes) + part)
        store(layer.outputs[0], source * layer.value + column, load(sums, 0, lanes))
