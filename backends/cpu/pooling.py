"""Kernels of average pools, vectorized over the channels: sums in float32, the epilogue applied to each vector."""

from __future__ import annotations

from tvm import relax
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import is_equal_dim, is_one
from ...errors import UnsupportedOperatorError
from ...ir import dims_of, op_name
from ..target import Capabilities
from .epilogue import Epilogue, Position
from .kernel import Kernel, KernelRequest, declare_parameters
from .loops import Loops
from .movement import build_movement
from .signature import input_index
from .vector_math import splat
from .vector_memory import Index, flat_view, load, load_float, store
from .windows import Window, for_each_output


def build_pool(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a pool group.

    avg_pool with and without ``count_include_pad``, adaptive_avg_pool; a max_pool without an epilogue is movement.
    Raises UnsupportedOperatorError for other anchors.
    """
    anchor = request.group.anchor
    call, name = anchor.value, op_name(anchor.value) or ""
    if "max_pool" in name and len(request.group.bindings) == 1 and request.inputs == request.outputs:
        return build_movement(request, capabilities, threads)
    if "avg_pool" not in name:
        raise UnsupportedOperatorError("this pool has no kernel", layer=request.group.name, found=name)
    window = Window.of(call, dims_of(call.args[0]), dims_of(anchor.var), request.group.name)
    epilogue = Epilogue(request, capabilities, anchor)
    source = input_index(request, call.args[0])
    lanes = 1 if is_one(window.channels) else epilogue.vector_lanes
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, epilogue.constants)
        x = flat_view(parameters.inputs[source])
        epilogue.bind(parameters)

        def pool(row: Index, column: Index, valid: Index) -> None:
            total = T.alloc_buffer((lanes,), "float32")
            store(total, 0, splat(0.0, lanes), lanes)

            def add(index: Index) -> None:
                value = load_float(x, index * window.channels + column, lanes, valid, request.inputs[source])
                store(total, 0, load(total, 0, lanes, lanes) + value, lanes)

            window.scan(row, add)
            mean = load(total, 0, lanes, lanes) / splat(T.Cast("float32", _count(window, call, row)), lanes)
            epilogue.emit(mean, _position(epilogue, window, row, column), valid)

        for_each_output(window, lanes, Loops.of(request, capabilities, threads), pool)
    return Kernel(builder.get(), tuple(epilogue.constants), 0, tuple(request.group.symbols))


def _position(epilogue: Epilogue, window: Window, row: Index, column: Index) -> Position:
    """Where a window's result lies; in channels-first layouts the last axis is a spatial one."""
    if is_equal_dim(window.channels, epilogue.columns):
        return Position(row, column)
    return Position(T.floordiv(row, epilogue.columns), T.floormod(row, epilogue.columns))


def _count(window: Window, call: relax.Call, row: Index) -> Index:
    """How many elements the mean of a window is over (as PyTorch counts them)."""
    include_padding = "adaptive" not in (op_name(call) or "") and bool(call.attrs.count_include_pad)
    _, digits = window.digits(row)
    count: Index = 1
    for axis, digit in zip(window.axes, digits, strict=True):
        first, end = axis.taps(digit)
        count = count * (axis.padded_taps(digit) if include_padding else end - first)
    return T.int32(count) if isinstance(count, int) else count
